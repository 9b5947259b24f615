"""Certificates of laws that need no model, because one formula covers all plants of a kind.

Plain arithmetic, so that a loop with such a law starts without any library of control theory.

All these laws are integral action in disguise. Let x be the quantity that the law changes and v the plant's response,
both measured from their steady state. Then x(k+1) = x(k) - K v(k) and v(k) = s x(k - delay), K s being the loop's
gain. The pole is 1 - K s without delay, and the loop is stable for 0 < K s < 2 sin(pi / (2 (2d - 1))) with
d = 1 + delay. So it suffices to know the largest K s.

* Multiplicative, ln u += exponent ln(r / y): x = ln u and v = ln y, so s is the elasticity u f'(u) / f(u) of the
  plant's curve f. A concave curve through the origin has u f'(u) <= f(u), so 0 <= s <= 1: rate over window, by
  Little's law, is such a curve, and latency over window has an elasticity from 0 to 1 too. K s <= exponent. With an
  exponent below 2 each step brings ln u nearer to its steady state from anywhere (1 - K s is between -1 and 1 on
  every chord of the curve, too), so this holds for the whole curve and not only near the setpoint.
* Self-tuning, ln u += (1 - pole) / elasticity ln(r / y): the same, with a gain that changes within its limits, so
  K s <= (1 - pole) / lowest_elasticity. Without delay every step shrinks the distance by a factor within the same
  bounds, so it does not matter how fast the estimate moves.
* Scheduled, f(u) += (1 - pole) (r - y): x = f(u) for the curve f of the law, v = y. If that is the plant's curve
  then s = 1 everywhere, K s = 1 - pole. If not, s is at most the largest ratio of the true slope to the law's.
* Integral, u += ki (r - y), on any plant without memory whose slope is above 0 and at most at a known bound:
  K s <= ki * bound.

At s = 0 (the handler is saturated, the queue empty) the action has no effect and the loop is open: the pole is 1. No
law can do more than stay within its limits there, which the controller ensures.
"""

from __future__ import annotations

import math
from typing import Any

from flyball.control.certificate import Certificate
from flyball.control.laws import Integral, Law, Multiplicative, Scheduled, SelfTuning, law_to_json
from flyball.errors import ControlError

ANY_CURVE = "every concave curve through the origin"
OWN_CURVE = "the curve that the law was made for"


def highest_integral_gain(delay: int) -> float:
    """Return the loop gain below which integral action is stable on a pure gain, with `delay` extra samples of delay.

    2 sin(pi / (2 (2d - 1))) with d = 1 + delay: 2, 1, 0.618, 0.445.
    """
    return 2 * math.sin(math.pi / (2 * (2 * delay + 1)))


def loop_gain(law: Law[Any]) -> float | None:
    """Return the largest loop gain that a law without model has on its class of plants; None for other laws."""
    if isinstance(law, Multiplicative):
        return law.exponent
    if isinstance(law, SelfTuning):
        return (1 - law.pole) / law.lowest_elasticity
    if isinstance(law, Scheduled):
        return 1 - law.pole
    return None


def certify_model_free(law: Law[Any]) -> Certificate:
    """Return the certificate of a multiplicative, self-tuning or scheduled law on its class of plants.

    These are plants without memory. Raises ControlError for a law whose gains mean nothing without a plant.
    """
    gain = loop_gain(law)
    if gain is None:
        raise ControlError(f"whether {law.kind} gains are sound depends on the plant: give its model")
    return _certificate(law, OWN_CURVE if isinstance(law, Scheduled) else ANY_CURVE, gain)


def certify_integral(law: Integral, highest_slope: float) -> Certificate:
    """Return the certificate of an integral law on all plants without memory and with at most this slope."""
    if not (math.isfinite(highest_slope) and highest_slope > 0):
        raise ControlError(f"the highest slope of a plant is a number above 0, not {highest_slope}")
    plants = f"every plant without memory whose slope is above 0 and at most {highest_slope:g}"
    return _certificate(law, plants, law.ki * highest_slope)


def _certificate(law: Law[Any], plants: str, gain: float) -> Certificate:
    margin = highest_integral_gain(0) / gain if gain > 0 else 0.0
    return Certificate(
        law_to_json(law),
        plants,
        poles=(complex(1 - gain),),
        largest_pole=abs(1 - gain),
        gain_margin=margin,
        delay_margin_samples=_delay_margin_samples(gain),
    )


def _delay_margin_samples(gain: float) -> float:
    """Return the largest whole number of samples of delay with which this gain is stable; 0 if there is none."""
    if not 0 < gain < 2:
        return 0.0
    # gain < 2 sin(pi / (2 (2n + 1))), solved for n
    return float(max(math.ceil((math.pi / (2 * math.asin(gain / 2)) - 1) / 2) - 1, 0))
