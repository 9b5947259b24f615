"""What classes of requests are: from cheap to dear, each with what its requests cost on average.

Only the words that classifier, gate and the people who watch them share; who belongs where is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

# A class costs at least this: ratios of costs are taken, and what is free has none.
LEAST_COST = 0.01


@dataclass(frozen=True, slots=True)
class CostClass:
    """One class of requests. Classes are numbered from cheap to dear, from 0 on."""

    number: int
    # What one of its requests costs on average at present; above 0.
    mean: float
    # The cost at which the next class begins, None for the dearest.
    below: float | None = None


@dataclass(frozen=True, slots=True)
class KeyCost:
    """What is known about the requests of one key, for people to see."""

    class_number: int
    mean: float
    # What one costs while the database is not overloaded: in its profile, or the least mean so far.
    base: float
    # How many have been seen since the process began.
    requests: int


class RequestClasses(Protocol):
    """Puts requests into classes by their key, and learns from what they have cost."""

    @property
    def unit(self) -> str | None:
        """The unit of the costs that it began with, as in `Unit`; None if it knew none."""

    @property
    def classes(self) -> tuple[CostClass, ...]:
        """All classes, from cheap to dear; at least one."""

    @property
    def keys(self) -> Mapping[str, KeyCost]:
        """What is known about each key."""

    def classify(self, key: str) -> tuple[int, float]:
        """Return the class of a request that has come, and the cost to spend for it."""

    def learn(self, key: str, cost: float) -> tuple[int, float]:
        """Note what a request has cost, 0 or more, after it has ended. Return its class, and its base cost.

        That is what it costs while nothing is overloaded: the least mean of its key.
        """

    def end_period(self) -> bool:
        """Note that a control period has ended; say whether classes, or the class of a key, have changed."""
