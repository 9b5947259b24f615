"""The proof that a law stabilizes a plant: poles and margins over all plants that the data allow.

The result is a `Certificate`, which is stored with the gains.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from flyball.control.certificate import Certificate
from flyball.control.laws import Integral, Law, Scheduled, law_to_json
from flyball.control.limits import Limits
from flyball.control.margins import (
    closed_loop_poles,
    delay_margin,
    delay_margin_samples,
    gain_limits,
    gain_margin,
    largest_poles,
    loops_of,
)
from flyball.control.model_free import certify_model_free, loop_gain
from flyball.control.plant import Plant
from flyball.control.uncertainty import confidence_set
from flyball.errors import ControlError

# First and last action of a straight piece of a curve, and its slope.
Segment = tuple[float, float, float]


def certify(
    law: Law[Any], plant: Plant | None, limits: Limits | None = None, *, smoothing_share: float | None = None
) -> Certificate:
    """Return the certificate of a law on a plant, over the whole confidence set of the plant's parameters.

    The largest pole, the gain margin and the delay margin are the worst of the estimate, of 24 plants around it on
    the boundary of the set, and of as many at one and at two thirds of the way there. The boundary alone would
    suffice for P and I laws, whose poles depend on a and b in one direction; a pair of complex poles may be worst
    inside. Between these plants margins change little: they are continuous, and the gain margin covers changes of b
    anyway.

    Laws that need no model are verified without one if `plant` is None: see `model_free` for the plants that this
    covers. With a plant they are treated as integral action on a plant with this memory and delay and a static gain
    of 1, with the largest loop gain that the law can have; an elasticity above 1, which a curve that is not concave
    may have at its operating point, counts. For a scheduled law the gain is the largest ratio of the plant's slope to
    the slope that the law assumes, over the plant's measured curve within the limits, or over its linear range. Such
    laws change their gain as they run; on plants with memory this proves each gain that they can have, not fast
    changes of the gain.

    `smoothing_share` is that of the controller's filter of measurements. Raises ControlError for a law whose gains
    mean nothing without a plant, and for a plant on which the action has no effect.
    """
    if plant is None:
        if smoothing_share is not None:
            raise ControlError("how much a filter delays a loop depends on the plant: give its model")
        return certify_model_free(law)
    if not any(plant.all_b):
        raise ControlError("the action has no effect on this plant (b is 0), so no law can hold it")
    if loop_gain(law) is None:
        return _verified(law, law, plant, confidence_set(plant), smoothing_share)
    equivalent = Integral(_worst_loop_gain(law, plant, limits))
    plants = [_with_unit_gain(each) for each in confidence_set(plant)]
    return _verified(law, equivalent, plant, plants, smoothing_share)


def describe(plant: Plant) -> str:
    """Return the plant as an equation, with its uncertainty."""
    terms = [(a, f" y({_time(-k)})") for k, a in enumerate(plant.all_a)]
    terms += [(b, f" u({_time(-plant.delay - k)})") for k, b in enumerate(plant.all_b)]
    text = "".join(
        f" {'-' if number < 0 else '+'} {abs(number):.3g}{name}"
        for number, name in [*terms, (plant.offset, "")]
        if number
    )
    equation = f"y(k+1) ={text.removeprefix(' +')}"
    return equation if plant.covariance is None else f"{equation} within its {plant.confidence_ratio:.0%} confidence"


def _verified(
    law: Law[Any], linear: Law[Any], plant: Plant, plants: Sequence[Plant], smoothing_share: float | None
) -> Certificate:
    loops = loops_of(linear, plants, smoothing_share)
    largest, worst = largest_poles(loops)
    nominal = plants[0]
    nominal_gain_margin = gain_margin(linear, nominal, smoothing_share)
    if largest < 1:
        low, high = gain_limits(loops)
        if len(plants) == 1 or not math.isfinite(high):
            # Exact, also beyond the tested factors.
            margin = min(gain_margin(linear, each, smoothing_share) for each in plants)
        else:
            margin = min(high, nominal_gain_margin)
        delay_samples = delay_margin(loops)
    else:
        low, delay_samples = 0.0, 0.0
        margin = min(gain_margin(linear, each, smoothing_share) for each in plants)
    return Certificate(
        law_to_json(law),
        describe(plant),
        poles=closed_loop_poles(linear, nominal, smoothing_share),
        largest_pole=largest,
        gain_margin=margin,
        delay_margin_samples=delay_samples,
        worst_poles=worst,
        nominal_gain_margin=nominal_gain_margin,
        nominal_delay_margin_samples=delay_margin_samples(linear, nominal, smoothing_share),
        sample_time_s=plant.sample_time_s,
        smoothing_share=smoothing_share,
        lowest_gain_factor=low,
        objections=plant.objections,
    )


def _with_unit_gain(plant: Plant) -> Plant:
    """Return the plant scaled to a static gain of 1."""
    gain = plant.gain
    if not gain or not math.isfinite(gain) or gain < 0:
        raise ControlError(
            f"laws without model need a plant whose measurement rises with the action and settles, but its gain is"
            f" {gain:g}: identify it again"
        )
    return dataclasses.replace(
        plant, b=plant.b / gain, bs=tuple(b / gain for b in plant.bs), covariance=None, intervals=None
    )


def _worst_loop_gain(law: Law[Any], plant: Plant, limits: Limits | None) -> float:
    gain = loop_gain(law)
    assert gain is not None
    if isinstance(law, Scheduled):
        return gain * _largest_slope_ratio(law, plant, limits)
    point = plant.operating_point
    if point is None or point.measurement <= 0 or point.action <= 0:
        return gain
    return gain * max(1.0, plant.gain * point.action / point.measurement)


def _largest_slope_ratio(law: Scheduled, plant: Plant, limits: Limits | None) -> float:
    assumed = _segments(zip(law.actions, law.measurements, strict=True))
    assumed[0] = (-math.inf, *assumed[0][1:])
    assumed[-1] = (assumed[-1][0], math.inf, assumed[-1][2])
    ratios = [
        slope / assumed_slope
        for start, end, slope in _true_segments(plant)
        for assumed_start, assumed_end, assumed_slope in assumed
        if max(start, assumed_start, limits.lowest if limits else -math.inf)
        < min(end, assumed_end, limits.highest if limits else math.inf)
    ]
    if not ratios:
        raise ControlError("the plant's curve lies outside of the limits of the action: identify it within them")
    return max(ratios)


def _true_segments(plant: Plant) -> list[Segment]:
    if len(plant.curve) > 1:
        smooth = Scheduled.on(plant.curve)
        return _segments(zip(smooth.actions, smooth.measurements, strict=True))
    if plant.linear_range is not None:
        return [(plant.linear_range.lowest, plant.linear_range.highest, plant.gain)]
    return [(-math.inf, math.inf, plant.gain)]


def _segments(points: Iterable[tuple[float, float]]) -> list[Segment]:
    return [(u0, u1, (y1 - y0) / (u1 - u0)) for (u0, y0), (u1, y1) in pairwise(points)]


def _time(shift: int) -> str:
    return f"k{shift:+d}" if shift else "k"
