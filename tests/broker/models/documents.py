"""Documents of models, as the pipeline and `flyball control design` write them."""

from __future__ import annotations

from typing import Any

from flyball.broker.models.history import Draft
from flyball.broker.models.texts import draft_of
from flyball.control.documents import Design, design_to_json
from flyball.control.laws import ProportionalIntegral
from flyball.control.limits import Limits
from flyball.control.plant import Plant
from flyball.control.verification import certify


def capacity(producer: float = 0.01, consumer: float = 0.02) -> dict[str, Any]:
    """A capacity model with weights."""
    target = {"experiment": "clients", "producer_weight": producer, "consumer_weight": consumer}
    return {"version": 1, "kind": "capacity", "targets": [target]}


def service_times(p99_ms: float = 9.5, samples: int = 1000) -> dict[str, Any]:
    return {
        "version": 1,
        "kind": "service-times",
        "samples": samples,
        "quantiles_ms": {"0.5": 2.5, "0.99": p99_ms},
    }


def profile(mean: float = 1.5) -> dict[str, Any]:
    return {
        "version": 1,
        "kind": "profile",
        "unit": "ms",
        "class_count": 1,
        "bounds": [],
        "classes": [{"class": 0, "mean": mean, "below": None}],
        "keys": {"GET /": {"requests": 30, "mean": mean, "sd": 0.1, "class": 0}},
    }


def design(*, ki: float = 0.006, is_sound: bool = True) -> dict[str, Any]:
    """A design of a PI law with its certificate; one that is not sound has gains that are far too high."""
    plant = Plant(0.26, 59.73, loop="orders", sample_time_s=1.0)
    law = ProportionalIntegral(kp=0.002, ki=ki) if is_sound else ProportionalIntegral(kp=0.03, ki=0.04)
    certificate = certify(law, plant)
    assert certificate.is_sound is is_sound
    return design_to_json(
        Design("orders", law, Limits(1.0, 360.0), sample_time_s=1.0, plant=plant, certificate=certificate)
    )


def evidence(source: str = "file:///traces/a", samples: int = 5000) -> dict[str, Any]:
    return {"traces": [source], "samples": samples, "tests": [{"name": "drift", "value": 0.2, "limit": 1.0}]}


def draft(
    kind: str = "capacity",
    document: dict[str, Any] | None = None,
    source: str = "a",
    certificate: dict[str, Any] | None = None,
) -> Draft:
    return draft_of(kind, capacity() if document is None else document, evidence(source), certificate)
