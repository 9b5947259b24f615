"""Consuming with the client: deliveries, windows, settlements, and what becomes of them when a connection breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from flyball.broker.node.node import Node
from flyball.client import Client, InvalidValue, LeaseLost, Outcome
from flyball.errors import QueueNotFound
from tests.client.flavours import Connect, Threaded
from tests.nodes import RunningNode

Unique = Callable[[str], str]


def disconnect_all(node: Node) -> None:
    for connection in node.hub.connections:
        connection.disconnect()


async def test_deliveries_are_acknowledged_requeued_or_dropped(
    connect: Connect, any_address: str, unique: Unique
) -> None:
    async with connect(any_address) as client:
        dead = await client.create_queue(unique("dead"))
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead.name}
        queue = await client.create_queue(unique("orders"), arguments=arguments)
        await client.put_many(queue, ["ack", "requeue", "drop"])
        async with client.consume(queue, prefetch=3) as consumer:
            deliveries = [await consumer.next(20) for _ in range(3)]
            assert [delivery.message.text for delivery in deliveries] == ["ack", "requeue", "drop"]
            assert await consumer.next(0.01) is None
            await deliveries[0].ack()
            await deliveries[2].drop()
            await deliveries[1].requeue()
            again = await consumer.next(20)
            assert (again.message.text, again.message.redelivered) == ("requeue", True)
            with pytest.raises(LeaseLost):
                await deliveries[1].ack()
            await again.ack()
        assert await client.read_messages(queue) == []
        assert (await client.take(dead, wait_s=20)).text == "drop"


async def test_what_is_not_settled_goes_back_to_its_place(connect: Connect, any_address: str, unique: Unique) -> None:
    async with connect(any_address) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put_many(queue, ["1", "2", "3"])
        async with client.consume(queue, prefetch=2) as consumer:
            first = await consumer.next(20)
        with pytest.raises(LeaseLost):
            await first.ack()
        assert [message.text for message in await client.read_messages(queue)] == ["1", "2", "3"]
        assert await consumer.next() is None


async def test_window_may_be_changed_and_be_a_fraction(connect: Connect, address: str, unique: Unique) -> None:
    async with connect(address) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put_many(queue, [str(number) for number in range(10)])
        async with client.consume(queue, prefetch=0) as consumer:
            assert await consumer.next(0.01) is None
            await consumer.set_prefetch(2)
            held = [await consumer.next(20), await consumer.next(20)]
            assert await consumer.next(0.01) is None
            await consumer.set_prefetch(0.5)
            assert consumer.prefetch == 0.5
            for delivery in held:
                await delivery.ack()
            assert (await consumer.next(20)).message.text == "2"


async def test_many_are_settled_together(connect: Connect, any_address: str, unique: Unique) -> None:
    async with connect(any_address) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put_many(queue, [str(number) for number in range(10)])
        async with client.consume(queue, prefetch=10) as consumer, client.consume(queue) as other:
            found = [await consumer.next(20) for _ in range(10)]
            await consumer.settle(found[5:7], Outcome.REQUEUE)
            await consumer.settle(found[:5], Outcome.ACKNOWLEDGE)
            await consumer.settle([found[9], found[7]], Outcome.ACKNOWLEDGE)
            await consumer.settle([], Outcome.DROP)
            with pytest.raises(LeaseLost):
                await consumer.settle([found[8], found[0]], Outcome.ACKNOWLEDGE)
            with pytest.raises(InvalidValue):
                await other.settle([found[8]], Outcome.ACKNOWLEDGE)
            await other.stop()
        assert [message.text for message in await client.read_messages(queue)] == ["5", "6", "8"]


async def test_stopped_consumer_gives_back_what_nobody_has_seen(
    connect: Connect, any_address: str, unique: Unique
) -> None:
    async with connect(any_address) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put_many(queue, ["1", "2", "3"])
        async with client.consume(queue, prefetch=3) as consumer:
            first = await consumer.next(20)
            await consumer.stop()
            assert await consumer.next() is None
            assert [message.text for message in await client.read_messages(queue)] == ["2", "3"]
            waiting = asyncio.ensure_future(consumer.wait_settled())
            await asyncio.wait([waiting], timeout=0.01)
            assert not waiting.done()
            await first.ack()
            await waiting
        assert [message.text for message in await client.read_messages(queue)] == ["2", "3"]


async def test_consumer_selects_messages(connect: Connect, any_address: str, unique: Unique) -> None:
    async with connect(any_address) as client:
        queue = await client.create_queue(unique("orders"))
        for number in range(6):
            await client.put(queue, str(number), context=number % 2)
        async with client.consume(queue, context=1) as consumer:
            assert [(await consumer.next(20)).message.text for _ in range(3)] == ["1", "3", "5"]
            assert await consumer.next(0.01) is None


async def test_deliveries_are_iterated(connect: Connect, address: str, unique: Unique) -> None:
    async with connect(address) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put_many(queue, ["1", "2"])
        texts = []
        async with client.consume(queue) as consumer:
            async for delivery in consumer:
                texts.append(delivery.message.text)
                await delivery.ack()
                if len(texts) == 2:
                    break
        assert texts == ["1", "2"]


async def test_deliveries_are_counted(address: str, unique: Unique) -> None:
    async with Client.connect(address) as client:
        queue = await client.create_queue(unique("jobs"))
        await client.put(queue, "x")
        async with client.consume(queue) as consumer:
            for count in range(3):
                delivery = await consumer.next(20)
                assert delivery is not None
                assert delivery.message.delivery_count == count
                await delivery.requeue()


async def test_consumer_goes_on_after_a_lost_connection(
    memory_node: RunningNode, connect: Connect, address: str, unique: Unique
) -> None:
    async with connect(address) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put_many(queue, ["1", "2"])
        async with client.consume(queue, prefetch=1) as consumer:
            first = await consumer.next(20)
            memory_node.call(disconnect_all)
            again = await consumer.next(20)
            assert (again.message.text, again.message.redelivered) == ("1", True)
            with pytest.raises(LeaseLost):
                await first.ack()
            await again.ack()
            assert (await consumer.next(20)).message.text == "2"


async def test_deleted_queue_ends_its_consumer(connect: Connect, address: str, unique: Unique) -> None:
    async with connect(address) as client:
        queue = await client.create_queue(unique("orders"))
        async with client.consume(queue) as consumer:
            waiting = asyncio.ensure_future(consumer.next(20))
            if not isinstance(consumer, Threaded):
                await asyncio.sleep(0)
            await client.delete_queue(queue)
            with pytest.raises(QueueNotFound):
                await waiting


async def test_cancelled_next_loses_nothing(address: str, unique: Unique) -> None:
    async with Client.connect(address) as client:
        queue = await client.create_queue(unique("orders"))
        async with client.consume(queue) as consumer:
            waiting = asyncio.ensure_future(consumer.next())
            await asyncio.sleep(0)
            waiting.cancel()
            await client.put(queue, "x")
            delivery = await consumer.next(20)
            assert delivery is not None
            assert delivery.message.text == "x"
