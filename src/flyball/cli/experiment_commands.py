"""Implementation of `flyball lab`.

Reports need the pipeline, which is imported on demand.
"""

from __future__ import annotations

import shlex
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from flyball.cli.os_errors import explained
from flyball.cli.output import Output
from flyball.cli.session import FAILED, INTERRUPTED, WRONG_USE, fail
from flyball.errors import FlyballError, LabError
from flyball.lab.campaign import Failure, run_all
from flyball.lab.experiment import (
    SHIPPED,
    Experiment,
    experiments_in,
    find,
    insisted,
    label_of,
    shipped_experiments,
)
from flyball.lab.papers import PAPERS, current_name
from flyball.lab.plan import Plan, PlannedRun, in_order, plan
from flyball.lab.results import Results
from flyball.lab.runner import Live
from flyball.lab.workloads import make_workload


def list_experiments(folder: Path | None, as_json: bool) -> None:
    """Print the experiments of a folder, or the built-in ones; then the errors of invalid ones."""
    out = Output(sys.stdout.buffer, as_json)
    with _reporting_errors():
        found, mistakes = experiments_in(folder or SHIPPED)
        plans = [plan(experiment) for experiment in found]
    if as_json:
        for laid_out in plans:
            out.json(_facts(laid_out))
    elif plans:
        out.table(
            ("name", "title", "runs", "takes", "source"),
            [
                (p.experiment.name, p.experiment.title, len(p.runs), duration(p.expected_s), p.experiment.source)
                for p in plans
            ],
        )
    elif not mistakes:
        out.show("no experiments here", None)
    if folder is None and not as_json:
        out.show("\nPapers for `flyball lab reproduce PAPER`:\n", None)
        for paper in PAPERS:
            out.show(f"{paper.name}\n    {paper.citation}", None)
    if mistakes:
        fail("; ".join(map(str, mistakes)))


def _facts(laid_out: Plan) -> dict[str, object]:
    experiment = laid_out.experiment
    return {
        "name": experiment.name,
        "title": experiment.title,
        "source": experiment.source,
        "runs": len(laid_out.runs),
        "expected_s": round(laid_out.expected_s, 1),
    }


def show(name: str, is_quick: bool, assignments: list[str]) -> None:
    """Print the plan of an experiment."""
    with _reporting_errors():
        laid_out = plan(_changed(find(name), assignments), is_quick=is_quick)
    out = Output(sys.stdout.buffer)
    experiment = laid_out.experiment
    out.show(f"{experiment.name}: {experiment.title}", None)
    if experiment.about:
        out.show(f"\n{experiment.about.strip()}", None)
    out.show("", None)
    out.table(("", ""), list(_settings_rows(experiment)))
    out.show("", None)
    cells = [run for run in laid_out.runs if run.repetition == 1]
    cells.sort(key=lambda run: [list(levels).index(run.factors[f]) for f, levels in _labels(experiment).items()])
    if experiment.sweep:
        out.table(list(experiment.sweep), [list(run.factors.values()) for run in cells])
        out.show("", None)
    parts = f"{_count(len(cells), 'cell')}, {_count(experiment.run.repetitions, 'repetition')} each"
    out.show(f"{parts}: {_count(len(laid_out.runs), 'run')}, about {duration(laid_out.expected_s)}", None)


def _labels(experiment: Experiment) -> dict[str, list[object]]:
    return {factor: [label_of(level) for level in levels] for factor, levels in experiment.sweep.items()}


def _settings_rows(experiment: Experiment) -> list[tuple[str, str]]:
    target, run = experiment.target, experiment.run
    rows: list[tuple[str, str]] = [("target", target.kind)]
    if target.kind == "flyball":
        rows.append(("nodes", f"{target.nodes}, store {label_of(target.store)}"))
    if target.addresses:
        rows.append(("addresses", ", ".join(target.addresses)))
    rows += [(f"setting {name}", str(value)) for name, value in target.settings.items()]
    rows += [(f"workload {name}", str(value)) for name, value in experiment.workload.items()]
    if experiment.noise.processes:
        rows.append(("busy neighbours", str(experiment.noise.processes)))
    hosts = [*target.hosts, *experiment.clients.hosts]
    if hosts:
        rows.append(("hosts", ", ".join(hosts)))
    times = f"warm-up {run.warm_up_s:g} s, measured {run.length_s:g} s, cool-down {run.cool_down_s:g} s"
    rows.append(("each run", times))
    if experiment.needs:
        rows.append(("needs", f"the results of {experiment.needs}"))
    if experiment.source:
        rows.append(("source", experiment.source))
    return rows


def run(name: str, out: Path, is_quick: bool, is_fresh: bool, keeps_going: bool, assignments: list[str]) -> None:
    """Run an experiment, or its missing runs."""
    with _reporting_errors():
        laid_out = plan(_changed(find(name), assignments), is_quick=is_quick)
        laid_out.check_packages()
        results = Results(out, laid_out, _run_command(name, is_quick, assignments))
        _exit_if_failed(_run_plan(laid_out, results, is_fresh, keeps_going))
    typer.echo(f"\nresults: {results.folder}\nreport:  flyball pipeline report {out}")


def _run_command(name: str, is_quick: bool, assignments: list[str]) -> str:
    """Return the command that repeats an experiment, without the output folder."""
    options = [*(["--quick"] if is_quick else []), *(part for text in assignments for part in ("--set", text))]
    return shlex.join(["flyball", "lab", "run", current_name(name), *options])


def _run_plan(laid_out: Plan, results: Results, is_fresh: bool, keeps_going: bool) -> list[Failure]:
    """Run the plan, print the figures, and return the failures."""
    results.open(is_fresh=is_fresh)
    with Display(laid_out) as display:
        failures = run_all(laid_out, results, display, keeps_going=keeps_going)
    display.print_figures()
    return failures


def _exit_if_failed(failures: list[Failure]) -> None:
    if failures:
        first = failures[0]
        others = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        fail(
            f"{first.run_id} failed{others}: {first.reason}. Its logs are in {first.folder};"
            " repeat the command to continue"
        )


def compare(folders: list[Path], out: Path) -> None:
    """Write one report about several result folders."""
    if len(folders) < 2:
        fail("use two or more result folders", WRONG_USE)
    with _reporting_errors():
        # Imported here: slow, and may not be installed.
        from flyball.cli.pipeline import write_comparison_of

        page = write_comparison_of(folders, out)
    typer.echo(f"report: {page}")


def auction(host: str, port: int, options: Mapping[str, Any]) -> None:
    """Serve the auction site until Ctrl-C."""
    with _reporting_errors():
        make_workload({"kind": "auction"}).check_packages()
        # Imported here: its packages may not be installed.
        from flyball.cli.auction import serve_auction

        serve_auction(host, port, options)


def reproduce(paper: str, out: Path, is_quick: bool, is_fresh: bool, keeps_going: bool) -> None:
    """Run all experiments of a paper and write a report."""
    with _reporting_errors():
        # Imported here: slow, and may not be installed.
        from flyball.cli.pipeline import check_packages, write_report_of

        # Checked now, not after hours of measurements.
        check_packages()
        plans = [plan(experiment, is_quick=is_quick) for experiment in in_order(_experiments_of(paper))]
        for laid_out in plans:
            laid_out.check_packages()
        failures: list[Failure] = []
        for number, laid_out in enumerate(plans, 1):
            left = duration(sum(later.expected_s for later in plans[number - 1 :]))
            title = f"{laid_out.experiment.name}: {laid_out.experiment.title}"
            typer.echo(f"\n{number} of {len(plans)}, about {left} left in all: {title}")
            results = Results(out / "results", laid_out, _run_command(laid_out.experiment.name, is_quick, []))
            try:
                failures += _run_plan(laid_out, results, is_fresh, keeps_going)
            except LabError as error:
                if not keeps_going:
                    raise
                # Its prerequisite experiment has failed.
                failures.append(Failure(laid_out.experiment.name, str(error), results.folder))
            if not keeps_going:
                _exit_if_failed(failures)
        page = write_report_of(out / "results", out)
        typer.echo(f"\nreport: {page}\ntables: {out / 'tables'}")
        _exit_if_failed(failures)


def _experiments_of(paper: str) -> list[Experiment]:
    folders = [each.name for each in PAPERS]
    folder = current_name(paper)
    if folder not in folders:
        raise LabError(f"unknown paper {paper!r}: use {', '.join(folders[:-1])} or {folders[-1]}")
    return [experiment for experiment in shipped_experiments() if experiment.name.startswith(f"{folder}/")]


def _changed(experiment: Experiment, assignments: list[str]) -> Experiment:
    """Return the experiment with all --set overrides applied together: values may depend on each other."""
    values: dict[str, object] = {}
    sweep: dict[str, list[Any]] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals:
            raise LabError(f"invalid --set {text}: use KEY=VALUE, as in workload.clients=5")
        if key.startswith("sweep."):
            levels = _value(value)
            sweep[key.removeprefix("sweep.")] = levels if isinstance(levels, list) else [levels]
        elif key in experiment.sweep:
            raise LabError(f"--set {key}: the value is swept; set its levels, as in --set 'sweep.{key}=[1, 2]'")
        else:
            values[key] = _value(value)
    return insisted(experiment, values, sweep)


def _value(text: str) -> Any:
    """Parse a TOML value; anything else is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


class Display:
    """Shows the progress of runs: a bar on a terminal, else a line per run."""

    def __init__(self, laid_out: Plan) -> None:
        self._plan = laid_out
        self._console = Console()
        self._progress = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task("", total=len(laid_out.runs), left="")
        self._done: list[tuple[PlannedRun, Mapping[str, Any]]] = []
        self._expected_left_s = laid_out.expected_s
        self._expected_made_s = 0.0
        self._made_s = 0.0
        self._began = 0.0
        self._run_text = ""

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def begin(self, run: PlannedRun) -> None:
        self._began = time.monotonic()
        cell = ", ".join(f"{factor.rpartition('.')[2]} {label}" for factor, label in run.factors.items())
        self._run_text = f"{cell or run.experiment.title}, repetition {run.repetition}"
        self._update(self._run_text)

    def live(self, live: Live) -> None:
        self._update(f"{self._run_text}: {live.stage}, {live.calls_per_s:,.0f} calls/s, {live.failed} failed")

    def end(self, run: PlannedRun, manifest: Mapping[str, Any]) -> None:
        self._done.append((run, manifest))
        self._expected_left_s -= run.expected_s
        if self._began:
            self._made_s += time.monotonic() - self._began
            self._expected_made_s += run.expected_s
            self._began = 0.0
            figures = manifest["figures"]
            self._say(
                f"{run.run_id}: {figures['calls_per_s']:,.0f} calls/s, {figures['response_ms']:.3f} ms",
            )
            for warning in manifest["warnings"]:
                self._say(f"  warning: {warning}")
        self._progress.advance(self._task)
        self._update("")

    def fail(self, run: PlannedRun, reason: str, folder: Path) -> None:
        self._expected_left_s -= run.expected_s
        self._began = 0.0
        self._say(f"{run.run_id}: FAILED: {reason}")
        self._progress.advance(self._task)

    def print_figures(self) -> None:
        """Print the means of each cell."""
        cells: dict[tuple[object, ...], list[Mapping[str, Any]]] = {}
        for run, manifest in self._done:
            cells.setdefault(tuple(run.factors.values()), []).append(manifest["figures"])
        factors = list(self._plan.experiment.sweep)
        order = [list(levels) for levels in _labels(self._plan.experiment).values()]
        rows = [
            (*cell, len(figures), round(_mean(figures, "calls_per_s"), 1), round(_mean(figures, "response_ms"), 3))
            for cell, figures in sorted(
                cells.items(),
                key=lambda item: [levels.index(label) for levels, label in zip(order, item[0], strict=True)],
            )
        ]
        if rows:
            typer.echo()
            Output(sys.stdout.buffer).table((*factors, "runs", "calls/s", "response ms"), rows)

    def _update(self, text: str) -> None:
        # Remaining time, corrected by the accuracy of earlier estimates.
        ratio = self._made_s / self._expected_made_s if self._expected_made_s else 1.0
        running_s = time.monotonic() - self._began if self._began else 0.0
        left_s = max(0.0, self._expected_left_s * ratio - running_s)
        self._progress.update(self._task, description=text, left=f"{duration(left_s)} left")

    def _say(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)


def _mean(figures: list[Mapping[str, Any]], key: str) -> float:
    return sum(float(one[key]) for one in figures) / len(figures)


def duration(seconds: float) -> str:
    """Format a duration."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


@contextmanager
def _reporting_errors() -> Iterator[None]:
    """Turn errors into one line and an exit code."""
    try:
        yield
    except FlyballError as error:
        fail(str(error), FAILED)
    except OSError as error:
        # A full disk, or a folder without permission.
        fail(explained(error))
    except KeyboardInterrupt:
        fail("interrupted: completed runs are kept; repeat the command without --fresh to continue", INTERRUPTED)
