"""Gain scheduling on an identified curve: the law looks up the next action on the curve, so a bend does not matter.

The curve is the steady-state measurement for each action. It must rise; flat parts get a small slope.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from flyball.control.laws.law import Law, Reading, check_gains
from flyball.errors import ControlError

# Minimum slope of a part of a measured curve, relative to its steepest part: on a flatter one the action could be
# anything, and a step back from it would be a jump.
LEAST_SLOPE_RATIO = 0.05


@dataclass(frozen=True, slots=True)
class Scheduled(Law[float]):
    """f(u) += (1 - pole) e on the curve f, which is u += (1 - pole) e / f'(u) where the curve is straight."""

    kind: ClassVar[str] = "scheduled"

    actions: tuple[float, ...]
    measurements: tuple[float, ...]
    pole: float = 0.8

    def __post_init__(self) -> None:
        check_gains(self)
        if not 0 <= self.pole < 1:
            raise ControlError(f"the pole of a scheduled law is from 0 to below 1, not {self.pole}")
        if len(self.actions) < 2 or len(self.actions) != len(self.measurements):
            raise ControlError("a scheduled law needs a curve of two points or more")
        if not (_rises(self.actions) and _rises(self.measurements)):
            raise ControlError("a scheduled law needs a curve that rises: see Scheduled.on")

    @classmethod
    def on(cls, points: Iterable[tuple[float, float]], pole: float = 0.8) -> Self:
        """Return the law for measured points (action, measurement), whose noise may make the curve fall in places.

        Neighbours that fall are merged (isotonic regression by pooling), flat parts get a small slope.
        """
        levels: list[list[float]] = []
        for action, measurement in sorted(points):
            levels.append([action, measurement, 1.0])
            while len(levels) > 1 and (levels[-2][1] >= levels[-1][1] or levels[-2][0] >= levels[-1][0]):
                later, earlier = levels.pop(), levels.pop()
                weight = earlier[2] + later[2]
                mean = [(earlier[i] * earlier[2] + later[i] * later[2]) / weight for i in (0, 1)]
                levels.append([*mean, weight])
        if len(levels) < 2:
            raise ControlError("the curve does not rise: the action has no effect that could be used")
        actions = [level[0] for level in levels]
        return cls(tuple(actions), tuple(_steepened(actions, [level[1] for level in levels])), pole)

    def begin(self, action: float, reading: Reading | None) -> float:
        return action

    def step(self, state: float, reading: Reading) -> tuple[float, float]:
        reached = _through(self.actions, self.measurements, state)
        wanted = _through(self.measurements, self.actions, reached + (1 - self.pole) * reading.error)
        return wanted, wanted

    def settle(self, state: float, action: float) -> float:
        return action


def _rises(numbers: Sequence[float]) -> bool:
    return all(first < second for first, second in itertools.pairwise(numbers))


def _steepened(actions: Sequence[float], measurements: Sequence[float]) -> list[float]:
    points = list(zip(actions, measurements, strict=True))
    slopes = [(y1 - y0) / (u1 - u0) for (u0, y0), (u1, y1) in itertools.pairwise(points)]
    least = LEAST_SLOPE_RATIO * max(slopes)
    found = [measurements[0]]
    for place, slope in enumerate(slopes):
        found.append(found[-1] + max(slope, least) * (actions[place + 1] - actions[place]))
    return found


def _through(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Return y at x on the line through the points, extrapolated beyond the ends."""
    place = min(max(bisect_right(xs, x) - 1, 0), len(xs) - 2)
    slope = (ys[place + 1] - ys[place]) / (xs[place + 1] - xs[place])
    return ys[place] + slope * (x - xs[place])
