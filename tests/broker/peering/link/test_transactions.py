"""Transactions with queues of this node and of another one: nothing is acked before all puts are stored."""

from __future__ import annotations

import asyncio
from typing import Any

import aio_pika
import aiormq
import aiormq.abc
import aiormq.exceptions
import pytest
from pamqp.commands import Basic

from tests.broker.peering.link.domains import held_store, until
from tests.broker.peering.link.pairs import Two, with_two_nodes

PERSISTENT = aiormq.spec.Basic.Properties(delivery_mode=2)


async def transactional(two: Two) -> aiormq.abc.AbstractChannel:
    """Open a channel of a client of the first node."""
    underlying = await two.here.get_underlay_channel()
    channel = await underlying.connection.channel(publisher_confirms=False)
    await channel.tx_select()
    return channel


async def got(channel: aiormq.abc.AbstractChannel, queue: str) -> int:
    """Get a message of the queue, and return its tag."""
    found = await channel.basic_get(queue)
    assert isinstance(found.delivery, Basic.GetOk)
    assert found.delivery.delivery_tag is not None
    return found.delivery.delivery_tag


async def put(channel: aiormq.abc.AbstractChannel, queue: str, body: bytes, **options: Any) -> None:
    await channel.basic_publish(body, routing_key=queue, properties=PERSISTENT, **options)


def ready(two: Two, name: str) -> list[bytes]:
    """Return the ready messages of a queue of the first node."""
    state = two.first.broker.engine.find_queue(name)
    return [] if state is None else [message.body for message in state.oldest(0, 10)]


@with_two_nodes
async def test_failed_commit_has_acked_nothing(two: Two) -> None:
    await two.forwarded()
    await two.here.declare_queue("requests", durable=True)
    await two.here.default_exchange.publish(aio_pika.Message(b"request", delivery_mode=2), "requests")
    channel = await transactional(two)
    tag = await got(channel, "requests")
    await put(channel, "orders", b"reply")
    await put(channel, "requests", b"local reply")
    await channel.basic_ack(tag)
    gate = held_store(two.second)
    committing = asyncio.ensure_future(channel.tx_commit())
    await until(lambda: len(two.queue_state) == 1)
    two.made.kill(two.second)
    with pytest.raises(aiormq.exceptions.AMQPError):
        await committing
    # It is back, and nothing else was put.
    await until(lambda: ready(two, "requests") == [b"request"])
    gate.set()


@with_two_nodes
async def test_remote_message_is_acked_when_local_puts_are_stored(two: Two) -> None:
    await two.forwarded()
    await two.publish(b"request")
    await two.here.declare_queue("replies", durable=True)
    channel = await transactional(two)
    tag = await got(channel, "orders")
    await put(channel, "replies", b"reply")
    await channel.basic_ack(tag)
    gate = held_store(two.first)
    committing = asyncio.ensure_future(channel.tx_commit())
    await until(lambda: ready(two, "replies") == [b"reply"])
    # What goes over the link is answered in order: an ack that was sent would have arrived before this.
    await two.first.peers.request(2, "queue.counts", {"queue_id": two.queue_id})
    assert len(two.queue_state.unacked) == 1
    gate.set()
    await committing
    assert not two.queue_state.unacked


@with_two_nodes
async def test_local_puts_and_acks_wait_for_remote_puts(two: Two) -> None:
    await two.forwarded()
    await two.here.declare_queue("requests", durable=True)
    await two.here.default_exchange.publish(aio_pika.Message(b"request", delivery_mode=2), "requests")
    channel = await transactional(two)
    tag = await got(channel, "requests")
    for queue in ("orders", "requests"):
        await put(channel, queue, b"reply")
    await channel.basic_ack(tag)
    requests = two.first.broker.engine.find_queue("requests")
    assert requests is not None
    gate = held_store(two.second)
    committing = asyncio.ensure_future(channel.tx_commit())
    await until(lambda: len(two.queue_state) == 1)
    assert (len(requests), len(requests.unacked)) == (0, 1)
    gate.set()
    await committing
    assert (len(requests), len(requests.unacked), two.bodies()) == (1, 0, [b"reply"])


@with_two_nodes
async def test_full_queue_of_another_node_makes_a_commit_partial(two: Two) -> None:
    await two.forwarded(arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    await two.here.declare_queue("requests", durable=True)
    channel = await transactional(two)
    for queue in ("orders", "orders", "requests"):
        await put(channel, queue, b"body")
    with pytest.raises(aiormq.exceptions.ChannelPreconditionFailed, match="partial tx completion"):
        await channel.tx_commit()
    assert (len(two.queue_state), ready(two, "requests")) == (1, [b"body"])


@with_two_nodes
async def test_message_follows_a_queue_that_moves_before_the_commit(two: Two) -> None:
    await two.here.declare_queue("requests", durable=True)
    channel = await transactional(two)
    await put(channel, "requests", b"body", mandatory=True)
    requests = two.first.broker.engine.find_queue("requests")
    assert requests is not None
    two.first.broker.engine.delete_queue(requests.queue.id)
    moved = two.second.broker.engine.create_queue("requests")
    two.made.send_all()
    await channel.tx_commit()
    assert [message.body for message in two.second.broker.engine.queue(moved.id).oldest(0, 10)] == [b"body"]


@with_two_nodes
async def test_mandatory_message_returns_if_its_remote_queue_is_gone_at_the_commit(two: Two) -> None:
    await two.forwarded()
    channel = await transactional(two)
    await put(channel, "orders", b"body", mandatory=True)
    await two.there.queue_delete("orders")
    two.made.send_all()
    await channel.tx_commit()
    assert sum(each.publisher.returned for session in two.first.sessions for each in session.channels) == 1


@with_two_nodes
async def test_mandatory_message_returns_if_its_remote_queues_are_deleted(two: Two) -> None:
    exchange = await two.here.declare_exchange("all", "fanout")
    channel = await transactional(two)
    # One queue that is there is enough.
    for deleted in (["orders"], ["orders", "copies"]):
        for name in ("orders", "copies"):
            await two.there.declare_queue(name, durable=True)
            await (await two.here.get_queue(name)).bind(exchange)
        await channel.basic_publish(b"body", exchange="all", properties=PERSISTENT, mandatory=True)
        for name in deleted:
            await two.there.queue_delete(name)
        two.made.send_all()
        await channel.tx_commit()
        returned = sum(each.publisher.returned for session in two.first.sessions for each in session.channels)
        assert returned == len(deleted) - 1


@with_two_nodes
async def test_acks_of_a_deleted_remote_queue_are_no_failure(two: Two) -> None:
    await two.forwarded()
    await two.publish(b"request")
    await two.here.declare_queue("replies", durable=True)
    channel = await transactional(two)
    delivered: asyncio.Queue[aiormq.abc.DeliveredMessage] = asyncio.Queue()
    await channel.basic_consume("orders", delivered.put)
    request = await delivered.get()
    assert request.delivery_tag is not None
    # One is acked while the queue is there, the other one afterwards.
    await two.publish(b"another")
    other = await delivered.get()
    assert other.delivery_tag is not None
    await channel.basic_ack(request.delivery_tag)
    await two.there.queue_delete("orders")
    await until(lambda: not any(each.deliveries.consumers for s in two.first.sessions for each in s.channels))
    await put(channel, "replies", b"reply")
    await channel.basic_nack(other.delivery_tag)
    await channel.tx_commit()
    assert ready(two, "replies") == [b"reply"]
    # Nothing is left of the queue here.
    assert not [state for state in two.first.broker.engine.queues if state.queue.id < 0]
