"""Short words for what most tests do with a queue, over a channel of pika's blocking connection.

Bodies are text here, and `texts` marks what was redelivered with a star: ["0*", "1"].
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

# Timeout for what has to come: a machine may be slow, and slower while other tests run.
LIMIT_S = 60.0
# How long pika may wait for data before the condition of a wait is looked at again.
LOOK_AGAIN_S = 0.01


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message as the broker handed it over."""

    method: Any
    properties: Any
    body: bytes

    @property
    def tag(self) -> int:
        return int(self.method.delivery_tag)

    @property
    def headers(self) -> dict[str, Any]:
        return dict(self.properties.headers or {})

    @property
    def text(self) -> str:
        return self.body.decode() + ("*" if self.method.redelivered else "")


def texts(deliveries: Iterable[Delivery]) -> list[str]:
    """Return the bodies, with a star behind each that was redelivered."""
    return [delivery.text for delivery in deliveries]


class Consumer:
    """A consumer that keeps what it gets, and acknowledges nothing by itself."""

    def __init__(self, channel: Any, queue: str, **options: Any) -> None:
        self.channel = channel
        self.queue = queue
        self.deliveries: list[Delivery] = []
        self.cancelled_by_broker = False
        channel.add_on_cancel_callback(self._on_cancel)
        self.tag: str = channel.basic_consume(queue, self._on_delivery, **options)

    def wait_for(self, count: int) -> list[str]:
        """Return the texts of all so far, as soon as there are `count`. Fails if they do not come in time."""
        wait_until(self.channel, lambda: len(self.deliveries) >= count, lambda: f"got only {self.texts}")
        return self.texts

    def settle(self) -> list[str]:
        """Return the texts of all so far, after the broker had an occasion to deliver more if it wanted to."""
        # The queue answers after it has delivered; what it delivered the channel sends before its next answer.
        for _ in range(3):
            self.channel.queue_declare(self.queue, passive=True)
        self.channel.connection.process_data_events(0)
        return self.texts

    def wait_for_cancel(self) -> None:
        wait_until(self.channel, lambda: self.cancelled_by_broker, lambda: "was not cancelled")

    def cancel(self) -> None:
        self.channel.basic_cancel(self.tag)

    @property
    def texts(self) -> list[str]:
        return texts(self.deliveries)

    @property
    def last(self) -> Delivery:
        return self.deliveries[-1]

    def _on_delivery(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self.deliveries.append(Delivery(method, properties, body))

    def _on_cancel(self, frame: Any) -> None:
        self.cancelled_by_broker |= frame.method.consumer_tag == self.tag


def wait_until(channel: Any, condition: Callable[[], bool], complaint: Callable[[], str]) -> None:
    """Let pika work until the condition holds. Fails with the complaint if it does not in time."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, complaint()
        channel.connection.process_data_events(LOOK_AGAIN_S)


def declare(channel: Any, arguments: Mapping[str, Any] | None = None, **options: Any) -> str:
    """Declare a queue with a unique name, and return the name."""
    queue = f"test-{secrets.token_hex(6)}"
    channel.queue_declare(queue, arguments=dict(arguments or {}), **options)
    return queue


def declare_dead_letters(channel: Any) -> tuple[str, str]:
    """Declare a fanout exchange and a queue bound to it; return the names of both."""
    queue = declare(channel)
    exchange = f"{queue}-exchange"
    channel.exchange_declare(exchange, "fanout")
    channel.queue_bind(queue, exchange)
    return exchange, queue


def publish(channel: Any, queue: str, *bodies: str, **properties: Any) -> None:
    """Publish the bodies to the queue, on a channel of its own; they have arrived there on return.

    Raises NackError if one was refused.
    """
    # Without confirms a message is not there yet when RabbitMQ answers a passive declare that was sent after it.
    publishing = channel.connection.channel()
    publishing.confirm_delivery()
    for body in bodies:
        publishing.basic_publish("", queue, body.encode(), pika.BasicProperties(**properties))
    publishing.close()


def count(channel: Any, queue: str) -> int:
    """Return how many messages are ready."""
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def wait_for_count(channel: Any, queue: str, expected: int) -> None:
    """Wait until the expected number of messages is ready."""
    wait_until(channel, lambda: count(channel, queue) == expected, lambda: f"{count(channel, queue)} are ready")


def get(channel: Any, queue: str, *, auto_ack: bool = False) -> Delivery | None:
    """Get a message, or None if there is none."""
    method, properties, body = channel.basic_get(queue, auto_ack=auto_ack)
    return None if method is None else Delivery(method, properties, body)


def take(channel: Any, queue: str, *, auto_ack: bool = False) -> Delivery:
    """Get a message as soon as there is one. Fails if none comes in time."""
    got: list[Delivery] = []

    def look() -> bool:
        delivery = get(channel, queue, auto_ack=auto_ack)
        if delivery is not None:
            got.append(delivery)
        return bool(got)

    wait_until(channel, look, lambda: f"nothing came to {queue}")
    return got[0]


def take_all(channel: Any, queue: str) -> list[str]:
    """Get and acknowledge all messages that are ready now, and return their texts."""
    return texts(iter(lambda: get(channel, queue, auto_ack=True), None))


def reject(channel: Any, queue: str) -> None:
    """Take a message and reject it, so that it becomes a dead letter."""
    channel.basic_reject(take(channel, queue).tag, requeue=False)


def exists(connect: Callable[..., Any], queue: str) -> bool:
    """Return whether the queue exists. Asked from a connection of its own, since the answer may close a channel."""
    try:
        connect().channel().queue_declare(queue, passive=True)
    except ChannelClosedByBroker as closed:
        if closed.reply_code != 404:
            raise
        return False
    return True


@contextmanager
def channel_closed(code: int, text: str) -> Iterator[None]:
    """Expect that the broker closes the channel, with exactly this reply."""
    with pytest.raises(ChannelClosedByBroker) as closed:
        yield
    assert (closed.value.reply_code, closed.value.reply_text) == (code, text)


@contextmanager
def connection_closed(code: int, text: str) -> Iterator[None]:
    """Expect that the broker closes the connection, with exactly this reply."""
    with pytest.raises(ConnectionClosedByBroker) as closed:
        yield
    assert (closed.value.reply_code, closed.value.reply_text) == (code, text)
