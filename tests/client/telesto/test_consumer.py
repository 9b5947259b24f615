"""Consuming with acknowledgement: leases, prefetch, and what happens when a consumer or its connection ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from flyball.errors import LeaseNotFound, QueueNotFound
from tests.client.telesto.flavours import Connect
from tests.client.telesto.servers import proxy
from tests.telesto_client import Backoff, Client, ConnectionLost, InvalidValue, LeaseLost, Outcome

Unique = Callable[[str], str]
QUICK = Backoff(first_s=0.001, max_s=0.01)


async def counts(client: Any, queue_name: str) -> tuple[int, int, int]:
    """Return how many messages are ready and leased, and how many consumers there are."""
    for queue in (await client.status())["queues"]:
        if queue["name"] == queue_name:
            return queue["ready"], queue["leased"], queue["consumers"]
    raise QueueNotFound(queue_name)


async def test_an_acknowledged_message_is_gone(connect: Connect, any_address: str, unique: Unique) -> None:
    async with connect(any_address, name=unique("worker")) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put_many(queue, ["a", "b", "c"])
        texts = []
        async with client.consume(queue, prefetch=2) as consumer:
            async for delivery in consumer:
                texts.append(delivery.message.text)
                await delivery.ack()
                if len(texts) == 3:
                    break
        assert texts == ["a", "b", "c"]
        assert await counts(client, queue.name) == (0, 0, 0)


async def test_a_requeued_message_comes_again_at_its_old_place(
    connect: Connect, any_address: str, unique: Unique
) -> None:
    async with connect(any_address, name=unique("worker")) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put_many(queue, ["a", "b"])
        async with client.consume(queue, prefetch=1) as consumer:
            first = await consumer.next(wait_s=30)
            assert (first.message.text, first.message.redelivered) == ("a", False)
            await first.requeue()
            again = await consumer.next(wait_s=30)
            assert (again.message.text, again.message.redelivered) == ("a", True)
            assert again.message.delivery_count == 1
            await again.drop()
            assert (await consumer.next(wait_s=30)).message.text == "b"
        assert [message.text for message in await client.read_messages(queue)] == ["b"]


async def test_no_more_than_the_prefetch_is_delivered_unsettled(
    connect: Connect, address: str, unique: Unique
) -> None:
    async with connect(address, name=unique("worker")) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put_many(queue, [f"{number}" for number in range(10)])
        async with client.consume(queue, prefetch=3) as consumer:
            assert consumer.prefetch == 3
            assert await counts(client, queue.name) == (7, 3, 1)
            await consumer.set_prefetch(5)
            assert await counts(client, queue.name) == (5, 5, 1)
            await consumer.set_prefetch(0)
            deliveries = [await consumer.next(wait_s=30) for _ in range(5)]
            await consumer.settle(deliveries, Outcome.ACKNOWLEDGE)
            assert await counts(client, queue.name) == (5, 0, 1)
            await consumer.set_prefetch(1)
            assert (await consumer.next(wait_s=30)).message.text == "5"


async def test_a_fractional_prefetch_is_in_between(connect: Connect, address: str, unique: Unique) -> None:
    async with connect(address, name=unique("worker")) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put_many(queue, ["x"] * 10)
        async with client.consume(queue, prefetch=0.5) as consumer:
            assert await consumer.next(wait_s=30) is not None
            await consumer.set_prefetch(2.5)
            for _ in range(2):
                assert await consumer.next(wait_s=30) is not None
            ready, leased, _ = await counts(client, queue.name)
            assert (ready + leased, leased) == (10, 3)


async def test_without_messages_the_next_delivery_is_none_after_the_wait(
    connect: Connect, address: str, unique: Unique
) -> None:
    async with connect(address, name=unique("worker")) as client:
        queue = await client.create_queue(unique("orders"))
        async with client.consume(queue) as consumer:
            assert await consumer.next(wait_s=0.01) is None
            await client.put(queue, "x")
            assert (await consumer.next(wait_s=30)).message.text == "x"


async def test_what_is_not_settled_at_the_end_goes_back_to_its_place(
    connect: Connect, any_address: str, unique: Unique
) -> None:
    async with connect(any_address, name=unique("worker")) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put_many(queue, ["a", "b", "c", "d"])
        async with client.consume(queue, prefetch=3) as consumer:
            seen = await consumer.next(wait_s=30)
            assert seen.message.text == "a"
        assert await counts(client, queue.name) == (4, 0, 0)
        with pytest.raises(LeaseLost):
            await seen.ack()
        assert [message.text for message in await client.take_many(queue, 10)] == ["a", "b", "c", "d"]


async def test_a_session_that_ends_gives_its_messages_back(
    connect: Connect, any_address: str, unique: Unique
) -> None:
    async with connect(any_address, name=unique("other")) as other:
        queue = await other.create_queue(unique("orders"))
        await other.put(queue, "x")
        client = connect(any_address, name=unique("worker"))
        await client.open()
        consumer = await client.consume(queue).__aenter__()
        assert await consumer.next(wait_s=30) is not None
        waiting = asyncio.ensure_future(other.take(queue, wait_s=30))
        await client.close()
        message = await waiting
        assert (message.text, message.redelivered) == ("x", True)


async def test_a_delivery_is_settled_once(connect: Connect, address: str, unique: Unique) -> None:
    async with connect(address, name=unique("worker")) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put_many(queue, ["a", "b"])
        async with client.consume(queue) as consumer:
            delivery = await consumer.next(wait_s=30)
            await delivery.ack()
            for settle in (delivery.ack, delivery.requeue, delivery.drop):
                with pytest.raises(LeaseNotFound):
                    await settle()
            other = await consumer.next(wait_s=30)
            with pytest.raises(LeaseLost):
                await consumer.settle([other, delivery], Outcome.ACKNOWLEDGE)
            await other.ack()
            await consumer.settle([], Outcome.DROP)


async def test_deliveries_of_two_consumers_are_not_settled_together(address: str, unique: Unique) -> None:
    async with Client.connect(address, name=unique("worker")) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put_many(queue, ["a", "b"])
        async with client.consume(queue, prefetch=1) as first, client.consume(queue, prefetch=1) as second:
            one, other = await first.next(wait_s=30), await second.next(wait_s=30)
            assert one is not None
            assert other is not None
            with pytest.raises(InvalidValue, match="several consumers"):
                await first.settle([one, other], Outcome.ACKNOWLEDGE)


async def test_a_consumer_sees_only_what_it_selects(connect: Connect, address: str, unique: Unique) -> None:
    async with connect(address, name=unique("worker")) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put(queue, "other context", context=1)
        await client.put(queue, "mine", context=2, receiver=client.id)
        async with client.consume(queue, context=2, only_addressed=True, sender=client.id) as consumer:
            assert (await consumer.next(wait_s=30)).message.text == "mine"
            assert await consumer.next(wait_s=0.01) is None


async def test_tasks_may_share_a_consumer(address: str, unique: Unique) -> None:
    texts: list[str] = []

    async with Client.connect(address, name=unique("worker")) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put_many(queue, [f"{number}" for number in range(100)])
        consumer = client.consume(queue, prefetch=5)

        async def work() -> None:
            async for delivery in consumer:
                texts.append(delivery.message.text)
                await delivery.ack()
                if len(texts) == 100:
                    await consumer.close()

        async with consumer, asyncio.TaskGroup() as tasks:
            for _ in range(4):
                tasks.create_task(work())
        assert sorted(texts, key=int) == [f"{number}" for number in range(100)]


# Lost connections


async def test_a_consumer_subscribes_again_and_old_deliveries_cannot_be_settled(
    connect: Connect, any_address: str, unique: Unique
) -> None:
    async with proxy(any_address) as through, connect(through.address, name=unique("w"), backoff=QUICK) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put_many(queue, ["a", "b", "c"])
        async with client.consume(queue.name, prefetch=2) as consumer:
            old = await consumer.next(wait_s=30)
            await consumer.set_prefetch(3)
            through.cut()
            await client.ping()
            with pytest.raises(LeaseLost):
                await old.ack()
            again = [await consumer.next(wait_s=30) for _ in range(3)]
            assert [delivery.message.text for delivery in again] == ["a", "b", "c"]
            assert again[0].message.redelivered
            await consumer.settle(again, Outcome.ACKNOWLEDGE)
        assert await counts(client, queue.name) == (0, 0, 0)


async def test_a_consumer_that_waits_while_the_connection_breaks_goes_on(address: str, unique: Unique) -> None:
    async with proxy(address) as through, Client.connect(through.address, name=unique("w"), backoff=QUICK) as client:
        queue = await client.create_queue(unique("orders"))
        async with client.consume(queue) as consumer, asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(anext(consumer))
            await asyncio.sleep(0)
            through.cut()
            await client.ping()
            await client.put(queue, "x")
        assert waiting.result().message.text == "x"


async def test_the_outcome_of_an_acknowledgement_under_way_is_unknown(address: str, unique: Unique) -> None:
    async with proxy(address) as through, Client.connect(through.address, name=unique("w"), backoff=QUICK) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put(queue, "x")
        async with client.consume(queue) as consumer:
            delivery = await anext(consumer)
            through.swallows_answers = True
            through.requested.clear()
            settling = asyncio.ensure_future(delivery.ack())
            await through.requested.wait()
            through.swallows_answers = False
            through.cut()
            with pytest.raises(ConnectionLost):
                await settling
            with pytest.raises(LeaseLost):
                await delivery.ack()


async def test_a_queue_found_gone_after_a_reconnect_ends_the_iteration(address: str, unique: Unique) -> None:
    async with (
        proxy(address) as through,
        Client.connect(through.address, name=unique("w"), backoff=QUICK) as client,
        Client.connect(address) as other,
    ):
        queue = await client.create_queue(unique("orders"))
        async with client.consume(queue) as consumer:
            await other.delete_queue(queue)
            through.cut()
            with pytest.raises(QueueNotFound):
                await consumer.next(wait_s=30)


# Cancellation


async def test_cancelling_the_wait_for_a_delivery_loses_nothing(address: str, unique: Unique) -> None:
    async with Client.connect(address, name=unique("worker")) as client:
        queue = await client.create_queue(unique("orders"))
        seen = []
        async with client.consume(queue, prefetch=100) as consumer:
            for number in range(50):
                waiting = asyncio.ensure_future(consumer.next())
                await client.put(queue, f"{number}")
                # The delivery is about to come, has come, or has been handed out already.
                waiting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    seen.append(await waiting)
            while len(seen) < 50:
                seen.append(await consumer.next(wait_s=30))
        assert [delivery.message.text for delivery in seen if delivery] == [f"{number}" for number in range(50)]


async def test_a_consumer_cancelled_while_it_subscribes_leaves_nothing_behind(address: str, unique: Unique) -> None:
    async with Client.connect(address, name=unique("worker")) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put_many(queue, ["x"] * 3)
        subscribing = asyncio.ensure_future(client.consume(queue).__aenter__())
        await asyncio.sleep(0)
        subscribing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await subscribing
        # The first ping is behind the Consume, the second behind the Cancel and the requeueing that follow it.
        await client.ping()
        await client.ping()
        assert await counts(client, queue.name) == (3, 0, 0)


async def test_a_consumer_cancelled_while_it_closes_leaves_nothing_behind(address: str, unique: Unique) -> None:
    async with Client.connect(address, name=unique("worker")) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put_many(queue, ["x"] * 3)
        consumer = await client.consume(queue).__aenter__()
        assert await consumer.next() is not None
        closing = asyncio.ensure_future(consumer.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert await counts(client, queue.name) == (3, 0, 0)
        assert await consumer.next() is None


async def test_a_consumer_that_stops_returns_what_nobody_has_seen_and_settles_the_rest(
    connect: Connect, any_address: str, unique: Unique
) -> None:
    async with connect(any_address, name=unique("worker")) as client:
        queue = await client.create_queue(unique("orders"))
        await client.put_many(queue, ["a", "b", "c"])
        async with client.consume(queue, prefetch=3) as consumer:
            first = await consumer.next(wait_s=30)
            await consumer.stop()
            await consumer.stop()
            assert await counts(client, queue.name) == (2, 1, 0)
            assert await consumer.next(wait_s=30) is None
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(consumer.wait_settled())
                tasks.create_task(first.ack())
            await consumer.wait_settled()
            assert await counts(client, queue.name) == (2, 0, 0)
