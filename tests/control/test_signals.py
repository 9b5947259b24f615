"""Inputs for identification stay within their limits and have the statistics that they promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.control.signals import prbs, random_steps, staircase
from flyball.errors import ControlError


def test_the_input_of_the_prefetch_paper_is_a_staircase_of_360_levels() -> None:
    assert staircase(1, 360, 360) == [float(level) for level in range(1, 361)]


def test_a_staircase_climbs_from_end_to_end_and_holds_each_step() -> None:
    assert staircase(0, 10, 6, hold=2) == [0, 0, 5, 5, 10, 10]
    assert staircase(0, 10, 5, hold=2) == [0, 0, 5, 5, 10]
    assert staircase(1, 2, 4, is_integer=True) == [1, 1, 2, 2]


@pytest.mark.parametrize("bits", range(3, 21))
def test_a_shift_register_runs_through_all_its_states(bits: int) -> None:
    period = 2**bits - 1
    signal = np.array(prbs(-1, 1, period))
    assert signal.sum() == 1
    # White: over a period a sequence of full length agrees with each shift of itself as often as not.
    for shift in (1, 2, bits, period // 2):
        assert signal @ np.roll(signal, shift) == -1


def test_a_binary_sequence_holds_its_bits_and_starts_by_its_seed() -> None:
    fast, slow = prbs(2, 5, 15, seed=4), prbs(2, 5, 45, hold=3, seed=4)
    assert slow == [level for level in fast for _ in range(3)]
    assert prbs(2, 5, 15, seed=4) == fast
    assert prbs(2, 5, 15, seed=5) != fast


def test_random_steps_spread_over_the_whole_range() -> None:
    steps = random_steps(10, 20, 2000, seed=2)
    assert np.mean(steps) == pytest.approx(15, abs=0.25)
    assert np.std(steps) == pytest.approx(10 / np.sqrt(12), abs=0.15)
    assert abs(np.corrcoef(steps[1:], steps[:-1])[0, 1]) < 0.08
    whole = random_steps(1, 4, 400, seed=2, is_integer=True)
    assert set(whole) == {1.0, 2.0, 3.0, 4.0}


@given(
    lowest=st.floats(-1000, 1000),
    width=st.floats(0.001, 1000),
    count=st.integers(1, 200),
    hold=st.integers(1, 30),
    seed=st.integers(0, 10**9),
)
def test_every_signal_has_its_length_and_never_leaves_its_limits(
    lowest: float, width: float, count: int, hold: int, seed: int
) -> None:
    highest = lowest + width
    for signal in (
        staircase(lowest, highest, count, hold=hold),
        prbs(lowest, highest, count, hold, seed),
        random_steps(lowest, highest, count, hold, seed),
    ):
        assert len(signal) == count
        assert all(lowest <= action <= highest for action in signal)
        assert all(signal[k] == signal[k - 1] for k in range(1, count) if k % hold)


def test_impossible_wishes_are_errors_that_say_so() -> None:
    with pytest.raises(ControlError, match="the lowest must be below the highest"):
        staircase(5, 5, 10)
    with pytest.raises(ControlError, match="the lowest must be below the highest"):
        prbs(0, float("nan"), 10)
    with pytest.raises(ControlError, match="must be at least 1"):
        random_steps(0, 1, 10, hold=0)
    with pytest.raises(ControlError, match="whole actions need whole limits"):
        random_steps(0.5, 3, 10, is_integer=True)
    with pytest.raises(ControlError, match="too long"):
        prbs(0, 1, 2**20)
