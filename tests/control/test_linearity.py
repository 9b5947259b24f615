"""The linear part of a curve is found, whatever the curve's units, and no line is seen in noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.control.linearity import Curve, curve_of, linear_range
from flyball.control.moments import ranges_of


@settings(deadline=None)
@given(st.floats(-50, 50).filter(lambda gain: abs(gain) > 0.1), st.floats(-1000, 1000), st.integers(3, 24))
def test_a_straight_curve_is_linear_from_end_to_end(gain: float, offset: float, count: int) -> None:
    actions = np.linspace(0, 10, count)
    assert linear_range(Curve(0, 0, actions, gain * actions + offset, np.full(count, 1e-3))) == (0, count - 1)


def test_a_flat_curve_has_no_linear_range() -> None:
    actions = np.linspace(0, 10, 12)
    noise = np.array([math.sin(17 * action) for action in actions])
    assert linear_range(Curve(0, 0, actions, 5 + noise, np.ones(12))) is None


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_a_curve_that_saturates_is_linear_until_there(unit: float) -> None:
    actions = np.linspace(0, 11, 12)
    values = unit * np.minimum(actions, 6)
    assert linear_range(Curve(0, 0, actions, values, np.full(12, 1e-3 * unit))) == (0, 6)


def test_a_bent_curve_is_not_taken_for_memory() -> None:
    random = np.random.default_rng(1)
    u, y = random.uniform(0, 10, 3000), random.normal(0, 1, 3000)
    columns = np.array([y, u, 0.5 * y + np.sqrt(u) + random.normal(0, 0.05, 3000)])
    curve = curve_of(ranges_of(columns, np.zeros(3000, dtype=bool)))
    assert curve.a == pytest.approx(0.5, abs=0.01)
    assert abs(curve.a - 0.5) < 4 * curve.a_error
    assert curve.values == pytest.approx(np.sqrt(curve.actions), abs=0.05)


def test_of_a_higher_order_the_curve_is_that_of_an_action_that_stays() -> None:
    random = np.random.default_rng(1)
    u, earlier_u, y, earlier_y = random.uniform(0, 10, (4, 3000))
    columns = np.array([y, earlier_y, u, earlier_u, 0.5 * y - 0.2 * earlier_y + 3 * u + 2 * earlier_u + 1])
    curve = curve_of(ranges_of(columns, np.zeros(3000, dtype=bool)))
    assert curve.a == pytest.approx(0.3)
    assert curve.values == pytest.approx(5 * curve.actions + 1)


def test_rounding_inside_a_range_is_not_taken_for_a_change() -> None:
    random = np.random.default_rng(1)
    u = np.repeat([0.1, 0.2, 0.3], 100)
    y = random.normal(0, 1, 300)
    columns = np.array([y, u * (1 + 1e-15 * random.normal(0, 1, 300)), 0.5 * y + 7 * u])
    curve = curve_of(ranges_of(columns, np.zeros(300, dtype=bool)))
    assert curve.a == pytest.approx(0.5)
    assert np.polyfit(curve.actions, curve.values, 1)[0] == pytest.approx(7)
