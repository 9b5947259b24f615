"""Intervals hold the true mean as often as they promise, and scale with what they measure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.pipeline.intervals import Interval, Numbers, autocorrelation, batch_means, quantile_offsets, student

SIMULATIONS = 400

samples = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=60).map(np.array)


def test_the_interval_by_student_is_that_of_the_textbook() -> None:
    """32 values with the mean 3.9 and the deviation 0.95 (R. Jain, example 13.2): t[0.95; 31] is 1.6955."""
    spread = np.array([-1.0, 1.0] * 16)
    found = student(3.9 + spread * 0.95 / spread.std(ddof=1))
    assert found.mean == pytest.approx(3.9)
    assert found.half_width == pytest.approx(1.6955 * 0.95 / np.sqrt(32), rel=1e-3)


def test_one_value_has_no_interval() -> None:
    assert np.isnan(student(np.array([5.0])).half_width)
    assert np.isnan(batch_means(np.array([5.0])).half_width)


def test_an_interval_by_student_holds_the_mean_nine_times_in_ten() -> None:
    random = np.random.default_rng(1)
    assert coverage(lambda: random.normal(10.0, 3.0, 20), student, 10.0) == pytest.approx(0.9, abs=0.04)


def test_batches_cover_what_student_misses_in_correlated_samples() -> None:
    random = np.random.default_rng(2)

    def correlated() -> Numbers:
        return follow(random, 0.9, 2_000)

    assert coverage(correlated, student, 0.0) < 0.5
    assert coverage(correlated, batch_means, 0.0) == pytest.approx(0.87, abs=0.05)


def test_independent_samples_stay_apart() -> None:
    random = np.random.default_rng(3)
    sizes = [batch_means(random.normal(size=100)).batch_size for _ in range(100)]
    assert sizes.count(1) >= 85


def test_the_batches_that_are_used_are_hardly_correlated() -> None:
    values = follow(np.random.default_rng(4), 0.9, 5_000)
    found = batch_means(values)
    batches = values[: values.size // found.batch_size * found.batch_size].reshape(-1, found.batch_size).mean(axis=1)
    assert found.is_independent
    assert autocorrelation(values) > 0.85
    assert autocorrelation(batches) < 0.2


def test_a_trend_is_reported_as_dependent() -> None:
    assert not batch_means(np.arange(100.0)).is_independent


def test_a_mean_of_means_weighs_them_by_their_counts() -> None:
    found = batch_means(sums=np.array([10.0, 90.0]), counts=np.array([1.0, 9.0]))
    assert found == Interval(10.0, 0.0)


def test_an_interval_of_a_ratio_holds_it_nine_times_in_ten() -> None:
    random = np.random.default_rng(5)
    hits = 0
    for _ in range(SIMULATIONS):
        counts = random.poisson(50, 60).astype(float)
        found = batch_means(np.array([random.exponential(2.0, int(count)).sum() for count in counts]), counts)
        hits += abs(found.mean - 2.0) <= found.half_width
    assert hits / SIMULATIONS == pytest.approx(0.9, abs=0.05)


def test_quantiles_are_given_as_distances_from_the_mean() -> None:
    assert quantile_offsets(np.arange(101.0)) == pytest.approx((-45.0, 45.0))


@given(samples, st.floats(0.001, 1_000), st.floats(-1e6, 1e6))
def test_intervals_scale_and_shift_with_their_samples(values: Numbers, scale: float, shift: float) -> None:
    size = float(np.abs(values).max() + abs(shift)) * scale + 1.0
    for interval in (student, batch_means):
        before, after = interval(values), interval(values * scale)
        assert after.half_width == pytest.approx(before.half_width * scale, rel=1e-6, abs=1e-9 * size)
        assert interval(values + shift).mean == pytest.approx(before.mean + shift, abs=1e-9 * size + 1e-6)
    assert quantile_offsets(values * scale) == pytest.approx(
        tuple(offset * scale for offset in quantile_offsets(values)), abs=1e-9 * size
    )


def coverage(draw: Callable[[], Numbers], interval: Callable[[Numbers], Interval], mean: float) -> float:
    """How often the interval of drawn samples holds their true mean."""
    found = [interval(draw()) for _ in range(SIMULATIONS)]
    return sum(abs(one.mean - mean) <= one.half_width for one in found) / SIMULATIONS


def follow(random: np.random.Generator, share: float, count: int) -> Numbers:
    """A series in which each value keeps `share` of the one before, with the mean 0."""
    values = random.normal(size=count)
    values[0] /= np.sqrt(1 - share**2)
    for number in range(1, count):
        values[number] += share * values[number - 1]
    return values
