"""Results of an earlier experiment for a control loop: the plant, gains designed for it, and their certificate.

The pipeline identifies the plant. Needs scipy and python-control, and is therefore slow to import.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from flyball.control.certificate import Certificate, certificate_to_json
from flyball.control.design import design_law
from flyball.control.laws import Law, law_from_json, law_to_json
from flyball.control.model_file import read_model
from flyball.control.model_free import loop_gain
from flyball.control.plant import Plant
from flyball.control.verification import certify
from flyball.errors import ControlError, LabError
from flyball.lab.pipeline_models import Identify, identified
from flyball.lab.workloads.workload import EarlierRun

# The loop that the workload `adaptive` records.
LOOP = "adaptive"


def tuned(
    law: Mapping[str, Any],
    sample_time_s: float,
    earlier: Sequence[EarlierRun],
    *,
    allow_uncertified: bool,
    identify: Identify = identified,
) -> dict[str, Any]:
    """Return `law_used`, the law with its gains, the `plant` they are for, and their `certificate`; None if unknown.

    Raises LabError if no plant was identified in the earlier runs, or if the law must be sound and is not.
    """
    try:
        plant = plant_of(earlier, sample_time_s, identify) if earlier else None
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


def plant_of(earlier: Sequence[EarlierRun], sample_time_s: float, identify: Identify) -> Plant:
    """Return the plant that the pipeline identified in these runs. Raises LabError or ControlError."""
    model = identify(earlier[0].traces.parent.parent)
    factors = [run.manifest.get("factors", {}) for run in earlier]
    plants = [plant for plant in model["plants"] if plant.get("factors", {}) in factors]
    if not plants:
        raise LabError("the runs of the experiment that this one needs have recorded no samples of a loop")
    times = {plant["sample_time_s"] for plant in plants}
    if sample_time_s not in times:
        raise LabError(
            f"the experiment that this one needs was sampled every {min(times):g} s, not {sample_time_s:g} s: "
            "run both with --quick or both without it"
        )
    return read_model(json.dumps({**model, "plants": plants}), LOOP, sample_time_s)


def designed(law: Mapping[str, Any], plant: Plant | None) -> Law[Any]:
    """Return the law that `law` describes, designed for the plant if necessary. Raises ControlError or LabError."""
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
    """Return the certificate of a law, None if it depends on an unknown plant."""
    if loop_gain(law) is not None:
        return certify(law, None)
    return None if plant is None else certify(law, plant)


def _text(law: Mapping[str, Any]) -> str:
    return str(law.get("as") or law["kind"])
