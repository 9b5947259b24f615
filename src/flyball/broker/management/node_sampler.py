"""Samples the totals of a node once a second, and derives rates.

Queues, connections and other single objects are tracked only while they are viewed.
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

# Interval between checks of the process's files and its disk.
LOOK_AROUND_S = 5.0

# Number of samples kept: five minutes.
KEPT = 300

# Histograms are larger than totals, and averages cover at most this many samples.
KEPT_LATENCIES = 12

# Minimum interval between two readings of an object; an earlier reading returns the previous rates.
YOUNGEST_S = 0.9

# An older reading says nothing about the current rate.
OLDEST_S = 10.0

# An object is forgotten when it has not been read for this long.
FORGOTTEN_S = 60.0

# Gauges: their rates may be negative, those of counters not.
LEVELS = frozenset({*GAUGES, "messages", "memory_bytes", "open_files", "disk_free_bytes"})


@contextlib.contextmanager
def failures_logged(what: str) -> Iterator[None]:
    """Log any exception and continue: the node has messages to serve."""
    try:
        yield
    except Exception:
        log.exception("%s failed; continuing", what)


@dataclass(slots=True)
class _Look:
    """The counters of an object at one reading."""

    at_s: float
    counters: Mapping[str, int]
    rates: dict[str, float]
    is_idle: bool


class Sampler:
    """Samples a node once a second. Idle objects cost nothing beyond that."""

    def __init__(self, node: Node, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` measures the time between samples; tests replace it."""
        self._node = node
        self._clock = clock
        # The newest sample last.
        self.history: deque[Totals] = deque(maxlen=KEPT)
        self.latest = Totals()
        # CPU use of the process between the last two samples; above 1 with threads.
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
                # In a thread: a network disk may not respond, which must not delay messages.
                await asyncio.to_thread(self._node.resources.read_files_and_disk)
            await asyncio.sleep(LOOK_AROUND_S)

    async def _take_samples(self) -> None:
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        while True:
            with failures_logged("taking a sample"):
                await self.sample()
            # After a stall of the loop, missed samples are skipped.
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
        for callback in list(self.on_sample):
            with failures_logged("publishing a sample"):
                callback()

    # Of the node

    def rate(self, name: str, over_s: float = 5.0) -> float:
        """Return the rate of a counter, averaged over that time."""
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
        """Return latencies of a kind of request: averages by phase, percentiles of the total, and the count.

        All are 0 without requests, or without a trace.
        """
        recent = self._recent_latencies(over_s)
        reported = {phase: recent.mean_ns(kind, phase) / 1e6 for phase in PHASES}
        buckets = recent.buckets(kind, "total")
        reported |= {"p50": percentile_ns(buckets, 0.5) / 1e6, "p99": percentile_ns(buckets, 0.99) / 1e6}
        return {**reported, "count": float(recent.requests(kind))}

    def _first_within(self, over_s: float) -> int:
        """Return the index of the oldest sample in the window, or of the last but one."""
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

    # Objects

    def rates_of(self, kind: str, key: Hashable, counters: Mapping[str, int]) -> dict[str, float]:
        """Return the rates of an object's counters since the last reading.

        0 at the first reading, and if the last one is too old.
        """
        now_s = self._clock()
        before = self._looks.get((kind, key))
        if before is not None and now_s - before.at_s < YOUNGEST_S:
            return before.rates
        if before is not None and before.is_idle and counters == before.counters:
            # Most of many objects are idle: check that first.
            before.at_s = now_s
            return before.rates
        is_idle = before is None or now_s - before.at_s > OLDEST_S or counters == before.counters
        if before is None or is_idle:
            rates = dict.fromkeys(counters, 0.0)
        else:
            passed_s = now_s - before.at_s
            grown = {name: value - before.counters.get(name, value) for name, value in counters.items()}
            # A new object of the same name may have restarted its counters.
            rates = {name: (more if name in LEVELS else max(0, more)) / passed_s for name, more in grown.items()}
        self._looks[kind, key] = _Look(now_s, counters, rates, is_idle)
        return rates

    def _forget(self, now_s: float) -> None:
        gone = [place for place, look in self._looks.items() if now_s - look.at_s > FORGOTTEN_S]
        for place in gone:
            del self._looks[place]
