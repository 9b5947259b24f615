"""DPS-2: dynamic probabilistic scheduling by the odds of being blocked. Learns once a period, knows no clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flyball.admission.schedulers.scheduler import Standing, Turnout, cheaper_waits

SPEED = 0.1
"""How far the logarithm of a probability moves in a period for an error of 1; sets the speed, not the end."""
LARGEST_ERROR = 2.0
LEAST_LOG = -9.0
AVERAGED_PERIODS = 30
"""Over how many periods admissions and losses are averaged."""


@dataclass(slots=True)
class _Record:
    """What is remembered of one class."""

    admitted: float = 0.0
    lost: float = 0.0
    log_probability: float = 0.0


class Dps:
    """Makes the odds of being blocked proportional to the cost of a class.

    The odds of a class are those who were not admitted over those who were. While requests are lost, the former are
    the lost ones, else those who wait. Under overload a fraction A of each class is admitted with
    (1 - A_i) / A_i = (c_i / c_1) (1 - A_1) / A_1: cheap classes are favoured by exactly the ratio of costs, dear ones
    never starve. Without overload waits tend to be proportional to costs.
    """

    def __init__(self, speed: float = SPEED) -> None:
        self._speed = speed
        self._records: list[_Record] = []
        self._periods = 0

    def probability(self, number: int, classes: Sequence[Standing]) -> float:
        """Return the learned probability of the class, or 1 if no cheaper one waits."""
        if number >= len(self._records) or not cheaper_waits(number, classes):
            return 1.0
        return math.exp(self._records[number].log_probability)

    def end_period(self, turnouts: Sequence[Turnout]) -> None:
        """Move the probability of each class towards the one at which its odds fit its cost."""
        if len(turnouts) != len(self._records):
            self._records = [_Record() for _ in turnouts]
            self._periods = 0
        self._average(turnouts)
        log_odds = self._log_odds(turnouts)
        for number in range(1, len(turnouts)):
            own = log_odds[number] - math.log(turnouts[number].cost)
            errors = [
                own - log_odds[other] + math.log(turnouts[other].cost)
                for other in range(number)
                if turnouts[other].waiting
            ]
            error = max(-LARGEST_ERROR, min(min(errors), LARGEST_ERROR)) if errors else 1.0
            record = self._records[number]
            record.log_probability = max(LEAST_LOG, min(record.log_probability + self._speed * error, 0.0))

    def probabilities(self) -> tuple[float, ...]:
        """Return the learned probability of each class."""
        return tuple(math.exp(record.log_probability) for record in self._records)

    def _average(self, turnouts: Sequence[Turnout]) -> None:
        self._periods = min(self._periods + 1, AVERAGED_PERIODS)
        for record, turnout in zip(self._records, turnouts, strict=True):
            record.admitted += (turnout.admitted - record.admitted) / self._periods
            record.lost += (turnout.lost - record.lost) / self._periods

    def _log_odds(self, turnouts: Sequence[Turnout]) -> list[float]:
        is_losing = sum(record.lost for record in self._records) > 1.0 / AVERAGED_PERIODS
        return [
            math.log(((record.lost if is_losing else turnout.waiting) + 0.5) / (record.admitted + 0.05))
            for record, turnout in zip(self._records, turnouts, strict=True)
        ]
