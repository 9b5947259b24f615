"""How fast the pipeline is: a report on made-up traces of 1, 10 and 100 million events, compared with DuckDB.

    python -m bench.pipeline                              # about 4 minutes; 1.7 GB of traces in the folder for them
    python -m bench.pipeline --events 1000000,10000000 --folder FOLDER

Each measurement is a process of its own: `flyball pipeline report` on local[2], from the start of Python to the end
of Java, with ingest, throughput, percentiles, phases, all other tables and models, and the page. CPU time and memory
are those of the whole tree of processes. DuckDB answers the three queries that look at every row, with 2 threads and
4 GB, on the same files. The profile is made in parallel with the other stages, so times are not of a stage alone.
Traces are made once and kept.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import psutil
from rich.console import Console
from rich.table import Table

from bench.synthetic_traces import STARTED_US, generate
from flyball.cli.pipeline import Means, OnProgress, write_report_of

GIB = 2**30
SAMPLE_S = 0.1
# As the analysis has it: of more rows than these, the phases' percentiles are found from a part.
SPREAD_ROWS = 10_000_000
START, END = "start of Spark", "report"
# What stages are called here: the pipeline counts the times of both in one pass over the events.
STAGES = {"latency": "percentiles and phases", "phases": "percentiles and phases"}


@dataclass(frozen=True, slots=True)
class Cost:
    """Resources of one process, with all processes below it."""

    wall_s: float
    cpu_s: float
    peak_gib: float
    stages_s: dict[str, float]


def measure(part: str, traces: Path) -> Cost:
    """Run a part of this module on `traces` in a process of its own."""
    started = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "bench.pipeline", "--only", part, "--traces", str(traces)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        peak_bytes, cpu_s = _watch(process.pid)
        wall_s = time.perf_counter() - started
        said, _ = process.communicate()
    if process.returncode != 0 and not said:
        raise SystemExit(f"{part} failed on {traces}")
    return Cost(wall_s, cpu_s, peak_bytes / GIB, json.loads(said.splitlines()[-1]))


def _watch(pid: int) -> tuple[int, float]:
    """Wait for the end of a process; return the most memory that its tree had at a time, and its CPU time."""
    peak_bytes = 0
    root = psutil.Process(pid)
    while True:
        ended, _, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            # With those it has waited for, and those they have.
            return peak_bytes, usage.ru_utime + usage.ru_stime
        peak_bytes = max(peak_bytes, _tree_bytes(root))
        time.sleep(SAMPLE_S)


def _tree_bytes(root: psutil.Process) -> int:
    total = 0
    try:
        for process in (root, *root.children(recursive=True)):
            total += process.memory_info().rss
    except psutil.NoSuchProcess:
        pass
    return total


class TimedMeans(Means):
    """The context of `flyball pipeline report`, which also notes when each stage begins."""

    began: list[tuple[str, float]] = []  # noqa: RUF012

    @contextmanager
    def progress(self) -> Iterator[OnProgress]:
        self.began.append((START, time.perf_counter()))
        yield lambda stage, done, of: self.began.append((stage, time.perf_counter()))


def report(traces: Path) -> dict[str, float]:
    """Write a report; return how long each stage took, in seconds."""
    means = TimedMeans(master="local[2]")
    with tempfile.TemporaryDirectory(prefix=".report-", dir=traces.parent) as out:
        write_report_of(traces, Path(out), means)
    return _lengths([*means.began, (END, time.perf_counter())])


def queries(traces: Path) -> dict[str, float]:
    """Answer the pipeline's queries with DuckDB; return how long each took, in seconds."""
    began: list[tuple[str, float]] = []
    with duckdb.connect(config={"threads": 2, "memory_limit": "4GB"}) as database:
        database.execute(f"create view requests as {_requests(traces)}")
        rows = database.execute("select count(*) from requests").fetchall()[0][0]
        for name, query in (("throughput", _seconds()), ("latency", _responses()), ("phases", _phases(rows))):
            began.append((name, time.perf_counter()))
            database.execute(f"create table {name} as {query}")
        began.append(("", time.perf_counter()))
    return _lengths(began)


def _lengths(began: list[tuple[str, float]]) -> dict[str, float]:
    lengths: dict[str, float] = {}
    for (name, start), (_, end) in itertools.pairwise(began):
        stage = STAGES.get(name, name)
        lengths[stage] = lengths.get(stage, 0.0) + end - start
    return lengths


def _requests(traces: Path) -> str:
    total = "wait_ns + parse_ns + engine_ns + store_ns + emit_ns"
    return f"""select *, {total} as response_ns, wait_ns + parse_ns + emit_ns as socket_ns,
        (received_us + ({total}) // 1000 - {STARTED_US}) // 1000000 as second
        from read_parquet('{traces}/run=*/traces/*.parquet', hive_partitioning = true)"""


TIMES = ("response", "wait", "parse", "engine", "store", "emit", "socket")


def _seconds() -> str:
    sums = ", ".join(
        f"sum({time}_ns::double * weight) as {time}, sum({time}_ns::double * {time}_ns * weight) as {time}2"
        for time in TIMES
    )
    return f"""select run, node, kind, queue_id, second, sum(weight) as requests, {sums},
        sum(if(result = 'ok', message_count * weight, 0)) as messages, sum(if(store_ns > 0, weight, 0)) as stored
        from requests group by all"""


def _responses() -> str:
    return """select run, node, kind, cast(ln(response_ns + 1) * 100 as integer) as bucket,
        sum(weight) as requests, max(response_ns) as most_ns from requests group by all"""


def _phases(rows: int) -> str:
    one_in = max(rows // SPREAD_ROWS, 1)
    times = ", ".join(f"{time}_ns" for time in TIMES if time != "response")
    return f"""select run, node, kind, phase, cast(ln(time_ns + 1) * 100 as integer) as bucket,
        sum(weight) as requests, max(time_ns) as most_ns from (
            unpivot (
                select run, node, kind, weight, {times} from requests
                where hash(received_us, response_ns) % {one_in} = 0
            ) on {times} into name phase value time_ns
        ) group by all"""


PARTS: dict[str, Callable[[Path], dict[str, float]]] = {"report": report, "duckdb": queries}


def show(costs: dict[int, tuple[Cost, Cost]]) -> None:
    console = Console(width=118)
    whole = _table("The pipeline on local[2], from start to end, and DuckDB's queries", "events", "", "wall, s")
    for heading in ("CPU, s", "peak memory, GiB", "µs CPU/event"):
        whole.add_column(heading, justify="right")
    stages = _table("Stages, s", "events", "stage", "Spark", "DuckDB", "ratio")
    for events, (ours, duck) in costs.items():
        for name, cost in (("report", ours), ("DuckDB", duck)):
            facts = (cost.wall_s, cost.cpu_s, cost.peak_gib, cost.cpu_s / events * 1e6)
            whole.add_row(f"{events:,}", name, *(f"{fact:.2f}" for fact in facts))
        for stage, seconds in ours.stages_s.items():
            other_s = duck.stages_s.get(stage)
            ratio = "" if other_s is None else f"{seconds / other_s:.1f}"
            other = "" if other_s is None else f"{other_s:.1f}"
            stages.add_row(f"{events:,}", stage, f"{seconds:.1f}", other, ratio)
    console.print(whole, stages, sep="\n\n")
    for few, many in itertools.pairwise(costs):
        growth = costs[many][0].wall_s / costs[few][0].wall_s
        console.print(f"{many / few:g} times the events take {growth:.1f} times as long")


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, box=None, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number == 1 else "right")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", default="1000000,10000000,100000000", help="how many, one run for each number")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "flyball-bench-traces"))
    parser.add_argument("--only", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--traces", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(PARTS[options.only](options.traces)))
        return
    costs = {}
    for events in sorted(int(number) for number in options.events.split(",")):
        traces = generate(options.folder, events)
        costs[events] = measure("report", traces), measure("duckdb", traces)
    show(costs)


if __name__ == "__main__":
    main()
