"""Queues: how they are declared, bound, purged and deleted, what is refused, and when they end by themselves."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pika import spec

from flyball.broker.wire import amqp
from tests.broker.protocols.amqp.compatibility.brokers import Broker
from tests.broker.protocols.amqp.compatibility.peer import Peer

NewName = Callable[[], str]
NewPeer = Callable[[], Peer]


def declare(peer: Peer, name: str, **options: Any) -> Any:
    return peer.ask(spec.Queue.Declare(queue=name, **options), spec.Queue.DeclareOk)


def delete(peer: Peer, name: str, **options: Any) -> int:
    count: int = peer.ask(spec.Queue.Delete(queue=name, **options), spec.Queue.DeleteOk).message_count
    return count


def fill(peer: Peer, name: str, count: int) -> None:
    """Publish `count` messages and wait until the queue has them. Makes the channel confirm."""
    peer.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
    tag = 0
    for _ in range(count):
        peer.publish(b"x", "", name)
    while tag < count:
        tag = peer.expect(spec.Basic.Ack).delivery_tag


def is_there(peer: Peer, name: str) -> bool:
    """Return whether there is a queue of this name; the channel is fresh afterwards."""
    peer.send(spec.Queue.Declare(queue=name, passive=True))
    answer = peer.read_frame().method
    if isinstance(answer, spec.Queue.DeclareOk):
        return True
    assert answer.reply_code == 404
    peer.send(spec.Channel.CloseOk())
    peer.open_channel()
    return False


def wait_until_gone(peer: Peer, name: str) -> None:
    """Return when there is no queue of this name; the timeout of the test is the limit."""
    while is_there(peer, name):
        pass


def wait_until_unroutable(peer: Peer, name: str) -> None:
    """Publish until the name leads nowhere. Makes the channel confirm."""
    peer.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
    while True:
        peer.publish(b"", "", name, mandatory=True)
        answer = peer.read_frame().method
        if isinstance(answer, spec.Basic.Return):
            peer.read_frame()
            peer.expect(spec.Basic.Ack)
            return


# Declaring


def test_a_declaration_tells_what_is_in_the_queue(peer: Peer, name: str) -> None:
    fresh = declare(peer, name, auto_delete=True)
    fill(peer, name, 3)
    filled = declare(peer, name, auto_delete=True)
    peer.ask(spec.Basic.Qos(prefetch_count=1), spec.Basic.QosOk)
    peer.ask(spec.Basic.Consume(queue=name), spec.Basic.ConsumeOk)
    peer.expect_content(spec.Basic.Deliver)
    consumed = declare(peer, name, passive=True)

    assert (fresh.queue, fresh.message_count, fresh.consumer_count) == (name, 0, 0)
    assert (filled.queue, filled.message_count, filled.consumer_count) == (name, 3, 0)
    assert (consumed.queue, consumed.message_count, consumed.consumer_count) == (name, 2, 1)


def test_the_broker_makes_up_a_name_where_none_is_given(peer: Peer) -> None:
    names = {declare(peer, "", exclusive=True).queue for _ in range(3)}

    assert len(names) == 3
    assert all(name.startswith("amq.gen-") for name in names)
    for name in names:
        assert declare(peer, name, passive=True).queue == name


def test_a_made_up_name_cannot_be_declared_again(peer: Peer) -> None:
    name = declare(peer, "", exclusive=True).queue

    peer.send(spec.Queue.Declare(queue=name, exclusive=True))

    text = f"ACCESS_REFUSED - queue name '{name}' contains reserved prefix 'amq.*'"
    peer.expect_channel_close(403, text, spec.Queue.Declare)


def test_a_passive_declaration_of_a_missing_queue_closes_the_channel(peer: Peer, name: str) -> None:
    peer.send(spec.Queue.Declare(queue=name, passive=True))

    peer.expect_channel_close(404, f"NOT_FOUND - no queue '{name}' in vhost '/'", spec.Queue.Declare)


def test_names_that_begin_with_amq_are_reserved(peer: Peer, name: str) -> None:
    peer.send(spec.Queue.Declare(queue=f"amq.{name}"))

    text = f"ACCESS_REFUSED - queue name 'amq.{name}' contains reserved prefix 'amq.*'"
    peer.expect_channel_close(403, text, spec.Queue.Declare)


def test_names_have_up_to_255_bytes(peer: Peer, name: str) -> None:
    longest = name + "ä" * 100
    longest += "x" * (255 - len(longest.encode()))

    assert declare(peer, longest, exclusive=True).queue == longest


def test_line_ends_are_taken_out_of_names(peer: Peer, name: str) -> None:
    assert declare(peer, f"{name}\r\nx", exclusive=True).queue == f"{name}x"


TTL_AND_LENGTH = {"x-message-ttl": 5000, "x-max-length": 5, "anything": 1}
OTHER_WAYS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "durable": (
        {},
        {"durable": True},
        "'durable' for queue '{0}' in vhost '/': received 'true' but current is 'false'",
    ),
    "not durable": (
        {"durable": True},
        {},
        "'durable' for queue '{0}' in vhost '/': received 'false' but current is 'true'",
    ),
    "auto_delete": (
        {},
        {"auto_delete": True},
        "'auto_delete' for queue '{0}' in vhost '/': received 'true' but current is 'false'",
    ),
    "new argument": (
        {},
        {"arguments": {"x-message-ttl": 5}},
        "'x-message-ttl' for queue '{0}' in vhost '/': "
        "received the value '5' of type 'signedint' but current is none",
    ),
    "other argument": (
        {"arguments": TTL_AND_LENGTH},
        {"arguments": {**TTL_AND_LENGTH, "x-message-ttl": 6000}},
        "'x-message-ttl' for queue '{0}' in vhost '/': received '6000' but current is '5000'",
    ),
    "missing argument": (
        {"arguments": TTL_AND_LENGTH},
        {},
        "'x-message-ttl' for queue '{0}' in vhost '/': "
        "received none but current is the value '5000' of type 'signedint'",
    ),
    "argument of another type": (
        {"arguments": TTL_AND_LENGTH},
        {"arguments": {**TTL_AND_LENGTH, "x-message-ttl": "5000"}},
        "'x-message-ttl' for queue '{0}' in vhost '/': received '5000' but current is '5000'",
    ),
    "queue type": (
        {"durable": True},
        {"durable": True, "arguments": {"x-queue-type": "quorum"}},
        "'x-queue-type' for queue '{0}' in vhost '/': "
        "received the value 'quorum' of type 'longstr' but current is none",
    ),
    "queue type as an array": (
        {},
        {"arguments": {"x-queue-type": ["classic"]}},
        "'x-queue-type' for queue '{0}' in vhost '/': "
        "received the value '[{{longstr,<<\"classic\">>}}]' of type 'array' but current is none",
    ),
    "queue type as a table": (
        {},
        {"arguments": {"x-queue-type": {"a": 1}}},
        "'x-queue-type' for queue '{0}' in vhost '/': "
        "received the value '[{{<<\"a\">>,signedint,1}}]' of type 'table' but current is none",
    ),
    "queue type without a value": (
        {},
        {"arguments": {"x-queue-type": None}},
        "'x-queue-type' for queue '{0}' in vhost '/': "
        "received the value 'undefined' of type 'void' but current is none",
    ),
}


@pytest.mark.parametrize("case", OTHER_WAYS)
def test_a_queue_cannot_be_declared_again_another_way(peer: Peer, name: str, case: str) -> None:
    first, second, complaint = OTHER_WAYS[case]
    declare(peer, name, **first)

    peer.send(spec.Queue.Declare(queue=name, **second))

    text = "PRECONDITION_FAILED - inequivalent arg " + complaint.format(name)
    peer.expect_channel_close(406, text, spec.Queue.Declare)
    peer.open_channel()
    delete(peer, name)


def test_a_whole_number_is_not_redeclared_as_a_fraction(peer: Peer, name: str) -> None:
    declare(peer, name, arguments={"x-message-ttl": 10})

    # pika writes no fractions.
    arguments: dict[str, amqp.Value] = {"x-message-ttl": 10.0}
    peer.send_bytes(amqp.QueueDeclare(1, name, False, False, False, False, False, arguments).encode())

    text = f"PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue '{name}' in vhost '/': "
    assert peer.expect_channel_close(406, text, spec.Queue.Declare) == text + "received '10.0' but current is '10'"
    peer.open_channel()
    delete(peer, name)


def test_time_is_the_number_of_its_seconds_when_a_queue_is_declared_again(peer: Peer, name: str) -> None:
    declare(peer, name, exclusive=True, arguments={"x-message-ttl": 10})

    declare(peer, name, exclusive=True, arguments={"x-message-ttl": datetime.fromtimestamp(10, UTC)})
    text = f"PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue '{name}' in vhost '/': "
    arguments = {"x-message-ttl": datetime.fromtimestamp(1577836800, UTC)}
    peer.send(spec.Queue.Declare(queue=name, exclusive=True, arguments=arguments))
    found = peer.expect_channel_close(406, text, spec.Queue.Declare)
    assert found == text + "received '1577836800' but current is '10'"


def test_a_queue_can_be_declared_again_the_same_way(peer: Peer, name: str) -> None:
    declare(peer, name, exclusive=True, arguments=TTL_AND_LENGTH)

    declare(peer, name, exclusive=True, arguments=TTL_AND_LENGTH)
    declare(peer, name, exclusive=True, arguments={**TTL_AND_LENGTH, "anything": 2})
    declare(peer, name, exclusive=True, arguments={**TTL_AND_LENGTH, "x-queue-type": "classic"})
    declare(peer, name, passive=True, durable=True)


INTEGERS = ["x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-max-priority"]
BAD_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    *(({argument: -1}, f"invalid arg '{argument}' for queue '{{0}}' in vhost '/': ") for argument in INTEGERS),
    *(({argument: "1"}, f"invalid arg '{argument}' for queue '{{0}}' in vhost '/': ") for argument in INTEGERS),
    ({"x-message-ttl": True}, "invalid arg 'x-message-ttl' for queue '{0}' in vhost '/': "),
    ({"x-message-ttl": None}, "invalid arg 'x-message-ttl' for queue '{0}' in vhost '/': "),
    ({"x-message-ttl": 2**62}, "invalid arg 'x-message-ttl' for queue '{0}' in vhost '/': {{value_too_large,"),
    ({"x-expires": 0}, "invalid arg 'x-expires' for queue '{0}' in vhost '/': {{value_zero,0}}"),
    ({"x-overflow": "burst"}, "invalid arg 'x-overflow' for queue '{0}' in vhost '/': invalid_overflow"),
    ({"x-overflow": 1}, "invalid arg 'x-overflow' for queue '{0}' in vhost '/': {{unacceptable_type,signedint}}"),
    (
        {"x-dead-letter-exchange": 1},
        "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue '{0}' in vhost",
    ),
    (
        {"x-dead-letter-routing-key": "a"},
        "invalid arg 'x-dead-letter-routing-key' for queue '{0}' in vhost '/': routing_key_but_no_dlx_defined",
    ),
    (
        {"x-dead-letter-routing-key": 1, "x-dead-letter-exchange": ""},
        "invalid arg 'x-dead-letter-routing-key' for queue '{0}' in vhost '/': {{unacceptable_type,signedint}}",
    ),
    (
        {"x-max-priority": 256},
        "invalid arg 'x-max-priority' for queue '{0}' in vhost '/': {{max_value_exceeded,256}}",
    ),
    (
        {"x-single-active-consumer": 1},
        "invalid arg 'x-single-active-consumer' for queue '{0}' in vhost '/': {{unacceptable_type,signedint}}",
    ),
    ({"x-queue-type": "odd"}, "invalid arg 'x-queue-type' for queue '{0}' in vhost '/': "),
    ({"x-queue-type": 1}, "invalid arg 'x-queue-type' for queue '{0}' in vhost '/': "),
    ({"x-queue-type": "quorum"}, "invalid property 'non-durable' for queue '{0}' in vhost '/'"),
    ({"x-queue-mode": "odd"}, "invalid arg 'x-queue-mode' for queue '{0}' in vhost '/': "),
    ({"x-delivery-limit": 5}, "invalid arg 'x-delivery-limit' for queue '{0}' in vhost '/' of queue type"),
]


@pytest.mark.parametrize(("arguments", "complaint"), BAD_ARGUMENTS, ids=[str(bad) for bad, _ in BAD_ARGUMENTS])
def test_arguments_that_make_no_sense_are_refused(
    peer: Peer, name: str, arguments: dict[str, Any], complaint: str
) -> None:
    peer.send(spec.Queue.Declare(queue=name, arguments=arguments))

    peer.expect_channel_close(406, "PRECONDITION_FAILED - " + complaint.format(name), spec.Queue.Declare)


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-message-ttl": 0},
        {"x-message-ttl": 2**33},
        {"x-expires": 100_000},
        {"x-max-length": 0},
        {"x-max-length-bytes": 0},
        {"x-overflow": "drop-head"},
        {"x-overflow": "reject-publish"},
        {"x-overflow": "reject-publish-dlx"},
        {"x-dead-letter-exchange": ""},
        {"x-dead-letter-exchange": "missing", "x-dead-letter-routing-key": "k"},
        {"x-max-priority": 0},
        {"x-max-priority": 255},
        {"x-single-active-consumer": True},
        {"x-queue-type": "classic"},
        {"x-queue-mode": "lazy"},
        {"x-queue-mode": "default"},
        {"x-queue-version": 2},
        {"x-unknown": "anything"},
    ],
    ids=str,
)
def test_arguments_that_make_sense_or_mean_nothing_are_accepted(
    peer: Peer, name: str, arguments: dict[str, Any]
) -> None:
    declare(peer, name, exclusive=True, arguments=arguments)


@pytest.mark.parametrize(
    ("options", "arguments", "complaint"),
    [
        ({"exclusive": True}, {}, "invalid property 'exclusive-owner' for queue '{0}' in vhost '/'"),
        ({"auto_delete": True}, {}, "invalid property 'auto-delete' for queue '{0}' in vhost '/'"),
        ({}, {"x-max-priority": 3}, "invalid arg 'x-max-priority' for queue '{0}' in vhost '/' of queue type"),
        ({}, {"x-queue-mode": "lazy"}, "invalid arg 'x-queue-mode' for queue '{0}' in vhost '/' of queue type"),
    ],
    ids=["exclusive", "auto_delete", "priority", "mode"],
)
def test_a_quorum_queue_cannot_be_everything(
    peer: Peer, name: str, options: dict[str, Any], arguments: dict[str, Any], complaint: str
) -> None:
    arguments = {"x-queue-type": "quorum", **arguments}
    peer.send(spec.Queue.Declare(queue=name, durable=True, arguments=arguments, **options))

    peer.expect_channel_close(406, "PRECONDITION_FAILED - " + complaint.format(name), spec.Queue.Declare)


@pytest.mark.parametrize("arguments", [{}, {"x-delivery-limit": 3}, {"x-message-ttl": 5000}], ids=str)
def test_a_quorum_queue_is_accepted(peer: Peer, name: str, arguments: dict[str, Any]) -> None:
    declare(peer, name, durable=True, arguments={"x-queue-type": "quorum", **arguments})
    delete(peer, name)


# The queue that was declared last


def test_an_empty_name_means_the_queue_declared_last_on_the_channel(peer: Peer) -> None:
    name = declare(peer, "", exclusive=True).queue
    fill(peer, name, 2)

    peer.ask(spec.Queue.Bind(queue="", exchange="amq.direct", routing_key=name), spec.Queue.BindOk)
    peer.ask(spec.Queue.Unbind(queue="", exchange="amq.direct", routing_key=name), spec.Queue.UnbindOk)
    peer.send(spec.Basic.Get(queue="", no_ack=True))
    assert peer.expect_content(spec.Basic.GetOk).body == b"x"
    assert peer.ask(spec.Queue.Purge(queue=""), spec.Queue.PurgeOk).message_count == 1
    peer.ask(spec.Basic.Consume(queue="", consumer_tag="me"), spec.Basic.ConsumeOk)
    assert delete(peer, "") == 0


def test_a_passive_declaration_counts_as_well(peer: Peer, name: str, new_name: NewName) -> None:
    other = new_name()
    declare(peer, name, exclusive=True)
    fill(peer, name, 1)
    declare(peer, other, exclusive=True)

    declare(peer, name, passive=True)

    assert peer.ask(spec.Queue.Purge(queue=""), spec.Queue.PurgeOk).message_count == 1


@pytest.mark.parametrize(
    "method",
    [
        spec.Queue.Bind(queue="", exchange="amq.direct"),
        spec.Queue.Unbind(queue="", exchange="amq.direct"),
        spec.Queue.Purge(queue=""),
        spec.Queue.Delete(queue=""),
        spec.Basic.Get(queue=""),
        spec.Basic.Consume(queue=""),
    ],
    ids=lambda method: str(method.NAME),
)
def test_an_empty_name_means_nothing_before_a_declaration(peer: Peer, method: Any) -> None:
    peer.send(method)

    peer.expect_channel_close(404, "NOT_FOUND - no previously declared queue", type(method))


def test_a_passive_declaration_needs_a_name(peer: Peer) -> None:
    declare(peer, "", exclusive=True)

    peer.send(spec.Queue.Declare(queue="", passive=True))

    peer.expect_channel_close(404, "NOT_FOUND - no queue '' in vhost '/'", spec.Queue.Declare)


OF_STREAMS = ("x-initial-cluster-size", "x-max-age", "x-stream-max-segment-size-bytes")
OF_QUORUM_QUEUES = (
    "x-quorum-initial-group-size",
    "x-delivery-limit",
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    "x-dead-letter-strategy",
    "x-queue-leader-locator",
)
OF_CLASSIC_QUEUES = ("x-max-priority", "x-queue-mode", "x-queue-version")


@pytest.mark.parametrize(
    ("kind", "refused"),
    [("classic", (*OF_STREAMS, *OF_QUORUM_QUEUES)), ("quorum", (*OF_STREAMS, *OF_CLASSIC_QUEUES))],
)
def test_arguments_of_another_type_are_refused_whatever_their_value(
    peer: Peer, name: str, kind: str, refused: tuple[str, ...]
) -> None:
    for argument in refused:
        arguments = {"x-queue-type": kind, argument: "nonsense"}
        peer.send(spec.Queue.Declare(queue=name, durable=True, arguments=arguments))
        text = f"invalid arg '{argument}' for queue '{name}' in vhost '/' of queue type rabbit_{kind}_queue"
        peer.expect_channel_close(406, f"PRECONDITION_FAILED - {text}", spec.Queue.Declare)
        peer.open_channel()


# Exclusive queues


def test_exclusive_queue_is_never_durable(peer: Peer, name: str) -> None:
    declare(peer, name, exclusive=True, durable=True)
    declare(peer, name, exclusive=True)


@pytest.mark.parametrize(
    ("version", "problem"),
    [(3, "\"unsupported queue version '3'\""), ("a", '"expected integer, got longstr"')],
)
def test_queue_version_is_1_or_2(peer: Peer, name: str, version: Any, problem: str) -> None:
    declare(peer, name, exclusive=True, arguments={"x-queue-version": 2})
    other = f"{name}-other"
    peer.send(spec.Queue.Declare(queue=other, arguments={"x-queue-version": version}))
    text = f"PRECONDITION_FAILED - invalid arg 'x-queue-version' for queue '{other}' in vhost '/': {problem}"
    peer.expect_channel_close(406, text, spec.Queue.Declare)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (spec.Queue.Declare, {}),
        (spec.Queue.Declare, {"exclusive": True}),
        (spec.Queue.Declare, {"passive": True}),
        (spec.Queue.Bind, {"exchange": "amq.direct"}),
        (spec.Queue.Purge, {}),
        (spec.Queue.Delete, {}),
        (spec.Basic.Consume, {}),
        (spec.Basic.Get, {}),
    ],
    ids=lambda value: str(getattr(value, "NAME", value)),
)
def test_other_connections_cannot_use_an_exclusive_queue(
    peer: Peer, new_peer: NewPeer, name: str, kind: Any, options: dict[str, Any]
) -> None:
    declare(peer, name, exclusive=True)
    other = new_peer().open()

    other.send(kind(queue=name, **options))

    text = f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{name}' in vhost '/'."
    other.expect_channel_close(405, text, kind)


def test_other_connections_cannot_unbind_an_exclusive_queue(peer: Peer, new_peer: NewPeer, name: str) -> None:
    declare(peer, name, exclusive=True)
    peer.ask(spec.Queue.Bind(queue=name, exchange="amq.direct", routing_key=name), spec.Queue.BindOk)
    other = new_peer().open()

    other.send(spec.Queue.Unbind(queue=name, exchange="amq.direct", routing_key=name))

    text = f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{name}' in vhost '/'."
    other.expect_channel_close(405, text, spec.Queue.Unbind)
    peer.publish(b"routed", exchange="amq.direct", routing_key=name)
    peer.ask(spec.Queue.Purge(queue=name), spec.Queue.PurgeOk)


def test_unbinding_what_is_not_bound_has_no_effect(peer: Peer, new_peer: NewPeer, name: str) -> None:
    declare(peer, name, exclusive=True)
    other = new_peer().open()
    # Neither the owner nor the existence of the queue is checked.
    for queue, exchange in ((name, "amq.direct"), (f"{name}-missing", "amq.direct"), (name, f"{name}-missing")):
        other.ask(spec.Queue.Unbind(queue=queue, exchange=exchange, routing_key="key"), spec.Queue.UnbindOk)


def test_other_connections_can_publish_to_an_exclusive_queue(peer: Peer, new_peer: NewPeer, name: str) -> None:
    declare(peer, name, exclusive=True)

    fill(new_peer().open(), name, 1)

    assert declare(peer, name, exclusive=True).message_count == 1


@pytest.mark.parametrize("exclusive", [True, False])
def test_a_queue_cannot_become_exclusive_or_shared(peer: Peer, name: str, exclusive: bool) -> None:
    declare(peer, name, exclusive=exclusive, auto_delete=True)

    peer.send(spec.Queue.Declare(queue=name, exclusive=not exclusive, auto_delete=True))

    text = f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{name}' in vhost '/'."
    peer.expect_channel_close(405, text, spec.Queue.Declare)
    peer.open_channel()
    delete(peer, name)


def test_an_exclusive_queue_is_gone_when_its_connection_has_closed(peer: Peer, new_peer: NewPeer, name: str) -> None:
    owner = new_peer().open()
    declare(owner, name, exclusive=True, durable=True)

    owner.ask(
        spec.Connection.Close(reply_code=200, reply_text="", class_id=0, method_id=0), spec.Connection.CloseOk, 0
    )

    assert not is_there(peer, name)


def test_an_exclusive_queue_ends_with_a_lost_connection(peer: Peer, new_peer: NewPeer, name: str) -> None:
    with new_peer().open() as owner:
        declare(owner, name, exclusive=True)
        peer.ask(spec.Queue.Bind(queue=name, exchange="amq.direct"), spec.Channel.Close)
        peer.send(spec.Channel.CloseOk())
        peer.open_channel()

    # Until the broker has noticed, the queue is locked.
    while True:
        peer.send(spec.Queue.Declare(queue=name, passive=True))
        closed = peer.expect(spec.Channel.Close)
        peer.send(spec.Channel.CloseOk())
        peer.open_channel()
        if closed.reply_code == 404:
            return
        assert closed.reply_code == 405


def test_an_exclusive_queue_outlives_the_channel_that_declared_it(new_peer: NewPeer, name: str) -> None:
    peer = new_peer().open(channels=2)
    declare(peer, name, exclusive=True)

    peer.ask(spec.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0), spec.Channel.CloseOk)

    peer.ask(spec.Queue.Purge(queue=name), spec.Queue.PurgeOk, 2)


# Ends


def test_an_auto_delete_queue_ends_with_its_last_consumer(peer: Peer, name: str) -> None:
    declare(peer, name, auto_delete=True)
    for tag in ("a", "b"):
        peer.ask(spec.Basic.Consume(queue=name, consumer_tag=tag), spec.Basic.ConsumeOk)
    peer.ask(spec.Basic.Cancel(consumer_tag="a"), spec.Basic.CancelOk)
    assert is_there(peer, name)

    peer.ask(spec.Basic.Cancel(consumer_tag="b"), spec.Basic.CancelOk)

    wait_until_gone(peer, name)


def test_an_auto_delete_queue_ends_with_the_channel_of_its_consumer(new_peer: NewPeer, name: str) -> None:
    peer = new_peer().open(channels=2)
    declare(peer, name, auto_delete=True)
    peer.ask(spec.Basic.Consume(queue=name), spec.Basic.ConsumeOk, 2)

    peer.ask(spec.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0), spec.Channel.CloseOk, 2)

    wait_until_gone(peer, name)


def test_an_auto_delete_queue_that_never_had_a_consumer_stays(peer: Peer, new_peer: NewPeer, name: str) -> None:
    owner = new_peer().open()
    declare(owner, name, auto_delete=True)
    fill(owner, name, 1)
    owner.send(spec.Basic.Get(queue=name, no_ack=True))
    owner.expect_content(spec.Basic.GetOk)
    owner.ask(
        spec.Connection.Close(reply_code=200, reply_text="", class_id=0, method_id=0), spec.Connection.CloseOk, 0
    )

    assert is_there(peer, name)
    delete(peer, name)


def test_an_unused_queue_expires(peer: Peer, name: str) -> None:
    # It is gone when its name leads nowhere. Asking for the queue itself would be a use.
    declare(peer, name, arguments={"x-expires": 50})

    wait_until_unroutable(peer, name)


def test_a_queue_with_a_consumer_does_not_expire(broker: Broker, peer: Peer, name: str) -> None:
    used, unused = f"{name}-used", f"{name}-unused"
    declare(peer, used)
    peer.ask(spec.Basic.Consume(queue=used), spec.Basic.ConsumeOk)
    # Only now, since a queue that expires may be gone before its first consumer comes.
    broker.set_policy(name, f"^{name}", {"expires": 50}, apply_to="queues")
    declare(peer, unused, arguments={"x-expires": 60})

    wait_until_unroutable(peer, unused)

    assert is_there(peer, used)
    delete(peer, used)
    broker.clear_policy(name)


# Deleting and purging


def test_purging_tells_how_many_messages_there_were(peer: Peer, name: str) -> None:
    declare(peer, name, exclusive=True)
    fill(peer, name, 3)

    assert peer.ask(spec.Queue.Purge(queue=name), spec.Queue.PurgeOk).message_count == 3
    assert peer.ask(spec.Queue.Purge(queue=name), spec.Queue.PurgeOk).message_count == 0


def test_purging_leaves_what_is_out_with_consumers(peer: Peer, name: str) -> None:
    declare(peer, name, exclusive=True)
    fill(peer, name, 2)
    peer.send(spec.Basic.Get(queue=name))
    got = peer.expect_content(spec.Basic.GetOk)

    assert peer.ask(spec.Queue.Purge(queue=name), spec.Queue.PurgeOk).message_count == 1

    peer.send(spec.Basic.Nack(delivery_tag=got.method.delivery_tag, requeue=True))
    peer.send(spec.Basic.Get(queue=name))
    assert peer.expect_content(spec.Basic.GetOk).method.redelivered is True


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (spec.Queue.Purge, {}),
        (spec.Queue.Bind, {"exchange": "amq.direct"}),
        (spec.Basic.Consume, {}),
        (spec.Basic.Get, {}),
    ],
    ids=lambda value: str(getattr(value, "NAME", "")),
)
def test_a_missing_queue_closes_the_channel(peer: Peer, name: str, kind: Any, options: dict[str, Any]) -> None:
    peer.send(kind(queue=name, **options))

    peer.expect_channel_close(404, f"NOT_FOUND - no queue '{name}' in vhost '/'", kind)


def test_deleting_tells_how_many_messages_there_were(peer: Peer, name: str) -> None:
    declare(peer, name)
    fill(peer, name, 3)

    assert delete(peer, name) == 3
    assert not is_there(peer, name)


def test_deleting_what_is_not_there_is_no_error(peer: Peer, name: str) -> None:
    assert delete(peer, name) == 0
    assert delete(peer, name, if_unused=True, if_empty=True) == 0


def test_a_queue_with_messages_is_not_deleted_if_it_has_to_be_empty(peer: Peer, name: str) -> None:
    declare(peer, name, exclusive=True)
    fill(peer, name, 1)

    peer.send(spec.Queue.Delete(queue=name, if_empty=True))

    text = f"PRECONDITION_FAILED - queue '{name}' in vhost '/' not empty"
    peer.expect_channel_close(406, text, spec.Queue.Delete)
    peer.open_channel()
    assert delete(peer, name, if_unused=True) == 1


def test_a_queue_with_a_consumer_is_not_deleted_if_it_has_to_be_unused(new_peer: NewPeer, name: str) -> None:
    peer = new_peer().open(channels=2)
    declare(peer, name, exclusive=True)
    peer.ask(spec.Basic.Consume(queue=name, consumer_tag="me"), spec.Basic.ConsumeOk, 2)

    peer.send(spec.Queue.Delete(queue=name, if_unused=True))

    peer.expect_channel_close(406, f"PRECONDITION_FAILED - queue '{name}' in vhost '/' in use", spec.Queue.Delete)
    peer.ask(spec.Basic.Cancel(consumer_tag="me"), spec.Basic.CancelOk, 2)
    peer.ask(spec.Queue.Delete(queue=name, if_unused=True), spec.Queue.DeleteOk, 2)


def test_consumers_hear_that_their_queue_was_deleted(peer: Peer, new_peer: NewPeer, name: str) -> None:
    declare(peer, name)
    peer.ask(spec.Basic.Consume(queue=name, consumer_tag="me"), spec.Basic.ConsumeOk)

    delete(new_peer().open(), name)

    cancel = peer.expect(spec.Basic.Cancel)
    assert (cancel.consumer_tag, cancel.nowait) == ("me", True)


def test_a_client_that_cannot_hear_of_it_is_not_told(peer: Peer, new_peer: NewPeer, name: str) -> None:
    deaf = new_peer().open(properties={})
    declare(deaf, name)
    deaf.ask(spec.Basic.Consume(queue=name, consumer_tag="me"), spec.Basic.ConsumeOk)

    delete(peer, name)

    deaf.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)


# Bindings


def test_a_missing_exchange_is_told_before_a_missing_queue(peer: Peer, name: str, new_name: NewName) -> None:
    peer.send(spec.Queue.Bind(queue=new_name(), exchange=name))

    peer.expect_channel_close(404, f"NOT_FOUND - no exchange '{name}' in vhost '/'", spec.Queue.Bind)


def test_removing_a_binding_that_is_not_there_is_no_error(peer: Peer, name: str, new_name: NewName) -> None:
    declare(peer, name, exclusive=True)
    for queue, exchange in [(name, "amq.direct"), (name, new_name()), (new_name(), "amq.direct")]:
        peer.ask(spec.Queue.Unbind(queue=queue, exchange=exchange, routing_key="k"), spec.Queue.UnbindOk)


def test_a_binding_is_removed_only_with_its_own_arguments(peer: Peer, name: str) -> None:
    declare(peer, name, exclusive=True)
    binding: dict[str, Any] = {"queue": name, "exchange": "amq.direct", "routing_key": name}
    peer.ask(spec.Queue.Bind(**binding, arguments={"a": 1}), spec.Queue.BindOk)
    peer.ask(spec.Queue.Bind(**binding), spec.Queue.BindOk)
    peer.ask(spec.Queue.Bind(**binding), spec.Queue.BindOk)

    peer.ask(spec.Queue.Unbind(**binding), spec.Queue.UnbindOk)

    peer.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
    peer.publish(b"x", "amq.direct", name, mandatory=True)
    peer.expect(spec.Basic.Ack)
    peer.ask(spec.Queue.Unbind(**binding, arguments={"a": 1}), spec.Queue.UnbindOk)
    peer.publish(b"x", "amq.direct", name, mandatory=True)
    peer.expect_content(spec.Basic.Return)


def test_no_answer_comes_where_none_is_wanted(peer: Peer, name: str) -> None:
    peer.send(spec.Queue.Declare(queue=name, nowait=True))
    peer.send(spec.Queue.Bind(queue=name, exchange="amq.direct", nowait=True))
    peer.send(spec.Queue.Purge(queue=name, nowait=True))
    peer.send(spec.Basic.Consume(queue=name, consumer_tag="me", nowait=True))
    peer.send(spec.Basic.Cancel(consumer_tag="me", nowait=True))
    peer.send(spec.Queue.Delete(queue=name, nowait=True))

    assert not is_there(peer, name)


def test_an_error_is_told_even_where_no_answer_is_wanted(peer: Peer, name: str) -> None:
    peer.send(spec.Queue.Declare(queue=f"amq.{name}", nowait=True))

    peer.expect_channel_close(403, "ACCESS_REFUSED", spec.Queue.Declare)
