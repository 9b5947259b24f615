"""Figures of noisy loops mean what they say."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from flyball.control.assessment import assess, assess_parts
from flyball.errors import ControlError


def noisy(count: int, mean: float, std: float, seed: int = 1) -> list[float]:
    chance = random.Random(seed)
    return [chance.gauss(mean, std) for _ in range(count)]


def test_a_loop_that_starts_at_its_setpoint_is_settled_at_once() -> None:
    figures = assess([400.0] * 20, 400)
    assert figures.settling_samples == 0
    assert (figures.mean, figures.std, figures.overshoot, figures.mean_error) == (400, 0, 0, 0)


def test_settling_counts_the_samples_before_the_windows_are_at_the_setpoint() -> None:
    figures = assess([0.0, 100.0, 150.0, 250.0] + [400.0] * 26, 400)
    assert figures.settling_samples == 4
    assert figures.mean == 400
    assert figures.mean_error == pytest.approx((400 + 300 + 250 + 150) / 30)


@pytest.mark.parametrize("std", [5.0, 15.0, 20.0, 28.0])
def test_noise_does_not_hide_that_a_loop_has_settled_however_long_it_runs(std: float) -> None:
    for count in (40, 400, 4000):
        for seed in range(5):
            assert assess(noisy(count, 400, std, seed), 400).settling_samples in (0, 1, 2, 3, 4, 5)


def test_a_loop_with_a_lasting_error_never_settles() -> None:
    assert assess(noisy(100, 250, 5), 400).settling_samples is None


@pytest.mark.parametrize("period", [6, 14, 40])
def test_a_loop_that_swings_never_settles(period: int) -> None:
    swing = [400 + (300 if k % period < period / 2 else -300) for k in range(200)]
    assert assess([float(y) for y in swing], 400).settling_samples is None


def test_passing_the_setpoint_on_the_way_to_a_long_overshoot_is_not_settling() -> None:
    run = [200.0, 300.0, 400.0, *[600.0] * 20, *[400.0] * 500]
    assert assess(run, 400).settling_samples == 23


def test_overshoot_is_how_far_it_went_beyond_the_setpoint_as_a_part_of_it() -> None:
    run = [100.0, 300.0, 440.0, 410.0, *noisy(60, 400, 4)]
    assert assess(run, 400).overshoot == pytest.approx(0.1)


def test_coming_from_above_an_overshoot_is_below() -> None:
    run = [800.0, 500.0, 340.0, 390.0, *noisy(60, 400, 4)]
    assert assess(run, 400).overshoot == pytest.approx(0.15)


def test_noise_is_no_overshoot() -> None:
    assert assess([100.0, 250.0, 350.0, *noisy(60, 400, 15, seed=3)], 400).overshoot == 0


def test_mean_and_deviation_are_of_the_steady_state() -> None:
    steady = noisy(80, 400, 10)
    figures = assess([0.0, 100.0, 200.0, 300.0, *steady], 400)
    assert figures.mean == pytest.approx(400, abs=4)
    assert figures.std == pytest.approx(statistics.stdev(steady), rel=0.1)


def test_without_settling_they_are_of_the_second_half() -> None:
    figures = assess([100.0] * 10 + [200.0] * 10, 400)
    assert figures.mean == 200
    assert figures.settling_samples is None


def test_the_last_of_a_slow_way_to_the_setpoint_does_not_count() -> None:
    slow = [400 * (1 - 0.8**k) + y for k, y in enumerate(noisy(100, 0, 5))]
    figures = assess(slow, 400)
    assert figures.std == pytest.approx(5, rel=0.25)
    assert figures.mean == pytest.approx(400, abs=2)


def test_the_warm_up_does_not_count_for_the_mean_but_does_for_settling() -> None:
    figures = assess([0.0, 200.0, *[390.0] * 28, *[410.0] * 20], 400, warm_up=30)
    assert (figures.mean, figures.steady_from, figures.settling_samples) == (410, 30, 2)


def test_nothing_but_warm_up_has_no_mean_and_no_deviation() -> None:
    figures = assess([400.0] * 10, 400, warm_up=30)
    assert math.isnan(figures.mean)
    assert math.isnan(figures.std)
    assert figures.settling_samples == 0


def test_each_part_between_disturbances_has_figures_of_its_own() -> None:
    measurements = [400.0] * 20 + [400.0, 700.0] + [800.0] * 18 + [400.0] + [800.0] * 19
    setpoints = [400.0] * 20 + [800.0] * 40
    first, stepped, disturbed = assess_parts(measurements, setpoints, [0, 40, 60])
    assert (first.start, first.end, first.setpoint, first.figures.settling_samples) == (0, 20, 400, 0)
    assert (stepped.start, stepped.end, stepped.setpoint, stepped.figures.settling_samples) == (20, 40, 800, 1)
    assert (disturbed.start, disturbed.end, disturbed.figures.settling_samples) == (40, 60, 1)


def test_the_warm_up_is_that_of_the_run_not_of_each_part() -> None:
    first, second = assess_parts([400.0] * 80, [400.0] * 80, [40], warm_up=30)
    assert (first.figures.steady_from, second.figures.steady_from) == (30, 5)


def test_too_few_samples_and_odd_setpoints_are_refused() -> None:
    with pytest.raises(ControlError, match="two samples"):
        assess([1.0], 400)
    with pytest.raises(ControlError, match="setpoint above 0"):
        assess([1.0, 2.0], 0)
    with pytest.raises(ControlError, match="do not belong together"):
        assess_parts([1.0, 2.0], [1.0])
