"""The linear range of a plant: its curve, of any shape, and the longest part of it that one gain describes.

Works on the moments of ranges of actions; does not fit the line itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flyball.control.moments import ROUNDING, Numbers, Range

# In the linear range the gain of every part is within this ratio of the gain of the whole.
TOLERANCE_RATIO = 0.25
# Standard errors beyond which a difference is significant: many are tested, so two would be too few.
DOUBTS = 3.5


@dataclass(frozen=True, slots=True)
class Curve:
    """The steady effect of each action on the next y in addition to a·y; a is estimated at constant action.

    For a higher order, a is the sum of all a's.
    """

    a: float
    a_error: float
    actions: Numbers
    values: Numbers
    errors: Numbers


def curve_of(ranges: Sequence[Range]) -> Curve:
    """Return the curve of a plant y⁺ = a·y + f(u), from ranges with at least two pairs to fit each.

    Inside a range f hardly changes, so a is found there from y and u less their means in the range, and f is the
    rest. A straight-line fit over a bent f would mistake the bend for memory.
    """
    parts = [one.fit for one in ranges]
    order = parts[0].order
    size = 2 * order
    inside = np.sum([part.count * part.covariance for part in parts], axis=0)
    means = np.array([part.means for part in parts])
    counts = np.array([part.count for part in parts])
    # Scaled, so that the solution does not depend on units. A column that is constant in each range, as u often is,
    # has no scale and drops out; a change below this is rounding.
    spread, level = np.sqrt(np.maximum(np.diag(inside)[:size], 0)), np.sqrt(counts @ means[:, :size] ** 2)
    scale = np.where(spread > ROUNDING * level, spread, np.inf)
    matrix = inside[:size, :size] / np.outer(scale, scale)
    solution = np.linalg.lstsq(matrix, inside[:size, size] / scale, rcond=1e-9)[0] / scale
    residual = max(float(inside[size, size] - solution @ inside[:size, size]), 0.0)
    variance = residual / max(float(counts.sum()) - len(parts) - size, 1)
    inverse = np.linalg.pinv(matrix, rcond=1e-9)
    summed = 1 / scale[:order]
    actions = means[:, order]
    # The earlier actions count as if they had been the same.
    earlier = (means[:, order + 1 : size] - actions[:, None]) @ solution[order + 1 :]
    return Curve(
        float(solution[:order].sum()),
        math.sqrt(variance * max(float(summed @ inverse[:order, :order] @ summed), 0.0)),
        actions,
        means[:, size] - means[:, :order] @ solution[:order] - earlier,
        np.sqrt(variance / counts),
    )


def linear_range(curve: Curve) -> tuple[int, int] | None:
    """Return the first and last point of the curve's linear range, or None if points are too few or it has no slope.

    A range is linear if no part of it has a gain that differs significantly by more than the tolerance from the gain
    of the whole. Of all such ranges whose gain is significantly not 0, the result is the one over which the
    measurement changes most.
    """
    count = len(curve.actions)
    if count < 3:
        return None
    gains, doubts = _gains(curve)
    best, best_rise = None, 0.0
    for first in range(count - 1):
        for last in range(first + 1, count):
            gain = gains[first, last]
            inner, slack = gains[first : last + 1, first : last + 1], doubts[first : last + 1, first : last + 1]
            part = np.triu_indices(last - first + 1, 1)
            is_linear = bool((np.abs(inner - gain) <= TOLERANCE_RATIO * abs(gain) + slack)[part].all())
            rise = abs(gain) * (curve.actions[last] - curve.actions[first])
            if is_linear and abs(gain) > doubts[first, last] and rise > best_rise:
                best, best_rise = (first, last), rise
    return best


def steepest_slopes(curve: Curve) -> tuple[float, float]:
    """Return the absolute value that the slope of some part of the curve surely exceeds, and one that it may have.

    The second is of parts a quarter of the whole long, with two standard errors: shorter ones are mostly noise.
    """
    gains, doubts = _gains(curve)
    surely = max(float(np.max(np.abs(gains) - doubts, initial=0.0)), 0.0)
    part = (curve.actions[-1] - curve.actions[0]) / 4
    perhaps = 0.0
    for first, action in enumerate(curve.actions):
        last = int(np.searchsorted(curve.actions, action + part))
        if last < len(curve.actions) and last > first:
            perhaps = max(perhaps, abs(gains[first, last]) + 2 / DOUBTS * doubts[first, last])
    return surely, perhaps


def _gains(curve: Curve) -> tuple[Numbers, Numbers]:
    """Return the slope of a line through the points i..j at [i, j], and the part of it that may be chance."""
    count = len(curve.actions)
    gains, doubts = np.zeros((count, count)), np.full((count, count), np.inf)
    weights = 1 / np.maximum(curve.errors, 1e-9 * max(float(np.abs(curve.values).max()), 1e-90)) ** 2
    for first in range(count):
        for last in range(first + 1, count):
            own = slice(first, last + 1)
            w, u, g = weights[own], curve.actions[own], curve.values[own]
            spread = u - np.average(u, weights=w)
            square = float((w * spread**2).sum())
            if square > 0:
                gains[first, last] = float((w * spread * g).sum()) / square
                doubts[first, last] = DOUBTS / math.sqrt(square)
    return gains, doubts
