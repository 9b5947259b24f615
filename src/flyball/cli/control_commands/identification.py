"""`flyball control identify`: get samples, fit models, write and print them."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import typer

from flyball.cli.control_commands import plots
from flyball.cli.control_commands.display import Display, Unit
from flyball.cli.control_commands.documents import check_place, write_json
from flyball.cli.control_commands.failures import Interrupted, WrongUse, warn
from flyball.cli.control_commands.requests import ActuatorName, Excitation, Files, Fit, SignalName, Source
from flyball.cli.control_commands.series import Series, read_series, series_of
from flyball.cli.output import Output
from flyball.control import signals
from flyball.control.identification import PAIRS_PER_PARAMETER
from flyball.control.identification import identify as fit_plant
from flyball.control.lagged import MAX_DELAY
from flyball.control.model_file import model_to_json
from flyball.control.plant import NoPlant, Plant
from flyball.control.simulation import LinearPlant
from flyball.errors import ControlError


def identify(
    paths: Sequence[Path],
    source: Source | None,
    excitation: Excitation,
    sample_time_s: float,
    fit: Fit,
    files: Files,
    as_json: bool,
) -> None:
    """Fit a plant for each loop of the samples, from files or recorded now."""
    if paths and source:
        raise WrongUse("use --samples or --queue, not both")
    if not paths and not source:
        raise WrongUse("no samples given: use --samples for recorded ones, or --queue to record some")
    delay, order = _number("--delay", fit.delay, 0), _number("--order", fit.order, 1)
    plot = files.plot_path("model.svg")
    plots.check_name(plot)
    found = (
        read_series(paths, sample_time_s)
        if source is None
        else [_made(source, excitation, sample_time_s, delay, order, files, plot, as_json)]
    )
    fits = [(series, _fitted(series, delay, order)) for series in _of_loop(found, fit.loop)]
    model = files.folder / "model.json"
    drawn = [(series, plant) for series, plant in fits if isinstance(plant, Plant)]
    if not drawn:
        raise ControlError("; ".join(plant.reason for _, plant in fits if isinstance(plant, NoPlant)))
    write_json(model, model_to_json(plant for _, plant in fits))
    pictures = [
        plot if number == 1 else plot.with_stem(f"{plot.stem}-{number}") for number in range(1, len(drawn) + 1)
    ]
    for (series, plant), picture in zip(drawn, pictures, strict=True):
        predicted = predictions(series, plant)
        plots.save(plots.identification(series.measurements, series.actions, predicted, plant), picture)
    if source is not None and not as_json:
        typer.echo(f"samples: {files.folder / 'samples'}")
    _print([plant for _, plant in fits], model, pictures, Output(sys.stdout.buffer, as_json))


def predictions(series: Series, plant: Plant) -> list[float]:
    """Return one-step predictions of the measurements; NaN where there are too few earlier ones."""
    model = LinearPlant(plant)
    reach = model.memory_samples
    expected: list[float] = []
    for start, end in pairwise([0, *series.breaks, len(series.measurements)]):
        known = min(reach, end - start)
        expected += [math.nan] * known
        for place in range(start + known, end):
            before = slice(place - reach, place)
            expected.append(model.output(series.measurements[before], series.actions[before], 0.0))
    return expected


def _made(
    source: Source,
    excitation: Excitation,
    sample_time_s: float,
    delay: int | None,
    order: int | None,
    files: Files,
    plot: Path,
    as_json: bool,
) -> Series:
    """Consume a queue with varying actions, and return the samples."""
    past = order or 1
    needed = PAIRS_PER_PARAMETER * (2 * past + 1) + (MAX_DELAY if delay is None else delay) + past
    if excitation.count < needed:
        raise WrongUse(f"--count {excitation.count} is too low: this model needs at least {needed} samples")
    # Imported here: not needed for recorded samples.
    from flyball.cli.control_commands import live

    actions = actions_of(excitation, is_whole=source.actuator in (None, ActuatorName.WINDOW))
    check_place(plot)
    place = files.folder / "samples"
    display = Display(Unit(), as_json, files.is_quiet, len(actions))
    kept = live.excite(source, actions, sample_time_s, place, display)
    if kept.is_interrupted:
        again = f"use them with `flyball control identify --samples {place}`"
        raise Interrupted(f"interrupted: {len(kept.samples)} samples are kept in {place}; {again}")
    held_back = sum(sample.action < wanted - 1 for sample, wanted in zip(kept.samples, actions, strict=True))
    if held_back:
        warn(
            f"the queue ran empty: {held_back} of {len(actions)} samples were limited by arrivals and"
            " say little about the plant"
        )
    return series_of(kept.samples)


def actions_of(excitation: Excitation, *, is_whole: bool) -> list[float]:
    """Return the actions, one per sample; integers, if the actuator needs them."""
    lowest, highest, count, hold = excitation.lowest, excitation.highest, excitation.count, excitation.hold
    match excitation.signal:
        case SignalName.STAIRCASE:
            return signals.staircase(lowest, highest, count, hold=hold, is_integer=is_whole)
        case SignalName.PRBS:
            return signals.prbs(lowest, highest, count, hold, excitation.seed)
        case SignalName.RANDOM:
            return signals.random_steps(lowest, highest, count, hold, excitation.seed, is_whole)


def _number(flag: str, text: str, least: int) -> int | None:
    """Return a number of samples; None for auto."""
    if text == "auto":
        return None
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise WrongUse(f"invalid {flag} {text}: use a number of samples, or auto")
    return int(text)


def _of_loop(found: Sequence[Series], loop: str | None) -> Sequence[Series]:
    chosen = [series for series in found if loop in (None, series.loop)]
    if not chosen:
        known = ", ".join(sorted({series.loop for series in found}))
        raise ControlError(f"no samples of loop {loop!r}; available: {known}")
    return chosen


def _fitted(series: Series, delay: int | None, order: int | None) -> Plant | NoPlant:
    y, u = series.measurements, series.actions
    try:
        return fit_plant(
            y,
            u,
            sample_time_s=series.sample_time_s,
            loop=series.loop,
            delay=delay,
            order=order,
            breaks=series.breaks,
        )
    except ControlError as error:
        return NoPlant(series.loop, series.sample_time_s, len(y), str(error))


def _print(fits: Sequence[Plant | NoPlant], model: Path, pictures: Sequence[Path], out: Output) -> None:
    if out.is_json:
        plants = [plant.to_json() for plant in fits]
        out.json({"model": str(model), "plots": [str(picture) for picture in pictures], "plants": plants})
        return
    for plant in fits:
        out.show(f"loop {plant.loop or '-'}, a sample every {plant.sample_time_s:g} s", None)
        if isinstance(plant, NoPlant):
            out.show(f"  no model: {plant.reason}", None)
            continue
        out.table(("", ""), _rows(plant))
        for warning in plant.warnings:
            out.show(f"  warning: {warning}", None)
        failed = len(plant.objections)
        out.show(f"  tests: {f'{failed} failed; no design for this model is sound' if failed else 'passed'}", None)
    out.show(f"model: {model}", None)
    for picture in pictures:
        out.show(f"plot:  {picture}", None)


def _rows(plant: Plant) -> list[tuple[str, str]]:
    rows = []
    for name, value, number in (("a", plant.a, 0), ("b", plant.b, 1)):
        sure = ""
        if plant.intervals is not None:
            low, high = plant.intervals[number]
            sure = f" ({plant.confidence_ratio:.0%}: {low:.4g} to {high:.4g})"
        rows.append((f"  {name}", f"{value:.4g}{sure}"))
    if plant.order > 1:
        rows.append(("  further a, b", ", ".join(f"{value:.4g}" for value in (*plant.ar, *plant.bs))))
    rows.append(("  offset", f"{plant.offset:.4g}"))
    rows.append(("  gain", f"{plant.gain:.4g}"))
    delays = sorted({plant.delay, *(one.delay for one in plant.alternatives)})
    others = f"; the data allow {delays[0]} to {delays[-1]}" if len(delays) > 1 else ""
    rows.append(("  delay", f"{plant.delay} samples{others}"))
    rows.append(("  order", f"{plant.order}"))
    if plant.linear_range is not None:
        part = "all of it" if plant.linear_range.is_all else "a part"
        rows.append(("  linear", f"{plant.linear_range.lowest:.4g} to {plant.linear_range.highest:.4g}, {part}"))
    if plant.test is not None and plant.test.rmse is not None:
        r2 = "" if plant.test.r2 is None else f"R² {plant.test.r2:.3f}, "
        rows.append(("  test", f"{r2}RMSE {plant.test.rmse:.4g}, {plant.test.pairs} held-out samples"))
    return rows
