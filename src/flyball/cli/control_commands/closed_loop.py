"""`flyball control run`: hold a goal on a queue, and print the figures."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from flyball.cli.control_commands import live, plots
from flyball.cli.control_commands.display import Display, Unit, figures_row
from flyball.cli.control_commands.documents import check_place, read_design
from flyball.cli.control_commands.failures import Interrupted, WrongUse, warn
from flyball.cli.control_commands.handlers import handler_of
from flyball.cli.control_commands.laws import goal_warning
from flyball.cli.control_commands.requests import Files, Source, WantedGoal
from flyball.cli.output import Output
from flyball.client.adaptive import AdaptiveConsumer, AdaptiveOptions, Fast, Goal, Latency, Rate
from flyball.client.reporting import LoopReporter
from flyball.control.assessment import LoopFigures, assess
from flyball.control.documents import Design
from flyball.control.loop import Sample
from flyball.errors import ControlError

FEWEST_SAMPLES = 2


def run(
    source: Source,
    wanted: WantedGoal,
    design_path: Path | None,
    is_shadow: bool,
    seconds: float | None,
    sample_time_s: float | None,
    samples: Path | None,
    report: str | None,
    files: Files,
    as_json: bool,
) -> None:
    """Run an adaptive consumer until Ctrl-C or the time limit; then print its figures and plot it."""
    plot = files.plot_path("run.svg")
    plots.check_name(plot)
    live.check_url(source.url)
    design = None if design_path is None else read_design(design_path)
    goal, unit = goal_of(wanted, design)
    if wanted.is_fast and source.concurrency is None:
        raise WrongUse("--fast needs --concurrency: with a handler per message, no message ever waits")
    if design is not None and sample_time_s not in (None, design.sample_time_s):
        raise WrongUse(f"--sample-time {sample_time_s:g}: the design needs {design.sample_time_s:g} s")
    between_s = sample_time_s or (design.sample_time_s if design else 1.0)
    if seconds is not None and seconds < FEWEST_SAMPLES * between_s:
        raise WrongUse(
            f"--seconds {seconds:g} is too short: figures need {FEWEST_SAMPLES} samples, one every {between_s:g} s"
        )
    handler = handler_of(source.handler, source.handler_ms)
    reporter = None if report is None else LoopReporter(report)
    check_place(plot)
    if design is not None:
        warn(goal_warning(design.plant, goal.setpoint))

    def consumer(record: live.Record) -> AdaptiveConsumer:
        return AdaptiveConsumer(
            source.url,
            source.queue,
            handler,
            goal,
            options=AdaptiveOptions(
                actuator=None if source.actuator is None else live.new_actuator(source.actuator),
                design=design,
                sample_time_s=sample_time_s,
                concurrency=source.concurrency,
                record=record,
                is_shadow=is_shadow,
                reporter=reporter,
            ),
        )

    kept = live.consume(
        consumer,
        Display(unit, as_json, files.is_quiet),
        samples,
        # Slightly longer, to include the sample at the end.
        seconds=None if seconds is None else seconds + between_s / 4,
    )
    _print(kept, goal.setpoint, unit, plot, samples, Output(sys.stdout.buffer, as_json))
    if kept.is_interrupted and seconds is not None:
        raise Interrupted("interrupted: the figures cover the time until then")


def goal_of(wanted: WantedGoal, design: Design | None) -> tuple[Goal, Unit]:
    """Return the requested goal with its unit; without one, the rate of the design."""
    given = [wanted.rate_per_s is not None, wanted.latency_ms is not None, wanted.is_fast]
    if sum(given) > 1:
        raise WrongUse("use only one of --rate, --latency-ms and --fast")
    if wanted.latency_ms is not None:
        return Latency(wanted.latency_ms / 1000), Unit("ms", 1000.0)
    if wanted.is_fast:
        return Fast(), Unit("messages waiting")
    rate_per_s = wanted.rate_per_s
    if rate_per_s is None and design is not None:
        rate_per_s = design.setpoint
    if rate_per_s is None:
        raise WrongUse("no goal given: use --rate, --latency-ms or --fast, or a --design with a setpoint")
    return Rate(rate_per_s), Unit()


def _print(kept: live.Kept, setpoint: float, unit: Unit, plot: Path, samples: Path | None, out: Output) -> None:
    found = kept.samples
    if kept.failed_handlers and not out.is_json:
        out.show(f"warning: the handler failed {kept.failed_handlers} times; those messages were requeued", None)
    if len(found) < FEWEST_SAMPLES:
        raise ControlError(f"too few samples for figures ({len(found)} of {FEWEST_SAMPLES}): run longer")
    figures = assess([sample.measurement for sample in found], setpoint)
    plots.save(plots.loops([_trace(found, unit)], unit.name, "seconds"), plot)
    if out.is_json:
        facts = {"samples": len(found), "setpoint": setpoint, **asdict(figures)}
        out.json({**facts, "failed_handlers": kept.failed_handlers, "plot": str(plot)})
        return
    mean, std, settled, overshoot = figures_row(_scaled(figures, unit))
    out.table(
        ("", ""),
        [
            ("goal", f"{unit.text(setpoint)} {unit.name}"),
            ("mean", f"{mean} {unit.name}"),
            ("standard deviation", std),
            ("settled after", settled),
            ("overshoot", overshoot),
        ],
    )
    if samples is not None:
        out.show(f"samples: {samples}", None)
    out.show(f"plot: {plot}", None)


def _scaled(figures: LoopFigures, unit: Unit) -> LoopFigures:
    scaled = {name: getattr(figures, name) * unit.factor for name in ("mean", "std", "mean_error")}
    return replace(figures, **scaled)


def _trace(found: Sequence[Sample], unit: Unit) -> plots.Trace:
    return plots.Trace(
        found[0].loop,
        [sample.sequence * sample.sample_time_s for sample in found],
        [sample.measurement * unit.factor for sample in found],
        [sample.action for sample in found],
        [sample.setpoint * unit.factor for sample in found],
    )
