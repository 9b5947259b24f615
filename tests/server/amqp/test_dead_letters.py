"""Dead letters at the level of the broker: whatever clients write, no exception escapes and no message is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from flyball.engine.queue import WorkingQueue
from flyball.errors import FlyballError, InvalidArgument
from flyball.model import Message, Queue
from flyball.server import broker as broker_module
from flyball.server.amqp import AmqpContext, AmqpSettings
from flyball.server.authority import Authority
from flyball.server.broker import Broker
from flyball.server.pending import outcome
from flyball.server.topology import Topology
from flyball.store.memory import MemoryStore
from flyball.wire.amqp import Properties, write_origin, write_table
from tests.wire.test_amqp_tables import values

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
async def running() -> AsyncIterator[tuple[Broker, Topology, AmqpContext]]:
    """Run a broker with what makes dead letters of messages."""
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        store = MemoryStore()
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
        context = AmqpContext(topology, AmqpSettings(100, 131072, 0, 1 << 20, 1800.0, 1 << 30))
        yield broker, topology, context
        await broker.journal.stop()
        await broker.stop()


async def declare(topology: Topology, name: str, given_arguments: dict[str, Any]) -> WorkingQueue:
    queue = Queue(0, name, durable=True, arguments=given_arguments)
    await outcome(lambda done: topology.declare_queue(queue, None, done))
    found = topology.engine.find_queue(name)
    assert found is not None
    return found


def put(context: AmqpContext, working: WorkingQueue, headers: dict[str, Any]) -> None:
    properties = Properties()
    properties.headers = write_table(headers)
    origin = write_origin("", working.queue.name)
    context.intake.put([working], b"body", properties.encode(), origin, True, 0, None)


async def give_up(broker: Broker, working: WorkingQueue, reason: str) -> None:
    """Give up the next message of a queue."""
    taken: list[Message | None] = []
    broker.take_out(working.queue.id, working.traits.selector, lambda message, error: taken.append(message))
    assert taken[0] is not None
    broker.bury(working, taken[0], reason)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(x_deaths, st.sampled_from(["expired", "rejected", "maxlen"]))
@example([{"queue": "orders", "reason": "expired", "count": MAX_COUNT}], "expired")
@example([{"queue": "orders", "reason": "rejected", "count": True}, "text", 5], "rejected")
def test_any_x_death_is_dead_lettered(written: Any, reason: str) -> None:
    async def main() -> None:
        async with running() as (broker, topology, context):
            dead = await declare(topology, "dead", {})
            target = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
            working = await declare(topology, "orders", target)
            put(context, working, {"x-death": written})
            await give_up(broker, working, reason)
            # A message that was in the queue before, and was not rejected since, would go round for ever.
            is_cycle = reason != "rejected" and not len(dead)
            assert len(dead) == 1 or is_cycle
            assert not working.out
            assert broker.faults.count == 0

    asyncio.run(main())


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(arguments, st.lists(x_deaths, min_size=1, max_size=3), st.sampled_from(["expired", "rejected", "maxlen"]))
@example({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "k" * 256}, [[]], "expired")
@example({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}, [[]], "rejected")
def test_whatever_a_queue_has_been_stored_with_every_message_stays_or_is_dropped(
    stored: dict[str, Any], headers: list[Any], reason: str
) -> None:
    async def main() -> None:
        async with running() as (broker, _, context):
            # Not declared: an earlier version, or another program, may have stored anything.
            queue = broker.engine.create_queue("orders", arguments=stored)
            broker.on_queue_created(queue)
            working = broker.engine.queue(queue.id)
            for written in headers:
                put(context, working, {"x-death": written})
            later_us = broker.now_us() + 200 * 365 * 86400 * 1_000_000
            broker.now_us = lambda: later_us
            broker.expire()
            # Its dead letters may come back into the same queue, as often as they are rejected.
            for _ in range(len(working)):
                await give_up(broker, working, reason)
            assert working.out.keys() == working.parked.keys()
            broker.expire()
            broker.requeue_parked(working)
            broker.expire()
            await outcome(lambda done: broker.drop_parked(working, None, done))
            assert not working.parked

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
            working = await declare(topology, "orders", {})
            broker.on_dead = _fail
            for _ in range(3):
                put(context, working, {})
                await give_up(broker, working, "rejected")
            assert [(parked.reason, parked.problem) for parked in working.parked.values()] == [
                ("rejected", "no such thing")
            ] * 3
            assert (len(working), working.unacked, working.dropped) == (0, 0, 0)

    asyncio.run(main())


def _fail(working: WorkingQueue, message: Message, reason: str) -> Any:
    raise InvalidArgument("no such thing")


def test_a_refused_message_whose_dead_letter_fails_is_refused_all_the_same() -> None:
    async def main() -> None:
        async with running() as (broker, topology, context):
            full = {"x-max-length": 0, "x-overflow": "reject-publish-dlx"}
            working = await declare(topology, "orders", full)
            broker.on_dead = _fail
            refused = context.intake.put([working], b"body", b"\0\0", write_origin("", "orders"), True, 0, None)
            assert refused == [working]
            assert not working.out

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
            assert not any(working.parked or working.out for working in broker.engine.queues)

    asyncio.run(main())


def test_others_have_their_turn_while_many_messages_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "BURIALS_S", 0.0)

    async def main() -> None:
        async with running() as (broker, topology, context):
            now_us = broker.now_us()
            broker.now_us = lambda: now_us
            dead = await declare(topology, "dead", {})
            working = await declare(topology, "orders", towards("dead", {"x-message-ttl": 1000}))
            for _ in range(50):
                put(context, working, {})
            now_us += 2_000_000
            broker.expire()
            assert len(working) == 0
            turns = 0
            while len(dead) < 50:
                assert len(dead) <= turns + 1
                await asyncio.sleep(0)
                turns += 1
            assert not working.out

    asyncio.run(main())
