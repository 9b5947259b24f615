"""Cost classes of requests, from cheap to expensive.

Types shared by classifier, gate and observers; classification is done elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

# Minimum cost of a class: ratios of costs need it above 0.
LEAST_COST = 0.01


@dataclass(frozen=True, slots=True)
class CostClass:
    """A cost class. Classes are numbered from cheap to expensive, starting at 0."""

    number: int
    # Current average cost of a request; above 0.
    mean: float
    # Upper bound of the cost, None for the last class.
    below: float | None = None


@dataclass(frozen=True, slots=True)
class KeyCost:
    """Statistics of the requests of one key, for display."""

    class_number: int
    mean: float
    # Cost without overload: from its profile, or the minimum mean so far.
    base: float
    # Requests since the process started.
    requests: int


class RequestClasses(Protocol):
    """Assigns requests to classes by key, and learns from their costs."""

    @property
    def unit(self) -> str | None:
        """The unit of its initial costs, as in `Unit`; None without any."""

    @property
    def classes(self) -> tuple[CostClass, ...]:
        """All classes, from cheap to expensive; at least one."""

    @property
    def keys(self) -> Mapping[str, KeyCost]:
        """Statistics by key."""

    def classify(self, key: str) -> tuple[int, float]:
        """Return the class of an arriving request, and its predicted cost."""

    def learn(self, key: str, cost: float) -> tuple[int, float]:
        """Learn the cost (0 or more) of a request that has ended. Return its class and base cost.

        The base cost is the cost without overload: the minimum mean of its key.
        """

    def end_period(self) -> bool:
        """End a control period; return whether classes, or the class of a key, have changed."""
