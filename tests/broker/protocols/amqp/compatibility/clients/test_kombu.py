"""kombu, which is what Celery speaks: producers, consumers, simple queues, and their retries."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue

from tests.broker.protocols.amqp.compatibility.brokers import Broker

LIMIT_S = 60.0


@pytest.fixture
def connection(broker: Broker) -> Iterator[Any]:
    with Connection(broker.url()) as connection:
        yield connection


def test_a_producer_declares_what_it_needs_and_a_consumer_gets_it(connection: Any, name: str) -> None:
    exchange = Exchange(name, "topic", durable=True)
    queue = Queue(name, exchange, routing_key="a.*", durable=True)
    sent = {"text": "grüße", "numbers": [1, 2.5, None]}
    producer = Producer(connection, exchange, serializer="json")
    producer.publish(
        sent, routing_key="a.b", declare=[queue], headers={"k": "v"}, priority=3, compression="zlib", expiration=60
    )
    got: list[tuple[Any, Any]] = []

    def on_message(body: Any, message: Any) -> None:
        got.append((body, message))
        message.ack()

    with Consumer(connection, [queue], callbacks=[on_message], accept=["json"], prefetch_count=10):
        connection.drain_events(timeout=LIMIT_S)
    ((body, message),) = got
    assert body == sent
    assert message.headers["k"] == "v"
    assert (message.properties["priority"], message.properties["expiration"]) == (3, "60000")
    assert message.delivery_info["routing_key"] == "a.b"
    bound = queue(connection.default_channel)
    assert bound.delete() == 0
    exchange(connection.default_channel).delete()


def test_prefetch_of_a_channel_is_global(connection: Any) -> None:
    """By this Celery decides whether a worker's queues share one window."""
    connection.connect()
    assert not connection.qos_semantics_matches_spec


def test_confirms_are_awaited(broker: Broker, name: str) -> None:
    with Connection(broker.url(), transport_options={"confirm_publish": True}) as connection:
        queue = Queue(name, auto_delete=True)
        producer = Producer(connection)
        for number in range(50):
            producer.publish(number, routing_key=name, declare=[queue], retry=True)
        assert queue(connection.default_channel).queue_declare(passive=True).message_count == 50


def test_a_message_can_be_rejected_and_given_back(connection: Any, name: str) -> None:
    queue = Queue(name, channel=connection.default_channel, auto_delete=True)
    queue.declare()
    Producer(connection).publish("body", routing_key=name)
    first = queue.get()
    assert not first.delivery_info["redelivered"]
    first.requeue()
    again = queue.get()
    assert again.delivery_info["redelivered"]
    again.reject()
    assert queue.get() is None


def test_a_simple_queue_behaves_like_one_of_the_standard_library(connection: Any, name: str) -> None:
    with connection.SimpleQueue(name) as queue:
        for number in range(3):
            queue.put({"number": number})
        for number in range(2):
            message = queue.get(timeout=LIMIT_S)
            assert message.payload == {"number": number}
            message.ack()
        message = queue.get(timeout=LIMIT_S)
        message.requeue()
        message = queue.get(timeout=LIMIT_S)
        assert message.payload == {"number": 2}
        message.ack()
        with pytest.raises(queue.Empty):
            queue.get(block=False)
        assert queue.qsize() == 0
    Queue(name)(connection.default_channel).delete()


def test_a_simple_buffer_forgets(connection: Any, name: str) -> None:
    with connection.SimpleBuffer(name) as buffer:
        buffer.put("body")
        assert buffer.get(timeout=LIMIT_S).payload == "body"
        assert buffer.qsize() == 0


def test_a_fanout_reaches_every_listener(connection: Any, name: str) -> None:
    exchange = Exchange(name, "fanout", auto_delete=True, durable=False)
    queues = [Queue(f"{name}-{number}", exchange, exclusive=True) for number in range(3)]
    got: list[str] = []
    with Consumer(connection, queues, on_message=lambda message: got.append(message.payload), no_ack=True):
        Producer(connection, exchange).publish("news")
        while len(got) < 3:
            connection.drain_events(timeout=LIMIT_S)
    assert got == ["news"] * 3


def test_the_connection_is_made_again_when_it_was_lost(broker: Broker, name: str) -> None:
    # With confirms: what was sent just before a loss may come in after what is sent over the next connection.
    with Connection(broker.url(), transport_options={"confirm_publish": True}) as connection:
        queue = Queue(name, durable=True)
        producer = Producer(connection)
        producer.publish("before", routing_key=name, declare=[queue])
        connection.connection.transport.sock.shutdown(socket.SHUT_RDWR)
        producer.publish("after", routing_key=name, retry=True, retry_policy={"interval_start": 0, "max_retries": 5})
        channel = connection.default_channel
        assert [queue(channel).get(no_ack=True).payload for _ in range(2)] == ["before", "after"]
        queue(channel).delete()
