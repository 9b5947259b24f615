"""DPS-1 by hand and in simulation."""

from __future__ import annotations

import pytest

from flyball.admission.schedulers import Memoryless
from tests.admission.schedulers.standings import standings, turnouts
from tests.admission.simulation import simulate

TWO = (1.0, 10.0)
THREE = (1.0, 4.0, 16.0)


def test_class_passes_once_it_has_waited_longest_for_its_cost() -> None:
    scheduler = Memoryless()
    assert scheduler.probability(1, standings(TWO, (5, 5), (1.0, 10.0))) == 1.0
    assert scheduler.probability(1, standings(TWO, (5, 5), (1.0, 9.9))) < 1.0
    assert scheduler.probability(2, standings(THREE, (5, 5, 5), (1.0, 5.0, 19.0))) < 1.0


def test_a_class_passes_for_certain_while_no_cheaper_one_waits() -> None:
    assert Memoryless().probability(1, standings(TWO, (0, 5), (0.0, 0.1))) == 1.0


def test_a_class_keeps_a_share_of_the_turns_by_its_arrivals_and_its_cost() -> None:
    scheduler = Memoryless()
    assert scheduler.probability(1, standings(TWO, (5, 5), (1.0, 1.0), (100.0, 50.0))) == pytest.approx(0.05)
    assert scheduler.probability(1, standings(TWO, (5, 5), (1.0, 1.0), (10.0, 1000.0))) == 1.0


def test_the_share_is_that_of_the_cheapest_that_waits() -> None:
    scheduler = Memoryless()
    arrivals_per_s = (160.0, 40.0, 10.0)
    of_all = standings(THREE, (5, 5, 5), (1.0, 1.0, 1.0), arrivals_per_s)
    assert scheduler.probability(2, of_all) == pytest.approx(1 / 256)
    without_the_cheapest = standings(THREE, (0, 5, 5), (0.0, 1.0, 1.0), arrivals_per_s)
    assert scheduler.probability(2, without_the_cheapest) == pytest.approx(1 / 16)


def test_while_arrivals_are_not_known_the_share_is_as_the_inverse_of_the_costs() -> None:
    assert Memoryless().probability(1, standings(TWO, (5, 5), (1.0, 1.0), (0.0, 0.0))) == pytest.approx(0.1)


def test_the_share_that_was_last_kept_can_be_seen() -> None:
    scheduler = Memoryless()
    scheduler.end_period(turnouts(TWO, (1, 1), (1, 1)))
    scheduler.probability(1, standings(TWO, (5, 5), (1.0, 1.0), (100.0, 50.0)))
    assert scheduler.probabilities() == pytest.approx((1.0, 0.05))


@pytest.mark.parametrize(("loads", "fractions"), [((0.3, 1.0), (0.98, 0.71)), ((0.9, 0.4), (0.94, 0.38))])
def test_waits_are_as_costs_under_overload(loads: tuple[float, float], fractions: tuple[float, float]) -> None:
    outcome = simulate(Memoryless(), TWO, loads, warm_up_s=0.0)
    assert outcome.slowdown_ratio(TWO) == pytest.approx(1.0, abs=0.05)
    assert outcome.fractions == pytest.approx(fractions, abs=0.03)


def test_waits_are_as_costs_for_three_classes() -> None:
    outcome = simulate(Memoryless(), THREE, (0.4, 0.4, 0.4), warm_up_s=0.0)
    slowdowns = [wait_s / cost for wait_s, cost in zip(outcome.waits_s, THREE, strict=True)]
    assert slowdowns == pytest.approx([slowdowns[0]] * 3, rel=0.1)


@pytest.mark.parametrize("loads", [(1.5, 1.5), (1.5, 0.6)])
def test_deep_overload_admits_classes_in_inverse_proportion_to_cost(
    loads: tuple[float, float],
) -> None:
    outcome = simulate(Memoryless(), TWO, loads, seconds=400.0)
    assert 0.85 <= outcome.fractions[1] / (outcome.fractions[0] / 10.0) <= 1.1
