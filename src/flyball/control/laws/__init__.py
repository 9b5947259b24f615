"""Control laws, and their JSON form: `{"kind": "pi", "kp": 0.002, "ki": 0.006}`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from flyball.control.laws.law import Law, Reading
from flyball.control.laws.linear import Integral, Pid, PositionalPid, Proportional, ProportionalIntegral, pid
from flyball.control.laws.multiplicative import Multiplicative
from flyball.control.laws.scheduled import Scheduled
from flyball.control.laws.self_tuning import SelfTuning
from flyball.errors import ControlError

__all__ = [
    "LAWS",
    "Integral",
    "Law",
    "Multiplicative",
    "Pid",
    "PositionalPid",
    "Proportional",
    "ProportionalIntegral",
    "Reading",
    "Scheduled",
    "SelfTuning",
    "law_from_json",
    "law_to_json",
    "pid",
]

LAWS: dict[str, type[Law[Any]]] = {
    law.kind: law
    for law in (
        Proportional,
        Integral,
        ProportionalIntegral,
        Pid,
        PositionalPid,
        Multiplicative,
        SelfTuning,
        Scheduled,
    )
}


def law_to_json(law: Law[Any]) -> dict[str, Any]:
    """Return a law as a document."""
    fields = dataclasses.asdict(law)  # type: ignore[call-overload]  # every law is a dataclass
    return {"kind": law.kind, **{name: list(v) if isinstance(v, tuple) else v for name, v in fields.items()}}


def law_from_json(document: object) -> Law[Any]:
    """Return the law that a document describes. Raises ControlError that names what is wrong."""
    if not isinstance(document, Mapping) or "kind" not in document:
        raise ControlError(f"a law is an object with a kind and gains, not {document!r}")
    found = LAWS.get(document["kind"])
    if found is None:
        raise ControlError(f"there is no law {document['kind']!r}; there are {', '.join(LAWS)}")
    gains = {name: value for name, value in document.items() if name != "kind"}
    fields = {field.name: field for field in dataclasses.fields(found)}  # type: ignore[arg-type]
    for name, value in gains.items():
        if name not in fields:
            raise ControlError(f"unknown gain {name!r} of the {found.kind} law: use {', '.join(fields)}")
        gains[name] = _gain(found.kind, name, value)
    for name, field in fields.items():
        if name not in gains and field.default is dataclasses.MISSING:
            raise ControlError(f"{found.kind}: {name} is missing")
    return found(**gains)


def _gain(kind: str, name: str, value: object) -> object:
    is_list = isinstance(value, list | tuple)
    for number in value if isinstance(value, list | tuple) else [value]:
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise ControlError(f"{kind}: {name} is {value!r}, which is not a number")
    if is_list != (name in ("actions", "measurements")):
        raise ControlError(f"{kind}: {name} is {value!r}; {'a number' if is_list else 'a list of numbers'} is needed")
    return tuple(map(float, value)) if isinstance(value, list | tuple) else float(value)  # type: ignore[arg-type]
