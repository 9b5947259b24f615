"""Results of an earlier experiment for a control loop: the plant that it shows, gains for it, and their certificate.

Works on traces that lie there. Needs scipy and python-control, and is slow to import for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from flyball.control.certificate import Certificate, certificate_to_json
from flyball.control.design import design_law
from flyball.control.identification import identify
from flyball.control.laws import Law, law_from_json, law_to_json
from flyball.control.model_free import loop_gain
from flyball.control.plant import Plant
from flyball.control.verification import certify
from flyball.errors import ControlError, LabError
from flyball.lab.workloads.workload import EarlierRun

COLUMNS = ["at_us", "sample_time_s", "measurement", "action", "sequence"]

Numbers = npt.NDArray[np.float64]


def tuned(
    law: Mapping[str, Any], sample_time_s: float, earlier: Sequence[EarlierRun], *, allow_uncertified: bool
) -> dict[str, Any]:
    """Return `law_used`, the law with its gains, the `plant` they are for, and their `certificate`; None if unknown.

    Raises LabError if the earlier runs do not show a plant, or if the law is not sound and has to be.
    """
    try:
        plant = identified(earlier, sample_time_s) if earlier else None
        made = designed(law, plant) if law["kind"] == "designed" else law_from_json(law)
        certificate = certified(made, plant)
    except ControlError as error:
        raise LabError(f"workload.law {_text(law)}: {error}") from error
    if not allow_uncertified and (certificate is None or certificate.reason is not None):
        reason = "nothing is known about its plant" if certificate is None else certificate.reason
        raise LabError(f"workload.law {_text(law)}: {reason}; or give allow_uncertified = true")
    return {
        "law_used": law_to_json(made),
        "plant": None if plant is None else plant.to_json(),
        "certificate": None if certificate is None else certificate_to_json(certificate),
    }


def identified(earlier: Sequence[EarlierRun], sample_time_s: float) -> Plant:
    """Return the plant that the measured samples of all these runs show together. Raises LabError or ControlError."""
    samples = [table for run in earlier if len(table := _samples(run))]
    if not samples:
        raise LabError("the runs of the experiment that this one needs have recorded no samples of a loop")
    for table in samples:
        if (table[:, 1] != sample_time_s).any():
            raise LabError(
                f"the experiment that this one needs was sampled every {table[0, 1]:g} s, not {sample_time_s:g} s: "
                "run both with --quick or both without it"
            )
    rows = np.concatenate(samples)
    starts = np.flatnonzero(np.diff(rows[:, 4]) != 1) + 1
    return identify(rows[:, 2], rows[:, 3], sample_time_s=sample_time_s, loop="adaptive", breaks=starts.tolist())


def _samples(run: EarlierRun) -> Numbers:
    """Return the samples of the measured time, in order, a column for each of COLUMNS."""
    measured = run.manifest["measured"]
    tables = [pq.read_table(path, columns=COLUMNS) for path in sorted(run.traces.glob("samples-*.parquet"))]
    if not tables:
        return np.empty((0, len(COLUMNS)))
    rows = np.concatenate([np.column_stack([table[name].to_numpy() for name in COLUMNS]) for table in tables])
    is_within = (rows[:, 0] >= measured["from_us"]) & (rows[:, 0] < measured["until_us"])
    found: Numbers = rows[is_within]
    return found[np.argsort(found[:, 4])]


def designed(law: Mapping[str, Any], plant: Plant | None) -> Law[Any]:
    """Return the law that `law` asks for, with gains for the plant. Raises ControlError or LabError."""
    if plant is None:
        raise LabError('a designed law needs a plant: name the experiment that identifies it, needs = "..."')
    return design_law(
        law["as"],
        plant,
        pole=law.get("pole"),
        settling_steps=law.get("settling_samples"),
        overshoot=law.get("overshoot"),
    )


def certified(law: Law[Any], plant: Plant | None) -> Certificate | None:
    """Return the certificate of a law, None if it depends on a plant that is not known."""
    if loop_gain(law) is not None:
        return certify(law, None)
    return None if plant is None else certify(law, plant)


def _text(law: Mapping[str, Any]) -> str:
    return str(law.get("as") or law["kind"])
