"""Flyball and RabbitMQ side by side: rates, latencies and memory of both under the same load, and their ratios.

With --baseline-python another Flyball takes RabbitMQ's place: a change compared with what was before it.

    python -m bench.versus_rabbitmq                                      # everything, about 40 minutes
    python -m bench.versus_rabbitmq --lines 'durable-*,transient' --repeat 3 --seconds 5
    python -m bench.versus_rabbitmq --flyball-python PYTHON --flyball-python COMPILED/bin/python
    python -m bench.versus_rabbitmq --baseline-python BEFORE/bin/python --flyball-python NOW/bin/python

Each measurement has a broker of its own, fresh in a temporary folder, and the machine to itself: a broker that stays
up while the other is measured still vacuums, compacts and collects what the line before left behind. Flyball runs on
its embedded PostgreSQL, fsync and trace on; RabbitMQ with its default settings.
Repetitions are interleaved, figures are medians.

Memory is the resident memory of RabbitMQ's or Flyball's process and what PostgreSQL's processes have (PSS: what they
share, as the buffers, counts once). Machines are noisy: compare ratios of one run, not figures of two.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, astuple, dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import psutil
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.amqpload import Broker, Cores, LoadFailed, build, generate, idle_connections
from bench.nodes import environment_of, node
from flyball.lab.rabbitmq import RabbitMqFailed, rabbitmq

SOURCE = Path(__file__).parents[2] / "shared" / "bench"
MIB = 2**20
QUIET_CORES = 0.1
QUIET_LIMIT_S = 6.0
# A measurement with more CPU time of other processes is doubtful: writing to disk alone costs the kernel some.
BUSY_CORES = 0.3
# A queue that gets this much more than it delivers is not in a steady state.
GROWING_RATIO = 1.1
SETTLED_RATIO = 0.005
SETTLE_LIMIT_S = 20.0
WARM_UP_CONNECTIONS = 50

DURABLE = ("--durable", "--persistent", "--confirms", "100", "--prefetch", "100")


@dataclass(slots=True, frozen=True)
class Outcome:
    """Result of one measurement: its figures by their units, and CPU time by process, where that was measured."""

    figures: dict[str, float]
    cores: Cores | None = None
    remark: str = ""


@dataclass(slots=True, frozen=True)
class Bench:
    """Requirements of a measurement besides the broker."""

    program: Path
    warm_up_s: float
    seconds: float


Measure = Callable[[Bench, Broker], Outcome]


@dataclass(slots=True, frozen=True)
class Line:
    """Something to be measured of each contender."""

    name: str
    title: str
    measure: Measure


@dataclass(slots=True, frozen=True)
class Contender:
    """A broker to be measured, and how to start one."""

    name: str
    start: Callable[[Path], AbstractContextManager[Broker]]


def rate(*arguments: str) -> Measure:
    """Messages delivered per second."""

    def measure(bench: Bench, broker: Broker) -> Outcome:
        run = generate(bench.program, broker, arguments, bench.warm_up_s, bench.seconds)
        published, delivered = run.report["published_per_s"], run.report["delivered_per_s"]
        remark = f"{published:,.0f} messages/s came in" if published > GROWING_RATIO * delivered else ""
        return Outcome({"messages/s": delivered}, run.cores, remark)

    return measure


def latency(*arguments: str) -> Measure:
    """Time from when a message was due to its delivery."""

    def measure(bench: Bench, broker: Broker) -> Outcome:
        run = generate(bench.program, broker, arguments, bench.warm_up_s, bench.seconds)
        found = run.report["latency_ms"]
        return Outcome({"p50 ms": found["p50"], "p99 ms": found["p99"]}, run.cores)

    return measure


def backlog(messages: int) -> Measure:
    """Rates of filling a queue without readers, and then of emptying it."""

    def measure(bench: Bench, broker: Broker) -> Outcome:
        options = ("--durable", "--persistent", "--confirms", "1000", "--prefetch", "1000")
        run = generate(bench.program, broker, [*options, "--prefill", str(messages)])
        figures = {"filled/s": run.report["prefill_per_s"], "drained/s": run.report["drain_per_s"]}
        return Outcome(figures, run.cores)

    return measure


def backlog_memory(messages: int) -> Measure:
    """Memory of a broker while messages wait."""

    def measure(bench: Bench, broker: Broker) -> Outcome:
        options = ["--durable", "--persistent", "--confirms", "1000", "--consumers", "0", "--keep"]
        generate(bench.program, broker, [*options, "--prefill", str(messages)])
        return Outcome({"MiB": settled_memory_bytes(broker) / MIB})

    return measure


def idle_memory(connections: int) -> Measure:
    """Memory that connections take which do nothing."""

    def measure(bench: Bench, broker: Broker) -> Outcome:
        # The first ones also pay for what all share.
        with idle_connections(bench.program, broker, WARM_UP_CONNECTIONS):
            before = settled_memory_bytes(broker)
            with idle_connections(bench.program, broker, connections):
                return Outcome({"MiB": (settled_memory_bytes(broker) - before) / MIB})

    return measure


def declaring(queues: int) -> Measure:
    """Time to declare queues, one after the other on one channel."""

    def measure(bench: Bench, broker: Broker) -> Outcome:
        options = ["--durable", "--keep", "--producers", "0", "--consumers", "0", "--queues", str(queues)]
        run = generate(bench.program, broker, options)
        return Outcome({"s": run.report["declare_s"]}, run.cores)

    return measure


def all_lines(options: argparse.Namespace) -> list[Line]:
    """Return what there is to measure."""
    many = f"{options.messages:,} messages"
    return [
        Line("durable-1", "durable, 1/1", rate(*DURABLE)),
        Line("durable-4", "durable, 4/4", rate(*DURABLE, *clients(4))),
        Line("durable-16", "durable, 16/16, 4 queues", rate(*DURABLE, *clients(16), "--queues", "4")),
        Line("get-50", "50 clients send and get", rate(*closed_loop("get"))),
        Line("consume-50", "50 clients send and consume", rate(*closed_loop("consume"))),
        Line("transient", "transient, 1/1", rate("--autoack")),
        Line("size-16", "durable, 1/1, 16 B", rate(*DURABLE, "--size", "16")),
        Line("size-1024", "durable, 1/1, 1 KiB", rate(*DURABLE, "--size", "1024")),
        Line("size-4096", "durable, 1/1, 4 KiB", rate(*DURABLE, "--size", "4096")),
        Line("size-16384", "durable, 1/1, 16 KiB", rate(*DURABLE, "--size", "16384")),
        Line("latency", "durable, 1/1, 1,000/s", latency(*DURABLE, "--rate", "1000")),
        Line("backlog", many, backlog(options.messages)),
        Line("backlog-memory", many, backlog_memory(options.messages)),
        Line("idle-memory", f"{options.connections:,} idle connections", idle_memory(options.connections)),
        Line("declare", f"declare {options.queues:,} queues", declaring(options.queues)),
    ]


def clients(count: int) -> tuple[str, ...]:
    return ("--producers", str(count), "--consumers", str(count))


def closed_loop(pop: str) -> tuple[str, ...]:
    return (*DURABLE, "--confirms", "1", "--mode", "closed-loop", "--producers", "50", "--pop", pop)


def settled_memory_bytes(broker: Broker) -> int:
    """Return the broker's memory once it stays the same for a second, or after a while."""
    latest = broker.memory_bytes()
    end = time.monotonic() + SETTLE_LIMIT_S
    while time.monotonic() < end:
        time.sleep(1.0)
        previous, latest = latest, broker.memory_bytes()
        if abs(latest - previous) <= SETTLED_RATIO * previous:
            break
    return latest


@contextmanager
def start_rabbitmq(folder: Path) -> Iterator[Broker]:
    with rabbitmq(folder) as running:
        yield Broker(f"amqp://guest:guest@{running.host}:{running.port}", running.process)


def rival_of(baseline_python: str | None) -> Contender:
    """Return what Flyball is compared with: RabbitMQ, or the Flyball of another interpreter."""
    if baseline_python is None:
        return Contender("RabbitMQ", start_rabbitmq)
    return Contender(f"baseline, {build_of(baseline_python)}", partial(start_flyball, baseline_python))


def flyballs_on(pythons: list[str]) -> list[Contender]:
    """Return contenders that run the Flyball of each interpreter."""
    builds = [build_of(python) for python in pythons]
    return [
        Contender(name if builds.count(name) == 1 else f"{name}, {python}", partial(start_flyball, python))
        for name, python in zip(builds, pythons, strict=True)
    ]


def build_of(python: str) -> str:
    """Return whether the interpreter's Flyball is compiled. Raises LoadFailed if it has none."""
    question = "import flyball.model as module; print(module.__file__)"
    try:
        answer = subprocess.run(
            [python, "-c", question], env=environment_of(python), check=True, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise LoadFailed(f"{python} cannot run Flyball: {getattr(error, 'stderr', None) or error}") from error
    return "pure Python" if answer.stdout.strip().endswith(".py") else "compiled"


@contextmanager
def start_flyball(python: str, folder: Path) -> Iterator[Broker]:
    with node("embedded", folder, ["--trace", "on"], python) as (process, addresses):
        host, port = addresses["amqp"]
        yield Broker(f"amqp://guest:guest@{host}:{port}", process)


def wait_until_quiet() -> None:
    """Wait until the CPUs are idle, or for a while: a broker works on for a moment after its start."""
    end = time.monotonic() + QUIET_LIMIT_S
    while time.monotonic() < end and psutil.cpu_percent(interval=0.5) / 100 * (os.cpu_count() or 1) > QUIET_CORES:
        continue


def measure(contender: Contender, line: Line, bench: Bench) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="flyball-bench-", ignore_cleanup_errors=True) as folder:
        wait_until_quiet()
        with contender.start(Path(folder) / "broker") as broker:
            wait_until_quiet()
            return line.measure(bench, broker)


def median_cores(outcomes: list[Outcome]) -> Cores | None:
    shares = [astuple(outcome.cores) for outcome in outcomes if outcome.cores is not None]
    return Cores(*(statistics.median(column) for column in zip(*shares, strict=True))) if shares else None


@dataclass(slots=True, frozen=True)
class Comparison:
    """One figure of a line: the rival's and that of one Flyball, None where every run failed."""

    line: str
    title: str
    unit: str
    flyball_build: str
    rival: float | None
    flyball: float | None
    # Flyball's by the rival's.
    ratio: float | None
    rival_runs: list[float]
    flyball_runs: list[float]
    rival_cores: Cores | None
    flyball_cores: Cores | None


def compare(line: Line, flyball_build: str, rivals: list[Outcome], ours: list[Outcome]) -> Iterator[Comparison]:
    """Return a comparison for each of the figures that the line has."""
    for unit in dict.fromkeys(itertools.chain.from_iterable(outcome.figures for outcome in (*rivals, *ours))):
        theirs, own = ([outcome.figures[unit] for outcome in found] for found in (rivals, ours))
        their_figure = statistics.median(theirs) if theirs else None
        own_figure = statistics.median(own) if own else None
        ratio = own_figure / their_figure if their_figure and own_figure is not None else None
        yield Comparison(
            line.name,
            line.title,
            unit,
            flyball_build,
            their_figure,
            own_figure,
            ratio,
            theirs,
            own,
            median_cores(rivals),
            median_cores(ours),
        )


def remarks(outcome: Outcome) -> Iterator[str]:
    """Return what makes a measurement doubtful."""
    if outcome.remark:
        yield outcome.remark
    if outcome.cores is not None and outcome.cores.others > BUSY_CORES:
        yield f"others used {outcome.cores.others:.0%} of a core"


def run_all(
    contenders: list[Contender], chosen: list[Line], bench: Bench, repeat: int, console: Console
) -> tuple[dict[tuple[str, str], list[Outcome]], int]:
    """Measure every line of every contender this number of times, in turn; return outcomes and failures."""
    found: dict[tuple[str, str], list[Outcome]] = {
        (line.name, contender.name): [] for line in chosen for contender in contenders
    }
    failures = 0
    with Progress(console=console) as progress:
        task = progress.add_task("", total=len(found) * repeat)
        for number, line, contender in itertools.product(range(repeat), chosen, contenders):
            progress.update(task, description=f"{number + 1}/{repeat} {line.name}: {contender.name}")
            try:
                outcome = measure(contender, line, bench)
            except (LoadFailed, RabbitMqFailed) as error:
                failures += 1
                console.print(f"FAILED: {line.name} with {contender.name}: {error}", style="bold red", markup=False)
            else:
                found[line.name, contender.name].append(outcome)
                for remark in remarks(outcome):
                    console.print(f"{line.name} with {contender.name}: {remark}", style="yellow", markup=False)
            progress.advance(task)
    return found, failures


def main() -> None:
    options = parse_options()
    console = Console(stderr=True)
    chosen = [
        line
        for line in all_lines(options)
        if any(fnmatch(line.name, pattern) for pattern in options.lines.split(","))
    ]
    if not chosen:
        raise SystemExit(f"no line is called {options.lines}: {', '.join(line.name for line in all_lines(options))}")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix="flyball-bench-") as folder:
        try:
            bench = Bench(build(options.amqpload.resolve(), Path(folder)), options.warm_up, options.seconds)
            flyballs = flyballs_on(list(dict.fromkeys(options.flyball_python or [sys.executable])))
            rival = rival_of(options.baseline_python)
        except LoadFailed as error:
            raise SystemExit(str(error)) from error
        found, failures = run_all([rival, *flyballs], chosen, bench, options.repeat, console)
    comparisons = [
        comparison
        for line in chosen
        for flyball in flyballs
        for comparison in compare(line, flyball.name, found[line.name, rival.name], found[line.name, flyball.name])
    ]
    if options.json:
        for comparison in comparisons:
            print(json.dumps(asdict(comparison)))
    else:
        show(comparisons, rival.name, options)
    if failures:
        console.print(f"{failures} runs FAILED", style="bold red")
        raise SystemExit(1)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", default="*", help="names or patterns, as in 'durable-*,latency'")
    parser.add_argument("--repeat", type=int, default=3, help="interleaved repetitions; medians are shown")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each rate and latency")
    parser.add_argument("--warm-up", type=float, default=2.0, metavar="SECONDS")
    parser.add_argument("--messages", type=int, default=1_000_000, help="of the backlog")
    parser.add_argument("--connections", type=int, default=1000, help="that are idle")
    parser.add_argument("--queues", type=int, default=10_000, help="to declare")
    parser.add_argument(
        "--flyball-python",
        action="append",
        metavar="PYTHON",
        help="interpreter whose Flyball is measured, for instance one where it is compiled; may be repeated",
    )
    parser.add_argument(
        "--baseline-python", metavar="PYTHON", help="compare with this interpreter's Flyball instead of RabbitMQ"
    )
    parser.add_argument(
        "--amqpload",
        type=Path,
        default=Path(os.environ.get("FLYBALL_BENCH_AMQPLOAD", SOURCE)),
        metavar="FOLDER",
        help="source of the load generator [env var: FLYBALL_BENCH_AMQPLOAD]",
    )
    parser.add_argument("--json", action="store_true", help="print lines of JSON instead of a table")
    return parser.parse_args()


def show(comparisons: list[Comparison], rival: str, options: argparse.Namespace) -> None:
    title = f"Flyball and {rival}, {os.cpu_count()} cores, medians of {options.repeat} runs of {options.seconds:g} s"
    table = Table(title=title, box=None)
    left = ("line", "", "Flyball is")
    for heading in (*left, rival, "Flyball", "ratio", f"CPU {rival}", "load", "CPU node", "PostgreSQL", "load"):
        table.add_column(heading, justify="left" if heading in left else "right")
    for row in comparisons:
        table.add_row(
            row.title,
            row.unit,
            row.flyball_build,
            figure(row.rival),
            figure(row.flyball),
            "failed" if row.ratio is None else f"{row.ratio:.2f}",
            *([""] * 2 if row.rival_cores is None else rival_shares(row.rival_cores)),
            *([""] * 3 if row.flyball_cores is None else flyball_shares(row.flyball_cores)),
        )
    console = Console(width=150)
    console.print(table)
    console.print(
        f"The ratio is Flyball's figure by that of {rival}; with rates more is better, with ms, MiB and s less."
    )


def figure(value: float | None) -> str:
    if value is None:
        return "failed"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def rival_shares(cores: Cores) -> list[str]:
    return [f"{share:.0%}" for share in (cores.main + cores.below, cores.generator)]


def flyball_shares(cores: Cores) -> list[str]:
    return [f"{share:.0%}" for share in (cores.main, cores.below, cores.generator)]


if __name__ == "__main__":
    main()
