"""The profile of an application: what each kind of its requests costs, and which are small and large.

Reads what `flyball pipeline profile` writes (docs/reference/pipeline-models.md), or makes one of a few costs by the
same rules. Knows nothing of who records costs.
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
# Of fewer costs no classes are made.
FEWEST_ROWS = 20
# Costs that differ by less than 1/200 are one point for k-means.
POINTS_PER_E = 200
HOW_TO_MAKE_ONE = "make one with `flyball pipeline profile SOURCE --out DIR`"


@dataclass(frozen=True, slots=True)
class KeyProfile:
    """What the requests of one key have cost."""

    requests: int
    mean: float
    sd: float
    class_number: int


@dataclass(frozen=True, slots=True)
class Profile:
    """Classes from cheap to dear, and the keys in them."""

    # What costs are counted in: `ms` or `connections`, as in `Unit`.
    unit: str
    classes: tuple[CostClass, ...]
    keys: Mapping[str, KeyProfile]

    def to_json(self) -> dict[str, Any]:
        """Return it as the document that `profile_from` reads."""
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
    """Read a profile from its file. Raises AdmissionError that names the file and what is wrong with it."""
    try:
        document = json.loads(Path(path).read_bytes())
    except FileNotFoundError:
        raise AdmissionError(f"there is no profile {path}: {HOW_TO_MAKE_ONE}") from None
    except OSError as error:
        raise AdmissionError(f"the profile {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise AdmissionError(f"the profile {path} is no JSON: {HOW_TO_MAKE_ONE}") from error
    try:
        return profile_from(document)
    except AdmissionError as error:
        raise AdmissionError(f"the profile {path} {error}: {HOW_TO_MAKE_ONE}") from None


def profile_from(document: Any) -> Profile:
    """Return the profile that a JSON document holds. Raises AdmissionError that says what is wrong with it."""
    if not isinstance(document, dict) or document.get("kind") != "profile":
        raise AdmissionError("is no profile")
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
        raise AdmissionError(f"holds something unexpected ({error})") from None
    _check(profile)
    return profile


def _optional(value: Any) -> float | None:
    return None if value is None else float(value)


def _check(profile: Profile) -> None:
    if not profile.keys:
        raise AdmissionError("has no keys")
    if not profile.classes or [found.number for found in profile.classes] != list(range(len(profile.classes))):
        raise AdmissionError("has no classes that are numbered from 0 on")
    costs = [found.mean for found in profile.classes]
    for key, facts in profile.keys.items():
        if not 0 <= facts.class_number < len(profile.classes):
            raise AdmissionError(f"puts {key!r} into class {facts.class_number}, which there is not")
        costs += [facts.mean, facts.sd]
    if not all(math.isfinite(cost) and cost >= 0 for cost in costs):
        raise AdmissionError("has a cost that is no number of 0 or more")


def profile_of(costs: Iterable[tuple[str, float]], unit: str, most_classes: int = MOST_CLASSES) -> Profile:
    """Return the profile of requests, given as key and cost (0 or more, in `unit`), of which there is at least one.

    For data that fit into memory; by the same rules as the pipeline's.
    """
    rows = list(costs)
    if not rows:
        raise AdmissionError("there is no request to make a profile of")
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
    """Return ln cost, to within a point. A cost of 0 has none: it goes to the smallest that is not 0."""
    paid = cost[cost > 0]
    smallest = paid.min() if len(paid) else 1.0
    places: Numbers = (np.floor(np.log(np.maximum(cost, smallest)) * POINTS_PER_E) + 0.5) / POINTS_PER_E
    return places


def _division(place: Numbers, cost: Numbers, most_classes: int) -> Division:
    is_paid = cost > 0
    if is_paid.sum() < FEWEST_ROWS:
        return Division(reason=f"{is_paid.sum()} rows are too few for classes, {FEWEST_ROWS} are needed")
    points, which = np.unique(place[is_paid], return_inverse=True)
    weights, costs = (np.bincount(which, each).astype(np.float64) for each in (None, cost[is_paid]))
    return divide(points, weights, costs, most_classes)


def _key(cost: Numbers, number: npt.NDArray[np.intp]) -> KeyProfile:
    """Return the figures of a key; its class is that of most of its requests."""
    return KeyProfile(len(cost), float(cost.mean()), float(cost.std()), int(np.bincount(number).argmax()))
