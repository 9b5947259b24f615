"""Simulated closed loops: a controller on a known plant, with noise and disturbances, sample by sample.

Time is the index of the sample. The plants of the prefetch paper and of its critique are here, by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from flyball.control.controller import Controller
from flyball.control.plant import Plant
from flyball.errors import ControlError


class SimulatedPlant(ABC):
    """A plant that computes the next output from past outputs and actions.

    The caller supplies the noise: one standard normal number per sample.
    """

    __slots__ = ()

    # Number of past outputs, and of actions, that `output` needs.
    memory_samples: int = 1

    @abstractmethod
    def output(self, outputs: Sequence[float], actions: Sequence[float], noise: float) -> float:
        """Return the next output after these outputs and actions, in chronological order."""

    @abstractmethod
    def with_capacity(self, ratio: float) -> Self:
        """Return a plant with `ratio` times the output for the same action."""

    def measured(self, output: float, noise: float) -> float:
        """Return the sensor's reading of an output."""
        return output


@dataclass(frozen=True)
class LinearPlant(SimulatedPlant):
    """y(k+1) = a y(k) + b u(k) + offset + noise. The sensor may have noise of its own, which does not enter
    y(k+1).
    """

    model: Plant
    process_noise: float = 0.0
    measurement_noise: float = 0.0
    memory_samples: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory_samples", self.model.order + self.model.delay)

    def output(self, outputs: Sequence[float], actions: Sequence[float], noise: float) -> float:
        model = self.model
        delay = model.delay
        reached = model.a * outputs[-1] + model.b * actions[-1 - delay] + model.offset + self.process_noise * noise
        for back, (a, b) in enumerate(zip(model.ar, model.bs, strict=True), start=2):
            reached += a * outputs[-back] + b * actions[-back - delay]
        return reached

    def measured(self, output: float, noise: float) -> float:
        return output + self.measurement_noise * noise

    def with_capacity(self, ratio: float) -> Self:
        model = self.model
        scaled = replace(model, b=ratio * model.b, bs=tuple(ratio * b for b in model.bs), offset=ratio * model.offset)
        return replace(self, model=scaled)


@dataclass(frozen=True)
class WindowPlant(SimulatedPlant):
    """A window by Little's law: rate = most_per_s u / (u + half_at), without memory, with proportional noise.

    The window fills within a sample; a handler that saturates bends the curve.
    """

    most_per_s: float
    half_at: float
    noise_ratio: float = 0.0

    def output(self, outputs: Sequence[float], actions: Sequence[float], noise: float) -> float:
        action = actions[-1]
        return self.most_per_s * action / (action + self.half_at) * (1 + self.noise_ratio * noise)

    def with_capacity(self, ratio: float) -> Self:
        return replace(self, most_per_s=ratio * self.most_per_s)

    def action_for(self, rate_per_s: float) -> float:
        """Return the window for this rate, which must be below the maximum."""
        return rate_per_s * self.half_at / (self.most_per_s - rate_per_s)

    def slope_at(self, action: float) -> float:
        """Return the increase of the rate per additional message of window at this action."""
        return self.most_per_s * self.half_at / (action + self.half_at) ** 2


# The model that the prefetch paper prints.
SEED_MODEL = Plant(a=0.26, b=59.73)
# A window's curve as the paper's authors measured it earlier: 400 messages a second are between 1 and 2.
SEED_CURVE = WindowPlant(most_per_s=1250.0, half_at=3.34, noise_ratio=0.05)
# The paper's model with the noise that it reports, the same noise in the sensor only, and a quarter of it; and the
# curve.
PLANTS: dict[str, SimulatedPlant] = {
    "A": LinearPlant(SEED_MODEL, process_noise=92.0),
    "B": LinearPlant(SEED_MODEL, measurement_noise=92.0),
    "C": LinearPlant(SEED_MODEL, process_noise=24.0),
    "D": SEED_CURVE,
}


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A change before sample `at_sample`: of the setpoint, or of the capacity to `capacity_ratio` times the
    original.
    """

    at_sample: int
    setpoint: float | None = None
    capacity_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Simulation:
    """A run, by sample: the setpoint, the plant's output, the measurement, and the following action."""

    setpoints: list[float]
    outputs: list[float]
    measurements: list[float]
    actions: list[float]


def simulate(
    controller: Controller,
    plant: SimulatedPlant,
    steps: int,
    *,
    seed: int,
    is_integer: bool = False,
    disturbances: Iterable[Disturbance] = (),
) -> Simulation:
    """Run the controller on the plant for `steps` samples, starting with the output of its first action.

    `is_integer` rounds actions before the plant sees them, as a prefetch count must be; the controller is not aware
    of it. The same seed gives the same noise, whatever the controller.
    """
    if steps < 1:
        raise ControlError(f"a simulation has one sample or more, not {steps}")
    noises = np.random.default_rng(seed).standard_normal(steps).tolist()
    due = _by_sample(disturbances)
    taken = _taken(controller.action, is_integer)
    # Before the start the plant was idle for as long as it remembers.
    before = plant.memory_samples
    outputs, actions = [0.0] * before, [0.0] * (before - 1) + [taken]
    setpoints, measurements = [], []
    disturbed = plant
    for sample, noise in enumerate(noises):
        for disturbance in due.get(sample, ()):
            if disturbance.setpoint is not None:
                controller.setpoint = disturbance.setpoint
            if disturbance.capacity_ratio is not None:
                disturbed = plant.with_capacity(disturbance.capacity_ratio)
        output = disturbed.output(outputs, actions, noise)
        measurement = disturbed.measured(output, noise)
        outputs.append(output)
        setpoints.append(controller.setpoint)
        measurements.append(measurement)
        actions.append(_taken(controller.update(measurement), is_integer))
    return Simulation(setpoints, outputs[before:], measurements, actions[before:])


def open_loop_measurements(plant: SimulatedPlant, actions: Sequence[float], *, seed: int) -> list[float]:
    """Return the measurement before each of these actions; the first action was applied before the start."""
    noises = np.random.default_rng(seed).standard_normal(len(actions)).tolist()
    outputs, taken = [0.0] * plant.memory_samples, [actions[0]] * plant.memory_samples
    measurements = []
    for action, noise in zip(actions, noises, strict=True):
        outputs.append(plant.output(outputs, taken, noise))
        measurements.append(plant.measured(outputs[-1], noise))
        taken.append(action)
    return measurements


def _taken(action: float, is_integer: bool) -> float:
    return float(round(action)) if is_integer else action


def _by_sample(disturbances: Iterable[Disturbance]) -> dict[int, list[Disturbance]]:
    found: dict[int, list[Disturbance]] = {}
    for disturbance in disturbances:
        found.setdefault(disturbance.at_sample, []).append(disturbance)
    return found
