"""How long messages live, by themselves and by their queue, and how long an unused queue lives."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from pika.exceptions import ChannelClosedByBroker

from tests.amqp.brokers import Broker
from tests.amqp.queues import (
    Consumer,
    channel_closed,
    declare,
    declare_dead_letters,
    exists,
    get,
    publish,
    take,
    take_all,
    texts,
    wait_for_count,
    wait_until,
)

Connect = Callable[..., Any]


def test_the_shorter_of_both_lives_counts(channel: Any) -> None:
    exchange, dead = declare_dead_letters(channel)
    queue = declare(channel, {"x-dead-letter-exchange": exchange, "x-message-ttl": 100})
    publish(channel, queue, "by message", expiration="5")
    publish(channel, queue, "by queue", expiration="100000")
    assert texts([take(channel, dead), take(channel, dead)]) == ["by message", "by queue"]


def test_a_message_behind_one_that_lives_longer_expires_in_time_or_as_rabbitmq_has_it_later(
    broker: Broker, channel: Any
) -> None:
    exchange, dead = declare_dead_letters(channel)
    queue = declare(channel, {"x-dead-letter-exchange": exchange})
    publish(channel, queue, "long", expiration="400")
    publish(channel, queue, "short", expiration="1")
    publish(channel, queue, "forever")
    passed = declare(channel, {"x-dead-letter-exchange": exchange})
    publish(channel, passed, "clock", expiration="100")
    # RabbitMQ looks at the head of a queue only; Flyball removes what is past its time wherever it stands.
    order = ["short", "clock", "long"] if broker.name == "flyball" else ["clock", "long", "short"]
    assert texts([take(channel, dead) for _ in order]) == order
    assert take_all(channel, queue) == ["forever"]


def test_the_expiration_of_a_delivered_message_is_kept(channel: Any) -> None:
    queue = declare(channel)
    publish(channel, queue, "body", expiration="60000")
    assert take(channel, queue).properties.expiration == "60000"


@pytest.mark.parametrize("by", ["queue", "message"])
def test_a_message_without_any_time_reaches_only_a_consumer_that_is_free(
    connect: Connect, channel: Any, by: str
) -> None:
    exchange, dead = declare_dead_letters(channel)
    arguments: dict[str, Any] = {"x-dead-letter-exchange": exchange}
    queue = declare(channel, {**arguments, "x-message-ttl": 0} if by == "queue" else arguments)
    properties = {"expiration": "0"} if by == "message" else {}
    publish(channel, queue, "nobody", **properties)
    assert take(channel, dead).text == "nobody"
    assert get(channel, queue) is None
    other = connect().channel()
    other.basic_qos(prefetch_count=1)
    consumer = Consumer(other, queue)
    publish(channel, queue, "free", "busy", **properties)
    assert take(channel, dead).text == "busy"
    assert consumer.wait_for(1) == ["free"]
    # Giving it back makes it wait, for which it has no time, even though the consumer is free again.
    other.basic_nack(consumer.last.tag, requeue=True)
    assert take(channel, dead).text == "free"
    assert consumer.settle() == ["free"]


def test_a_message_does_not_expire_while_a_consumer_has_it_but_at_once_when_it_comes_back(
    connect: Connect, channel: Any
) -> None:
    exchange, dead = declare_dead_letters(channel)
    queue = declare(channel, {"x-dead-letter-exchange": exchange, "x-message-ttl": 300})
    other = connect().channel()
    consumer = Consumer(other, queue)
    publish(channel, queue, "held")
    consumer.wait_for(1)
    published_later = declare(channel, {"x-dead-letter-exchange": exchange, "x-message-ttl": 300})
    publish(channel, published_later, "clock")
    assert take(channel, dead).text == "clock"
    other.basic_reject(consumer.last.tag, requeue=True)
    letter = take(channel, dead)
    assert (letter.text, letter.headers["x-death"][0]["reason"]) == ("held", "expired")
    assert consumer.settle() == ["held"]


def test_messages_that_wait_behind_a_busy_consumer_expire(connect: Connect, channel: Any) -> None:
    exchange, dead = declare_dead_letters(channel)
    queue = declare(channel, {"x-dead-letter-exchange": exchange, "x-message-ttl": 50})
    other = connect().channel()
    other.basic_qos(prefetch_count=1)
    consumer = Consumer(other, queue)
    publish(channel, queue, "0", "1", "2")
    assert texts([take(channel, dead), take(channel, dead)]) == ["1", "2"]
    assert consumer.settle() == ["0"]


def test_without_a_dead_letter_exchange_an_expired_message_is_gone(channel: Any) -> None:
    queue = declare(channel, {"x-message-ttl": 10})
    publish(channel, queue, "body")
    wait_for_count(channel, queue, 0)
    assert get(channel, queue) is None


def test_a_policy_limits_the_lives_of_messages_that_come_later(channel: Any, broker: Broker, name: str) -> None:
    exchange, dead = declare_dead_letters(channel)
    channel.queue_declare(name, arguments={"x-dead-letter-exchange": exchange, "x-message-ttl": 60_000})
    publish(channel, name, "before")
    broker.set_policy(name, f"^{name}$", {"message-ttl": 20}, apply_to="queues")
    assert take(channel, name, auto_ack=True).text == "before"
    publish(channel, name, "after")
    assert take(channel, dead).text == "after"
    broker.clear_policy(name)


@pytest.mark.parametrize(
    ("expiration", "complaint"),
    [
        ("abc", "no_integer"),
        ("", "no_integer"),
        (" 5", "no_integer"),
        ("-1", "{value_negative,-1}"),
        ("1.5", '{leftover_string,".5"}'),
    ],
)
def test_an_expiration_that_is_no_time_closes_the_channel(channel: Any, expiration: str, complaint: str) -> None:
    queue = declare(channel)
    channel.confirm_delivery()
    with channel_closed(406, f"PRECONDITION_FAILED - invalid expiration '{expiration}': {complaint}"):
        publish(channel, queue, "body", expiration=expiration)


def test_an_expiration_may_be_longer_than_32_bits(channel: Any) -> None:
    queue = declare(channel)
    publish(channel, queue, "body", expiration="4294967296")
    assert take_all(channel, queue) == ["body"]


@pytest.mark.parametrize(
    ("argument", "value", "complaint"),
    [
        ("x-message-ttl", -1, "{value_negative,-1}"),
        ("x-message-ttl", "5", '"expected integer, got longstr"'),
        ("x-message-ttl", 2**63 - 1, "{value_too_large,9223372036854775807}"),
        ("x-expires", 0, "{value_zero,0}"),
        ("x-expires", -1, "{value_negative,-1}"),
    ],
)
def test_arguments_that_are_no_time_are_refused(
    channel: Any, name: str, argument: str, value: object, complaint: str
) -> None:
    with channel_closed(
        406, f"PRECONDITION_FAILED - invalid arg '{argument}' for queue '{name}' in vhost '/': {complaint}"
    ):
        channel.queue_declare(name, arguments={argument: value})


def test_a_queue_that_nobody_uses_is_deleted_with_its_messages(connect: Connect, channel: Any) -> None:
    exchange, dead = declare_dead_letters(channel)
    queue = declare(channel, {"x-expires": 100, "x-dead-letter-exchange": exchange})
    channel.basic_publish("", queue, b"body")
    wait_until(channel, lambda: not exists_without_use(channel, queue), lambda: "still there")
    assert not exists(connect, queue)
    assert get(channel, dead) is None


@pytest.mark.parametrize("use", ["declare", "passive", "get"])
def test_a_queue_lives_while_it_is_declared_or_read(connect: Connect, channel: Any, use: str) -> None:
    arguments = {"x-expires": 600}
    queue = declare(channel, arguments)
    uses: dict[str, Callable[[], Any]] = {
        "declare": lambda: channel.queue_declare(queue, arguments=arguments),
        "passive": lambda: channel.queue_declare(queue, passive=True),
        "get": lambda: channel.basic_get(queue),
    }
    # Another queue that lives as long shows how time goes by.
    clock = declare(channel, arguments)
    end = time.monotonic() + 20

    def is_over() -> bool:
        assert time.monotonic() < end
        uses[use]()
        return not exists_without_use(channel, clock)

    wait_until(channel, is_over, lambda: "the clock stands still")
    assert exists(connect, queue)


@pytest.mark.parametrize("no_use", ["publish", "bind", "unacknowledged"])
def test_neither_messages_nor_bindings_keep_a_queue_alive(connect: Connect, channel: Any, no_use: str) -> None:
    queue = declare(channel, {"x-expires": 200})
    channel.basic_publish("", queue, b"body")
    if no_use == "unacknowledged":
        take(channel, queue)

    def is_gone() -> bool:
        if no_use == "publish":
            channel.basic_publish("", queue, b"body")
        return not exists_without_use(channel, queue)

    wait_until(channel, is_gone, lambda: "still there")
    assert not exists(connect, queue)


def test_a_consumer_keeps_a_queue_alive_and_its_end_starts_the_clock(connect: Connect, channel: Any) -> None:
    arguments = {"x-expires": 300}
    queue = declare(channel, arguments)
    other = connect().channel()
    consumer = Consumer(other, queue)
    clock = declare(channel, arguments)
    wait_until(channel, lambda: not exists_without_use(channel, clock), lambda: "the clock stands still")
    assert exists_without_use(channel, queue)
    consumer.cancel()
    assert exists_without_use(channel, queue)
    wait_until(channel, lambda: not exists_without_use(channel, queue), lambda: "still there")


def exists_without_use(channel: Any, queue: str) -> bool:
    """Tell whether the queue exists, in a way that is no use of it: binding it."""
    other = channel.connection.channel()
    try:
        other.queue_bind(queue, "amq.direct", queue)
    except ChannelClosedByBroker as closed:
        if closed.reply_code != 404:
            raise
        return False
    other.close()
    return True
