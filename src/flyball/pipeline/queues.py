"""Results of experiments with clustered queues: rates and ready messages over time, and a comparison of policies.

Works on the driver with the small table THROUGHPUT. Messages are not attributed to nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from flyball.pipeline.events import CLIENTS
from flyball.pipeline.latency import ALL
from flyball.pipeline.manifest import Run
from flyball.pipeline.measures import COLUMNS as MEASURE_COLUMNS
from flyball.pipeline.measures import RECEIVED, whole_points

WORKLOAD = "clustered"
# The factors with the policy of a run; each has a table of the same name.
PLACEMENT, PROVISIONING = "placement", "provisioning"
# The factor with the number of nodes of a run.
NODES = "nodes"

# Metrics of a queue that many clients share, in messages: the mean of the stable part, and the peak rate.
QUEUE_UNITS = {"queue_rate": "1/s", "queue_peak": "1/s"}
# The peak rate is a mean over this many seconds.
PEAK_S = 10

# Messages/s produced and consumed in each second or longer point, and the number of ready messages at its end.
OVER_TIME_COLUMNS = ("run", "second", "produced", "consumed", "waiting")

PLACEMENT_COLUMNS = ("policy", "throughput", "transfers", "experiment", "run", "repetition")
PROVISIONING_COLUMNS = ("policy", "nodes", "throughput", "experiment", "run", "repetition")
# Throughput is in messages/s, of the stable part; transfers are messages exchanged between members, null if they were
# not counted; nodes is the maximum number that served the queue at once.
SCALING_COLUMNS = ("nodes", "throughput", "experiment", "run", "repetition")

# Seconds left out at both ends of a run, as in the Selfware report, but at most EDGE_RATIO of the run.
EDGE_S = 5
EDGE_RATIO = 0.1


def queue_runs(runs: Sequence[Run]) -> list[Run]:
    """Return the runs whose clients share a queue."""
    return [run for run in runs if run.workload.get("kind") == WORKLOAD]


def queue_over_time(throughput: pd.DataFrame, runs: Sequence[Run]) -> pd.DataFrame:
    """Return the messages produced and consumed per second at each point of runs."""
    parts = [_over_time(throughput, run) for run in queue_runs(runs)]
    parts = [part for part in parts if len(part)]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(OVER_TIME_COLUMNS))


def _over_time(throughput: pd.DataFrame, run: Run) -> pd.DataFrame:
    rows = throughput[(throughput["run"] == run.run) & (throughput["source"] == CLIENTS)]
    points, length_s = whole_points(run.measured.from_us, run.measured.until_us)
    length = max(int(length_s), 1)
    seconds = range(0, points * length if length_s >= 1 else 0, length)

    def count(kinds: Sequence[str]) -> pd.Series[Any]:
        found = rows[rows["kind"].isin(kinds)].groupby("second")["messages"].sum()
        return found.reindex(list(seconds), fill_value=0)

    produced, consumed = count(["put"]), count(RECEIVED)
    return pd.DataFrame(
        {
            "run": run.run,
            "second": list(seconds),
            "produced": produced.to_numpy() / length if length > 1 else produced.to_numpy(),
            "consumed": consumed.to_numpy() / length if length > 1 else consumed.to_numpy(),
            # A consumer may receive a message before its producer receives the confirm.
            "waiting": (produced - consumed).cumsum().clip(lower=0).to_numpy(),
        }
    )


def stable_throughput(over_time: pd.DataFrame) -> float:
    """Return the messages/s delivered to consumers in one run, without its start and end."""
    edge = min(EDGE_S, int(len(over_time) * EDGE_RATIO))
    inner = over_time.sort_values("second")["consumed"].iloc[edge : len(over_time) - edge]
    return float(inner.mean()) if len(inner) else float("nan")


def placement(over_time: pd.DataFrame, runs: Sequence[Run]) -> pd.DataFrame:
    """Compare placement policies: a row for each run with one."""
    return _compared(over_time, runs, PLACEMENT, PLACEMENT_COLUMNS)


def provisioning(over_time: pd.DataFrame, runs: Sequence[Run]) -> pd.DataFrame:
    """Compare provisioning policies: a row for each run with one."""
    return _compared(over_time, runs, PROVISIONING, PROVISIONING_COLUMNS)


def scaling(over_time: pd.DataFrame, runs: Sequence[Run]) -> pd.DataFrame:
    """Compare numbers of nodes: a row for each run of an experiment that varied them."""
    return _compared(over_time, runs, NODES, SCALING_COLUMNS)


def queue_measures(over_time: pd.DataFrame, runs: Sequence[Run]) -> pd.DataFrame:
    """Return rows of the table `measures`: QUEUE_UNITS of each run of an experiment."""
    rows = []
    for run in queue_runs(runs):
        own = over_time[over_time["run"] == run.run].sort_values("second")
        if own.empty or not run.experiment:
            continue
        values = {"queue_rate": stable_throughput(own), "queue_peak": highest_throughput(own)}
        about = {"run": run.run, "source": CLIENTS, "kind": ALL, "n": len(own)}
        rows += [{**about, "metric": name, "unit": QUEUE_UNITS[name], "mean": mean} for name, mean in values.items()]
    found = pd.DataFrame(rows, columns=list(MEASURE_COLUMNS))
    return found.astype({"n": "int64", **dict.fromkeys(MEASURE_COLUMNS[6:], "float64")})


def highest_throughput(over_time: pd.DataFrame) -> float:
    """Return the highest rate of messages/s to consumers over PEAK_S successive seconds, or over a longer point."""
    points = over_time.sort_values("second")
    length_s = int(points["second"].diff().min()) if len(points) > 1 else 1
    window = max(1, min(PEAK_S // length_s, len(points)))
    return float(points["consumed"].rolling(window).mean().max())


def _compared(over_time: pd.DataFrame, runs: Sequence[Run], factor: str, columns: Sequence[str]) -> pd.DataFrame:
    rows = [_row(over_time, run, factor) for run in queue_runs(runs) if factor in run.factors]
    found = pd.DataFrame(rows, columns=list(columns)).sort_values([columns[0], "experiment", "repetition"])
    return found.reset_index(drop=True)


def _row(over_time: pd.DataFrame, run: Run, factor: str) -> Mapping[str, Any]:
    return {
        "policy": str(run.factors[factor]),
        "throughput": stable_throughput(over_time[over_time["run"] == run.run]),
        "transfers": run.domain.get("transfers"),
        "nodes": int(run.factors[NODES]) if factor == NODES else run.domain.get("nodes", len(run.nodes)),
        "experiment": run.experiment,
        "run": run.run,
        "repetition": run.repetition,
    }
