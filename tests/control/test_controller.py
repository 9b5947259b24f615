"""Invariants of a controller, whatever its law, its gains and its measurements are."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.control.controller import Controller, Smoothing
from flyball.control.laws import (
    Integral,
    Law,
    Multiplicative,
    Pid,
    PositionalPid,
    Proportional,
    ProportionalIntegral,
    Reading,
)
from flyball.control.limits import Limits
from flyball.errors import ControlError
from tests.control.laws_in_use import laws

anything = st.floats(allow_nan=True, allow_infinity=True)
limits = st.tuples(st.floats(-1e9, 1e9), st.floats(0, 1e9)).map(lambda pair: Limits(pair[0], pair[0] + pair[1]))
steps = st.lists(st.tuples(anything, st.floats(-1e300, 1e300), st.booleans()), max_size=30)


@given(law=laws, within=limits, start=anything, share=st.floats(0.01, 1.0), fed=steps)
def test_the_action_is_always_a_number_within_the_limits(
    law: Law[Any], within: Limits, start: float, share: float, fed: list[tuple[float, float, bool]]
) -> None:
    controller = Controller(law, within, 0.0, start, Smoothing(share))
    for measurement, setpoint, can_rise in fed:
        controller.setpoint = setpoint
        before = controller.action
        action = controller.update(measurement, can_rise=can_rise)
        assert within.lowest <= action <= within.highest
        assert action == controller.action
        if not can_rise:
            assert action <= before


@given(first=laws, second=laws, measurements=st.lists(st.floats(0.1, 1e4), min_size=1, max_size=10))
def test_at_the_goal_a_change_of_the_law_has_no_bump(
    first: Law[Any], second: Law[Any], measurements: list[float]
) -> None:
    controller = Controller(first, Limits(0.001, 1e6), 100.0, 10.0)
    for measurement in measurements:
        controller.update(measurement)
    goal = controller.setpoint = measurements[-1]
    controller.update(goal)
    held = controller.action
    controller.change(second)
    assert controller.action == held
    controller.update(goal)
    # A law without memory has an action of its own to return to, and does so step by step.
    own = second.step(0.0, Reading(goal, goal))[1] if isinstance(second, Proportional) else held
    within = abs(controller.limits.clamp(own) - held)
    assert abs(controller.action - held) <= within + 1e-6 * (1 + abs(held) + abs(own))


@pytest.mark.parametrize(
    "law",
    [
        Integral(0.5),
        ProportionalIntegral(0.3, 0.2),
        Pid(0.3, 0.2, 0.1),
        PositionalPid(0.3, 0.2, 0.1),
        Multiplicative(0.4),
    ],
    ids=lambda law: law.kind,
)
def test_a_change_of_gains_at_the_goal_has_no_bump(law: Law[Any]) -> None:
    controller = Controller(ProportionalIntegral(0.1, 0.3), Limits(0.0, 1e6), 50.0, 20.0)
    for _ in range(200):
        controller.update(2.5 * controller.action)
    assert controller.action == pytest.approx(20.0)
    controller.change(law)
    assert controller.update(50.0) == pytest.approx(20.0)


def test_a_change_to_a_law_without_memory_goes_over_gently() -> None:
    controller = Controller(Integral(0.1), Limits(0.0, 100.0), 50.0, 20.0)
    controller.update(50.0)
    controller.change(Proportional(0.1, feedforward=0.2))
    actions = [controller.update(50.0) for _ in range(40)]
    assert actions[0] == pytest.approx(10.0 + 0.8 * 10.0)
    assert actions[-1] == pytest.approx(10.0, abs=0.01)


@pytest.mark.parametrize(
    "law",
    [Integral(0.5), ProportionalIntegral(0.3, 0.2), Pid(0.3, 0.2, 0.1), PositionalPid(0.3, 0.2)],
    ids=lambda law: law.kind,
)
def test_a_limit_does_not_wind_the_law_up(law: Law[Any]) -> None:
    controller = Controller(law, Limits(0.0, 10.0), 100.0, 5.0)
    for _ in range(1000):
        controller.update(0.0)
    assert controller.action == 10.0
    steps_back = next(step for step in range(1, 10) if controller.update(130.0) < 10.0)
    assert steps_back <= 2


def test_an_open_loop_does_not_wind_up() -> None:
    controller = Controller(Integral(0.5), Limits(0.0, 1e9), 100.0, 5.0)
    for _ in range(1000):
        controller.update(0.0, can_rise=False)
    assert controller.action == 5.0
    assert controller.update(110.0, can_rise=False) == 0.0


def test_a_measurement_that_is_no_number_changes_nothing() -> None:
    one, other = (Controller(Pid(0.3, 0.2, 0.1), Limits(0.0, 100.0), 10.0, 5.0) for _ in range(2))
    for measurement in (3.0, 4.0, 5.0):
        one.update(measurement)
        other.update(measurement)
        for strange in (math.nan, math.inf, -math.inf):
            assert other.update(strange) == one.action
    assert one.update(6.0) == other.update(6.0)


def test_numbers_too_large_to_compute_with_are_forgotten() -> None:
    controller = Controller(Pid(0.0, 1.0, 1.0), Limits(0.0, 100.0), 1e308, 5.0)
    for measurement in (-1e308, 1e308, -1e308):
        controller.update(measurement)
    controller.setpoint = 10.0
    for _ in range(5):
        controller.update(20.0)
    assert controller.action == 0.0
    assert controller.update(5.0) > 0.0


def test_smoothing_takes_a_share_of_each_new_measurement() -> None:
    controller = Controller(Proportional(1.0), Limits(-100.0, 100.0), 0.0, 0.0, Smoothing(0.25))
    assert [controller.update(measurement) for measurement in (8.0, 0.0, 0.0)] == [-8.0, -6.0, -4.5]


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, math.nan])
def test_a_share_outside_of_0_to_1_is_refused(share: float) -> None:
    with pytest.raises(ControlError, match="share"):
        Smoothing(share)


@pytest.mark.parametrize(("lowest", "highest"), [(1.0, 0.0), (math.nan, 1.0), (0.0, math.inf)])
def test_limits_that_are_none_are_refused(lowest: float, highest: float) -> None:
    with pytest.raises(ControlError, match="limits"):
        Limits(lowest, highest)


def test_a_setpoint_that_is_no_number_is_refused() -> None:
    controller = Controller(Integral(1.0), Limits(0.0, 1.0), 0.5, 0.5)
    with pytest.raises(ControlError, match="setpoint"):
        controller.setpoint = math.nan
    assert controller.setpoint == 0.5
