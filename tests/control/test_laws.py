"""Each law on numbers worked out by hand, and laws as documents."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.control.controller import Controller
from flyball.control.laws import (
    Integral,
    Law,
    Multiplicative,
    Pid,
    PositionalPid,
    Proportional,
    ProportionalIntegral,
    Reading,
    Scheduled,
    SelfTuning,
    law_from_json,
    law_to_json,
    pid,
)
from flyball.control.limits import Limits
from flyball.errors import ControlError
from tests.control.laws_in_use import laws

ERRORS = [4.0, -2.0, 1.0, 3.0, 0.0, -5.0]


def actions(law: Law[Any], errors: list[float], start: float = 0.0) -> list[float]:
    state = law.begin(start, None)
    found = []
    for error in errors:
        state, action = law.step(state, Reading(error, 0.0))
        found.append(action)
    return found


def test_p_is_proportional_to_the_error_and_feeds_the_setpoint_forward() -> None:
    assert actions(Proportional(0.5), ERRORS) == [2.0, -1.0, 0.5, 1.5, 0.0, -2.5]
    assert Proportional(0.5, feedforward=0.1).step(0.0, Reading(20.0, 16.0))[1] == pytest.approx(4.0)


def test_i_adds_up_errors() -> None:
    assert actions(Integral(0.5), ERRORS, start=1.0) == [3.0, 2.0, 2.5, 4.0, 4.0, 1.5]


def test_pi_is_the_velocity_form_of_the_prefetch_paper() -> None:
    kp, ki = 0.3, 0.2
    found = actions(ProportionalIntegral(kp, ki), ERRORS, start=7.0)
    for step, (earlier, later) in enumerate(pairwise(found), 1):
        assert later == pytest.approx(earlier + (kp + ki) * ERRORS[step] - kp * ERRORS[step - 1])


@pytest.mark.parametrize("form", ["velocity", "positional"])
def test_pid_is_the_textbook_law_in_both_forms(form: Any) -> None:
    kp, ki, kd = 0.3, 0.2, 0.1
    found = actions(pid(kp, ki, kd, form), [0.0, *ERRORS])
    expected = [
        kp * error + ki * sum(ERRORS[: step + 1]) + kd * (error - (ERRORS[step - 1] if step else 0.0))
        for step, error in enumerate(ERRORS)
    ]
    assert found[1:] == pytest.approx(expected)


def test_the_pid_law_that_the_prefetch_paper_prints_is_one_with_another_kp() -> None:
    kp, ki, kd = 0.3, 0.2, 0.1
    found = actions(Pid.as_printed(kp, ki, kd), [0.0, *ERRORS])
    printed = [
        kp * error + ki * sum(ERRORS[:step]) + kd * error + kd * (error - (ERRORS[step - 1] if step else 0.0))
        for step, error in enumerate(ERRORS)
    ]
    assert found[1:] == pytest.approx(printed)


def test_a_form_that_pid_does_not_have_is_refused() -> None:
    with pytest.raises(ControlError, match="velocity or positional"):
        pid(1.0, 1.0, 1.0, "parallel")  # type: ignore[arg-type]


def test_the_multiplicative_law_is_littles_law_inverted() -> None:
    law = Multiplicative(1.0)
    # 5 messages in flight at 100/s are 50 ms each, so 400/s need 20 in progress.
    assert law.step(5.0, Reading(400.0, 100.0))[1] == pytest.approx(20.0)
    assert Multiplicative(0.5).step(5.0, Reading(400.0, 100.0))[1] == pytest.approx(10.0)


@pytest.mark.parametrize("measurement", [0.0, -3.0, 1e-300])
def test_one_odd_sample_moves_the_multiplicative_law_by_a_bounded_factor(measurement: float) -> None:
    assert Multiplicative(0.5).step(5.0, Reading(400.0, measurement))[1] == pytest.approx(10.0)


def test_the_multiplicative_law_rests_with_setpoint_and_measurement_0() -> None:
    assert Multiplicative(0.5).step(5.0, Reading(0.0, 0.0))[1] == 5.0


@given(elasticity=st.floats(0.05, 1.0), exponent=st.floats(0.05, 1.0), start=st.floats(0.1, 100))
def test_the_multiplicative_law_does_not_overshoot_on_concave_powers(
    elasticity: float, exponent: float, start: float
) -> None:
    controller = Controller(Multiplicative(exponent), Limits(1e-3, 1e9), 100.0, start)
    before = 20 * start**elasticity
    for _ in range(20):
        controller.update(20 * controller.action**elasticity)
        after = 20 * controller.action**elasticity
        assert abs(math.log(after / 100)) <= abs(math.log(before / 100)) + 1e-9
        assert (after - 100) * (before - 100) >= -1e-6
        before = after


@pytest.mark.parametrize("elasticity", [0.3, 0.6, 1.0])
def test_the_self_tuning_law_learns_the_elasticity_of_the_plant(elasticity: float) -> None:
    noise = random.Random(1)
    controller = Controller(SelfTuning(), Limits(0.1, 1e6), 400.0, 2.0)
    measurements = []
    for step in range(400):
        # Another goal now and then: at rest there is nothing to learn.
        controller.setpoint = (400.0, 600.0, 300.0)[step // 20 % 3]
        measurements.append(90 * controller.action**elasticity * math.exp(noise.gauss(0, 0.03)))
        controller.update(measurements[-1])
    estimate = controller._state.estimate
    assert estimate.elasticity == pytest.approx(elasticity, abs=0.08)


def test_self_tuning_settles_sooner_on_a_bent_curve_than_a_fixed_gain() -> None:
    def steps_to(law: Law[Any]) -> int:
        controller = Controller(law, Limits(0.1, 1e9), 100.0, 1.0)
        for step in range(200):
            measurement = 50 * controller.action**0.3
            if abs(measurement - controller.setpoint) < 0.02 * controller.setpoint and step > 60:
                return step - 60
            if step == 60:
                controller.setpoint = 150.0
            controller.update(measurement)
        return 200

    assert steps_to(SelfTuning(pole=0.8)) < 0.6 * steps_to(Multiplicative(0.2))


def test_the_self_tuning_law_learns_nothing_while_the_loop_is_open() -> None:
    controller = Controller(SelfTuning(), Limits(0.1, 100.0), 400.0, 5.0)
    controller.update(380.0)
    learned = controller._state.estimate
    for measurement in (10.0, 0.0, 50.0):
        controller.update(measurement, can_rise=False)
    assert controller._state.estimate == learned


def test_the_self_tuning_law_bounds_its_covariance() -> None:
    controller = Controller(SelfTuning(forgetting=0.9), Limits(0.1, 100.0), 400.0, 5.0)
    for _ in range(10_000):
        controller.update(400.0)
    first, _, second = controller._state.estimate.covariance
    assert 0 <= first + second <= 10.0001


def test_the_scheduled_law_has_the_same_pole_wherever_it_is_on_the_curve() -> None:
    def little(window: float) -> float:
        return 1250 * window / (window + 3.34)

    law = Scheduled.on([(u, little(u)) for u in [0.1 * step for step in range(1, 101)]], pole=0.5)
    for start, goal in ((1.0, 400.0), (2.0, 850.0), (9.0, 300.0)):
        controller = Controller(law, Limits(0.1, 60.0), goal, start)
        for _ in range(4):
            before = goal - little(controller.action)
            controller.update(little(controller.action))
            assert goal - little(controller.action) == pytest.approx(0.5 * before, rel=0.05)


def test_a_scheduled_law_can_be_made_of_noisy_points() -> None:
    noise = random.Random(2)
    law = Scheduled.on([(u, 100 * u**0.5 + noise.gauss(0, 20)) for u in range(1, 40)])
    assert all(first < second for first, second in pairwise(law.measurements))


@pytest.mark.parametrize("points", [[], [(1.0, 2.0)], [(1.0, 5.0), (2.0, 4.0)], [(1.0, 5.0), (1.0, 6.0)]])
def test_a_curve_that_does_not_rise_is_refused(points: list[tuple[float, float]]) -> None:
    with pytest.raises(ControlError, match="rise"):
        Scheduled.on(points)


@given(laws)
def test_a_law_comes_back_from_its_document(law: Law[Any]) -> None:
    assert law_from_json(law_to_json(law)) == law


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        (3, "an object with a kind"),
        ({}, "an object with a kind"),
        ({"kind": "fuzzy"}, "no law 'fuzzy'"),
        ({"kind": "pi", "kp": 1.0}, "pi: ki is missing"),
        ({"kind": "pi", "kp": 1.0, "ki": "much"}, "pi: ki is 'much'"),
        ({"kind": "pi", "kp": 1.0, "ki": True}, "pi: ki is True"),
        ({"kind": "pi", "kp": 1.0, "ki": 1.0, "kd": 1.0}, "unknown gain 'kd' of the pi law: use kp, ki"),
        ({"kind": "i", "ki": math.nan}, "i: ki is nan"),
        ({"kind": "i", "ki": [1.0]}, "a number is needed"),
        ({"kind": "scheduled", "actions": 1.0, "measurements": [1.0, 2.0]}, "a list of numbers is needed"),
        ({"kind": "scheduled", "actions": [1.0, 2.0], "measurements": [1.0]}, "two points or more"),
        ({"kind": "multiplicative", "exponent": -1.0}, "exponent"),
        ({"kind": "self_tuning", "pole": 1.0}, "pole"),
        ({"kind": "self_tuning", "forgetting": 0.1}, "forgetting"),
        ({"kind": "self_tuning", "lowest_elasticity": 2.0}, "in order"),
    ],
)
def test_a_document_that_is_no_law_is_refused_with_what_is_wrong(document: object, complaint: str) -> None:
    with pytest.raises(ControlError, match=complaint):
        law_from_json(document)


def test_the_positional_form_holds_its_integral_at_a_limit() -> None:
    controller = Controller(PositionalPid(0.0, 1.0), Limits(0.0, 10.0), 5.0, 9.0)
    for _ in range(50):
        controller.update(0.0)
    assert controller.update(6.0) < 10.0
