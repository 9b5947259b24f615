"""Facts that only the logs of the papers' systems provide, as rows of the tables that traces fill.

ThorBangMQ's servers log sums over an interval instead of requests: means, no percentiles. Telesto's log the downtime
of workers, which a node does not have. Works on the few points of a run: pandas, no Spark.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from flyball.pipeline.intervals import batch_means, half_width
from flyball.pipeline.log_sums import COMPONENTS
from flyball.pipeline.measures import TELESTO_COLUMNS

_KINDS = {"put": "pushes", "take": "pops"}


def throughput_of(intervals: pd.DataFrame) -> pd.DataFrame:
    """Convert INTERVAL_SUMS to rows of `throughput`: the counts of each interval, in the second in which it ended."""
    parts = [
        intervals.assign(kind=kind, requests=intervals[column], messages=intervals[column])
        for kind, column in _KINDS.items()
    ]
    rows = pd.concat(parts, ignore_index=True).assign(source="nodes", queue="").rename(columns={"node": "place"})
    keys = ["run", "source", "place", "kind", "queue", "second"]
    return rows.groupby(keys, as_index=False)[["requests", "messages"]].sum()


def phases_of(intervals: pd.DataFrame) -> pd.DataFrame:
    """Convert INTERVAL_SUMS to rows of `phases` for all kinds: means over answers, deviations over intervals."""
    rows = []
    for (run, node), own in intervals.groupby(["run", "node"]):
        sums = own.sum(numeric_only=True)
        if not sums["answers"]:
            continue
        for phase in COMPONENTS:
            sd_ms = _deviation(sums["answered"], sums[f"{phase}_mean"], sums[f"{phase}_mean2"])
            rows.append((run, node, "all", phase, int(sums["answers"]), sums[f"{phase}_ms"] / sums["answers"], sd_ms))
    columns = ["run", "node", "kind", "phase", "requests", "mean_ms", "sd_ms"]
    unknown = dict.fromkeys(("p5_ms", "p50_ms", "p95_ms", "p99_ms"), float("nan"))
    return pd.DataFrame(rows, columns=columns).assign(**unknown)


def downtime_of(over_time: pd.DataFrame, percentiles: pd.DataFrame) -> pd.DataFrame:
    """Return rows of `telesto`: the time for which the workers of each run waited for a request.

    `over_time` has the sums of DOWNTIME_SUMS of each second, `percentiles` the quantiles of each run.
    """
    rows = []
    shapes = {row["run"]: row for row in percentiles.to_dict("records")}
    for run, own in over_time.sort_values("second").groupby("run"):
        count, total_ms = int(own["requests"].sum()), float(own["sum_ms"].sum())
        mean = total_ms / count
        sd = 0.0 if count == 1 else _deviation(count, total_ms, float(own["sum_ms2"].sum()))
        sums, counts = (own[name].to_numpy(dtype=np.float64) for name in ("sum_ms", "requests"))
        # A single second has no batches: its values are treated as independent.
        width = batch_means(sums, counts).half_width if len(own) > 1 else half_width(count, sd)
        p5, p50, p95, p99 = (float(shapes[run][f"{name}_ms"]) for name in ("p5", "p50", "p95", "p99"))
        what = (run, "middleware worker downtime", "all", "ms", count)
        rows.append((*what, mean, sd, width, p5 - mean, p95 - mean, p50, p95, p99))
    return pd.DataFrame(rows, columns=list(TELESTO_COLUMNS))


def _deviation(count: float, total: float, squares: float) -> float:
    """Return the standard deviation of a sample from its sums, NaN for fewer than two values."""
    # Rounding can make a variance of nearly 0 negative.
    return math.sqrt(max(squares - total * total / count, 0.0) / (count - 1)) if count > 1 else math.nan
