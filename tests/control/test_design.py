"""Gains are those of the textbook, and the closed loop has the poles that were asked for."""

from __future__ import annotations

import cmath
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.control import design
from flyball.control.laws import Law, Pid, ProportionalIntegral
from flyball.control.margins import closed_loop_poles, gain_margin
from flyball.control.plant import OperatingPoint, Plant
from flyball.errors import ControlError

PAPER_PLANT = Plant(a=0.26, b=59.73)

radii = st.floats(0, 0.95)
angles = st.floats(0, cmath.pi)
plants = st.builds(Plant, a=st.floats(-0.9, 1.2), b=st.floats(0.01, 100) | st.floats(-100, -0.01))


def assert_same_poles(found: tuple[complex, ...], asked: tuple[complex, ...]) -> None:
    """Compare their polynomials: the poles themselves are ill conditioned where they coincide."""
    assert len(found) == len(asked)
    for z in (1.5, -1.5, 2j, 1 + 1j):
        assert _value(found, z) == pytest.approx(_value(asked, z), rel=1e-6, abs=1e-6)


def _value(poles: tuple[complex, ...], z: complex) -> complex:
    value = 1 + 0j
    for pole in poles:
        value *= z - pole
    return value


@pytest.mark.parametrize(
    ("settling_steps", "kp", "ki", "pole"),
    [
        (4, 0.00209, 0.01286, 0.183 + 0.319j),
        (6, -0.00006, 0.00800, 0.393 + 0.330j),
        (8, -0.00181, 0.00532, 0.525 + 0.304j),
        (10, -0.00317, 0.00377, 0.612 + 0.273j),
    ],
)
def test_a_pi_law_by_settling_steps_and_5_percent_overshoot(
    settling_steps: float, kp: float, ki: float, pole: complex
) -> None:
    law = design.place_pi(PAPER_PLANT, *design.poles_for(settling_steps, 0.05))
    assert (law.kp, law.ki) == pytest.approx((kp, ki), abs=0.6e-5)
    assert_close(max(closed_loop_poles(law, PAPER_PLANT), key=lambda z: z.imag), pole)


def assert_close(found: complex, expected: complex) -> None:
    assert abs(found - expected) < 0.001


@pytest.mark.parametrize(
    ("pole", "kp", "ki"), [(0.5, 0.00218, 0.00619), (0.8, 0.00087, 0.00248), (0.9, 0.00044, 0.00124)]
)
def test_a_lambda_tuned_law_leaves_the_pole_and_the_plants_own(pole: float, kp: float, ki: float) -> None:
    law = design.lambda_pi(PAPER_PLANT, pole)
    assert (law.kp, law.ki) == pytest.approx((kp, ki), abs=0.6e-5)
    assert closed_loop_poles(law, PAPER_PLANT) == pytest.approx((pole, 0.26))
    assert gain_margin(law, PAPER_PLANT) == pytest.approx(2 / (1 - pole))


def test_the_seeds_pi_gains_corrected() -> None:
    law = design.place_pi(PAPER_PLANT, 0.5 + 0.332j, 0.5 - 0.332j)
    assert law.kp == pytest.approx(-0.00167, abs=1e-5)
    assert law.ki == pytest.approx(0.00603, abs=1e-5)


def test_the_seeds_pid_gains_corrected() -> None:
    law = design.place_pid(PAPER_PLANT, 0.501 + 0.338j, 0.501 - 0.338j, -0.301)
    assert law.kd == pytest.approx(0.0018417, abs=1e-5)
    assert law.kp == pytest.approx(-0.000385, abs=2e-5)
    assert law.ki == pytest.approx(0.007919, abs=2e-5)


def test_the_seeds_intended_poles_overshoot_by_6_percent_and_settle_in_8_steps() -> None:
    wanted = max(design.poles_for(8, 0.064), key=lambda z: z.imag)
    assert abs(wanted - (0.5 + 0.332j)) < 0.02


@settings(deadline=None)
@given(plants, st.floats(-0.99, 0.99))
def test_a_proportional_law_places_its_pole(plant: Plant, pole: float) -> None:
    assert_same_poles(closed_loop_poles(design.place_p(plant, pole), plant), (pole,))


@settings(deadline=None)
@given(plants, radii, angles)
def test_a_pi_law_places_a_complex_pair(plant: Plant, radius: float, angle: float) -> None:
    pair = (cmath.rect(radius, angle), cmath.rect(radius, -angle))
    assert_same_poles(closed_loop_poles(design.place_pi(plant, *pair), plant), pair)


@settings(deadline=None)
@given(plants, st.floats(-0.95, 0.95), st.floats(-0.95, 0.95))
def test_a_pi_law_places_two_real_poles(plant: Plant, p1: float, p2: float) -> None:
    assert_same_poles(closed_loop_poles(design.place_pi(plant, p1, p2), plant), (p1, p2))


@settings(deadline=None)
@given(plants, radii, angles, st.floats(-0.95, 0.95).filter(lambda p: abs(p) > 1e-3))
def test_a_pid_law_places_three_poles(plant: Plant, radius: float, angle: float, third: float) -> None:
    poles = (cmath.rect(radius, angle), cmath.rect(radius, -angle), third)
    found = closed_loop_poles(design.place_pid(plant, *poles), plant)
    # Without a derivative part, as for a pole at 0, the law is a PI law and one pole fewer is left.
    assert_same_poles((*found, 0j)[:3], poles)


@settings(deadline=None)
@given(st.floats(-0.6, 0.6), st.floats(0.78, 0.99), st.floats(0.01, 100))
def test_an_integral_law_has_the_pole_asked_for_as_its_slowest(a: float, pole: float, b: float) -> None:
    plant = Plant(a=a, b=b)
    slowest = closed_loop_poles(design.integral(plant, pole), plant)[0]
    assert abs(slowest) == pytest.approx(pole, abs=1e-6)


def test_an_integral_law_on_a_plant_without_memory_is_one_minus_lambda_by_b() -> None:
    assert design.integral(Plant(a=0.0, b=173.0), 0.8).ki == pytest.approx(0.2 / 173)


def test_an_integral_law_cannot_be_faster_than_the_plant_allows() -> None:
    with pytest.raises(ControlError, match="no faster than a pole of"):
        design.integral(Plant(a=0.81, b=1.0), 0.8)


@pytest.mark.parametrize("delay", [1, 2, 3, 8])
def test_lambda_tuning_slows_down_for_a_delay_and_keeps_a_gain_margin_of_2(delay: int) -> None:
    plant = Plant(a=0.3, b=2.0, delay=delay)
    assert gain_margin(design.lambda_pi(plant, 0.2), plant) == pytest.approx(2)
    assert design.lambda_pi(plant, 0.999) == design.lambda_pi(Plant(a=0.3, b=2.0), 0.999)


def test_feedforward_takes_the_droop_away_also_on_a_plant_with_an_offset() -> None:
    law = design.place_p(PAPER_PLANT, 0.2)
    assert (law.kp, law.feedforward) == pytest.approx((0.06 / 59.73, 0.74 / 59.73))
    assert design.place_p(PAPER_PLANT, 0.2, has_feedforward=False).feedforward == 0
    shifted = Plant(a=0.5, b=10.0, offset=50.0, operating_point=OperatingPoint(15.0, 400.0))
    assert design.place_p(shifted, 0.2).feedforward * 400 == pytest.approx(15)


def test_poles_for_one_and_three_poles() -> None:
    assert design.poles_for(8, 0.05, 1) == pytest.approx((0.6065,), abs=1e-4)
    assert design.poles_for(8, 0.0) == pytest.approx((0.6065, 0.6065), abs=1e-4)
    first, second, third = design.poles_for(8, 0.05, 3)
    assert first == second.conjugate()
    assert third == pytest.approx(abs(first) ** 2)


def test_laws_have_the_types_of_their_kind() -> None:
    assert isinstance(design.place_pi(PAPER_PLANT, 0.5, 0.5), ProportionalIntegral)
    assert isinstance(design.place_pid(PAPER_PLANT, 0.5, 0.5, 0.1), Pid)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: design.poles_for(0, 0.05), "more than 0 steps"),
        (lambda: design.poles_for(8, 1.0), "below 1"),
        (lambda: design.poles_for(1, 0.9), "ask for less overshoot"),
        (lambda: design.place_p(PAPER_PLANT, 1.0), "inside the unit circle"),
        (lambda: design.place_p(PAPER_PLANT, 0.1 + 0.1j), "come in pairs"),
        (lambda: design.place_pi(PAPER_PLANT, 0.1 + 0.1j, 0.1), "come in pairs"),
        (lambda: design.place_pi(Plant(a=0.5, b=0.0), 0.1, 0.1), "no effect"),
        (lambda: design.place_pi(Plant(a=0.5, b=1.0, delay=1), 0.1, 0.1), "use lambda tuning"),
        (lambda: design.place_pi(Plant(a=0.5, b=1.0, ar=(0.1,), bs=(0.1,)), 0.1, 0.1), "order 1"),
        (lambda: design.lambda_pi(Plant(a=0.9, b=1.0, ar=(0.2,), bs=(0.1,))), "does not: identify again"),
        (lambda: design.lambda_pi(Plant(a=1.0, b=1.0)), "place the poles instead"),
        (lambda: design.lambda_pi(PAPER_PLANT, 1.0), "below 1"),
    ],
)
def test_what_cannot_be_designed_is_refused_with_a_reason(call: object, complaint: str) -> None:
    with pytest.raises(ControlError, match=complaint):
        call()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("name", "wish", "law"),
    [
        ("p", {}, design.place_p(PAPER_PLANT, design.PROPORTIONAL_POLE)),
        ("p", {"pole": 0.2}, design.place_p(PAPER_PLANT, 0.2)),
        ("i", {"pole": 0.6}, design.integral(PAPER_PLANT, 0.6)),
        ("lambda_pi", {}, design.lambda_pi(PAPER_PLANT)),
        ("pi", {"pole": 0.6}, design.place_pi(PAPER_PLANT, 0.6, 0.6)),
        ("pi", {"poles": (0.6, 0.1)}, design.place_pi(PAPER_PLANT, 0.6, 0.1)),
        ("pi", {"settling_steps": 8.0}, design.place_pi(PAPER_PLANT, *design.poles_for(8, 0.05))),
        ("pid", {"pole": 0.6}, design.place_pid(PAPER_PLANT, 0.6, 0.6, 0.6)),
        ("pid", {"overshoot": 0.1}, design.place_pid(PAPER_PLANT, *design.poles_for(5, 0.1, 3))),
    ],
)
def test_a_law_is_designed_by_name_and_wish(name: str, wish: dict[str, Any], law: Law[Any]) -> None:
    assert design.design_law(name, PAPER_PLANT, **wish) == law


def test_a_design_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ControlError, match="no design of 'fuzzy'; there are p, i, pi, pid, lambda_pi"):
        design.design_law("fuzzy", PAPER_PLANT)
