"""Offset between the monotonic clock and wall-clock time."""

from __future__ import annotations

import time

READINGS = 5


def epoch_ns() -> int:
    """Return the offset from `time.perf_counter_ns` to 1970.

    A thread switch between the two readings distorts the offset, so the quickest of several pairs is used.
    """
    readings = []
    for _ in range(READINGS):
        before_ns = time.perf_counter_ns()
        now_ns = time.time_ns()
        after_ns = time.perf_counter_ns()
        readings.append((after_ns - before_ns, now_ns - (before_ns + after_ns) // 2))
    return min(readings)[1]
