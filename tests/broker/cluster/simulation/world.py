"""A simulated domain: nodes, the database and network between them, clients, faults, and what must always hold.

Of the invariants (tests/broker/cluster/test_invariants.py) these are looked at: what clients see (I1, I4), who
serves and holds what (I2, I3, I13) all the time, removals (I7) and moves (I6, I9's bound) as they happen, and counts
and load (I5, I6, I8, I12) at the end. Invariants that need clients that stand still (I9's potential, I10, I11) are
checked on the manager alone.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from flyball.broker.cluster.agent import Agent
from flyball.broker.cluster.decisions import Move
from flyball.broker.cluster.leader import Leader
from flyball.broker.cluster.manager import Manager
from flyball.broker.cluster.names import cluster_key
from flyball.broker.cluster.node import attached
from flyball.broker.cluster.options import ClusterOptions
from flyball.broker.core.placement import NoPlaceYet, Place, PlaceRequest
from flyball.broker.node.node import Node, serving
from flyball.broker.node.owner import owner_token
from flyball.broker.settings import Address, ServeSettings
from flyball.broker.store.changes import Change, QueueDeleted
from flyball.broker.store.interface import Transfer
from flyball.broker.store.memory import MemoryDomain
from flyball.broker.wire import amqp as wire
from flyball.errors import ClusterError, Fenced, FlyballError
from flyball.lab.history import Checker, Operation, Recorder, Verdict
from flyball.lab.history import Kind as Noted
from flyball.model import Message
from tests.broker.cluster.simulation import clients
from tests.broker.cluster.simulation.faults import HARMLESS, Fault, Kind, plan
from tests.broker.cluster.simulation.features import features_of
from tests.broker.cluster.simulation.judging import can_bear_its_load, decided, wrong_moves
from tests.broker.cluster.simulation.loop import BEGAN_S, Process, VirtualLoop, run
from tests.broker.cluster.simulation.network import HOST, Network
from tests.broker.cluster.simulation.stores import Line, SimulatedStore
from tests.broker.cluster.snapshots import snapshot_of

LEASE_S = 3.0
FAULTS_FOR_S = 25.0
SETTLE_S = 20.0
DRAIN_LIMIT_S = 60.0
STOP_LIMIT_S = 200.0
ASKING_LIMIT_S = 60.0
# Groups of queues with features in one simulation; seeds take turns with them.
FEATURES_AT_ONCE = 1
# How often it is seen whether everything holds.
LOOK_S = 0.1
# How long after the decision to move a session its in-flight messages may come back.
MOVING_S = 2.0

CLUSTERED = "clustered"
PROVISIONER = "simulated"

NAMES = ("a", "b", "c")

ANYWHERE = Address(HOST, 0)


@dataclass
class Outcome:
    """Outcome of a simulation."""

    seed: int
    faults: list[Fault]
    verdict: Verdict
    violations: list[str]
    digest: int
    elapsed_s: float
    events: list[str]
    operations: list[Operation]
    # How many of the planned faults have happened.
    inflicted: int = 0

    @property
    def is_good(self) -> bool:
        return self.verdict.is_clean and not self.violations

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {'good' if self.is_good else 'BROKEN'}, {self.elapsed_s:.1f} simulated seconds"]
        if not self.is_good:
            lines += ["faults:", *(f"  {fault}" for fault in self.faults), str(self.verdict), *self.violations]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Course:
    """How often faults come, for how long, and among how many clients."""

    faults_for_s: float = FAULTS_FOR_S
    pace: float = 1.0
    # Ordinary queues.
    queues: int = 2
    features: int = FEATURES_AT_ONCE


# Many faults in little time on the machine that simulates: few clients, for two minutes, several faults a second.
DENSE = Course(faults_for_s=120.0, pace=8.0, queues=1)


class WatchedDomain(MemoryDomain):
    """The tables of the domain. Complains of members that are removed with messages (I7), and reports transfers."""

    def __init__(
        self, now: Callable[[], float], complain: Callable[[str], None], handed_over: Callable[[Message], None]
    ) -> None:
        super().__init__(now)
        self._complain = complain
        self._handed_over = handed_over

    def transfer(self, transfer: Transfer) -> bool:
        # Also if there is no such destination: then they are back later than they should be.
        for message_id in transfer.message_ids:
            message = self.messages.get(message_id)
            if message is not None and message.queue_id == transfer.source:
                self._handed_over(message)
        return super().transfer(transfer)

    def apply(self, change: Change, node_id: int) -> bool:
        if isinstance(change, QueueDeleted) and change.queue_id in self.queues:
            left = [message.id for message in self.messages.values() if message.queue_id == change.queue_id]
            if left:
                self._complain(f"I7: queue {change.queue_id} was removed by node {node_id} with {len(left)} messages")
        return super().apply(change, node_id)


@cache
def data_folder() -> Path:
    """Return the folder for the little that nodes keep in files, removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="flyball-simulation-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # Made once, while chance is not simulated: else the first simulation of a process had other numbers.
    owner_token(folder / "admin.token")
    return folder


@dataclass
class SimulatedNode:
    """One process: a node that joins again whenever others have taken its place."""

    world: World
    name: str
    process: Process
    chance: Random
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    store: SimulatedStore | None = None
    node: Node | None = None
    agent: Agent | None = None
    leader: Leader | None = None
    task: asyncio.Task[None] | None = None
    is_cut_off: bool = False

    def start(self) -> None:
        self.task = self.process.start(self._live())

    @property
    def is_serving(self) -> bool:
        return self.node is not None and self.process.is_running

    def connect_store(self) -> None:
        """Let it reach the database, or not."""
        if self.store is None:
            return
        if self.is_cut_off or self.world.outages:
            self.store.cut_off()
        elif self.store.line.is_cut:
            self.store.heal()

    async def _live(self) -> None:
        while not self.stop.is_set():
            self.store = SimulatedStore(
                self.world.domain, self.name, self.world.loop, self.process, Random(self.chance.random())
            )
            self.world.lines.append(self.store.line)
            self.connect_store()
            try:
                await self._serve(self.store)
            except* Fenced:
                self.world.tell(f"{self.name} joins again")
            except* FlyballError as errors:
                self.world.tell(f"{self.name} ends: {_first(errors)!r}")
                if self.node is not None:
                    self.world.complain(f"node {self.name} ended by itself: {_first(errors)!r}")
                await asyncio.sleep(1.0)
            except* Exception as errors:
                self.world.complain(f"node {self.name} crashed: {_first(errors)!r}")
                raise
            finally:
                self.node = self.agent = self.leader = None
                await self.store.close()

    async def _serve(self, store: SimulatedStore) -> None:
        settings = ServeSettings(
            name=self.name,
            data=data_folder(),
            trace=False,
            lease_s=self.world.lease_s,
            amqp=ANYWHERE,
            telesto=None,
            thorbang=None,
            link=ANYWHERE,
            amqp_heartbeat_s=0,
        )

        @contextlib.asynccontextmanager
        async def governed(node: Node) -> Any:
            async with attached(node, {PROVISIONER: self.world}, self.stop) as (self.agent, self.leader):
                yield

        async with serving(settings, store, [governed]) as self.node:
            self.world.tell(f"{self.name} serves")
            await self.stop.wait()
            self.world.tell(f"{self.name} stops")

    def kill(self) -> None:
        self.process.is_dead = True
        self.world.network.kill(self.process)
        if self.store is not None:
            self.store.kill()
        self.world.past.append(self)


class World:
    """Everything in one simulation. It is also the provisioner: nodes that it is asked for are simulated, too."""

    def __init__(self, loop: VirtualLoop, seed: int, lease_s: float = LEASE_S, course: Course | None = None) -> None:
        self.loop = loop
        self.course = course or Course()
        # How many faults have happened: some find a node that is down already.
        self.inflicted = 0
        self.seed = seed
        self.lease_s = lease_s
        self.chance = Random(seed)
        self.network = Network(loop, Random(self.chance.random()))
        self.violations: list[str] = []
        self.events: list[str] = []
        self.domain = WatchedDomain(loop.time, self.complain, self._note_transfer)
        self.nodes: dict[str, SimulatedNode] = {}
        self.past: list[SimulatedNode] = []
        # All that there ever were.
        self.launched: list[SimulatedNode] = []
        # How many reasons there are for the database to be unavailable.
        self.outages = 0
        # All ways to the database that there ever were.
        self.lines: list[Line] = []
        self.checker = Checker()
        self.recorder = Recorder(self._note, loop.time)
        self.user = Process(loop, "clients")
        self.workers: list[clients.Worker] = []
        self.plain = [f"plain-{number}" for number in range(self.course.queues)]
        self.features = features_of(seed, self.course.features)
        self.faults: list[Fault] = []
        self.operations: list[Operation] = []
        self._working: list[asyncio.Task[None]] = []
        self._under_way: list[asyncio.Task[None]] = []
        self._asked: list[asyncio.Task[Any]] = []
        self._options = ClusterOptions()
        # All that ever led, and how many decisions of each were seen.
        self._managers: dict[Manager, int] = {}

    def tell(self, text: str) -> None:
        self.events.append(f"{self.loop.time() - BEGAN_S:8.3f} {text}")

    def complain(self, text: str) -> None:
        """Note that something does not hold, once."""
        line = f"{text} (at {self.loop.time() - BEGAN_S:.3f} s)"
        if not any(known.startswith(text) for known in self.violations):
            self.violations.append(line)
            self.tell(f"VIOLATION {text}")

    def _note(self, operation: Operation) -> None:
        self.checker.note(operation)
        self.operations.append(operation)

    def _note_transfer(self, message: Message) -> None:
        self.recorder.note(Noted.HANDED_OVER, *clients.key_of(message.body))

    def _source(self, queue: str, body: bytes) -> str | None:
        """Return what has delivered a message that comes now: of the clustered queue the member that has it out."""
        if queue != CLUSTERED:
            return queue
        self._see_decisions()
        for node in self.nodes.values():
            for state in [] if node.node is None else node.node.hub.broker.engine.queues:
                if state.queue.member and any(message.body == body for message in state.unacked.values()):
                    return _member(state.queue.id)
        return None

    async def _place(self, address: str, request: PlaceRequest) -> Place:
        """Ask a node where a client is to go, as its HTTP API does. Raises Broken if it does not say."""
        node = next((node for node in self.serving() if self._address(node.name) == address), None)
        if node is None or node.node is None:
            raise clients.Broken(f"no node serves at {address}")
        asking = node.process.start(node.node.hub.placement.place(request))
        self._asked.append(asking)
        await asyncio.wait([asking], timeout=clients.ANSWER_LIMIT_S)
        if not asking.done():
            asking.cancel()
            raise clients.Broken(f"{node.name} does not say where to go")
        place = asking.result()
        if isinstance(place, NoPlaceYet):
            raise clients.Broken(place.reason)
        return place

    def _see_decisions(self) -> None:
        """Remember the leader, and record each move: as when a consumer goes, its member may be reordered."""
        for node in self.nodes.values():
            if node.leader is None:
                continue
            manager = node.leader.manager
            new = manager.decided - self._managers.get(manager, 0)
            self._managers[manager] = manager.decided
            for record in decided(manager)[-new:] if new else ():
                if isinstance(record.decision, Move):
                    what, member = f"move {record.decision.session}", _member(record.decision.from_member)
                    self.recorder.upheaval(Noted.DISTURBED, what, member)
                    self.loop.call_later(MOVING_S, self.recorder.upheaval, Noted.CALM, what, member)

    # Nodes

    def launch(self, name: str) -> SimulatedNode:
        node = SimulatedNode(self, name, Process(self.loop, name), Random(self.chance.random()))
        self.nodes[name] = node
        self.launched.append(node)
        self.tell(f"{name} starts")
        node.start()
        return node

    async def start(self, name: str) -> str:
        """Start a node, as a provisioner."""
        found = self.nodes.get(name)
        if found is None or found.task is None or found.task.done() or found.process.is_dead:
            self.launch(name)
        return name

    async def stop(self, handle: str) -> None:
        """Stop a node, as a provisioner."""
        found = self.nodes.pop(handle, None)
        if found is None or found.task is None or found.process.is_dead:
            return
        found.stop.set()
        try:
            async with asyncio.timeout(STOP_LIMIT_S):
                await asyncio.wait([found.task])
        except TimeoutError:
            raise ClusterError(f"node {handle} does not stop") from None

    async def alive(self, handle: str) -> bool:
        return handle in self.nodes

    def serving(self) -> list[SimulatedNode]:
        return [node for node in self.nodes.values() if node.is_serving]

    def addresses(self, protocol: str) -> list[str]:
        found = [node.node for node in self.nodes.values() if node.node is not None and not node.process.is_dead]
        return [str(node.addresses[protocol]) for node in found if protocol in node.addresses]

    async def until(self, condition: Callable[[], bool], limit_s: float, what: str) -> bool:
        """Wait for a condition; return whether it came about, and complain if not."""
        deadline_s = self.loop.time() + limit_s
        while not condition():
            if self.loop.time() > deadline_s:
                self.complain(f"waited {limit_s:g} s in vain: {what}")
                return False
            await asyncio.sleep(0.1)
        return True

    # The course of events

    async def run(self) -> Outcome:
        await self._set_up()
        self._hire()
        looking = self.user.start(self._look_on())
        self.faults = plan(self.chance, NAMES, self.course.faults_for_s, LEASE_S, self.course.pace)
        began_s = self.loop.time()
        for fault in self.faults:
            await asyncio.sleep(max(0.0, began_s + fault.at_s - self.loop.time()))
            self._under_way.append(self.loop.create_task(self._inflict(fault), context=self.loop.outside))
        await asyncio.gather(*self._under_way)
        self._heal()
        healed_s = self.loop.time()
        await asyncio.sleep(SETTLE_S)
        if len(self._leaders()) != 1:
            # It may be a provisioned node that was stopped just now, since it is not needed any longer.
            await self.until(lambda: len(self._leaders()) == 1, LEASE_S, "nobody leads the domain")
            await asyncio.sleep(LEASE_S)
        self._check_peace()
        self._dismiss(is_producer=True)
        await self.until(self._is_drained, DRAIN_LIMIT_S, "not all messages were consumed")
        if not self._is_drained():
            self._tell_what_is_left()
        self._dismiss(is_producer=False)
        await asyncio.wait(self._working)
        await asyncio.sleep(2.0)
        self._look_into()
        looking.cancel()
        for manager in self._managers:
            for wrong in wrong_moves(decided(manager), self._options, healed_s + LEASE_S):
                self.complain(wrong)
        await self.end()
        self.violations += [f"nobody was told: {failure}" for failure in self.loop.failures]
        elapsed_s = self.loop.time() - BEGAN_S
        return Outcome(
            self.seed,
            self.faults,
            self.checker.finish(),
            self.violations,
            self.network.digest,
            elapsed_s,
            self.events,
            self.operations,
            self.inflicted,
        )

    async def _set_up(self) -> None:
        for name in NAMES:
            self.launch(name)
        await self.until(lambda: len(self.serving()) == len(NAMES), 60.0, "the nodes do not start")
        for name, queue in zip(NAMES, self.plain, strict=False):
            address = self._address(name)
            await self.user.start(_declare(address, queue))
        for number, feature in enumerate(self.features):
            address = self._address(NAMES[number % len(NAMES)])
            await self.user.start(_declare(address, feature.queue, feature.arguments))
        agent = self.nodes[NAMES[0]].agent
        assert agent is not None
        options = {
            "min_members": self.chance.choice((1, 2, 2)),
            "max_members": 4,
            "capacity": 5.0,
            "dwell_s": self.chance.choice((5.0, 15.0)),
            "cool_down_s": 5.0,
            "surplus": self.chance.choice((5, 50)),
            "provisioner": self.chance.choice(("", PROVISIONER)),
        }
        self._options = ClusterOptions.from_dict(options)
        await self.nodes[NAMES[0]].process.start(
            agent.ask_leader(
                "domain.govern", name="domain.cluster.create", arguments={"name": CLUSTERED, "options": options}
            )
        )

    def _address(self, name: str) -> str:
        node = self.nodes[name].node
        assert node is not None
        return str(node.addresses["amqp"])

    def _hire(self) -> None:
        ground = clients.Ground(self.recorder, self.addresses, self._source, self._place)
        crew: list[tuple[type[clients.Worker], str]] = []
        for queue in self.plain:
            crew += [(clients.AmqpProducer, queue), (clients.AmqpConsumer, queue)]
            crew += self.chance.sample(
                [
                    (clients.AmqpProducer, queue),
                    (clients.AmqpConsumer, queue),
                    (clients.StayingProducer, queue),
                    (clients.PlainConsumer, queue),
                ],
                2,
            )
        crew += [(clients.AmqpProducer, CLUSTERED), (clients.AmqpConsumer, CLUSTERED)]
        crew += [(clients.PlacedProducer, CLUSTERED), (clients.PlacedConsumer, CLUSTERED)]
        crew += [
            (self.chance.choice((clients.AmqpConsumer, clients.PlacedConsumer, clients.PlacedProducer)), CLUSTERED)
            for _ in range(self.chance.randrange(0, 5))
        ]
        crew += [(make, feature.queue) for feature in self.features for make in feature.clients]
        for number, (make, queue) in enumerate(crew):
            worker = make(ground, f"{make.__name__}-{number}", queue, self.chance.randrange(2**32))
            self.workers.append(worker)
            self._working.append(self.user.start(worker.run()))

    def _dismiss(self, *, is_producer: bool) -> None:
        for worker in self.workers:
            if isinstance(worker, clients.Producer) is is_producer:
                worker.is_over.set()

    # Faults

    async def _inflict(self, fault: Fault) -> None:
        node = self.nodes.get(fault.node)
        if node is None or node.process.is_dead or node.process.is_frozen or node.is_cut_off or node.stop.is_set():
            return
        self.tell(f"fault: {fault}")
        self.inflicted += 1
        name = f"{fault.kind} {fault.node} {fault.at_s:.3f}"
        is_upheaval = fault.kind not in HARMLESS
        if is_upheaval:
            self.recorder.upheaval(Noted.DISTURBED, name)
        await self._do(fault, node)
        self.tell(f"over: {fault.kind} ({fault.node})")
        if is_upheaval:
            await asyncio.sleep(2 * LEASE_S)
            self.recorder.upheaval(Noted.CALM, name)

    async def _do(self, fault: Fault, node: SimulatedNode) -> None:
        match fault.kind:
            case Kind.KILL:
                node.kill()
                await asyncio.sleep(fault.lasts_s)
                if self.nodes.get(fault.node) is node:
                    self.launch(fault.node)
            case Kind.FREEZE:
                node.process.freeze()
                await asyncio.sleep(fault.lasts_s)
                node.process.thaw()
            case Kind.CUT_STORE:
                node.is_cut_off = True
                node.connect_store()
                await asyncio.sleep(fault.lasts_s)
                node.is_cut_off = False
                node.connect_store()
            case Kind.OUTAGE:
                self._add_outages(1)
                await asyncio.sleep(fault.lasts_s)
                self._add_outages(-1)
            case Kind.CUT_LINK:
                self.network.cut(fault.node, fault.other)
                await asyncio.sleep(fault.lasts_s)
                self.network.heal(fault.node, fault.other)
            case Kind.BREAK_LINK:
                self.network.break_connections(fault.node, fault.other)
            case Kind.BREAK_ALL:
                self.network.break_connections(fault.node)
            case Kind.SLOW:
                self.network.slow_s = 0.2
                await asyncio.sleep(fault.lasts_s)
                self.network.slow_s = 0.0
            case Kind.SLOW_STORE | Kind.FLAKY_STORE:
                await self._trouble_store(fault, node)
            case Kind.STOP:
                await self._stop_in_good_order(fault, node)
            case Kind.REBALANCE:
                await self._rebalance(node)

    def _add_outages(self, count: int) -> None:
        self.outages += count
        for node in self.launched:
            if not node.process.is_dead:
                node.connect_store()

    async def _trouble_store(self, fault: Fault, node: SimulatedNode) -> None:
        line = None if node.store is None else node.store.line
        if line is not None:
            line.slow_s = 0.5 if fault.kind is Kind.SLOW_STORE else 0.0
            line.failure_ratio = 0.1 if fault.kind is Kind.FLAKY_STORE else 0.0
            await asyncio.sleep(fault.lasts_s)
            line.slow_s = line.failure_ratio = 0.0

    async def _stop_in_good_order(self, fault: Fault, node: SimulatedNode) -> None:
        assert node.task is not None
        node.stop.set()
        await asyncio.wait([node.task], timeout=STOP_LIMIT_S)
        if not node.task.done():
            self.complain(f"node {fault.node} does not stop")
        await asyncio.sleep(fault.lasts_s)
        if self.nodes.get(fault.node) is node:
            self.launch(fault.node)

    async def _rebalance(self, node: SimulatedNode) -> None:
        agent = node.agent
        if agent is not None:
            rebalance = agent.ask_leader("domain.govern", name="domain.rebalance", arguments={})
            asking = node.process.start(_suppressed(rebalance))
            self._asked.append(asking)
            # A node that is killed meanwhile never answers.
            await asyncio.wait([asking], timeout=ASKING_LIMIT_S)

    def _heal(self) -> None:
        """Restart every node that has ended."""
        for name in NAMES:
            node = self.nodes.get(name)
            if node is None or node.process.is_dead or node.task is None or node.task.done():
                self.launch(name)
        self.tell("all faults are over")

    # What must hold

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._see_decisions()
            self._check_owners()
            self._check_holders()

    def _speaking(self) -> Iterator[Node]:
        """Yield the nodes whose answers reach their clients now."""
        for node in [*self.nodes.values(), *self.past]:
            if node.is_serving and node.node is not None:
                hub = node.node.hub
                # One that stops has let its clients go before it leaves its queues to others.
                if hub.holds_lease and (hub.connections or not hub.is_stopping):
                    yield node.node

    def _check_owners(self) -> None:
        """A queue is served by one node at a time (I2, I3)."""
        served = Counter(state.queue.id for node in self._speaking() for state in node.hub.broker.engine.queues)
        for queue_id, count in served.items():
            if count > 1:
                self.complain(f"I3: {count} nodes serve queue {queue_id}")

    def _check_holders(self) -> None:
        """An unacked message is held by one session, others are ready (I2), and no consumer holds too many (I13)."""
        for node in self._speaking():
            for state in node.hub.broker.engine.queues:
                held: Counter[int] = Counter()
                for consumer in state.consumers.values():
                    held.update(consumer.leases.keys())
                    if len(consumer.leases) > consumer.credit.prefetch:
                        self.complain(f"I13: a consumer of {state.queue.name} holds {len(consumer.leases)} messages")
                for message_id, count in held.items():
                    if count > 1:
                        self.complain(f"I2: message {message_id} is held {count} times")
                    if message_id not in state.unacked:
                        self.complain(f"I2: message {message_id} is held and not out")

    def _leaders(self) -> list[SimulatedNode]:
        return [node for node in self.serving() if node.agent is not None and node.agent.leads]

    def _check_peace(self) -> None:
        """After all faults are over and every client has had time, the domain is whole (I5, I6, I8, I12)."""
        up = self.serving()
        if missing := [name for name in NAMES if name not in {node.name for node in up}]:
            self.complain(f"nodes {missing} do not serve at the end")
        leaders = self._leaders()
        if len(leaders) != 1:
            self.complain(f"there are {len(leaders)} leaders at the end")
            return
        self._check_cluster(leaders[0], up)
        for node in up:
            assert node.node is not None
            served = Counter(state.queue.name for state in node.node.hub.broker.engine.queues)
            if twice := [name for name, count in served.items() if count > 1]:
                self.complain(f"node {node.name} serves several queues called {twice}")
        for placed in self.domain.queues.values():
            owner = next((node for node in up if node.store and node.store.registry.node_id == placed.owner), None)
            if owner is None or owner.node is None:
                self.complain(f"queue {placed.queue.id} ({placed.queue.name}) belongs to nobody who is there")
            elif not owner.node.hub.broker.engine.has_queue(placed.queue.id):
                self.complain(
                    f"queue {placed.queue.id} ({placed.queue.name}) is not served by its owner {owner.name}"
                )

    def _check_cluster(self, leading: SimulatedNode, up: list[SimulatedNode]) -> None:
        assert leading.leader is not None
        manager = leading.leader.manager
        snapshot = snapshot_of(manager, cluster_key("/", CLUSTERED), self.loop.time())
        members = snapshot["members"]
        usable = [member for member in members if not member["is_marked"] and member["is_served"]]
        if not usable:
            self.complain(f"I5: no member is usable: {members}")
        nodes = {node.store.registry.node_id for node in up if node.store}
        for member in members:
            clients_there = member["producers"] + member["consumers"]
            if clients_there and member["node"] not in nodes:
                self.complain(f"I6: {clients_there} clients are at a member whose node is gone: {member}")
        for role in ("producers", "consumers"):
            if snapshot[role] != sum(member[role] for member in members):
                self.complain(f"I12: {role} do not add up: {snapshot}")
        told = Counter(session.id for node in up if node.agent is not None for session in node.agent.sessions.all())
        if twice := [session for session, count in told.items() if count > 1]:
            self.complain(f"I12: sessions are at two nodes: {twice}")
        if not can_bear_its_load(snapshot, self._options, nodes - {member["node"] for member in members}):
            self.complain(f"I8: the load cannot be borne, and nobody does anything about it: {snapshot}")

    # The end

    def _is_drained(self) -> bool:
        return not any(message.persistent for message in self.domain.messages.values()) and not any(
            len(state) or state.unacked
            for node in self.serving()
            if node.node is not None
            for state in node.node.hub.broker.engine.queues
        )

    def _tell_what_is_left(self) -> None:
        for message in self.domain.messages.values():
            placed = self.domain.queues.get(message.queue_id)
            self.tell(f"left in the database: {message.id} in {placed}: {message.body!r}")
        for node in self.serving():
            assert node.node is not None
            for state in node.node.hub.broker.engine.queues:
                if len(state) or state.unacked:
                    self.tell(
                        f"left on {node.name} in {state.queue.name} ({state.queue.id}): {len(state)} ready,"
                        f" {len(state.unacked)} out, {len(state.consumers)} consumers"
                    )
        for worker in self.workers:
            self.tell(f"{worker.session} of {worker.queue}: {worker.last_error}")

    def _look_into(self) -> None:
        """Note what is still in the queues."""
        for message in self.domain.messages.values():
            if message.queue_id in self.domain.queues:
                self.recorder.note(Noted.FOUND, *clients.key_of(message.body))

    async def end(self) -> None:
        """Stop what runs gracefully, and release the processes that were killed."""
        for node in self.nodes.values():
            if not node.process.is_dead:
                node.stop.set()
        running = [node.task for node in self.nodes.values() if node.task is not None and not node.process.is_dead]
        if running:
            _, late = await asyncio.wait(running, timeout=STOP_LIMIT_S)
            if late:
                self.complain(f"{len(late)} nodes do not stop at the end")
        told = len(self.violations), len(self.loop.failures)
        for node in self.past:
            node.process.is_dead = False
            node.process.thaw()
            assert node.task is not None
            node.stop.set()
            node.task.cancel()
            await asyncio.wait([node.task])
        for asking in self._asked:
            asking.cancel()
            await asyncio.wait([asking])
        for line in self.lines:
            line.close()
        # What killed nodes do once released does not count.
        del self.violations[told[0] :], self.loop.failures[told[1] :]


def _member(queue_id: int) -> str:
    """Return what a member of the clustered queue is called in the history."""
    return f"{CLUSTERED}, member {queue_id}"


async def _suppressed(asking: Awaitable[object]) -> None:
    with contextlib.suppress(FlyballError):
        await asking


def _first(errors: BaseExceptionGroup[Any]) -> BaseException:
    """Return the first of what went wrong."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _declare(address: str, queue: str, arguments: Mapping[str, Any] | None = None) -> None:
    connection = clients.AmqpConnection()
    try:
        await connection.open(address)
        declare = wire.QueueDeclare(1, queue, False, True, False, False, False, dict(arguments or {}))
        await connection.ask(declare, wire.QueueDeclareOk)
    finally:
        connection.close()


def simulate(seed: int, course: Course | None = None) -> Outcome:
    """Run the simulation of a seed."""
    data_folder()
    return run(lambda loop: World(loop, seed, course=course).run(), seed)
