"""Differences are judged by Welch's interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from flyball.pipeline.report.differences import Difference, difference, estimate, verdict


def _of(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float, int]:
    half_width = stats.t.ppf(0.95, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean()), float(half_width), len(values)


def test_the_interval_is_that_of_welch() -> None:
    random = np.random.default_rng(1)
    first, other = random.normal(100, 5, 6), random.normal(110, 20, 9)
    expected = stats.ttest_ind(other, first, equal_var=False).confidence_interval(0.9)
    found = difference(estimate(*_of(first)), estimate(*_of(other)))
    assert found.low == pytest.approx(expected.low)
    assert found.high == pytest.approx(expected.high)
    assert found.ratio == pytest.approx(other.mean() / first.mean())


def test_without_an_interval_nothing_is_judged() -> None:
    found = difference(estimate(100, math.nan, 3), estimate(200, 1, 3))
    assert not found.is_known
    assert "cannot be judged" in verdict("throughput", found)[0]


@pytest.mark.parametrize(
    ("metric", "interval", "words", "mood"),
    [
        ("throughput", (5, 15), "better: significantly higher by 10 %", "good"),
        ("response", (5, 15), "worse: significantly higher by 10 %", "bad"),
        ("throughput", (-5, 15), "no significant difference", ""),
    ],
)
def test_the_verdict_says_what_the_difference_means(
    metric: str, interval: tuple[float, float], words: str, mood: str
) -> None:
    assert verdict(metric, Difference(1.1, *interval)) == (words, mood)


def test_lower_response_is_better() -> None:
    assert verdict("response", Difference(0.5, -10, -5)) == ("better: significantly lower by 50 %", "good")


def test_equal_means_without_any_spread_do_not_differ() -> None:
    assert not difference(estimate(5, 0, 3), estimate(5, 0, 3)).is_significant
