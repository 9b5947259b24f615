"""Records the activity of a node in its traces: CPU, memory, clients and busy queues, once a second.

A queue is busy in a second with events of its messages. The busiest queues are recorded with their names and the
times of some messages, the others as one sum. An idle node records a row every ten minutes.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from flyball.broker.core.broker import Broker
from flyball.broker.core.clock import now_us
from flyball.broker.engine.counts import Counts
from flyball.broker.engine.message_times import MessageTimes
from flyball.broker.engine.queue import QueueState
from flyball.broker.node.cpu import CpuClock
from flyball.broker.node.resources import memory_bytes
from flyball.control.loop import Sample
from flyball.trace.activity import NodeSecond, NodeWriter, QueueSecond, QueueWriter, Timed, TimeWriter
from flyball.trace.samples import SampleWriter
from flyball.trace.schema import Metric

PERIOD_S = 1.0

# Interval between records of an idle node.
IDLE_S = 600.0

# Maximum number of queues recorded with their names per second, the busiest first.
MAX_QUEUES = 100

# Number of messages timed per second in each of these queues.
TIMED_PER_S = 8

# The name for the sum of the queues above MAX_QUEUES.
OTHERS = "(others)"

# Number of queues read in one turn of the event loop: less than a millisecond.
SLICE = 250

# Share of the disk space of traces for samples, seconds, queues and times together.
TRACES_SHARE = 1 / 4

# A queue's ready and unacked messages and consumers, and the messages published, delivered and acked.
_Counts = tuple[int, int, int, int, int, int]


class Activity:
    """Records the activity and the loop samples of one node."""

    def __init__(self, folder: Path, node: str, keep_bytes: int, broker: Broker, cpu: CpuClock) -> None:
        """Creates no files before `start`. Keeps about `keep_bytes` at most."""
        share = int(keep_bytes * TRACES_SHARE / 4)
        self._broker = broker
        self._cpu = cpu
        self._nodes = NodeWriter(folder, node, share)
        self._queues = QueueWriter(folder, node, share)
        self._times = TimeWriter(folder, node, share)
        self._samples = SampleWriter(folder, node, rotate_s=60.0, keep_bytes=share, max_buffers=2)
        # Records a sample of a loop of the node. Never blocks.
        self.record: Callable[[Sample], None] = self._samples.record
        # The queues whose messages are timed, in the order in which they were last busy.
        self._timed: dict[int, QueueState] = {}
        self._random = random.Random(0).random
        self._before_ns = time.perf_counter_ns()
        self._counters: dict[str, int] = {}
        self._clients = self._read_clients()
        # Gauges of the last look.
        self._gauges: dict[str, int] = {}
        # Unrecorded idle time, and the CPU time in it.
        self._idle_ns = self._idle_cpu_ns = self._idle_store_cpu_ns = 0

    @property
    def writers(self) -> tuple[NodeWriter, QueueWriter, TimeWriter, SampleWriter]:
        return self._nodes, self._queues, self._times, self._samples

    @property
    def dropped(self) -> int:
        """Number of dropped records."""
        return sum(writer.dropped for writer in self.writers)

    @property
    def failures(self) -> int:
        """Number of failed writes."""
        return sum(writer.failures for writer in self.writers)

    def start(self) -> None:
        """Start writing."""
        for writer in self.writers:
            writer.start()

    def stop(self) -> None:
        """Write buffered records, and stop. Blocks."""
        for writer in self.writers:
            writer.stop()

    async def run(self) -> None:
        """Record every second until cancelled."""
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        while True:
            await self.look()
            # Seconds missed while the loop was blocked are recorded as one long second.
            next_s = max(next_s + PERIOD_S, loop.time())
            await asyncio.sleep(next_s - loop.time())

    async def end(self) -> None:
        """Record the time since the last record, before `stop`."""
        await self.look()
        if self._idle_ns:
            self._record_idle(self._before_ns, self._gauges, dict.fromkeys(self._counters, 0))

    async def look(self) -> None:
        """Record the activity since the last look."""
        at_ns = time.perf_counter_ns()
        elapsed_ns, before_ns, self._before_ns = at_ns - self._before_ns, self._before_ns, at_ns
        engine = self._broker.engine
        # Read in the same turn: a queue deleted during the count is counted once.
        queues, count = engine.queues, _Count(_delivered(engine.gone), engine.gone.acknowledged)
        for start in range(0, len(queues), SLICE):
            if start:
                await asyncio.sleep(0)
            count.add(queues[start : start + SLICE])
        self._record_queues(at_ns, elapsed_ns, count.busy)
        counters, clients = self._read_counters(count), self._read_clients()
        cpu_ns, store_cpu_ns = self._cpu.read()
        grown = {name: max(0, value - self._counters.get(name, 0)) for name, value in counters.items()}
        is_idle = not (count.busy or grown["published"] or grown["confirmed"]) and clients == self._clients
        self._counters, self._clients = counters, clients
        self._gauges = gauges = clients | count.gauges | {"queues": len(queues)}
        if is_idle:
            self._idle_ns += elapsed_ns
            self._idle_cpu_ns += cpu_ns
            self._idle_store_cpu_ns += store_cpu_ns
            if self._idle_ns >= IDLE_S * 1e9:
                self._record_idle(at_ns, gauges, grown)
            return
        if self._idle_ns:
            self._record_idle(before_ns, gauges, dict.fromkeys(grown, 0))
        self._record_node(at_ns, elapsed_ns, cpu_ns, store_cpu_ns, gauges, grown)

    def _read_counters(self, count: _Count) -> dict[str, int]:
        meters = self._broker.meters
        return {
            "published": meters.published,
            "delivered": count.delivered,
            "acked": count.acked,
            "confirmed": meters.confirmed,
            "read_bytes": meters.read_bytes,
            "written_bytes": meters.written_bytes,
        }

    def _read_clients(self) -> dict[str, int]:
        meters = self._broker.meters
        return {
            "connections": meters.connections_opened - meters.connections_closed,
            "channels": meters.channels_opened - meters.channels_closed,
        }

    def _record_idle(self, at_ns: int, gauges: Mapping[str, int], grown: Mapping[str, int]) -> None:
        self._record_node(at_ns, self._idle_ns, self._idle_cpu_ns, self._idle_store_cpu_ns, gauges, grown)
        self._idle_ns = self._idle_cpu_ns = self._idle_store_cpu_ns = 0

    def _record_node(
        self,
        at_ns: int,
        elapsed_ns: int,
        cpu_ns: int,
        store_cpu_ns: int,
        gauges: Mapping[str, int],
        grown: Mapping[str, int],
    ) -> None:
        self._nodes.record(
            NodeSecond(
                at_ns=at_ns,
                elapsed_ns=elapsed_ns,
                cpu_ns=cpu_ns,
                store_cpu_ns=store_cpu_ns,
                memory_bytes=memory_bytes() or 0,
                held_bytes=self._broker.ledger.level_bytes,
                **gauges,
                **grown,
            )
        )

    def _record_queues(self, at_ns: int, elapsed_ns: int, busy: Sequence[_Busy]) -> None:
        named = heapq.nlargest(MAX_QUEUES, busy, key=lambda found: found.events)
        for found in named:
            queue = found.state.queue
            self._queues.record(at_ns, elapsed_ns, QueueSecond(queue.vhost, queue.name, *found.counts))
            self._time(at_ns, found.state, found.counts[4])
        if len(busy) > len(named):
            rest = [
                sum(all_of) - sum(own)
                for all_of, own in zip(
                    zip(*(found.counts for found in busy), strict=True),
                    zip(*(found.counts for found in named), strict=True),
                    strict=True,
                )
            ]
            self._queues.record(at_ns, elapsed_ns, QueueSecond("", OTHERS, *rest))
        find = self._broker.engine.find_queue_by_id
        for number in [number for number, state in self._timed.items() if find(number) is not state]:
            self._forget(number)

    def _time(self, at_ns: int, state: QueueState, delivered: int) -> None:
        """Record the times of a busy queue's messages, and choose the messages of the next second."""
        number = state.queue.id
        self._timed.pop(number, None)
        if state.times is None:
            if len(self._timed) >= MAX_QUEUES:
                # The queue that has been quiet for the longest time.
                self._forget(next(iter(self._timed)))
            state.times = MessageTimes(TIMED_PER_S, now_us, self._random)
        self._timed[number] = state
        times = state.times
        found = [Timed(Metric.WAIT, *each) for each in times.waits]
        found += [Timed(Metric.SERVICE, *each) for each in times.services]
        if found:
            self._times.record(at_ns, state.queue.vhost, state.queue.name, found)
        times.begin_second(state, delivered)

    def _forget(self, number: int) -> None:
        state = self._timed.pop(number)
        if state.times is not None:
            state.times.end(state)
            state.times = None


class _Busy(NamedTuple):
    """A queue with events."""

    # Number of events.
    events: int
    state: QueueState
    counts: _Counts


class _Count:
    """Counts the queues of a node."""

    def __init__(self, delivered: int, acked: int) -> None:
        """Start with the counts of deleted queues."""
        self.delivered = delivered
        self.acked = acked
        self.gauges = {"ready": 0, "unacked": 0, "consumers": 0}
        self.busy: list[_Busy] = []

    def add(self, queues: Sequence[QueueState]) -> None:
        """Count some queues, and record their busy ones with their new counts."""
        for state in queues:
            ready, delivered, acked = len(state), _delivered(state), state.acknowledged
            self.delivered += delivered
            self.acked += acked
            events = delivered + acked + state.arrived + state.requeued + state.dropped + state.handed_over
            if events != state.seen[0] or ready != state.seen[1]:
                self._note(state, events, ready, delivered)
        self.gauges["ready"] += sum(map(len, queues))
        self.gauges["unacked"] += sum([state.unacked_count for state in queues])
        self.gauges["consumers"] += sum([len(state.consumers) for state in queues])

    def _note(self, state: QueueState, events: int, ready: int, delivered: int) -> None:
        before, state.seen = state.seen, (events, ready, state.arrived, delivered, state.acknowledged)
        grown = (state.arrived - before[2], delivered - before[3], state.acknowledged - before[4])
        counts = (ready, state.unacked_count, len(state.consumers), *grown)
        self.busy.append(_Busy(events - before[0] + abs(ready - before[1]), state, counts))


def _delivered(counts: Counts) -> int:
    return counts.delivered + counts.delivered_no_ack + counts.got + counts.got_no_ack
