"""Classes as they stand, for tests of schedulers by hand."""

from __future__ import annotations

from collections.abc import Sequence

from flyball.admission.schedulers import Scheduler, Standing, Turnout


def standings(
    costs: Sequence[float],
    waiting: Sequence[int],
    head_ages_s: Sequence[float] | None = None,
    arrivals_per_s: Sequence[float] | None = None,
) -> list[Standing]:
    ages = head_ages_s or [1.0 if number else 0.0 for number in waiting]
    arrivals = arrivals_per_s or [1.0] * len(costs)
    return [Standing(*row) for row in zip(costs, waiting, ages, arrivals, strict=True)]


def chances(scheduler: Scheduler, classes: Sequence[Standing]) -> list[float]:
    """Return the probability of each class that waits."""
    return [scheduler.probability(number, classes) for number, each in enumerate(classes) if each.waiting]


def turnouts(costs: Sequence[float], admitted: Sequence[int], waiting: Sequence[int]) -> list[Turnout]:
    return [Turnout(*row, lost=0) for row in zip(costs, admitted, waiting, strict=True)]
