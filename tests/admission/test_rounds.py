from __future__ import annotations

import random

import pytest

from flyball.admission.rounds import RECENT_ROUNDS, RecentRounds, Round, is_more


def rounds_of(*works: float, reference: float = 1000.0, noise: float = 0.0) -> RecentRounds:
    """Return rounds numbered from 0 on, of the same reference, in which this work was done."""
    chance = random.Random(1)
    recent = RecentRounds()
    for number, work in enumerate(works):
        recent.add(Round(number, reference, [work * chance.gauss(1, noise) for _ in range(3)]))
    return recent


def test_the_work_of_a_round_is_the_mean_of_its_periods() -> None:
    assert Round(0, 1000.0, [300.0, 400.0, 800.0]).work == 500.0


def test_before_the_first_round_the_most_work_is_unknown() -> None:
    assert RecentRounds().most_work is None


def test_of_a_single_round_its_work_is_the_most() -> None:
    assert rounds_of(700.0).most_work == pytest.approx(700.0)


def test_a_single_round_that_did_far_more_may_be_chance_and_does_not_count() -> None:
    assert rounds_of(700.0, 800.0, 5000.0, 750.0).most_work == pytest.approx(800.0)


def test_most_work_counts_rounds_that_are_not_adjacent() -> None:
    assert rounds_of(700.0, 900.0, 500.0, 700.0, 900.0, 500.0).most_work == pytest.approx(900.0)


def test_rounds_long_ago_are_forgotten() -> None:
    recent = rounds_of(900.0, 900.0, *([500.0] * (RECENT_ROUNDS - 1)))
    assert recent.most_work == pytest.approx(500.0)


def test_a_round_that_does_clearly_less_than_others_of_its_reference_is_noticed() -> None:
    recent = rounds_of(*[800.0] * 5, noise=0.02)
    assert not recent.add(Round(5, 1000.0, [790.0, 800.0, 810.0]))
    assert recent.add(Round(6, 1000.0, [490.0, 500.0, 510.0]))


def test_a_round_of_another_reference_is_not_compared() -> None:
    recent = rounds_of(*[800.0] * 5, noise=0.02)
    assert not recent.add(Round(5, 750.0, [490.0, 500.0, 510.0]))


def test_what_turned_out_to_be_too_much_is_forgotten() -> None:
    recent = rounds_of(500.0, 500.0)
    for number in (2, 3):
        recent.add(Round(number, 2000.0, [900.0] * 3))
    recent.forget_above(1500.0)
    assert recent.most_work == pytest.approx(500.0)


def test_what_was_before_the_database_changed_is_forgotten() -> None:
    recent = rounds_of(900.0, 900.0, 400.0, 500.0)
    recent.forget_before(2)
    assert recent.most_work == pytest.approx(400.0)


def test_after_forgetting_no_more_rounds_are_kept_than_before() -> None:
    recent = rounds_of(900.0, 900.0)
    recent.forget_before(0)
    for number in range(2, 2 + RECENT_ROUNDS):
        recent.add(Round(number, 1000.0, [500.0] * 3))
    assert recent.most_work == pytest.approx(500.0)


def test_is_more_has_its_error_rate_and_finds_clear_differences() -> None:
    chance = random.Random(2)

    def some(mean: float, count: int) -> list[float]:
        return [chance.gauss(mean, 0.2) for _ in range(count)]

    false_alarms = sum(is_more(some(1.0, 3), some(1.0, 12)) for _ in range(4000))
    assert 0.005 < false_alarms / 4000 < 0.025
    assert sum(is_more(some(2.0, 6), some(1.0, 12)) for _ in range(100)) > 90


def test_is_more_needs_enough_samples_or_no_scatter() -> None:
    assert not is_more([2.0], [1.0, 1.0])
    assert is_more([2.0, 2.0], [1.0, 1.0])
    assert not is_more([1.0, 1.0], [1.0, 1.0])
