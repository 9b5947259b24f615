"""Margins of many loops at once are those of each loop, and those of python-control."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import control
from flyball.control.laws import Integral, Law, Pid, Proportional, ProportionalIntegral
from flyball.control.margins import (
    are_stable,
    closed_loop_poles,
    delay_margin,
    delay_margin_samples,
    gain_limits,
    gain_margin,
    highest_gain,
    largest_poles,
    loops_of,
)
from flyball.control.plant import Plant
from flyball.control.stability import open_loop

PLANTS = [
    Plant(a=0.26, b=59.73),
    Plant(a=0.8, b=10.0, delay=1),
    Plant(a=0.5, b=20.0, delay=4),
    Plant(a=1.1, ar=(-0.5,), b=10.0, bs=(15.0,), delay=2),
    Plant(a=1.0, ar=(-0.4, 0.1), b=5.0, bs=(5.0, 10.0)),
]
LAWS: list[Law[Any]] = [
    ProportionalIntegral(0.0008, 0.0015),
    Integral(0.002),
    Proportional(0.005),
    Pid(0.0005, 0.001, 0.0002),
]


@pytest.mark.parametrize("share", [None, 0.4])
@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("law", LAWS, ids=[law.kind for law in LAWS])
def test_margins_of_a_group_are_those_of_its_loops(law: Law[Any], plant: Plant, share: float | None) -> None:
    loops = loops_of(law, [plant], share)
    largest, poles = largest_poles(loops)
    assert largest == pytest.approx(abs(closed_loop_poles(law, plant, share)[0]), abs=1e-6)
    assert (largest < 1) == are_stable(loops[0].scaled(1.0)).all()
    # Those at 0 are as many as the polynomial's padding, and say nothing.
    theirs = [abs(pole) for pole in closed_loop_poles(law, plant, share) if abs(pole) > 1e-4]
    assert [abs(pole) for pole in poles if abs(pole) > 1e-4] == pytest.approx(theirs, abs=1e-6)
    low, high = gain_limits(loops)
    assert low == 0
    assert high == pytest.approx(gain_margin(law, plant, share), rel=1e-6)
    assert delay_margin(loops) == delay_margin_samples(law, plant, share)


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("law", LAWS, ids=[law.kind for law in LAWS])
def test_poles_and_stability_are_those_of_python_control(law: Law[Any], plant: Plant) -> None:
    for factor in (0.5, 1.0, 3.0, 30.0):
        loop = control.feedback(factor * open_loop(law, plant), 1)
        theirs = np.abs(loop.poles()).max()
        loops = loops_of(law, [plant])[0]
        assert are_stable(loops.scaled(factor)).all() == (theirs < 1)
    margin = gain_limits(loops_of(law, [plant]))[1]
    if math.isfinite(margin):
        for factor, is_stable in ((0.999 * margin, True), (1.001 * margin, False)):
            assert (np.abs(control.feedback(factor * open_loop(law, plant), 1).poles()).max() < 1) == is_stable


def test_plants_of_several_structures_are_judged_together() -> None:
    law = ProportionalIntegral(0.0008, 0.0015)
    loops = loops_of(law, PLANTS)
    assert len(loops) == len(PLANTS)
    each = [gain_margin(law, plant) for plant in PLANTS]
    assert gain_limits(loops)[1] == pytest.approx(min(each))
    assert delay_margin(loops) == min(delay_margin_samples(law, plant) for plant in PLANTS)
    assert largest_poles(loops)[0] == pytest.approx(max(abs(closed_loop_poles(law, plant)[0]) for plant in PLANTS))


def test_a_loop_that_needs_its_gain_has_a_lower_limit() -> None:
    # A plant that runs away by itself: z = 1.2 comes inside only with enough gain.
    loops = loops_of(Proportional(0.7), [Plant(a=1.2, b=1.0)])
    low, high = gain_limits(loops)
    assert [low, high] == pytest.approx([0.2 / 0.7, 2.2 / 0.7])
    assert highest_gain(loops) == 0


def test_the_highest_gain_is_that_of_the_worst_plant() -> None:
    loops = loops_of(Integral(1.0), [Plant(a=0.0, b=1.0), Plant(a=0.0, b=1.0, delay=2)])
    assert highest_gain(loops) == pytest.approx(2 * math.sin(math.pi / 10))
