"""Puts to a node that does not answer: a link holds a bounded amount, and what waits is its publisher's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aio_pika
import aiormq.abc
import pytest

from flyball.broker.peering import domain, puts
from flyball.broker.peering.link import Link
from flyball.broker.protocols.amqp.session import AmqpSession
from flyball.broker.wire.link import Content
from tests.broker.peering.link.domains import client, held_store, run, until
from tests.broker.peering.link.domains import domain as domain_of
from tests.broker.peering.link.pairs import Two, with_two_nodes
from tests.broker.peering.link.test_transactions import PERSISTENT

SIZE = 100_000
BODY = bytes(SIZE)
LIMIT = 10 * SIZE


@pytest.fixture(autouse=True)
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puts, "CONGESTED_BYTES", LIMIT)
    monkeypatch.setattr(domain, "UNREAD_BYTES", LIMIT)


@asynccontextmanager
async def transaction(two: Two, count: int, routing_key: str = "orders") -> AsyncIterator[aiormq.abc.AbstractChannel]:
    """Let another client of the first node publish in a transaction."""
    async with client(two.first) as connection:
        underlying = await (await connection.channel()).get_underlay_channel()
        channel = await underlying.connection.channel(publisher_confirms=False)
        await channel.tx_select()
        for number in range(count):
            body = number.to_bytes(4, "big") + BODY
            await channel.basic_publish(body, routing_key=routing_key, properties=PERSISTENT)
        yield channel


def newest(two: Two) -> AmqpSession:
    return max(two.first.sessions, key=lambda session: session.number)


def link_of(two: Two) -> Link:
    link = two.first.peers.link(2)
    assert link is not None
    return link


def numbers(two: Two) -> list[int]:
    return [int.from_bytes(body[:4], "big") for body in two.bodies()]


@with_two_nodes
async def test_commit_waits_for_room_on_the_link_and_keeps_its_order(two: Two) -> None:
    await two.forwarded()
    gate = held_store(two.second)
    async with transaction(two, 50) as channel:
        committing = asyncio.ensure_future(channel.tx_commit())
        await until(lambda: link_of(two).unanswered_bytes > LIMIT)
        assert link_of(two).unanswered_bytes < LIMIT + 2 * SIZE
        assert not committing.done()
        gate.set()
        await committing
    assert numbers(two) == list(range(50))
    assert link_of(two).unanswered_bytes == 0


@with_two_nodes
async def test_commit_is_charged_to_its_session_until_it_is_answered(two: Two) -> None:
    await two.forwarded()
    gate = held_store(two.second)
    async with transaction(two, 50) as channel:
        session = newest(two)
        committing = asyncio.ensure_future(channel.tx_commit())
        await until(lambda: link_of(two).unanswered_bytes > LIMIT)
        assert session.held_bytes() > 50 * SIZE
        gate.set()
        await committing
        assert session.held_bytes() < SIZE


@with_two_nodes
async def test_commit_of_a_client_that_has_gone_lets_go_of_what_waits(two: Two) -> None:
    await two.forwarded()
    gate = held_store(two.second)

    async def commit_and_go() -> None:
        async with transaction(two, 50) as channel:
            session = newest(two)
            committing = asyncio.ensure_future(channel.tx_commit())
            await until(lambda: session.is_held and link_of(two).unanswered_bytes > LIMIT)
            assert session.transaction_bytes > 50 * SIZE
            session.abort()
            await asyncio.wait([committing])
        await until(lambda: session not in two.first.hub.connections)
        assert session.transaction_bytes == 0

    for _ in range(3):
        await commit_and_go()
    assert not two.first.remotes.puts._lines
    assert link_of(two).unanswered_bytes < LIMIT + 2 * SIZE
    assert two.first.hub.tasks_under_way == 0
    gate.set()
    await until(lambda: link_of(two).unanswered_bytes == 0)


@with_two_nodes
async def test_publisher_that_waits_for_another_node_is_charged_for_its_message(two: Two) -> None:
    await two.forwarded()
    gate = held_store(two.second)
    async with transaction(two, 50) as channel, client(two.first) as connection:
        committing = asyncio.ensure_future(channel.tx_commit())
        await until(lambda: link_of(two).unanswered_bytes > LIMIT)
        publisher = newest(two)
        orders = (await connection.channel()).default_exchange
        publishing = asyncio.ensure_future(orders.publish(aio_pika.Message(BODY, delivery_mode=2), "orders"))
        await until(lambda: publisher.forwarding_bytes > 0)
        assert publisher.held_bytes() > SIZE
        assert link_of(two).unanswered_bytes < LIMIT + 2 * SIZE
        gate.set()
        await asyncio.gather(committing, publishing)
        assert publisher.forwarding_bytes == 0
        await orders.publish(aio_pika.Message(b"next", delivery_mode=2), "orders")
    assert len(two.bodies()) == 52


@with_two_nodes
async def test_message_that_waits_is_dropped_with_its_publisher(two: Two) -> None:
    await two.forwarded()
    gate = held_store(two.second)
    async with transaction(two, 50) as channel:
        committing = asyncio.ensure_future(channel.tx_commit())
        await until(lambda: link_of(two).unanswered_bytes > LIMIT)
        waiting = len(two.first.remotes.puts._lines)
        async with client(two.first) as connection:
            publisher = newest(two)
            orders = (await connection.channel()).default_exchange
            publishing = asyncio.ensure_future(orders.publish(aio_pika.Message(BODY, delivery_mode=2), "orders"))
            await until(lambda: publisher.forwarding_bytes > 0)
            publisher.abort()
            await asyncio.wait([publishing])
        await until(lambda: publisher not in two.first.hub.connections)
        assert publisher.forwarding_bytes == 0
        # Only that it may go on is left of it.
        assert len(two.first.remotes.puts._lines) <= waiting + 1
        gate.set()
        await committing
    assert len(two.bodies()) == 50


@with_two_nodes
async def test_bytes_that_a_link_has_not_sent_and_awaits_answers_for_count_once(two: Two) -> None:
    await two.forwarded()
    link = link_of(two)
    found = two.first.directory.get(two.queue_id)
    assert found is not None
    for _ in range(5):
        two.first.remotes.puts.put([found], Content(BODY, b"\0\0", b"\0\0"), lambda token, outcome: None, 0)
    assert (link.unanswered_bytes, link.unread_bytes >= 5 * SIZE) == (5 * (SIZE + 4), True)
    assert link.held_bytes() < 6 * SIZE
    await until(lambda: link.unanswered_bytes == 0)


@with_two_nodes
async def test_direct_replies_to_a_node_that_does_not_read_are_dropped(two: Two) -> None:
    await two.forwarded()
    link = link_of(two)
    for _ in range(50):
        two.first.context.replies.send("amq.rabbitmq.reply-to.2.1", b"\0\0", b"\0\0", BODY)
    assert link.unread_bytes < LIMIT + 2 * SIZE
    await two.publish(b"1")
    assert two.bodies() == [b"1"]


def test_node_that_does_not_answer_delays_no_puts_to_others() -> None:
    async def test() -> None:
        async with domain_of(3) as made, client(made.nodes[0]) as one, client(made.nodes[1]) as other:
            two = Two(made, await one.channel(), await other.channel())
            await two.forwarded()
            gate = held_store(two.second)
            third = made.nodes[2]
            async with client(third) as elsewhere:
                await (await elsewhere.channel()).declare_queue("others", durable=True)
            made.send_all()
            async with transaction(two, 50) as channel, client(two.first) as connection:
                committing = asyncio.ensure_future(channel.tx_commit())
                await until(lambda: link_of(two).unanswered_bytes > LIMIT)
                exchange = (await connection.channel()).default_exchange
                await exchange.publish(aio_pika.Message(b"body", delivery_mode=2), "others")
                assert not committing.done()
                state = third.broker.engine.find_queue("others")
                assert state is not None
                assert [message.body for message in state.oldest(0, 10)] == [b"body"]
                gate.set()
                await committing

    run(test())
