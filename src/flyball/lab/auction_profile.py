"""Results of an earlier experiment with the auction site that a later one uses: costs of requests and capacity.

Costs come from the pipeline; the reference is read from the samples of the search for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flyball.admission.profile import profile_from
from flyball.admission.use import Unit
from flyball.errors import LabError
from flyball.lab.auction.settings import CONTROLLED
from flyball.lab.pipeline_models import MakeProfile
from flyball.lab.pipeline_models import profiled as make_by_pipeline
from flyball.lab.workloads.workload import EarlierRun

# The search for a reference has converged in the last part of its run.
SETTLED_RATIO = 0.5

# Small and large, as in the paper.
CLASSES = 2


def profiled(earlier: Sequence[EarlierRun], make_profile: MakeProfile = make_by_pipeline) -> dict[str, Any]:
    """Return the `profile` of runs without control, `classes` by key, and the `reference` found by the other runs.

    Raises LabError if the costs of requests were not recorded.
    """
    watched = [run for run in earlier if _policy(run) not in CONTROLLED]
    if not watched:
        raise LabError("the experiment that this one needs has no run without control: its costs are unknown")
    unit = Unit(watched[0].manifest["target"]["settings"].get("unit", "ms"))
    profile = profile_from(make_profile(watched[0].traces.parent.parent, unit.value, CLASSES))
    classes = {key: "small" if found.class_number == 0 else "large" for key, found in profile.keys.items()}
    controlled = [run for run in earlier if _policy(run) in CONTROLLED]
    return {"profile": profile.to_json(), "classes": classes, "reference": _reference(controlled)}


def _policy(run: EarlierRun) -> str:
    return str(run.manifest["target"]["settings"].get("policy", "none"))


def _reference(runs: Sequence[EarlierRun]) -> float | None:
    """Return the median of the references that control held at the end of these runs, None without runs."""
    found = []
    for run in runs:
        measured = run.manifest["measured"]
        settled_us = measured["until_us"] - SETTLED_RATIO * (measured["until_us"] - measured["from_us"])
        for rows in _measured(run, "samples", "at_us"):
            at_us, setpoints = rows["at_us"].to_numpy(), rows["setpoint"].to_numpy()
            found.append(setpoints[(at_us >= settled_us) & (setpoints > 0)])
    values = np.concatenate(found) if found else np.empty(0)
    return round(float(np.median(values)), 3) if len(values) else None


def _measured(run: EarlierRun, table: str, time_column: str) -> list[pa.Table]:
    measured = run.manifest["measured"]
    tables = []
    for path in _files(run.traces, table):
        rows = pq.read_table(path)
        at_us = rows[time_column]
        is_within = pc.and_(pc.greater_equal(at_us, measured["from_us"]), pc.less(at_us, measured["until_us"]))
        tables.append(rows.filter(is_within))
    return tables


def _files(folder: Path, table: str) -> list[Path]:
    return sorted(folder.glob(f"{table}-*.parquet"))
