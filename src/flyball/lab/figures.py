"""Basic figures of one run, from the calls that its clients recorded: enough for a sanity check.

The pipeline computes all others, with confidence intervals.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

COLUMNS = ["intended_us", "late_ns", "response_ns", "weight"]


def figures_of(traces: Path, from_us: int, until_us: int) -> dict[str, float]:
    """Return the rate of calls answered in the window, per second, and their mean response time."""
    count = 0.0
    latency_ns = 0.0
    for path in sorted(traces.glob("calls-*.parquet")):
        calls = pq.read_table(path, columns=COLUMNS)
        intended_us, late_ns, response_ns, weight = (calls[name].to_numpy() for name in COLUMNS)
        took_ns = late_ns + response_ns
        answered_us = intended_us + took_ns // 1000
        is_within = (from_us <= answered_us) & (answered_us < until_us)
        count += float(weight[is_within].sum())
        latency_ns += float((took_ns * weight)[is_within].sum(dtype=float))
    seconds = (until_us - from_us) / 1e6
    return {
        "calls_per_s": round(count / seconds, 2),
        "response_ms": round(latency_ns / count / 1e6, 4) if count else 0.0,
    }
