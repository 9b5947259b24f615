"""`flyball control simulate`: simulate control laws on a plant, print and plot the results."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from flyball.cli.control_commands import plots
from flyball.cli.control_commands.display import HEADINGS, figures_row
from flyball.cli.control_commands.documents import read_design, read_plant
from flyball.cli.control_commands.failures import WrongUse
from flyball.cli.control_commands.laws import check_tuning, described, law_for, limits_of
from flyball.cli.control_commands.requests import Files, LawName, Trial, Tuning
from flyball.cli.output import Output
from flyball.control.assessment import assess
from flyball.control.controller import Controller, Smoothing
from flyball.control.documents import Design
from flyball.control.limits import Limits
from flyball.control.plant import OperatingPoint, Plant
from flyball.control.simulation import LinearPlant, SimulatedPlant, Simulation, WindowPlant
from flyball.control.simulation import simulate as simulated
from flyball.errors import ControlError

CURVE_POINTS = 24


@dataclass(frozen=True, slots=True)
class Subject:
    """The simulated plant, and the model for which laws are designed."""

    plant: SimulatedPlant
    model: Plant


def simulate(
    model: Path | None,
    plant: str | None,
    names: Sequence[LawName],
    paths: Sequence[Path],
    tuning: Tuning,
    trial: Trial,
    loop: str | None,
    files: Files,
    as_json: bool,
) -> None:
    """Run each law and each design on the same plant with the same noise."""
    if (model is None) == (plant is None):
        raise WrongUse("use either a model.json or --plant")
    plot = files.plot_path("simulate.svg")
    plots.check_name(plot)
    if not (math.isfinite(trial.noise_ratio) and (trial.start is None or math.isfinite(trial.start))):
        raise WrongUse("--noise and --start must be finite")
    if not (names or paths):
        names = [LawName.LAMBDA_PI]
    check_tuning(names, tuning)
    designs = {str(path) if len(paths) > 1 else "design": read_design(path) for path in paths}
    known = None if model is None else read_plant(model, loop)
    setpoint = _setpoint(trial.setpoint, list(designs.values()), known)
    limits = limits_of(trial.limits)
    subject = (
        Subject(LinearPlant(known, trial.noise_ratio * setpoint), known)
        if known is not None
        else _named_plant(plant or "", setpoint, limits, trial.noise_ratio)
    )
    contestants = {
        **{name.value: _designed(name, subject.model, tuning, limits) for name in names},
        **{f"{name}: {found.law.kind}": found for name, found in designs.items()},
    }
    runs = {name: _run(found, subject.plant, setpoint, trial) for name, found in contestants.items()}
    traces = [
        plots.Trace(name, range(trial.steps), run.measurements, run.actions, run.setpoints)
        for name, run in runs.items()
    ]
    plots.save(plots.loops(traces, "measurement", "samples"), plot)
    figures = {name: assess(run.measurements, setpoint) for name, run in runs.items()}
    out = Output(sys.stdout.buffer, as_json)
    if as_json:
        loops = [{"law": name, **asdict(found)} for name, found in figures.items()]
        out.json({"setpoint": setpoint, "steps": trial.steps, "loops": loops, "plot": str(plot)})
        return
    out.table(
        ("law", *HEADINGS, "gains"),
        [(name, *figures_row(found), described(contestants[name].law)) for name, found in figures.items()],
    )
    out.show(f"plot: {plot}", None)


def _setpoint(wanted: float | None, designs: Sequence[Design], plant: Plant | None) -> float:
    if wanted is not None:
        return wanted
    for found in designs:
        if found.setpoint is not None:
            return found.setpoint
    if plant is not None and plant.operating_point is not None:
        return plant.operating_point.measurement
    raise WrongUse("missing --setpoint")


def _named_plant(text: str, setpoint: float, limits: Limits, noise_ratio: float) -> Subject:
    kind, _, numbers = text.partition(":")
    try:
        first, second = (float(number) for number in numbers.split(","))
    except ValueError:
        raise WrongUse(
            f"invalid --plant {text}: use two numbers, as in little:1250,3.34 or linear:0.26,59.73"
        ) from None
    if kind == "linear":
        model = Plant(a=first, b=second)
        return Subject(LinearPlant(model, noise_ratio * setpoint), model)
    if kind == "little":
        if not (first > 0 and second > 0 and 0 < setpoint < first):
            raise ControlError(
                f"--setpoint {setpoint:g} is out of reach: --plant {text} yields more than 0 and less than {first:g}"
            )
        curve = WindowPlant(first, second, noise_ratio)
        return Subject(curve, _straightened(curve, setpoint, limits))
    raise WrongUse(f"unknown --plant {text}: use little:A,B or linear:A,B")


def _straightened(curve: WindowPlant, setpoint: float, limits: Limits) -> Plant:
    """Return the tangent to the curve at the setpoint, and points of the curve."""
    action = curve.action_for(setpoint)
    slope = curve.slope_at(action)
    lowest, highest = max(limits.lowest, curve.half_at / 100), max(limits.highest, action * 2)
    # Evenly in logarithms: the bend is near the lower end.
    actions = [lowest * (highest / lowest) ** (place / (CURVE_POINTS - 1)) for place in range(CURVE_POINTS)]
    return Plant(
        a=0.0,
        b=slope,
        offset=setpoint - slope * action,
        operating_point=OperatingPoint(action, setpoint),
        curve=tuple((u, curve.output((), (u,), 0.0)) for u in actions),
    )


def _designed(name: LawName, plant: Plant, tuning: Tuning, limits: Limits) -> Design:
    try:
        return Design(plant.loop, law_for(name, plant, tuning), limits, plant.sample_time_s)
    except ControlError as error:
        raise ControlError(f"{name}: {error}") from error


def _run(found: Design, plant: SimulatedPlant, setpoint: float, trial: Trial) -> Simulation:
    smoothing = None if found.smoothing_share is None else Smoothing(found.smoothing_share)
    start = found.limits.lowest if trial.start is None else trial.start
    controller = Controller(found.law, found.limits, setpoint, start, smoothing)
    return simulated(controller, plant, trial.steps, seed=trial.seed, is_integer=trial.is_quantised)
