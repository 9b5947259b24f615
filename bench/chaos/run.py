"""A run: clients work on a site while faults happen; at the end all is healed, drained and judged."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

import aio_pika
from tests.broker.cluster.simulation import clients as features
from tests.broker.cluster.simulation.clients import Producer as FeatureProducer
from tests.broker.cluster.simulation.features import GROUPS

from bench.chaos.clients import (
    ANSWER_LIMIT_S,
    LATE_S,
    AmqpConsumer,
    AmqpProducer,
    Broken,
    FactoryConsumer,
    FactoryProducer,
    Ground,
    LazyAmqpConsumer,
    Producer,
    PythonConsumer,
    PythonProducer,
    Worker,
    connect_amqp,
)
from bench.chaos.faults import CUT_LINK, KINDS, FaultKind, Plan, Planned, inflict
from bench.chaos.nodes import Site
from flyball.client.http import Line, Place, path_of
from flyball.errors import LabError
from flyball.lab.history import UPHEAVAL, Checker, Kind, Operation, Recorder, Verdict, to_line

# Everything has to be served again so soon after a fault, unless the settings say otherwise.
SERVED_LIMIT_S = 10.0
# A fault after which nothing is served for this multiple of the limit is given up, and the next one comes.
RECOVERY_FACTOR = 3.0
DRAIN_LIMIT_S = 120.0
# When nothing came for this time and the queues are empty, all is drained.
QUIET_S = 2.0


# The clustered queue.
CLUSTERED = "shared"

# With members that may hold so little, messages move between them all the time.
OPTIONS = {"surplus": 5}

# Clients of a queue, by whether that is the clustered one.
CLIENTS: dict[bool, tuple[type[Worker], ...]] = {
    False: (AmqpProducer, AmqpProducer, PythonProducer, AmqpConsumer, AmqpConsumer, PythonConsumer),
    True: (AmqpProducer, FactoryProducer, FactoryProducer, LazyAmqpConsumer, FactoryConsumer, FactoryConsumer),
}


class FeatureGround(features.Ground):
    """State that clients of queues with features share: a real node that loses a client does not upset others."""

    def leaves(self, who: str) -> None:
        """Nothing to excuse."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Parameters of a run."""

    folder: Path
    seed: int
    duration_s: float
    nodes: int = 3
    lease_s: float = 4.0
    kinds: tuple[FaultKind, ...] = KINDS
    # Repetitions of every kind of fault, however long that takes; None for as long as the run lasts.
    rounds: int | None = None
    served_limit_s: float = SERVED_LIMIT_S
    # Further settings of each node.
    flags: Mapping[str, object] = field(default_factory=dict)
    # Where to write every operation.
    history: TextIO | None = None
    # As many faults, however long that takes.
    faults: int | None = None
    # Faults that happen at the same time; then everything has to be served again.
    at_once: int = 1


@dataclass(slots=True)
class Inflicted:
    """One fault that has happened."""

    kind: str
    node: str
    at_s: float
    lasted_s: float = 0.0
    # How long it took until a new message was confirmed and delivered in every queue; None if it never was.
    served_s: float | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a run."""

    seed: int
    duration_s: float
    nodes: int
    lease_s: float
    verdict: Verdict
    faults: list[Inflicted]
    # Queues that were not empty in time.
    undrained: list[str]
    # What nodes said when they ended against all expectation.
    complaints: list[str]
    served_limit_s: float = SERVED_LIMIT_S

    @property
    def slow(self) -> list[Inflicted]:
        return [fault for fault in self.faults if fault.served_s is None or fault.served_s > self.served_limit_s]

    @property
    def is_good(self) -> bool:
        return self.verdict.is_clean and not self.slow and not self.undrained and not self.complaints

    def as_dict(self) -> dict[str, Any]:
        """Return it as something that JSON can hold."""
        return {
            "seed": self.seed,
            "duration_s": self.duration_s,
            "nodes": self.nodes,
            "lease_s": self.lease_s,
            "is_good": self.is_good,
            "operations": {str(kind): count for kind, count in self.verdict.counts.items()},
            "broken_promises": {str(fault): count for fault, count in self.verdict.faults.items()},
            "violations": [str(violation) for violation in self.verdict.violations],
            "served_s": self.served_s(),
            "undrained": self.undrained,
            "complaints": self.complaints,
            "faults": [asdict(fault) for fault in self.faults],
        }

    def served_s(self) -> dict[str, dict[str, float]]:
        """Return by kind of fault, and for all, how long it took until everything was served again."""
        table: dict[str, dict[str, float]] = {}
        for kind in [*sorted({fault.kind for fault in self.faults}), "all"]:
            times = sorted(
                fault.served_s for fault in self.faults if kind in ("all", fault.kind) and fault.served_s is not None
            )
            if times:
                table[kind] = {
                    "count": len(times),
                    **{f"p{share}": round(times[-(-len(times) * share // 100) - 1], 3) for share in (50, 90, 99)},
                    "max": round(times[-1], 3),
                }
        return table


class Service:
    """Waits until every queue serves again: a message that was published since then was confirmed and delivered."""

    def __init__(self, queues: Sequence[str], clock: Callable[[], float]) -> None:
        self._queues = queues
        self._clock = clock
        self._since_s = clock()
        self._missing: set[str] = set()
        self._new: dict[tuple[str, int], str] = {}
        self._seen: Counter[tuple[str, int]] = Counter()
        self.is_back = asyncio.Event()
        self.took_s: float | None = None

    def begin(self) -> None:
        """Forget what was served before now."""
        self._since_s = self._clock()
        self._missing = set(self._queues)
        self._new.clear()
        self._seen.clear()
        self.took_s = None
        self.is_back.clear()

    def note(self, operation: Operation) -> None:
        if not self._missing:
            return
        key = operation.producer, operation.number
        if operation.kind is Kind.PUBLISH:
            self._new[key] = operation.queue
        elif operation.kind in (Kind.CONFIRMED, Kind.DELIVERED) and key in self._new:
            self._seen[key] |= 1 if operation.kind is Kind.CONFIRMED else 2
            if self._seen[key] == 3:
                self._serves(self._new[key])

    def _serves(self, queue: str) -> None:
        self._missing.discard(queue)
        if not self._missing:
            self.took_s = self._clock() - self._since_s
            self.is_back.set()


class Chaos:
    """Runs once."""

    def __init__(self, settings: Settings, on_fault: Callable[[str, float], None] = lambda text, share: None) -> None:
        self._settings = settings
        self._on_fault = on_fault
        self._names = [chr(ord("a") + number) for number in range(settings.nodes)]
        self._site = Site(settings.folder, self._names, {"lease_s": settings.lease_s, **settings.flags})
        self._plain = [f"plain-{name}" for name in self._names]
        self._queues = [*self._plain, CLUSTERED] if settings.nodes > 1 else self._plain
        # Not looked at to see whether everything is served: some of their queues are full, or expire messages.
        self._features = [feature for features in GROUPS.values() for feature in features]
        self._checker = Checker()
        self._service = Service(self._queues, time.monotonic)
        self._recorder = Recorder(self._note)
        self._workers: list[Worker | features.Worker] = []
        self._inflicted: list[Inflicted] = []
        self._complaints: list[str] = []
        self._last_delivery_s = 0.0
        self._counts: Counter[Kind] = Counter()

    def _note(self, operation: Operation) -> None:
        self._checker.note(operation)
        self._counts[operation.kind] += 1
        if operation.producer != UPHEAVAL:
            self._service.note(operation)
        if operation.kind is Kind.DELIVERED:
            self._last_delivery_s = time.monotonic()
        if self._settings.history is not None:
            self._settings.history.write(to_line(operation))

    async def run(self) -> Result:
        began_s = time.monotonic()
        async with self._site:
            await self._set_up()
            async with asyncio.TaskGroup() as clients:
                self._hire(clients)
                await self._inflict_all()
                self._dismiss(is_producer=True)
                undrained = await self._drain()
                self._dismiss(is_producer=False)
            await asyncio.sleep(2 * LATE_S)
            for queue in self._all_queues:
                await self._look_into(queue)
            await self._stop_nodes()
        return Result(
            self._settings.seed,
            round(time.monotonic() - began_s, 1),
            self._settings.nodes,
            self._settings.lease_s,
            self._checker.finish(),
            self._inflicted,
            undrained,
            self._complaints,
            self._settings.served_limit_s,
        )

    async def _set_up(self) -> None:
        """Make the queues, each ordinary one on a node of its own, and a clustered one with a member on each."""
        for name, queue in zip(self._names, self._plain, strict=True):
            async with await self._connect(name) as connection:
                channel = await connection.channel()
                await channel.declare_queue(queue, durable=True)
        for number, feature in enumerate(self._features):
            async with await self._connect(self._names[number % len(self._names)]) as connection:
                channel = await connection.channel()
                await channel.declare_queue(feature.queue, durable=True, arguments=dict(feature.arguments))
        if CLUSTERED in self._queues:
            host, port = self._site.nodes[self._names[0]].addresses["http"]
            wanted = {"name": CLUSTERED, "members": self._names, "options": OPTIONS}
            with contextlib.closing(Line(Place(f"http://{host}:{port}"))) as line:
                await line.ask("POST", path_of("flyball", "domain", "commands", "cluster.create"), wanted)

    def _hire(self, tasks: asyncio.TaskGroup) -> None:
        """Let clients work on every queue."""
        ground = Ground(self._recorder, self._addresses, lambda queue: queue in self._plain)
        chance = random.Random(self._settings.seed)
        for queue in self._queues:
            for make in CLIENTS[queue == CLUSTERED]:
                name = f"{make.__name__}-{len(self._workers)}"
                worker = make(ground, name, queue, chance.randrange(2**32))
                self._workers.append(worker)
                tasks.create_task(worker.run())
        featured = FeatureGround(self._recorder, self._addresses, lambda queue, body: queue)
        for feature in self._features:
            for kind in feature.clients:
                name = f"{kind.__name__}-{len(self._workers)}"
                client = kind(featured, name, feature.queue, chance.randrange(2**32))
                self._workers.append(client)
                tasks.create_task(client.run())

    def _dismiss(self, *, is_producer: bool) -> None:
        for worker in self._workers:
            if isinstance(worker, Producer | FeatureProducer) is is_producer:
                worker.is_over.set()

    @property
    def _all_queues(self) -> list[str]:
        return [*self._queues, *(feature.queue for feature in self._features)]

    def _addresses(self, protocol: str) -> list[str]:
        return [self._site.address(name, protocol) for name in self._names]

    # Faults

    async def _inflict_all(self) -> None:
        began_s = time.monotonic()
        kinds = tuple(kind for kind in self._settings.kinds if kind is not CUT_LINK or self._site.link_wires)
        plan = Plan(self._settings.seed, self._names, self._settings.lease_s, kinds)
        self._service.begin()
        async with asyncio.timeout(DRAIN_LIMIT_S):
            await self._service.is_back.wait()
        while (share := self._share_done(time.monotonic() - began_s, plan)) < 1:
            volley = plan.volley(self._settings.at_once)
            self._on_fault(", ".join(f"{fault.kind.name} ({fault.node})" for fault in volley), share)
            await asyncio.sleep(volley[0].calm_s)
            await self._inflict(volley, time.monotonic() - began_s)
        self._on_fault("draining", 1.0)

    def _share_done(self, elapsed_s: float, plan: Plan) -> float:
        rounds = self._settings.rounds
        if self._settings.faults is not None:
            return len(self._inflicted) / self._settings.faults
        if rounds is None:
            return elapsed_s / self._settings.duration_s
        return len(self._inflicted) / (rounds * plan.kinds)

    async def _inflict(self, volley: Sequence[Planned], at_s: float) -> None:
        """Let faults happen at the same time, and wait until all are healed and everything is served."""
        inflicted = [Inflicted(fault.kind.name, fault.node, round(at_s, 3)) for fault in volley]
        self._inflicted += inflicted
        for fault in volley:
            self._recorder.upheaval(Kind.DISTURBED, fault.kind.name)
        await asyncio.gather(*map(self._inflict_one, volley, inflicted))
        if len(self._names) == 1 or len(volley) > 1:
            # Of one node, or several that are down, no other node could serve everything meanwhile.
            self._service.begin()
        await self._wait_for_service(inflicted)
        await self._revive()
        for fault in volley:
            self._recorder.upheaval(Kind.CALM, fault.kind.name)

    async def _inflict_one(self, fault: Planned, inflicted: Inflicted) -> None:
        began_s = time.monotonic()
        try:
            await inflict(self._site, fault, self._service.begin)
        except LabError as error:
            self._complaints.append(str(error))
        inflicted.lasted_s = round(time.monotonic() - began_s, 3)

    async def _wait_for_service(self, inflicted: Sequence[Inflicted]) -> None:
        """Wait until everything is served; faults that take too long do not end the run."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RECOVERY_FACTOR * self._settings.served_limit_s):
                await self._service.is_back.wait()
        if self._service.took_s is not None:
            for each in inflicted:
                each.served_s = round(self._service.took_s, 3)

    async def _revive(self) -> None:
        """Restart nodes that have ended by themselves."""
        for name, node in self._site.nodes.items():
            if not node.is_running:
                self._complaints.append(f"node {name} has ended by itself: {node.last_words()}")
                await self._site.start(name)

    # The end

    async def _drain(self) -> list[str]:
        """Wait until consumers have taken everything; return the queues where they have not."""
        waiting = self._all_queues
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_LIMIT_S):
                # There is no event for a queue that becomes empty.
                while waiting or time.monotonic() - self._last_delivery_s < QUIET_S:
                    await asyncio.sleep(0.2)
                    waiting = await self._waiting()
        return waiting

    async def _waiting(self) -> list[str]:
        """Return the queues that are not empty, or that cannot be asked."""
        waiting = []
        for queue in self._all_queues:
            try:
                if await self._count(queue):
                    waiting.append(queue)
            except Broken:
                waiting.append(queue)
        return waiting

    async def _count(self, queue: str) -> int:
        count = 0
        for name in self._names:
            async with asyncio.timeout(ANSWER_LIMIT_S), await self._connect(name) as connection:
                channel = await connection.channel()
                declared = await channel.declare_queue(queue, passive=True)
                count += declared.declaration_result.message_count or 0
        return count

    async def _look_into(self, queue: str) -> None:
        """Note what is still in a queue, and leave it there."""
        for name in self._names:
            async with asyncio.timeout(DRAIN_LIMIT_S), await self._connect(name) as connection:
                channel = await connection.channel()
                source = await channel.get_queue(queue, ensure=False)
                while (message := await source.get(fail=False)) is not None:
                    producer, number = message.body.decode().split(" ")
                    self._recorder.note(Kind.FOUND, producer, int(number), queue=queue)

    async def _connect(self, name: str) -> aio_pika.abc.AbstractConnection:
        return await connect_amqp(self._site.address(name, "amqp"))

    async def _stop_nodes(self) -> None:
        for name, node in self._site.nodes.items():
            if code := await node.stop():
                self._complaints.append(f"node {name} ended with code {code}: {node.last_words()}")
