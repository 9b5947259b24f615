"""How fast things happen: the totals of a node once a second, and the rates that follow from them.

Of single queues, connections and so on only those are remembered that somebody has just looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass

from flyball.broker.management.totals import COUNTERS, GAUGES, Totals, totals
from flyball.broker.node.node import Node
from flyball.trace.latencies import PHASES, Latencies, percentile_ns
from flyball.trace.schema import Kind

log = logging.getLogger(__name__)

SAMPLE_S = 1.0

# So often the process's files and its disk are looked at.
LOOK_AROUND_S = 5.0

# So many samples are kept: five minutes.
KEPT = 300

# Histograms are larger than totals, and nobody asks for averages over longer than that.
KEPT_LATENCIES = 12

# Two looks at an object that are closer together tell no rate: the one before is told again.
YOUNGEST_S = 0.9

# What was seen longer ago tells nothing about now.
OLDEST_S = 10.0

# An object that nobody looks at for so long is forgotten.
FORGOTTEN_S = 60.0

# What goes up and down: such things may have rates below 0, counters have not.
LEVELS = frozenset({*GAUGES, "messages", "memory_bytes", "open_files", "disk_free_bytes"})


@contextlib.contextmanager
def failures_logged(what: str) -> Iterator[None]:
    """Log whatever goes wrong inside, and go on after it: the node has messages to serve."""
    try:
        yield
    except Exception:
        log.exception("%s failed; the node goes on", what)


@dataclass(slots=True)
class _Look:
    """When somebody looked at an object, and what it had counted."""

    at_s: float
    counters: Mapping[str, int]
    rates: dict[str, float]
    is_idle: bool


class Sampler:
    """Looks at a node once a second. What happens while nobody asks costs that and nothing else."""

    def __init__(self, node: Node, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells the time that passes between two samples; tests have their own."""
        self._node = node
        self._clock = clock
        # The newest last.
        self.history: deque[Totals] = deque(maxlen=KEPT)
        self.latest = Totals()
        # How much of a processor the process has used between the last two samples; more than 1 with threads.
        self.cpu_ratio = 0.0
        # Called after each sample.
        self.on_sample: list[Callable[[], None]] = []
        self._times_s: deque[float] = deque(maxlen=KEPT)
        self._cpu_s: deque[float] = deque(maxlen=2)
        self._latencies: deque[tuple[float, Latencies]] = deque(maxlen=KEPT_LATENCIES)
        self._looks: dict[tuple[str, Hashable], _Look] = {}

    async def run(self) -> None:
        """Take samples until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_around())
            await self._take_samples()

    async def _look_around(self) -> None:
        while True:
            with failures_logged("looking at files and disk"):
                # In a thread: a disk of another machine may not answer, and messages go on.
                await asyncio.to_thread(self._node.resources.read_files_and_disk)
            await asyncio.sleep(LOOK_AROUND_S)

    async def _take_samples(self) -> None:
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        while True:
            with failures_logged("taking a sample"):
                await self.sample()
            # A loop that was busy for long makes up for nothing.
            next_s = max(next_s + SAMPLE_S, loop.time())
            await asyncio.sleep(next_s - loop.time())

    async def sample(self) -> None:
        """Take a sample now."""
        found = await totals(self._node)
        now_s = self._clock()
        self.latest = found
        self.history.append(found)
        self._times_s.append(now_s)
        self._cpu_s.append(sum(os.times()[:2]))
        if len(self._times_s) > 1 and self._times_s[-1] > self._times_s[-2]:
            self.cpu_ratio = (self._cpu_s[-1] - self._cpu_s[0]) / (self._times_s[-1] - self._times_s[-2])
        self._node.resources.read_memory()
        recorder = self._node.hub.recorder
        if recorder is not None:
            self._latencies.append((now_s, recorder.latencies.copy()))
        self._forget(now_s)
        for tell in list(self.on_sample):
            with failures_logged("telling of a sample"):
                tell()

    # Of the node

    def rate(self, name: str, over_s: float = 5.0) -> float:
        """Return how much a counter of the totals grows in a second, on average over that time."""
        if len(self.history) < 2:
            return 0.0
        first = self._first_within(over_s)
        passed_s = self._times_s[-1] - self._times_s[first]
        grown: int = getattr(self.history[-1], name) - getattr(self.history[first], name)
        return grown / passed_s if passed_s > 0 else 0.0

    def rates(self, over_s: float = 5.0) -> dict[str, float]:
        """Return the rates of all counters."""
        return {name: self.rate(name, over_s) for name in COUNTERS}

    def latency_ms(self, kind: Kind, over_s: float = 5.0) -> dict[str, float]:
        """Return what requests of a kind took: each phase on average, percentiles of the whole, and how many.

        All are 0 if there were none, or if no trace is kept.
        """
        recent = self._recent_latencies(over_s)
        reported = {phase: recent.mean_ns(kind, phase) / 1e6 for phase in PHASES}
        buckets = recent.buckets(kind, "total")
        reported |= {"p50": percentile_ns(buckets, 0.5) / 1e6, "p99": percentile_ns(buckets, 0.99) / 1e6}
        return {**reported, "count": float(recent.requests(kind))}

    def _first_within(self, over_s: float) -> int:
        """Return the place of the oldest sample that is not older, or of the last but one."""
        earliest_s = self._times_s[-1] - over_s - SAMPLE_S / 2
        place = len(self._times_s) - 2
        while place > 0 and self._times_s[place - 1] >= earliest_s:
            place -= 1
        return place

    def _recent_latencies(self, over_s: float) -> Latencies:
        if not self._latencies:
            return Latencies()
        last_s, last = self._latencies[-1]
        earlier = [
            found for at_s, found in self._latencies if at_s < last_s and last_s - at_s <= over_s + SAMPLE_S / 2
        ]
        return last.since(earlier[0]) if earlier else last

    # Of what somebody looks at

    def rates_of(self, kind: str, key: Hashable, counters: Mapping[str, int]) -> dict[str, float]:
        """Return how much the counters of an object grow in a second, since somebody looked at it last.

        They are 0 at the first look, and when the last one is too long ago to say something about now.
        """
        now_s = self._clock()
        before = self._looks.get((kind, key))
        if before is not None and now_s - before.at_s < YOUNGEST_S:
            return before.rates
        if before is not None and before.is_idle and counters == before.counters:
            # Of many objects most are idle, and that is quickly seen.
            before.at_s = now_s
            return before.rates
        is_idle = before is None or now_s - before.at_s > OLDEST_S or counters == before.counters
        if before is None or is_idle:
            rates = dict.fromkeys(counters, 0.0)
        else:
            passed_s = now_s - before.at_s
            grown = {name: value - before.counters.get(name, value) for name, value in counters.items()}
            # An object of the same name may have begun to count again.
            rates = {name: (more if name in LEVELS else max(0, more)) / passed_s for name, more in grown.items()}
        self._looks[kind, key] = _Look(now_s, counters, rates, is_idle)
        return rates

    def _forget(self, now_s: float) -> None:
        gone = [place for place, look in self._looks.items() if now_s - look.at_s > FORGOTTEN_S]
        for place in gone:
            del self._looks[place]
