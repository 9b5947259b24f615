"""Moments of lagged samples are additive, survive storage, and keep apart what happened when."""

from __future__ import annotations

import json

import numpy as np
import pytest

from flyball.control.lagged import MAX_SEGMENTS, LagMoments, Lags, lagged
from flyball.control.plant import Plant
from flyball.control.signals import random_steps
from flyball.control.structure import choose
from flyball.errors import ControlError

from .plants import Numbers, measured

PLANT = Plant(a=0.6, b=30.0, delay=3)
LAGS = Lags()


def samples(seed: int, count: int = 300) -> tuple[Numbers, Numbers]:
    actions = random_steps(1, 22, count, seed=seed)
    return measured(PLANT, actions, noise=20, seed=seed), np.array(actions)


def test_merged_moments_are_those_of_all_samples() -> None:
    (y1, u1), (y2, u2) = samples(1), samples(2)
    merged = LagMoments.merge(lagged(y1, u1), lagged(y2, u2))
    whole = lagged(np.concatenate([y1, y2]), np.concatenate([u1, u2]), breaks=[300])
    assert merged.total.count == whole.total.count == 2 * (300 - LAGS.reach - 1)
    np.testing.assert_allclose(merged.total.means, whole.total.means)
    np.testing.assert_allclose(merged.total.covariance, whole.total.covariance)
    assert merged.changes == whole.changes


def test_merging_in_parts_gives_the_same_structure() -> None:
    parts = [lagged(*samples(seed, 100)) for seed in range(6)]
    at_once = LagMoments.merge(*parts)
    one_by_one = parts[0]
    for part in parts[1:]:
        one_by_one = LagMoments.merge(one_by_one, part)
    for merged in (at_once, one_by_one):
        assert len(merged.segments) <= MAX_SEGMENTS
        found = choose(merged)
        assert found is not None
        assert (found.best.delay, found.best.order) == (3, 1)
    np.testing.assert_allclose(at_once.total.covariance, one_by_one.total.covariance)


def test_merging_keeps_the_order_of_time() -> None:
    first, second = lagged(*samples(1)), lagged(*samples(2))
    halves = LagMoments.merge(first, second).halves()
    np.testing.assert_allclose(halves[0].means, first.total.means)
    np.testing.assert_allclose(halves[1].means, second.total.means)


def test_lag_moments_survive_storage() -> None:
    found = lagged(*samples(1))
    read = LagMoments.from_json(json.loads(json.dumps(found.to_json())))
    assert read.lags == found.lags
    assert read.changes == found.changes
    np.testing.assert_array_equal(read.total.covariance, found.total.covariance)


def test_moments_with_other_lags_are_refused() -> None:
    y, u = samples(1)
    with pytest.raises(ControlError, match="different lags cannot be merged"):
        LagMoments.merge(lagged(y, u), lagged(y, u, lags=Lags.for_structure(9, 1)))
    with pytest.raises(ControlError, match="version 7"):
        LagMoments.from_json({**lagged(y, u).to_json(), "version": 7})
    with pytest.raises(ControlError, match="cannot be read"):
        LagMoments.from_json({"version": 1, "lags": {"measurements": 1, "actions": 1}})


def test_a_row_holds_the_samples_that_its_columns_name() -> None:
    y, u = np.arange(100.0), 1000 + np.arange(100.0)
    total = lagged(y, u).total
    middle = (LAGS.reach + 98) / 2
    assert total.means[LAGS.y(-1)] == pytest.approx(middle + 1)
    assert total.means[LAGS.y(LAGS.measurements)] == pytest.approx(middle - LAGS.measurements)
    assert total.means[LAGS.u(LAGS.actions)] == pytest.approx(1000 + middle - LAGS.actions)


def test_runs_shorter_than_the_lags_give_no_rows() -> None:
    y, u = samples(1, 40)
    assert lagged(y, u, breaks=[10, 20, 30]).total.count == 0
