"""Divides costs into classes: k-means on ln cost, with as many classes as the silhouettes say.

The rules are those of the pipeline's profile, without Spark: on a line the best division can be found exactly. Knows
neither keys nor requests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# Below it classes are not clear: two halves of a single normal hump reach 0.71, of a flat one 0.8.
LEAST_SILHOUETTE = 0.82
# If two classes differ by this factor there are two, clear or not: else the dear would hold up the cheap.
WIDE_RATIO = 5.0
# By so much the silhouette must gain for one class more.
CLEARLY_BETTER = 0.02
# By so much the silhouette of as many classes as there are already may be worse than another.
LOYALTY = 0.05
# Two classes that there are already need to differ by this factor only.
LOYAL_RATIO = 4.0

Numbers = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

# So many points are looked at together, which bounds the memory.
_BLOCK = 256


@dataclass(frozen=True, slots=True)
class Division:
    """Classes from small to large: the bounds between them, as ln cost, and why there are that many."""

    bounds: tuple[float, ...] = ()
    # Of 2, 3, ... classes.
    silhouettes: tuple[float, ...] = ()
    # Why there is only one class.
    reason: str | None = None


def divide(places: Numbers, weights: Numbers, costs: Numbers, most: int, present: int = 1) -> Division:
    """Divide points into classes, `most` at most.

    `places` are ln costs, all different and ascending; `weights` says how many requests each stands for, `costs` what
    those have cost together; both are above 0. Where there are `present` classes already, that number is left only
    for a clearly better one. A request counts half for itself and half for what it costs: by number alone, few but
    dear requests would not be seen, and those are what admission control is for.
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
    """Return how many classes are clear, given the silhouettes of 2, 3, ... of them; 1 if none are."""
    best = max(silhouettes)
    if 2 <= present < len(silhouettes) + 2:
        own = silhouettes[present - 2]
        if own >= max(best, LEAST_SILHOUETTE) - LOYALTY:
            return present
    if best < LEAST_SILHOUETTE:
        return 1
    return next(count for count, value in enumerate(silhouettes, start=2) if value >= best - CLEARLY_BETTER)


def best_partitions(places: Numbers, weights: Numbers, most: int) -> list[Indices]:
    """Return for 2, 3, ... `most` classes where each begins, such that the squared distances to centres are least.

    In order, the points of a class lie side by side; so the best k classes of the first n points are the best k - 1
    of some of them, and the rest (Bellman). Exact, in a time that grows with the square of the number of points.
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
    """Return the squared distances within a class from each of `starts` up to each of `ends`; without end if empty.

    `sums` are those of weights, and of weights times places and squares of places, before each point.
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
    """Return how well points fit their own class and no other, -1 to 1, by squared distances (as Spark does).

    Classes begin at `starts`. A point stands for many requests, so that one alone in its class fits it well.
    """
    lengths = np.diff(np.append(starts, len(places)))
    own = np.repeat(np.arange(len(starts)), lengths)
    total = np.add.reduceat(weights, starts)
    mean = np.add.reduceat(weights * places, starts) / total
    variance = np.maximum(np.add.reduceat(weights * (places - mean[own]) ** 2, starts) / total, 0.0)
    distances = (places[:, None] - mean[None, :]) ** 2 + variance[None, :]
    each = np.arange(len(places))
    # A point is two halves of a request's weight: one of them is not compared with itself.
    within = distances[each, own] * total[own] / (total[own] - weights / 2)
    distances[each, own] = math.inf
    between = distances.min(axis=1)
    larger = np.maximum(within, between)
    fits = np.divide(between - within, larger, out=np.zeros_like(larger), where=larger > 0)
    return float(np.average(fits, weights=weights))
