"""Counters of requests: per class since the start, and in total per control period. Only sums."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Outcome = Literal["served", "failed", "refused", "left"]

# Bounds of the histogram of waiting times; no wait is in the first bucket.
WAITS_S = (0.0, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
AVERAGED_PERIODS = 30
# Weight of the last response in the mean response of a class.
RESPONSE_PART = 0.1


@dataclass(frozen=True, slots=True)
class Served:
    """The outcome of one request."""

    key: str
    class_number: int
    outcome: Outcome
    # Time of the event loop's clock.
    arrived_s: float
    waited_s: float
    # From admission to end; 0 if it was not admitted.
    served_s: float
    connections: int = 0
    busy_s: float = 0.0
    # Time waiting for connections after admission.
    waiting_s: float = 0.0


@dataclass(slots=True)
class ClassCounts:
    """Outcomes of the requests of one class since the start."""

    arrived: int = 0
    admitted: int = 0
    refused: int = 0
    left: int = 0
    served: int = 0
    failed: int = 0
    # Sum over admitted requests.
    waited_s: float = 0.0
    # Histogram of waiting times: one bucket per bound of WAITS_S, and one for longer waits.
    waits: list[int] = field(default_factory=lambda: [0] * (len(WAITS_S) + 1))

    def admit(self, waited_s: float) -> None:
        """Count an admitted request."""
        self.admitted += 1
        if waited_s == 0.0:
            self.waits[0] += 1
        else:
            self.waited_s += waited_s
            self.waits[bisect_left(WAITS_S, waited_s)] += 1


class Blocking:
    """Odds of waiting against being admitted, by class, over about 30 periods."""

    def __init__(self) -> None:
        self._admitted: list[float] = []
        self._blocked: list[float] = []

    def end_period(self, admitted: Sequence[int], waiting: Sequence[int], lost: Sequence[int]) -> None:
        """Count a period. If the number of classes has changed, start over."""
        if len(admitted) != len(self._admitted):
            self._admitted, self._blocked = [0.0] * len(admitted), [0.0] * len(admitted)
        for number in range(len(admitted)):
            self._admitted[number] += (admitted[number] - self._admitted[number]) / AVERAGED_PERIODS
            blocked = lost[number] if any(lost) else waiting[number]
            self._blocked[number] += (blocked - self._blocked[number]) / AVERAGED_PERIODS

    def odds(self, number: int) -> float | None:
        """Return the odds of a class, None if none of it was admitted."""
        if number >= len(self._admitted) or self._admitted[number] < 0.001:
            return None
        return self._blocked[number] / self._admitted[number]


class Finished:
    """Requests that ended in a period, corrected for their mix.

    A period with many large requests is slower on average without any slowdown. So each response counts relative to
    the best of its class.
    """

    def __init__(self) -> None:
        self.work = 0.0
        self.count = 0
        self.failures = 0
        self.failed_s = 0.0
        self._served_s = 0.0
        self._best_s = 0.0
        self._means_s: dict[int, float] = {}
        self._bests_s: dict[int, float] = {}
        self._mean_best_s: float | None = None

    def fail(self, served_s: float) -> None:
        """Count a failed request."""
        self.failures += 1
        self.failed_s = max(self.failed_s, served_s)

    def add(self, number: int, served_s: float, base_cost: float) -> None:
        """Count a served request."""
        mean_s = self._means_s.get(number, served_s)
        mean_s += RESPONSE_PART * (served_s - mean_s)
        self._means_s[number] = mean_s
        best_s = self._bests_s.get(number, math.inf)
        if mean_s < best_s:
            best_s = self._bests_s[number] = mean_s
        self.count += 1
        self.work += base_cost
        self._served_s += served_s
        self._best_s += best_s

    @property
    def response_s(self) -> float | None:
        """The mean response, corrected for the mix; None if none was served."""
        if self.count == 0:
            return None
        best_s = self._best_s / self.count
        mean_best_s = self._mean_best_s if self._mean_best_s is not None else best_s
        return mean_best_s * self._served_s / self._best_s if self._best_s > 0 else best_s

    def end_period(self) -> None:
        """Start a new period."""
        if self.count:
            best_s = self._best_s / self.count
            before_s = self._mean_best_s if self._mean_best_s is not None else best_s
            self._mean_best_s = before_s + (best_s - before_s) / AVERAGED_PERIODS
        self.work, self.count, self.failures, self.failed_s = 0.0, 0, 0, 0.0
        self._served_s, self._best_s = 0.0, 0.0

    def forget_classes(self) -> None:
        """Forget statistics by class: the numbers now mean other classes."""
        self._means_s.clear()
        self._bests_s.clear()
