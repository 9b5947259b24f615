"""Queues that were declared as quorum queues: their delivery limit, and what they cannot do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from pika.exceptions import ChannelClosedByBroker

from tests.broker.protocols.amqp.compatibility.brokers import Broker
from tests.broker.protocols.amqp.compatibility.queues import (
    Consumer,
    channel_closed,
    connection_closed,
    declare,
    declare_dead_letters,
    publish,
    take,
    take_all,
    texts,
    wait_for_count,
)

Connect = Callable[..., Any]
Declare = Callable[..., str]


@pytest.fixture
def declare_quorum(channel: Any, connect: Connect) -> Iterator[Declare]:
    """Declare a quorum queue; it is deleted after the test."""
    with ExitStack() as queues:

        def declare_one(arguments: dict[str, Any] | None = None) -> str:
            queue = declare(channel, {"x-queue-type": "quorum", **(arguments or {})}, durable=True)
            queues.callback(lambda: connect().channel().queue_delete(queue))
            return queue

        yield declare_one


def test_a_consumer_sees_from_the_second_delivery_on_how_often_it_came_back(
    channel: Any, declare_quorum: Declare
) -> None:
    queue = declare_quorum()
    publish(channel, queue, "body", message_id="7")
    consumer = Consumer(channel, queue)
    for times in (1, 2, 3):
        consumer.wait_for(times)
        channel.basic_nack(consumer.last.tag, requeue=True)
    consumer.wait_for(4)
    assert [delivery.headers for delivery in consumer.deliveries] == [
        {},
        {"x-delivery-count": 1},
        {"x-delivery-count": 2},
        {"x-delivery-count": 3},
    ]
    assert consumer.texts == ["body", "body*", "body*", "body*"]
    assert consumer.last.properties.message_id == "7"


def test_a_get_always_says_how_often_the_message_came_back(
    connect: Connect, channel: Any, declare_quorum: Declare
) -> None:
    queue = declare_quorum()
    publish(channel, queue, "body", headers={"mine": "kept"})
    delivery = take(channel, queue)
    assert delivery.headers == {"mine": "kept", "x-delivery-count": 0}
    channel.basic_reject(delivery.tag, requeue=True)
    other = connect().channel()
    assert take(other, queue).headers == {"mine": "kept", "x-delivery-count": 1}
    other.connection.close()
    assert take(channel, queue).headers == {"mine": "kept", "x-delivery-count": 2}


def test_a_message_that_came_back_too_often_is_a_dead_letter(channel: Any, declare_quorum: Declare) -> None:
    exchange, dead = declare_dead_letters(channel)
    queue = declare_quorum({"x-delivery-limit": 1, "x-dead-letter-exchange": exchange})
    publish(channel, queue, "body", expiration="100000")
    for text in ("body", "body*"):
        delivery = take(channel, queue)
        assert delivery.text == text
        channel.basic_reject(delivery.tag, requeue=True)
    letter = take(channel, dead)
    (death,) = letter.headers["x-death"]
    del death["time"]
    assert death == {
        "count": 1,
        "reason": "delivery_limit",
        "queue": queue,
        "exchange": "",
        "routing-keys": [queue],
        "original-expiration": "100000",
    }
    assert letter.headers["x-first-death-reason"] == "delivery_limit"
    assert "x-delivery-count" not in letter.headers


def test_delivery_limit_counts_lost_connections_and_drops_without_dlx(
    connect: Connect, channel: Any, declare_quorum: Declare
) -> None:
    queue = declare_quorum({"x-delivery-limit": 1})
    publish(channel, queue, "first", "second")
    for text in ("first", "first*"):
        other = connect().channel()
        assert take(other, queue).text == text
        other.connection.close()
        # The queue sees the end later than the client, and gives the next message until then.
        wait_for_count(channel, queue, 2 if text == "first" else 1)
    assert take(channel, queue).text == "second"


@pytest.mark.parametrize(
    ("arguments", "order"), [({}, ["2", "3", "0*", "1*"]), ({"x-delivery-limit": 5}, ["0*", "1*", "2", "3"])]
)
def test_what_is_given_back_goes_to_the_tail_unless_deliveries_are_limited(
    broker: Broker, channel: Any, declare_quorum: Declare, arguments: dict[str, Any], order: list[str]
) -> None:
    queue = declare_quorum(arguments)
    publish(channel, queue, *"0123")
    wait_for_count(channel, queue, 4)
    take(channel, queue)
    channel.basic_nack(take(channel, queue).tag, multiple=True, requeue=True)
    wait_for_count(channel, queue, 4)
    # Flyball has one rule for all queues: what comes back goes to its old place.
    assert take_all(channel, queue) == (["0*", "1*", "2", "3"] if broker.name == "flyball" else order)


def test_what_a_lost_consumer_had_goes_to_its_old_place(
    connect: Connect, channel: Any, declare_quorum: Declare
) -> None:
    queue = declare_quorum()
    publish(channel, queue, *"0123")
    other = connect().channel()
    other.basic_qos(prefetch_count=2)
    Consumer(other, queue).wait_for(2)
    other.connection.close()
    wait_for_count(channel, queue, 4)
    assert take_all(channel, queue) == ["0*", "1*", "2", "3"]


def test_messages_expire_and_are_rejected_as_in_other_queues(channel: Any, declare_quorum: Declare) -> None:
    exchange, dead = declare_dead_letters(channel)
    expiring = declare_quorum({"x-dead-letter-exchange": exchange, "x-message-ttl": 50})
    publish(channel, expiring, "expired")
    assert take(channel, dead).headers["x-first-death-reason"] == "expired"
    queue = declare_quorum({"x-dead-letter-exchange": exchange})
    publish(channel, queue, "rejected")
    channel.basic_reject(take(channel, queue).tag, requeue=False)
    assert take(channel, dead).headers["x-first-death-reason"] == "rejected"


def test_a_length_is_kept(channel: Any, declare_quorum: Declare) -> None:
    queue = declare_quorum({"x-max-length": 2})
    publish(channel, queue, *"0123")
    wait_for_count(channel, queue, 2)
    assert texts([take(channel, queue), take(channel, queue)]) == ["2", "3"]


def test_one_consumer_may_be_the_active_one(connect: Connect, channel: Any, declare_quorum: Declare) -> None:
    queue = declare_quorum({"x-single-active-consumer": True})
    active, waiting = Consumer(connect().channel(), queue), Consumer(connect().channel(), queue)
    publish(channel, queue, "0", "1")
    assert active.wait_for(2) == ["0", "1"]
    active.channel.connection.close()
    assert waiting.wait_for(2) == ["0*", "1*"]


def test_a_limit_for_the_whole_channel_is_not_implemented(connect: Connect, declare_quorum: Declare) -> None:
    queue = declare_quorum()
    channel = connect().channel()
    channel.basic_qos(prefetch_count=1, global_qos=True)
    with connection_closed(540, f"NOT_IMPLEMENTED - queue '{queue}' in vhost '/' does not support global qos"):
        Consumer(channel, queue)


@pytest.mark.parametrize("condition", ["if-empty", "if-unused"])
def test_deleting_on_a_condition_is_not_implemented(
    connect: Connect, declare_quorum: Declare, condition: str
) -> None:
    queue = declare_quorum()
    complaint = (
        f"cannot delete queue '{queue}' in vhost '/'. queue.delete operations with {condition} flag set are not "
        "supported by quorum queues"
    )
    with connection_closed(540, f"NOT_IMPLEMENTED - {complaint}"):
        connect().channel().queue_delete(queue, **{condition.replace("-", "_"): True})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"durable": False}, "invalid property 'non-durable' for queue '{}' in vhost '/'"),
        ({"exclusive": True}, "invalid property 'exclusive-owner' for queue '{}' in vhost '/'"),
        ({"auto_delete": True}, "invalid property 'auto-delete' for queue '{}' in vhost '/'"),
    ],
)
def test_it_has_to_be_durable_and_shared(channel: Any, name: str, options: dict[str, bool], complaint: str) -> None:
    with channel_closed(406, "PRECONDITION_FAILED - " + complaint.format(name)):
        channel.queue_declare(name, **{"durable": True, **options}, arguments={"x-queue-type": "quorum"})


def test_it_needs_a_name(channel: Any) -> None:
    text = "PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_quorum_queue"
    with channel_closed(406, text):
        channel.queue_declare("", durable=True, arguments={"x-queue-type": "quorum"})


@pytest.mark.parametrize(
    ("kind", "argument", "value"),
    [
        ("quorum", "x-max-priority", 5),
        ("quorum", "x-queue-mode", "lazy"),
        ("classic", "x-delivery-limit", 3),
    ],
)
def test_arguments_of_the_other_kind_are_refused(
    channel: Any, name: str, kind: str, argument: str, value: object
) -> None:
    complaint = f"invalid arg '{argument}' for queue '{name}' in vhost '/' of queue type rabbit_{kind}_queue"
    with channel_closed(406, f"PRECONDITION_FAILED - {complaint}"):
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind, argument: value})


def test_an_unknown_kind_is_refused(channel: Any, name: str) -> None:
    complaint = f"invalid arg 'x-queue-type' for queue '{name}' in vhost '/': \"unsupported queue type 'bogus'\""
    with channel_closed(406, f"PRECONDITION_FAILED - {complaint}"):
        channel.queue_declare(name, arguments={"x-queue-type": "bogus"})


def test_the_kind_cannot_change(connect: Connect, channel: Any, declare_quorum: Declare) -> None:
    queue = declare_quorum()
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
    text = f"PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue '{queue}' in vhost '/': received "
    with channel_closed(406, f"{text}none but current is the value 'quorum' of type 'longstr'"):
        connect().channel().queue_declare(queue, durable=True)
    with channel_closed(406, f"{text}'classic' but current is 'quorum'"):
        connect().channel().queue_declare(queue, durable=True, arguments={"x-queue-type": "classic"})


def test_classic_is_what_a_queue_is_if_nothing_is_said(channel: Any) -> None:
    said = declare(channel, {"x-queue-type": "classic"})
    channel.queue_declare(said)
    unsaid = declare(channel)
    channel.queue_declare(unsaid, arguments={"x-queue-type": "classic"})


QUORUM = {"x-queue-type": "quorum"}

KINDS = [
    ("x-dead-letter-strategy", "at-most-once", "at-least-once", 5),
    ("x-quorum-initial-group-size", 1, 2, "x"),
    ("x-max-in-memory-length", 1, 2, "a"),
    ("x-max-in-memory-bytes", 1, 2, "a"),
    ("x-queue-leader-locator", "client-local", "balanced", 5),
]


@pytest.mark.parametrize(("name", "value", "other", "wrong"), KINDS)
def test_arguments_of_quorum_queues_are_checked_and_compared(
    channel: Any,
    connect: Connect,
    new_name: Callable[[], str],
    name: str,
    value: object,
    other: object,
    wrong: object,
) -> None:
    queue = new_name()
    channel.queue_declare(queue, durable=True, arguments={**QUORUM, name: value})
    for named, given in ((queue, {name: other}), (queue, {}), (new_name(), {name: wrong})):
        with pytest.raises(ChannelClosedByBroker) as closed:
            connect().channel().queue_declare(named, durable=True, arguments={**QUORUM, **given})
        assert closed.value.reply_code == 406
    channel.queue_delete(queue)
