"""Full queues: which message has to go, and the answer to the publisher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pika.exceptions import NackError

from tests.broker.protocols.amqp.compatibility.brokers import Broker
from tests.broker.protocols.amqp.compatibility.queues import (
    Consumer,
    channel_closed,
    count,
    declare,
    declare_dead_letters,
    get,
    publish,
    take,
    take_all,
    wait_for_count,
)

Connect = Callable[..., Any]


@pytest.fixture
def confirmed(connect: Connect) -> Any:
    """A channel on which each publish waits for its confirm, and raises NackError for a negative one."""
    channel = connect().channel()
    channel.confirm_delivery()
    return channel


def test_the_oldest_are_dropped_and_their_publisher_never_knows(confirmed: Any) -> None:
    queue = declare(confirmed, {"x-max-length": 3})
    publish(confirmed, queue, *"0123456789")
    assert take_all(confirmed, queue) == ["7", "8", "9"]


def test_only_messages_that_are_ready_count(channel: Any) -> None:
    queue = declare(channel, {"x-max-length": 2})
    publish(channel, queue, "0", "1")
    take(channel, queue)
    last = take(channel, queue)
    publish(channel, queue, "2", "3")
    assert count(channel, queue) == 2
    # What comes back goes to the head, from where it is dropped.
    channel.basic_nack(last.tag, multiple=True, requeue=True)
    wait_for_count(channel, queue, 2)
    assert take_all(channel, queue) == ["2", "3"]


def test_bytes_of_bodies_count(channel: Any) -> None:
    queue = declare(channel, {"x-max-length-bytes": 10})
    publish(channel, queue, "aaaa", "bbbb", "cccc")
    assert take_all(channel, queue) == ["bbbb", "cccc"]


def test_a_body_beyond_the_limit_drops_all_and_itself(channel: Any) -> None:
    queue = declare(channel, {"x-max-length-bytes": 10})
    publish(channel, queue, "small", "e" * 11)
    assert take_all(channel, queue) == []


def test_both_limits_hold(channel: Any) -> None:
    queue = declare(channel, {"x-max-length": 2, "x-max-length-bytes": 100})
    publish(channel, queue, "a" * 40, "b" * 40, "c" * 40)
    assert take_all(channel, queue) == ["b" * 40, "c" * 40]
    publish(channel, queue, "a" * 40, "b" * 70)
    assert take_all(channel, queue) == ["b" * 70]


def test_a_queue_of_length_zero_only_passes_messages_on(connect: Connect, channel: Any) -> None:
    queue = declare(channel, {"x-max-length": 0})
    publish(channel, queue, "nobody")
    assert get(channel, queue) is None
    consumer = Consumer(connect().channel(), queue, auto_ack=True)
    publish(channel, queue, "somebody")
    assert consumer.wait_for(1) == ["somebody"]


def test_in_a_priority_queue_the_head_is_the_most_urgent(channel: Any) -> None:
    queue = declare(channel, {"x-max-length": 3, "x-max-priority": 5})
    for priority in (1, 5, 2, 3, 4):
        publish(channel, queue, str(priority), priority=priority)
    assert take_all(channel, queue) == ["3", "2", "1"]


@pytest.mark.parametrize("mandatory", [False, True])
def test_a_full_queue_may_refuse_instead(confirmed: Any, mandatory: bool) -> None:
    queue = declare(confirmed, {"x-max-length": 1, "x-overflow": "reject-publish"})
    publish(confirmed, queue, "first")
    with pytest.raises(NackError):
        confirmed.basic_publish("", queue, b"second", mandatory=mandatory)
    assert take_all(confirmed, queue) == ["first"]
    publish(confirmed, queue, "third")
    assert take_all(confirmed, queue) == ["third"]


def test_without_confirms_a_refused_message_is_silently_lost(channel: Any) -> None:
    queue = declare(channel, {"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.basic_publish("", queue, b"first")
    channel.basic_publish("", queue, b"second")
    assert take_all(channel, queue) == ["first"]


def test_a_queue_that_refuses_keeps_what_comes_back(confirmed: Any) -> None:
    queue = declare(confirmed, {"x-max-length": 1, "x-overflow": "reject-publish"})
    publish(confirmed, queue, "first")
    held = take(confirmed, queue)
    publish(confirmed, queue, "second")
    confirmed.basic_nack(held.tag, requeue=True)
    wait_for_count(confirmed, queue, 2)
    assert take_all(confirmed, queue) == ["first*", "second"]


def test_bytes_beyond_the_limit_are_refused(confirmed: Any) -> None:
    queue = declare(confirmed, {"x-max-length-bytes": 10, "x-overflow": "reject-publish"})
    publish(confirmed, queue, "a" * 9)
    with pytest.raises(NackError):
        publish(confirmed, queue, "b" * 5)
    assert take_all(confirmed, queue) == ["a" * 9]


def test_one_full_queue_nacks_a_message_that_others_took(confirmed: Any, name: str) -> None:
    full = declare(confirmed, {"x-max-length": 1, "x-overflow": "reject-publish"})
    other = declare(confirmed)
    confirmed.exchange_declare(name, "fanout")
    confirmed.queue_bind(full, name)
    confirmed.queue_bind(other, name)
    confirmed.basic_publish(name, "", b"first")
    with pytest.raises(NackError):
        confirmed.basic_publish(name, "", b"second")
    assert take_all(confirmed, full) == ["first"]
    assert take_all(confirmed, other) == ["first", "second"]


def test_a_refused_message_may_become_a_dead_letter(confirmed: Any) -> None:
    exchange, dead = declare_dead_letters(confirmed)
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": exchange}
    queue = declare(confirmed, arguments)
    publish(confirmed, queue, "first")
    with pytest.raises(NackError):
        publish(confirmed, queue, "second")
    letter = take(confirmed, dead)
    assert letter.text == "second"
    assert [letter.headers["x-death"][0][field] for field in ("queue", "reason")] == [queue, "maxlen"]
    assert take_all(confirmed, queue) == ["first"]


def test_a_plainly_refused_message_becomes_no_dead_letter(confirmed: Any) -> None:
    exchange, dead = declare_dead_letters(confirmed)
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish", "x-dead-letter-exchange": exchange}
    queue = declare(confirmed, arguments)
    publish(confirmed, queue, "first")
    with pytest.raises(NackError):
        publish(confirmed, queue, "second")
    confirmed.basic_reject(take(confirmed, queue).tag, requeue=False)
    assert take(confirmed, dead).text == "first"
    assert get(confirmed, dead) is None


def test_a_policy_shortens_a_queue_at_once_and_the_smaller_limit_counts(
    channel: Any, broker: Broker, name: str
) -> None:
    channel.queue_declare(name, arguments={"x-max-length": 5})
    publish(channel, name, *"01234567")
    assert count(channel, name) == 5
    broker.set_policy(name, f"^{name}$", {"max-length": 2}, apply_to="queues")
    wait_for_count(channel, name, 2)
    publish(channel, name, "8")
    assert take_all(channel, name) == ["7", "8"]
    broker.clear_policy(name)


@pytest.mark.parametrize(
    ("argument", "value", "complaint"),
    [
        ("x-max-length", -1, "{value_negative,-1}"),
        ("x-max-length", "5", '"expected integer, got longstr"'),
        ("x-max-length-bytes", -1, "{value_negative,-1}"),
        ("x-overflow", "bogus", "invalid_overflow"),
    ],
)
def test_arguments_that_are_no_limit_are_refused(
    channel: Any, name: str, argument: str, value: object, complaint: str
) -> None:
    with channel_closed(
        406, f"PRECONDITION_FAILED - invalid arg '{argument}' for queue '{name}' in vhost '/': {complaint}"
    ):
        channel.queue_declare(name, arguments={argument: value})


def test_a_delivery_makes_room(connect: Connect, confirmed: Any) -> None:
    queue = declare(confirmed, {"x-max-length": 1, "x-overflow": "reject-publish"})
    publish(confirmed, queue, "first")
    consumer = Consumer(connect().channel(), queue)
    consumer.wait_for(1)
    publish(confirmed, queue, "second")
    assert consumer.wait_for(2) == ["first", "second"]
