from __future__ import annotations

import pytest

from flyball.admission.schedulers import Fifo
from tests.admission.schedulers.standings import chances, standings
from tests.admission.simulation import simulate


def test_the_class_whose_first_has_waited_longest_passes_and_no_other() -> None:
    assert chances(Fifo(), standings((1.0, 4.0, 16.0), (5, 5, 5), (1.0, 3.0, 2.0))) == [0.0, 1.0, 0.0]


def test_of_several_who_have_waited_as_long_the_cheapest_passes() -> None:
    assert chances(Fifo(), standings((1.0, 4.0, 16.0), (0, 5, 5), (0.0, 3.0, 3.0))) == [1.0, 0.0]


def test_small_and_large_wait_alike_and_as_many_of_each_pass() -> None:
    outcome = simulate(Fifo(), (1.0, 10.0), (0.9, 0.4))
    assert outcome.fractions[0] == pytest.approx(outcome.fractions[1], abs=0.03)
    assert outcome.slowdown_ratio((1.0, 10.0)) == pytest.approx(0.1, abs=0.01)
