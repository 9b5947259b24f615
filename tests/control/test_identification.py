"""Plants with known parameters are found again, as surely as is promised, and doubtful data are called so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from scipy import stats

from flyball.control.design import lambda_pi
from flyball.control.identification import identify
from flyball.control.laws import ProportionalIntegral
from flyball.control.plant import Plant
from flyball.control.signals import prbs, random_steps, staircase
from flyball.control.verification import certify
from flyball.errors import ControlError

from .plants import PAPER_PLANT, little, measured

SECOND_ORDER = Plant(a=0.9, ar=(-0.3,), b=30.0, bs=(15.0,), offset=7.0)


def distance(found: Plant, truth: Plant) -> float:
    """How far the truth lies from the estimate, squared, in standard deviations."""
    away = np.array([*found.all_a, *found.all_b]) - [*truth.all_a, *truth.all_b]
    return float(away @ np.linalg.solve(np.array(found.covariance), away))


@pytest.mark.parametrize(
    "plant",
    [
        PAPER_PLANT,
        Plant(a=0.83, b=0.21, offset=-3.0),
        Plant(a=-0.4, b=-5.0),
        Plant(a=0.26, b=59.73, delay=3),
        SECOND_ORDER,
        Plant(a=0.5, ar=(0.2, -0.1), b=0.1, bs=(2.0, 1.0), delay=1),
    ],
)
def test_without_noise_the_parameters_are_exact(plant: Plant) -> None:
    actions = random_steps(1, 22, 400, seed=2)
    found = identify(measured(plant, actions), actions, sample_time_s=10.0, delay=plant.delay, order=plant.order)
    assert (*found.all_a, *found.all_b) == pytest.approx((*plant.all_a, *plant.all_b), rel=1e-5)
    assert found.offset == pytest.approx(plant.offset, abs=1e-4)
    assert found.gain == pytest.approx(plant.gain)
    assert (found.delay, found.order, found.sample_time_s) == (plant.delay, plant.order, 10.0)
    assert found.test is not None
    assert found.test.r2 == pytest.approx(1)


@pytest.mark.parametrize("plant", [PAPER_PLANT, Plant(a=0.26, b=59.73, delay=2), SECOND_ORDER])
def test_with_noise_the_parameters_are_within_their_errors(plant: Plant) -> None:
    actions = random_steps(1, 22, 3000, seed=2)
    y = measured(plant, actions, noise=92)
    found = identify(y, actions, sample_time_s=1.0, loop="prefetch", delay=plant.delay, order=plant.order)
    size = 2 * plant.order
    assert distance(found, plant) < size * stats.f.ppf(0.999, size, 2000)
    assert found.loop == "prefetch"
    assert found.linear_range is not None
    assert found.linear_range.is_all
    assert found.warnings == ()
    assert found.fit is not None
    assert found.test is not None
    assert found.fit.pairs + found.test.pairs == found.pairs == 3000 - plant.delay - plant.order
    assert found.test.rmse == pytest.approx(92, rel=0.08)


def test_the_confidence_set_holds_the_truth_as_often_as_it_promises() -> None:
    repetitions, held = 400, 0
    for seed in range(repetitions):
        actions = random_steps(1, 22, 200, seed=seed)
        y = measured(PAPER_PLANT, actions, noise=50, seed=1000 + seed)
        found = identify(y, actions, sample_time_s=1.0, delay=0, order=1)
        assert found.degrees_of_freedom is not None
        held += distance(found, PAPER_PLANT) <= 2 * stats.f.ppf(0.9, 2, found.degrees_of_freedom)
    # Four standard errors of a share of 0.9.
    assert held / repetitions == pytest.approx(0.9, abs=4 * math.sqrt(0.9 * 0.1 / repetitions))


def test_the_intervals_hold_the_truth_as_often_as_they_promise() -> None:
    repetitions, held = 300, np.zeros(2)
    for seed in range(repetitions):
        actions = prbs(2, 10, 150, seed=seed)
        y = measured(PAPER_PLANT, actions, noise=50, seed=2000 + seed)
        found = identify(y, actions, sample_time_s=1.0, delay=0, order=1)
        assert found.intervals is not None
        for index, truth in enumerate((PAPER_PLANT.a, PAPER_PLANT.b)):
            held[index] += found.intervals[index].low <= truth <= found.intervals[index].high
    assert held / repetitions == pytest.approx(0.9, abs=4 * math.sqrt(0.9 * 0.1 / repetitions))


def test_the_operating_point_lies_on_the_line() -> None:
    actions = random_steps(1, 22, 1000, seed=2)
    found = identify(measured(PAPER_PLANT, actions, noise=20), actions, sample_time_s=1.0)
    assert found.operating_point is not None
    assert found.operating_point.action == pytest.approx(11.5, abs=0.7)
    assert found.operating_point.measurement == pytest.approx(
        found.gain * found.operating_point.action + found.offset / (1 - found.a), rel=0.01
    )


def test_the_linear_range_ends_where_the_plant_saturates() -> None:
    actions = random_steps(1, 40, 3000, seed=4)
    effective = [min(action, 22.0) for action in actions]
    found = identify(measured(PAPER_PLANT, effective, noise=20), actions, sample_time_s=1.0)
    assert found.linear_range is not None
    assert not found.linear_range.is_all
    assert found.linear_range.lowest == pytest.approx(1, abs=0.1)
    assert found.linear_range.highest == pytest.approx(22, abs=3)
    assert (found.a, found.b) == pytest.approx((0.26, 59.73), rel=0.05)
    assert found.curve[-1][1] == pytest.approx(22 * PAPER_PLANT.gain, rel=0.02)
    assert len(found.curve) == len(found.curve_pairs)


@pytest.mark.parametrize(
    "actions", [staircase(1, 360, 360), staircase(1, 60, 360, hold=6), staircase(1, 22, 360, hold=15)]
)
def test_an_action_that_only_climbs_on_a_bent_curve_is_warned_of(actions: list[float]) -> None:
    found = identify(little(actions), actions, sample_time_s=1.0, delay=0, order=1)
    # The plant has no memory at all.
    assert found.a > 0.3
    assert any("only climbed or only fell" in warning for warning in found.warnings)


def test_a_ramp_on_a_linear_plant_hardly_separates_a_from_b() -> None:
    actions = staircase(0, 10, 600)
    found = identify(measured(Plant(a=0.83, b=0.21), actions, noise=0.05), actions, sample_time_s=1.0)
    assert found.condition is not None
    assert found.condition > 30
    assert any("hardly separate a from b" in warning for warning in found.warnings)


@pytest.mark.parametrize("actions", [prbs(1, 3, 300), prbs(1, 3, 300, hold=3), random_steps(1, 4, 300)])
def test_random_actions_around_the_operating_point_separate_a_from_b(actions: list[float]) -> None:
    found = identify(little(actions), actions, sample_time_s=1.0)
    assert found.warnings == ()
    assert found.a == pytest.approx(0, abs=0.05)
    # The slope of 1250u/(u + 3.34) lies between 222 at 1 and 78 at 4.
    assert 78 < found.b < 222


def test_an_action_without_effect_is_warned_of() -> None:
    actions = random_steps(0, 10, 500)
    y = measured(Plant(a=0.5, b=0.0, offset=5.0), actions, noise=1)
    found = identify(y, actions, sample_time_s=1.0)
    assert "the action has no effect that can be distinguished from chance" in found.warnings


@pytest.mark.parametrize("order", [1, 2])
def test_a_plant_that_integrates_is_warned_of(order: int) -> None:
    actions = random_steps(-1, 1, 500)
    y = np.concatenate([[0.0], np.cumsum(actions)[:-1]]) + np.random.default_rng(1).normal(0, 0.01, 500)
    found = identify(y, actions, sample_time_s=1.0, order=order)
    assert any("may not settle by itself" in warning for warning in found.warnings)


def test_an_order_that_is_too_high_is_warned_of() -> None:
    actions = random_steps(1, 22, 1000)
    found = identify(measured(PAPER_PLANT, actions, noise=5), actions, sample_time_s=1.0, order=2)
    assert any("try a lower order" in warning for warning in found.warnings)


def test_two_runs_with_a_break_between_count_as_one_plant_and_make_no_pair() -> None:
    first, second = random_steps(1, 22, 100, seed=1), random_steps(1, 22, 100, seed=2)
    y = np.concatenate([measured(PAPER_PLANT, first), measured(PAPER_PLANT, second)])
    found = identify(y, first + second, sample_time_s=1.0, breaks=[100])
    assert found.pairs == 198
    assert (found.a, found.b) == pytest.approx((0.26, 59.73))
    joined = identify(y, first + second, sample_time_s=1.0)
    assert joined.pairs == 199
    assert joined.b != pytest.approx(59.73)


@pytest.mark.parametrize("delay", [0, 1, 3, 5])
@pytest.mark.parametrize("actions", [random_steps(1, 22, 400, seed=5), prbs(3, 8, 400, hold=2)])
def test_the_delay_is_found(delay: int, actions: Sequence[float]) -> None:
    plant = Plant(a=0.6, b=30.0, delay=delay)
    found = identify(measured(plant, actions, noise=30, seed=2), actions, sample_time_s=1.0)
    assert (found.delay, found.order, found.alternatives) == (delay, 1, ())
    assert found.objections == ()


@pytest.mark.parametrize("plant", [SECOND_ORDER, Plant(a=1.2, ar=(-0.5,), b=10.0, bs=(20.0,), delay=3)])
def test_the_order_is_found(plant: Plant) -> None:
    actions = random_steps(1, 22, 600, seed=5)
    found = identify(measured(plant, actions, noise=20), actions, sample_time_s=1.0)
    assert (found.delay, found.order) == (plant.delay, 2)
    assert found.objections == ()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("plant", "structure"),
    [
        *((Plant(a=0.6, b=30.0, delay=delay), (0, 1)) for delay in (2, 3, 4, 5)),
        (Plant(a=1.3, ar=(-0.6,), b=10.0, bs=(20.0,)), (0, 1)),
        (Plant(a=0.6, b=30.0, delay=12), (None, None)),
    ],
)
def test_a_wrong_delay_or_order_fails_the_residual_tests(
    plant: Plant, structure: tuple[int | None, int | None], seed: int
) -> None:
    actions = random_steps(1, 22, 300, hold=2, seed=seed)
    y = measured(plant, actions, noise=30, seed=seed)
    found = identify(y, actions, sample_time_s=1.0, delay=structure[0], order=structure[1])
    assert failed(found) & {"whiteness", "input_correlation"}
    law = ProportionalIntegral(0.001, 0.001)
    assert not certify(law, found).is_sound


def test_a_right_model_passes_the_residual_tests() -> None:
    alarms = 0
    for seed in range(200):
        actions = random_steps(1, 22, 150, seed=seed)
        found = identify(measured(PAPER_PLANT, actions, noise=50, seed=3000 + seed), actions, sample_time_s=1.0)
        alarms += bool(failed(found) & {"whiteness", "input_correlation", "stationarity", "hold_out"})
    assert alarms <= 4


def failed(plant: Plant) -> set[str]:
    """The names of the tests that a model failed."""
    assert plant.diagnostics is not None
    return {check.name for check in plant.diagnostics.checks if not check.is_passed}


@pytest.mark.parametrize("stalls", [0.0, 0.05])
def test_short_records_of_a_right_model_seldom_fail_its_tests(stalls: float) -> None:
    # A consumer whose window jumps between 1 and 10, for 40 samples; in a stall it loses up to 70 % of a sample.
    records = 300
    alarms: list[str] = []
    for seed in range(records):
        random = np.random.default_rng(seed)
        actions = random_steps(1, 10, 40, seed=seed, is_integer=True)
        rates = 80.0 * np.array([5.0, *actions[:-1]]) * (1 + 0.05 * random.standard_normal(40))
        rates *= np.where(random.random(40) < stalls, random.uniform(0.3, 0.8, 40), 1.0)
        alarms += identify(rates, actions, sample_time_s=0.25).warnings
    assert len(alarms) <= 0.02 * records, alarms


def test_a_gain_that_drifts_fails_the_test_of_stationarity() -> None:
    actions = random_steps(1, 22, 400)
    y = measured(PAPER_PLANT, actions)
    drifting = [value * (1 + k / 400) for k, value in enumerate(y)]
    noisy = np.array(drifting) + np.random.default_rng(1).normal(0, 30, 400)
    assert "stationarity" in failed(identify(noisy, actions, sample_time_s=1.0))


def test_coloured_noise_fails_the_test_of_whiteness_if_the_order_is_given() -> None:
    actions = random_steps(1, 22, 400)
    noise = np.random.default_rng(1).normal(0, 100, 400)
    coloured = [0.0]
    for one in noise[1:]:
        coloured.append(0.9 * coloured[-1] + one)
    y = measured(PAPER_PLANT, actions) + np.array(coloured)
    assert "whiteness" in failed(identify(y, actions, sample_time_s=1.0, order=1))
    found = identify(y, actions, sample_time_s=1.0)
    assert found.order > 1
    assert found.gain == pytest.approx(PAPER_PLANT.gain, rel=0.15)


def test_samples_that_are_too_few_for_the_tests_are_an_objection() -> None:
    actions = random_steps(1, 22, 50)
    found = identify(measured(PAPER_PLANT, actions, noise=5), actions, sample_time_s=1.0, delay=3)
    assert "samples" in failed(found)
    assert "37 samples with all those before them are too few" in found.objections[-1]


@pytest.mark.parametrize("delay", [0, 1, 2, 3, 4, 5])
def test_few_samples_show_small_delays_and_refuse_larger_ones(delay: int) -> None:
    actions = random_steps(1, 22, 40, seed=4)
    y = measured(Plant(a=0.3, b=30.0, delay=delay), actions, noise=20)
    found = identify(y, actions, sample_time_s=1.0)
    if delay <= 2:
        assert (found.delay, found.objections) == (delay, ())
    else:
        assert found.objections


def test_delays_that_the_data_do_not_rule_out_are_alternatives() -> None:
    actions = random_steps(1, 22, 200, hold=3)
    found = identify(measured(Plant(a=0.0, b=10.0, delay=2), actions, noise=400), actions, sample_time_s=1.0, order=1)
    assert found.alternatives
    assert {one.delay for one in found.alternatives} & {1, 2, 3}
    assert Plant.from_json(found.to_json()) == found


def test_two_levels_leave_room_for_a_steeper_curve() -> None:
    actions = prbs(1, 22, 400)
    found = identify(measured(PAPER_PLANT, actions, noise=20), actions, sample_time_s=1.0)
    assert found.steepest_ratio == 2.0
    certificate = certify(lambda_pi(PAPER_PLANT), found)
    assert certificate.gain_margin < 0.55 * 10
    assert certificate.is_sound


def test_a_delay_that_is_left_out_costs_accuracy() -> None:
    actions = random_steps(1, 22, 400, seed=5)
    y = measured(Plant(a=0.26, b=59.73, delay=1), actions, noise=30)
    right, wrong = (identify(y, actions, sample_time_s=1.0, delay=delay, order=1).test for delay in (1, 0))
    assert right is not None
    assert wrong is not None
    assert right.rmse is not None
    assert wrong.rmse is not None
    assert wrong.rmse > 3 * right.rmse


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": [1.0, 2.0]}, "2 measurements and 100 actions"),
        ({"u": [math.nan] * 100}, "the action of sample 0 is nan"),
        ({"y": [*range(99), math.inf]}, "the measurement of sample 99 is inf"),
        ({"y": [*range(99), 1e200]}, "the measurement of sample 99 is 1e"),
        ({"u": [3.0] * 100}, "the action never changed: let the action change at random"),
        ({"y": [3.0] * 100}, "the measurement never changed"),
        ({"y": ["fast"] * 100}, "a measurement is not a number"),
        ({"y": [[1.0]] * 100}, "the measurements are not a list"),
        ({"delay": -1}, "must be at least 0 and 1"),
        ({"order": 0}, "must be at least 0 and 1"),
        ({"delay": 80}, "19 pairs of samples are too few, 30 are needed"),
        ({"delay": 200}, "0 pairs of samples are too few"),
        ({"order": 20}, "80 pairs of samples are too few, 410 are needed"),
        ({"breaks": range(100)}, "0 pairs of samples are too few"),
        ({"y": [], "u": []}, "0 pairs of samples are too few"),
        ({"y": range(100), "u": range(100)}, "moved in step: let the action change at random"),
    ],
)
def test_data_that_give_no_plant_are_one_line_that_says_why(change: dict[str, Any], message: str) -> None:
    actions = random_steps(1, 22, 100)
    given_: dict[str, Any] = {"y": measured(PAPER_PLANT, actions), "u": actions, **change}
    with pytest.raises(ControlError, match=message) as caught:
        identify(given_.pop("y"), given_.pop("u"), sample_time_s=1.0, **given_)
    assert "\n" not in str(caught.value)


def test_the_delay_of_too_few_samples_or_of_a_still_loop_is_an_error() -> None:
    with pytest.raises(ControlError, match="29 pairs of samples are too few"):
        identify(range(30), random_steps(0, 1, 30), sample_time_s=1.0)
    with pytest.raises(ControlError, match="moved in step"):
        identify(range(100), range(100), sample_time_s=1.0)


values = st.floats(-1e30, 1e30) | st.floats(-10, 10) | st.integers(-3, 3).map(float)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    samples=st.lists(st.tuples(values, values), min_size=35, max_size=90),
    delay=st.integers(0, 3),
    order=st.integers(1, 2),
    breaks=st.lists(st.integers(-1, 100), max_size=3),
)
def test_whatever_the_samples_there_is_a_plant_of_finite_numbers_or_a_reason(
    samples: list[tuple[float, float]], delay: int, order: int, breaks: list[int]
) -> None:
    y, u = ([sample[index] for sample in samples] for index in (0, 1))
    try:
        found = identify(y, u, sample_time_s=1.0, delay=delay, order=order, breaks=breaks)
    except ControlError as error:
        event(str(error).lstrip("0123456789 ")[:30])
        return
    assert Plant.from_json(found.to_json()) == found
    assert all(math.isfinite(value) for point in found.boundary() for value in point)


@settings(deadline=None, max_examples=100)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(35, 200),
    y_unit=st.floats(1e-6, 1e6),
    u_unit=st.floats(1e-6, 1e6),
    bend=st.floats(0.1, 3),
    noise=st.floats(0, 3),
)
def test_data_of_sufficient_length_that_change_always_give_a_plant(
    seed: int, count: int, y_unit: float, u_unit: float, bend: float, noise: float
) -> None:
    random = np.random.default_rng(seed)
    u = random.uniform(0, 1, count)
    y = np.concatenate([[0.0], u[:-1] ** bend]) + random.normal(0, noise, count) + random.normal(0, 0.001, count)
    found = identify(y * y_unit, u * u_unit, sample_time_s=1.0)
    assert found.pairs == count - found.delay - found.order


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 10**6), y_unit=st.floats(1e-6, 1e6), u_unit=st.floats(1e-6, 1e6))
def test_units_change_b_and_nothing_else(seed: int, y_unit: float, u_unit: float) -> None:
    actions = random_steps(1, 22, 200, seed=seed)
    y, u = measured(PAPER_PLANT, actions, noise=30, seed=seed), np.array(actions)
    plain, scaled = identify(y, u, sample_time_s=1.0), identify(y * y_unit, u * u_unit, sample_time_s=1.0)
    assert scaled.a == pytest.approx(plain.a, rel=1e-6)
    assert scaled.b == pytest.approx(plain.b * y_unit / u_unit, rel=1e-6)
    assert scaled.condition == pytest.approx(plain.condition, rel=1e-6)
