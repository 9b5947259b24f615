"""Makes long series and fine histograms small enough for a page, without hiding their extremes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Thinned:
    """A series in equal parts of time: each with its middle, mean, and smallest and largest value."""

    at: Floats
    mean: Floats
    low: Floats
    high: Floats

    @property
    def is_whole(self) -> bool:
        """Whether each point is one value of the series, so that there is no envelope to show."""
        return bool(np.array_equal(self.low, self.high))


def thin(values: Floats, most: int) -> Thinned:
    """Return a series of one value per second with at most `most` points."""
    count = min(len(values), most)
    if count == 0:
        return Thinned(values, values, values, values)
    bounds = np.linspace(0, len(values), count + 1).astype(int)
    starts = bounds[:-1]
    sizes = np.diff(bounds)
    return Thinned(
        at=starts + (sizes - 1) / 2,
        mean=np.add.reduceat(values, starts) / sizes,
        low=np.minimum.reduceat(values, starts),
        high=np.maximum.reduceat(values, starts),
    )


def coarsen(histogram: pd.DataFrame, most: int) -> pd.DataFrame:
    """Return a histogram (low_ms, high_ms, requests) with at most `most` buckets, neighbours put together."""
    ordered = histogram.groupby(["low_ms", "high_ms"], as_index=False)["requests"].sum().sort_values("low_ms")
    if len(ordered) <= most:
        return ordered
    group = np.arange(len(ordered)) * most // len(ordered)
    return ordered.groupby(group).agg(
        low_ms=("low_ms", "min"), high_ms=("high_ms", "max"), requests=("requests", "sum")
    )
