"""Poles, margins and step responses agree with what is known, and with brute force."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flyball.control.controller import Controller, Smoothing
from flyball.control.design import lambda_pi, place_p
from flyball.control.laws import Integral, Law, Multiplicative, Pid, PositionalPid, Proportional, ProportionalIntegral
from flyball.control.limits import Limits
from flyball.control.margins import closed_loop_poles, delay_margin_samples, gain_margin
from flyball.control.model_free import highest_integral_gain
from flyball.control.plant import Plant
from flyball.control.simulation import LinearPlant, simulate
from flyball.control.stability import open_loop, step_response
from flyball.errors import ControlError

PAPER_PLANT = Plant(a=0.26, b=59.73)
PURE_GAIN = Plant(a=0.0, b=1.0)


def times(law: Law[Any], factor: float) -> Law[Any]:
    if isinstance(law, Proportional):
        return Proportional(law.kp * factor)
    if isinstance(law, Pid):
        return Pid(law.kp * factor, law.ki * factor, law.kd * factor)
    assert isinstance(law, ProportionalIntegral)
    return ProportionalIntegral(law.kp * factor, law.ki * factor)


def is_stable(law: Law[Any], plant: Plant) -> bool:
    return abs(closed_loop_poles(law, plant)[0]) < 1


def largest_stable_factor(law: Law[Any], plant: Plant) -> float:
    """Climb until the loop is unstable, then bisect. Slow, and as simple as it can be."""
    low = 1.0
    while is_stable(times(law, high := low * 1.05), plant):
        low = high
        if low > 1000:
            return math.inf
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if is_stable(times(law, middle), plant) else (low, middle)
    return low


gains = st.floats(-1, 1)
laws: st.SearchStrategy[Law[Any]] = st.one_of(
    st.builds(Proportional, st.floats(0.05, 2)),
    st.builds(ProportionalIntegral, gains, st.floats(0.05, 1)),
    st.builds(Pid, gains, st.floats(0.05, 1), st.floats(0.01, 0.5)),
)
plants = st.builds(Plant, a=st.floats(-0.8, 1.05), b=st.just(1.0), delay=st.integers(0, 3)) | st.builds(
    Plant,
    a=st.floats(-0.5, 0.5),
    b=st.just(1.0),
    ar=st.tuples(st.floats(-0.4, 0.4)),
    bs=st.tuples(st.floats(-0.9, 0.9)),
    delay=st.integers(0, 1),
)


@settings(max_examples=60, deadline=None)
@given(laws, plants)
def test_the_gain_margin_is_the_largest_factor_with_all_poles_inside(law: Law[Any], plant: Plant) -> None:
    assume(is_stable(law, plant))
    margin = gain_margin(law, plant)
    brute = largest_stable_factor(law, plant)
    if brute == math.inf:
        assert margin > 1000
    else:
        assert margin == pytest.approx(brute, rel=1e-3)


@settings(max_examples=60, deadline=None)
@given(laws, plants)
def test_the_gain_margin_of_an_unstable_loop_is_the_factor_to_reduce_by(law: Law[Any], plant: Plant) -> None:
    assume(abs(closed_loop_poles(law, plant)[0]) > 1.001)
    margin = gain_margin(law, plant)
    assert margin < 1
    for share in (0.1, 0.5, 0.9):
        assert margin < 1e-3 or abs(closed_loop_poles(times(law, share * margin), plant)[0]) < 1


@pytest.mark.parametrize(
    ("law", "highest"),
    [
        (ProportionalIntegral(-0.0016, 0.0060), 625),
        (ProportionalIntegral(-0.1 / 59.73, 0.36 / 59.73), 598),
        (lambda_pi(PAPER_PLANT, 0.8), 474),
        (Pid(0.0017761, 0.0058096, 0.0018417), 120),
        (Pid(-0.000385, 0.007919, 0.0018417), 138),
        (Proportional(0.0205), 49),
    ],
)
def test_the_largest_gain_that_the_papers_laws_tolerate_without_memory(law: Law[Any], highest: float) -> None:
    assert gain_margin(law, PURE_GAIN) == pytest.approx(highest, abs=1)


def test_the_printed_proportional_bounds_are_where_its_loop_becomes_unstable() -> None:
    assert gain_margin(Proportional(0.01), PAPER_PLANT) == pytest.approx((1 + 0.26) / 59.73 / 0.01)
    assert gain_margin(Proportional(-0.01), PAPER_PLANT) == pytest.approx((0.26 - 1) / 59.73 / -0.01)


def test_the_printed_pid_law_taken_literally_has_other_poles_than_the_design() -> None:
    poles = closed_loop_poles(Pid.as_printed(0.0017761, 0.0058096, 0.0018417), PAPER_PLANT)
    expected = (0.588 - 0.331j, 0.588 + 0.331j, -0.242 + 0j)
    assert all(abs(found - wanted) < 1e-3 for found, wanted in zip(poles, expected, strict=True))


@pytest.mark.parametrize(("delay", "highest"), [(0, 2.0), (1, 1.0), (2, 0.618), (3, 0.445)])
def test_integral_action_on_a_delayed_pure_gain_is_stable_up_to_the_known_gain(delay: int, highest: float) -> None:
    assert highest_integral_gain(delay) == pytest.approx(highest, abs=5e-4)
    assert gain_margin(Integral(0.1), Plant(a=0.0, b=1.0, delay=delay)) * 0.1 == pytest.approx(highest, abs=5e-4)


@pytest.mark.parametrize("gain", [0.05, 0.2, 0.5, 0.9, 1.1, 1.9])
def test_the_delay_margin_is_the_last_delay_with_stable_poles(gain: float) -> None:
    margin = delay_margin_samples(Integral(gain), PURE_GAIN)
    assert highest_integral_gain(int(margin)) > gain >= highest_integral_gain(int(margin) + 1)


def test_the_delay_margin_is_infinite_without_amplification_and_0_if_unstable() -> None:
    assert delay_margin_samples(Proportional(0.5), PURE_GAIN) == math.inf
    assert delay_margin_samples(Integral(2.5), PURE_GAIN) == 0
    assert delay_margin_samples(Integral(0.001), PURE_GAIN) == 32


def test_a_law_without_gain_has_an_infinite_margin() -> None:
    assert gain_margin(Proportional(0.0, 0.5), PAPER_PLANT) == math.inf


def test_a_pole_on_the_circle_leaves_no_margin() -> None:
    assert gain_margin(Integral(2.0), PURE_GAIN) == pytest.approx(1)


def test_velocity_and_positional_form_are_the_same_loop() -> None:
    gains = (0.002, 0.005, 0.001)
    assert closed_loop_poles(Pid(*gains), PAPER_PLANT) == closed_loop_poles(PositionalPid(*gains), PAPER_PLANT)


@pytest.mark.parametrize(
    ("law", "share"),
    [
        (lambda_pi(PAPER_PLANT), None),
        (place_p(PAPER_PLANT, 0.1), None),
        (place_p(PAPER_PLANT, 0.26), None),
        (Proportional(0.01), None),
        (PositionalPid(-0.000385, 0.007919, 0.0018417), None),
        (Integral(0.004), 0.4),
        (lambda_pi(PAPER_PLANT), 0.3),
    ],
)
@pytest.mark.parametrize(
    "plant", [PAPER_PLANT, Plant(a=0.3, b=20.0, delay=2), Plant(a=0.4, b=20.0, ar=(0.1,), bs=(-5.0,), delay=1)]
)
def test_the_step_response_is_what_the_controller_does_on_the_plant(
    law: Law[Any], share: float | None, plant: Plant
) -> None:
    controller = Controller(law, Limits(-1e6, 1e6), 0.0, 0.0, Smoothing(1.0 if share is None else share))
    # At rest, so that the step is one for the derivative and the filter, too.
    controller.update(0.0)
    controller.update(0.0)
    controller.setpoint = 1.0
    simulated = simulate(controller, LinearPlant(plant), 25, seed=0)
    measurements, actions = step_response(law, plant, 25, share)
    assert np.allclose(measurements, simulated.outputs, atol=1e-9)
    assert np.allclose(actions, simulated.actions, atol=1e-9)


def test_a_filter_is_a_part_of_the_loop() -> None:
    assert delay_margin_samples(lambda_pi(PAPER_PLANT), PAPER_PLANT, 0.3) < delay_margin_samples(
        lambda_pi(PAPER_PLANT), PAPER_PLANT
    )
    assert len(closed_loop_poles(lambda_pi(PAPER_PLANT), PAPER_PLANT, 0.3)) == 3


def test_laws_that_are_not_linear_have_no_transfer_function() -> None:
    with pytest.raises(ControlError, match="multiplicative law is not linear"):
        open_loop(Multiplicative(), PAPER_PLANT)


def test_a_step_response_needs_two_samples() -> None:
    with pytest.raises(ControlError, match="two samples"):
        step_response(lambda_pi(PAPER_PLANT), PAPER_PLANT, 1)
