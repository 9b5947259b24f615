"""How well a loop holds its setpoint: mean, standard deviation, settling and overshoot of noisy measurements.

Knows numbers only, not where they come from: simulations, the lab and the pipeline ask it alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from flyball.errors import ControlError

# Successive samples by whose mean settling is judged: a single one is mostly noise.
WINDOW_SAMPLES = 5
# A window is at the setpoint if its mean is within this part of it, ...
TOLERANCE_RATIO = 0.05
# ... or, for noisy loops, within three standard errors, but never further away than this: swinging is not noise.
MOST_TOLERANCE_RATIO = 0.10
# Share of a settled loop's windows that lie at the setpoint: noise lets one stray now and then.
INSIDE_RATIO = 0.95
# Standard deviations up to which a measurement beyond the setpoint is noise, not overshoot.
NOISE_BAND = 2.0


@dataclass(frozen=True, slots=True)
class LoopFigures:
    """Figures of one loop between two disturbances. See `assess` for what they mean."""

    mean: float
    std: float
    settling_samples: int | None
    overshoot: float
    mean_error: float
    # The number of the first sample that `mean` and `std` are of.
    steady_from: int


@dataclass(frozen=True, slots=True)
class Part:
    """Samples `start` until before `end`, between two disturbances, and how the loop did there."""

    start: int
    end: int
    setpoint: float
    figures: LoopFigures


def assess(measurements: Sequence[float], setpoint: float, *, warm_up: int = 0) -> LoopFigures:
    """Return the figures of a loop, the first measurement being the first that may differ from before.

    * `settling_samples`: how many samples passed before the loop was at its setpoint, 0 if it was from the beginning,
      None if it never was or did not stay. It is the least k such that the five windows of five samples that begin at
      k and after (those that are left, near the end) are all at the setpoint, and so are 95 % of all windows from k
      on. At the setpoint is a window whose mean is within 5 % of it, or within three standard errors where noise
      makes these more, but at most 10 %.
    * `mean`, `std`: of the steady state, that is, after twice the settling time and one window more, so that the last
      of the way there is over, or of the second half where that would leave less; never of the first `warm_up`
      samples, and NaN if there are no others. The standard deviation is that of a sample (n - 1). A fixed number of
      samples instead would still be on the way with a slow loop, and would waste those of a fast one; since half of
      the samples count in any case, noise cannot choose the ones that it likes.
    * `overshoot`: how far the measurement went beyond the setpoint, seen from where it began, until the loop had
      settled (without settling: at all), as a part of the setpoint. What lies within two standard deviations is noise
      and counts as 0.
    * `mean_error`: the mean distance from the setpoint over all samples, the way there included.

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
    """Return the figures of each part of a run: a part begins where the setpoint changes, and at each disturbance.

    `disturbed_at` are numbers of samples, the first being 0. The `warm_up` is that of the whole run; `steady_from`
    counts from the start of the part. Parts of fewer than two samples are left out.
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
