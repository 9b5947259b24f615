"""Consumers: their tags, how they share a queue, which may join, and how they end."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from pika import spec
from pika.exceptions import ChannelClosedByBroker

from tests.broker.protocols.amqp.compatibility.peer import CAPABILITIES, Peer
from tests.broker.protocols.amqp.compatibility.queues import (
    Consumer,
    channel_closed,
    declare,
    exists,
    get,
    publish,
    take_all,
    wait_until,
)

Connect = Callable[..., Any]
IN_USE = "ACCESS_REFUSED - queue '{}' in vhost '/' in exclusive use"
LOCKED = (
    "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{}' in vhost '/'. It could be originally "
    "declared on another connection or the exclusive property value does not match that of the original declaration."
)


def nothing(*_: object) -> None:
    """A consumer's callback that ignores what comes."""


# Tags


def test_the_broker_makes_a_tag_if_the_client_has_none(peer: Peer, channel: Any) -> None:
    queue = declare(channel)
    tags = [peer.ask(spec.Basic.Consume(queue=queue), spec.Basic.ConsumeOk).consumer_tag for _ in range(2)]
    assert all(re.fullmatch(r"amq\.ctag-[A-Za-z0-9_-]{22}", tag) for tag in tags), tags
    assert tags[0] != tags[1]


def test_a_tag_that_is_in_use_closes_the_connection(peer: Peer, channel: Any) -> None:
    queue = declare(channel)
    peer.ask(spec.Basic.Consume(queue=queue, consumer_tag="mine"), spec.Basic.ConsumeOk)
    peer.send(spec.Basic.Consume(queue=queue, consumer_tag="mine"))
    text = "NOT_ALLOWED - attempt to reuse consumer tag 'mine'"
    assert peer.expect_connection_close(530, text, spec.Basic.Consume) == text


def test_a_tag_belongs_to_its_channel_and_is_free_after_the_cancel(
    new_peer: Callable[[], Peer], channel: Any
) -> None:
    queue = declare(channel)
    peer = new_peer().open(channels=2)
    consume = spec.Basic.Consume(queue=queue, consumer_tag="mine")
    assert peer.ask(consume, spec.Basic.ConsumeOk, 1).consumer_tag == "mine"
    assert peer.ask(consume, spec.Basic.ConsumeOk, 2).consumer_tag == "mine"
    assert peer.ask(spec.Basic.Cancel(consumer_tag="mine"), spec.Basic.CancelOk, 1).consumer_tag == "mine"
    assert peer.ask(consume, spec.Basic.ConsumeOk, 1).consumer_tag == "mine"


def test_a_tag_may_look_like_one_of_the_broker(peer: Peer, channel: Any) -> None:
    consume = spec.Basic.Consume(queue=declare(channel), consumer_tag="amq.mine")
    assert peer.ask(consume, spec.Basic.ConsumeOk).consumer_tag == "amq.mine"


def test_cancelling_an_unknown_tag_is_confirmed(peer: Peer) -> None:
    assert peer.ask(spec.Basic.Cancel(consumer_tag="unknown"), spec.Basic.CancelOk).consumer_tag == "unknown"


def test_a_consumer_may_ask_for_no_answer(peer: Peer, channel: Any) -> None:
    queue = declare(channel)
    peer.send(spec.Basic.Consume(queue=queue, consumer_tag="quiet", no_ack=True, nowait=True))
    peer.ask(spec.Basic.Qos(), spec.Basic.QosOk)
    publish(channel, queue, "first")
    assert peer.expect_content(spec.Basic.Deliver).method.consumer_tag == "quiet"
    peer.send(spec.Basic.Cancel(consumer_tag="quiet", nowait=True))
    peer.ask(spec.Basic.Qos(), spec.Basic.QosOk)
    publish(channel, queue, "second")
    assert take_all(channel, queue) == ["second"]


# Which queue


def test_consuming_from_a_missing_queue_closes_the_channel(channel: Any, name: str) -> None:
    with channel_closed(404, f"NOT_FOUND - no queue '{name}' in vhost '/'"):
        channel.basic_consume(name, nothing)


def test_no_name_means_the_queue_that_was_declared_last_on_this_channel(connect: Connect) -> None:
    channel = connect().channel()
    declare(channel)
    last = declare(channel)
    channel.basic_consume("", nothing)
    assert channel.queue_declare(last, passive=True).method.consumer_count == 1


def test_no_name_without_any_declared_queue_closes_the_channel(connect: Connect) -> None:
    with channel_closed(404, "NOT_FOUND - no previously declared queue"):
        connect().channel().basic_consume("", nothing)


# Sharing


def test_consumers_take_turns(channel: Any) -> None:
    queue = declare(channel)
    consumers = [Consumer(channel, queue) for _ in range(3)]
    publish(channel, queue, *"012345678")
    assert [consumer.wait_for(3) for consumer in consumers] == [
        ["0", "3", "6"],
        ["1", "4", "7"],
        ["2", "5", "8"],
    ]


def test_the_others_go_on_after_one_is_cancelled(channel: Any) -> None:
    queue = declare(channel)
    first, second, third = (Consumer(channel, queue, auto_ack=True) for _ in range(3))
    first.cancel()
    publish(channel, queue, *"0123")
    assert sorted(second.wait_for(2) + third.wait_for(2)) == ["0", "1", "2", "3"]
    assert first.texts == []


def test_the_number_of_consumers_is_told(channel: Any) -> None:
    queue = declare(channel)
    first, second = Consumer(channel, queue), Consumer(channel, queue)
    assert channel.queue_declare(queue, passive=True).method.consumer_count == 2
    first.cancel()
    second.cancel()
    assert channel.queue_declare(queue, passive=True).method.consumer_count == 0


def test_a_consumer_with_higher_priority_is_served_as_long_as_it_has_room(connect: Connect, channel: Any) -> None:
    queue = declare(channel)
    low = Consumer(connect().channel(), queue, arguments={"x-priority": -5})
    plain = Consumer(connect().channel(), queue)
    busy = connect().channel()
    busy.basic_qos(prefetch_count=2)
    high = Consumer(busy, queue, arguments={"x-priority": 5})
    publish(channel, queue, *"01234")
    assert high.wait_for(2) == ["0", "1"]
    assert plain.wait_for(3) == ["2", "3", "4"]
    busy.basic_ack(high.last.tag)
    high.settle()
    publish(channel, queue, "5")
    assert high.wait_for(3) == ["0", "1", "5"]
    assert plain.settle() == ["2", "3", "4"]
    assert low.settle() == []


@pytest.mark.parametrize(("value", "kind"), [("a", "longstr"), (True, "bool")])
def test_a_consumer_priority_has_to_be_a_number(channel: Any, value: object, kind: str) -> None:
    queue = declare(channel)
    complaint = f"invalid arg 'x-priority' for queue '{queue}' in vhost '/': \"expected integer, got {kind}\""
    with channel_closed(406, f"PRECONDITION_FAILED - {complaint}"):
        channel.basic_consume(queue, nothing, arguments={"x-priority": value})


def test_unknown_arguments_are_ignored(channel: Any) -> None:
    queue = declare(channel)
    consumer = Consumer(channel, queue, arguments={"x-unknown": 1})
    publish(channel, queue, "body")
    assert consumer.wait_for(1) == ["body"]


# Exclusive


def test_an_exclusive_consumer_keeps_others_out_but_not_those_who_get(connect: Connect, channel: Any) -> None:
    queue = declare(channel)
    owner = connect().channel()
    consumer = Consumer(owner, queue, exclusive=True)
    with channel_closed(403, IN_USE.format(queue)):
        connect().channel().basic_consume(queue, nothing)
    assert get(channel, queue) is None
    consumer.cancel()
    connect().channel().basic_consume(queue, nothing)


def test_a_consumer_cannot_be_exclusive_where_others_are(connect: Connect, channel: Any) -> None:
    queue = declare(channel)
    other = connect().channel()
    other.basic_consume(queue, nothing)
    with channel_closed(403, IN_USE.format(queue)):
        connect().channel().basic_consume(queue, nothing, exclusive=True)
    other.close()
    connect().channel().basic_consume(queue, nothing, exclusive=True)


OTHERS: dict[str, Callable[[Any, str], Any]] = {
    "declare": lambda channel, queue: channel.queue_declare(queue, exclusive=True),
    "passive": lambda channel, queue: channel.queue_declare(queue, passive=True),
    "consume": lambda channel, queue: channel.basic_consume(queue, nothing),
    "get": lambda channel, queue: channel.basic_get(queue),
    "bind": lambda channel, queue: channel.queue_bind(queue, "amq.fanout"),
    "purge": lambda channel, queue: channel.queue_purge(queue),
    "delete": lambda channel, queue: channel.queue_delete(queue),
}


@pytest.mark.parametrize("request_of", OTHERS)
def test_an_exclusive_queue_is_locked_for_other_connections(connect: Connect, request_of: str) -> None:
    queue = declare(connect().channel(), exclusive=True)
    with channel_closed(405, LOCKED.format(queue)):
        OTHERS[request_of](connect().channel(), queue)


def test_anybody_may_publish_to_an_exclusive_queue(connect: Connect) -> None:
    owner = connect().channel()
    queue = declare(owner, exclusive=True)
    other = connect().channel()
    other.confirm_delivery()
    other.basic_publish("", queue, b"body", mandatory=True)
    assert take_all(owner, queue) == ["body"]


# Ends


def test_a_cancelled_consumer_may_still_acknowledge(connect: Connect, channel: Any) -> None:
    queue = declare(channel)
    publish(channel, queue, *"012")
    other = connect().channel()
    consumer = Consumer(other, queue)
    consumer.wait_for(3)
    consumer.cancel()
    other.basic_ack(consumer.last.tag)
    other.close()
    assert take_all(channel, queue) == ["0*", "1*"]


@pytest.mark.parametrize("by_itself", [False, True])
def test_deleting_a_queue_cancels_its_consumers(connect: Connect, channel: Any, by_itself: bool) -> None:
    queue = declare(channel)
    publish(channel, queue, "0", "1")
    other = connect().channel()
    consumer = Consumer(other, queue)
    consumer.wait_for(2)
    (other if by_itself else channel).queue_delete(queue)
    consumer.wait_for_cancel()
    # What it got can still be settled, to no effect, and the channel is as good as before.
    other.basic_ack(consumer.deliveries[0].tag)
    other.basic_reject(consumer.deliveries[1].tag, requeue=True)
    fresh = declare(other)
    publish(other, fresh, "body")
    assert take_all(other, fresh) == ["body"]


def test_a_client_that_does_not_understand_cancels_gets_none(new_peer: Callable[[], Peer], channel: Any) -> None:
    queue = declare(channel)
    capabilities = {**CAPABILITIES, "consumer_cancel_notify": False}
    peer = new_peer().open(properties={"capabilities": capabilities})
    peer.ask(spec.Basic.Consume(queue=queue, consumer_tag="deaf"), spec.Basic.ConsumeOk)
    channel.queue_delete(queue)
    peer.ask(spec.Basic.Qos(), spec.Basic.QosOk)
    peer.ask(spec.Basic.Qos(), spec.Basic.QosOk)


@pytest.mark.parametrize("end", ["cancel", "channel", "connection"])
def test_an_auto_delete_queue_goes_with_its_last_consumer(connect: Connect, channel: Any, end: str) -> None:
    queue = declare(channel, auto_delete=True)
    assert get(channel, queue) is None
    assert exists(connect, queue)
    other = connect().channel()
    consumer = Consumer(other, queue)
    if end == "cancel":
        consumer.cancel()
    elif end == "channel":
        other.close()
    else:
        other.connection.close()
    # The end of a connection is seen a little later than the client sees it.
    wait_until(channel, lambda: not exists(connect, queue), lambda: "still there")


def test_a_queue_with_consumers_is_not_deleted_if_only_unused_may_be(channel: Any) -> None:
    queue = declare(channel)
    channel.basic_consume(queue, nothing)
    with channel_closed(406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' in use"):
        channel.queue_delete(queue, if_unused=True)


def test_what_was_delivered_without_acknowledgement_never_comes_back(connect: Connect, channel: Any) -> None:
    queue = declare(channel)
    publish(channel, queue, *"012")
    other = connect().channel()
    Consumer(other, queue, auto_ack=True).wait_for(3)
    other.connection.close()
    publish(channel, queue, "3")
    assert take_all(channel, queue) == ["3"]


@pytest.mark.parametrize("value", ["a", [1], {"a": 1}, None, 2**40, -5])
def test_cancel_on_failover_is_a_truth_value(channel: Any, value: object) -> None:
    queue = declare(channel)
    with pytest.raises(ChannelClosedByBroker) as closed:
        channel.basic_consume(queue, lambda *_: None, arguments={"x-cancel-on-ha-failover": value})
    assert closed.value.reply_code == 406
