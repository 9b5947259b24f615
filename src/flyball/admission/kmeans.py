"""Divides costs into classes: k-means on ln cost; silhouettes choose the number of classes.

The rules are those of the pipeline's profile, without Spark: in one dimension the optimal division can be computed
exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# Minimum silhouette of clear classes: two halves of a normal distribution reach 0.71, of a uniform one 0.8.
LEAST_SILHOUETTE = 0.82
# Two classes that differ by this factor are kept even if unclear: expensive requests would delay cheap ones.
WIDE_RATIO = 5.0
# Required gain of the silhouette for one more class.
CLEARLY_BETTER = 0.02
# Permitted deficit of the silhouette when the present number of classes is kept.
LOYALTY = 0.05
# Required factor between two classes that already exist.
LOYAL_RATIO = 4.0

Numbers = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

# Points per block, which bounds the memory.
_BLOCK = 256


@dataclass(frozen=True, slots=True)
class Division:
    """Classes from cheap to expensive: bounds as ln cost, and the reason for their number."""

    bounds: tuple[float, ...] = ()
    # For 2, 3, ... classes.
    silhouettes: tuple[float, ...] = ()
    # Why there is only one class.
    reason: str | None = None


def divide(places: Numbers, weights: Numbers, costs: Numbers, most: int, present: int = 1) -> Division:
    """Divide points into at most `most` classes.

    `places` are ln costs, strictly ascending; `weights` are numbers of requests, `costs` their total costs; both
    above 0. The `present` number of classes is kept unless another one is clearly better. Requests are weighted half
    by number and half by cost: by number alone, few but expensive requests would be missed, which admission control
    is meant for.
    """
    if len(places) < 2:
        return Division(reason="all requests cost the same")
    importance = weights + costs * (weights.sum() / costs.sum())
    partitions = best_partitions(places, importance, min(most, len(places)))
    found = [silhouette(places, importance, starts) for starts in partitions]
    count = _count(found, present)
    starts = partitions[max(count, 2) - 2]
    centres = np.add.reduceat(places * importance, starts) / np.add.reduceat(importance, starts)
    ratio = math.exp(centres[-1] - centres[0])
    if count == 1 and ratio < (LOYAL_RATIO if present > 1 else WIDE_RATIO):
        reason = f"no clear classes: the best silhouette is {max(found):.2f}, not {LEAST_SILHOUETTE}, and two would "
        return Division((), tuple(found), f"{reason}differ by a factor of {ratio:.1f} only")
    bounds = tuple(float(bound) for bound in (centres[1:] + centres[:-1]) / 2)
    return Division(bounds, tuple(found))


def _count(silhouettes: list[float], present: int) -> int:
    """Return the number of clear classes, given the silhouettes of 2, 3, ... of them; 1 if none are clear."""
    best = max(silhouettes)
    if 2 <= present < len(silhouettes) + 2:
        own = silhouettes[present - 2]
        if own >= max(best, LEAST_SILHOUETTE) - LOYALTY:
            return present
    if best < LEAST_SILHOUETTE:
        return 1
    return next(count for count, value in enumerate(silhouettes, start=2) if value >= best - CLEARLY_BETTER)


def best_partitions(places: Numbers, weights: Numbers, most: int) -> list[Indices]:
    """Return the starts of the classes for 2, 3, ... `most` classes that minimize the squared distances to centres.

    Classes are contiguous in order; so the best k classes of the first n points are the best k - 1 of a prefix, and
    the rest (Bellman). Exact, in quadratic time.
    """
    centred = places - np.average(places, weights=weights)
    sums = [np.concatenate([[0.0], np.cumsum(weights * centred**power)]) for power in (0, 1, 2)]
    count = len(places)
    least = np.concatenate([[math.inf], _spread(sums, np.array([0]), np.arange(1, count + 1))[0]])
    begins: list[Indices] = []
    for _ in range(2, most + 1):
        fewer, least = least, np.full(count + 1, math.inf)
        begin = np.zeros(count + 1, np.intp)
        for first in range(1, count + 1, _BLOCK):
            ends = np.arange(first, min(first + _BLOCK, count + 1))
            starts = np.arange(ends[-1])
            totals = fewer[starts, None] + _spread(sums, starts, ends)
            begin[ends] = totals.argmin(axis=0)
            least[ends] = totals[begin[ends], ends - first]
        begins.append(begin)
    return [_unrolled(begins[: classes - 1], count) for classes in range(2, most + 1)]


def _spread(sums: list[Numbers], starts: Indices, ends: Indices) -> Numbers:
    """Return the squared distances within a class from each of `starts` to each of `ends`; empty `ends`: to the last
    point.

    `sums` are prefix sums of weights, and of weights times places and squared places.
    """
    weight, moment, square = (each[ends][None, :] - each[starts][:, None] for each in sums)
    is_class = starts[:, None] < ends[None, :]
    within = square - moment * moment / np.where(is_class, weight, 1.0)
    return np.where(is_class, np.maximum(within, 0.0), math.inf)


def _unrolled(begins: list[Indices], count: int) -> Indices:
    starts, end = [0], count
    for begin in reversed(begins):
        end = int(begin[end])
        starts.insert(1, end)
    return np.array(starts, np.intp)


def silhouette(places: Numbers, weights: Numbers, starts: Indices) -> float:
    """Return the silhouette, -1 to 1, by squared distances (as in Spark).

    Classes start at `starts`. A point stands for many requests, so a class of one point has a good silhouette.
    """
    lengths = np.diff(np.append(starts, len(places)))
    own = np.repeat(np.arange(len(starts)), lengths)
    total = np.add.reduceat(weights, starts)
    mean = np.add.reduceat(weights * places, starts) / total
    variance = np.maximum(np.add.reduceat(weights * (places - mean[own]) ** 2, starts) / total, 0.0)
    distances = (places[:, None] - mean[None, :]) ** 2 + variance[None, :]
    each = np.arange(len(places))
    # Half a request's weight is at the point twice: one half is not compared with itself.
    within = distances[each, own] * total[own] / (total[own] - weights / 2)
    distances[each, own] = math.inf
    between = distances.min(axis=1)
    larger = np.maximum(within, between)
    fits = np.divide(between - within, larger, out=np.zeros_like(larger), where=larger > 0)
    return float(np.average(fits, weights=weights))
