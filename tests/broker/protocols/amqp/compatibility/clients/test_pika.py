"""pika with its asynchronous adapters; its blocking one does the other tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.asyncio_connection import AsyncioConnection

from tests.broker.protocols.amqp.compatibility.brokers import Broker
from tests.broker.protocols.amqp.compatibility.queues import take_all, wait_for_count

LIMIT_S = 60.0
MESSAGES = 500


class RoundTrip:
    """A client of callbacks that publishes messages with confirms to a queue, and consumes and acknowledges them."""

    def __init__(self, queue: str, stop: Callable[[], None]) -> None:
        self.queue = queue
        self.stop = stop
        self.confirmed: set[int] = set()
        self.received: list[int] = []
        self.error: Any = None

    @property
    def is_done(self) -> bool:
        return len(self.confirmed) == len(self.received) == MESSAGES

    def on_open(self, connection: Any) -> None:
        self.connection = connection
        connection.channel(on_open_callback=self.on_channel)

    def on_failure(self, connection: Any, error: Any) -> None:
        self.error = error
        self.stop()

    def on_channel_end(self, channel: Any, reason: Any) -> None:
        self.error = reason
        if self.connection.is_open:
            self.connection.close()

    def on_channel(self, channel: Any) -> None:
        self.channel = channel
        channel.add_on_close_callback(self.on_channel_end)
        channel.confirm_delivery(self.on_confirm, callback=lambda _: self.declare())

    def declare(self) -> None:
        self.channel.queue_declare(self.queue, durable=True, callback=lambda _: self.limit())

    def limit(self) -> None:
        self.channel.basic_qos(prefetch_count=50, callback=lambda _: self.publish())

    def publish(self) -> None:
        for number in range(MESSAGES):
            self.channel.basic_publish("", self.queue, str(number), pika.BasicProperties(delivery_mode=2))
        self.channel.basic_consume(self.queue, self.on_delivery)

    def on_confirm(self, frame: Any) -> None:
        assert isinstance(frame.method, pika.spec.Basic.Ack)
        # Confirms count from 1, and need not come in order; with `multiple` one stands for all up to its tag.
        tag = frame.method.delivery_tag
        self.confirmed.update(range(1, tag + 1) if frame.method.multiple else [tag])
        self.look()

    def on_delivery(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self.received.append(int(body))
        channel.basic_ack(method.delivery_tag)
        self.look()

    def look(self) -> None:
        if self.is_done:
            self.channel.queue_delete(self.queue, callback=lambda _: self.connection.close())


def parameters(broker: Broker) -> Any:
    return pika.URLParameters(broker.url())


def test_a_round_trip_with_select_connection(broker: Broker, name: str) -> None:
    trip = RoundTrip(name, lambda: connection.ioloop.stop())
    connection: Any = pika.SelectConnection(
        parameters(broker),
        on_open_callback=trip.on_open,
        on_open_error_callback=trip.on_failure,
        on_close_callback=lambda *_: connection.ioloop.stop(),
    )
    connection.ioloop.call_later(LIMIT_S, connection.ioloop.stop)
    connection.ioloop.start()
    connection.ioloop.close()
    assert trip.is_done, trip.error
    assert trip.received == list(range(MESSAGES))


def test_a_round_trip_with_the_asyncio_adapter(broker: Broker, name: str) -> None:
    async def scenario() -> RoundTrip:
        over = asyncio.Event()
        trip = RoundTrip(name, over.set)
        AsyncioConnection(
            parameters(broker),
            on_open_callback=trip.on_open,
            on_open_error_callback=trip.on_failure,
            on_close_callback=lambda *_: over.set(),
            custom_ioloop=asyncio.get_running_loop(),
        )
        async with asyncio.timeout(LIMIT_S):
            await over.wait()
        return trip

    trip = asyncio.run(scenario())
    assert trip.is_done, trip.error
    assert trip.received == list(range(MESSAGES))


def test_the_blocking_generator_takes_no_more_than_it_acknowledges(
    connect: Callable[..., Any], channel: Any, name: str
) -> None:
    channel.queue_declare(name)
    for number in range(5):
        channel.basic_publish("", name, str(number))
    taken = []
    for method, _, body in channel.consume(name, inactivity_timeout=LIMIT_S):
        assert method is not None
        taken.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(taken) == 2:
            break
    channel.cancel()
    channel.close()
    assert taken == [b"0", b"1"]
    other = connect().channel()
    wait_for_count(other, name, 3)
    assert [text.rstrip("*") for text in take_all(other, name)] == ["2", "3", "4"]


@pytest.mark.parametrize("size", [0, 1, 131_072, 5_000_000])
def test_bodies_of_any_size_come_back_as_they_were(channel: Any, name: str, size: int) -> None:
    channel.queue_declare(name)
    channel.confirm_delivery()
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    channel.basic_publish("", name, body, mandatory=True)
    _, _, got = channel.basic_get(name, auto_ack=True)
    assert got == body


def test_heartbeats_keep_a_quiet_connection_open(broker: Broker, name: str) -> None:
    settings = parameters(broker)
    settings.heartbeat = 1
    connection = pika.BlockingConnection(settings)
    channel = connection.channel()
    dead, waiting = f"{name}-dead", f"{name}-waiting"
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, "x-message-ttl": 3500}
    channel.queue_declare(dead, exclusive=True)
    channel.queue_declare(waiting, exclusive=True, arguments=arguments)
    # Three heartbeats and more pass before the message dies and comes to the consumer.
    channel.basic_publish("", waiting, b"late")
    method, _, body = next(channel.consume(dead, auto_ack=True, inactivity_timeout=LIMIT_S))
    assert (method is not None, body) == (True, b"late")
    connection.close()
