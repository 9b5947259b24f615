"""Performance of a loop: mean, standard deviation, settling and overshoot of noisy measurements.

Works on numbers from any source: simulations, the lab and the pipeline all use it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from flyball.errors import ControlError

# Successive samples whose mean decides about settling: a single one is mostly noise.
WINDOW_SAMPLES = 5
# A window is at the setpoint if its mean is within this part of it, ...
TOLERANCE_RATIO = 0.05
# ... or, for noisy loops, within three standard errors, but at most this part: oscillation is not noise.
MOST_TOLERANCE_RATIO = 0.10
# Share of a settled loop's windows at the setpoint: noise makes one deviate occasionally.
INSIDE_RATIO = 0.95
# Standard deviations up to which a measurement beyond the setpoint is noise, not overshoot.
NOISE_BAND = 2.0


@dataclass(frozen=True, slots=True)
class LoopFigures:
    """Figures of one loop between two disturbances, defined in `assess`."""

    mean: float
    std: float
    settling_samples: int | None
    overshoot: float
    mean_error: float
    # Index of the first sample in `mean` and `std`.
    steady_from: int


@dataclass(frozen=True, slots=True)
class Part:
    """The samples from `start` until before `end`, between two disturbances, and the loop's figures for them."""

    start: int
    end: int
    setpoint: float
    figures: LoopFigures


def assess(measurements: Sequence[float], setpoint: float, *, warm_up: int = 0) -> LoopFigures:
    """Return the figures of a loop; the first measurement is the first one after the disturbance.

    * `settling_samples`: the number of samples before the loop reached its setpoint and stayed there; 0 if it
      started there, None if it never reached it or left it again. It is the smallest k such that the five
      windows of five samples that start at k and after (fewer near the end) are all at the setpoint, and so are 95 %
      of all windows from k on. A window is at the setpoint if its mean is within 5 % of it, or, where noise makes
      this more, within three standard errors, but at most 10 %.
    * `mean`, `std`: of the steady state, which starts after twice the settling time plus one window, or with the
      second half of the samples where that would leave fewer; never of the first `warm_up` samples, and NaN if no
      others exist. The standard deviation is that of a sample (n - 1). A fixed number of samples would include the
      transient of a slow loop, and waste samples of a fast one. Since at least half of the samples count, noise
      cannot select a favourable part.
    * `overshoot`: the largest excursion beyond the setpoint, seen from the first measurement, until the loop settled
      (without settling: at any time), as a part of the setpoint. An excursion within two standard deviations is noise
      and counts as 0.
    * `mean_error`: the mean distance from the setpoint over all samples, including the transient.

    Raises ControlError if there are fewer than two measurements, or the setpoint is not above 0.
    """
    if len(measurements) < 2:
        raise ControlError(f"a loop is judged by two samples or more, not {len(measurements)}")
    if not (math.isfinite(setpoint) and setpoint > 0):
        raise ControlError(f"a loop is judged against a setpoint above 0, not {setpoint}")
    half = len(measurements) // 2
    settling = _settling_samples(measurements, setpoint, _std(measurements[half:]))
    begin = half if settling is None else min(2 * settling + WINDOW_SAMPLES, half)
    steady_from = min(max(begin, warm_up), len(measurements))
    steady = measurements[steady_from:]
    return LoopFigures(
        mean=sum(steady) / len(steady) if steady else math.nan,
        std=_std(steady) if steady else math.nan,
        settling_samples=settling,
        overshoot=_overshoot(measurements, setpoint, settling, _std(measurements[begin:])),
        mean_error=sum(abs(y - setpoint) for y in measurements) / len(measurements),
        steady_from=steady_from,
    )


def assess_parts(
    measurements: Sequence[float], setpoints: Sequence[float], disturbed_at: Iterable[int] = (), *, warm_up: int = 0
) -> list[Part]:
    """Return the figures of each part of a run: a part starts where the setpoint changes, and at each disturbance.

    `disturbed_at` are indices of samples, the first being 0. `warm_up` counts from the start of the run;
    `steady_from` counts from the start of the part. Parts of fewer than two samples are left out.
    """
    if len(measurements) != len(setpoints):
        raise ControlError(f"{len(measurements)} measurements and {len(setpoints)} setpoints do not belong together")
    count = len(measurements)
    changes = {k for k in range(1, count) if setpoints[k] != setpoints[k - 1]}
    bounds = [0, *sorted(k for k in changes | set(disturbed_at) if 0 < k < count), count]
    return [
        Part(start, end, setpoints[start], assess(measurements[start:end], setpoints[start], warm_up=warm_up - start))
        for start, end in pairwise(bounds)
        if end - start >= 2
    ]


def _std(measurements: Sequence[float]) -> float:
    if len(measurements) < 2:
        return 0.0
    mean = sum(measurements) / len(measurements)
    return math.sqrt(sum((y - mean) ** 2 for y in measurements) / (len(measurements) - 1))


def _settling_samples(measurements: Sequence[float], setpoint: float, std: float) -> int | None:
    window = min(WINDOW_SAMPLES, len(measurements))
    three_errors = 3 * std / math.sqrt(window)
    tolerance = min(max(TOLERANCE_RATIO * setpoint, three_errors), MOST_TOLERANCE_RATIO * setpoint)
    sums = [0.0, *accumulate(measurements)]
    is_inside = [
        abs((sums[k + window] - sums[k]) / window - setpoint) <= tolerance
        for k in range(len(measurements) - window + 1)
    ]
    inside_from = [0, *accumulate(reversed(is_inside))][::-1]
    for k in range(len(is_inside)):
        left = len(is_inside) - k
        if inside_from[k] >= INSIDE_RATIO * left and all(is_inside[k : k + WINDOW_SAMPLES]):
            return k
    return None


def _overshoot(measurements: Sequence[float], setpoint: float, settling: int | None, std: float) -> float:
    transient = measurements if settling is None else measurements[: settling + WINDOW_SAMPLES]
    direction = 1 if measurements[0] <= setpoint else -1
    beyond = max(direction * (y - setpoint) for y in transient)
    return beyond / setpoint if beyond > NOISE_BAND * std else 0.0
