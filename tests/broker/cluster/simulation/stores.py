"""The database of a simulation: a domain in memory, behind calls that take time, fail, and arrive or do not.

What a node has asked for is done by the database, not by the node: also while the node is frozen, and perhaps when it
is killed meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Coroutine, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

from flyball.broker.store.changes import Change
from flyball.broker.store.interface import NO_LIMIT, Arrived, Batch, IndexColumns, IndexPiece
from flyball.broker.store.memory import MemoryDomain, MemoryStore
from flyball.broker.store.registry import NodeRecord, NodeState, VersionedChange
from flyball.errors import StoreUnavailable
from flyball.events import Event
from flyball.model import Message, Queue, QueueSummary, Snapshot
from tests.broker.cluster.simulation.loop import Process, VirtualLoop

Result = TypeVar("Result")

# A call that does not get through is given up after at most this time.
GIVE_UP_S = 2.0


class _Call:
    """Something that a node has asked for."""

    def __init__(self, work: Coroutine[Any, Any, Any], answer: asyncio.Future[Any]) -> None:
        self.work = work
        self.answer = answer
        self.is_done = False
        self.outcome: Callable[[], None] = lambda: None

    def do(self) -> None:
        """Carry it out. It does not wait for anything."""
        self.is_done = True
        try:
            self.work.send(None)
        except StopIteration as ended:
            result = ended.value
            self.outcome = lambda: self.answer.set_result(result)
        except Exception as error:
            problem = error
            self.outcome = lambda: self.answer.set_exception(problem)
        else:
            raise AssertionError("a call of a store in memory waits for something")

    def fail(self) -> None:
        self.is_done = True
        self.work.close()
        self.outcome = self.lose

    def lose(self) -> None:
        self.answer.set_exception(StoreUnavailable("the connection to the database broke"))


class Line:
    """The way of one node to the database."""

    def __init__(self, loop: VirtualLoop, process: Process, chance: Random) -> None:
        self.is_cut = False
        self.failure_ratio = 0.0
        self.slow_s = 0.0
        self._loop = loop
        self._process = process
        self._chance = chance
        self._under_way: dict[_Call, None] = {}
        self._last_s: dict[str, float] = {}

    async def call(self, work: Coroutine[Any, Any, Result], session: str = "registry") -> Result:
        """Let the database do something. Raises StoreUnavailable; then it is unknown whether it was done.

        What one session asks for is done in that order.
        """
        call = _Call(work, self._loop.create_future())
        self._under_way[call] = None
        at_s = self._last_s[session] = max(self._last_s.get(session, 0.0), self._loop.time() + self._delay_s())
        self._loop.call_at(at_s, self._arrive, call, context=self._loop.outside)
        result: Result = await call.answer
        return result

    def kill(self) -> None:
        """The process is gone; perhaps what it has asked for was done before."""
        for call in list(self._under_way):
            if not call.is_done:
                if self._chance.random() < 0.5:
                    call.do()
                else:
                    call.fail()
        self._under_way.clear()

    def close(self) -> None:
        """The simulation is over: nothing that is still in progress will be done."""
        for call in self._under_way:
            if not call.is_done:
                call.work.close()

    def _arrive(self, call: _Call) -> None:
        if call.is_done:
            return
        after_s = self._delay_s()
        if self.is_cut or self._chance.random() < self.failure_ratio / 2:
            call.fail()
            after_s = self._chance.random() * GIVE_UP_S
        else:
            call.do()
        self._loop.call_later(after_s, self._answer, call, context=self._process.context)

    def _answer(self, call: _Call) -> None:
        self._under_way.pop(call, None)
        if call.answer.done():
            return
        if self.is_cut or self._chance.random() < self.failure_ratio / 2:
            call.lose()
        else:
            call.outcome()

    def _delay_s(self) -> float:
        chance = self._chance
        usual_s = 0.0003 + chance.random() * 0.002
        if chance.random() < 0.01:
            usual_s += chance.random() * 0.1
        return usual_s + chance.random() * self.slow_s


class SimulatedRegistry:
    """A Registry at the end of a line."""

    is_shared = True

    def __init__(self, store: MemoryStore, line: Line, loop: VirtualLoop, process: Process) -> None:
        self._registry = store.registry
        self._line = line
        self._loop = loop
        self._process = process
        self.news = Event[[]]()
        self._registry.news.subscribe(self.spread_news)

    node_id = property(lambda self: self._registry.node_id)
    epoch = property(lambda self: self._registry.epoch)
    generation = property(lambda self: self._registry.generation)
    secret = property(lambda self: self._registry.secret)

    @property
    def is_clustered(self) -> bool:
        return self._registry.is_clustered

    @is_clustered.setter
    def is_clustered(self, value: bool) -> None:
        self._registry.is_clustered = value

    def spread_news(self) -> None:
        """Notify the node that there is news, unless its line is cut."""
        if not self._line.is_cut:
            self._loop.call_later(0.001, self.news, context=self._process.context)

    async def renew(
        self,
        lease_s: float,
        *,
        addresses: Mapping[str, str],
        report: Mapping[str, Any],
        known_generation: int,
        seen_version: int,
        state: NodeState = NodeState.UP,
    ) -> list[NodeRecord]:
        return await self._line.call(
            self._registry.renew(
                lease_s,
                addresses=addresses,
                report=report,
                known_generation=known_generation,
                seen_version=seen_version,
                state=state,
            )
        )

    async def nodes(self) -> list[NodeRecord]:
        return await self._line.call(self._registry.nodes())

    async def leave(self) -> None:
        await self._line.call(self._registry.leave())

    async def changes(self, after_version: int, limit: int = 10_000) -> list[VersionedChange]:
        return await self._line.call(self._registry.changes(after_version, limit))

    async def claim(self, vhost: str, name: str, *, clustered: bool = False) -> int:
        return await self._line.call(self._registry.claim(vhost, name, clustered=clustered))

    async def claim_all(self, names: Sequence[tuple[str, str]]) -> None:
        await self._line.call(self._registry.claim_all(names))

    async def lead(self) -> bool:
        return await self._line.call(self._registry.lead())

    async def declare_dead(self, node_id: int, epoch: int) -> bool:
        return await self._line.call(self._registry.declare_dead(node_id, epoch))

    async def take_over(self, node_id: int, assignments: Mapping[int, int]) -> None:
        await self._line.call(self._registry.take_over(node_id, assignments))

    async def merge_member(self, source: int, destination: int) -> int:
        return await self._line.call(self._registry.merge_member(source, destination))

    async def remove_node(self, node_id: int) -> None:
        await self._line.call(self._registry.remove_node(node_id))

    async def trim_changes(self, up_to_version: int) -> None:
        await self._line.call(self._registry.trim_changes(up_to_version))


class SimulatedStore:
    """A Store at the end of a line."""

    keeps_messages = True
    pages = False
    problem: str | None = None
    is_rewound = False

    def __init__(self, domain: MemoryDomain, name: str, loop: VirtualLoop, process: Process, chance: Random) -> None:
        self._store = MemoryStore(domain=domain, node=name)
        self.line = Line(loop, process, chance)
        self.registry = SimulatedRegistry(self._store, self.line, loop, process)
        self._loop = loop
        self._opening: asyncio.Task[Snapshot] | None = None

    def kill(self) -> None:
        """The process of the node is gone."""
        self.line.kill()
        if self._opening is not None:
            self._opening.cancel()
        self._store.kill()

    def cut_off(self) -> None:
        self.line.is_cut = True
        self._store.cut_off = True

    def heal(self) -> None:
        """Make the database reachable again, and notify every listener that there may be news."""
        self.line.is_cut = False
        self._store.cut_off = False
        self.registry.spread_news()

    async def open(self) -> Snapshot:
        self._opening = self._loop.create_task(self._store.open(), context=self._loop.outside)
        return await self._opening

    async def close(self) -> None:
        if self.registry.epoch:
            await self._store.close()

    def check(self, change: Change) -> None:
        self._store.check(change)

    async def commit(self, batch: Batch, *, again: bool = False) -> None:
        await self.line.call(self._store.commit(batch, again=again), "writer")

    async def load(self, message_ids: Sequence[int], max_bytes: int = NO_LIMIT) -> list[Message]:
        return await self.line.call(self._store.load(message_ids, max_bytes), "reader")

    async def page(self, queue_id: int, after_id: int, limit: int, max_bytes: int = NO_LIMIT) -> list[Message]:
        return await self.line.call(self._store.page(queue_id, after_id, limit, max_bytes), "reader")

    def index(self, queue_id: int, columns: IndexColumns, up_to_id: int) -> AsyncIterator[IndexPiece]:
        return self._store.index(queue_id, columns, up_to_id)

    async def body_bytes(self, queue_id: int, without: Sequence[int]) -> int:
        return await self.line.call(self._store.body_bytes(queue_id, without), "reader")

    async def expiring(self) -> list[tuple[int, int]]:
        return await self.line.call(self._store.expiring(), "reader")

    async def delete_queue_messages(self, queue_id: int, up_to_id: int, keep: Container[int]) -> int:
        return await self.line.call(self._store.delete_queue_messages(queue_id, up_to_id, keep), "reader")

    async def sweep_orphans(self) -> int:
        return await self.line.call(self._store.sweep_orphans(), "reader")

    async def reclaim(self) -> None:
        await self.line.call(self._store.reclaim(), "worker")

    async def write_again(self, queues: Sequence[Queue], messages: Sequence[Message]) -> int:
        return await self.line.call(self._store.write_again(queues, messages), "writer")

    async def adopt(self, queue_ids: Sequence[int]) -> list[QueueSummary]:
        return await self.line.call(self._store.adopt(queue_ids), "reader")

    async def arrivals(self, queue_ids: Sequence[int]) -> list[Arrived]:
        return await self.line.call(self._store.arrivals(queue_ids), "reader")

    async def received(self, taken: Sequence[Arrived]) -> None:
        await self.line.call(self._store.received(taken), "reader")

    async def reserve_queue_ids(self, count: int) -> int:
        return await self.line.call(self._store.reserve_queue_ids(count))

    async def reserve_client_ids(self, count: int) -> int:
        return await self.line.call(self._store.reserve_client_ids(count))

    async def reserve_message_ids(self, count: int) -> int:
        return await self.line.call(self._store.reserve_message_ids(count), "writer")

    async def return_message_ids(self, next_id: int) -> None:
        await self.line.call(self._store.return_message_ids(next_id))
