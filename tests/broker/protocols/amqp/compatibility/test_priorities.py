"""Queues that hand out urgent messages first."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.protocols.amqp.compatibility.brokers import Broker
from tests.broker.protocols.amqp.compatibility.queues import (
    channel_closed,
    count,
    declare,
    declare_dead_letters,
    publish,
    take,
    take_all,
    texts,
)


def test_urgent_messages_go_first_and_equals_in_order(channel: Any) -> None:
    queue = declare(channel, {"x-max-priority": 5})
    for body, priority in [("a", 0), ("b", 5), ("c", 3), ("d", 5), ("e", 1)]:
        publish(channel, queue, body, priority=priority)
    assert take_all(channel, queue) == ["b", "d", "c", "e", "a"]


def test_a_message_without_priority_has_the_lowest(channel: Any) -> None:
    queue = declare(channel, {"x-max-priority": 5})
    publish(channel, queue, "none")
    publish(channel, queue, "one", priority=1)
    publish(channel, queue, "zero", priority=0)
    assert take_all(channel, queue) == ["one", "none", "zero"]


def test_priority_above_the_maximum_counts_as_the_maximum(channel: Any) -> None:
    queue = declare(channel, {"x-max-priority": 5})
    for body, priority in [("a", 5), ("b", 9), ("c", 255), ("d", 5)]:
        publish(channel, queue, body, priority=priority)
    deliveries = [take(channel, queue) for _ in range(4)]
    assert [(delivery.text, delivery.properties.priority) for delivery in deliveries] == [
        ("a", 5),
        ("b", 9),
        ("c", 255),
        ("d", 5),
    ]


def test_a_message_that_comes_back_finds_its_old_place(channel: Any) -> None:
    queue = declare(channel, {"x-max-priority": 3})
    for body, priority in [("a", 1), ("b", 2), ("c", 3), ("d", 1)]:
        publish(channel, queue, body, priority=priority)
    tags = [take(channel, queue).tag for _ in range(3)]
    channel.basic_nack(tags[-1], multiple=True, requeue=True)
    assert take_all(channel, queue) == ["c*", "b*", "a*", "d"]


@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 0}])
def test_other_queues_do_not_look_at_priorities(channel: Any, arguments: dict[str, Any]) -> None:
    queue = declare(channel, arguments)
    for body, priority in [("a", 0), ("b", 5), ("c", 1)]:
        publish(channel, queue, body, priority=priority)
    assert take_all(channel, queue) == ["a", "b", "c"]


def test_message_behind_a_higher_priority_one_expires(broker: Broker, channel: Any) -> None:
    exchange, dead = declare_dead_letters(channel)
    queue = declare(channel, {"x-max-priority": 3, "x-dead-letter-exchange": exchange})
    publish(channel, queue, "urgent", priority=3)
    publish(channel, queue, "expired", priority=0, expiration="1")
    clock = declare(channel, {"x-dead-letter-exchange": exchange})
    publish(channel, clock, "clock", expiration="100")
    if broker.name == "flyball":
        assert texts([take(channel, dead), take(channel, dead)]) == ["expired", "clock"]
        assert take_all(channel, queue) == ["urgent"]
        return
    # RabbitMQ looks at the head of a queue only.
    assert take(channel, dead).text == "clock"
    assert count(channel, queue) == 2
    assert take(channel, queue).text == "urgent"
    assert take(channel, dead).text == "expired"


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (256, "{max_value_exceeded,256}"),
        (-1, "{value_negative,-1}"),
        ("a", '"expected integer, got longstr"'),
    ],
)
def test_a_number_of_priorities_that_cannot_be_is_refused(
    channel: Any, name: str, value: object, complaint: str
) -> None:
    with channel_closed(
        406, f"PRECONDITION_FAILED - invalid arg 'x-max-priority' for queue '{name}' in vhost '/': {complaint}"
    ):
        channel.queue_declare(name, arguments={"x-max-priority": value})
