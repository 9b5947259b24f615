"""Divides costs into classes: k-means on ln cost, with as many classes as the silhouettes say.

The rules are those of the pipeline's profile, without Spark: on a line the best division can be found exactly. Knows
neither keys nor requests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LEAST_SILHOUETTE = 0.82
"""Below it there is one class: two halves of a single normal hump reach 0.71, of a flat one 0.8."""
CLEARLY_BETTER = 0.02
"""By so much the silhouette must gain for one class more."""
LOYALTY = 0.1
"""By so much the number of classes that there is already may be worse than another."""

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Division:
    """Classes from small to large: the bounds between them, as ln cost, and why there are that many."""

    bounds: tuple[float, ...] = ()
    silhouettes: tuple[float, ...] = ()
    """Of 2, 3, ... classes."""
    reason: str | None = None
    """Why there is only one class."""


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
    partitions = _best_partitions(places, importance, min(most, len(places)))
    found = [silhouette(places, importance, starts) for starts in partitions]
    count = _count(found, present)
    if count == 1:
        best = max(found)
        reason = f"no clear classes: the best silhouette is {best:.2f}, not {LEAST_SILHOUETTE}"
        return Division((), tuple(found), reason)
    starts = partitions[count - 2]
    centres = np.add.reduceat(places * importance, starts) / np.add.reduceat(importance, starts)
    bounds = tuple(float(bound) for bound in (centres[1:] + centres[:-1]) / 2)
    return Division(bounds, tuple(found))


def _count(silhouettes: list[float], present: int) -> int:
    """Return how many classes there should be, given the silhouettes of 2, 3, ... of them."""
    best = max(silhouettes)
    if 2 <= present < len(silhouettes) + 2:
        own = silhouettes[present - 2]
        if own >= max(best, LEAST_SILHOUETTE) - LOYALTY:
            return present
    if best < LEAST_SILHOUETTE:
        return 1
    return next(count for count, value in enumerate(silhouettes, start=2) if value >= best - CLEARLY_BETTER)


def _best_partitions(places: Numbers, weights: Numbers, most: int) -> list[npt.NDArray[np.intp]]:
    """Return for 2, 3, ... `most` classes where each begins, such that the squared distances to centres are least.

    In order, the points of a class lie side by side; so the best k classes of the first n points are the best k - 1
    of some of them, and the rest (Bellman). Exact, in a time that grows with the square of the number of points.
    """
    place = places - np.average(places, weights=weights)
    total, first, second = (np.concatenate([[0.0], np.cumsum(weights * place**power)]) for power in (0, 1, 2))
    count = len(places)

    def spread(starts: npt.NDArray[np.intp], end: int) -> Numbers:
        """Squared distances within a class from each of `starts` up to `end`."""
        weight, moment = total[end] - total[starts], first[end] - first[starts]
        found: Numbers = np.maximum(second[end] - second[starts] - moment * moment / weight, 0.0)
        return found

    least = np.array([0.0, *(spread(np.array([0]), end)[0] for end in range(1, count + 1))])
    begins: list[npt.NDArray[np.intp]] = []
    for classes in range(2, most + 1):
        fewer, least = least, np.full(count + 1, math.inf)
        begin = np.zeros(count + 1, np.intp)
        for end in range(classes, count + 1):
            starts = np.arange(classes - 1, end)
            sums = fewer[starts] + spread(starts, end)
            place_of_best = int(sums.argmin())
            least[end], begin[end] = sums[place_of_best], starts[place_of_best]
        begins.append(begin)
    return [_unrolled(begins[: classes - 1], count) for classes in range(2, most + 1)]


def _unrolled(begins: list[npt.NDArray[np.intp]], count: int) -> npt.NDArray[np.intp]:
    starts, end = [0], count
    for begin in reversed(begins):
        end = int(begin[end])
        starts.insert(1, end)
    return np.array(starts, np.intp)


def silhouette(places: Numbers, weights: Numbers, starts: npt.NDArray[np.intp]) -> float:
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
