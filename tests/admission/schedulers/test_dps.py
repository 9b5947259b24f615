"""DPS-2 by hand, and its law in simulation."""

from __future__ import annotations

import math

import pytest

from flyball.admission.schedulers import Dps, Turnout
from tests.admission.schedulers.standings import standings, turnouts
from tests.admission.simulation import Outcome, fractions_by_law, simulate

TWO = (1.0, 10.0)
THREE = (1.0, 4.0, 16.0)
TABLE = [
    (TWO, (0.3, 1.0), (0.961, 0.712)),
    (TWO, (0.9, 0.4), (0.900, 0.474)),
    (TWO, (1.5, 0.3), (0.637, 0.149)),
    (TWO, (1.5, 1.5), (0.556, 0.111)),
    (TWO, (5.0, 5.0), (0.179, 0.021)),
    (THREE, (1.0, 1.0, 1.0), (0.62, 0.29, 0.09)),
]


def assert_the_law_holds(outcome: Outcome, costs: tuple[float, ...]) -> None:
    predicted = fractions_by_law(costs, outcome.loads)
    assert outcome.fractions == pytest.approx(predicted, abs=0.02)
    # For a class with almost no admissions, 0.02 would not test anything.
    assert outcome.fractions == pytest.approx(predicted, rel=0.1)
    assert outcome.cost_per_s == pytest.approx(120.0, rel=0.01)


def fluid_period(scheduler: Dps, arrivals: tuple[int, int], capacity: float) -> list[Turnout]:
    """Return what becomes of two classes without chance: a large one passes in each round with its probability."""
    probability = scheduler.probability(1, standings(TWO, (1, 1)))
    small = capacity / (TWO[0] + probability * TWO[1])
    admitted = (round(min(small, arrivals[0])), round(min(probability * small, arrivals[1])))
    return [
        Turnout(cost, one, waiting=1, lost=of - one) for cost, one, of in zip(TWO, admitted, arrivals, strict=True)
    ]


def settled(scheduler: Dps, period: list[Turnout], periods: int = 400) -> tuple[float, ...]:
    for _ in range(periods):
        scheduler.end_period(period)
    return scheduler.probabilities()


@pytest.mark.parametrize(("costs", "loads", "fractions"), TABLE)
def test_the_law_says_what_was_worked_out_before(
    costs: tuple[float, ...], loads: tuple[float, ...], fractions: tuple[float, ...]
) -> None:
    assert fractions_by_law(costs, loads) == pytest.approx(fractions, abs=0.003)


@pytest.mark.parametrize(("costs", "loads"), [row[:2] for row in TABLE])
def test_odds_of_being_blocked_are_as_costs_while_queues_grow(
    costs: tuple[float, ...], loads: tuple[float, ...]
) -> None:
    assert_the_law_holds(simulate(Dps(), costs, loads, seconds=300.0 if sum(loads) < 5.0 else 180.0), costs)


@pytest.mark.parametrize(("costs", "loads"), [row[:2] for row in TABLE])
def test_odds_of_being_blocked_are_as_costs_while_requests_run_out_of_time(
    costs: tuple[float, ...], loads: tuple[float, ...]
) -> None:
    seconds = 300.0 if sum(loads) < 5.0 else 180.0
    assert_the_law_holds(simulate(Dps(), costs, loads, seconds=seconds, deadline_s=5.0), costs)


def test_odds_of_being_blocked_are_as_costs_while_clients_give_up_by_themselves() -> None:
    outcome = simulate(Dps(), TWO, (0.9, 0.4), seconds=300.0, deadline_s=5.0, is_impatient=True)
    assert_the_law_holds(outcome, TWO)


def test_odds_of_being_blocked_are_as_costs_for_four_classes() -> None:
    costs = (1.0, 2.0, 4.0, 8.0)
    assert_the_law_holds(simulate(Dps(), costs, (0.5, 0.5, 0.5, 0.5), seconds=300.0, deadline_s=5.0), costs)


def test_small_overload_alone_does_not_starve_large() -> None:
    outcome = simulate(Dps(), TWO, (5.0, 0.5), seconds=240.0, deadline_s=5.0)
    assert outcome.fractions[1] >= 0.9 * outcome.fractions[0] / 10.0


def test_mostly_large_traffic_leaves_small_to_pass_and_takes_the_rest() -> None:
    outcome = simulate(Dps(), TWO, (0.02, 2.0), deadline_s=5.0)
    assert outcome.fractions[0] > 0.95
    assert outcome.fractions[1] == pytest.approx(0.49, abs=0.02)


def test_without_overload_everybody_is_admitted_and_small_waits_least() -> None:
    outcome = simulate(Dps(), TWO, (0.7, 0.25))
    assert outcome.fractions == pytest.approx((1.0, 1.0), abs=0.01)
    assert outcome.waits_s[0] < outcome.waits_s[1] < 1.0


@pytest.mark.parametrize("loads", [(0.3, 1.0), (0.9, 0.4), (1.5, 0.3), (1.5, 1.5), (5.0, 5.0)])
@pytest.mark.parametrize("first_waiting", [(10_000, 0), (0, 10_000)])
def test_without_chance_it_ends_at_the_law_exactly_wherever_it_begins(
    loads: tuple[float, float], first_waiting: tuple[int, int]
) -> None:
    scheduler = Dps()
    settled(scheduler, turnouts(TWO, (10, 10), first_waiting), 200)
    arrivals = (round(loads[0] * 1e7 / TWO[0]), round(loads[1] * 1e7 / TWO[1]))
    for _ in range(1500):
        period = fluid_period(scheduler, arrivals, 1e7)
        scheduler.end_period(period)
    fractions = [each.admitted / of for each, of in zip(period, arrivals, strict=True)]
    assert fractions == pytest.approx(fractions_by_law(TWO, loads), abs=1e-4)


@pytest.mark.parametrize("speed", [0.05, 0.3])
def test_the_speed_does_not_change_where_it_ends(speed: float) -> None:
    assert_the_law_holds(simulate(Dps(speed), TWO, (1.5, 1.5), deadline_s=5.0), TWO)


def test_before_anything_is_learned_probabilities_are_as_the_inverse_of_costs() -> None:
    assert Dps().probability(1, standings(TWO, (1, 1))) == pytest.approx(0.1)


def test_a_class_passes_for_certain_while_no_cheaper_one_waits() -> None:
    scheduler = Dps()
    settled(scheduler, turnouts(TWO, (10, 10), (100, 1)))
    assert scheduler.probability(1, standings(TWO, (0, 1))) == 1.0
    assert scheduler.probability(1, standings(TWO, (1, 1))) < 0.01


def test_probability_moves_until_odds_match_the_cost() -> None:
    before = math.log(0.1)
    too_good, too_bad = Dps(), Dps()
    too_good.end_period(turnouts(TWO, (10, 10), (10, 50)))
    too_bad.end_period(turnouts(TWO, (10, 10), (10, 200)))
    assert math.log(too_good.probabilities()[1]) == pytest.approx(before - 0.1 * math.log(2.0), abs=0.01)
    assert math.log(too_bad.probabilities()[1]) == pytest.approx(before + 0.1 * math.log(2.0), abs=0.01)


def test_odds_that_fit_the_costs_move_nothing() -> None:
    assert settled(Dps(), turnouts(THREE, (100, 100, 100), (1000, 4000, 16_000)), 50) == pytest.approx(
        (1.0, 0.25, 0.0625), rel=0.01
    )


def test_a_probability_has_a_floor_and_never_exceeds_one() -> None:
    assert settled(Dps(), turnouts(TWO, (10, 100), (1000, 1)))[1] == pytest.approx(math.exp(-9.0))
    assert settled(Dps(), turnouts(TWO, (100, 0), (1, 1000)))[1] == 1.0


def test_while_no_cheaper_class_waits_the_probability_recovers() -> None:
    scheduler = Dps()
    settled(scheduler, turnouts(TWO, (10, 100), (1000, 1)))
    assert settled(scheduler, turnouts(TWO, (10, 10), (0, 10)), 91)[1] == pytest.approx(1.0)


def test_a_class_that_does_not_wait_is_not_compared_with() -> None:
    of_three = turnouts(THREE, (100, 100, 100), (100, 0, 1600))
    before = math.log(1.0 / 16.0)
    scheduler = Dps()
    scheduler.end_period(of_three)
    assert math.log(scheduler.probabilities()[2]) == pytest.approx(before, abs=0.01)


def test_a_few_who_leave_do_not_change_what_the_odds_are_of() -> None:
    with_some, without = Dps(), Dps()
    period = turnouts(TWO, (100, 100), (10, 50))
    assert settled(with_some, [Turnout(each.cost, 100, each.waiting, 0, left=1) for each in period]) == settled(
        without, period
    )
