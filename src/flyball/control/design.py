"""Gains for a plant y(k+1) = a y(k) + b u(k): by the closed loop's poles, or by lambda tuning.

Formulas only. Whether a design holds for everything that the data allow is decided by `verification.certify`.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from flyball.control.certificate import LEAST_GAIN_MARGIN
from flyball.control.laws import Integral, Law, Pid, Proportional, ProportionalIntegral
from flyball.control.margins import highest_gain, loops_of
from flyball.control.model_free import highest_integral_gain
from flyball.control.plant import Plant
from flyball.control.uncertainty import confidence_set
from flyball.errors import ControlError

# The laws that `design_law` can design.
DESIGNS = ("p", "i", "pi", "pid", "lambda_pi")
# The default pole of lambda tuning: settled to 2 % after 18 samples, gain margin 10.
LAMBDA = 0.8
# Factor above the minimum gain margin that lambda tuning keeps on the worst plant of a confidence set, since one
# plant in ten is outside the set.
RESERVE = 1.25
SETTLING_STEPS = 5.0
# Default overshoot of a design by poles. Slower poles, as in the paper, need a negative kp on a plant that forgets
# within a sample, and leave a small gain margin.
OVERSHOOT = 0.05
# The default pole of P: it affects a plant that forgets within a sample only if the loop oscillates slightly.
PROPORTIONAL_POLE = -0.3


def design_law(
    name: str,
    plant: Plant,
    *,
    pole: float | None = None,
    poles: Sequence[complex] | None = None,
    settling_steps: float | None = None,
    overshoot: float | None = None,
) -> Law[Any]:
    """Return the law with this name, one of DESIGNS, for the plant.

    Choose its poles with `poles`, with one `pole` for all of them, or with `settling_steps` and `overshoot`; the rest
    has defaults. Lambda tuning and I have one free pole. Raises ControlError if the plant does not allow the design.
    """
    match name:
        case "lambda_pi":
            return lambda_pi(plant, LAMBDA if pole is None else pole)
        case "i":
            return integral(plant, LAMBDA if pole is None else pole)
        case "p":
            return place_p(plant, *(poles or [PROPORTIONAL_POLE if pole is None else pole]))
    aim = (
        SETTLING_STEPS if settling_steps is None else settling_steps,
        OVERSHOOT if overshoot is None else overshoot,
    )
    match name:
        case "pi":
            return place_pi(plant, *(poles or ([pole] * 2 if pole is not None else poles_for(*aim, count=2))))
        case "pid":
            return place_pid(plant, *(poles or ([pole] * 3 if pole is not None else poles_for(*aim, count=3))))
    raise ControlError(f"there is no design of {name!r}; there are {', '.join(DESIGNS)}")


def poles_for(settling_steps: float, overshoot: float, count: Literal[1, 2, 3] = 2) -> tuple[complex, ...]:
    """Return poles for a loop that settles (to 2 %) in `settling_steps` steps with this overshoot, a part of the
    step.

    Two poles have the radius exp(-4 / settling_steps) and the angle pi ln radius / ln overshoot; without overshoot
    both are real. One pole does not overshoot. A third is at the square of the radius, where it settles twice as
    fast and so hardly matters.
    """
    if not (math.isfinite(settling_steps) and settling_steps > 0):
        raise ControlError(f"a loop settles in more than 0 steps, not {settling_steps}")
    if not 0 <= overshoot < 1:
        raise ControlError(f"an overshoot is a part of the step, from 0 to below 1, not {overshoot}")
    radius = math.exp(-4 / settling_steps)
    if count == 1:
        return (complex(radius),)
    angle = math.pi * math.log(radius) / math.log(overshoot) if overshoot else 0.0
    if angle > math.pi:
        raise ControlError(
            f"no loop settles in {settling_steps:g} steps with an overshoot of {overshoot:g}: ask for less overshoot"
        )
    pair = (cmath.rect(radius, angle), cmath.rect(radius, -angle))
    return pair if count == 2 else (*pair, complex(radius**2))


def place_p(plant: Plant, pole: complex, *, has_feedforward: bool = True) -> Proportional:
    """Return the proportional law whose closed loop has that pole: kp = (a - p) / b.

    The feedforward removes the droop: it is (1 - a) / b, or for a plant with an offset the value that is right at its
    operating point.
    """
    _check_first_order(plant)
    (p,) = _checked(pole)
    return Proportional(_real(plant.a - p) / plant.b, _feedforward(plant) if has_feedforward else 0.0)


def place_pi(plant: Plant, p1: complex, p2: complex) -> ProportionalIntegral:
    """Return the PI law whose closed loop has those poles: kp = (a - p1 p2) / b, ki = (1 - p1)(1 - p2) / b."""
    _check_first_order(plant)
    _checked(p1, p2)
    return ProportionalIntegral(_real(plant.a - p1 * p2) / plant.b, _real((1 - p1) * (1 - p2)) / plant.b)


def place_pid(plant: Plant, p1: complex, p2: complex, p3: complex) -> Pid:
    """Return the PID law whose closed loop has those poles.

    With s2 the sum of their products in pairs and s3 that of all three: kd = -s3 / b, kp = (a - s2 + 2 s3) / b, ki =
    (1 - p1)(1 - p2)(1 - p3) / b.
    """
    _check_first_order(plant)
    _checked(p1, p2, p3)
    s2 = p1 * p2 + p1 * p3 + p2 * p3
    s3 = p1 * p2 * p3
    return Pid(
        kp=_real(plant.a - s2 + 2 * s3) / plant.b,
        ki=_real((1 - p1) * (1 - p2) * (1 - p3)) / plant.b,
        kd=_real(-s3) / plant.b,
    )


def lambda_pi(plant: Plant, pole: float = LAMBDA) -> ProportionalIntegral:
    """Return the PI law that cancels the plant's pole and replaces it by `pole`.

    kp = a (1 - pole) / b, ki = (1 - a)(1 - pole) / b: no overshoot, 2 % settling in ln 0.02 / ln pole steps, gain
    margin 2 / (1 - pole). With dead time the loop is stable up to a gain 1 - pole of 2 sin(pi / (2 (2d - 1))), d = 1
    + delay; at most half of that is used, so a pole that is too fast for the delay is slowed down. An identified
    plant has a confidence set: the gain margin is then at least RESERVE times 2 on its worst plant. A plant of higher
    order is tuned as the plant of first order with the same gain and mean lag.
    """
    _check_effect(plant)
    _check_lambda(pole)
    memory = _memory(plant)
    rise = (1 - memory) * plant.gain
    speed = min(1 - pole, highest_integral_gain(plant.delay) / 2)
    if plant.order > 1 or plant.covariance is not None:
        full = ProportionalIntegral(memory / rise, (1 - memory) / rise)
        loops = loops_of(full, confidence_set(plant))
        bound = highest_gain(loops)
        if not bound:
            raise ControlError(
                "no lambda-tuned law is stable on all plants that the data allow: take more samples, with larger"
                " steps of the action"
            )
        speed = min(1 - pole, bound / (LEAST_GAIN_MARGIN * (RESERVE if plant.covariance is not None else 1.0)))
    return ProportionalIntegral(memory * speed / rise, (1 - memory) * speed / rise)


def _memory(plant: Plant) -> float:
    """Return the a of the plant of first order with the same mean lag; a itself for a plant of first order."""
    if plant.order == 1:
        if not -1 < plant.a < 1:
            raise ControlError(f"lambda tuning cancels a stable pole, but a is {plant.a:g}: place the poles instead")
        return plant.a
    poles = np.roots([1.0, *(-a for a in plant.all_a)])
    if np.abs(poles).max() >= 1:
        raise ControlError(
            "lambda tuning needs a plant that settles, but a pole of this one does not: identify again"
        )
    # The mean of the impulse response in time, a/(1 - a) for a plant of first order, is additive over the factors.
    lag = sum(k * a for k, a in enumerate(plant.all_a, 1)) / (1 - math.fsum(plant.all_a))
    lag += sum(k * b for k, b in enumerate(plant.all_b)) / math.fsum(plant.all_b)
    return min(max(lag / (1 + lag), 0.0), float(np.abs(poles).max())) if lag > 0 else 0.0


def integral(plant: Plant, pole: float = LAMBDA) -> Integral:
    """Return the integral law whose slowest pole is `pole`; the other is a / pole.

    ki = (1 - pole)(1 - a / pole) / b, which for a plant without memory is (1 - pole) / b. With a > 0 the fastest
    possible pole is the square root of a.
    """
    _check_first_order(plant)
    _check_lambda(pole)
    if abs(plant.a) > pole**2:
        raise ControlError(
            f"an integral law alone is no faster than a pole of {math.sqrt(abs(plant.a)):.3g} on this plant,"
            f" so {pole:g} is out of reach: choose a slower pole, or a PI law"
        )
    return Integral((1 - pole) * (1 - (plant.a / pole if plant.a else 0.0)) / plant.b)


def _feedforward(plant: Plant) -> float:
    point = plant.operating_point
    if plant.offset and point is not None and point[1]:
        return ((1 - plant.a) * point[1] - plant.offset) / (plant.b * point[1])
    return (1 - plant.a) / plant.b


def _checked(*poles: complex) -> tuple[complex, ...]:
    for pole in poles:
        if not abs(pole) < 1:
            raise ControlError(f"a stable loop has its poles inside the unit circle; {_text(pole)} is not")
    for pole in poles:
        if not any(abs(pole.conjugate() - other) < 1e-9 for other in poles):
            raise ControlError(f"complex poles come in pairs; {_text(pole)} is without its conjugate")
    return poles


def _real(value: complex) -> float:
    # Conjugate poles leave only rounding in the imaginary part.
    return complex(value).real


def _text(pole: complex) -> str:
    pole = complex(pole)
    return f"{pole.real:g}" if not pole.imag else f"{pole.real:g}{pole.imag:+g}i"


def _check_lambda(pole: float) -> None:
    if not 0 <= pole < 1:
        raise ControlError(f"the pole of a tuned loop is from 0 to below 1, not {pole}")


def _check_effect(plant: Plant) -> None:
    if not math.fsum(plant.all_b):
        raise ControlError("the action has no effect on this plant (b is 0), so there is nothing to design")


def _check_order(plant: Plant) -> None:
    _check_effect(plant)
    if plant.ar or plant.bs:
        raise ControlError("this design is for plants of first order: use lambda tuning, or identify with order 1")


def _check_first_order(plant: Plant) -> None:
    _check_order(plant)
    if plant.delay:
        raise ControlError(
            f"with a delay of {plant.delay} samples the poles would not be those asked for: use lambda tuning"
        )
