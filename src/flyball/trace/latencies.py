"""Cumulative live latency histograms of request phases.

Computed with numpy, in batches, from the same sampled and weighted records as the trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flyball.trace.buffer import Numbers, RecordBuffer
from flyball.trace.requests import phases_of
from flyball.trace.schema import Kind

PHASES = ("wait", "parse", "engine", "store", "emit", "total")

# From 1 µs to 17 s.
BOUNDS_NS: tuple[int, ...] = tuple(1000 * 2**power for power in range(25))

BOUNDS_S = tuple(bound / 1e9 for bound in BOUNDS_NS)

# The last bucket is unbounded.
BUCKETS = len(BOUNDS_NS) + 1

_BOUNDS = np.array(BOUNDS_NS, np.int64)
_KINDS = len(Kind)


class Latencies:
    """Counts and phase durations by kind of request."""

    __slots__ = ("_buckets", "_counts", "_sums_ns")

    def __init__(self) -> None:
        self._counts = np.zeros(_KINDS, np.int64)
        self._sums_ns = np.zeros((len(PHASES), _KINDS), np.int64)
        self._buckets = np.zeros((len(PHASES), _KINDS * BUCKETS), np.int64)

    def copy(self) -> Latencies:
        return self._of(self._counts.copy(), self._sums_ns.copy(), self._buckets.copy())

    def since(self, earlier: Latencies) -> Latencies:
        """Return the difference to an earlier state."""
        return self._of(
            self._counts - earlier._counts, self._sums_ns - earlier._sums_ns, self._buckets - earlier._buckets
        )

    def count(self, buffer: RecordBuffer, start_bytes: int, end_bytes: int) -> None:
        """Add the records between two positions of a buffer."""
        count = (end_bytes - start_bytes) // buffer.record_bytes
        if count <= 0:
            return
        at = buffer.columns(start_bytes, count)
        kinds = at["kind"].astype(np.int64)
        weights = at["weight"]
        self._counts += _summed(kinds, weights, _KINDS)
        took = phases_of(at)
        took["total_ns"] = sum([took[f"{phase}_ns"] for phase in PHASES[:-1]], np.zeros(count, np.int64))
        for number, phase in enumerate(PHASES):
            took_ns = took[f"{phase}_ns"]
            self._sums_ns[number] += _summed(kinds, took_ns * weights, _KINDS)
            places = kinds * BUCKETS + np.searchsorted(_BOUNDS, took_ns)
            self._buckets[number] += _summed(places, weights, _KINDS * BUCKETS)

    def summary(self) -> dict[str, dict[str, Any]]:
        """Return counts and phase statistics as plain values, by the names of recorded kinds."""
        return {
            kind.name.lower(): {
                "count": int(self._counts[kind]),
                "sum_ns": {phase: int(self._sums_ns[number, kind]) for number, phase in enumerate(PHASES)},
                "buckets": {phase: self.buckets(kind, phase) for phase in PHASES},
            }
            for kind in Kind
            if self._counts[kind]
        }

    def buckets(self, kind: Kind, phase: str) -> list[int]:
        """Return the histogram of a phase."""
        found: list[int] = self._buckets[PHASES.index(phase), kind * BUCKETS : (kind + 1) * BUCKETS].tolist()
        return found

    def requests(self, kind: Kind) -> int:
        """Return the number of requests of a kind."""
        return int(self._counts[kind])

    def mean_ns(self, kind: Kind, phase: str) -> float:
        """Return the mean duration of a phase; 0 without requests."""
        count = self.requests(kind)
        return int(self._sums_ns[PHASES.index(phase), kind]) / count if count else 0.0

    def _of(self, counts: Numbers, sums_ns: Numbers, buckets: Numbers) -> Latencies:
        made = Latencies.__new__(Latencies)
        made._counts = counts
        made._sums_ns = sums_ns
        made._buckets = buckets
        return made


def percentile_ns(buckets: Sequence[int], ratio: float) -> float:
    """Return a percentile, to the precision of the buckets; 0 without requests."""
    wanted = sum(buckets) * ratio
    reached = 0
    for number, count in enumerate(buckets):
        if count and reached + count >= wanted:
            low = BOUNDS_NS[number - 1] if number else 0
            high = BOUNDS_NS[number] if number < len(BOUNDS_NS) else 2 * BOUNDS_NS[-1]
            return low + (high - low) * max(0.0, wanted - reached) / count
        reached += count
    return 0.0


def _summed(places: Numbers, values: Numbers, size: int) -> Numbers:
    return np.bincount(places, weights=values, minlength=size).astype(np.int64)
