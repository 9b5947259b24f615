"""The plant of a control loop: y(k+1) = a·y(k) + b·u(k - delay) + offset, its uncertainty, and its JSON.

Independent of the model's source; a consumer that only reads one needs no scipy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from flyball.errors import ControlError

DIAGNOSTICS_VERSION = 1
DIAGNOSTICS_MISSING = "diagnostics missing: the model was made by an earlier version; identify the plant again"

Numbers = npt.NDArray[np.float64]
Matrix = tuple[tuple[float, ...], ...]


class OperatingPoint(NamedTuple):
    """The means of action and measurement during identification."""

    action: float
    measurement: float


class Interval(NamedTuple):
    """The confidence interval of one parameter alone."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of one-step predictions; None without samples to compare with."""

    pairs: int
    rmse: float | None
    r2: float | None


@dataclass(frozen=True, slots=True)
class LinearRange:
    """The actions for which one gain is accurate enough; `reason` says why the range is not known better."""

    lowest: float
    highest: float
    is_all: bool
    tolerance_ratio: float
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """One test of a model: the value, its limit, and a remedy if the test failed.

    `value` is None if the data did not suffice for the test.
    """

    name: str
    value: float | None
    limit: float
    reason: str | None = None

    @property
    def is_passed(self) -> bool:
        """Whether the test found nothing against the model."""
        return self.reason is None


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """The tests that a model must pass before a certificate based on it is sound."""

    checks: tuple[Check, ...] = ()

    @property
    def objections(self) -> tuple[str, ...]:
        """The reasons of the tests that the model failed, each with a remedy."""
        return tuple(check.reason for check in self.checks if check.reason is not None)

    def to_json(self) -> dict[str, Any]:
        """Return them as a document."""
        return {
            "version": DIAGNOSTICS_VERSION,
            "is_passed": not self.objections,
            "checks": [
                {"name": one.name, "value": one.value, "limit": one.limit, "reason": one.reason}
                for one in self.checks
            ],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Return the diagnostics of a document; fields that a later version has added are ignored."""
        return cls(
            tuple(
                Check(str(one["name"]), _number(one.get("value")), float(one["limit"]), _text(one.get("reason")))
                for one in document["checks"]
            )
        )


@dataclass(frozen=True, slots=True)
class Plant:
    """A model of how a measurement follows an action: y(k+1) = a·y(k) + b·u(k - delay) + offset.

    `delay` counts samples beyond the usual one. For a higher order, `ar` has the factors of y(k-1), y(k-2) ... and
    `bs` those of u(k-delay-1), u(k-delay-2) ..., as many of each. `covariance` is that of the estimates in the order
    a, ar, b, bs; without one the parameters count as exact. `curve` is the steady-state measurement for some actions,
    and `curve_pairs` the number of samples behind each. `alternatives` are plants with other delays that the same
    data allow, and `steepest_ratio` is the factor by which the curve may be steeper than `gain` somewhere.
    `diagnostics` are the tests that the model has passed or failed. Raises ControlError for parameters that no plant
    can have.
    """

    a: float
    b: float
    offset: float = 0.0
    delay: int = 0
    sample_time_s: float = 1.0
    loop: str = ""
    ar: tuple[float, ...] = ()
    bs: tuple[float, ...] = ()
    covariance: Matrix | None = None
    degrees_of_freedom: int | None = None
    confidence_ratio: float = 0.9
    intervals: tuple[Interval, Interval] | None = None
    operating_point: OperatingPoint | None = None
    linear_range: LinearRange | None = None
    curve: tuple[tuple[float, float], ...] = ()
    curve_pairs: tuple[int, ...] = ()
    condition: float | None = None
    pairs: int | None = None
    fit: Errors | None = None
    test: Errors | None = None
    warnings: tuple[str, ...] = ()
    alternatives: tuple[Plant, ...] = ()
    steepest_ratio: float = 1.0
    diagnostics: Diagnostics | None = None

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) for value in (*self.all_a, *self.all_b, self.offset)):
            raise ControlError(f"the plant{self._named} has parameters that are not finite numbers")
        if self.delay < 0:
            raise ControlError(f"the plant{self._named} has a delay of {self.delay} samples, it cannot be negative")
        if not (math.isfinite(self.sample_time_s) and self.sample_time_s > 0):
            raise ControlError(
                f"the plant{self._named} has a sample time of {self.sample_time_s} s, it must be positive"
            )
        if not 0 < self.confidence_ratio < 1:
            raise ControlError(
                f"the plant{self._named} has a confidence of {self.confidence_ratio}, not within 0 and 1"
            )
        if len(self.ar) != len(self.bs):
            raise ControlError(f"the plant{self._named} has {len(self.ar)} further a but {len(self.bs)} further b")
        if not (math.isfinite(self.steepest_ratio) and self.steepest_ratio >= 1):
            raise ControlError(f"the plant{self._named} has a steepest_ratio of {self.steepest_ratio}, not 1 or more")
        if self.covariance is not None:
            self._check_covariance(self.covariance)

    @property
    def objections(self) -> tuple[str, ...]:
        """Why no certificate based on this model is sound; empty for a plant that was given instead of identified."""
        if self.diagnostics is not None:
            return self.diagnostics.objections
        return () if self.covariance is None else (DIAGNOSTICS_MISSING,)

    @property
    def order(self) -> int:
        """The number of past measurements, and of actions, that the next one depends on."""
        return 1 + len(self.ar)

    @property
    def all_a(self) -> tuple[float, ...]:
        """The factors of y(k), y(k-1) ..."""
        return self.a, *self.ar

    @property
    def all_b(self) -> tuple[float, ...]:
        """The factors of u(k-delay), u(k-delay-1) ..."""
        return self.b, *self.bs

    @property
    def gain(self) -> float:
        """The change of the settled measurement per unit of action; infinite if the plant integrates."""
        rise, left = math.fsum(self.all_b), 1 - math.fsum(self.all_a)
        return rise / left if left else math.copysign(math.inf, rise)

    def boundary(self, count: int = 16) -> list[tuple[float, float]]:
        """Return (a, b), and `count` points around it on the boundary of its confidence set, an ellipse.

        The ellipse is (θ-θ̂)ᵀ C⁻¹ (θ-θ̂) = 2·F(2, degrees of freedom), for a and b together. Without a covariance the
        result is only the centre.
        """
        centre = (self.a, self.b)
        if self.covariance is None or self.degrees_of_freedom is None:
            return [centre]
        own = np.array(self.covariance)[np.ix_((0, self.order), (0, self.order))]
        axes = _axes(own) * math.sqrt(set_size(2, self.degrees_of_freedom, self.confidence_ratio))
        return [centre, *((self.a + da, self.b + db) for da, db in _around(axes, count))]

    def variants(self, count: int = 16) -> list[Plant]:
        """Return this plant, and others on the boundary of the joint confidence set of all its a and b.

        For the first order there are `count`, those of `boundary`. For a higher one the set is an ellipsoid, and
        there are `count` in the plane of each two of its principal axes. They have no covariance: they count as
        exact.
        """
        if self.covariance is None or self.degrees_of_freedom is None:
            return [self]
        size = 2 * self.order
        axes = _axes(np.array(self.covariance)) * math.sqrt(
            set_size(size, self.degrees_of_freedom, self.confidence_ratio)
        )
        moves = [move for pair in combinations(range(size), 2) for move in _around(axes[:, pair], count)]
        return [self, *(self._moved(move) for move in moves)]

    def to_json(self) -> dict[str, Any]:
        """Return the plant's entry in a model file, by docs/reference/pipeline-models.md."""
        covariance = self.covariance
        errors = None if covariance is None else [math.sqrt(max(covariance[i][i], 0)) for i in (0, self.order)]
        pairs = self.curve_pairs or (None,) * len(self.curve)
        return {
            "loop": self.loop,
            "sample_time_s": self.sample_time_s,
            "pairs": self.pairs,
            "reason": None,
            "a": self.a,
            "b": self.b,
            "offset": self.offset,
            "delay": self.delay,
            "order": self.order,
            "ar": list(self.ar),
            "bs": list(self.bs),
            "gain": self.gain if math.isfinite(self.gain) else None,
            "operating_point": None if self.operating_point is None else self.operating_point._asdict(),
            "standard_errors": None if errors is None else {"a": errors[0], "b": errors[1]},
            "covariance": None if covariance is None else [list(row) for row in covariance],
            "degrees_of_freedom": self.degrees_of_freedom,
            "confidence_ratio": self.confidence_ratio,
            "intervals": (
                None if self.intervals is None else {"a": list(self.intervals[0]), "b": list(self.intervals[1])}
            ),
            "condition": self.condition,
            "fit": _errors_to_json(self.fit),
            "test": _errors_to_json(self.test),
            "linear_range": _range_to_json(self.linear_range),
            "curve": [
                {"action": action, "measurement": measurement, "pairs": count}
                for (action, measurement), count in zip(self.curve, pairs, strict=True)
            ],
            "warnings": list(self.warnings),
            "steepest_ratio": self.steepest_ratio,
            "alternatives": [
                {
                    "delay": one.delay,
                    "a": one.a,
                    "b": one.b,
                    "offset": one.offset,
                    "ar": list(one.ar),
                    "bs": list(one.bs),
                    "covariance": None if one.covariance is None else [list(row) for row in one.covariance],
                    "degrees_of_freedom": one.degrees_of_freedom,
                }
                for one in self.alternatives
            ],
            "diagnostics": None if self.diagnostics is None else self.diagnostics.to_json(),
        }

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> Plant:
        """Return the plant of an entry in a model file; raises ControlError if it is not one, or has no
        parameters.
        """
        if not isinstance(entry, Mapping):
            raise ControlError("the model holds a plant that is not a JSON object")
        if entry.get("reason") is not None:
            raise ControlError(f"loop {entry.get('loop')!r} has no plant: {entry['reason']}")
        try:
            return _plant_from_json(entry)
        except KeyError as error:
            raise ControlError(f"the plant of loop {entry.get('loop')!r} lacks {error}: identify it again") from None
        except (AttributeError, IndexError, OverflowError, TypeError, ValueError) as error:
            raise ControlError(f"the plant of loop {entry.get('loop')!r} cannot be read: {error}") from None

    @property
    def _named(self) -> str:
        return f" of loop {self.loop!r}" if self.loop else ""

    def _check_covariance(self, covariance: Matrix) -> None:
        size = 2 * self.order
        if len(covariance) != size or any(len(row) != size for row in covariance):
            raise ControlError(f"the covariance of the plant{self._named} is not {size} by {size}")
        if not all(math.isfinite(value) for row in covariance for value in row):
            raise ControlError(f"the covariance of the plant{self._named} has values that are not finite numbers")
        if any(covariance[i][i] < 0 for i in range(size)):
            raise ControlError(f"the covariance of the plant{self._named} has a negative variance")
        if self.degrees_of_freedom is None or self.degrees_of_freedom < 1:
            raise ControlError(f"the plant{self._named} has a covariance but no degrees of freedom")

    def _moved(self, move: Sequence[float]) -> Plant:
        a, b = (
            tuple(float(old + by) for old, by in zip(own, part, strict=True))
            for own, part in ((self.all_a, move[: self.order]), (self.all_b, move[self.order :]))
        )
        return replace(
            self,
            a=a[0],
            ar=a[1:],
            b=b[0],
            bs=b[1:],
            covariance=None,
            intervals=None,
            alternatives=(),
            steepest_ratio=1.0,
        )


@dataclass(frozen=True, slots=True)
class NoPlant:
    """A loop whose samples did not yield a plant, and why."""

    loop: str
    sample_time_s: float
    pairs: int
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return its entry in a model file."""
        return {
            "loop": self.loop,
            "sample_time_s": self.sample_time_s,
            "pairs": self.pairs,
            "reason": self.reason,
        }


def set_size(parameters: int, degrees_of_freedom: int, confidence_ratio: float) -> float:
    """Return p·F(p, ν), the squared size of a confidence set in standard deviations, for an even number p.

    F beyond x has the probability z^(ν/2) Σ_{j<p/2} (ν/2)_j/j!·(1-z)^j with z = ν/(ν + p·x): an incomplete beta
    function with one integer argument. So no table of the distribution is needed; for p = 2 it is z^(ν/2).
    """
    half = degrees_of_freedom / 2
    low, high = 0.0, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        if _beyond(middle, half, parameters // 2) < 1 - confidence_ratio:
            low = middle
        else:
            high = middle
    return degrees_of_freedom * (1 / high - 1)


def _beyond(z: float, half: float, terms: int) -> float:
    total, term = 0.0, 1.0
    for j in range(terms):
        total += term
        term *= (half + j) / (j + 1) * (1 - z)
    return float(z**half) * total


def _axes(covariance: Numbers) -> Numbers:
    """Return the principal axes of the ellipsoid of one standard deviation as columns, independent of the units."""
    errors = np.sqrt(np.maximum(np.diag(covariance), 0))
    units = np.where(errors > 0, errors, 1)
    lengths, directions = np.linalg.eigh(covariance / np.outer(units, units))
    axes: Numbers = errors[:, None] * directions * np.sqrt(np.maximum(lengths, 0))
    return axes


def _around(axes: Numbers, count: int) -> list[list[float]]:
    """Return points around an ellipse with these two half axes."""
    angles = 2 * np.pi * np.arange(count) / count
    found: list[list[float]] = (axes @ np.array([np.cos(angles), np.sin(angles)])).T.tolist()
    return found


def _plant_from_json(entry: Mapping[str, Any]) -> Plant:
    covariance, intervals, point = (entry.get(key) for key in ("covariance", "intervals", "operating_point"))
    curve = [one for one in entry.get("curve") or () if one["measurement"] is not None]
    counts = [one.get("pairs") for one in curve]
    return Plant(
        a=float(entry["a"]),
        b=float(entry["b"]),
        offset=float(entry.get("offset", 0.0)),
        delay=int(entry.get("delay", 0)),
        sample_time_s=float(entry["sample_time_s"]),
        loop=str(entry["loop"]),
        ar=_floats(entry.get("ar", ())),
        bs=_floats(entry.get("bs", ())),
        covariance=None if covariance is None else tuple(_floats(row) for row in covariance),
        degrees_of_freedom=_whole(entry.get("degrees_of_freedom")),
        confidence_ratio=float(entry.get("confidence_ratio", 0.9)),
        intervals=(
            None if intervals is None else (Interval(*_floats(intervals["a"])), Interval(*_floats(intervals["b"])))
        ),
        operating_point=(
            None if point is None else OperatingPoint(float(point["action"]), float(point["measurement"]))
        ),
        linear_range=_range_from_json(entry.get("linear_range")),
        curve=tuple((float(one["action"]), float(one["measurement"])) for one in curve),
        curve_pairs=() if None in counts else tuple(int(count) for count in counts),
        condition=_number(entry.get("condition")),
        pairs=_whole(entry.get("pairs")),
        fit=_errors_from_json(entry.get("fit")),
        test=_errors_from_json(entry.get("test")),
        warnings=_warnings_from_json(entry, covariance is not None),
        alternatives=tuple(_alternative_from_json(one, entry) for one in entry.get("alternatives") or ()),
        steepest_ratio=float(entry.get("steepest_ratio", 1.0)),
        diagnostics=None if entry.get("diagnostics") is None else Diagnostics.from_json(entry["diagnostics"]),
    )


def _warnings_from_json(entry: Mapping[str, Any], is_identified: bool) -> tuple[str, ...]:
    warnings = tuple(str(warning) for warning in entry.get("warnings") or ())
    is_missing = is_identified and "diagnostics" not in entry
    return (*warnings, DIAGNOSTICS_MISSING) if is_missing else warnings


def _alternative_from_json(one: Mapping[str, Any], entry: Mapping[str, Any]) -> Plant:
    covariance = one.get("covariance")
    return Plant(
        a=float(one["a"]),
        b=float(one["b"]),
        offset=float(one.get("offset", 0.0)),
        delay=int(one["delay"]),
        sample_time_s=float(entry["sample_time_s"]),
        loop=str(entry["loop"]),
        ar=_floats(one.get("ar", ())),
        bs=_floats(one.get("bs", ())),
        covariance=None if covariance is None else tuple(_floats(row) for row in covariance),
        degrees_of_freedom=_whole(one.get("degrees_of_freedom")),
        confidence_ratio=float(entry.get("confidence_ratio", 0.9)),
    )


def _errors_to_json(errors: Errors | None) -> dict[str, Any] | None:
    return None if errors is None else {"pairs": errors.pairs, "rmse": errors.rmse, "r2": errors.r2}


def _errors_from_json(found: Mapping[str, Any] | None) -> Errors | None:
    return None if found is None else Errors(int(found["pairs"]), _number(found["rmse"]), _number(found["r2"]))


def _range_to_json(found: LinearRange | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "from": found.lowest,
        "until": found.highest,
        "is_all": found.is_all,
        "tolerance_ratio": found.tolerance_ratio,
        "reason": found.reason,
    }


def _range_from_json(found: Mapping[str, Any] | None) -> LinearRange | None:
    if found is None:
        return None
    return LinearRange(
        float(found["from"]),
        float(found["until"]),
        bool(found["is_all"]),
        float(found["tolerance_ratio"]),
        found.get("reason"),
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def _floats(values: Iterable[Any]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
