"""Percentiles of response times with their 90 % intervals.

Over several repetitions an interval is by Student, of the repetitions' percentiles. Within a single run it is between
two order statistics: read from the histogram, at ranks determined by the number of requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from flyball.pipeline.intervals import CONFIDENCE, half_width
from flyball.pipeline.report.chapters import Chapter
from flyball.pipeline.report.formatting import ALL, NOTHING, amount, is_number, student

# The columns of `measures` in every table of latencies.
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
# Explanation of the notation; shown once on the page.
NOTATION = "9.0 [8.5, 9.7] is a percentile of a single run between two order statistics"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Percentile:
    """A percentile and its interval: both ends are NaN if unknown."""

    value: float
    low: float
    high: float
    # The number of runs that it is the mean of.
    repetitions: int = 1

    @property
    def text(self) -> str:
        """The papers' `10.0 ± 5.0` over repetitions, `10.0 [8.0, 12.0]` within a run."""
        if not is_number(self.value):
            return NOTHING
        if not (is_number(self.low) and is_number(self.high)):
            return amount(self.value)
        if self.repetitions > 1:
            return student(self.value, self.high - self.value)
        # From 100 on decimals are below the width of the interval.
        decimals = 0 if self.value >= 100 else None
        return f"{amount(self.value, decimals)} [{amount(self.low, decimals)}, {amount(self.high, decimals)}]"


# The percentiles of one cell and kind, by the names in PERCENTILES.
Percentiles = Mapping[str, Percentile]


def percentiles_of(chapter: Chapter, source: str, metric: str = "response") -> dict[tuple[str, str], Percentiles]:
    """Return the percentiles of a metric by cell and kind of request, as measured by `source`."""
    rows = chapter.tables["measures"]
    rows = rows[(rows["metric"] == metric) & (rows["source"] == source)]
    return {
        (str(cell), str(kind)): {name: _percentile(chapter, own, name) for name in PERCENTILES}
        for (cell, kind), own in rows.groupby(["cell", "kind"], sort=False)
    }


def texts_of(found: Percentiles | None) -> list[str]:
    """Return the texts of a row's percentiles; dashes if there are none."""
    return [found[name].text if found else NOTHING for name in PERCENTILES]


def _percentile(chapter: Chapter, own: pd.DataFrame, name: str) -> Percentile:
    values = own[name].astype(float).to_numpy()
    if len(values) > 1:
        mean, width = float(values.mean()), half_width(len(values), float(values.std(ddof=1)))
        return Percentile(mean, mean - width, mean + width, len(values))
    row = own.iloc[0]
    low, high = (math.nan, math.nan)
    if row["metric"] == "response" and is_number(float(values[0])):
        low, high = _order_statistics(chapter, row, PERCENTILES[name])
    # The interval is limited by the histogram's buckets, which are coarser than the percentile.
    return Percentile(float(values[0]), min(low, float(values[0])), max(high, float(values[0])))


def _order_statistics(chapter: Chapter, row: pd.Series[Any], share: float) -> tuple[float, float]:
    """Return the ends of the interval of a quantile, after W. J. Conover, Practical Nonparametric Statistics, 3.2."""
    rows = chapter.tables["histogram"]
    rows = rows[(rows["run"] == row["run"]) & (rows["source"] == row["source"]) & (rows["requests"] > 0)]
    # Where the table has no rows for all kinds together, their sum is the same.
    if row["kind"] != ALL or ALL in set(rows["kind"]):
        rows = rows[rows["kind"] == row["kind"]]
    count = _independent_requests(chapter, row)
    if rows.empty or count < 1:
        return math.nan, math.nan
    doubt = float(stats.norm.ppf((1 + CONFIDENCE) / 2)) * math.sqrt(share * (1 - share) / count)
    low, high = _quantiles(rows, [max(share - doubt, 0.0), min(share + doubt, 1.0)])
    return float(low), float(high)


def _independent_requests(chapter: Chapter, row: pd.Series[Any]) -> float:
    """Return the effective number of requests in the records: (Σw)²/Σw² for a sample, all if all were recorded."""
    rows = chapter.tables["series"]
    rows = rows[(rows["run"] == row["run"]) & (rows["source"] == row["source"])]
    rows = rows if row["kind"] == ALL else rows[rows["kind"] == row["kind"]]
    if "weight2" not in rows or not rows["weight2"].sum():
        return float(row["n"])
    return float(rows["requests"].sum()) ** 2 / float(rows["weight2"].sum())


def _quantiles(rows: pd.DataFrame, shares: list[float]) -> Iterator[float]:
    """Yield quantiles of a histogram; times are assumed to be uniformly distributed within a bucket."""
    buckets = rows.groupby(["low_ms", "high_ms"])["requests"].sum().reset_index().sort_values("low_ms")
    ends: Floats = np.concatenate([[0.0], buckets["requests"].cumsum().to_numpy(dtype=float)])
    for share in shares:
        rank = share * ends[-1]
        place = min(int(np.searchsorted(ends[1:], rank)), len(buckets) - 1)
        bucket = buckets.iloc[place]
        part = (rank - ends[place]) / float(bucket["requests"])
        yield float(bucket["low_ms"] + part * (bucket["high_ms"] - bucket["low_ms"]))
