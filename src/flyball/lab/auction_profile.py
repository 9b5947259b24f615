"""Results of an earlier experiment with the auction site that a later one uses: costs of requests and capacity.

Works on traces that lie there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flyball.admission.classes import LEAST_COST, CostClass
from flyball.admission.profile import KeyProfile, Profile
from flyball.admission.use import Unit
from flyball.errors import LabError
from flyball.lab.auction.settings import CONTROLLED
from flyball.lab.workloads.workload import EarlierRun

# The search for a reference has come to its end in the last part of its run.
SETTLED_RATIO = 0.5

Numbers = npt.NDArray[np.float64]


def profiled(earlier: Sequence[EarlierRun]) -> dict[str, Any]:
    """Return the `profile` of runs without control, `classes` by key, and the `reference` that others have found.

    Raises LabError if nothing was recorded of what requests cost.
    """
    watched = [run for run in earlier if _policy(run) not in CONTROLLED]
    unit = Unit(watched[0].manifest["target"]["settings"].get("unit", "ms")) if watched else Unit.BUSY_MS
    costs = _costs(watched, unit)
    if not costs:
        raise LabError("the runs of the experiment that this one needs have recorded no costs of requests")
    profile = fitted(costs, unit)
    classes = {key: "small" if found.class_number == 0 else "large" for key, found in profile.keys.items()}
    controlled = [run for run in earlier if _policy(run) in CONTROLLED]
    return {"profile": profile.to_json(), "classes": classes, "reference": _reference(controlled)}


def fitted(costs: Mapping[str, Numbers], unit: Unit) -> Profile:
    """Return the profile of requests: what they have cost, by key. There are two classes, as in the paper."""
    bound = _bound(np.concatenate(list(costs.values())))
    numbers = {key: int(found.mean() >= bound) for key, found in costs.items()}
    if len(set(numbers.values())) == 1:
        numbers, bound = dict.fromkeys(numbers, 0), math.inf
    classes = []
    for number in sorted(set(numbers.values())):
        own = np.concatenate([found for key, found in costs.items() if numbers[key] == number])
        below = bound if number < max(numbers.values()) else None
        classes.append(CostClass(number, max(LEAST_COST, float(own.mean())), below))
    keys = {
        key: KeyProfile(len(found), float(found.mean()), float(found.std()), numbers[key])
        for key, found in costs.items()
    }
    return Profile(unit.value, tuple(classes), keys)


def _bound(costs: Numbers) -> float:
    """Return the cost at which large requests begin: k-means on ln cost, with k = 2.

    What costs nothing is small anyway, and would be a class of its own. A request counts half for itself and half for
    what it costs, as in all profiles.
    """
    paid = np.sort(costs[costs > LEAST_COST])
    if len(paid) < 2 or paid[0] == paid[-1]:
        return math.inf
    places, weights = np.log(paid), 1 / len(paid) + paid / paid.sum()
    weight, first, second = (np.cumsum(weights * places**power) for power in (0, 1, 2))
    splits = np.flatnonzero(np.diff(paid) > 0)
    low = second[splits] - first[splits] ** 2 / weight[splits]
    rest_weight, rest_first = weight[-1] - weight[splits], first[-1] - first[splits]
    high = second[-1] - second[splits] - rest_first**2 / rest_weight
    best = np.argmin(low + high)
    centres = first[splits][best] / weight[splits][best], rest_first[best] / rest_weight[best]
    return math.exp(sum(centres) / 2)


def _policy(run: EarlierRun) -> str:
    return str(run.manifest["target"]["settings"].get("policy", "none"))


def _costs(runs: Sequence[EarlierRun], unit: Unit) -> dict[str, Numbers]:
    """Return what served requests of the measured time have cost, by key."""
    found: dict[str, list[Numbers]] = {}
    for run in runs:
        for rows in _measured(run, "admissions", "arrived_us"):
            served = rows.filter(pc.equal(rows["outcome"].cast(pa.string()), "served"))
            busy_ms = served["busy_ns"].to_numpy() / 1e6
            costs = busy_ms if unit is Unit.BUSY_MS else served["connections"].to_numpy().astype(np.float64)
            keys = np.array(served["key"].cast(pa.string()).to_pylist(), dtype=object)
            for key in set(keys):
                found.setdefault(key, []).append(costs[keys == key])
    return {key: np.concatenate(parts) for key, parts in sorted(found.items())}


def _reference(runs: Sequence[EarlierRun]) -> float | None:
    """Return the middle of the references that control has held at the end of these runs, None if there are none."""
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
