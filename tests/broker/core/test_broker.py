"""The broker on a store that other nodes use as well."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Container, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest

from flyball.broker.core.broker import ID_BLOCK, Broker
from flyball.broker.engine.backlog import INDEX_AT_ONCE
from flyball.broker.engine.consumer import Consumer
from flyball.broker.engine.queue import QueueState
from flyball.broker.store.changes import QueueCreated
from flyball.broker.store.interface import Arrived, Batch, IndexColumns, IndexPiece, Transfer
from flyball.broker.store.memory import MemoryDomain, MemoryStore
from flyball.broker.store.registry import NodeState
from flyball.errors import FlyballError, LeaseNotFound, StoreError, StoreUnavailable
from flyball.model import Draft, Message, Queue, Selector
from tests.broker.core.lifecycles import create_queue, lifecycle_of
from tests.broker.peering.link.domains import run

# Ids of the previous owner of the queue: larger than the next ones of this node.
OLD_IDS = range(5 * ID_BLOCK, 5 * ID_BLOCK + 3)


class SlowlyPurged(MemoryStore):
    """A store that waits before it deletes what was purged."""

    def __init__(self, domain: MemoryDomain) -> None:
        super().__init__(domain=domain)
        self.may_delete = asyncio.Event()

    async def delete_queue_messages(self, queue_id: int, up_to_id: int, keep: Container[int]) -> int:
        await self.may_delete.wait()
        return await super().delete_queue_messages(queue_id, up_to_id, keep)


class SlowlyIndexed(MemoryStore):
    """A store that waits before it lists what an index is made of."""

    def __init__(self, domain: MemoryDomain) -> None:
        super().__init__(domain=domain)
        self.is_asked = asyncio.Event()
        self.may_list = asyncio.Event()

    async def index(self, queue_id: int, columns: IndexColumns, up_to_id: int) -> AsyncIterator[IndexPiece]:
        self.is_asked.set()
        await self.may_list.wait()
        async for piece in super().index(queue_id, columns, up_to_id):
            yield piece


class PatientStore(MemoryStore):
    """A store that lets others have their turn, as one behind a socket does."""

    async def arrivals(self, queue_ids: Sequence[int]) -> list[Arrived]:
        found = await super().arrivals(queue_ids)
        await asyncio.sleep(0)
        return found

    async def received(self, taken: Sequence[Arrived]) -> None:
        await asyncio.sleep(0)
        await super().received(taken)


def in_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test in a loop of its own, for a limited time."""

    def call() -> None:
        run(test())

    call.__name__ = test.__name__
    return call


@contextlib.asynccontextmanager
async def running(store: MemoryStore) -> AsyncIterator[Broker]:
    """Run a broker that recovers what is in the store."""
    async with asyncio.TaskGroup() as tasks:
        broker = Broker(
            store,
            await store.open(),
            time_limit_s=5.0,
            resident_limit_bytes=1 << 30,
            max_message_bytes=1 << 20,
            tasks=tasks,
        )
        await broker.start()
        tasks.create_task(broker.journal.run())
        # What has not begun cannot be stopped.
        await asyncio.sleep(0)
        yield broker
        await broker.journal.stop()
        await broker.stop()


async def put(broker: Broker, queue_id: int, body: bytes) -> int:
    """Put a message and return its id when it is durable."""
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def stored(messages: Sequence[Message], error: FlyballError | None) -> None:
        assert error is None
        done.set_result(messages[0].id)

    broker.put(Draft(body), [queue_id], stored)
    return await done


@in_a_loop
async def test_purge_spares_later_messages_with_smaller_ids() -> None:
    store = SlowlyPurged(MemoryDomain())
    await store.open()
    await store.commit(Batch([QueueCreated(Queue(1, "orders"))], [Message(number, 1, b"old") for number in OLD_IDS]))
    async with running(store) as broker:
        purged: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        broker.purge(1, lambda count, error: purged.set_result(count))
        new_id = await put(broker, 1, b"new")
        assert new_id < OLD_IDS[0]
        store.may_delete.set()
        assert await purged == len(OLD_IDS)
        assert [message.body for message in await store.page(1, 0, 10)] == [b"new"]


@in_a_loop
async def test_an_index_is_filled_in_rounds_while_the_queue_is_in_use() -> None:
    async with running(MemoryStore()) as broker:
        queue_id = broker.engine.create_queue("orders").id
        count = 10 * INDEX_AT_ONCE
        for number in range(count):
            broker.engine.put(Draft(b"x", context=number), [queue_id], 0)
        taken: list[Message] = []
        broker.take(queue_id, Selector(context=count - 7), lambda message, error: taken.append(none_missing(message)))
        assert not taken
        rounds = 0
        while not taken:
            # Whatever comes and goes meanwhile: here is what the next round would look at.
            message = broker.engine.take(queue_id, Selector(), 0)
            if isinstance(message, Message) and rounds < 3:
                broker.engine.requeue([message], 0)
            rounds += 1
            await asyncio.sleep(0)
        assert rounds >= 10
        assert taken[0].context == count - 7


@in_a_loop
async def test_message_delivered_while_an_index_is_filled_is_not_delivered_again() -> None:
    store = SlowlyIndexed(domain=MemoryDomain())
    await store.open()
    # What was there before is not in memory; with larger ids, it may have come from another node.
    old = [Message(number, 1, b"old") for number in OLD_IDS]
    await store.commit(Batch([QueueCreated(Queue(1, "orders"))], old))
    async with running(store) as broker:
        keeper, begun = Keeper(), list[Consumer]()
        broker.consume(1, Selector(context=8), 10, keeper, begun.append)
        taken: asyncio.Queue[Message | None] = asyncio.Queue()
        store.may_list.set()
        broker.take(1, Selector(context=9), lambda message, error: taken.put_nowait(message))
        assert await taken.get() is None
        store.may_list.clear()
        store.is_asked.clear()
        broker.take(1, Selector(sender=7), lambda message, error: taken.put_nowait(message))
        await store.is_asked.wait()
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        broker.put(Draft(b"new", sender=7, context=8), [1], lambda messages, error: stored.set_result(None))
        assert len(keeper.kept) == 1
        await stored
        store.may_list.set()
        assert await taken.get() is None
        assert len(broker.engine.queue(1)) == len(OLD_IDS)


def none_missing(message: Message | None) -> Message:
    assert message is not None
    return message


@in_a_loop
async def test_ids_that_a_node_gives_back_were_granted_to_nobody_else() -> None:
    domain = MemoryDomain()
    store, other = MemoryStore(domain=domain, node="one"), MemoryStore(domain=domain, node="two")
    async with running(store) as broker:
        await store.registry.renew(
            600.0, addresses={}, report={}, known_generation=9, seen_version=0, state=NodeState.UP
        )
        await other.open()
        theirs = await other.reserve_message_ids(ID_BLOCK)
        queue_id = broker.engine.create_queue("orders").id
        while broker.engine.message_ids_left > ID_BLOCK // 2:
            broker.engine.use_message_id()
        while broker.engine.message_ids_left < ID_BLOCK:
            await put(broker, queue_id, b"more ids are asked for")
    assert await store.reserve_message_ids(1) >= theirs + ID_BLOCK


@contextlib.asynccontextmanager
async def one_arriving(kind: type[MemoryStore]) -> AsyncIterator[tuple[Broker, QueueState]]:
    """A broker with a member of a clustered queue, to which another node has just given message 7."""
    domain = MemoryDomain()
    giver, store = MemoryStore(domain=domain, node="one"), kind(domain=domain, node="two")
    await giver.open()
    await giver.commit(Batch([QueueCreated(Queue(1, "orders", member=True))], [Message(7, 1, b"body")]))
    await giver.registry.renew(600.0, addresses={}, report={}, known_generation=9, seen_version=0)
    async with running(store) as broker:
        await store.commit(Batch([QueueCreated(Queue(2, "orders", member=True))]))
        [state] = await lifecycle_of(broker).adopt([2])
        await giver.commit(Batch(transfers=[Transfer([7], 1, 2)]))
        yield broker, state


@in_a_loop
async def test_what_has_arrived_is_taken_in_once_though_two_look_at_the_same_time() -> None:
    async with one_arriving(PatientStore) as (broker, state):
        await asyncio.gather(broker.take_arrivals(), broker.take_arrivals())
        assert [(message.id, message.stored) for message in state.oldest(0, 10)] == [(7, True)]


class LosesAnswers(MemoryStore):
    """A store that loses its first response to the confirmation of arrivals."""

    has_lost = False

    async def received(self, taken: Sequence[Arrived]) -> None:
        await super().received(taken)
        if not self.has_lost:
            self.has_lost = True
            raise StoreUnavailable("the connection was lost")


@in_a_loop
async def test_what_has_arrived_is_known_to_be_stored_though_the_answer_was_lost() -> None:
    async with one_arriving(LosesAnswers) as (broker, state):
        with pytest.raises(StoreUnavailable):
            await broker.take_arrivals()
        assert not state.oldest(0, 10)[0].stored
        await broker.take_arrivals()
        assert [(message.id, message.stored) for message in state.oldest(0, 10)] == [(7, True)]
        assert not broker._arrived


class Keeper:
    """A consumer's owner that keeps what it is sent."""

    def __init__(self) -> None:
        self.kept: list[int] = []

    def deliver(self, consumer: Consumer, message: Message) -> None:
        self.kept.append(message.id)

    def queue_deleted(self, consumer: Consumer) -> None:
        """Do nothing."""

    def queue_moved(self, consumer: Consumer) -> None:
        """Do nothing."""

    def crash(self, error: BaseException) -> None:
        raise AssertionError("nothing here fails") from error


@in_a_loop
async def test_cancelled_consumer_cannot_ack_messages_of_a_moved_queue() -> None:
    store = MemoryStore()
    async with running(store) as broker:
        queue_id = create_queue(broker, "orders")
        message_id = await put(broker, queue_id, b"body")
        keeper, begun = Keeper(), list[Consumer]()
        broker.consume(queue_id, Selector(), 10, keeper, begun.append)
        broker.cancel(begun[0])
        lifecycle_of(broker).release(queue_id, 77, lambda error: None)
        answers: list[FlyballError | None] = []
        broker.acknowledge(begun[0], keeper.kept, answers.append)
        assert [type(answer) for answer in answers] == [LeaseNotFound]
        await broker.journal.flush()
        assert [message.id for message in await store.page(queue_id, 0, 10)] == [message_id]


@in_a_loop
async def test_message_that_comes_back_before_it_has_gone_is_a_new_one() -> None:
    async with one_arriving(MemoryStore) as (broker, state):
        await broker.take_arrivals()
        taken: list[Message | None] = []
        broker.take_out(2, Selector(), lambda message, error: taken.append(message))
        former = taken[0]
        assert former is not None
        # Handed over to another node, which has returned it.
        again = replace(former)
        broker._take_in(Arrived(1, 2, [again]))
        before_bytes = broker.engine.resident_bytes
        broker.take_out(2, Selector(), lambda message, error: taken.append(message))
        assert taken[1] is again
        # Now the first hand-over completes, or fails.
        assert not broker.engine.settle(former)
        assert broker.engine.requeue_undelivered(former, broker.now_us()) is None
        assert state.unacked == {again.id: again}
        assert broker.engine.resident_bytes == before_bytes == again.footprint_bytes


class GatedStore(MemoryStore):
    """A store that commits when it may, and notes the bodies that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.may_commit = asyncio.Event()
        self.bodies: list[bytes] = []

    async def commit(self, batch: Batch, *, again: bool = False) -> None:
        await self.may_commit.wait()
        self.bodies += [message.body for message in batch.appended]
        await super().commit(batch, again=again)


@in_a_loop
async def test_unacked_messages_of_a_deleted_queue_lose_their_bodies() -> None:
    store = GatedStore()
    async with running(store) as broker:
        queue_id = create_queue(broker, "orders")
        taken: list[Message] = []
        for is_persistent in (True, False):
            draft = Draft(b"x" * 1000, properties=b"p" * 1000, persistent=is_persistent)
            broker.put(draft, [queue_id], lambda messages, error: None)
            found = broker.engine.take(queue_id, Selector(), 0)
            assert isinstance(found, Message)
            taken.append(found)
        deleted = asyncio.Event()
        lifecycle_of(broker).delete(queue_id, lambda error: deleted.set())
        assert broker.engine.resident_bytes == 0
        # Were the node to end now, the message would be read back: it is written whole.
        store.may_commit.set()
        await deleted.wait()
        assert store.bodies == [b"x" * 1000]
        assert [(message.body, message.properties) for message in taken] == [(b"", b"")] * 2


@in_a_loop
async def test_message_being_taken_is_complete_though_its_queue_is_deleted() -> None:
    store = GatedStore()
    store.may_commit.set()
    async with running(store) as broker:
        queue_id = create_queue(broker, "orders")
        await put(broker, queue_id, b"body")
        store.may_commit.clear()
        answers: list[bytes | None] = []
        broker.take(
            queue_id, Selector(), lambda message, error: answers.append(None if message is None else message.body)
        )
        deleted = asyncio.Event()
        lifecycle_of(broker).delete(queue_id, lambda error: deleted.set())
        store.may_commit.set()
        await deleted.wait()
        assert answers == [b"body"]


@in_a_loop
async def test_a_timer_that_outlives_the_tasks_of_its_node_begins_nothing() -> None:
    async with running(MemoryStore()) as broker:
        queue_id = broker.engine.create_queue("orders").id
    # As when the queue of a node that was fenced expires, in a process where it has joined again.
    lifecycle_of(broker).delete(queue_id, lambda error: None)
    assert not broker.engine.has_queue(queue_id)


class Original:
    """Stands for a queue of another node; the first message that it is to drop meets a defect."""

    def __init__(self) -> None:
        self.dropped: list[bytes] = []

    def dead_letter(self, message: Message) -> None:
        self.dropped.append(message.body)
        if len(self.dropped) == 1:
            raise ZeroDivisionError("a defect")


@in_a_loop
async def test_messages_expire_though_another_one_meets_a_defect() -> None:
    async with running(MemoryStore()) as broker:
        original = Original()
        shadow = broker.engine.create_proxy_queue("orders", "/", original)  # type: ignore[arg-type]
        for number, body in enumerate((b"1", b"2", b"3"), 1):
            message = Message(number, shadow.queue.id, body, persistent=False)
            message.expires_us = 1
            broker.accept(shadow, message)
        broker.retention.expire()
        assert sorted(original.dropped) == [b"1", b"2", b"3"]
        assert broker.faults.by_place == {"expiry": 1}


@in_a_loop
async def test_messages_whose_dead_letters_the_store_refuses_are_parked() -> None:
    async with running(MemoryStore()) as broker:
        state = broker.engine.queue(create_queue(broker, "orders"))
        waiting: deque[tuple[Message, str]] = deque()
        for body in (b"1", b"2"):
            await put(broker, state.queue.id, body)
            broker.take_out(
                state.queue.id,
                Selector(),
                lambda message, error: None if message is None else waiting.append((message, "rejected")),
            )

        async def refuse(count: int) -> None:
            raise StoreError("relation does not exist")

        broker.obtain_ids = refuse  # type: ignore[method-assign]
        broker.dead_lettering._loading[state.queue.id] = waiting
        await broker.dead_lettering._dead_letter_in_order(state, waiting)
        assert [parked.problem for parked in state.parked.values()] == ["relation does not exist"] * 2
        assert len(state.unacked) == 2
