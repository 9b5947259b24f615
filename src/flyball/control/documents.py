"""The design document of a loop: law, limits, plant and certificate as JSON.

Converts text only; the caller reads and writes files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flyball.control.certificate import Certificate, certificate_from_json, certificate_to_json
from flyball.control.laws import Law, law_from_json, law_to_json
from flyball.control.limits import Limits
from flyball.control.plant import Plant
from flyball.errors import ControlError

VERSION = 1
KIND = "design"


@dataclass(frozen=True, slots=True)
class Design:
    """A law for a loop, what it was designed from, and its certificate, if any."""

    loop: str
    law: Law[Any]
    limits: Limits
    sample_time_s: float = 1.0
    setpoint: float | None = None
    smoothing_share: float | None = None
    plant: Plant | None = None
    certificate: Certificate | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sample_time_s) and self.sample_time_s > 0):
            raise ControlError(f"the design has a sample time of {self.sample_time_s} s, it must be above 0")
        if self.setpoint is not None and not math.isfinite(self.setpoint):
            raise ControlError(f"the design has a setpoint of {self.setpoint}, which is not a number")
        if self.smoothing_share is not None and not 0 < self.smoothing_share <= 1:
            raise ControlError(f"the design has a smoothing share of {self.smoothing_share}, not within 0 and 1")


def design_to_json(design: Design) -> dict[str, Any]:
    """Return the content of a design file."""
    return {
        "version": VERSION,
        "kind": KIND,
        "loop": design.loop,
        "law": law_to_json(design.law),
        "limits": {"lowest": design.limits.lowest, "highest": design.limits.highest},
        "sample_time_s": design.sample_time_s,
        "setpoint": design.setpoint,
        "smoothing_share": design.smoothing_share,
        "plant": None if design.plant is None else design.plant.to_json(),
        "certificate": None if design.certificate is None else certificate_to_json(design.certificate),
    }


def design_from_json(document: object) -> Design:
    """Return the design of a file's content. Raises ControlError that describes what is wrong with it."""
    if not isinstance(document, Mapping) or document.get("kind") != KIND:
        raise ControlError(
            f'this is not a design: it must have "kind": "{KIND}"; make one with `flyball control design`'
        )
    if document.get("version") != VERSION:
        raise ControlError(
            f"the design has version {document.get('version')!r}, only {VERSION} can be read: design again"
        )
    plant, certificate = document.get("plant"), document.get("certificate")
    return Design(
        loop=_text(document, "loop"),
        law=law_from_json(_present(document, "law")),
        limits=_limits(_present(document, "limits")),
        sample_time_s=_number(document, "sample_time_s"),
        setpoint=_number_or_none(document, "setpoint"),
        smoothing_share=_number_or_none(document, "smoothing_share"),
        plant=None if plant is None else Plant.from_json(plant),
        certificate=None if certificate is None else certificate_from_json(certificate),
    )


def design_text(design: Design) -> str:
    """Return the text of a design file."""
    return json.dumps(design_to_json(design), indent=2, allow_nan=False) + "\n"


def read_design(text: str) -> Design:
    """Return the design of a file's text. Raises ControlError if it is not one."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ControlError(f"the design is not JSON: {error}") from None
    return design_from_json(document)


def _limits(document: object) -> Limits:
    if not isinstance(document, Mapping):
        raise ControlError(f"the limits of a design are an object with lowest and highest, not {document!r}")
    return Limits(_number(document, "lowest"), _number(document, "highest"))


def _present(document: Mapping[str, Any], key: str) -> Any:
    if key not in document:
        raise ControlError(f"the design lacks {key!r}: make it again with `flyball control design`")
    return document[key]


def _text(document: Mapping[str, Any], key: str) -> str:
    value = _present(document, key)
    if not isinstance(value, str):
        raise ControlError(f"the design's {key} is {value!r}, which is not text")
    return value


def _number(document: Mapping[str, Any], key: str) -> float:
    value = _present(document, key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ControlError(f"the design's {key} is {value!r}, which is not a number")
    return float(value)


def _number_or_none(document: Mapping[str, Any], key: str) -> float | None:
    return None if document.get(key) is None else _number(document, key)
