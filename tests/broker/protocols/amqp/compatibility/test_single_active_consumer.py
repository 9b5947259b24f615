"""Queues of which one consumer at a time gets all messages, and which consumer is next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.broker.protocols.amqp.compatibility.queues import Consumer, channel_closed, declare, get, publish, take_all

Connect = Callable[..., Any]


@pytest.fixture
def queue(channel: Any) -> str:
    return declare(channel, {"x-single-active-consumer": True})


def test_the_first_consumer_gets_all_even_if_it_is_busy(connect: Connect, channel: Any, queue: str) -> None:
    busy = connect().channel()
    busy.basic_qos(prefetch_count=1)
    active = Consumer(busy, queue)
    waiting = Consumer(connect().channel(), queue)
    publish(channel, queue, *"012")
    assert active.wait_for(1) == ["0"]
    assert waiting.settle() == []
    busy.basic_ack(active.last.tag)
    assert active.wait_for(2) == ["0", "1"]
    assert waiting.settle() == []


def test_all_consumers_are_counted(connect: Connect, channel: Any, queue: str) -> None:
    Consumer(connect().channel(), queue)
    Consumer(connect().channel(), queue)
    assert channel.queue_declare(queue, passive=True).method.consumer_count == 2


def test_the_next_takes_over_after_a_cancel_while_the_old_one_keeps_what_it_has(
    connect: Connect, channel: Any, queue: str
) -> None:
    old = connect().channel()
    active = Consumer(old, queue)
    second, third = Consumer(connect().channel(), queue), Consumer(connect().channel(), queue)
    publish(channel, queue, *"012")
    active.wait_for(3)
    old.basic_ack(active.deliveries[0].tag)
    active.cancel()
    publish(channel, queue, "3")
    assert second.wait_for(1) == ["3"]
    old.close()
    assert second.wait_for(3) == ["3", "1*", "2*"]
    assert third.settle() == []


@pytest.mark.parametrize("end", ["channel", "connection"])
def test_the_next_takes_over_with_all_that_was_not_acknowledged(
    connect: Connect, channel: Any, queue: str, end: str
) -> None:
    old = connect().channel()
    active = Consumer(old, queue)
    second, third = Consumer(connect().channel(), queue), Consumer(connect().channel(), queue)
    publish(channel, queue, *"012")
    active.wait_for(3)
    (old if end == "channel" else old.connection).close()
    publish(channel, queue, "3")
    assert second.wait_for(4) == ["0*", "1*", "2*", "3"]
    assert third.settle() == []


def test_a_priority_decides_who_is_next_but_does_not_depose(connect: Connect, channel: Any, queue: str) -> None:
    active = Consumer(connect().channel(), queue)
    second = Consumer(connect().channel(), queue)
    urgent = Consumer(connect().channel(), queue, arguments={"x-priority": 10})
    publish(channel, queue, "0")
    assert active.wait_for(1) == ["0"]
    active.cancel()
    publish(channel, queue, "1")
    assert urgent.wait_for(1) == ["1"]
    assert second.settle() == []


def test_a_waiting_consumer_may_leave(connect: Connect, channel: Any, queue: str) -> None:
    active = Consumer(connect().channel(), queue)
    second, third = Consumer(connect().channel(), queue), Consumer(connect().channel(), queue)
    second.cancel()
    active.cancel()
    publish(channel, queue, "0")
    assert third.wait_for(1) == ["0"]


def test_messages_can_still_be_got(connect: Connect, channel: Any, queue: str) -> None:
    busy = connect().channel()
    busy.basic_qos(prefetch_count=1)
    active = Consumer(busy, queue)
    publish(channel, queue, *"01")
    active.wait_for(1)
    assert take_all(channel, queue) == ["1"]
    assert get(channel, queue) is None


def test_a_consumer_cannot_be_exclusive_there(connect: Connect, queue: str) -> None:
    with channel_closed(403, f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use"):
        Consumer(connect().channel(), queue, exclusive=True)


def test_the_argument_has_to_be_a_truth_value(channel: Any, name: str) -> None:
    complaint = (
        f"invalid arg 'x-single-active-consumer' for queue '{name}' in vhost '/': {{unacceptable_type,longstr}}"
    )
    with channel_closed(406, f"PRECONDITION_FAILED - {complaint}"):
        channel.queue_declare(name, arguments={"x-single-active-consumer": "yes"})
