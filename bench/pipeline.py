"""How fast the pipeline is: a report on made-up traces of 1, 10 and 100 million events, compared with DuckDB.

    python -m bench.pipeline                              # about 4 minutes; 1.7 GB of traces in the folder for them
    python -m bench.pipeline --events 1000000,10000000 --folder FOLDER
    python -m bench.pipeline --days 1                     # a node that records by default, 43 million rows a day
    python -m bench.pipeline --follow-day                 # rounds of `ingest --follow` over 24 simulated hours

Each measurement is a process of its own: `flyball pipeline report` on local[2], from the start of Python to the end
of Java, with ingest, throughput, percentiles, phases, all other tables and models, and the page. CPU time and memory
are those of the whole tree of processes. With `--days` the report is made twice: cold into a store, and again after
five more minutes of traces. DuckDB answers the three queries that look at every row, with 2 threads and
4 GB, on the same files. The profile is made in parallel with the other stages, so times are not of a stage alone.
Traces are made once and kept.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import psutil
from rich.console import Console
from rich.table import Table

from bench.synthetic_traces import (
    DAY_S,
    FILE_S,
    RECORDED_PER_S,
    SHARES_OF_A_DAY,
    STARTED_US,
    Load,
    generate,
    generate_days,
    write_hour,
)
from flyball.cli.pipeline import Means, OnProgress, write_report_of
from flyball.pipeline.ingest import follow_round
from flyball.pipeline.session import SparkSettings, spark_session
from flyball.pipeline.trace_store import Store

GIB = 2**30
SAMPLE_S = 0.1
# As the pipeline has it: of more rows than these, the phases' percentiles are found from a part.
SPREAD_ROWS = 10_000_000
START, END = "start of Spark", "report"
# A round of --follow takes what a node records in this time.
ROUND_S = 300


@dataclass(frozen=True, slots=True)
class Cost:
    """Resources of one process, with all processes below it."""

    wall_s: float
    cpu_s: float
    peak_gib: float
    stages_s: dict[str, float]


def measure(part: str, traces: Path, store: Path | None = None) -> Cost:
    """Run a part of this module on `traces` in a process of its own."""
    started = time.perf_counter()
    kept = ["--store", str(store)] if store else []
    with subprocess.Popen(
        [sys.executable, "-m", "bench.pipeline", "--only", part, "--traces", str(traces), *kept],
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


def report(traces: Path, store: Path | None = None) -> dict[str, float]:
    """Write a report; return how long each stage took, in seconds."""
    means = TimedMeans(master="local[2]")
    with tempfile.TemporaryDirectory(prefix=".report-", dir=traces.parent) as out:
        write_report_of(traces, Path(out), means, store)
    return _lengths([*means.began, (END, time.perf_counter())])


def follow(traces: Path, store: Path | None = None) -> dict[str, float]:
    """Take a day of a node's traces, a round at a time; return the length of each round and the number of files."""
    found: dict[str, float] = {}
    source = traces.parent / "followed"
    source.mkdir()
    waiting = deque(sorted(traces.rglob("*.parquet"), key=lambda path: path.stem.rpartition("-")[2] + path.stem))
    with spark_session(SparkSettings(master="local[2]")) as spark:
        place = Store(store or traces.parent / "store", spark)
        place.create()
        with place.locked():
            while waiting:
                for _ in range(min(ROUND_S // FILE_S, len(waiting))):
                    path = waiting.popleft()
                    os.link(path, source / path.name)
                began = time.perf_counter()
                follow_round(spark, source, place)
                files = sum(1 for _ in Path(place.place).rglob("*"))
                found[f"{len(found):03} ({files} files)"] = time.perf_counter() - began
    shutil.rmtree(source)
    return found


def queries(traces: Path, store: Path | None = None) -> dict[str, float]:
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
        lengths[name] = lengths.get(name, 0.0) + end - start
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


PARTS: dict[str, Callable[[Path, Path | None], dict[str, float]]] = {
    "report": report,
    "duckdb": queries,
    "follow": follow,
}


def days(folder: Path, count: int) -> None:
    """Report on days of a node, cold and again with five more minutes."""
    traces = generate_days(folder, count)
    with tempfile.TemporaryDirectory(prefix=".store-", dir=folder) as kept:
        store = Path(kept, "store")
        cold = measure("report", traces, store)
        later = Load(0, 100, SHARES_OF_A_DAY, count * DAY_S, ROUND_S, ROUND_S * RECORDED_PER_S)
        write_hour(traces / "traces", later)
        try:
            warm = measure("report", traces, store)
        finally:
            for path in (traces / "traces").glob(f"*-{later.start_s:07}.parquet"):
                path.unlink()
    for name, cost in (("cold", cold), ("with aggregates, 5 minutes more", warm)):
        facts = f"{cost.wall_s:.1f} s wall, {cost.cpu_s:.1f} s CPU, {cost.peak_gib:.2f} GiB"
        print(f"{count} days, {count * DAY_S * RECORDED_PER_S:,} rows, {name}: {facts}")
        print("  " + ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in cost.stages_s.items()))


def follow_day(folder: Path) -> None:
    """Show how long the rounds of the first and last hour take, and how many files the store has."""
    with tempfile.TemporaryDirectory(prefix=".follow-", dir=folder) as passing:
        cost = measure("follow", generate_days(folder, 1), Path(passing, "store"))
    rounds = list(cost.stages_s.items())
    an_hour = 3600 // ROUND_S
    # The first round starts Java's compiler.
    for name, part in (("first", rounds[1 : an_hour + 1]), ("last", rounds[-an_hour:])):
        lengths = [seconds for _, seconds in part]
        print(
            f"{name} hour: {sum(lengths) / len(lengths):.2f} s a round, at most {max(lengths):.2f} s; {part[-1][0]}"
        )
    print(f"all: {cost.wall_s:.0f} s wall, {cost.cpu_s:.0f} s CPU, {cost.peak_gib:.2f} GiB")


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
    parser.add_argument("--days", type=int, help="days of a node that records by default, instead of --events")
    parser.add_argument("--follow-day", action="store_true", help="a day taken in rounds, instead of --events")
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--traces", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(PARTS[options.only](options.traces, options.store)))
        return
    if options.days:
        days(options.folder, options.days)
        return
    if options.follow_day:
        follow_day(options.folder)
        return
    costs = {}
    for events in sorted(int(number) for number in options.events.split(",")):
        traces = generate(options.folder, events)
        costs[events] = measure("report", traces), measure("duckdb", traces)
    show(costs)


if __name__ == "__main__":
    main()
