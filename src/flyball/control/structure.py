"""The delay and the order of a plant, from the moments of lagged samples, and the alternatives that the data
allow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flyball.control.lagged import LagMoments, Lags
from flyball.control.least_squares import Fit, least_squares
from flyball.control.moments import ROUNDING, Moments, Numbers

# Another delay is consistent with the data unless its likelihood is less than exp(-ALLOWED / 2) of the best one's.
ALLOWED = 14.0
# A higher order is not tried with fewer rows.
ROWS_PER_PARAMETER = 10
# A higher order is chosen if each step multiplies the likelihood by at least exp(NEEDED / 2): less may be chance,
# as many delays are tried.
NEEDED = 16.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A delay and an order, the least-squares fit with them, and how unlikely it is (-2 ln likelihood)."""

    delay: int
    order: int
    fit: Fit
    score: float


@dataclass(frozen=True, slots=True)
class Structure:
    """The chosen candidate, and those of the same order that the data do not rule out."""

    best: Candidate
    others: tuple[Candidate, ...]


def choose(lagged: LagMoments, *, delay: int | None = None, order: int | None = None) -> Structure | None:
    """Return the structure that fits best; a given value is not searched. None if no structure can be fitted.

    A given delay does not hide others that fit as well, or better.

    All candidates are compared on the same rows, so that their likelihoods are comparable.
    """
    moments = lagged.total
    delays = range(lagged.lags.delay + 1)
    chosen: list[Candidate] = []
    for size in range(1, lagged.lags.order + 1) if order is None else (order,):
        if chosen and moments.count < ROWS_PER_PARAMETER * (2 * size + 1):
            break
        found = [one for each in delays if (one := _candidate(moments, lagged.lags, each, size)) is not None]
        if not found:
            continue
        gained = min(one.score for one in chosen) - min(one.score for one in found) if chosen else 0.0
        if not chosen or gained > NEEDED * (size - chosen[0].order):
            chosen = found
    if not chosen:
        return None
    fitting = [one for one in chosen if delay in (None, one.delay)]
    if not fitting:
        return None
    best = min(fitting, key=lambda one: one.score)
    others = tuple(one for one in chosen if one is not best and one.score < best.score + ALLOWED)
    return Structure(best, others)


def selected(moments: Moments, columns: Sequence[int]) -> Moments:
    """Return the moments of some columns."""
    index = list(columns)
    return Moments(moments.count, moments.means[index], moments.covariance[np.ix_(index, index)])


def residual_sum(moments: Moments, regressors: Sequence[int], target: int) -> tuple[float, int]:
    """Return the residual sum of squares of a regression, and the number of independent regressors.

    Linearly dependent regressors, such as the lags of an action that rarely changes, count once.
    """
    index = list(regressors)
    own = moments.covariance[np.ix_(index, index)]
    scale = np.sqrt(np.maximum(np.diag(own), 0))
    moving = scale > ROUNDING * np.abs(moments.means[index])
    if not moving.any():
        return moments.count * float(moments.covariance[target, target]), 0
    correlation = own[np.ix_(moving, moving)] / np.outer(scale[moving], scale[moving])
    cross = moments.covariance[index, target][moving] / scale[moving]
    values, vectors = np.linalg.eigh(correlation)
    usable = values > 1e-9
    explained = float((((vectors.T @ cross) ** 2)[usable] / values[usable]).sum())
    left = max(float(moments.covariance[target, target]) - explained, 0.0)
    return moments.count * left, int(usable.sum())


def residual_weights(fit: Fit, lags: Lags, delay: int, back: int = 0) -> Numbers:
    """Return the weights of a row's columns that give the residual of `back` samples ago, offset left out."""
    weights = np.zeros(lags.size)
    weights[lags.y(back - 1)] = 1.0
    for lag, (a, b) in enumerate(zip(fit.all_a, fit.all_b, strict=True)):
        weights[lags.y(back + lag)] -= a
        weights[lags.u(back + delay + lag)] -= b
    return weights


def _candidate(moments: Moments, lags: Lags, delay: int, order: int) -> Candidate | None:
    fit = least_squares(selected(moments, [*lags.regressors(delay, order), 0]))
    if fit is None:
        return None
    variance = float(moments.covariance[0, 0])
    # The residuals of a perfect fit, of a simulation without noise, are rounding errors.
    residual = max(fit.variance * fit.freedom / moments.count, 1e-20 * variance, 1e-300)
    return Candidate(delay, order, fit, moments.count * math.log(residual))
