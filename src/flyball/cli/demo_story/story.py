"""The whole idea in seven parts: flood a node, record it, find its model, design a controller, close the loop.

It uses the lab, the pipeline and the functions of `flyball control` as a user would.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from flyball.cli.control_commands import plots
from flyball.cli.control_commands.controller_design import responses
from flyball.cli.control_commands.documents import read_plant, write_json
from flyball.cli.control_commands.laws import described, law_for
from flyball.cli.control_commands.requests import LawName, Tuning
from flyball.cli.demo_story.display import Display, Part
from flyball.cli.demo_story.figures import draw, held, table_of
from flyball.cli.demo_story.node import PASSWORD, USER, DemoNode, running_node
from flyball.cli.pipeline import Means
from flyball.control.documents import Design, design_to_json
from flyball.control.laws import law_to_json
from flyball.control.limits import Limits
from flyball.control.verification import certify
from flyball.errors import ControlError, LabError
from flyball.lab.campaign import run_all
from flyball.lab.experiment import Experiment, insisted, load
from flyball.lab.plan import plan
from flyball.lab.results import Results, read_json
from flyball.pipeline.analysis import Analysis, analyse, find_model
from flyball.pipeline.report import write_report
from flyball.trace.files import REQUESTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
PARTS = 7
# Pole of the closed loop: each sample halves the remaining error.
POLE = 0.5
SPARK_MEMORY = "1g"
# Time limit for a node's last trace file.
LAST_FILES_S = 15.0
FOREVER_S = 7 * 24 * 3600.0
BEFORE, STEPS, AFTER = "before", "steps", "after"


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options of the demo."""

    out: Path
    stays: bool = False
    is_short: bool = False
    store: str = "embedded"


# Called with the name of a part that starts and the node that it concerns.
OnPart = Callable[[str, DemoNode], None]


def ignore_part(part: str, node: DemoNode) -> None:
    """Do nothing when a part starts."""


def run_demo(wish: DemoOptions, console: Console, on_part: OnPart = ignore_part) -> None:
    """Run all parts and leave report, model and design in `wish.out`. Raises FlyballError if a part fails."""
    wish.out.mkdir(parents=True, exist_ok=True)
    display = Display(console, PARTS)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flyball-demo-")))
        node = _start(stack, display, folder, wish)
        stack.callback(display.listening.stop)
        _Story(wish, display, node, on_part).run()


def _start(stack: ExitStack, display: Display, folder: Path, wish: DemoOptions) -> DemoNode:
    why = "A broker with a journal in PostgreSQL and a console, in a temporary folder: there is nothing to prepare."
    with display.part("Start a node", why) as part:
        node = stack.enter_context(running_node(folder, wish.store, wish.out))
        display.listening.start(node.url)
        part.say(
            f"console: {node.console}   user {USER}, password {PASSWORD}", f"terminal: flyball top --url {node.url}"
        )
    return node


class _Story:
    """The parts from the second one on, which need a node."""

    def __init__(self, wish: DemoOptions, display: Display, node: DemoNode, on_part: OnPart) -> None:
        self._wish = wish
        self._display = display
        self._node = node
        self._on_part = on_part
        self._results = wish.out / "results"
        self._means = Means(memory=SPARK_MEMORY, log=wish.out / "spark.log")

    def run(self) -> None:
        self._flood()
        self._step()
        with ExitStack() as stack:
            spark = self._identify(stack)
            design = self._design()
            self._close(design)
            analysis = self._report(spark)
        self._compare(analysis)
        self._end(design)

    def _flood(self) -> None:
        why = (
            "Ten publishers send 1000 messages a second; the consumer is to handle 400, and its window was"
            " guessed by hand. Half-way, network and handlers take twice as long."
        )
        with self._part(BEFORE, "Before: flood it, with windows set by hand", why, is_live=True) as part:
            self._run(self._experiment(BEFORE), part)

    def _step(self) -> None:
        why = (
            "The window jumps at random without a controller: node and clients record what comes of it,"
            " which is all that there is to know about the plant."
        )
        with self._part(STEPS, "Record: the same flood with an open loop", why, is_live=True) as part:
            self._run(self._experiment(STEPS), part)
            files = list(self._results.rglob("*.parquet"))
            size = sum(file.stat().st_size for file in files) / 2**20
            part.say(f"{len(files)} trace files, {size:.1f} MiB: {self._results}")

    def _identify(self, stack: ExitStack) -> SparkSession:
        why = "The pipeline reads the traces on Spark and finds the model of the plant, and how sure it is of it."
        with self._part("identify", "Identify: run the pipeline on Spark", why) as part:
            part.stage("starting Spark", 0, 2)
            spark = stack.enter_context(self._means.spark(self._results))
            path = Path(
                find_model(
                    spark, "model", self._results, self._wish.out, lambda name, done, of: part.stage(name, 1, 2)
                )
            )
            plant = read_plant(path)
            words = f"y(k+1) = {plant.a:.3f} y(k) + {plant.b:.1f} u(k) {plant.offset:+.1f}"
            part.say(f"{words}: one more of window is worth {plant.gain:.0f} messages/s", f"model: {path}")
        return spark

    def _design(self) -> Design:
        why = "Gains for this model, and the proof that they hold for every plant that the traces allow."
        with self._part("design", "Design: a controller with its certificate", why) as part:
            plant = read_plant(self._wish.out / "model.json")
            experiment = self._experiment(AFTER)
            law = law_for(LawName.LAMBDA_PI, plant, Tuning(pole=POLE))
            limits = Limits(experiment.workload["lowest"], experiment.workload["highest"])
            certificate = certify(law, plant, limits)
            goal = float(experiment.workload["goal_per_s"])
            design = Design(plant.loop, law, limits, plant.sample_time_s, goal, None, plant, certificate)
            path = self._wish.out / "design.json"
            write_json(path, design_to_json(design))
            plots.save(plots.design(responses(law, plant), described(law)), path.with_suffix(".svg"))
            if certificate.reason is not None:
                raise ControlError(
                    f"the model does not allow a controller: {certificate.reason}; try again on a quieter machine"
                )
            part.say(
                f"{law.kind}: {described(law)}",
                f"certificate: sound, its largest pole is {certificate.largest_pole:.2f} at worst,"
                f" the gain may be {certificate.gain_margin:.1f} times as large",
                f"design: {path}",
            )
        return design

    def _close(self, design: Design) -> None:
        why = (
            "The same flood and the same trouble, but the window is up to the controller now:"
            f" see it at {self._node.console}/#/governor."
        )
        with self._part(AFTER, "After: close the loop", why, is_live=True) as part:
            self._run(self._governed(design), part)

    def _report(self, spark: SparkSession) -> Analysis:
        why = "The pipeline reads all traces once more: rates, latencies by phase, every loop, and the plant."
        with self._part("report", "Report: what was before, what is after", why) as part:
            _link_traces(self._node.traces, self._results)
            folder = self._wish.out / "report"
            analysis = analyse(spark, self._results, folder, part.stage)
            write_report(analysis, folder / "report.html", str(self._results))
        return analysis

    def _compare(self, analysis: Analysis) -> None:
        found = held(analysis.tables["closed_loops"], (BEFORE, AFTER))
        self._display.table(table_of(found))
        picture = self._wish.out / "report" / "before-after.svg"
        draw(found, analysis.tables["loops"], picture)
        self._display.say(f"\nreport:  {self._wish.out / 'report' / 'report.html'}\npicture: {picture}")
        self._on_part("end", self._node)

    def _end(self, design: Design) -> None:
        if not self._wish.stays:
            self._display.say("The node is stopped now; with --stay it runs on, and so does the loop.")
            return
        self._display.say(f"The loop runs on: {self._node.console}   Ctrl-C stops everything.")
        why = "Five publishers and the loop, until Ctrl-C."
        experiment = self._governed(design).model_copy(update={"name": "stay"})
        values = {"workload.producers": 5, "workload.schedule": [], "run.length_s": FOREVER_S}
        try:
            with self._display.part("Stay", why, is_live=True) as part:
                self._run(insisted(experiment, values, {}), part)
        except KeyboardInterrupt:
            self._display.say("stopped")
        finally:
            shutil.rmtree(self._results / "stay", ignore_errors=True)

    # Helpers of the parts

    @contextmanager
    def _part(self, name: str, title: str, why: str, *, is_live: bool = False) -> Iterator[Part]:
        self._on_part(name, self._node)
        with self._display.part(title, why, is_live=is_live) as part:
            yield part

    def _experiment(self, name: str) -> Experiment:
        """Return one of the experiments, on this node."""
        place: dict[str, object] = {"target.kind": "foreign", "target.addresses": [self._node.amqp]}
        place["target.label"] = "the demo's node"
        return insisted(load(HERE / f"{name}.toml"), {**place, "workload.report": self._node.http}, {})

    def _governed(self, design: Design) -> Experiment:
        return insisted(self._experiment(AFTER), {"workload.law": law_to_json(design.law)}, {})

    def _run(self, experiment: Experiment, part: Part) -> None:
        laid_out = plan(experiment, is_quick=self._wish.is_short)
        part.expect(laid_out.expected_s)
        results = Results(self._results, laid_out, "flyball demo --short" if self._wish.is_short else "flyball demo")
        results.open(is_fresh=True)
        failures = run_all(laid_out, results, part, keeps_going=False)
        if failures:
            raise LabError(f"{failures[0].reason}; see {failures[0].folder}")
        for manifest in map(results.manifest, laid_out.runs):
            part.say(_outcome(manifest))


def _outcome(manifest: Mapping[str, Any]) -> str:
    label = ", ".join(str(value) for value in manifest["factors"].values()) or "open loop"
    return f"{label}: {manifest['figures']['calls_per_s']:.0f} messages/s on average"


def _link_traces(traces: Path, results: Path) -> None:
    """Link the node's traces of a run into the folder of the run's clients."""
    for manifest_path in results.glob("*/run=*/run.json"):
        window = read_json(manifest_path)["measured"]
        for file in traces.glob(f"{REQUESTS.prefix}-*.parquet"):
            written_s = file.stat().st_mtime
            if window["from_us"] / 1e6 <= written_s <= window["until_us"] / 1e6 + LAST_FILES_S:
                place = manifest_path.parent / "traces" / file.name
                try:
                    os.link(file, place)
                except OSError:
                    # Another file system.
                    shutil.copyfile(file, place)
