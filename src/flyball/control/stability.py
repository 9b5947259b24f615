"""Transfer functions and step response of a linear law on a linear plant.

Built on python-control, which is slow to import: only plots of a loop need this module. Poles and margins are in
`margins`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import control
from flyball.control.laws import Law, Proportional
from flyball.control.margins import Fraction, law_fraction, loop_fraction, plant_fraction, smoothing_fraction
from flyball.control.plant import Plant
from flyball.errors import ControlError


def plant_transfer(plant: Plant) -> control.TransferFunction:
    """Return the plant from action to measurement."""
    return _transfer(plant_fraction(plant), plant.sample_time_s)


def law_transfer(law: Law[Any], sample_time_s: float) -> control.TransferFunction:
    """Return the law from error to action. Raises ControlError for a law that is not linear."""
    return _transfer(law_fraction(law), sample_time_s)


def open_loop(law: Law[Any], plant: Plant, smoothing_share: float | None = None) -> control.TransferFunction:
    """Return law, plant and the measurement filter, if any, in series."""
    return _transfer(loop_fraction(law, plant, smoothing_share), plant.sample_time_s)


def closed_loop(law: Law[Any], plant: Plant, smoothing_share: float | None = None) -> control.TransferFunction:
    """Return the closed loop from setpoint to measurement, a proportional law's feedforward included."""
    from_error = law_transfer(law, plant.sample_time_s) * plant_transfer(plant)
    return _with_feedforward(law, plant_transfer(plant), from_error, _back(plant, smoothing_share))


def step_response(
    law: Law[Any], plant: Plant, steps: int, smoothing_share: float | None = None
) -> tuple[list[float], list[float]]:
    """Return the measurements and actions of `steps` samples after the setpoint rose from 0 to 1.

    There is neither noise nor a limit. The first measurement is at the step itself.
    """
    if steps < 2:
        raise ControlError(f"a step response has two samples or more, not {steps}")
    times = np.arange(steps) * plant.sample_time_s
    to_action = _with_feedforward(
        law,
        _transfer((np.ones(1), np.ones(1)), plant.sample_time_s),
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
    """Return the loop from setpoint to the output of `from_error`; a feedforward bypasses the law."""
    if not isinstance(law, Proportional):
        return control.feedback(from_error, back)
    if not law.kp:
        return from_action * law.feedforward
    return control.feedback(from_error, back) * ((law.kp + law.feedforward) / law.kp)


def _back(plant: Plant, smoothing_share: float | None) -> control.TransferFunction:
    return _transfer(smoothing_fraction(smoothing_share), plant.sample_time_s)


def _transfer(fraction: Fraction, sample_time_s: float) -> control.TransferFunction:
    return control.tf(*fraction, sample_time_s)
