"""The budget's controller against the plants of which the right answers are known."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from statistics import fmean, quantiles, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.admission.budget import LEAST_SHARE, MOST_RATIO, BudgetController, BusyLimit
from flyball.errors import AdmissionError

R = 120.0
SMALL, LARGE = 0.5, 8.0
PERIODS = 20_000


def loads_with_plenty_of_requests(gain: float, predicted: Callable[[float], float]) -> list[float]:
    """Return each period's load while small and large requests wait, in a mix that drifts from 20 to 80 %.

    `predicted` says what is spent for a request of a given cost. A debt is repaid in the next period.
    """
    chance = random.Random(1)
    controller = BudgetController(R, gain)
    loads: list[float] = []
    share, left, admitted = 0.5, 0.0, R
    for _ in range(PERIODS):
        share = min(0.8, max(0.2, share + chance.uniform(-0.02, 0.02)))
        budget = controller.step(R, loads[-1] if loads else R, admitted)
        left = min(left, 0.0) + budget
        load = admitted = 0.0
        while left > 0:
            cost = LARGE if chance.random() < share else SMALL
            left -= predicted(cost)
            admitted += predicted(cost)
            load += cost
        loads.append(chance.gauss(load, 0.1 * load))
    return loads[100:]


@pytest.mark.parametrize(
    ("gain", "most_deviation", "most_p99"), [(1.0, 26.0, 190.0), (0.3, 20.0, 175.0), (0.1, 18.0, 170.0)]
)
def test_with_predicted_costs_the_load_is_held_at_any_of_the_gains(
    gain: float, most_deviation: float, most_p99: float
) -> None:
    loads = loads_with_plenty_of_requests(gain, lambda cost: cost)
    assert fmean(loads) == pytest.approx(R, rel=0.02)
    assert stdev(loads) < most_deviation
    assert quantiles(loads, n=100)[-1] < most_p99


def test_a_smaller_gain_is_quieter() -> None:
    deviations = [stdev(loads_with_plenty_of_requests(gain, lambda cost: cost)) for gain in (1.0, 0.3, 0.1)]
    assert deviations == sorted(deviations, reverse=True)


def test_without_classes_the_gain_of_the_seed_does_not_hold_the_load() -> None:
    loads = loads_with_plenty_of_requests(1.0, lambda cost: 1.0)
    assert stdev(loads) > R


def test_without_classes_a_gain_for_the_mean_cost_holds_the_load_but_less_well() -> None:
    mean_cost = (SMALL + LARGE) / 2
    without = loads_with_plenty_of_requests(1.0 / mean_cost, lambda cost: 1.0)
    assert fmean(without) == pytest.approx(R, rel=0.05)
    assert stdev(without) > 1.3 * stdev(loads_with_plenty_of_requests(1.0, lambda cost: cost))


def last_swing(gain: float, a: float, b: float, delay: int = 1) -> float:
    """How far y(k+1) = a y(k) + b u(k - delay + 1) is from the reference in the end, after a start nearby."""
    settled = R * (1 - a) / b
    controller = BudgetController(settled, gain)
    y, actions, errors = R * 1.01, deque([settled] * delay, maxlen=delay), []
    for _ in range(400):
        actions.append(controller.step(R, y, 100 * R))
        y = a * y + b * actions[0]
        errors.append(abs(y - R))
    return max(errors[-20:])


@pytest.mark.parametrize(("a", "b"), [(0.0, 1.0), (0.5, 1.0), (0.3, 2.0), (-0.4, 0.5)])
def test_loop_with_memory_is_stable_exactly_up_to_the_bound(a: float, b: float) -> None:
    bound = 2 * (1 + a) / b
    assert last_swing(0.95 * bound, a, b) < 0.01
    assert last_swing(1.05 * bound, a, b) > 1.2


@pytest.mark.parametrize(("delay", "bound"), [(1, 2.0), (2, 1.0), (3, 0.618), (4, 0.445)])
def test_loop_with_delay_is_stable_exactly_up_to_the_bound(delay: int, bound: float) -> None:
    assert last_swing(0.9 * bound, 0.0, 1.0, delay) < 0.01
    assert last_swing(1.1 * bound, 0.0, 1.0, delay) > 1.2


def test_while_few_requests_come_the_budget_does_not_wind_up() -> None:
    controller = BudgetController(R)
    for _ in range(1000):
        budget = controller.step(R, measured=5.0, admitted=5.0)
    assert budget == 5.0 + R


def test_something_is_always_admitted() -> None:
    controller = BudgetController(R)
    for _ in range(1000):
        budget = controller.step(R, measured=50 * R, admitted=R)
    assert budget == LEAST_SHARE * R


def test_when_the_reference_changes_the_budget_follows_at_once() -> None:
    controller = BudgetController(R)
    controller.step(R, R, R)
    assert controller.step(2 * R, 2 * R, R) == pytest.approx(2 * R)


@given(
    st.floats(0.01, 2.0),
    st.lists(st.tuples(st.floats(0.1, 1e6), st.floats(0, 1e7), st.floats(0, 1e7)), min_size=1, max_size=50),
)
def test_the_budget_stays_between_its_bounds_whatever_happens(
    gain: float, periods: list[tuple[float, float, float]]
) -> None:
    controller = BudgetController(1.0, gain)
    for reference, measured, admitted in periods:
        budget = controller.step(reference, measured, admitted)
        assert LEAST_SHARE * reference <= budget <= admitted + reference


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_a_gain_or_start_that_cannot_work_is_refused(bad: float) -> None:
    with pytest.raises(AdmissionError, match="above 0"):
        BudgetController(R, bad)
    with pytest.raises(AdmissionError, match="above 0"):
        BudgetController(bad)


def test_as_many_connections_may_be_busy_as_the_reference_says() -> None:
    limit = BusyLimit(2000.0)
    assert limit.value == 2.0
    limit.step(3000.0, 2000.0, has_held=True)
    assert limit.value == 3.0


def test_busy_limit_rises_while_it_keeps_the_load_low_and_falls_again() -> None:
    limit = BusyLimit(2000.0)
    for _ in range(20):
        limit.step(2000.0, 800.0, has_held=True)
    assert limit.value == pytest.approx(3.0)
    for _ in range(1000):
        limit.step(2000.0, 1000.0, has_held=True)
    assert limit.value == 2.0 * MOST_RATIO
    for _ in range(1000):
        limit.step(2000.0, 4000.0, has_held=False)
    assert limit.value == 2.0


def test_a_load_that_is_low_since_few_come_raises_no_limit() -> None:
    limit = BusyLimit(2000.0)
    limit.step(2000.0, 100.0, has_held=False)
    assert limit.value == 2.0
