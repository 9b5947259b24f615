"""Shows samples of a loop as they arrive: one changing line on a terminal, else a line per sample, or JSON.

Also formats the figures of a loop.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from typing import Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn

from flyball.cli.output import Output
from flyball.control.assessment import LoopFigures
from flyball.control.loop import Sample

HEADINGS = ("mean", "std", "settled after", "overshoot")


def figures_row(figures: LoopFigures) -> tuple[str, str, str, str]:
    """Return mean, standard deviation, settling time and overshoot."""
    settled = "never" if figures.settling_samples is None else f"{figures.settling_samples} samples"
    return f"{figures.mean:.4g}", f"{figures.std:.3g}", settled, f"{figures.overshoot:.0%}"


@dataclass(frozen=True, slots=True)
class Unit:
    """Converts a measurement to its display unit."""

    name: str = "messages/s"
    factor: float = 1.0

    def text(self, value: float) -> str:
        return f"{value * self.factor:.4g}"


class Display:
    """Shows samples while entered: with their setpoint, or their number out of `most_samples`."""

    def __init__(self, unit: Unit, as_json: bool, is_quiet: bool, most_samples: int | None = None) -> None:
        self._unit = unit
        self._out = Output(sys.stdout.buffer, as_json)
        console = Console(stderr=True)
        columns: list[ProgressColumn] = [TextColumn("{task.description}"), TimeElapsedColumn()]
        if most_samples is not None:
            columns = [BarColumn(bar_width=24), MofNCompleteColumn(), *columns]
        self._has_goal = most_samples is None
        self._is_quiet = is_quiet
        self._is_live = console.is_terminal and not (as_json or is_quiet)
        self._progress = Progress(*columns, console=console, transient=True, disable=not self._is_live)
        self._task = self._progress.add_task("connecting", total=most_samples)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def sample(self, sample: Sample) -> None:
        """Show a sample."""
        if self._is_live:
            self._progress.update(self._task, advance=1, description=self._text(sample))
            return
        if self._is_quiet:
            return
        facts = {name: value for name, value in asdict(sample).items() if name != "at_s"}
        seconds = sample.sequence * sample.sample_time_s
        self._out.show(f"{seconds:g} s: {self._text(sample)}", facts)

    def say(self, text: str) -> None:
        """Print a message above the samples."""
        if self._is_live:
            self._progress.console.print(f"flyball: {text}", markup=False, highlight=False, soft_wrap=True)
        else:
            typer.echo(f"flyball: {text}", err=True)

    def _text(self, sample: Sample) -> str:
        goal = f", setpoint {self._unit.text(sample.setpoint)}" if self._has_goal else ""
        return f"{self._unit.text(sample.measurement)} {self._unit.name}{goal}, action {sample.action:.4g}"
