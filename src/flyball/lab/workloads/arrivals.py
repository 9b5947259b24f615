"""Send times of a client: after a pause following the last answer, or by a schedule independent of answers.

A schedule counts arrivals: the k-th of all clients is due when the integral of the rate reaches k. That covers
constant rates, recorded curves and random arrivals alike. Does no I/O and reads no clock.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Protocol


class RateCurve:
    """A rate over time: linear between points (seconds, arrivals per second), then constant at the last rate."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        self._points = list(points)
        if self._points[0][0] > 0:
            self._points.insert(0, (0.0, self._points[0][1]))
        self._piece = 0
        self._before = 0.0

    def when(self, count: float) -> float:
        """Return when a number of arrivals is reached, in seconds; infinity if never. Call it with increasing
        counts.
        """
        points = self._points
        while self._piece + 1 < len(points):
            (start_s, rate), (stop_s, next_rate) = points[self._piece : self._piece + 2]
            arrivals = (stop_s - start_s) * (rate + next_rate) / 2
            if count <= self._before + arrivals and arrivals > 0:
                slope = (next_rate - rate) / (stop_s - start_s)
                return start_s + _time_of(count - self._before, rate, slope)
            self._before += arrivals
            self._piece += 1
        start_s, rate = points[-1]
        return start_s + (count - self._before) / rate if rate > 0 else math.inf


def _time_of(count: float, rate: float, slope: float) -> float:
    """Return t with rate * t + slope * t² / 2 = count, in a form that is numerically stable for slopes near 0."""
    return 2 * count / (rate + math.sqrt(max(0.0, rate * rate + 2 * slope * count)))


class Arrivals(Protocol):
    """Computes when a client's next call is due."""

    # Whether the schedule continues while an answer is outstanding.
    is_open: bool

    def next_s(self) -> float:
        """Return the pause before the next call, or for an open loop its time since the start; in seconds."""
        ...


class Thinking:
    """A closed loop: every call follows the previous answer after a pause."""

    is_open = False

    def __init__(self, think_time_s: float, chance: random.Random | None) -> None:
        """Pause for this time; with `chance`, exponentially distributed with this mean."""
        self._think_time_s = think_time_s
        self._chance = chance

    def next_s(self) -> float:
        if self._chance is None or self._think_time_s == 0:
            return self._think_time_s
        return self._chance.expovariate(1 / self._think_time_s)


class Scheduled:
    """An open loop: one of `clients` that share a rate. They take turns, or with `chance` are Poisson processes."""

    is_open = True

    def __init__(self, curve: RateCurve, number: int, clients: int, chance: random.Random | None) -> None:
        self._curve = curve
        self._clients = clients
        self._chance = chance
        self._count = number + 1.0 - clients if chance is None else 0.0

    def next_s(self) -> float:
        self._count += self._clients if self._chance is None else self._chance.expovariate(1 / self._clients)
        return self._curve.when(self._count)


class Gaps:
    """An open loop: normally distributed positive intervals between calls, during some spans of time."""

    is_open = True

    def __init__(
        self, mean_s: float, deviation_s: float, spans: Sequence[tuple[float, float]], chance: random.Random
    ) -> None:
        """`spans` are (start, end) in seconds since the start, in order."""
        self._mean_s = mean_s
        self._deviation_s = deviation_s
        self._spans = list(spans)
        self._chance = chance
        self._at_s = -math.inf

    def next_s(self) -> float:
        self._at_s += self._gap_s()
        while self._spans and self._at_s >= self._spans[0][1]:
            del self._spans[0]
        if not self._spans:
            return math.inf
        begin_s = self._spans[0][0]
        if self._at_s < begin_s:
            # Anywhere in their first interval, so that clients that start together do not run in lockstep.
            self._at_s = begin_s + self._chance.random() * self._mean_s
        return self._at_s

    def _gap_s(self) -> float:
        while (gap_s := self._chance.gauss(self._mean_s, self._deviation_s)) <= 0:
            pass
        return gap_s
