from __future__ import annotations

import pytest

from flyball.admission.schedulers import RoundRobin
from tests.admission.simulation import simulate

COSTS = (1.0, 10.0)


def test_overload_admits_equal_numbers_so_large_takes_most_of_the_budget() -> None:
    outcome = simulate(RoundRobin(), COSTS, (0.3, 1.0))
    used = [load * each for load, each in zip(outcome.loads, outcome.fractions, strict=True)]
    assert used == pytest.approx([1 / 11, 10 / 11], abs=0.01)


def test_small_waits_longest_for_its_cost() -> None:
    outcome = simulate(RoundRobin(), COSTS, (0.9, 0.4))
    assert outcome.fractions == pytest.approx((0.65, 1.0), abs=0.03)
    assert outcome.slowdown_ratio(COSTS) < 0.01
