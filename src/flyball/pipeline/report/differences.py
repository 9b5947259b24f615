"""The difference of two measured means: Welch's interval for it, and its wording."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import stats

from flyball.pipeline.report.formatting import is_higher_better, is_number, percent

CONFIDENCE = 0.90


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its standard error, if known."""

    mean: float
    # The standard error of the mean; None if there is no interval.
    error: float | None
    # Degrees of freedom of that error.
    freedom: float


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of another mean from the first one."""

    ratio: float
    # The interval of the difference, other minus first; None if one of them has no interval.
    low: float | None
    high: float | None

    @property
    def is_known(self) -> bool:
        """Whether there is an interval to decide by."""
        return self.low is not None and self.high is not None

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def estimate(mean: float, half_width: float | None, count: int) -> Estimate:
    """Return the estimate whose 90 % interval over `count` values is given."""
    if half_width is None or not is_number(half_width) or half_width < 0 or count < 2:
        return Estimate(mean, None, 0)
    return Estimate(mean, half_width / float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)), count - 1)


def difference(first: Estimate, other: Estimate) -> Difference:
    """Return the difference by Welch's method: the variances need not be equal."""
    ratio = other.mean / first.mean if first.mean else math.nan
    if first.error is None or other.error is None:
        return Difference(ratio, None, None)
    variance = first.error**2 + other.error**2
    gap = other.mean - first.mean
    if variance == 0:
        return Difference(ratio, gap, gap)
    freedom = variance**2 / (first.error**4 / first.freedom + other.error**4 / other.freedom)
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * math.sqrt(variance)
    return Difference(ratio, gap - reach, gap + reach)


def verdict(metric: str, found: Difference) -> tuple[str, str]:
    """Return the difference in words, and whether it is `good`, `bad` or neither (an empty text)."""
    if not found.is_known:
        return "cannot be judged: there is no interval", ""
    if not found.is_significant:
        return "no significant difference", ""
    assert found.low is not None
    is_more = found.low > 0
    size = f" by {percent(abs(found.ratio - 1))}" if is_number(found.ratio) else ""
    is_good = is_more == is_higher_better(metric)
    direction = "higher" if is_more else "lower"
    if is_good:
        return f"better: significantly {direction}{size}", "good"
    return f"worse: significantly {direction}{size}", "bad"
