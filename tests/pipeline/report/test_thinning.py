"""Long series and fine histograms become small and stay true."""

from __future__ import annotations

import numpy as np
import pandas as pd

from flyball.pipeline.report.thinning import buckets_for, thin


def test_a_short_series_stays_as_it_is() -> None:
    found = thin(np.array([1.0, 3.0, 2.0]), most=10)
    assert found.is_whole
    assert found.mean.tolist() == [1, 3, 2]
    assert found.at.tolist() == [0, 1, 2]


def test_a_long_series_keeps_its_mean_and_its_extremes() -> None:
    values = np.ones(14_400)
    values[1234] = 50
    values[9876] = 0
    found = thin(values, most=600)
    assert len(found.at) == 600
    assert found.high.max() == 50
    assert found.low.min() == 0
    assert np.isclose(found.mean.mean(), values.mean())


def test_a_gap_stays_a_gap_and_means_are_weighted() -> None:
    values = np.array([1.0, np.nan, np.nan, np.nan, 2.0, 4.0])
    found = thin(values, most=3, weights=np.array([1.0, 0.0, 0.0, 0.0, 3.0, 1.0]))
    assert found.mean[0] == 1
    assert np.isnan(found.mean[1])
    assert found.mean[2] == 2.5
    assert (found.low[2], found.high[2]) == (2, 4)


def test_an_empty_series_stays_empty() -> None:
    assert len(thin(np.array([]), most=5).at) == 0


def _histogram(low: float, high: float, count: int) -> pd.DataFrame:
    bounds = np.geomspace(low, high, count + 1)
    return pd.DataFrame({"low_ms": bounds[:-1], "high_ms": bounds[1:], "requests": np.full(count, 2)})


def test_fine_histogram_gets_fewer_buckets_and_loses_no_request() -> None:
    fine = _histogram(0.01, 1000, 1000)
    found = buckets_for(fine, most=80).count(fine)
    assert len(found) <= 82
    assert found["requests"].sum() == 2000
    widths = (found["high_ms"] / found["low_ms"]).to_numpy()
    assert np.allclose(widths, widths[0])
    assert found["requests"].iloc[1:-1].nunique() == 1


def test_an_empty_bucket_is_a_zero_and_not_a_gap() -> None:
    sparse = _histogram(1, 100, 20).drop(index=range(5, 15))
    found = buckets_for(sparse, most=80).count(sparse)
    assert len(found) in (20, 21)
    assert (found["requests"] == 0).sum() >= 10


def test_a_bucket_that_begins_at_zero_has_a_place_on_a_logarithmic_axis() -> None:
    found = buckets_for(pd.DataFrame({"low_ms": [0.0, 1.0], "high_ms": [1.0, 2.0], "requests": [5, 5]}), most=80)
    counted = found.count(pd.DataFrame({"low_ms": [0.0], "high_ms": [1.0], "requests": [5]}))
    assert counted["requests"].sum() == 5
    assert (counted["low_ms"] > 0).all()
