"""Dead letters at the level of the broker: whatever clients write, no exception escapes and no message is lost."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from flyball.broker.core import dead_lettering
from flyball.broker.core.authority import Authority
from flyball.broker.core.broker import Broker
from flyball.broker.core.pending import outcome
from flyball.broker.core.queues import Queues
from flyball.broker.core.topology import Topology
from flyball.broker.engine.queue import QueueState
from flyball.broker.protocols.amqp import AmqpContext, AmqpSettings, amqp_context
from flyball.broker.store.interface import Batch
from flyball.broker.store.memory import MemoryStore
from flyball.broker.wire.amqp import Properties, write_origin, write_table
from flyball.errors import FlyballError, InvalidArgument
from flyball.model import Binding, Message, Queue
from tests.broker.wire.test_amqp_tables import values

MAX_COUNT = 2**63 - 1

texts = st.text(st.characters(codec="utf-8"), max_size=10)
reasons = st.sampled_from(["expired", "rejected", "maxlen", "delivery_limit"]) | texts
entries = st.fixed_dictionaries(
    {},
    optional={
        "queue": st.sampled_from(["orders", "dead"]) | values,
        "reason": reasons | values,
        "count": st.sampled_from([MAX_COUNT, -(2**63), 0, 1]) | values,
        "time": values,
    },
)
x_deaths = st.lists(entries | values, max_size=8) | values
names = st.sampled_from(["", "dead", "k" * 255, "k" * 256, "ä" * 128]) | texts | values
arguments = st.fixed_dictionaries(
    {},
    optional={
        "x-dead-letter-exchange": names,
        "x-dead-letter-routing-key": names,
        "x-message-ttl": st.sampled_from([0, 1, 2**62, -1, 10**30]) | values,
        "x-max-length": st.sampled_from([0, 1, MAX_COUNT]) | values,
        "x-expires": st.sampled_from([0, 10**18]) | values,
        "x-overflow": st.sampled_from(["drop-head", "reject-publish", "reject-publish-dlx"]) | values,
        "x-queue-type": st.sampled_from(["classic", "quorum"]) | values,
        "x-delivery-limit": st.sampled_from([0, 2]) | values,
        "x-max-priority": values,
    },
)


@contextlib.asynccontextmanager
async def running(store: MemoryStore | None = None) -> AsyncIterator[tuple[Broker, Topology, AmqpContext]]:
    """Run a broker with what makes dead letters of messages."""
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        store = MemoryStore() if store is None else store
        snapshot = await store.open()
        broker = Broker(
            store,
            snapshot,
            time_limit_s=5.0,
            resident_limit_bytes=1 << 30,
            max_message_bytes=1 << 20,
            tasks=tasks,
        )
        await broker.start()
        tasks.create_task(broker.journal.run())
        # What has not begun cannot be stopped.
        await asyncio.sleep(0)
        # Not started: that makes a user, whose password takes longer than everything else here.
        authority = Authority(broker.journal, snapshot.definitions, loopback_users=())
        topology = Topology(broker, authority, snapshot.definitions)
        context = amqp_context(Queues(topology), AmqpSettings(100, 131072, 0, 1 << 20, 1800.0, 1 << 30))
        yield broker, topology, context
        await broker.journal.stop()
        await broker.stop()


async def declare(topology: Topology, name: str, given_arguments: dict[str, Any]) -> QueueState:
    queue = Queue(0, name, durable=True, arguments=given_arguments)
    await outcome(lambda done: topology.declare_queue(queue, None, done))
    found = topology.engine.find_queue(name)
    assert found is not None
    return found


def put(
    context: AmqpContext,
    state: QueueState,
    headers: dict[str, Any],
    body: bytes = b"body",
    mode: int | None = None,
) -> None:
    """Put a persistent message, whose dead letters are persistent only if `mode` says so, as with AMQP's clients."""
    properties = Properties()
    properties.headers = write_table(headers)
    properties.delivery_mode = mode
    origin = write_origin("", state.queue.name)
    context.intake.put([state], body, properties.encode(), origin, True, 0, None)


async def give_up(broker: Broker, state: QueueState, reason: str) -> None:
    """Give up the next message of a queue."""
    taken: list[Message | None] = []
    broker.take_out(state.queue.id, state.traits.selector, lambda message, error: taken.append(message))
    assert taken[0] is not None
    broker.dead_lettering.dead_letter(state, taken[0], reason)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(x_deaths, st.sampled_from(["expired", "rejected", "maxlen"]))
@example([{"queue": "orders", "reason": "expired", "count": MAX_COUNT}], "expired")
@example([{"queue": "orders", "reason": "rejected", "count": True}, "text", 5], "rejected")
def test_any_x_death_is_dead_lettered(written: Any, reason: str) -> None:
    async def main() -> None:
        async with running() as (broker, topology, context):
            dead = await declare(topology, "dead", {})
            target = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
            state = await declare(topology, "orders", target)
            put(context, state, {"x-death": written})
            await give_up(broker, state, reason)
            # A message that was in the queue before, and was not rejected since, would go round forever.
            is_cycle = reason != "rejected" and not len(dead)
            assert len(dead) == 1 or is_cycle
            assert not state.unacked
            assert broker.faults.count == 0

    asyncio.run(main())


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(arguments, st.lists(x_deaths, min_size=1, max_size=3), st.sampled_from(["expired", "rejected", "maxlen"]))
@example({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "k" * 256}, [[]], "expired")
@example({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}, [[]], "rejected")
def test_stored_arguments_of_any_kind_keep_or_drop_every_message(
    stored: dict[str, Any], headers: list[Any], reason: str
) -> None:
    async def main() -> None:
        async with running() as (broker, topology, context):
            # Not declared: an earlier version, or another program, may have stored anything.
            queue = broker.engine.create_queue("orders", arguments=stored)
            state = broker.engine.queue(queue.id)
            topology.queue_adopted(state)
            for written in headers:
                put(context, state, {"x-death": written})
            later_us = broker.now_us() + 200 * 365 * 86400 * 1_000_000
            broker.now_us = lambda: later_us
            broker.retention.expire()
            # Its dead letters may come back into the same queue, as often as they are rejected.
            for _ in range(len(state)):
                await give_up(broker, state, reason)
            assert state.unacked.keys() == state.parked.keys()
            broker.retention.expire()
            broker.dead_lettering.requeue_parked(state)
            broker.retention.expire()
            await outcome(lambda done: broker.dead_lettering.drop_parked(state, None, done))
            assert not state.parked

    asyncio.run(main())


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(arguments, arguments)
def test_a_declaration_with_any_arguments_is_taken_or_refused(first: dict[str, Any], second: dict[str, Any]) -> None:
    async def main() -> None:
        async with running() as (_, topology, _):
            for given_arguments in (first, second):
                with contextlib.suppress(FlyballError):
                    await declare(topology, "orders", given_arguments)

    asyncio.run(main())


def test_a_dead_letter_that_fails_is_parked_with_its_problem() -> None:
    async def main() -> None:
        async with running() as (broker, topology, context):
            state = await declare(topology, "orders", {})
            broker.dead_lettering.publisher = Failing()
            for _ in range(3):
                put(context, state, {})
                await give_up(broker, state, "rejected")
            assert [(parked.reason, parked.problem) for parked in state.parked.values()] == [
                ("rejected", "no such thing")
            ] * 3
            assert (len(state), state.unacked_count, state.dropped) == (0, 0, 0)

    asyncio.run(main())


class Failing:
    """A publisher that fails."""

    def publish(self, state: QueueState, message: Message, reason: str) -> dead_lettering.DeadLetterResult:
        raise InvalidArgument("no such thing")


def test_a_refused_message_whose_dead_letter_fails_is_refused_all_the_same() -> None:
    async def main() -> None:
        async with running() as (broker, topology, context):
            full = {"x-max-length": 0, "x-overflow": "reject-publish-dlx"}
            state = await declare(topology, "orders", full)
            broker.dead_lettering.publisher = Failing()
            refused = context.intake.put([state], b"body", b"\0\0", write_origin("", "orders"), True, 0, None)
            assert refused == [state]
            assert not state.unacked

    asyncio.run(main())


def towards(name: str, more: dict[str, Any]) -> dict[str, Any]:
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name, **more}


@pytest.mark.parametrize(
    "limits",
    [{"x-message-ttl": 0}, {"x-max-length": 0}, {"x-max-length": 0, "x-overflow": "reject-publish-dlx"}],
    ids=["ttl", "drop-head", "reject-publish-dlx"],
)
def test_dead_letters_pass_through_a_chain_of_any_length(limits: dict[str, Any]) -> None:
    async def main() -> None:
        async with running() as (broker, topology, context):
            last = await declare(topology, "300", {})
            for number in range(300):
                first = await declare(topology, str(299 - number), towards(str(300 - number), limits))
            put(context, first, {})
            while not len(last):  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert broker.faults.count == 0
            assert not any(state.parked or state.unacked for state in broker.engine.queues)

    asyncio.run(main())


def test_others_have_their_turn_while_many_messages_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_lettering, "TURN_S", 0.0)

    async def main() -> None:
        async with running() as (broker, topology, context):
            now_us = broker.now_us()
            broker.now_us = lambda: now_us
            dead = await declare(topology, "dead", {})
            state = await declare(topology, "orders", towards("dead", {"x-message-ttl": 1000}))
            for _ in range(50):
                put(context, state, {})
            now_us += 2_000_000
            broker.retention.expire()
            assert len(state) == 0
            turns = 0
            while len(dead) < 50:
                assert len(dead) <= turns + 1
                await asyncio.sleep(0)
                turns += 1
            assert not state.unacked

    asyncio.run(main())


def stop_clock(broker: Broker) -> Callable[[int], None]:
    """Stop the clock of messages; return what moves it, by microseconds."""
    now_us = broker.now_us()

    def move(by_us: int) -> None:
        nonlocal now_us
        now_us += by_us

    broker.now_us = lambda: now_us
    return move


async def turns(count: int = 1) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_refused_dead_letters_are_in_the_batch_that_removes_their_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_lettering, "TURN_S", 0.0)
    count = 100

    async def main() -> None:
        async with running() as (broker, topology, context):
            move = stop_clock(broker)
            dead = await declare(topology, "dead", {})
            full = await declare(
                topology, "full", towards("dead", {"x-max-length": 0, "x-overflow": "reject-publish-dlx"})
            )
            orders = await declare(topology, "orders", towards("full", {"x-message-ttl": 1000}))
            for _ in range(count):
                put(context, orders, {}, mode=2)
            await broker.journal.flush()
            move(2_000_000)
            broker.retention.expire()
            while len(dead) < count or broker.journal.pending_count:
                stored = [len(await broker.store.page(each.queue.id, 0, 1000)) for each in (orders, full, dead)]
                assert sum(stored) == count
                await turns()

    asyncio.run(main())


def test_reject_in_a_transaction_does_not_wait_for_messages_that_expired_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dead_lettering, "TURN_S", 0.0)

    async def main() -> None:
        async with running() as (broker, topology, context):
            move = stop_clock(broker)
            dead = await declare(topology, "dead", {})
            orders = await declare(topology, "orders", towards("dead", {"x-message-ttl": 1000}))
            for _ in range(10):
                put(context, orders, {})
            taken: list[Message | None] = []
            broker.take_out(orders.queue.id, orders.traits.selector, lambda message, error: taken.append(message))
            await broker.journal.flush()
            move(2_000_000)
            broker.retention.expire()
            rejected = taken[0]
            assert rejected is not None
            with broker.journal.together() as group:
                broker.dead_lettering.dead_letter(orders, rejected, "rejected")
            assert group.removed_ids == {rejected.id}
            while len(dead) < 10:
                await turns()

    asyncio.run(main())


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish-dlx"])
def test_full_queues_that_dead_letter_to_each_other_hold_little(overflow: str) -> None:
    count = 30

    async def main() -> None:
        async with running() as (broker, topology, context):
            arguments = {"x-max-length": 0, "x-overflow": overflow, "x-dead-letter-exchange": "amq.fanout"}
            for number in range(count):
                first = await declare(topology, str(number), arguments)
                binding = Binding("amq.fanout", str(number))
                await outcome(partial(topology.bind, binding))
            put(context, first, {})
            for _ in range(50):
                await turns()
                assert len(broker.dead_lettering._pending) <= count * count
            assert broker.engine.resident_bytes < 4 * count * count * 1000

    asyncio.run(main())


def test_message_whose_dead_letters_are_refused_too_often_is_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_lettering, "MAX_REFUSED", 10)

    async def main() -> None:
        async with running() as (broker, topology, context):
            full = {"x-max-length": 0, "x-overflow": "reject-publish-dlx"}
            for number in range(20):
                await declare(topology, str(19 - number), towards(str(20 - number), full))
            orders = await declare(topology, "orders", towards("0", {}))
            put(context, orders, {})
            await give_up(broker, orders, "rejected")
            assert [parked.problem for parked in orders.parked.values()] == [
                "full queues refused more than 10 dead letters of this message"
            ]

    asyncio.run(main())


class HangingStore(MemoryStore):
    """A store that commits while it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_commit = asyncio.Event()
        self.may_commit.set()

    async def commit(self, batch: Batch, *, again: bool = False) -> None:
        await self.may_commit.wait()
        await super().commit(batch, again=again)


def test_messages_without_dead_letters_expire_while_the_store_hangs() -> None:
    async def main() -> None:
        store = HangingStore()
        async with running(store) as (broker, topology, context):
            move = stop_clock(broker)
            dead = await declare(topology, "dead", {})
            slow = await declare(topology, "slow", towards("dead", {"x-message-ttl": 1000}))
            orders = await declare(topology, "orders", {"x-message-ttl": 1000})
            large = await declare(topology, "large", {})
            store.may_commit.clear()
            for _ in range(12):
                put(context, large, {}, bytes(1_000_000))
            assert broker.is_congested
            for state in (slow, orders):
                for _ in range(10):
                    put(context, state, {})
            move(2_000_000)
            broker.retention.expire()
            await turns(10)
            assert (len(orders), orders.unacked) == (0, {})
            store.may_commit.set()
            while len(dead) < 10:
                await turns()

    asyncio.run(main())


def test_pending_dead_letters_continue_after_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dead_lettering, "TURN_S", 0.0)

    async def main() -> None:
        async with running() as (broker, topology, context):
            move = stop_clock(broker)
            dead = await declare(topology, "dead", {})
            orders = await declare(topology, "orders", towards("dead", {"x-message-ttl": 1000}))
            for _ in range(10):
                put(context, orders, {}, mode=2)
            await broker.journal.flush()
            move(2_000_000)
            broker.retention.expire()
            broker.quiesce()
            moved = len(dead)
            await turns(20)
            assert len(dead) == moved < 10
            await broker.journal.flush()
            stored = [len(await broker.store.page(each.queue.id, 0, 100)) for each in (orders, dead)]
            assert sum(stored) == 10

    asyncio.run(main())


def test_message_of_a_recreated_queue_is_not_taken_for_a_dying_one() -> None:
    async def main() -> None:
        async with running() as (broker, topology, context):
            dead = await declare(topology, "dead", {})
            orders = await declare(topology, "orders", towards("dead", {}))
            put(context, orders, {})
            taken: list[Message | None] = []
            broker.take_out(orders.queue.id, orders.traits.selector, lambda message, error: taken.append(message))
            message = taken[0]
            assert message is not None
            broker.dead_lettering.dead_letter_later(orders, message, "expired")
            # The queue is served by this node again, and one of its consumers has the message.
            orders.unacked[message.id] = replace(message)
            broker.dead_lettering.go_on()
            assert (len(dead), len(orders.unacked)) == (0, 1)

    asyncio.run(main())


def test_many_rejected_messages_are_dead_lettered_in_turns_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_lettering, "TURN_S", 0.0)
    count = dead_lettering.MAX_DEAD_LETTERS_AT_ONCE + 1

    async def main() -> None:
        async with running() as (broker, topology, context):
            dead = await declare(topology, "dead", {})
            orders = await declare(topology, "orders", towards("dead", {}))
            for number in range(count + 1):
                put(context, orders, {}, str(number).encode())
            taken = list(orders.oldest(0, count + 1))
            for _ in taken:
                broker.engine.take(orders.queue.id, orders.traits.selector, broker.now_us())
            broker.dead_lettering.dead_letter_all(taken[:count], "rejected")
            assert len(dead) == 1
            broker.dead_lettering.dead_letter(orders, taken[count], "rejected")
            while len(dead) <= count:
                await turns()
            assert [message.body for message in dead.oldest(0, count + 1)] == [
                str(number).encode() for number in range(count + 1)
            ]

    asyncio.run(main())


class Slow:
    """A publisher that takes longer than the dead letters of a turn may."""

    def publish(self, state: QueueState, message: Message, reason: str) -> dead_lettering.DeadLetterResult:
        ends_s = time.monotonic() + 0.06
        while time.monotonic() < ends_s:
            pass
        return dead_lettering.DeadLetterResult.NO_SUCCESSOR


def test_dead_letters_leave_half_of_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_lettering, "TURN_S", 0.05)

    async def main() -> None:
        async with running() as (broker, topology, context):
            now_us = broker.now_us()
            broker.now_us = lambda: now_us
            await declare(topology, "dead", {})
            state = await declare(topology, "orders", towards("dead", {"x-message-ttl": 1000}))
            for _ in range(3):
                put(context, state, {})
            broker.dead_lettering.publisher = Slow()
            now_us += 2_000_000
            broker.retention.expire()
            timer = broker.dead_lettering._timer
            assert timer is not None
            assert timer.when() - asyncio.get_running_loop().time() > 0.025

    asyncio.run(main())


def test_bodies_of_parked_messages_leave_memory_when_they_are_stored() -> None:
    async def main() -> None:
        async with running() as (broker, topology, context):
            broker.dead_lettering.publisher = Failing()
            state = await declare(topology, "orders", towards("dead", {}))
            put(context, state, {}, body=b"x" * 10_000)
            await give_up(broker, state, "rejected")
            (message,) = state.unacked.values()
            assert list(state.parked) == [message.id]
            message.stored = True
            before = broker.engine.resident_bytes
            broker.dead_lettering.page_out_parked()
            assert message.is_paged
            assert broker.engine.resident_bytes <= before - 10_000
            broker.dead_lettering.page_out_parked()
            assert broker.dead_lettering._parked_whole == {}

    asyncio.run(main())
