from __future__ import annotations

import math

import pytest

from flyball.broker.engine.credit import SLOT_US, UNLIMITED, Credit

CYCLE = 1000


def windows(prefetch: float, first_slot: int = 0) -> list[int]:
    credit = Credit(prefetch)
    return [credit.window(slot * SLOT_US) for slot in range(first_slot, first_slot + CYCLE)]


@pytest.mark.parametrize("prefetch", [0.0, 0.001, 0.3, 1.0, 1 / 3, 2.3, 7.5, 99.999, 0.9996, 123.4564])
@pytest.mark.parametrize("first_slot", [0, 17, 170_000_000_123])
def test_the_average_window_over_a_cycle_is_the_prefetch(prefetch: float, first_slot: int) -> None:
    assert math.fsum(windows(prefetch, first_slot)) / CYCLE == pytest.approx(prefetch, abs=0.0005001)


@pytest.mark.parametrize("prefetch", [0.001, 0.3, 1 / 3, 2.3, 7.5, 99.999])
def test_the_larger_windows_are_spread_evenly(prefetch: float) -> None:
    pattern = windows(prefetch) * 2
    for length in (1, 7, 10, 100, 333):
        for start in range(0, CYCLE, 13):
            stretch = pattern[start : start + length]
            assert abs(sum(stretch) - prefetch * length) <= 1 + length * 0.0005


def test_a_window_is_one_of_the_two_neighbours_of_the_prefetch() -> None:
    assert set(windows(2.3)) == {2, 3}
    assert set(windows(2.0)) == {2}


def test_a_window_holds_for_a_slot() -> None:
    credit = Credit(0.5)
    for slot in range(100):
        assert credit.window(slot * SLOT_US) == credit.window(slot * SLOT_US + SLOT_US - 1)


def test_only_a_fraction_changes_with_time() -> None:
    assert Credit(2.3).is_fractional
    assert not Credit(2.0).is_fractional
    assert not Credit(math.inf).is_fractional


def test_infinity_is_no_limit() -> None:
    assert Credit(math.inf).window(0) == UNLIMITED


@pytest.mark.parametrize("prefetch", [-1.0, -0.001, math.nan, -math.inf])
def test_a_prefetch_below_zero_is_refused(prefetch: float) -> None:
    with pytest.raises(ValueError, match="prefetch"):
        Credit(prefetch)
