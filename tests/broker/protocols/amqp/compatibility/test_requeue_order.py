"""Messages that come back go to the place they came from, however they come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pika import spec

from tests.broker.protocols.amqp.compatibility.peer import Peer
from tests.broker.protocols.amqp.compatibility.queues import (
    Consumer,
    connection_closed,
    declare,
    publish,
    take,
    take_all,
    wait_for_count,
)

Connect = Callable[..., Any]


@pytest.fixture
def queue(channel: Any) -> str:
    """A queue with the messages 0 to 4."""
    queue = declare(channel)
    publish(channel, queue, *"01234")
    return queue


def give_back_one_by_one(channel: Any, tags: list[int]) -> None:
    for tag in (tags[2], tags[0], tags[1]):
        channel.basic_nack(tag, requeue=True)


WAYS: dict[str, Callable[[Any, list[int]], Any]] = {
    "nack multiple": lambda channel, tags: channel.basic_nack(tags[-1], multiple=True, requeue=True),
    "nack all": lambda channel, tags: channel.basic_nack(0, multiple=True, requeue=True),
    "nack out of order": give_back_one_by_one,
    "reject in order": lambda channel, tags: [channel.basic_reject(tag, requeue=True) for tag in tags],
    "recover": lambda channel, tags: channel.basic_recover(requeue=True),
    "channel close": lambda channel, tags: channel.close(),
    "connection close": lambda channel, tags: channel.connection.close(),
}


@pytest.mark.parametrize("way", WAYS)
def test_messages_that_come_back_are_first_again_and_marked(
    connect: Connect, channel: Any, queue: str, way: str
) -> None:
    other = connect().channel()
    tags = [take(other, queue).tag for _ in range(3)]
    WAYS[way](other, tags)
    if other.connection.is_open:
        other.connection.process_data_events(0)
    wait_for_count(channel, queue, 5)
    assert take_all(channel, queue) == ["0*", "1*", "2*", "3", "4"]


def test_only_what_comes_back_is_marked(channel: Any, queue: str) -> None:
    tags = [take(channel, queue).tag for _ in range(3)]
    channel.basic_reject(tags[1], requeue=True)
    assert take_all(channel, queue) == ["1*", "3", "4"]


def test_a_consumer_gets_back_what_it_gave_back(channel: Any, queue: str) -> None:
    channel.basic_qos(prefetch_count=3)
    consumer = Consumer(channel, queue)
    consumer.wait_for(3)
    channel.basic_reject(consumer.deliveries[1].tag, requeue=True)
    assert consumer.wait_for(4) == ["0", "1", "2", "1*"]
    assert [delivery.tag for delivery in consumer.deliveries] == [1, 2, 3, 4]


def test_recover_delivers_to_the_same_consumer_if_there_is_no_other(channel: Any, queue: str) -> None:
    consumer = Consumer(channel, queue)
    consumer.wait_for(5)
    channel.basic_recover(requeue=True)
    assert consumer.wait_for(10)[5:] == ["0*", "1*", "2*", "3*", "4*"]


def test_recover_without_an_answer_does_the_same(peer: Peer, channel: Any, queue: str) -> None:
    for _ in range(2):
        peer.send(spec.Basic.Get(queue=queue))
        peer.expect_content(spec.Basic.GetOk)
    peer.send(spec.Basic.RecoverAsync(requeue=True))
    peer.ask(spec.Basic.Qos(), spec.Basic.QosOk)
    wait_for_count(channel, queue, 5)
    assert take_all(channel, queue) == ["0*", "1*", "2", "3", "4"]


def test_recover_without_requeue_is_not_implemented(channel: Any, queue: str) -> None:
    take(channel, queue)
    with connection_closed(540, "NOT_IMPLEMENTED - requeue=false"):
        channel.basic_recover(requeue=False)


@pytest.mark.parametrize("end", ["channel", "connection"])
def test_another_consumer_takes_over_from_one_that_ended(
    connect: Connect, channel: Any, queue: str, end: str
) -> None:
    other = connect().channel()
    ended = Consumer(other, queue)
    ended.wait_for(5)
    other.basic_ack(ended.deliveries[0].tag)
    heir = Consumer(channel, queue)
    (other if end == "channel" else other.connection).close()
    assert heir.wait_for(4) == ["1*", "2*", "3*", "4*"]


def test_a_message_stays_marked_when_it_was_got_but_never_looked_at(connect: Connect, channel: Any) -> None:
    queue = declare(channel)
    publish(channel, queue, "0")
    other = connect().channel()
    take(other, queue)
    other.close()
    other = connect().channel()
    assert take(other, queue).text == "0*"
    other.close()
    assert take_all(channel, queue) == ["0*"]
