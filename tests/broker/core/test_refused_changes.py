"""A change refused by PostgreSQL fails for its requester, is undone in memory, and affects no other client."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from flyball.broker.core.authority import Authority
from flyball.broker.core.broker import Broker
from flyball.broker.core.definitions import Definitions
from flyball.broker.core.topology import Topology
from flyball.broker.store.postgres import changes
from flyball.broker.store.postgres.embedded import EmbeddedPostgres
from flyball.broker.store.postgres.store import PostgresStore
from flyball.errors import FlyballError, InvalidArgument, RequestError, StoreError
from flyball.model import (
    Binding,
    ClientMode,
    Definition,
    Draft,
    Exchange,
    Policy,
    Queue,
    Timestamp,
)
from tests.broker.peering.link.domains import run

_schemas = itertools.count(1)

UNSTORABLE = object()


@dataclass(eq=False)
class Bench:
    broker: Broker
    authority: Authority
    topology: Topology
    definitions: Definitions
    told: dict[str, FlyballError | None] = field(default_factory=dict)

    def done(self, what: str) -> Callable[[FlyballError | None], None]:
        def note(error: FlyballError | None) -> None:
            assert what not in self.told, "answered twice"
            self.told[what] = error

        return note

    @property
    def memory(self) -> dict[str, object]:
        """The definitions that survive a restart, as the node has them."""
        engine = self.broker.engine
        router = self.topology.router("/")
        return {
            "queues": {state.queue.name: len(state) for state in engine.queues},
            "clients": {client.name for client in engine.clients},
            "exchanges": {exchange.name for exchange in router.exchanges},
            "bindings": {(binding.source, binding.destination, binding.routing_key) for binding in router.bindings()},
            "policies": {policy.name for policy in self.authority.policies.all()},
            "topics": dict(self.definitions.of("topic")),
        }


@contextlib.asynccontextmanager
async def _closing(store: PostgresStore) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def running(dsn: str, schema: str) -> AsyncIterator[Bench]:
    store = PostgresStore(dsn, schema=schema)
    async with _closing(store), asyncio.TaskGroup() as tasks:
        snapshot = await store.open()
        broker = Broker(
            store, snapshot, time_limit_s=20.0, resident_limit_bytes=1 << 30, max_message_bytes=1 << 20, tasks=tasks
        )
        await broker.start()
        tasks.create_task(broker.journal.run())
        await asyncio.sleep(0)
        authority = Authority(broker.journal, snapshot.definitions)
        topology = Topology(broker, authority, snapshot.definitions)
        yield Bench(broker, authority, topology, Definitions(broker.journal, ["topic"], snapshot.definitions))
        await broker.journal.stop()
        await broker.stop()


def act(bench: Bench, kind: str, is_poisoned: bool, number: int) -> None:
    name = f"{kind}-{number}"
    done = bench.done(name)
    arguments: dict[str, Any] = {"x-odd": UNSTORABLE} if is_poisoned else {}
    match kind:
        case "queue":
            bench.topology.declare_queue(Queue(0, name, arguments=arguments), None, done)
        case "queue with a message":
            bench.topology.declare_queue(Queue(0, name, arguments=arguments), None, done)
            created = bench.broker.engine.find_queue(name)
            if created is not None:
                into = bench.done(f"message in {name}")
                bench.broker.put(Draft(b"body"), [created.queue.id], lambda _, error: into(error))
        case "exchange":
            bench.topology.declare_exchange(Exchange(name, "direct", arguments=arguments), done)
        case "binding":
            bench.topology.bind(Binding("amq.direct", "healthy", routing_key=name, arguments=arguments), done)
        case "topic":
            bench.definitions.put(Definition("topic", name, arguments), done)
        case "client":
            bench.broker.create_client(name + ("\0" if is_poisoned else ""), ClientMode.FULL, done)
        case "message":
            queue = bench.broker.engine.find_queue("healthy")
            assert queue is not None
            draft = Draft(b"body", priority=1 << 40 if is_poisoned else 0)
            bench.broker.put(draft, [queue.queue.id], lambda _, error: done(error))


def is_bad(name: str, plan: list[tuple[str, bool]]) -> bool:
    return plan[int(name.rsplit("-", 1)[1])][1]


KINDS = ("queue", "queue with a message", "exchange", "binding", "topic", "client", "message", "message")


@pytest.mark.parametrize("checks", [True, False], ids=["refused at submission", "refused in the batch"])
@settings(
    deadline=None,
    max_examples=12,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(plan=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 3).map(lambda n: n == 0)), max_size=15))
def test_memory_and_store_agree_whatever_is_refused(
    postgres: EmbeddedPostgres, plan: list[tuple[str, bool]], checks: bool
) -> None:
    schema = f"refused_{next(_schemas)}"

    async def whole() -> None:
        async with running(postgres.dsn, schema) as bench:
            bench.topology.declare_queue(Queue(0, "healthy"), None, bench.done("healthy"))
            await bench.broker.journal.flush()
            del bench.told["healthy"]
            for number, (kind, is_poisoned) in enumerate(plan):
                try:
                    act(bench, kind, is_poisoned, number)
                except InvalidArgument as error:
                    assert checks
                    assert is_poisoned
                    bench.told[f"{kind}-{number}"] = error
            await bench.broker.journal.stop()
            assert len([name for name in bench.told if not name.startswith("message in")]) == len(plan)
            for name, told in bench.told.items():
                assert (told is not None) == is_bad(name, plan), (name, told)
                if told is not None and not name.startswith("message"):
                    assert isinstance(told, RequestError if checks else StoreError)
            memory = bench.memory
        async with running(postgres.dsn, schema) as bench:
            assert bench.memory == memory

    before = changes.check
    if not checks:
        changes.check = lambda change: None
    try:
        run(whole())
    finally:
        changes.check = before


def on_postgres(postgres: EmbeddedPostgres, work: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        async with running(postgres.dsn, f"refused_{next(_schemas)}") as bench:
            await work(bench)

    run(whole())


def test_timestamp_beyond_the_calendar_is_an_argument_like_any_other(postgres: EmbeddedPostgres) -> None:
    arguments = {"since": Timestamp(2**62), "deep": [{"until": Timestamp(2**64 - 1)}]}

    schema = f"refused_{next(_schemas)}"

    async def whole() -> None:
        async with running(postgres.dsn, schema) as bench:
            bench.topology.declare_queue(Queue(0, "far", arguments=arguments), None, bench.done("far"))
        assert bench.told == {"far": None}
        async with running(postgres.dsn, schema) as bench:
            [state] = bench.broker.engine.queues
            assert state.queue.arguments == arguments

    run(whole())


@pytest.mark.parametrize("durable", [True, False])
def test_declaration_that_cannot_be_stored_is_refused_before_anything_changes(
    postgres: EmbeddedPostgres, durable: bool
) -> None:
    """Also where nothing is stored: another node may join."""

    async def work(bench: Bench) -> None:
        nested: Any = 1
        for _ in range(300):
            nested = [nested]
        memory = bench.memory
        for odd in (UNSTORABLE, nested, 10**5000):
            arguments = {"x-odd": odd}
            with pytest.raises(InvalidArgument):
                bench.topology.declare_queue(
                    Queue(0, "q", durable=durable, arguments=arguments), None, bench.done("queue")
                )
            exchange = Exchange("e", "direct", durable=durable, arguments=arguments)
            with pytest.raises(InvalidArgument):
                bench.topology.declare_exchange(exchange, bench.done("exchange"))
            with pytest.raises(InvalidArgument):
                bench.topology.bind(Binding("amq.direct", "q", arguments=arguments), bench.done("binding"))
        with pytest.raises(InvalidArgument):
            bench.broker.create_client("a\0b", ClientMode.FULL, bench.done("client"))
        with pytest.raises(InvalidArgument):
            bench.topology.declare_queue(Queue(0, "\0" * 300, "\0" * 300), None, bench.done("long"))
        assert (bench.memory, bench.told) == (memory, {})
        assert bench.broker.journal.pending_count == 0

    on_postgres(postgres, work)


def test_policy_that_cannot_be_stored_is_refused_and_not_applied(postgres: EmbeddedPostgres) -> None:
    async def work(bench: Bench) -> None:
        with pytest.raises(InvalidArgument):
            await bench.authority.set_policy(Policy("p", ".*", {"max-length": 5, "odd": UNSTORABLE}))
        assert bench.memory["policies"] == set()

    on_postgres(postgres, work)
