"""Samples reduced to moments lose nothing that least squares needs, however they were divided."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.control.moments import MOST_RANGES, edges_of, merged, moments_of, nothing, ranges_of


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=5).filter(any), st.integers(0, 99))
def test_moments_of_parts_merge_to_those_of_the_whole(sizes: list[int], seed: int) -> None:
    rows = np.random.default_rng(seed).normal(100, 10, (5, sum(sizes)))
    cuts = np.cumsum(sizes)[:-1]
    whole = merged([moments_of(part) for part in np.split(rows, cuts, axis=1)])
    assert whole.count == sum(sizes)
    assert whole.means == pytest.approx(rows.mean(axis=1))
    assert whole.covariance == pytest.approx(np.atleast_2d(np.cov(rows, bias=True)))


def test_nothing_merged_with_nothing_is_nothing() -> None:
    assert merged([nothing(), nothing()]).count == 0


def test_ranges_of_actions_have_about_as_many_pairs_each_and_do_not_overlap() -> None:
    columns = np.random.default_rng(1).normal(0, 1, (3, 2400))
    ranges = ranges_of(columns, np.arange(2400) % 3 == 0)
    assert len(ranges) == MOST_RANGES
    assert all(one.high < other.low for one, other in pairwise(ranges))
    assert {int(one.fit.count + one.test.count) for one in ranges} <= {99, 100, 101}
    assert sum(one.test.count for one in ranges) == 800


def test_few_levels_of_action_are_ranges_of_their_own() -> None:
    columns = np.array([np.arange(90.0), np.repeat([1.0, 2.0, 5.0], 30), np.arange(90.0)])
    ranges = ranges_of(columns, np.zeros(90, dtype=bool))
    assert [(one.low, one.high, one.fit.count) for one in ranges] == [(1, 1, 30), (2, 2, 30), (5, 5, 30)]


def test_few_pairs_make_few_ranges() -> None:
    values = [float(value) for value in range(MOST_RANGES)]
    assert edges_of(values, 9) == []
    assert edges_of(values, 30) == [8, 16]
    assert len(edges_of(values, 10_000)) == MOST_RANGES - 1
