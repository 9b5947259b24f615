"""Inputs to identify a plant with: a sequence of actions, one for each sample.

An action that only climbs cannot separate memory from a bent curve; one that jumps at random around the operating
point can. Independent of plants, and needs only the standard library.
"""

from __future__ import annotations

import math
import random

from flyball.errors import ControlError

# Taps of the feedback shift register by its length: with them it runs through all states but 0.
_TAPS = {
    3: (3, 2),
    4: (4, 3),
    5: (5, 3),
    6: (6, 5),
    7: (7, 6),
    8: (8, 6, 5, 4),
    9: (9, 5),
    10: (10, 7),
    11: (11, 9),
    12: (12, 6, 4, 1),
    13: (13, 4, 3, 1),
    14: (14, 5, 3, 1),
    15: (15, 14),
    16: (16, 15, 13, 4),
    17: (17, 14),
    18: (18, 11),
    19: (19, 6, 2, 1),
    20: (20, 17),
}


def staircase(lowest: float, highest: float, count: int, *, hold: int = 1, is_integer: bool = False) -> list[float]:
    """Return `count` actions that climb from `lowest` to `highest` in equal steps, each held for `hold` samples.

    This is the input of the paper (u = 1, 2 ... 360). It shows the whole curve, but not whether the plant has memory.
    """
    _check(lowest, highest, count, hold, is_integer)
    steps = math.ceil(count / hold)
    width = (highest - lowest) / max(steps - 1, 1)
    levels = [min(lowest + step * width, highest) for step in range(steps)]
    return _held([float(round(level)) for level in levels] if is_integer else levels, count, hold)


def prbs(lowest: float, highest: float, count: int, hold: int = 1, seed: int = 1) -> list[float]:
    """Return `count` actions that jump between two levels: a pseudo-random binary sequence, `hold` samples a bit.

    It comes from a linear feedback shift register with 2ⁿ-1 bits to a period, the shortest that does not repeat
    within `count`. Over a period its autocorrelation is that of white noise. Two levels show no bend in the curve.
    """
    _check(lowest, highest, count, hold, False)
    bits = math.ceil(count / hold)
    size = max(min(_TAPS), bits.bit_length())
    if size not in _TAPS:
        raise ControlError(f"a binary sequence of {bits} steps is too long, {2 ** max(_TAPS) - 1} are possible")
    state = seed % (2**size - 1) + 1
    levels = []
    for _ in range(bits):
        levels.append(highest if state & 1 else lowest)
        fed_back = sum(state >> (size - tap) & 1 for tap in _TAPS[size]) & 1
        state = state >> 1 | fed_back << (size - 1)
    return _held(levels, count, hold)


def random_steps(
    lowest: float, highest: float, count: int, hold: int = 1, seed: int = 1, is_integer: bool = False
) -> list[float]:
    """Return `count` actions, each new one drawn uniformly from `lowest` to `highest` and held for `hold` samples.

    Good for parameters and curve alike. The same seed gives the same actions.
    """
    _check(lowest, highest, count, hold, is_integer)
    chance = random.Random(seed)
    steps = math.ceil(count / hold)
    if is_integer:
        return _held([float(chance.randint(int(lowest), int(highest))) for _ in range(steps)], count, hold)
    return _held([chance.uniform(lowest, highest) for _ in range(steps)], count, hold)


def _held(levels: list[float], count: int, hold: int) -> list[float]:
    return [levels[sample // hold] for sample in range(count)]


def _check(lowest: float, highest: float, count: int, hold: int, is_integer: bool) -> None:
    if not (math.isfinite(lowest) and math.isfinite(highest) and lowest < highest):
        raise ControlError(f"actions from {lowest:g} to {highest:g}: the lowest must be below the highest")
    if is_integer and not (float(lowest).is_integer() and float(highest).is_integer()):
        raise ControlError(f"actions from {lowest:g} to {highest:g}: whole actions need whole limits")
    if count < 1 or hold < 1:
        raise ControlError(f"{count} samples held for {hold}: both must be at least 1")
