"""Tests of a model against the data it was fitted to: do the residuals contain anything that it does not explain?

A test fails where the deviation is both significant and large enough to matter for a loop: with many samples every
model is significantly wrong, and with few a large deviation may be chance. See docs/how-it-works/control.md.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from flyball.control.lagged import LagMoments
from flyball.control.least_squares import Fit, least_squares
from flyball.control.moments import Moments
from flyball.control.plant import Check, Errors
from flyball.control.structure import Candidate, residual_sum, residual_weights, selected

# Probability that a test rejects a correct model.
FALSE_ALARM = 1e-3
# Largest autocorrelation of the residuals that is too small to bias the model noticeably.
MAX_AUTOCORRELATION = 0.25
# Effect of actions that the model omits, as a share of the effect of those that it includes.
MAX_LEFT_OUT = 0.1
# Relative difference between the gains of the two halves of the data.
MAX_DRIFT = 0.15
# Minimum R² of one-step predictions of samples that were not fitted: below it their mean would predict better.
MIN_HOLD_OUT_R2 = 0.0
# R² above which held-out samples may be predicted worse than the fitted ones. A few stalls of a busy machine among
# the test samples of a short record cause that, and such a model still describes the effect of the action.
CLEAR_HOLD_OUT_R2 = 0.5

AT_RANDOM = "let the action change at random around the operating point"


def residual_checks(lagged: LagMoments, chosen: Candidate) -> list[Check]:
    """Return the tests of whiteness, of omitted actions and of drift, of the chosen structure fitted to all rows."""
    moments = lagged.total
    return [
        _whiteness(lagged, moments, chosen),
        _left_out(lagged, moments, chosen),
        _drift(lagged, chosen),
    ]


def hold_out_check(fit: Errors | None, test: Errors | None) -> Check:
    """Return the test of predictions of samples that were not fitted."""
    if test is None or test.r2 is None or fit is None or not test.pairs:
        # Short runs have no third block.
        return Check("hold_out", None, MIN_HOLD_OUT_R2)
    reason = None
    if test.r2 < MIN_HOLD_OUT_R2:
        reason = (
            f"the model predicts samples that were not fitted with an R² of {test.r2:.2g}, no better than their mean:"
            " take larger steps of the action, or more samples"
        )
    elif test.r2 < CLEAR_HOLD_OUT_R2 and fit.rmse and test.rmse is not None:
        ratio = (test.rmse / fit.rmse) ** 2
        if ratio > stats.f.ppf(1 - FALSE_ALARM, test.pairs, max(fit.pairs - 3, 1)) and ratio > 2:
            reason = (
                f"samples that were not fitted are predicted {math.sqrt(ratio):.2g} times worse than those that were:"
                " take more samples"
            )
    return Check("hold_out", test.r2, MIN_HOLD_OUT_R2, reason)


def _whiteness(lagged: LagMoments, moments: Moments, chosen: Candidate) -> Check:
    """Box and Pierce: Q = n Σ ρ_j², chi-squared with as many degrees as lags.

    Every row has all lags, so no sum is shorter than n and Ljung's correction for that is not needed. The order is
    not subtracted from the degrees of freedom, as it is for a series without an input: where the action moves the
    measurement, the fit removes almost nothing from the autocorrelation. With either correction, short records of
    correct models fail too often.
    """
    fit, lags, delay = chosen.fit, lagged.lags, chosen.delay
    now = residual_weights(fit, lags, delay)
    variance = float(now @ moments.covariance @ now)
    if variance <= 1e-12 * float(moments.covariance[0, 0]):
        return Check("whiteness", 1.0, FALSE_ALARM)
    before = np.array([residual_weights(fit, lags, delay, back) for back in range(1, lags.residuals + 1)])
    variances = np.einsum("ij,jk,ik->i", before, moments.covariance, before)
    rho = before @ moments.covariance @ now / np.sqrt(np.maximum(variances, 1e-12 * variance) * variance)
    statistic = moments.count * float((rho**2).sum())
    probability = float(stats.chi2.sf(statistic, lags.residuals))
    worst = float(np.abs(rho).max())
    reason = None
    if probability < FALSE_ALARM and worst > MAX_AUTOCORRELATION:
        reason = (
            f"the residuals are not white (Box-Pierce p {probability:.2g}, autocorrelation {worst:.2g}): the plant"
            " has more memory than the model, or its noise is coloured; identify with a higher order, or take samples"
            " less often"
        )
    return Check("whiteness", probability, FALSE_ALARM, reason)


def _left_out(lagged: LagMoments, moments: Moments, chosen: Candidate) -> Check:
    """Fisher's test whether actions at lags outside the model explain a part of the residuals."""
    lags = lagged.lags
    own = lags.regressors(chosen.delay, chosen.order)
    more = [*own, *(lags.u(lag) for lag in range(lags.actions + 1) if lags.u(lag) not in own)]
    without, few = residual_sum(moments, own, 0)
    with_all, many = residual_sum(moments, more, 0)
    added, freedom = many - few, moments.count - many - 1
    total = moments.count * float(moments.covariance[0, 0])
    if added < 1 or freedom < 1 or without <= 1e-12 * total:
        return Check("input_correlation", 1.0, FALSE_ALARM)
    noise = max(with_all / freedom, 1e-300)
    statistic = max(without - with_all, 0.0) / added / noise
    probability = float(stats.f.sf(statistic, added, freedom))
    spread = math.sqrt(max(float(moments.covariance[lags.u(0), lags.u(0)]), 0.0))
    effect = abs(float(chosen.fit.all_b.sum())) * spread
    left_out = math.sqrt(max(without - with_all - added * noise, 0.0) / moments.count)
    share = left_out / effect if effect else math.inf
    reason = None
    if probability < FALSE_ALARM and share > MAX_LEFT_OUT:
        reason = (
            f"the residuals depend on actions that the model leaves out (F test p {probability:.2g}, {share:.0%} of"
            " the action's effect): the delay or the order is wrong, or the actuator has play; identify with another"
            " --delay or --order, or sample less often"
        )
    return Check("input_correlation", probability, FALSE_ALARM, reason)


def _drift(lagged: LagMoments, chosen: Candidate) -> Check:
    """Chow's test whether both halves of the data have the same parameters; their offsets may differ."""
    columns = [*lagged.lags.regressors(chosen.delay, chosen.order), 0]
    halves = [selected(half, columns) for half in lagged.halves()]
    fits = [least_squares(half) for half in halves]
    size = 2 * chosen.order
    first, second = fits
    if first is None or second is None:
        unseen = "the action did not change in both halves of the data, so that a drift would not be seen"
        return Check("stationarity", None, MAX_DRIFT, f"{unseen}: {AT_RANDOM}")
    within = Moments(
        sum(half.count for half in halves),
        np.zeros(size + 1),
        np.sum([half.count * half.covariance for half in halves], axis=0) / sum(half.count for half in halves),
    )
    pooled, _ = residual_sum(within, range(size), size)
    apart = sum(fit.variance * fit.freedom for fit in (first, second))
    freedom = first.freedom + second.freedom
    if apart <= 1e-12 * within.count * float(within.covariance[size, size]):
        return Check("stationarity", 0.0, MAX_DRIFT)
    statistic = max(pooled - apart, 0.0) / size / (apart / freedom)
    probability = float(stats.f.sf(statistic, size, freedom))
    drift = _difference(first, second)
    reason = None
    if probability < FALSE_ALARM and drift > MAX_DRIFT:
        reason = (
            f"the plant changed while it was identified: the parameters of both halves differ by {drift:.0%}"
            f" (Chow test p {probability:.2g}); identify it while its load is steady"
        )
    return Check("stationarity", drift, MAX_DRIFT, reason)


def _difference(first: Fit, second: Fit) -> float:
    """Return the relative difference of the effects of the action, and of the memories."""
    rises = [float(fit.all_b.sum()) for fit in (first, second)]
    memories = [float(fit.all_a.sum()) for fit in (first, second)]
    mean = max(abs(rises[0] + rises[1]) / 2, 1e-300)
    return max(min(abs(rises[0] - rises[1]) / mean, 9.99), abs(memories[0] - memories[1]))
