"""Reduces long series and fine histograms to a size for a page, without hiding their extremes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Thinned:
    """A series in equal intervals: each with its middle, mean, and smallest and largest value."""

    at: Floats
    mean: Floats
    low: Floats
    high: Floats

    @property
    def is_whole(self) -> bool:
        """Whether each point is one value of the series, so that there is no envelope to show."""
        return bool(np.array_equal(self.low, self.high, equal_nan=True))


def thin(values: Floats, most: int, weights: Floats | None = None, point_s: int = 1) -> Thinned:
    """Return a series of one value per `point_s` seconds with at most `most` points.

    A mean weights each value with its weight. NaN is a gap.
    """
    count = min(len(values), most)
    if count == 0:
        return Thinned(values, values, values, values)
    bounds = np.linspace(0, len(values), count + 1).astype(int)
    starts = bounds[:-1]
    known = ~np.isnan(values)
    counted = known * (np.ones(len(values)) if weights is None else weights)
    totals = np.add.reduceat(counted, starts)
    sums = np.add.reduceat(np.nan_to_num(values) * counted, starts)
    return Thinned(
        at=(starts + (np.diff(bounds) - 1) / 2) * point_s,
        mean=np.divide(sums, totals, out=np.full(count, np.nan), where=totals > 0),
        low=np.fmin.reduceat(values, starts),
        high=np.fmax.reduceat(values, starts),
    )


@dataclass(frozen=True, slots=True)
class Buckets:
    """Logarithmic buckets of equal width for all histograms of a plot, so that their heights can be compared."""

    # The width of a bucket, as a difference of logarithms.
    step: float

    def count(self, histogram: pd.DataFrame) -> pd.DataFrame:
        """Return low_ms, high_ms and requests in these buckets, from the first to the last non-empty one."""
        sums = histogram["requests"].groupby(self._places(histogram)).sum()
        places = np.arange(sums.index.min(), sums.index.max() + 1)
        return pd.DataFrame(
            {
                "low_ms": np.exp(places * self.step),
                "high_ms": np.exp((places + 1) * self.step),
                "requests": sums.reindex(places, fill_value=0).to_numpy(),
            }
        )

    def _places(self, histogram: pd.DataFrame) -> Floats:
        return np.floor(_middles(histogram) / self.step)


def buckets_for(histogram: pd.DataFrame, most: int) -> Buckets:
    """Return at most about `most` buckets for a histogram (low_ms, high_ms, requests), none finer than its own."""
    middles = _middles(histogram)
    bounded = histogram[histogram["low_ms"] > 0]
    finest = float(np.median(np.log(bounded["high_ms"] / bounded["low_ms"]))) if len(bounded) else 1.0
    needed = (middles.max() - middles.min()) / most
    # An integer number of the table's own buckets: otherwise some would contain more of them than others.
    return Buckets(finest * max(1, int(np.ceil(needed / finest))))


def _middles(histogram: pd.DataFrame) -> Floats:
    """Return the logarithm of the middle of each bucket; one from zero is assumed to start at half its upper
    bound.
    """
    high = histogram["high_ms"].to_numpy(dtype=float)
    low = histogram["low_ms"].to_numpy(dtype=float)
    low = np.where(low > 0, low, high / 2)
    middles: Floats = (np.log(low) + np.log(high)) / 2
    return middles
