"""How long messages live, by themselves and by their queue, and how long an unused queue lives."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from pika.exceptions import ChannelClosedByBroker

from tests.broker.protocols.amqp.compatibility.brokers import Broker
from tests.broker.protocols.amqp.compatibility.queues import (
    Consumer,
    channel_closed,
    count,
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


def test_message_behind_a_longer_lived_one_expires(broker: Broker, channel: Any) -> None:
    exchange, dead = declare_dead_letters(channel)
    queue = declare(channel, {"x-dead-letter-exchange": exchange})
    publish(channel, queue, "long", expiration="600000")
    publish(channel, queue, "short", expiration="1")
    publish(channel, queue, "forever")
    if broker.name == "flyball":
        # It removes what is past its time wherever it stands.
        assert take(channel, dead).text == "short"
        assert take_all(channel, queue) == ["long", "forever"]
        return
    # RabbitMQ looks at the head of a queue only. Another message shows how time goes by.
    passed = declare(channel, {"x-dead-letter-exchange": exchange})
    publish(channel, passed, "clock", expiration="100")
    assert take(channel, dead).text == "clock"
    assert count(channel, queue) == 3
    assert take(channel, queue).text == "long"
    assert take(channel, dead).text == "short"
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
    # Requeued, it has to wait, for which it has no time, even though the consumer is free again.
    other.basic_nack(consumer.last.tag, requeue=True)
    assert take(channel, dead).text == "free"
    assert consumer.settle() == ["free"]


def test_unacked_message_expires_only_when_it_is_requeued(connect: Connect, channel: Any) -> None:
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


def is_kept(channel: Any, queue: str) -> bool:
    """Get the only message and requeue it; return whether there was one."""
    found = get(channel, queue)
    if found is not None:
        channel.basic_nack(found.tag, requeue=True)
    return found is not None


# Uses that keep a queue alive; each returns whether it is the queue with the message, not another one of that name.
USES: dict[str, Callable[[Any, str, dict[str, Any]], bool]] = {
    "declare": lambda channel, queue, arguments: has_one(channel.queue_declare(queue, arguments=arguments)),
    "passive": lambda channel, queue, _: has_one(channel.queue_declare(queue, passive=True)),
    "get": lambda channel, queue, _: is_kept(channel, queue),
}


def has_one(declared: Any) -> bool:
    return bool(declared.method.message_count == 1)


@pytest.mark.parametrize("use", USES)
def test_a_queue_lives_while_it_is_declared_or_read(channel: Any, use: str) -> None:
    life_s = 0.3
    while not lives_while_used(channel, use, life_s):
        life_s *= 2


def lives_while_used(channel: Any, use: str, life_s: float) -> bool:
    """Use a queue for longer than it would live without that.

    Returns False if it could not be used often enough: that shows nothing, and is better tried with a longer life.
    """
    arguments = {"x-expires": round(1000 * life_s)}
    using = channel.connection.channel()
    began_s = used_s = time.monotonic()
    queue = declare(using, arguments)
    publish(using, queue, "kept")
    is_there, longest_s = True, 0.0
    while is_there and used_s - began_s < 2 * life_s:
        now_s = time.monotonic()
        try:
            is_there = USES[use](using, queue, arguments)
        except ChannelClosedByBroker as closed:
            if closed.reply_code != 404:
                raise
            is_there = False
        # At most this long the broker saw no use.
        longest_s = max(longest_s, time.monotonic() - used_s)
        used_s = now_s
    is_in_time = longest_s < life_s
    assert is_there or not is_in_time, f"gone although it was used every {longest_s} s"
    return is_in_time


@pytest.mark.parametrize("no_use", ["publish", "bind", "unacknowledged"])
def test_neither_messages_nor_bindings_keep_a_queue_alive(
    broker: Broker, connect: Connect, channel: Any, no_use: str
) -> None:
    queue = declare(channel)
    publish(channel, queue, "body")
    if no_use == "unacknowledged":
        take(channel, queue)
    # Only now, since it might be gone before it is got.
    broker.set_policy(queue, f"^{queue}$", {"expires": 200}, apply_to="queues")

    def is_gone() -> bool:
        if no_use == "publish":
            channel.basic_publish("", queue, b"body")
        return not exists_without_use(channel, queue)

    wait_until(channel, is_gone, lambda: "still there")
    assert not exists(connect, queue)
    broker.clear_policy(queue)


def test_a_consumer_keeps_a_queue_alive_and_its_end_starts_the_clock(
    broker: Broker, connect: Connect, channel: Any
) -> None:
    queue = declare(channel)
    consumer = Consumer(connect().channel(), queue)
    # Only now, since it might be gone before its consumer comes.
    broker.set_policy(queue, f"^{queue}$", {"expires": 300}, apply_to="queues")
    clock = declare(channel, {"x-expires": 300})
    wait_until(channel, lambda: not exists_without_use(channel, clock), lambda: "the clock stands still")
    assert exists_without_use(channel, queue)
    began_s = time.monotonic()
    consumer.cancel()
    wait_until(channel, lambda: not exists_without_use(channel, queue), lambda: "still there")
    # A timer may be a little early.
    assert time.monotonic() - began_s > 0.25
    broker.clear_policy(queue)


def exists_without_use(channel: Any, queue: str) -> bool:
    """Return whether the queue exists, without counting as a use of it: by binding it."""
    other = channel.connection.channel()
    try:
        other.queue_bind(queue, "amq.direct", queue)
    except ChannelClosedByBroker as closed:
        if closed.reply_code != 404:
            raise
        return False
    other.close()
    return True


def test_expiration_may_have_a_plus_sign(channel: Any) -> None:
    exchange, dead = declare_dead_letters(channel)
    queue = declare(channel, {"x-dead-letter-exchange": exchange})
    publish(channel, queue, "m", expiration="+5")
    assert take(channel, dead).text == "m"
