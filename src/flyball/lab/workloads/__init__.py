"""The workloads: what clients do in an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from flyball.errors import LabError
from flyball.lab.workloads.client import Client
from flyball.lab.workloads.push_peek_pop import PushPeekPop
from flyball.lab.workloads.send_and_pop import SendAndPop
from flyball.lab.workloads.standard import Standard
from flyball.lab.workloads.stream import Stream
from flyball.lab.workloads.telesto import TelestoOneWay, TelestoPairs, TelestoService
from flyball.lab.workloads.workload import Workload

__all__ = ["WORKLOADS", "Client", "Workload", "make_workload"]

WORKLOADS: dict[str, type[Workload]] = {
    "send_and_pop": SendAndPop,
    "standard": Standard,
    "push_peek_pop": PushPeekPop,
    "telesto_one_way": TelestoOneWay,
    "telesto_pairs": TelestoPairs,
    "telesto_service": TelestoService,
    "stream": Stream,
}


def make_workload(parameters: Mapping[str, Any]) -> Workload:
    """Return the workload of that `kind` with those parameters. Raises LabError that names what is wrong."""
    kind = parameters.get("kind")
    if kind not in WORKLOADS:
        raise LabError(f"there is no workload {kind!r}: use one of {', '.join(sorted(WORKLOADS))}")
    try:
        return WORKLOADS[kind].model_validate(parameters)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in ("workload", *problem["loc"]))
        text = problem["msg"].removeprefix("Value error, ")
        raise LabError(f"{place} of {kind} is wrong: {text}") from None
