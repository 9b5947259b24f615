"""Poles and margins of a linear law on one plant, and on all plants that the data allow at once.

Plain numpy. Transfer functions and step responses, which need python-control, are in `stability`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flyball.control.laws import Law, PositionalPid, Proportional
from flyball.control.laws.linear import VelocityLaw
from flyball.control.plant import Plant
from flyball.errors import ControlError

Numbers = npt.NDArray[np.float64]
Polynomial = Numbers
# Numerator and denominator in z, highest power first, equally long.
Fraction = tuple[Polynomial, Polynomial]

# Factors of the gain at which loops are tested, before bisection locates the first instability.
RAISED: Numbers = np.array([1.08**step for step in range(1, 60)])
LOWERED: Numbers = np.array([0.8**step for step in range(1, 17)])
# Gains among which the highest stable one is searched.
SEARCHED: Numbers = np.array([1e-3 * 1.08**step for step in range(120)])
# Halvings of the interval in which an instability is located.
BISECTIONS = 40
# Largest delay margin that is computed, in samples.
MAX_DELAY_MARGIN = 32
# Points of the upper half of the unit circle at which a loop is tested for amplification.
FREQUENCIES = 1024


@dataclass(frozen=True, slots=True)
class Loops:
    """Open loops as fractions in z, highest power first: a row for each plant, all with the same order and delay."""

    numerators: Numbers
    denominators: Numbers

    def scaled(self, factor: float) -> Numbers:
        """Return the closed loops' polynomials with `factor` times the gain."""
        found: Numbers = self.denominators + factor * self.numerators
        return found

    def delayed(self, samples: int) -> Loops:
        """Return the loops with `samples` more samples of delay."""
        zeros = np.zeros((len(self.numerators), samples))
        return Loops(np.hstack([zeros, self.numerators]), np.hstack([self.denominators, zeros]))


def loops_of(law: Law[Any], plants: Iterable[Plant], smoothing_share: float | None = None) -> list[Loops]:
    """Return the open loops of the law with each plant, grouped by order and delay."""
    above, below = (np.trim_zeros(part, "b") for part in law_fraction(law))
    if smoothing_share is not None and smoothing_share != 1:
        above = np.convolve(above, [smoothing_share])
        below = np.convolve(below, [1.0, smoothing_share - 1])
    groups: dict[tuple[int, int], list[Plant]] = {}
    for plant in plants:
        groups.setdefault((plant.order, plant.delay), []).append(plant)
    return [_loops(above, below, own) for own in groups.values()]


def _loops(above: Numbers, below: Numbers, plants: Sequence[Plant]) -> Loops:
    delay, order = plants[0].delay, plants[0].order
    b = np.array([plant.all_b for plant in plants])
    a = np.array([plant.all_a for plant in plants])
    rows = len(plants)
    numerators = np.zeros((rows, len(above) + order + delay))
    for power, factor in enumerate(above):
        numerators[:, 1 + delay + power : 1 + delay + power + order] += factor * b
    denominators = np.zeros((rows, len(below) + order))
    own = np.hstack([np.ones((rows, 1)), -a])
    for power, factor in enumerate(below):
        denominators[:, power : power + order + 1] += factor * own
    size = max(numerators.shape[1], denominators.shape[1])
    return Loops(*(np.pad(part, ((0, 0), (0, size - part.shape[1]))) for part in (numerators, denominators)))


def are_stable(polynomials: Numbers) -> npt.NDArray[np.bool_]:
    """Return for each row whether all its roots lie inside the unit circle, by the Schur-Cohn recursion."""
    rest = polynomials / np.abs(polynomials).max(axis=1, keepdims=True)
    stable = np.ones(len(rest), dtype=np.bool_)
    while rest.shape[1] > 1:
        first, last = rest[:, :1], rest[:, -1:]
        stable &= np.abs(last[:, 0]) < np.abs(first[:, 0])
        rest = (first * rest - last * rest[:, ::-1])[:, :-1]
        rest = rest / np.maximum(np.abs(rest).max(axis=1, keepdims=True), 1e-300)
    return stable


def largest_poles(groups: Sequence[Loops]) -> tuple[float, tuple[complex, ...]]:
    """Return the largest absolute value of a closed-loop pole over all loops, and all poles of that loop."""
    worst, poles = -1.0, np.empty(0, dtype=np.complex128)
    for loops in groups:
        polynomials = loops.scaled(1.0)
        size = polynomials.shape[1] - 1
        companions = np.zeros((len(polynomials), size, size))
        companions[:, 0, :] = -polynomials[:, 1:] / polynomials[:, :1]
        companions[:, np.arange(1, size), np.arange(size - 1)] = 1.0
        found = np.linalg.eigvals(companions)
        largest = np.abs(found).max(axis=1)
        place = int(np.argmax(largest))
        if largest[place] > worst:
            worst, poles = float(largest[place]), np.roots(polynomials[place]).astype(np.complex128)
    ordered = sorted((complex(pole) for pole in poles), key=lambda pole: (-abs(pole), pole.real, pole.imag))
    return max(map(abs, ordered), default=0.0), tuple(ordered)


def gain_limits(groups: Sequence[Loops]) -> tuple[float, float]:
    """Return the range of gain factors around 1 within which every loop is stable; all must be stable at 1.

    The lower bound is 0 and the upper one infinite if no tested factor makes a loop unstable.
    """
    low, high = 0.0, math.inf
    for loops in groups:
        low = max(low, _first_unstable(loops, 1.0, LOWERED, 0.0))
        high = min(high, _first_unstable(loops, 1.0, RAISED, math.inf))
    return low, high


def _first_unstable(loops: Loops, begin: float, factors: Numbers, otherwise: float) -> float:
    """Return the last stable factor on the way along `factors` from `begin`, which is stable."""
    rows = len(loops.numerators)
    stacked = (loops.denominators[None] + factors[:, None, None] * loops.numerators[None]).reshape(
        -1, loops.numerators.shape[1]
    )
    unstable = ~are_stable(stacked).reshape(len(factors), rows)
    steps = np.flatnonzero(unstable.any(axis=1))
    if not steps.size:
        return otherwise
    step = int(steps[0])
    concerned = Loops(loops.numerators[unstable[step]], loops.denominators[unstable[step]])
    good, bad = float(factors[step - 1]) if step else begin, float(factors[step])
    for _ in range(BISECTIONS):
        middle = (good + bad) / 2
        if are_stable(concerned.scaled(middle)).all():
            good = middle
        else:
            bad = middle
    return good


def highest_gain(groups: Sequence[Loops]) -> float:
    """Return the factor up to which every loop is stable from almost no gain on; 0 if one is unstable even there."""
    found = math.inf
    for loops in groups:
        if not are_stable(loops.scaled(float(SEARCHED[0]))).all():
            return 0.0
        found = min(found, _first_unstable(loops, float(SEARCHED[0]), SEARCHED[1:], float(SEARCHED[-1])))
    return found


def delay_margin(groups: Sequence[Loops]) -> float:
    """Return the additional samples of delay with which every loop stays stable; infinite if none ever amplifies."""
    circle = np.exp(1j * np.linspace(0, np.pi, FREQUENCIES // 4))
    amplifying = []
    for loops in groups:
        powers = circle[:, None] ** np.arange(loops.numerators.shape[1] - 1, -1, -1)
        above, below = np.abs(loops.numerators @ powers.T), np.abs(loops.denominators @ powers.T)
        own = (above >= 0.999 * below).any(axis=1)
        if own.any():
            amplifying.append(Loops(loops.numerators[own], loops.denominators[own]))
    if not amplifying:
        return math.inf
    for samples in range(1, MAX_DELAY_MARGIN + 1):
        if not all(are_stable(loops.delayed(samples).scaled(1.0)).all() for loops in amplifying):
            return samples - 1.0
    return float(MAX_DELAY_MARGIN)


def closed_loop_poles(law: Law[Any], plant: Plant, smoothing_share: float | None = None) -> tuple[complex, ...]:
    """Return the poles of the closed loop, the slowest first. It is stable if all are inside the unit circle."""
    numerator, denominator = loop_fraction(law, plant, smoothing_share)
    poles = np.roots(denominator + numerator)
    return tuple(sorted((complex(pole) for pole in poles), key=lambda pole: (-abs(pole), pole.real, pole.imag)))


def gain_margin(law: Law[Any], plant: Plant, smoothing_share: float | None = None) -> float:
    """Return the factor by which the loop's gain may grow before the loop is unstable, infinite if it never is.

    Below 1 the loop is unstable, and would be stable with its gains times anything below the margin; 0 if no smaller
    gain stabilizes it.
    """
    numerator, denominator = loop_fraction(law, plant, smoothing_share)
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
    """Return the whole samples of additional delay that the loop tolerates before it is unstable.

    0 if it does not tolerate one, or is unstable already; infinite if the loop amplifies at no frequency, so that no
    delay matters; at most MAX_DELAY_MARGIN otherwise.
    """
    numerator, denominator = loop_fraction(law, plant, smoothing_share)
    if not _is_stable(denominator + numerator):
        return 0.0
    if _never_amplifies(numerator, denominator):
        return math.inf
    for samples in range(1, MAX_DELAY_MARGIN + 1):
        late = np.concatenate([np.zeros(samples), numerator])
        if not _is_stable(np.concatenate([denominator, np.zeros(samples)]) + late):
            return samples - 1.0
    return float(MAX_DELAY_MARGIN)


def plant_fraction(plant: Plant) -> Fraction:
    """z^-(1 + delay) (b + bs z^-1 ...) / (1 - a z^-1 - ar z^-2 ...)"""
    return _fraction([0.0] * (1 + plant.delay) + [*plant.all_b], [1.0, *(-a for a in plant.all_a)])


def law_fraction(law: Law[Any]) -> Fraction:
    if isinstance(law, Proportional):
        return _fraction([law.kp], [1.0])
    if isinstance(law, VelocityLaw):
        kp, ki, kd = law.gains()
    elif isinstance(law, PositionalPid):
        kp, ki, kd = law.kp, law.ki, law.kd
    else:
        raise ControlError(f"a {law.kind} law is not linear and has no transfer function")
    # Trailing zeros would add poles at 0 that the loop does not have.
    return _fraction([kp + ki + kd, -kp - 2 * kd, kd] if kd else [kp + ki, -kp] if kp else [ki], [1.0, -1.0])


def smoothing_fraction(share: float | None) -> Fraction:
    return _fraction([1.0], [1.0]) if share is None or share == 1 else _fraction([share], [1.0, share - 1])


def loop_fraction(law: Law[Any], plant: Plant, smoothing_share: float | None) -> Fraction:
    numerator, denominator = np.ones(1), np.ones(1)
    for part in (law_fraction(law), plant_fraction(plant), smoothing_fraction(smoothing_share)):
        numerator, denominator = np.convolve(numerator, part[0]), np.convolve(denominator, part[1])
    return numerator, denominator


def _fraction(numerator: list[float], denominator: list[float]) -> Fraction:
    """Convert polynomials in z^-1 to polynomials in z of equal length."""
    size = max(len(numerator), len(denominator))
    return (
        np.array(numerator + [0.0] * (size - len(numerator))),
        np.array(denominator + [0.0] * (size - len(denominator))),
    )


def _is_stable(polynomial: Polynomial) -> bool:
    return bool(np.all(np.abs(np.roots(polynomial)) < 1))


def _critical_gains(numerator: Polynomial, denominator: Polynomial) -> list[float]:
    """Return the positive factors k at which denominator + k numerator has a root on the unit circle, in order.

    There -denominator / numerator is real, so denominator(z) numerator(1/z) is equal to its mirror image.
    python-control's `stability_margins` is not used because it ignores z = -1, where most sampled loops with small
    delay lose their stability: a lambda-tuned PI loop, among others, would have an infinite margin.
    """
    product = np.convolve(denominator, numerator[::-1])
    mirrored = product - product[::-1]
    # The roots of rounding errors are far from the circle, or anywhere.
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
