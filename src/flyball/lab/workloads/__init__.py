"""The workloads: the clients' behaviour in an experiment."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from flyball.errors import LabError
from flyball.lab.workloads.adaptive import Adaptive
from flyball.lab.workloads.auction import Auction
from flyball.lab.workloads.client import Client
from flyball.lab.workloads.clustered import Clustered
from flyball.lab.workloads.push_peek_pop import PushPeekPop
from flyball.lab.workloads.send_and_pop import SendAndPop
from flyball.lab.workloads.standard import Standard
from flyball.lab.workloads.stream import Stream
from flyball.lab.workloads.telesto import TelestoMixed, TelestoOneWay, TelestoPairs, TelestoService
from flyball.lab.workloads.workload import EarlierRun, Workload

__all__ = ["WORKLOADS", "Client", "EarlierRun", "Workload", "find_workload", "make_workload"]

WORKLOADS: dict[str, type[Workload]] = {
    "send_and_pop": SendAndPop,
    "standard": Standard,
    "push_peek_pop": PushPeekPop,
    "telesto_one_way": TelestoOneWay,
    "telesto_pairs": TelestoPairs,
    "telesto_service": TelestoService,
    "telesto_mixed": TelestoMixed,
    "stream": Stream,
    "adaptive": Adaptive,
    "auction": Auction,
    "clustered": Clustered,
}


def find_workload(kind: object) -> type[Workload]:
    """Return the workload class for a kind: one of `WORKLOADS`, or `module:Class`. Raises LabError."""
    text = str(kind)
    if text in WORKLOADS:
        return WORKLOADS[text]
    module_name, colon, class_name = text.partition(":")
    if not colon:
        known = ", ".join(sorted(WORKLOADS))
        raise LabError(f"there is no workload {kind!r}: use one of {known}, or module:Class for one of your own")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise LabError(f"cannot import {module_name}: {error}; is it in a folder of PYTHONPATH?") from error
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, Workload)):
        raise LabError(f"{module_name} has no workload {class_name}")
    return found


def make_workload(parameters: Mapping[str, Any]) -> Workload:
    """Return the workload of that `kind` with those parameters. Raises LabError that names the invalid one."""
    kind = parameters.get("kind")
    try:
        return find_workload(kind).model_validate(parameters)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in ("workload", *problem["loc"]))
        text = problem["msg"].removeprefix("Value error, ")
        raise LabError(f"{place} of {kind} is wrong: {text}") from None
