"""The delays between attempts."""

from __future__ import annotations

import pytest

from flyball.backoff import Backoff, Retries


def test_delays_double_up_to_the_maximum() -> None:
    backoff = Backoff(first_s=0.1, max_s=1.0)
    assert [backoff.delay_s(attempt, chance=1.0) for attempt in range(5)] == [0.1, 0.2, 0.4, 0.8, 1.0]


def test_half_of_a_delay_is_random() -> None:
    backoff = Backoff(first_s=0.1, max_s=1.0)
    assert backoff.delay_s(2, chance=0.0) == 0.2
    assert backoff.delay_s(2, chance=0.5) == pytest.approx(0.3)


def test_delays_without_jitter_are_exact() -> None:
    backoff = Backoff(first_s=0.1, max_s=1.0, jitter_ratio=0.0)
    assert [backoff.delay_s(attempt, chance=0.3) for attempt in range(5)] == [0.1, 0.2, 0.4, 0.8, 1.0]


def test_the_attempt_after_a_year_has_a_delay_too() -> None:
    assert Backoff().delay_s(10**9, chance=1.0) == Backoff().max_s


def test_retries_wait_longer_each_time_until_reset() -> None:
    retries = Retries(Backoff(first_s=0.1, max_s=0.3), chance=lambda: 1.0)
    assert [retries.next_delay_s() for _ in range(4)] == [0.1, 0.2, 0.3, 0.3]
    assert retries.attempts == 4
    retries.reset()
    assert retries.next_delay_s() == 0.1


def test_retries_draw_a_random_number_for_each_delay() -> None:
    chances = iter([0.0, 1.0])
    retries = Retries(Backoff(first_s=0.1, max_s=0.1), chance=lambda: next(chances))
    assert [retries.next_delay_s() for _ in range(2)] == [0.05, 0.1]
