"""Moments of samples, as least squares needs them: their number, means and covariances, per range of actions.

Columns are those of the model: y(k), y(k-1) ..., then as many u(k-delay), u(k-delay-1) ..., and finally y(k+1). Spark
and numpy compute the same moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# Maximum number of ranges of actions, with about as many samples each; few levels have a range each.
MOST_RANGES = 24
FEWEST_IN_RANGE = 10
# Samples of a block; every third block is kept for the test.
BLOCK = 10
# A relative change up to this is rounding.
ROUNDING = 1e-13

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Moments:
    """The number of pairs, and means and covariances of their columns; for order 1 y(k), u(k) and y(k+1)."""

    count: float
    means: Numbers
    covariance: Numbers

    @property
    def order(self) -> int:
        """Number of past measurements, and of past actions."""
        return (len(self.means) - 1) // 2


@dataclass(frozen=True, slots=True)
class Range:
    """Pairs whose action is between `low` and `high`: those to fit and those to test with."""

    low: float
    high: float
    fit: Moments
    test: Moments


def moments_of(columns: Numbers) -> Moments:
    """Return the moments of pairs, one in each column of the matrix."""
    size, count = columns.shape
    if count == 0:
        return nothing(size)
    means = columns.mean(axis=1)
    rest = columns - means[:, None]
    return Moments(float(count), means, rest @ rest.T / count)


def nothing(size: int = 3) -> Moments:
    """Return the moments of zero pairs."""
    return Moments(0.0, np.zeros(size), np.zeros((size, size)))


def merged(parts: Sequence[Moments]) -> Moments:
    """Return the moments of all parts together, at least one."""
    count = sum(part.count for part in parts)
    if count == 0:
        return parts[0]
    means = np.sum([part.count * part.means for part in parts], axis=0) / count
    shifted = [part.count * (part.covariance + np.outer(part.means - means, part.means - means)) for part in parts]
    return Moments(count, means, np.sum(shifted, axis=0) / count)


def quantiles() -> list[float]:
    """Return the quantiles of the actions that `edges_of` needs."""
    return [part / MOST_RANGES for part in range(MOST_RANGES)]


def edges_of(values: Sequence[float], pairs: int) -> list[float]:
    """Return the lower edges of all ranges of actions except the first, from the values at `quantiles`.

    Few pairs make few ranges: a mean of two or three samples would not show a bend.
    """
    ranges = min(max(pairs // FEWEST_IN_RANGE, 1), MOST_RANGES)
    chosen = {values[part * MOST_RANGES // ranges] for part in range(ranges)}
    return sorted(chosen)[1:]


def ranges_of(columns: Numbers, is_test: npt.NDArray[np.bool_]) -> list[Range]:
    """Divide pairs, one in each column of the matrix, into ranges by their latest effective action."""
    actions = columns[(len(columns) - 1) // 2]
    values = np.quantile(actions, quantiles(), method="inverted_cdf").tolist()
    numbers = np.searchsorted(edges_of(values, len(actions)), actions, side="right")
    found = []
    for number in np.unique(numbers):
        own = numbers == number
        found.append(
            Range(
                float(actions[own].min()),
                float(actions[own].max()),
                moments_of(columns[:, own & ~is_test]),
                moments_of(columns[:, own & is_test]),
            )
        )
    return found
