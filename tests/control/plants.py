"""Plants with known parameters, to be found again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from flyball.control.plant import Plant

Numbers = npt.NDArray[np.float64]

PAPER_PLANT = Plant(a=0.26, b=59.73)


def measured(plant: Plant, actions: Sequence[float], noise: float = 0.0, seed: int = 1) -> Numbers:
    """The measurements of a plant that is settled at first, with noise in the process."""
    random = np.random.default_rng(seed)
    reach = plant.delay + plant.order
    settled = (plant.offset + sum(plant.all_b) * actions[0]) / (1 - sum(plant.all_a))
    found = [settled] * reach
    for k in range(reach - 1, len(actions) - 1):
        memory = sum(a * found[k - lag] for lag, a in enumerate(plant.all_a))
        effect = sum(b * actions[k - plant.delay - lag] for lag, b in enumerate(plant.all_b))
        found.append(memory + effect + plant.offset + random.normal(0, noise))
    return np.array(found[: len(actions)])


def little(actions: Sequence[float], seed: int = 3) -> Numbers:
    """Little's law with a handler that saturates and 5 % of noise: what prefetch does, and no memory at all."""
    windows = np.array(actions)
    rates = 1250 * windows / (windows + 3.34) * (1 + np.random.default_rng(seed).normal(0, 0.05, len(windows)))
    return np.array([rates[0], *rates[:-1]])
