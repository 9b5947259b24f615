"""DPS-2: dynamic probabilistic scheduling by blocking odds. Learns once per period; no clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flyball.admission.schedulers.scheduler import Standing, Turnout, cheaper_waits

# Change of the logarithm of a probability per period for an error of 1; affects the speed, not the result.
SPEED = 0.1
LARGEST_ERROR = 2.0
LEAST_LOG_PROBABILITY = -9.0
AVERAGED_PERIODS = 30
# Added to averaged counts, so that their logarithm exists. Smaller averages are mostly noise.
LEAST_COUNT = 0.01
# Added to the number of waiting requests, for the same reason.
HALF_A_REQUEST = 0.5
# Below this ratio of lost to admitted requests in every class, losses say nothing about overload.
LEAST_GONE_RATIO = 0.02


@dataclass(slots=True)
class _Record:
    """Averages of one class."""

    log_probability: float
    admitted: float = 0.0
    # Ratio of requests not admitted to requests admitted.
    blocked: float = 0.0
    # Refused requests and those that left.
    gone: float = 0.0
    waiting: int = 0

    def take(self, turnout: Turnout, weight: float) -> None:
        """Add the latest period to the averages."""
        gone = turnout.lost + turnout.left
        self.admitted += (turnout.admitted - self.admitted) * weight
        self.gone += (gone - self.gone) * weight
        # A lost request has waited before. An increase of waiting requests therefore counts now: equal in the long
        # run, but without the delay, and so without oscillation.
        self.blocked += (gone + turnout.waiting - self.waiting - self.blocked) * weight
        self.waiting = turnout.waiting


class Dps:
    """Makes the odds of being blocked proportional to the cost of a class.

    The odds are requests not admitted over requests admitted. While many are lost, the former are the lost ones,
    otherwise the waiting ones. Under overload a class is admitted with fraction A, (1 - A_i) / A_i = (c_i / c_1) (1 -
    A_1) / A_1: cheap classes are favoured by exactly the ratio of the costs c, and no class starves. Without
    overload, waits tend to be proportional to costs.

    Initially, the probability of a class is the lowest cost divided by its own.
    """

    def __init__(self, speed: float = SPEED) -> None:
        self._speed = speed
        self._records: list[_Record] = []
        self._periods = 0

    def probability(self, number: int, classes: Sequence[Standing]) -> float:
        """Return the learned probability of the class, or 1 if no cheaper one waits."""
        if not cheaper_waits(number, classes):
            return 1.0
        if len(self._records) != len(classes):
            return classes[0].cost / classes[number].cost
        return math.exp(self._records[number].log_probability)

    def end_period(self, turnouts: Sequence[Turnout]) -> None:
        """Move each probability towards the one at which the odds match the cost."""
        if len(turnouts) != len(self._records):
            self._records = [_Record(math.log(turnouts[0].cost / turnout.cost)) for turnout in turnouts]
            self._periods = 0
        self._periods = min(self._periods + 1, AVERAGED_PERIODS)
        for record, turnout in zip(self._records, turnouts, strict=True):
            record.take(turnout, 1.0 / self._periods)
        self._move(self._log_odds_for_cost(turnouts))

    def probabilities(self) -> tuple[float, ...]:
        """Return the learned probability of each class."""
        return tuple(math.exp(record.log_probability) for record in self._records)

    def _log_odds_for_cost(self, turnouts: Sequence[Turnout]) -> list[float]:
        is_losing = any(record.gone > LEAST_GONE_RATIO * record.admitted for record in self._records)
        return [
            math.log(
                (max(record.blocked, 0.0) + LEAST_COUNT if is_losing else record.waiting + HALF_A_REQUEST)
                / (record.admitted + LEAST_COUNT)
                / turnout.cost
            )
            for record, turnout in zip(self._records, turnouts, strict=True)
        ]

    def _move(self, log_odds_for_cost: Sequence[float]) -> None:
        """Compare each class with the next cheaper one that waits, which is compared in turn, so that all become
        equal.

        Comparing with the worst of all cheaper ones would be equivalent for exact odds. They are noisy, the worst of
        several looks worse than it is, and the most expensive of four classes would get a tenth too little.
        """
        reference: float | None = None
        for record, own in zip(self._records, log_odds_for_cost, strict=True):
            error = 1.0 if reference is None else max(-LARGEST_ERROR, min(own - reference, LARGEST_ERROR))
            moved = record.log_probability + self._speed * error
            record.log_probability = max(LEAST_LOG_PROBABILITY, min(moved, 0.0))
            if record.waiting:
                reference = own
