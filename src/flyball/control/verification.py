"""The proof that a law holds a plant: poles and margins over everything that the data say the plant may be.

What comes out is a `Certificate`, which is stored with the gains.
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
from flyball.control.model_free import certify_model_free, loop_gain
from flyball.control.plant import Plant
from flyball.control.stability import closed_loop_poles, delay_margin_samples, gain_margin
from flyball.errors import ControlError

BOUNDARY_PLANTS = 24
RINGS = (1 / 3, 2 / 3, 1.0)
"""How far from the estimate to the boundary of its confidence set the plants lie that are looked at."""

Segment = tuple[float, float, float]
"""From which action until which a curve is straight, and its slope."""


def certify(
    law: Law[Any], plant: Plant | None, limits: Limits | None = None, *, smoothing_share: float | None = None
) -> Certificate:
    """Return the certificate of a law on a plant, over the whole confidence set of the plant's parameters.

    The largest pole, the gain margin and the delay margin are the worst of the estimate, of 24 plants around it on
    the boundary of the set, and of as many at one and at two thirds of the way there. The boundary alone would do for
    P and I laws, whose poles depend on a and b in one direction; a pair of complex poles may be worst inside. Between
    these plants margins change little: they are continuous, and the gain margin says what happens along b anyway.

    Laws that need no model are verified without one if `plant` is None: see `model_free` for what that covers. With a
    plant they are taken as integral action on a plant of this memory and delay and a static gain of 1, with the
    largest loop gain that the law can have; an elasticity above 1, which a curve that is not concave may have at its
    operating point, counts. For a scheduled law the gain is the largest ratio of the plant's slope to the slope that
    the law believes in, over the plant's measured curve within the limits, or over its linear range. Such laws change
    their gain as they run; on plants with memory this proves each gain that they can have, not changing it quickly.

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


def confidence_set(plant: Plant) -> list[Plant]:
    """Return the plant as estimated, first, and plants all over its confidence set."""
    estimate, *boundary = plant.variants(BOUNDARY_PLANTS)
    return [estimate, *(_between(estimate, far, share) for share in RINGS for far in boundary)]


def describe(plant: Plant) -> str:
    """Return the plant as an equation, and how sure it is."""
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
    found = [closed_loop_poles(linear, each, smoothing_share) for each in plants]
    gain_margins = [gain_margin(linear, each, smoothing_share) for each in plants]
    delay_margins = [delay_margin_samples(linear, each, smoothing_share) for each in plants]
    worst = max(found, key=_largest)
    return Certificate(
        law_to_json(law),
        describe(plant),
        poles=found[0],
        largest_pole=_largest(worst),
        gain_margin=min(gain_margins),
        delay_margin_samples=min(delay_margins),
        worst_poles=worst,
        nominal_gain_margin=gain_margins[0],
        nominal_delay_margin_samples=delay_margins[0],
        sample_time_s=plant.sample_time_s,
        smoothing_share=smoothing_share,
    )


def _largest(poles: tuple[complex, ...]) -> float:
    return max(map(abs, poles), default=0.0)


def _between(near: Plant, far: Plant, share: float) -> Plant:
    a, b = (
        tuple(x + share * (y - x) for x, y in zip(*pair, strict=True))
        for pair in ((near.all_a, far.all_a), (near.all_b, far.all_b))
    )
    return dataclasses.replace(far, a=a[0], ar=a[1:], b=b[0], bs=b[1:])


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
    believed = _segments(zip(law.actions, law.measurements, strict=True))
    believed[0] = (-math.inf, *believed[0][1:])
    believed[-1] = (believed[-1][0], math.inf, believed[-1][2])
    ratios = [
        slope / believed_slope
        for start, end, slope in _true_segments(plant)
        for believed_start, believed_end, believed_slope in believed
        if max(start, believed_start, limits.lowest if limits else -math.inf)
        < min(end, believed_end, limits.highest if limits else math.inf)
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
