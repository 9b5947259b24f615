"""What the interval logs of seed 002's servers say, as rows of the tables that traces fill.

A log has sums over an interval where a trace has requests, so there are means but no percentiles. Logs are small:
pandas, no Spark.
"""

from __future__ import annotations

import pandas as pd

_KINDS = {"put": "pushes", "take": "pops"}


def throughput_of(intervals: pd.DataFrame, windows: pd.DataFrame) -> pd.DataFrame:
    """Return rows of `throughput`: what each interval counted, in the second in which it ended."""
    placed = intervals.merge(windows, on="run")
    placed["second"] = (placed["at_us"] - placed["from_us"]) // 1_000_000
    parts = [
        placed.assign(kind=kind, requests=placed[column], messages=placed[column]) for kind, column in _KINDS.items()
    ]
    rows = pd.concat(parts, ignore_index=True).assign(source="nodes", queue="").rename(columns={"node": "place"})
    keys = ["run", "source", "place", "kind", "queue", "second"]
    return rows.groupby(keys, as_index=False)[["requests", "messages"]].sum()


def phases_of(intervals: pd.DataFrame) -> pd.DataFrame:
    """Return rows of `phases` for all kinds together: means over answers, deviations over intervals."""
    answered = intervals[intervals["answers"] > 0]
    rows = []
    for (run, node), own in answered.groupby(["run", "node"]):
        for phase, sums_ms in _sums_ms(own).items():
            mean_ms = sums_ms.sum() / own["answers"].sum()
            sd_ms = (sums_ms / own["answers"]).std()
            rows.append((run, node, "all", phase, int(own["answers"].sum()), mean_ms, sd_ms))
    columns = ["run", "node", "kind", "phase", "requests", "mean_ms", "sd_ms"]
    unknown = dict.fromkeys(("p5_ms", "p50_ms", "p95_ms", "p99_ms"), float("nan"))
    return pd.DataFrame(rows, columns=columns).assign(**unknown)


def _sums_ms(intervals: pd.DataFrame) -> dict[str, pd.Series[float]]:
    """Return the sums of each component: the report's three are differences of what the server adds up."""
    total, worker, store = (intervals[name] / 1e6 for name in ("total_ns", "worker_ns", "persistence_ns"))
    return {"socket": total - worker, "worker": worker - store, "persistence": store, "total": total}
