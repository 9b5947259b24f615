"""90 % confidence intervals: by Student, by quantiles, and by batch means for correlated samples.

Plain numbers on the driver: independent of Spark and of the measured quantity.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

CONFIDENCE = 0.9

# With fewer batches their correlation can hardly be estimated, and Student's t widens the interval considerably.
FEWEST_BATCHES = 10

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean, half the width of its confidence interval, and the number of samples per batch.

    The half width is NaN for a single sample. `is_independent` is whether the batches passed the test.
    """

    mean: float
    half_width: float
    batch_size: int = 1
    is_independent: bool = True


def half_width(count: float, sd: float) -> float:
    """Return t[0.95; count - 1] · sd / √count: half the interval of the mean of independent samples, or NaN."""
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1) * sd / np.sqrt(count)) if count >= 2 else float("nan")


def student(values: Numbers) -> Interval:
    """Return the interval of the mean of independent samples; there must be at least one."""
    return Interval(float(values.mean()), half_width(values.size, _sd(values)))


def batch_means(sums: Numbers, counts: Numbers | None = None) -> Interval:
    """Return the interval of a mean over time, of successive samples that may be correlated.

    Samples are joined into batches of 1, 2, 4, ... until the batches are uncorrelated: until their autocorrelation at
    lag 1 is below the value that independent ones exceed by chance in 5 of 100 cases, 1.645 / √batches
    (R. Jain, The Art of Computer Systems Performance Analysis, 25.5.2; G. S. Fishman, Principles of Discrete Event
    Simulation, 1978). At least FEWEST_BATCHES batches remain, independent or not.

    With `counts`, sample k is the mean of `counts[k]` values with the sum `sums[k]`, and the mean is the one of all
    values: Σ sums / Σ counts. Its interval is that of a ratio, from the residuals sums - mean · counts.
    """
    weights = np.ones_like(sums) if counts is None else counts
    mean = float(sums.sum() / weights.sum())
    residuals = sums - mean * weights
    size = 1
    while not _is_independent(_batches(residuals, size)) and residuals.size // (2 * size) >= FEWEST_BATCHES:
        size *= 2
    batches = _batches(residuals, size)
    weight_of_batch = float(weights.sum()) / weights.size * size
    width = half_width(batches.size, _sd(batches)) / weight_of_batch
    return Interval(mean, width, size, _is_independent(batches))


def quantile_offsets(values: Numbers) -> tuple[float, float]:
    """Return the 5 % and 95 % quantiles minus the mean: ThorBangMQ's interval for asymmetric distributions."""
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]) - values.mean()
    return float(low), float(high)


def autocorrelation(values: Numbers) -> float:
    """Return the autocorrelation at lag 1; 0 for constant values."""
    centred = values - values.mean()
    variation = float(np.dot(centred, centred))
    return float(np.dot(centred[:-1], centred[1:])) / variation if variation > 0 else 0.0


def _is_independent(batches: Numbers) -> bool:
    return autocorrelation(batches) <= float(stats.norm.ppf(0.95)) / float(np.sqrt(batches.size))


def _batches(values: Numbers, size: int) -> Numbers:
    """Return the sums of batches; samples left over at the end are dropped."""
    count = values.size // size
    summed: Numbers = values[: count * size].reshape(count, size).sum(axis=1)
    return summed


def _sd(values: Numbers) -> float:
    return float(values.std(ddof=1)) if values.size >= 2 else float("nan")
