"""Least squares for the parameters of a plant, from the moments of its samples.

Pure arithmetic on small matrices: callers decide how to use the parameters, and whether to trust them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from flyball.control.moments import ROUNDING, Moments, Numbers

_SINGULAR = 1e-12


@dataclass(frozen=True, slots=True)
class Fit:
    """Result of least squares: the a's and then as many b's, with their covariance."""

    parameters: Numbers
    offset: float
    # The covariance for a residual variance of 1.
    inverse: Numbers
    variance: float
    freedom: int
    condition: float

    @property
    def order(self) -> int:
        return len(self.parameters) // 2

    @property
    def a(self) -> float:
        return float(self.parameters[0])

    @property
    def b(self) -> float:
        return float(self.parameters[self.order])

    @property
    def all_a(self) -> Numbers:
        return self.parameters[: self.order]

    @property
    def all_b(self) -> Numbers:
        return self.parameters[self.order :]

    @property
    def covariance(self) -> Numbers:
        covariance: Numbers = self.variance * self.inverse
        return covariance


def least_squares(moments: Moments) -> Fit | None:
    """Return the best-fitting parameters, or None if a column never changed or depends linearly on others.

    Solves the normal equations about the mean; for order 1, with S1 = Σy², S2 = Σuy, S3 = Σu², S4 = Σy·y⁺ and S5 =
    Σu·y⁺ (y⁺ is y(k+1)): a = (S3·S4 - S2·S5) / (S1·S3 - S2²), b = (S1·S5 - S2·S4) / (S1·S3 - S2²). The paper prints
    S5 as Σu(k)u(k+1), which is a misprint. The covariance is s² [[S1, S2], [S2, S3]]⁻¹ with s² = SSE / (n - 3).
    """
    size = len(moments.means) - 1
    scale = np.sqrt(np.maximum(np.diag(moments.covariance)[:size], 0))
    # A smaller change is rounding.
    if moments.count < size + 2 or (scale <= ROUNDING * np.abs(moments.means[:size])).any():
        return None
    # In units of the standard deviations, so that the result does not depend on the units of y and u.
    correlation = moments.covariance[:size, :size] / np.outer(scale, scale)
    if np.linalg.eigvalsh(correlation)[0] <= _SINGULAR:
        return None
    cross = moments.covariance[:size, size]
    parameters = np.linalg.solve(correlation, cross / scale) / scale
    freedom = int(moments.count) - size - 1
    rest = max(float(moments.covariance[size, size] - parameters @ cross), 0.0) * moments.count
    inverse = np.linalg.inv(correlation) / np.outer(scale, scale) / moments.count
    together = _moved_together(correlation)
    return Fit(
        parameters,
        float(moments.means[size] - parameters @ moments.means[:size]),
        (inverse + inverse.T) / 2,
        rest / freedom,
        freedom,
        (1 + together) / (1 - together),
    )


def _moved_together(correlation: Numbers) -> float:
    """Return how well a combination of the actions predicts a combination of the measurements, 0 to below 1.

    It is the largest canonical correlation; for order 1 the correlation of y and u. Dependence among successive
    measurements does not count.
    """
    order = len(correlation) // 2
    ys, us = (np.linalg.cholesky(correlation[own, own]) for own in (slice(order), slice(order, None)))
    mixed = np.linalg.solve(us, np.linalg.solve(ys, correlation[:order, order:]).T)
    return min(float(np.linalg.svd(mixed, compute_uv=False)[0]), 1 - 1e-15)


def errors_of(fit: Fit, moments: Moments) -> tuple[float, float | None]:
    """Return the RMSE of one-step predictions and R², which is None where y never changed."""
    weights = np.append(-fit.parameters, 1.0)
    mean = float(weights @ moments.means) - fit.offset
    square = max(float(weights @ moments.covariance @ weights), 0.0) + mean * mean
    variance = float(moments.covariance[-1, -1])
    return math.sqrt(square), 1 - square / variance if variance > 0 else None
