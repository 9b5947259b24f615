"""The plant behind a control loop, from its samples: y(k+1) = a·y(k) + b·u(k - delay) + offset.

Says how far to trust it, too. Works on numbers that others measured. Needs scipy for the distributions of Student and
Fisher; who only reads a plant does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import stats

from flyball.control.least_squares import Fit, errors_of, least_squares
from flyball.control.linearity import TOLERANCE_RATIO, Curve, curve_of, linear_range
from flyball.control.moments import BLOCK, Moments, Numbers, Range, merged, moments_of, ranges_of
from flyball.control.plant import Errors, Interval, LinearRange, NoPlant, OperatingPoint, Plant
from flyball.errors import ControlError

CONFIDENCE = 0.9
PAIRS_PER_PARAMETER = 10
LARGEST_CONDITION = 30.0
"""Above it y and u moved together too closely; it is a correlation of 0.935."""
LARGEST_VALUE = 1e30
"""Beyond it, or if they change by less than its inverse, the squares of samples are no longer to be trusted."""


def identify(
    y: npt.ArrayLike,
    u: npt.ArrayLike,
    *,
    sample_time_s: float,
    loop: str = "",
    delay: int = 0,
    order: int = 1,
    breaks: Sequence[int] = (),
) -> Plant:
    """Return the plant that measured `y` and took the action `u` after each.

    A break is the index of a sample that does not follow the one before it: the first of another run. Raises
    ControlError if the samples are too few, not finite, or never changed: those give no plant. What can be computed
    but should not be trusted has warnings.
    """
    measurements, actions = _checked(y, u, delay, order)
    columns, is_test = _pairs(measurements, actions, delay, order, breaks, delay + order - 1)
    if columns.shape[1] == 0:
        raise ControlError(f"{_too_few(0, order)}: let the loop run longer")
    changes = _changes(actions, breaks)
    found = plant_of(
        ranges_of(columns, is_test),
        loop=loop,
        sample_time_s=sample_time_s,
        delay=delay,
        is_one_way=is_one_way(changes.min(initial=0), changes.max(initial=0)),
    )
    if isinstance(found, NoPlant):
        raise ControlError(found.reason)
    return found


def best_delay(
    y: npt.ArrayLike,
    u: npt.ArrayLike,
    *,
    most: int = 5,
    order: int = 1,
    breaks: Sequence[int] = (),
    criterion: Literal["test", "aic"] = "test",
) -> int:
    """Return the delay, 0 to `most` further samples, whose straight line predicts best.

    By "test" it is the one with the least error on pairs that were not fitted, by "aic" the one that Akaike's
    criterion likes best, from all pairs. All are compared on the same next measurements, over the whole range of
    actions. Raises ControlError as `identify` does.
    """
    measurements, actions = _checked(y, u, most, order)
    scores = []
    for delay in range(most + 1):
        columns, is_test = _pairs(measurements, actions, delay, order, breaks, most + order - 1)
        if columns.shape[1] < _fewest_pairs(order):
            raise ControlError(f"{_too_few(columns.shape[1], order)}: let the loop run longer")
        scores.append(_test_error(columns, is_test) if criterion == "test" else _aic(columns))
    if all(math.isinf(score) for score in scores):
        raise ControlError(_in_step(order))
    return int(np.argmin(scores))


def is_one_way(least_change: float, largest_change: float) -> bool:
    """Whether actions only climbed or only fell, by how much they changed from sample to sample."""
    return least_change >= 0 or largest_change <= 0


def plant_of(
    ranges: Sequence[Range], *, loop: str, sample_time_s: float, delay: int = 0, is_one_way: bool = False
) -> Plant | NoPlant:
    """Return the plant that the ranges of one loop's actions show, or why they show none."""
    usable = [one for one in ranges if one.fit.count > 1]
    pairs = int(sum(one.fit.count + one.test.count for one in ranges))
    order = ranges[0].fit.order
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
    return Plant(
        a=fit.a,
        b=fit.b,
        offset=fit.offset,
        delay=delay,
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
        condition=fit.condition,
        pairs=pairs,
        fit=_errors(fit, moments),
        test=_errors(fit, merged([one.test for one in chosen])),
        warnings=tuple(_warnings(fit, curve_of(chosen), is_one_way and len(usable) > 2)),
    )


def _checked(y: npt.ArrayLike, u: npt.ArrayLike, delay: int, order: int) -> tuple[Numbers, Numbers]:
    if delay < 0 or order < 1:
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
    """Return what belongs together, a pair in each column, and which are kept for the test.

    Every third block of ten is for the test, not the last third of all: where the action sweeps, that would be
    another part of the curve. The first `reach` samples of each run are only looked back at.
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


def _changes(actions: Numbers, breaks: Sequence[int]) -> Numbers:
    return np.concatenate([np.diff(actions[start:end]) for start, end in _runs(len(actions), breaks)])


def _test_error(columns: Numbers, is_test: npt.NDArray[np.bool_]) -> float:
    fit = least_squares(moments_of(columns[:, ~is_test]))
    # Short runs have no third block.
    return (
        math.inf if fit is None else errors_of(fit, moments_of(columns[:, is_test if is_test.any() else ~is_test]))[0]
    )


def _aic(columns: Numbers) -> float:
    moments = moments_of(columns)
    fit = least_squares(moments)
    if fit is None:
        return math.inf
    rmse, _ = errors_of(fit, moments)
    return 2 * moments.count * math.log(max(rmse, 1 / LARGEST_VALUE)) + 2 * (len(fit.parameters) + 1)


def _fewest_pairs(order: int) -> int:
    return PAIRS_PER_PARAMETER * (2 * order + 1)


def _too_few(pairs: int, order: int) -> str:
    return f"{pairs} pairs of samples are too few, {_fewest_pairs(order)} are needed"


def _in_step(order: int) -> str:
    cure = "let the action change at random" + (", or try a lower order" if order > 1 else "")
    return f"measurement and action stood still or moved in step: {cure}"


def _linear(ranges: Sequence[Range], curve: Curve) -> tuple[Sequence[Range], LinearRange]:
    """Return the ranges to fit and what is known about the linear range; where it cannot be told, all of them."""
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
    """Return where each action would settle, if the loop were left alone; no point if it never does."""
    if abs(curve.a) >= 1:
        return ()
    return tuple(zip(curve.actions.tolist(), (curve.values / (1 - curve.a)).tolist(), strict=True))


def _warnings(fit: Fit, curve: Curve, is_ramp: bool) -> list[str]:
    name = "a" if fit.order == 1 else "the sum of the a's"
    width = _student(fit)
    memory = float(fit.all_a.sum())
    memory_error = math.sqrt(max(float(fit.covariance[: fit.order, : fit.order].sum()), 0.0))
    found = []
    if fit.condition > LARGEST_CONDITION:
        found.append(
            "measurement and action moved together: the data hardly separate a from b;"
            " let the action change at random around the operating point"
            + (", or try a lower order" if fit.order > 1 else "")
        )
    if is_ramp:
        found.append(
            "the action only climbed or only fell, so that memory and a bent curve look alike;"
            " let the action change at random around the operating point"
        )
    if abs(memory - curve.a) > 0.1 + width * math.hypot(memory_error, curve.a_error):
        found.append(
            f"{name} is {memory:.3g} along a straight line but {curve.a:.3g} at constant action: the curve is bent or"
            " the measurement is noisy, do not trust a and b; let the action change at random in a smaller range"
        )
    if _has_no_effect(fit):
        found.append("the action has no effect that could be told from chance")
    if _may_grow(fit, width):
        found.append("a may be 1 or more: the plant may not settle by itself")
    return found


def _has_no_effect(fit: Fit) -> bool:
    """Fisher's test whether all b are 0; for order 1 it is Student's."""
    own = fit.inverse[fit.order :, fit.order :]
    scale = np.sqrt(np.diag(own))
    scaled = fit.all_b / scale
    square = float(scaled @ np.linalg.solve(own / np.outer(scale, scale), scaled))
    return square <= fit.order * float(stats.f.ppf(CONFIDENCE, fit.order, fit.freedom)) * fit.variance


def _may_grow(fit: Fit, width: float) -> bool:
    """Whether a pole of the plant may lie on or outside the unit circle."""
    errors = np.sqrt(np.diag(fit.covariance)[: fit.order])
    if fit.order == 1:
        return abs(fit.a) + width * float(errors[0]) >= 1
    corners = np.vstack([np.zeros(fit.order), *(sign * width * np.diag(errors) for sign in (-1, 1))])
    return any(np.abs(np.roots([1.0, *-(fit.all_a + corner)])).max(initial=0) >= 1 for corner in corners)
