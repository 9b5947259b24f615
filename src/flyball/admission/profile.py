"""The profile of an application: cost and class of each kind of request.

Reads the output of `flyball pipeline profile` (docs/reference/pipeline-models.md), or computes a profile of a few
costs by the same rules.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flyball.admission.classes import CostClass
from flyball.admission.kmeans import Division, Numbers, divide
from flyball.errors import AdmissionError

VERSION = 1
MOST_CLASSES = 4
# Classes need at least this many costs.
FEWEST_ROWS = 20
# Costs that differ by less than 1/200 are one point for k-means.
POINTS_PER_E = 200
HOW_TO_MAKE_ONE = "create one with `flyball pipeline profile SOURCE --out DIR`"


@dataclass(frozen=True, slots=True)
class KeyProfile:
    """Costs of the requests of one key."""

    requests: int
    mean: float
    sd: float
    class_number: int


@dataclass(frozen=True, slots=True)
class Profile:
    """Classes from cheap to expensive, and their keys."""

    # Unit of the costs: `ms` or `connections`, as in `Unit`.
    unit: str
    classes: tuple[CostClass, ...]
    keys: Mapping[str, KeyProfile]

    def to_json(self) -> dict[str, Any]:
        """Return the document that `profile_from` reads."""
        return {
            "version": VERSION,
            "kind": "profile",
            "unit": self.unit,
            "class_count": len(self.classes),
            "bounds": [found.below for found in self.classes if found.below is not None],
            "classes": [{"class": found.number, "mean": found.mean, "below": found.below} for found in self.classes],
            "keys": {
                key: {"requests": found.requests, "mean": found.mean, "sd": found.sd, "class": found.class_number}
                for key, found in self.keys.items()
            },
        }


def load_profile(path: str | Path) -> Profile:
    """Read a profile from a file. Raises AdmissionError that names the file and the problem."""
    try:
        document = json.loads(Path(path).read_bytes())
    except FileNotFoundError:
        raise AdmissionError(f"profile {path} does not exist: {HOW_TO_MAKE_ONE}") from None
    except OSError as error:
        raise AdmissionError(f"cannot read profile {path}: {error.strerror}") from error
    except ValueError as error:
        raise AdmissionError(f"profile {path} is not valid JSON: {HOW_TO_MAKE_ONE}") from error
    try:
        return profile_from(document)
    except AdmissionError as error:
        raise AdmissionError(f"profile {path} {error}: {HOW_TO_MAKE_ONE}") from None


def profile_from(document: Any) -> Profile:
    """Return the profile in a JSON document. Raises AdmissionError with the problem."""
    if not isinstance(document, dict) or document.get("kind") != "profile":
        raise AdmissionError("is not a profile")
    if document.get("version") != VERSION:
        raise AdmissionError(f"has version {document.get('version')!r}, not {VERSION}")
    try:
        profile = Profile(
            unit=str(document["unit"]),
            classes=tuple(
                CostClass(int(found["class"]), float(found["mean"]), _optional(found["below"]))
                for found in document["classes"]
            ),
            keys={
                str(key): KeyProfile(
                    int(found["requests"]), float(found["mean"]), float(found["sd"]), int(found["class"])
                )
                for key, found in document["keys"].items()
            },
        )
    except KeyError as error:
        raise AdmissionError(f"lacks {error.args[0]!r}") from None
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise AdmissionError(f"is malformed ({error})") from None
    _check(profile)
    return profile


def _optional(value: Any) -> float | None:
    return None if value is None else float(value)


def _check(profile: Profile) -> None:
    if not profile.keys:
        raise AdmissionError("has no keys")
    if not profile.classes or [found.number for found in profile.classes] != list(range(len(profile.classes))):
        raise AdmissionError("has no classes numbered from 0")
    costs = [found.mean for found in profile.classes]
    for key, facts in profile.keys.items():
        if not 0 <= facts.class_number < len(profile.classes):
            raise AdmissionError(f"assigns {key!r} to class {facts.class_number}, which does not exist")
        costs += [facts.mean, facts.sd]
    if not all(math.isfinite(cost) and cost >= 0 for cost in costs):
        raise AdmissionError("has a cost that is not a number of at least 0")


def profile_of(costs: Iterable[tuple[str, float]], unit: str, most_classes: int = MOST_CLASSES) -> Profile:
    """Return the profile of requests, given as key and cost (0 or more, in `unit`), of which there must be at least
    one.

    For data that fit into memory; by the same rules as the pipeline's.
    """
    rows = list(costs)
    if not rows:
        raise AdmissionError("no requests: a profile needs at least one")
    cost = np.array([each for _, each in rows], float)
    place = _places(cost)
    bounds = np.array(_division(place, cost, most_classes).bounds)
    number = np.searchsorted(bounds, place)
    below = [*(float(each) for each in np.exp(bounds)), None]
    keys = np.array([key for key, _ in rows], object)
    return Profile(
        unit,
        tuple(CostClass(which, float(cost[number == which].mean()), below[which]) for which in range(len(below))),
        {key: _key(cost[keys == key], number[keys == key]) for key in sorted({*keys})},
    )


def _places(cost: Numbers) -> Numbers:
    """Return ln cost, rounded to a point. A cost of 0 gets that of the smallest positive one."""
    paid = cost[cost > 0]
    smallest = paid.min() if len(paid) else 1.0
    places: Numbers = (np.floor(np.log(np.maximum(cost, smallest)) * POINTS_PER_E) + 0.5) / POINTS_PER_E
    return places


def _division(place: Numbers, cost: Numbers, most_classes: int) -> Division:
    is_paid = cost > 0
    if is_paid.sum() < FEWEST_ROWS:
        return Division(reason=f"{is_paid.sum()} rows are too few for classes; at least {FEWEST_ROWS} are needed")
    points, which = np.unique(place[is_paid], return_inverse=True)
    weights, costs = (np.bincount(which, each).astype(np.float64) for each in (None, cost[is_paid]))
    return divide(points, weights, costs, most_classes)


def _key(cost: Numbers, number: npt.NDArray[np.intp]) -> KeyProfile:
    """Return the statistics of a key; its class is that of most of its requests."""
    return KeyProfile(len(cost), float(cost.mean()), float(cost.std()), int(np.bincount(number).argmax()))
