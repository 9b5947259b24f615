from __future__ import annotations

import pytest

from flyball.admission.schedulers import Strict
from tests.admission.schedulers.standings import chances, standings
from tests.admission.simulation import simulate

COSTS = (1.0, 10.0)


def test_only_the_cheapest_that_waits_passes() -> None:
    assert chances(Strict(), standings((1.0, 4.0, 16.0), (0, 2, 5))) == [1.0, 0.0]


def test_large_starves_when_small_alone_takes_the_capacity() -> None:
    outcome = simulate(Strict(), COSTS, (1.5, 1.5))
    assert outcome.fractions == pytest.approx((0.67, 0.0), abs=0.02)


def test_large_takes_what_small_leaves() -> None:
    outcome = simulate(Strict(), COSTS, (0.3, 1.0))
    assert outcome.fractions == pytest.approx((1.0, 0.7), abs=0.03)
    assert outcome.slowdown_ratio(COSTS) > 50.0
