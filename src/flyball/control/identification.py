"""The plant behind a control loop, from its samples: y(k+1) = a·y(k) + b·u(k - delay) + offset.

Also reports how far to trust it. Works on recorded numbers. Needs scipy for the distributions of Student and Fisher;
reading a plant does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy import stats

from flyball.control.diagnostics import AT_RANDOM, hold_out_check, residual_checks
from flyball.control.lagged import FEW, LagMoments, Lags, lagged
from flyball.control.least_squares import Fit, errors_of, least_squares
from flyball.control.linearity import DOUBTS, TOLERANCE_RATIO, Curve, curve_of, linear_range, steepest_slopes
from flyball.control.moments import BLOCK, Moments, Numbers, Range, merged, ranges_of
from flyball.control.plant import (
    Check,
    Diagnostics,
    Errors,
    Interval,
    LinearRange,
    NoPlant,
    OperatingPoint,
    Plant,
)
from flyball.control.structure import Structure, choose, selected
from flyball.errors import ControlError

CONFIDENCE = 0.9
PAIRS_PER_PARAMETER = 10
# Above it y and u are too collinear; it corresponds to a correlation of 0.935.
LARGEST_CONDITION = 30.0
# Beyond it, or if they change by less than its inverse, the squares of samples lose their precision.
LARGEST_VALUE = 1e30
# With two levels only, the curve between them is unseen: it may be this much steeper than the line.
UNSEEN_STEEPNESS = 2.0
# Cap on the assumed steepness where the curve seems to be steeper than the line, but not significantly.
MAX_STEEPNESS = 3.0


def identify(
    y: npt.ArrayLike,
    u: npt.ArrayLike,
    *,
    sample_time_s: float,
    loop: str = "",
    delay: int | None = None,
    order: int | None = None,
    breaks: Sequence[int] = (),
) -> Plant:
    """Return the plant that measured `y` and took the action `u` after each.

    Delay and order are searched unless they are given. The results of the model's tests are in its `diagnostics`.

    A break is the index of a sample that does not follow the one before it: the first of another run. Raises
    ControlError if the samples are too few, not finite, or never change. A result that can be computed but should not
    be trusted has warnings.
    """
    measurements, actions = _checked(y, u, delay, order)
    evidence = lagged(measurements, actions, breaks, Lags.for_structure(delay, order))
    if evidence.total.count < evidence.lags.rows_needed and (delay or 0) <= FEW.delay and (order or 1) <= FEW.order:
        evidence = lagged(measurements, actions, breaks, FEW)
    shape = structure_of(evidence, delay=delay, order=order)
    columns, is_test = _pairs(measurements, actions, shape.delay, shape.order, breaks, shape.delay + shape.order - 1)
    if columns.shape[1] == 0:
        raise ControlError(f"{_too_few(0, shape.order)}: let the loop run longer")
    found = plant_of(ranges_of(columns, is_test), evidence, shape, loop=loop, sample_time_s=sample_time_s)
    if isinstance(found, NoPlant):
        raise ControlError(found.reason)
    return found


@dataclass(frozen=True, slots=True)
class Shape:
    """The delay and the order of a plant, and how they were found; None if they were given or assumed."""

    delay: int
    order: int
    found: Structure | None = None
    is_order_given: bool = False


def structure_of(evidence: LagMoments, *, delay: int | None = None, order: int | None = None) -> Shape:
    """Return the delay and the order to fit; a given value is not searched.

    With too few samples, no delay and the first order are assumed; the model then fails its tests.
    """
    found = None
    total = evidence.total
    if total.count >= evidence.lags.rows_needed and np.isfinite(total.covariance).all():
        found = choose(evidence, delay=delay, order=order)
    if found is None:
        return Shape(delay or 0, order or 1, None, order is not None)
    return Shape(found.best.delay, found.best.order, found, order is not None)


def plant_of(
    ranges: Sequence[Range], evidence: LagMoments, shape: Shape, *, loop: str, sample_time_s: float
) -> Plant | NoPlant:
    """Return the plant that the ranges of one loop's actions show, or why they do not show one.

    The ranges have the columns for the delay and order of `shape`. `evidence` is used to test the model.
    """
    usable = [one for one in ranges if one.fit.count > 1]
    pairs = int(sum(one.fit.count + one.test.count for one in ranges))
    order = shape.order
    if pairs < _fewest_pairs(order) or not usable:
        return NoPlant(loop, sample_time_s, pairs, _too_few(pairs, order))
    if not all(np.isfinite(part.covariance).all() for one in ranges for part in (one.fit, one.test)):
        return NoPlant(loop, sample_time_s, pairs, "some samples are not finite numbers: leave them out")
    curve = curve_of(usable)
    chosen, linear = _linear(usable, curve)
    moments = merged([one.fit for one in chosen])
    fit = least_squares(moments)
    if fit is None:
        return NoPlant(loop, sample_time_s, pairs, _in_step(order))
    point = OperatingPoint(float(moments.means[order]), float(moments.means[0]))
    errors, test = _errors(fit, moments), _errors(fit, merged([one.test for one in chosen]))
    climbs = len(usable) > 2 and (evidence.changes[0] >= 0 or evidence.changes[1] <= 0)
    checks = [
        *_fit_checks(fit, curve_of(chosen), _condition(fit, moments, shape), climbs),
        hold_out_check(errors, test),
        *_residual_checks(evidence, shape),
    ]
    diagnostics = Diagnostics(tuple(checks))
    return Plant(
        a=fit.a,
        b=fit.b,
        offset=fit.offset,
        delay=shape.delay,
        sample_time_s=sample_time_s,
        loop=loop,
        ar=tuple(fit.all_a[1:].tolist()),
        bs=tuple(fit.all_b[1:].tolist()),
        covariance=tuple(tuple(row) for row in fit.covariance.tolist()),
        degrees_of_freedom=fit.freedom,
        confidence_ratio=CONFIDENCE,
        intervals=(_interval(fit, 0), _interval(fit, order)),
        operating_point=point,
        linear_range=linear,
        curve=_points(curve),
        curve_pairs=tuple(int(one.fit.count) for one in usable) if abs(curve.a) < 1 else (),
        condition=_condition(fit, moments, shape),
        pairs=pairs,
        fit=errors,
        test=test,
        warnings=diagnostics.objections,
        alternatives=_alternatives(shape, loop, sample_time_s),
        steepest_ratio=_steepest_ratio(curve, float(fit.all_b.sum())),
        diagnostics=diagnostics,
    )


def _alternatives(shape: Shape, loop: str, sample_time_s: float) -> tuple[Plant, ...]:
    if shape.found is None:
        return ()
    return tuple(
        Plant(
            a=one.fit.a,
            b=one.fit.b,
            offset=one.fit.offset,
            delay=one.delay,
            sample_time_s=sample_time_s,
            loop=loop,
            ar=tuple(one.fit.all_a[1:].tolist()),
            bs=tuple(one.fit.all_b[1:].tolist()),
            covariance=tuple(tuple(row) for row in one.fit.covariance.tolist()),
            degrees_of_freedom=one.fit.freedom,
            confidence_ratio=CONFIDENCE,
        )
        for one in shape.found.others
    )


def _residual_checks(evidence: LagMoments, shape: Shape) -> list[Check]:
    if shape.found is not None:
        return residual_checks(evidence, shape.found.best)
    count, needed = int(evidence.total.count), evidence.lags.rows_needed
    return [
        Check(
            "samples",
            count,
            needed,
            f"{count} samples with all those before them are too few to find the delay and to test the model,"
            f" {needed} are needed: take more samples",
        )
    ]


def _steepest_ratio(curve: Curve, rise: float) -> float:
    """Return how much steeper than the model the curve may be somewhere.

    Where it is not significantly steeper, at most MAX_STEEPNESS is assumed; two levels do not show it at all.
    """
    if len(curve.actions) < 3 or not rise:
        return UNSEEN_STEEPNESS
    surely, perhaps = (slope / abs(rise) for slope in steepest_slopes(curve))
    # A deviation that the linear range tolerates is not a bend.
    seen = max(surely, min(perhaps, MAX_STEEPNESS))
    return seen if seen > 1 + TOLERANCE_RATIO else 1.0


def _checked(y: npt.ArrayLike, u: npt.ArrayLike, delay: int | None, order: int | None) -> tuple[Numbers, Numbers]:
    if (delay is not None and delay < 0) or (order is not None and order < 1):
        raise ControlError(f"a delay of {delay} and an order of {order}: they must be at least 0 and 1")
    measurements, actions = _numbers("measurement", y), _numbers("action", u)
    if len(measurements) != len(actions):
        raise ControlError(
            f"{len(measurements)} measurements and {len(actions)} actions: each sample must have one of both"
        )
    for name, values in (("measurement", measurements), ("action", actions)):
        if len(values) > 1 and np.ptp(values) <= 1 / LARGEST_VALUE:
            raise ControlError(
                f"the {name} never changed: let the action change at random around the operating point"
            )
    return measurements, actions


def _numbers(name: str, values: npt.ArrayLike) -> Numbers:
    try:
        found: Numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ControlError(f"a {name} is not a number: give one number for each sample") from None
    if found.ndim != 1:
        raise ControlError(f"the {name}s are not a list: give one number for each sample")
    is_wrong = ~(np.abs(found) <= LARGEST_VALUE)
    if is_wrong.any():
        place = int(np.argmax(is_wrong))
        raise ControlError(
            f"the {name} of sample {place} is {found[place]:g}: leave such samples out and set a break"
        )
    return found


def _pairs(
    y: Numbers, u: Numbers, delay: int, order: int, breaks: Sequence[int], reach: int
) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Return the matching samples, a pair in each column, and a mask of those that are kept for the test.

    Every third block of ten is for the test, not the last third of all: where the action sweeps, that would be
    another part of the curve. The first `reach` samples of each run serve as past values only.
    """
    runs = [np.arange(start + reach, end - 1) for start, end in _runs(len(y), breaks)]
    now = np.concatenate([np.empty(0, dtype=np.intp), *runs])
    position = np.concatenate([np.empty(0, dtype=np.intp), *(np.arange(len(run)) for run in runs)])
    columns = [
        *(y[now - lag] for lag in range(order)),
        *(u[now - delay - lag] for lag in range(order)),
        y[now + 1],
    ]
    return np.array(columns), position // BLOCK % 3 == 2


def _runs(count: int, breaks: Sequence[int]) -> list[tuple[int, int]]:
    return list(pairwise(sorted({0, count, *(edge for edge in breaks if 0 < edge < count)})))


def _fewest_pairs(order: int) -> int:
    return PAIRS_PER_PARAMETER * (2 * order + 1)


def _too_few(pairs: int, order: int) -> str:
    return f"{pairs} pairs of samples are too few, {_fewest_pairs(order)} are needed"


def _in_step(order: int) -> str:
    remedy = "let the action change at random" + (", or try a lower order" if order > 1 else "")
    return f"measurement and action stood still or moved in step: {remedy}"


def _linear(ranges: Sequence[Range], curve: Curve) -> tuple[Sequence[Range], LinearRange]:
    """Return the ranges to fit and the linear range; all of them where the linear range is unknown."""
    found = linear_range(curve)
    first, last = found or (0, len(ranges) - 1)
    chosen = ranges[first : last + 1]
    is_all = found == (0, len(ranges) - 1)
    reason = None
    if len(ranges) < 3:
        reason = f"the action took {len(ranges)} levels, at least 3 are needed to see a bend: all pairs are used"
    elif found is None:
        reason = "no range has a gain that is surely not 0: all pairs are used"
    elif not is_all and sum(one.fit.count for one in chosen) < _fewest_pairs(ranges[0].fit.order):
        reason = "the linear range has too few pairs: all are used, the plant is bent"
        chosen = ranges
    return chosen, LinearRange(ranges[first].low, ranges[last].high, is_all, TOLERANCE_RATIO, reason)


def _student(fit: Fit) -> float:
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, fit.freedom))


def _interval(fit: Fit, index: int) -> Interval:
    width = _student(fit) * math.sqrt(fit.covariance[index, index])
    value = float(fit.parameters[index])
    return Interval(value - width, value + width)


def _errors(fit: Fit, moments: Moments) -> Errors:
    if moments.count == 0:
        return Errors(0, None, None)
    return Errors(int(moments.count), *errors_of(fit, moments))


def _points(curve: Curve) -> tuple[tuple[float, float], ...]:
    """Return the steady state of each action, if the loop were left alone; empty if it never settles."""
    if abs(curve.a) >= 1:
        return ()
    return tuple(zip(curve.actions.tolist(), (curve.values / (1 - curve.a)).tolist(), strict=True))


def _condition(fit: Fit, moments: Moments, shape: Shape) -> float:
    """Return how collinear measurement and action are, as a condition number.

    A higher order that was found is needed for the noise or for the plant. Its past measurements and actions predict
    each other whatever the action does, so only the latest of each show how good the excitation was.
    """
    order = shape.order
    if order == 1 or shape.is_order_given:
        return fit.condition
    latest = least_squares(selected(moments, [0, order, 2 * order]))
    return fit.condition if latest is None else latest.condition


def _fit_checks(fit: Fit, curve: Curve, condition: float, climbs: bool) -> list[Check]:
    name = "a" if fit.order == 1 else "the sum of the a's"
    width = _student(fit)
    memory = float(fit.all_a.sum())
    memory_error = math.sqrt(max(float(fit.covariance[: fit.order, : fit.order].sum()), 0.0))
    apart = abs(memory - curve.a)
    allowed = 0.1 + DOUBTS * math.hypot(memory_error, curve.a_error)
    lower = ", or try a lower order" if fit.order > 1 else ""
    found = {
        "excitation": (
            condition,
            LARGEST_CONDITION,
            f"measurement and action moved together: the data hardly separate a from b; {AT_RANDOM}{lower}",
            condition > LARGEST_CONDITION,
        ),
        "direction": (
            float(climbs),
            0.0,
            f"the action only climbed or only fell, so that memory and a bent curve look alike; {AT_RANDOM}",
            climbs,
        ),
        "linearity": (
            apart,
            allowed,
            f"{name} is {memory:.3g} along a straight line but {curve.a:.3g} at constant action: the curve is bent or"
            " the measurement is noisy, do not trust a and b; let the action change at random in a smaller range",
            apart > allowed,
        ),
        "effect": (
            None,
            CONFIDENCE,
            "the action has no effect that can be distinguished from chance",
            _has_no_effect(fit),
        ),
        "settling": (
            None,
            1.0,
            "a may be 1 or more: the plant may not settle by itself",
            _may_grow(fit, width),
        ),
    }
    return [
        Check(test, value, limit, reason if fails else None) for test, (value, limit, reason, fails) in found.items()
    ]


def _has_no_effect(fit: Fit) -> bool:
    """Fisher's test whether all b are 0; for order 1 it is Student's."""
    own = fit.inverse[fit.order :, fit.order :]
    scale = np.sqrt(np.diag(own))
    scaled = fit.all_b / scale
    square = float(scaled @ np.linalg.solve(own / np.outer(scale, scale), scaled))
    return square <= fit.order * float(stats.f.ppf(CONFIDENCE, fit.order, fit.freedom)) * fit.variance


def _may_grow(fit: Fit, width: float) -> bool:
    """Whether a pole of the plant may be on or outside the unit circle.

    A pole reaches 1 where the sum of the a's is 1, and the sum is known more precisely than each of them.
    """
    order = fit.order
    error = math.sqrt(max(float(fit.covariance[:order, :order].sum()), 0.0))
    if float(fit.all_a.sum()) + width * error >= 1 or (order == 1 and fit.a - width * error <= -1):
        return True
    return bool(np.abs(np.roots([1.0, *-fit.all_a])).max(initial=0) >= 1)
