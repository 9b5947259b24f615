"""Hopping windows, without a broker."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.client.adaptive import FractionalWindow, Pacer, Rate
from flyball.errors import ControlError


def slots(action: float, count: int) -> list[float]:
    actuator = FractionalWindow()
    actuator.window_at(action, Rate(1))
    return [actuator._next_slot() for _ in range(count)]


def test_larger_slots_are_spread_evenly() -> None:
    assert slots(2.3, 10) == [2, 2, 2, 3, 2, 2, 3, 2, 2, 3]
    assert slots(0.5, 6) == [0, 1, 0, 1, 0, 1]
    assert slots(4.0, 3) == [4, 4, 4]


@settings(deadline=None)
@given(st.floats(0.1, 1000), st.integers(10, 200))
def test_the_mean_of_the_slots_is_the_window_to_within_one_slot(action: float, count: int) -> None:
    assert sum(slots(action, count)) / count == pytest.approx(action, abs=1 / count + 1e-6)


def test_a_pacer_holds_half_a_second_of_messages_unless_told_otherwise() -> None:
    assert Pacer().window_at(400, Rate(400)) == 200
    assert Pacer().window_at(1, Rate(1)) == 16
    assert Pacer(window=30).window_at(400, Rate(400)) == 30
    with pytest.raises(ControlError, match="invalid pacer window 0: use an integer from 1 to 65535"):
        Pacer(window=0)
