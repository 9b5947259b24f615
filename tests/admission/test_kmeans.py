"""Costs are divided into as many classes as there are gaps between them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from operator import itemgetter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.admission.kmeans import LEAST_SILHOUETTE, Division, Numbers, best_partitions, divide, silhouette


def humps(*costs: float, spread: float = 0.2, each: int = 200) -> Numbers:
    """ln costs that scatter normally about some."""
    random = np.random.default_rng(1)
    return np.unique(np.concatenate([math.log(cost) + random.normal(0, spread, each) for cost in costs]))


def divided(places: Numbers, most: int = 4, present: int = 1) -> Division:
    return divide(places, np.ones_like(places), np.exp(places), most, present)


@pytest.mark.parametrize("costs", [(1, 30), (1, 30, 1000), (1, 20, 400, 8000)])
def test_each_hump_is_a_class(costs: tuple[float, ...]) -> None:
    found = divided(humps(*costs))
    assert len(found.bounds) == len(costs) - 1
    for low, bound, high in zip(costs, found.bounds, costs[1:], strict=False):
        assert math.log(low) < bound < math.log(high)
    assert found.reason is None


def test_one_hump_is_one_class() -> None:
    found = divided(humps(5, spread=0.6))
    assert found.bounds == ()
    assert found.reason is not None
    assert found.reason.startswith("no clear classes: the best silhouette is 0.7")


def test_costs_without_a_gap_that_differ_widely_are_two_classes() -> None:
    found = divided(humps(*(1.8**number for number in range(7)), spread=0.4))
    assert max(found.silhouettes) < LEAST_SILHOUETTE
    assert len(found.bounds) == 1


def test_equal_costs_are_one_class() -> None:
    assert divided(np.array([1.0])) == Division(reason="all requests cost the same")


def test_there_are_no_more_classes_than_asked_for() -> None:
    assert len(divided(humps(1, 20, 400, 8000), most=2).bounds) == 1


def test_few_but_dear_requests_are_seen() -> None:
    places = humps(1)
    found = divide(
        np.append(places, math.log(3000)),
        np.append(np.full(len(places), 10.0), 1.0),
        np.append(10 * np.exp(places), 3000.0),
        most=4,
    )
    assert len(found.bounds) == 1


def test_classes_that_there_are_stay_where_they_would_just_not_be_made() -> None:
    places = humps(1, 4, spread=0.5)
    assert divided(places).bounds == ()
    assert len(divided(places, present=2).bounds) == 1
    assert divided(humps(5, spread=0.6, each=400), present=2).bounds == ()


def test_classes_that_there_are_give_way_to_clearly_better_ones() -> None:
    assert len(divided(humps(1, 30, 1000), present=2).bounds) == 2
    assert len(divided(humps(1, 30), present=3).bounds) == 1


def test_all_in_their_own_place_fit_perfectly() -> None:
    assert silhouette(np.array([0.0, 3.0]), np.ones(2), np.array([0, 1])) == 1.0


def test_a_division_in_the_wrong_place_fits_badly() -> None:
    places = np.array([0.0, 0.1, 3.0, 3.1])
    right, wrong = (silhouette(places, np.ones(4), np.array([0, start])) for start in (2, 1))
    assert right > 0.99
    assert wrong < 0.5


POINTS = st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 9)), min_size=4, max_size=9, unique_by=itemgetter(0))


@given(POINTS, st.integers(2, 4))
def test_no_other_division_has_less_spread(points: list[tuple[int, int]], most: int) -> None:
    """All divisions are tried."""
    places = np.array(sorted(place for place, _ in points), float)
    weights = np.array([weight for _, weight in points], float)
    best = [_least_spread(places, weights, count) for count in range(2, most + 1)]
    found = [_spread(places, weights, starts) for starts in best_partitions(places, weights, most)]
    assert found == pytest.approx(best, abs=1e-9)


def _least_spread(places: Numbers, weights: Numbers, count: int) -> float:
    return min(
        _spread(places, weights, (0, *cuts)) for cuts in itertools.combinations(range(1, len(places)), count - 1)
    )


def _spread(places: Numbers, weights: Numbers, starts: Iterable[int]) -> float:
    ends = [*list(starts)[1:], len(places)]
    total = 0.0
    for start, end in zip(starts, ends, strict=True):
        own, weight = places[start:end], weights[start:end]
        total += float(np.sum(weight * (own - np.average(own, weights=weight)) ** 2))
    return total
