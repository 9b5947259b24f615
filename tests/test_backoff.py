"""The delays between attempts to connect."""

from __future__ import annotations

import pytest

from flyball.backoff import Backoff


def test_delays_double_up_to_the_most() -> None:
    backoff = Backoff(first_s=0.1, most_s=1.0)
    assert [backoff.delay_s(attempt, chance=1.0) for attempt in range(5)] == [0.1, 0.2, 0.4, 0.8, 1.0]


def test_half_of_a_delay_is_left_to_chance() -> None:
    backoff = Backoff(first_s=0.1, most_s=1.0)
    assert backoff.delay_s(2, chance=0.0) == 0.2
    assert backoff.delay_s(2, chance=0.5) == pytest.approx(0.3)


def test_the_attempt_after_a_year_has_a_delay_too() -> None:
    assert Backoff().delay_s(10**9, chance=1.0) == Backoff().most_s
