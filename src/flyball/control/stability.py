"""Stability of a linear law on a linear plant: transfer functions, poles, margins and step response.

Built on python-control, which is slow to import: only what verifies or draws a loop needs this module, not what runs
one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

import control
from flyball.control.laws import Law, PositionalPid, Proportional
from flyball.control.laws.linear import VelocityLaw
from flyball.control.plant import Plant
from flyball.errors import ControlError

MOST_DELAY_SAMPLES = 32
"""A delay margin is counted so far."""
FREQUENCIES = 1024
"""So many points of the upper half of the unit circle are looked at to see whether a loop ever amplifies."""

Polynomial = npt.NDArray[np.float64]
Fraction = tuple[Polynomial, Polynomial]
"""Numerator and denominator in z, highest power first, equally long."""


def plant_transfer(plant: Plant) -> control.TransferFunction:
    """Return the plant from action to measurement."""
    return _transfer(_plant_fraction(plant), plant.sample_time_s)


def law_transfer(law: Law[Any], sample_time_s: float) -> control.TransferFunction:
    """Return the law from error to action. Raises ControlError for a law that is not linear."""
    return _transfer(_law_fraction(law), sample_time_s)


def open_loop(law: Law[Any], plant: Plant, smoothing_share: float | None = None) -> control.TransferFunction:
    """Return law, plant and the filter of the measurement, if there is one, in a row."""
    return _transfer(_loop_fraction(law, plant, smoothing_share), plant.sample_time_s)


def closed_loop(law: Law[Any], plant: Plant, smoothing_share: float | None = None) -> control.TransferFunction:
    """Return the closed loop from setpoint to measurement, a proportional law's feedforward included."""
    from_error = law_transfer(law, plant.sample_time_s) * plant_transfer(plant)
    return _with_feedforward(law, plant_transfer(plant), from_error, _back(plant, smoothing_share))


def closed_loop_poles(law: Law[Any], plant: Plant, smoothing_share: float | None = None) -> tuple[complex, ...]:
    """Return the poles of the closed loop, the slowest first. It is stable if all are inside the unit circle."""
    numerator, denominator = _loop_fraction(law, plant, smoothing_share)
    poles = np.roots(denominator + numerator)
    return tuple(sorted((complex(pole) for pole in poles), key=lambda pole: (-abs(pole), pole.real, pole.imag)))


def gain_margin(law: Law[Any], plant: Plant, smoothing_share: float | None = None) -> float:
    """Return how many times larger the loop's gain may become before the loop is unstable, infinite if it never is.

    Below 1 the loop is unstable, and would be stable with its gains times anything below the margin; 0 if no smaller
    gains help.
    """
    numerator, denominator = _loop_fraction(law, plant, smoothing_share)
    critical = _critical_gains(numerator, denominator)
    begin = 1.0 if _is_stable(denominator + numerator) else 0.0
    bounds = [gain for gain in critical if gain > begin]
    middles = [
        (low + high) / 2 for low, high in zip([begin, *bounds], [*bounds, 2 * max([1.0, *bounds])], strict=True)
    ]
    for reached, middle in zip([begin, *bounds], middles, strict=True):
        if not _is_stable(denominator + middle * numerator):
            return reached
    return math.inf


def delay_margin_samples(law: Law[Any], plant: Plant, smoothing_share: float | None = None) -> float:
    """Return by how many whole samples the effect of an action may come later before the loop is unstable.

    0 if not even by one, or if the loop is unstable as it is; infinite if the loop amplifies at no frequency, so that
    no delay matters; at most MOST_DELAY_SAMPLES otherwise.
    """
    numerator, denominator = _loop_fraction(law, plant, smoothing_share)
    if not _is_stable(denominator + numerator):
        return 0.0
    if _never_amplifies(numerator, denominator):
        return math.inf
    for samples in range(1, MOST_DELAY_SAMPLES + 1):
        late = np.concatenate([np.zeros(samples), numerator])
        if not _is_stable(np.concatenate([denominator, np.zeros(samples)]) + late):
            return samples - 1.0
    return float(MOST_DELAY_SAMPLES)


def step_response(
    law: Law[Any], plant: Plant, steps: int, smoothing_share: float | None = None
) -> tuple[list[float], list[float]]:
    """Return measurements and actions of so many samples after the setpoint rose from 0 to 1.

    There is neither noise nor a limit. The measurement of the moment itself is the first.
    """
    if steps < 2:
        raise ControlError(f"a step response has two samples or more, not {steps}")
    times = np.arange(steps) * plant.sample_time_s
    to_action = _with_feedforward(
        law,
        _transfer(_fraction([1.0], [1.0]), plant.sample_time_s),
        law_transfer(law, plant.sample_time_s),
        plant_transfer(plant) * _back(plant, smoothing_share),
    )
    measurements, actions = (
        control.step_response(loop, times).outputs for loop in (closed_loop(law, plant, smoothing_share), to_action)
    )
    return [float(y) for y in measurements], [float(u) for u in actions]


def _with_feedforward(
    law: Law[Any],
    from_action: control.TransferFunction,
    from_error: control.TransferFunction,
    back: control.TransferFunction,
) -> control.TransferFunction:
    """Return the loop from setpoint to what `from_error` leads to; a feedforward goes there past the law."""
    if not isinstance(law, Proportional):
        return control.feedback(from_error, back)
    if not law.kp:
        return from_action * law.feedforward
    return control.feedback(from_error, back) * ((law.kp + law.feedforward) / law.kp)


def _back(plant: Plant, smoothing_share: float | None) -> control.TransferFunction:
    return _transfer(_smoothing_fraction(smoothing_share), plant.sample_time_s)


def _transfer(fraction: Fraction, sample_time_s: float) -> control.TransferFunction:
    return control.tf(*fraction, sample_time_s)


def _plant_fraction(plant: Plant) -> Fraction:
    """z^-(1 + delay) (b + bs z^-1 ...) / (1 - a z^-1 - ar z^-2 ...)"""
    return _fraction([0.0] * (1 + plant.delay) + [*plant.all_b], [1.0, *(-a for a in plant.all_a)])


def _law_fraction(law: Law[Any]) -> Fraction:
    if isinstance(law, Proportional):
        return _fraction([law.kp], [1.0])
    if isinstance(law, VelocityLaw):
        kp, ki, kd = law.gains()
    elif isinstance(law, PositionalPid):
        kp, ki, kd = law.kp, law.ki, law.kd
    else:
        raise ControlError(f"a {law.kind} law is not linear and has no transfer function")
    # Zeros at the end would be poles at 0 that the loop does not have.
    return _fraction([kp + ki + kd, -kp - 2 * kd, kd] if kd else [kp + ki, -kp] if kp else [ki], [1.0, -1.0])


def _smoothing_fraction(share: float | None) -> Fraction:
    return _fraction([1.0], [1.0]) if share is None or share == 1 else _fraction([share], [1.0, share - 1])


def _loop_fraction(law: Law[Any], plant: Plant, smoothing_share: float | None) -> Fraction:
    numerator, denominator = np.ones(1), np.ones(1)
    for part in (_law_fraction(law), _plant_fraction(plant), _smoothing_fraction(smoothing_share)):
        numerator, denominator = np.convolve(numerator, part[0]), np.convolve(denominator, part[1])
    return numerator, denominator


def _fraction(numerator: list[float], denominator: list[float]) -> Fraction:
    """Return polynomials in z, equally long, of polynomials in z^-1."""
    size = max(len(numerator), len(denominator))
    return (
        np.array(numerator + [0.0] * (size - len(numerator))),
        np.array(denominator + [0.0] * (size - len(denominator))),
    )


def _is_stable(polynomial: Polynomial) -> bool:
    return bool(np.all(np.abs(np.roots(polynomial)) < 1))


def _critical_gains(numerator: Polynomial, denominator: Polynomial) -> list[float]:
    """Return the positive factors k at which denominator + k numerator has a root on the unit circle, in order.

    There -denominator / numerator is real, so denominator(z) numerator(1/z) is equal to its mirror image. Found this
    way and not by python-control's `stability_margins`, which does not look at z = -1, where most sampled loops with
    small delay lose their stability: a lambda-tuned PI loop, among others, would have an infinite margin.
    """
    product = np.convolve(denominator, numerator[::-1])
    mirrored = product - product[::-1]
    # What is only rounding has its roots far from the circle, or anywhere.
    mirrored[np.abs(mirrored) < 1e-14 * np.sum(np.abs(product))] = 0
    roots = np.roots(mirrored)
    on_circle = np.concatenate([roots[np.abs(np.abs(roots) - 1) < 1e-4], [1.0, -1.0]])
    on_circle = on_circle / np.abs(on_circle)
    above, below = np.polyval(denominator, on_circle), np.polyval(numerator, on_circle)
    is_usable = np.abs(below) > 1e-12 * np.sum(np.abs(numerator))
    gains = -(above[is_usable] / below[is_usable]).real
    return sorted(float(gain) for gain in gains if gain > 1e-9)


def _never_amplifies(numerator: Polynomial, denominator: Polynomial) -> bool:
    points = np.exp(1j * np.linspace(0, np.pi, FREQUENCIES))
    return bool(np.all(np.abs(np.polyval(numerator, points)) < 0.999 * np.abs(np.polyval(denominator, points))))
