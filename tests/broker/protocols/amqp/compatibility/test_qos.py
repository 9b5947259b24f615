"""How many deliveries a consumer, or all of a channel, may have unacknowledged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.broker.protocols.amqp.compatibility.queues import (
    Consumer,
    connection_closed,
    declare,
    publish,
    take,
    wait_until,
)

Connect = Callable[..., Any]


@pytest.fixture
def queue(channel: Any) -> str:
    """A queue with the messages 0 to 8."""
    queue = declare(channel)
    publish(channel, queue, *"012345678")
    return queue


@pytest.fixture
def consuming(connect: Connect) -> Any:
    """A channel for consumers."""
    return connect().channel()


def test_without_a_limit_all_is_delivered(consuming: Any, queue: str) -> None:
    consuming.basic_qos(prefetch_count=0)
    assert Consumer(consuming, queue).wait_for(9) == list("012345678")


def test_each_consumer_of_the_channel_has_the_limit_for_itself(consuming: Any, queue: str) -> None:
    consuming.basic_qos(prefetch_count=2)
    first, second = Consumer(consuming, queue), Consumer(consuming, queue)
    assert first.wait_for(2) == ["0", "1"]
    assert second.wait_for(2) == ["2", "3"]
    assert first.settle() + second.settle() == ["0", "1", "2", "3"]
    consuming.basic_ack(first.deliveries[0].tag)
    assert first.wait_for(3) == ["0", "1", "4"]
    assert second.settle() == ["2", "3"]


def test_a_consumer_that_starts_later_has_the_limit_of_then(consuming: Any, queue: str) -> None:
    consuming.basic_qos(prefetch_count=1)
    first = Consumer(consuming, queue)
    assert first.wait_for(1) == ["0"]
    first.cancel()
    consuming.basic_qos(prefetch_count=3)
    second = Consumer(consuming, queue)
    assert second.wait_for(3) == ["1", "2", "3"]
    assert second.settle() == ["1", "2", "3"]


def test_a_global_limit_is_shared_by_the_channel(consuming: Any, queue: str) -> None:
    consuming.basic_qos(prefetch_count=3, global_qos=True)
    first, second = Consumer(consuming, queue), Consumer(consuming, queue)
    first.wait_for(3)
    assert first.settle() + second.settle() == ["0", "1", "2"]
    consuming.basic_ack(0, multiple=True)
    wait_until(consuming, lambda: len(first.texts + second.texts) >= 6, lambda: f"got {first.texts} {second.texts}")
    assert sorted(first.settle() + second.settle()) == list("012345")


def test_a_global_limit_changes_at_once(consuming: Any, queue: str) -> None:
    consuming.basic_qos(prefetch_count=1, global_qos=True)
    consumer = Consumer(consuming, queue)
    assert consumer.wait_for(1) == ["0"]
    consuming.basic_qos(prefetch_count=4, global_qos=True)
    assert consumer.wait_for(4) == ["0", "1", "2", "3"]
    assert consumer.settle() == ["0", "1", "2", "3"]
    consuming.basic_qos(prefetch_count=2, global_qos=True)
    consuming.basic_ack(consumer.deliveries[1].tag, multiple=True)
    assert consumer.settle() == ["0", "1", "2", "3"]
    consuming.basic_ack(consumer.deliveries[2].tag)
    assert consumer.wait_for(5) == ["0", "1", "2", "3", "4"]
    consuming.basic_qos(prefetch_count=0, global_qos=True)
    assert consumer.wait_for(9) == list("012345678")


def test_both_limits_hold_together(consuming: Any, queue: str) -> None:
    consuming.basic_qos(prefetch_count=2)
    consuming.basic_qos(prefetch_count=3, global_qos=True)
    first, second = Consumer(consuming, queue), Consumer(consuming, queue)
    assert first.wait_for(2) == ["0", "1"]
    assert second.wait_for(1) == ["2"]
    assert first.settle() + second.settle() == ["0", "1", "2"]


def test_a_consumer_that_acknowledges_nothing_has_no_limit(consuming: Any, queue: str) -> None:
    consuming.basic_qos(prefetch_count=1)
    assert Consumer(consuming, queue, auto_ack=True).wait_for(9) == list("012345678")


def test_global_limit_is_shared_fairly_among_the_queues_of_a_channel(channel: Any, consuming: Any) -> None:
    consuming.basic_qos(prefetch_count=1, global_qos=True)
    queues = [declare(channel) for _ in range(3)]
    for queue in queues:
        publish(channel, queue, *["message"] * 50)
    served: list[str] = []

    def serve(_: Any, method: Any, properties: Any, body: bytes) -> None:
        served.append(method.consumer_tag)
        consuming.basic_ack(method.delivery_tag)

    tags = [consuming.basic_consume(queue, serve) for queue in queues]
    wait_until(consuming, lambda: len(served) >= 75, lambda: f"served {len(served)}")
    # RabbitMQ draws lots: each gets a third on average.
    assert min(served[:75].count(tag) for tag in tags) >= 8


def test_global_limit_is_shared_fairly_among_the_consumers_of_a_queue(consuming: Any, queue: str) -> None:
    consuming.basic_qos(prefetch_count=1, global_qos=True)
    consumers = [Consumer(consuming, queue) for _ in range(3)]
    for count in range(1, 10):
        wait_until(
            consuming,
            lambda count=count: sum(len(each.deliveries) for each in consumers) == count,  # type: ignore[misc]
            lambda: f"got {[each.texts for each in consumers]}",
        )
        consuming.basic_ack(0, multiple=True)
    # The first one has a message before the others are there.
    assert [len(each.deliveries) for each in consumers] == [4, 3, 2]


def test_full_global_window_stops_consumers_without_acks_too(channel: Any, consuming: Any, queue: str) -> None:
    consuming.basic_qos(prefetch_count=1, global_qos=True)
    acking = Consumer(consuming, queue)
    assert acking.wait_for(1) == ["0"]
    other = declare(channel)
    publish(channel, other, *"abc")
    taking = Consumer(consuming, other, auto_ack=True)
    assert taking.settle() == []
    publish(channel, other, "d")
    assert taking.settle() == []
    acking.cancel()
    consuming.basic_ack(acking.last.tag)
    # It needs room, but takes none.
    assert taking.wait_for(4) == ["a", "b", "c", "d"]
    publish(channel, other, "e")
    assert taking.wait_for(5) == ["a", "b", "c", "d", "e"]


def test_higher_priority_goes_first_within_a_global_window(consuming: Any, queue: str) -> None:
    consuming.basic_qos(prefetch_count=1, global_qos=True)
    low = Consumer(consuming, queue)
    assert low.wait_for(1) == ["0"]
    high = Consumer(consuming, queue, arguments={"x-priority": 5})
    consuming.basic_ack(low.last.tag)
    assert high.wait_for(1) == ["1"]
    consuming.basic_ack(high.last.tag)
    assert high.wait_for(2) == ["1", "2"]
    assert low.settle() == ["0"]


def test_messages_that_were_got_do_not_count(consuming: Any, queue: str) -> None:
    consuming.basic_qos(prefetch_count=1, global_qos=True)
    assert [take(consuming, queue).text for _ in range(3)] == ["0", "1", "2"]
    consumer = Consumer(consuming, queue)
    assert consumer.wait_for(1) == ["3"]
    assert consumer.settle() == ["3"]


def test_a_limit_of_one_channel_does_not_hold_for_another(connect: Connect, consuming: Any, queue: str) -> None:
    consuming.basic_qos(prefetch_count=1, global_qos=True)
    slow = Consumer(consuming, queue)
    assert slow.wait_for(1) == ["0"]
    assert Consumer(consuming.connection.channel(), queue).wait_for(8) == list("12345678")


def test_giving_back_makes_room(consuming: Any, queue: str) -> None:
    consuming.basic_qos(prefetch_count=1)
    consumer = Consumer(consuming, queue)
    consumer.wait_for(1)
    consuming.basic_reject(consumer.last.tag, requeue=True)
    assert consumer.wait_for(2) == ["0", "0*"]
    consuming.basic_reject(consumer.last.tag, requeue=False)
    assert consumer.wait_for(3) == ["0", "0*", "1"]


@pytest.mark.parametrize("global_qos", [False, True])
def test_a_limit_in_bytes_is_not_implemented(consuming: Any, global_qos: bool) -> None:
    with connection_closed(540, "NOT_IMPLEMENTED - prefetch_size!=0 (10)"):
        consuming.basic_qos(prefetch_size=10, global_qos=global_qos)
