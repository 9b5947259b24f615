from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from flyball.admission.curve import RECENT_ROUNDS, Curve, Round, is_more


def sharp(load: float) -> float:
    return min(load, 1000.0)


def soft(load: float) -> float:
    return load / math.sqrt(1 + (load / 1000.0) ** 2)


def curve_of(work: Callable[[float], float], loads: list[float], noise: float = 0.0) -> Curve:
    chance = random.Random(1)
    curve = Curve()
    for number, load in enumerate(loads):
        works = [work(load) * chance.gauss(1, noise) for _ in range(3)]
        curve.add(Round(number, load, [load] * 3, works))
    return curve


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_sharp_knee_is_found_among_loads_on_both_sides(noise: float) -> None:
    curve = curve_of(sharp, [250, 500, 1000, 2000, 900, 1125, 675, 900, 900, 1125, 675], noise)
    assert curve.knee == pytest.approx(1100, rel=0.15)


def test_beyond_a_soft_knee_as_much_is_taken_as_is_worth_it() -> None:
    curve = curve_of(soft, [250, 500, 1000, 2000, 4000])
    assert curve.knee is not None
    assert 0.85 * 1000 < soft(curve.knee) < 0.95 * 1000


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_below_the_knee_none_is_seen(noise: float) -> None:
    assert curve_of(sharp, [200, 300, 400, 500, 300, 400, 500], noise).knee == math.inf


def test_of_too_few_rounds_no_knee_is_made() -> None:
    assert curve_of(sharp, [500, 2000]).knee is None


def test_little_load_is_remembered_longer() -> None:
    curve = curve_of(sharp, [250, 500, *([2000.0] * (RECENT_ROUNDS + 5))])
    assert curve.knee == pytest.approx(1100, rel=0.15)


def test_a_round_that_does_clearly_less_than_others_of_its_reference_is_noticed() -> None:
    curve = curve_of(sharp, [800.0] * 5, noise=0.02)
    assert not curve.add(Round(6, 800.0, [800.0] * 3, [790.0, 800.0, 810.0]))
    assert not curve.add(Round(7, 900.0, [900.0] * 3, [490.0, 500.0, 510.0]))
    assert curve.add(Round(8, 800.0, [800.0] * 3, [490.0, 500.0, 510.0]))


def test_what_turned_out_to_be_too_much_is_forgotten() -> None:
    curve = curve_of(sharp, [500, 1000, 2000])
    curve.forget_above(1500)
    assert curve.highest_load == 1000


def test_the_test_of_means_is_wrong_in_one_or_two_of_a_hundred_cases_and_finds_clear_differences() -> None:
    chance = random.Random(2)

    def some(mean: float, count: int) -> list[float]:
        return [chance.gauss(mean, 0.2) for _ in range(count)]

    false_alarms = sum(is_more(some(1.0, 3), some(1.0, 12)) for _ in range(4000))
    assert 0.005 < false_alarms / 4000 < 0.025
    assert sum(is_more(some(2.0, 6), some(1.0, 12)) for _ in range(100)) > 90


def test_of_too_few_samples_nothing_is_said_and_without_any_scatter_the_larger_is_more() -> None:
    assert not is_more([2.0], [1.0, 1.0])
    assert is_more([2.0, 2.0], [1.0, 1.0])
    assert not is_more([1.0, 1.0], [1.0, 1.0])
