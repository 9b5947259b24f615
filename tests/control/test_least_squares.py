"""Least squares is that of the textbook: exact without noise, with the right standard errors with it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.control.least_squares import errors_of, least_squares
from flyball.control.moments import Moments, moments_of
from flyball.control.signals import random_steps

from .plants import PAPER_PLANT, Numbers, measured

A, B = 0.83, 0.21


def of_first_order(y: Numbers, u: Numbers, next_y: Numbers) -> Moments:
    return moments_of(np.array([y, u, next_y]))


@settings(deadline=None)
@given(a=st.floats(-0.95, 0.95), b=st.floats(0.01, 100), offset=st.floats(-100, 100), seed=st.integers(0, 99))
def test_without_noise_least_squares_is_exact(a: float, b: float, offset: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    y, u = random.normal(50, 5, 40), random.uniform(1, 20, 40)
    fit = least_squares(of_first_order(y, u, a * y + b * u + offset))
    assert fit is not None
    assert (fit.a, fit.b, fit.offset) == pytest.approx((a, b, offset), rel=1e-6, abs=1e-5)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_parameters_and_standard_errors_are_those_of_the_textbook(order: int) -> None:
    random = np.random.default_rng(2)
    regressors = random.normal(3, 2, (2 * order, 200))
    target = np.linspace(-1, 1, 2 * order) @ regressors + random.normal(0, 0.3, 200)
    fit = least_squares(moments_of(np.vstack([regressors, target])))
    assert fit is not None
    design = np.column_stack([regressors.T, np.ones(200)])
    solution, rest, *_ = np.linalg.lstsq(design, target)
    covariance = rest[0] / (200 - 2 * order - 1) * np.linalg.inv(design.T @ design)
    assert (*fit.parameters, fit.offset) == pytest.approx(tuple(solution))
    assert fit.covariance == pytest.approx(covariance[:-1, :-1])
    assert fit.freedom == 200 - 2 * order - 1


def test_the_printed_sums_give_nonsense_and_the_corrected_ones_the_truth() -> None:
    u = np.array(random_steps(1, 22, 300, seed=5))
    y = measured(PAPER_PLANT, u.tolist())
    y, next_y, u, next_u = y[:-1], y[1:], u[:-1], u[1:]
    s1, s2, s3, s4, s5, printed = (
        float(one @ other) for one, other in ((y, y), (u, y), (u, u), (y, next_y), (u, next_y), (u, next_u))
    )

    def solved(fifth: float) -> tuple[float, float]:
        determinant = s1 * s3 - s2 * s2
        return (s3 * s4 - s2 * fifth) / determinant, (s1 * fifth - s2 * s4) / determinant

    fit = least_squares(of_first_order(y, u, next_y))
    assert fit is not None
    assert solved(s5) == pytest.approx((0.26, 59.73))
    assert (fit.a, fit.b) == pytest.approx((0.26, 59.73))
    a, b = solved(printed)
    assert abs(a) > 1
    assert b < 0


def test_what_stands_still_or_moves_in_step_has_no_fit() -> None:
    random = np.random.default_rng(1)
    y, flat = random.normal(0, 1, 50), np.full(50, 0.1)
    assert least_squares(of_first_order(y, flat, y)) is None
    assert least_squares(of_first_order(flat, y, y)) is None
    assert least_squares(of_first_order(y, 3 * y + 1, y)) is None
    assert least_squares(of_first_order(y[:3], random.normal(0, 1, 3), y[:3])) is None


def test_the_condition_is_that_of_the_correlation_of_measurement_and_action() -> None:
    y = np.random.default_rng(1).normal(0, 1, 500)
    u = y + np.random.default_rng(2).normal(0, 0.5, 500)
    fit = least_squares(of_first_order(y, u, y + u))
    assert fit is not None
    assert fit.condition == pytest.approx(np.linalg.cond(np.corrcoef(y, u)))


def test_errors_of_predictions_are_those_of_the_residuals() -> None:
    random = np.random.default_rng(3)
    y, u = random.normal(5, 1, 200), random.normal(0, 2, 200)
    next_y = A * y + B * u + random.normal(0, 0.3, 200)
    fit = least_squares(of_first_order(y[:100], u[:100], next_y[:100]))
    assert fit is not None
    residuals = next_y[100:] - fit.a * y[100:] - fit.b * u[100:] - fit.offset
    rmse, r2 = errors_of(fit, of_first_order(y[100:], u[100:], next_y[100:]))
    assert rmse == pytest.approx(np.sqrt((residuals**2).mean()))
    assert r2 == pytest.approx(1 - (residuals**2).mean() / next_y[100:].var())
    assert errors_of(fit, of_first_order(y[:1], u[:1], next_y[:1]))[1] is None
