"""Facts that only the logs of the papers' systems have, as rows of the tables that traces fill.

ThorBangMQ's servers log sums over an interval where a trace has requests: means, no percentiles. Those of
Telesto log the downtime of workers, which a node does not have. Logs are small: pandas, no Spark.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from flyball.pipeline.intervals import batch_means
from flyball.pipeline.measures import TELESTO_COLUMNS

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


def downtime_of(downtimes: pd.DataFrame) -> pd.DataFrame:
    """Return rows of `telesto`: how long the workers of each run waited for a request."""
    rows = []
    for run, own in downtimes.sort_values("at_us").groupby("run"):
        times_ms = own["downtime_ns"].to_numpy() / 1e6
        interval = batch_means(times_ms)
        p5, p50, p95, p99 = np.quantile(times_ms, (0.05, 0.5, 0.95, 0.99))
        mean, sd = interval.mean, times_ms.std(ddof=1) if times_ms.size > 1 else 0.0
        what = (run, "middleware worker downtime", "all", "ms", times_ms.size)
        rows.append((*what, mean, sd, interval.half_width, p5 - mean, p95 - mean, p50, p95, p99))
    return pd.DataFrame(rows, columns=list(TELESTO_COLUMNS))


def _sums_ms(intervals: pd.DataFrame) -> dict[str, pd.Series[float]]:
    """Return the sums of each component: the report's three are differences of what the server adds up."""
    total, worker, store = (intervals[name] / 1e6 for name in ("total_ns", "worker_ns", "persistence_ns"))
    return {"socket": total - worker, "worker": worker - store, "persistence": store, "total": total}
