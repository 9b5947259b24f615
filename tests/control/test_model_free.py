"""The promises for every plant of a kind hold for those that are tried."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.control.controller import Controller
from flyball.control.laws import Integral, Multiplicative, ProportionalIntegral, SelfTuning
from flyball.control.limits import Limits
from flyball.control.model_free import certify_integral, certify_model_free, highest_integral_gain
from flyball.control.plant import Plant
from flyball.control.simulation import WindowPlant, simulate
from flyball.control.verification import certify
from flyball.errors import ControlError


@settings(max_examples=40, deadline=None)
@given(
    exponent=st.floats(0.1, 1.0),
    most_per_s=st.floats(10, 1e5),
    half_at=st.floats(0.01, 1000),
    goal_ratio=st.floats(0.05, 0.8),
    start=st.floats(0.1, 300),
)
def test_the_multiplicative_law_approaches_its_setpoint_with_every_sample(
    exponent: float, most_per_s: float, half_at: float, goal_ratio: float, start: float
) -> None:
    goal = goal_ratio * most_per_s
    settled = half_at * goal_ratio / (1 - goal_ratio)
    controller = Controller(Multiplicative(exponent), Limits(1e-6, 1e6), goal, start)
    run = simulate(controller, WindowPlant(most_per_s, half_at), 60, seed=0)
    away = [abs(math.log(action / settled)) for action in [start, *run.actions]]
    assert all(after <= before + 1e-9 for before, after in pairwise(away))
    assert away[-1] < 0.9 * away[0] + 1e-9


@settings(max_examples=20, deadline=None)
@given(
    most_per_s=st.floats(100, 1e4),
    half_at=st.floats(0.1, 100),
    goal_ratio=st.floats(0.05, 0.8),
    seed=st.integers(0, 9),
)
def test_a_self_tuning_law_holds_every_window_curve(
    most_per_s: float, half_at: float, goal_ratio: float, seed: int
) -> None:
    goal = goal_ratio * most_per_s
    controller = Controller(SelfTuning(), Limits(1e-3, 1e5), goal, half_at)
    run = simulate(controller, WindowPlant(most_per_s, half_at, noise_ratio=0.05), 200, seed=seed)
    assert sum(run.outputs[100:]) / 100 == pytest.approx(goal, rel=0.05)


@pytest.mark.parametrize("gain", [0.1, 0.2, 0.4, 0.618, 0.7, 1.0, 1.5])
def test_the_closed_form_agrees_with_poles_and_margins_of_the_linear_loop(gain: float) -> None:
    closed, computed = certify_integral(Integral(gain), 1.0), certify(Integral(gain), Plant(a=0.0, b=1.0))
    assert closed.largest_pole == pytest.approx(computed.largest_pole)
    assert closed.gain_margin == pytest.approx(computed.gain_margin)
    if gain != 1.0:
        # At 1 one sample of delay leads exactly to the limit.
        assert closed.delay_margin_samples == computed.delay_margin_samples


def test_an_integral_law_is_sound_for_all_slopes_up_to_the_one_it_is_made_for() -> None:
    law = Integral(0.2)
    certificate = certify_integral(law, 1.0)
    assert certificate.is_sound
    assert "slope is above 0 and at most 1" in certificate.plant
    for slope in (0.01, 0.3, 1.0):
        assert certify(law, Plant(a=0.0, b=slope)).gain_margin >= certificate.gain_margin * (1 - 1e-9)
    assert not certify_integral(law, 6.0).is_sound
    assert not certify_integral(Integral(-0.1), 1.0).is_sound


def test_gains_that_mean_nothing_without_a_plant_are_refused() -> None:
    with pytest.raises(ControlError, match="pi gains are sound depends on the plant"):
        certify_model_free(ProportionalIntegral(0.1, 0.1))
    with pytest.raises(ControlError, match="above 0"):
        certify_integral(Integral(0.1), 0.0)


def test_delay_lowers_the_highest_gain() -> None:
    assert [round(highest_integral_gain(delay), 3) for delay in range(4)] == [2.0, 1.0, 0.618, 0.445]
