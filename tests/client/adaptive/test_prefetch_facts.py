"""How the prefetch of a running consumer can really be changed: the facts of docs/guides/adaptive-consumers.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.broker.protocols.amqp.compatibility.brokers import Broker
from tests.broker.protocols.amqp.compatibility.queues import Consumer, connection_closed, declare, publish

Connect = Callable[..., Any]


@pytest.fixture
def consuming(connect: Connect) -> Any:
    """A channel for consumers."""
    return connect().channel()


@pytest.fixture
def queue(channel: Any) -> str:
    """A queue with the messages 0 to 8."""
    queue = declare(channel)
    publish(channel, queue, *"012345678")
    return queue


@pytest.fixture
def quorum_queue(channel: Any, connect: Connect) -> Iterator[str]:
    """A quorum queue with the messages 0 to 8."""
    queue = declare(channel, {"x-queue-type": "quorum"}, durable=True)
    publish(channel, queue, *"012345678")
    yield queue
    connect().channel().queue_delete(queue)


def test_local_qos_changes_running_consumers_on_flyball_only(broker: Broker, consuming: Any, queue: str) -> None:
    consuming.basic_qos(prefetch_count=1)
    consumer = Consumer(consuming, queue)
    assert consumer.wait_for(1) == ["0"]
    consuming.basic_qos(prefetch_count=3)
    if broker.name == "flyball":
        assert consumer.wait_for(3) == ["0", "1", "2"]
    else:
        assert consumer.settle() == ["0"]
        consuming.basic_ack(consumer.last.tag)
        assert consumer.wait_for(2) == ["0", "1"]
        assert consumer.settle() == ["0", "1"], "and it stays so after an acknowledgement"


def test_qos_with_global_changes_running_consumers_at_once(consuming: Any, queue: str) -> None:
    consuming.basic_qos(prefetch_count=1, global_qos=True)
    consumer = Consumer(consuming, queue)
    assert consumer.wait_for(1) == ["0"]
    consuming.basic_qos(prefetch_count=3, global_qos=True)
    assert consumer.wait_for(3) == ["0", "1", "2"]
    assert consumer.settle() == ["0", "1", "2"]


def test_smaller_global_window_waits_for_room(consuming: Any, queue: str) -> None:
    consuming.basic_qos(prefetch_count=4, global_qos=True)
    consumer = Consumer(consuming, queue)
    consumer.wait_for(4)
    consuming.basic_qos(prefetch_count=2, global_qos=True)
    for delivery in consumer.deliveries[:2]:
        consuming.basic_ack(delivery.tag)
    assert consumer.settle() == ["0", "1", "2", "3"], "two are unacknowledged: the window is full"
    consuming.basic_ack(consumer.deliveries[2].tag)
    assert consumer.wait_for(5) == ["0", "1", "2", "3", "4"]
    assert consumer.settle() == ["0", "1", "2", "3", "4"]


def test_a_global_window_of_0_is_no_limit(consuming: Any, queue: str) -> None:
    consuming.basic_qos(prefetch_count=1, global_qos=True)
    consumer = Consumer(consuming, queue)
    consumer.wait_for(1)
    consuming.basic_qos(prefetch_count=0, global_qos=True)
    assert consumer.wait_for(9) == list("012345678")


def test_quorum_queue_refuses_channels_with_global_qos(consuming: Any, quorum_queue: str) -> None:
    consuming.basic_qos(prefetch_count=1, global_qos=True)
    text = f"NOT_IMPLEMENTED - queue '{quorum_queue}' in vhost '/' does not support global qos"
    with connection_closed(540, text):
        consuming.basic_consume(quorum_queue, lambda *_: None)


def test_global_qos_after_a_quorum_consumer_has_no_effect(consuming: Any, quorum_queue: str) -> None:
    consuming.basic_qos(prefetch_count=1)
    consumer = Consumer(consuming, quorum_queue)
    assert consumer.wait_for(1) == ["0"]
    consuming.basic_qos(prefetch_count=3, global_qos=True)
    assert consumer.settle() == ["0"]


def test_the_consumer_window_of_a_quorum_queue_changes_like_that_of_others(
    broker: Broker, consuming: Any, quorum_queue: str
) -> None:
    consuming.basic_qos(prefetch_count=1)
    consumer = Consumer(consuming, quorum_queue)
    assert consumer.wait_for(1) == ["0"]
    consuming.basic_qos(prefetch_count=3)
    if broker.name == "flyball":
        assert consumer.wait_for(3) == ["0", "1", "2"]
    else:
        assert consumer.settle() == ["0"]


@pytest.mark.parametrize("kind", ["queue", "quorum_queue"])
def test_new_subscription_does_not_count_old_unacked_messages(
    request: pytest.FixtureRequest, consuming: Any, kind: str
) -> None:
    queue: str = request.getfixturevalue(kind)
    consuming.basic_qos(prefetch_count=2)
    old = Consumer(consuming, queue)
    assert old.wait_for(2) == ["0", "1"]
    old.cancel()
    consuming.basic_qos(prefetch_count=3)
    new = Consumer(consuming, queue)
    assert new.wait_for(3) == ["2", "3", "4"], "five are out: more than either window"
    assert new.settle() == ["2", "3", "4"]
    # Unacked messages of the old one are still its channel's to acknowledge, and are not redelivered.
    for delivery in old.deliveries:
        consuming.basic_ack(delivery.tag)
    assert new.settle() == ["2", "3", "4"]


def test_cancelling_keeps_the_order_and_doubles_nothing(consuming: Any, queue: str) -> None:
    got: list[str] = []
    for window in (2, 3, 1, 3):
        consuming.basic_qos(prefetch_count=window)
        consumer = Consumer(consuming, queue)
        got += consumer.wait_for(window)
        consumer.cancel()
    assert got == list("012345678")
