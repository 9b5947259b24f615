"""Runs that never took place: trace files of two nodes under load, or of days of one, the same each time.

The files are written by the code that nodes write theirs with: row groups, encodings and lengths are the real ones.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flyball.trace.files import TraceFiles
from flyball.trace.recorder import BUFFER_RECORDS
from flyball.trace.schema import SCHEMA, Kind, Protocol, Result, names_of

NODES = ("node-1", "node-2")
CLIENTS = 200
LENGTH_S = 500
DAY_S = 86_400
# What a node records of a second by default.
RECORDED_PER_S = 500
# A node closes a file this often.
FILE_S = 5
# The first moment of 2026.
STARTED_US = 1_767_225_600_000_000

SHARES = {
    Kind.PUT: 0.40,
    Kind.TAKE: 0.24,
    Kind.DELIVER: 0.20,
    Kind.SETTLE: 0.10,
    Kind.PEEK: 0.04,
    Kind.LIST: 0.01,
    Kind.PING: 0.01,
}
ENGINE_NS = {Kind.PUT: 9e3, Kind.TAKE: 7e3, Kind.DELIVER: 5e3, Kind.SETTLE: 4e3, Kind.PEEK: 6e3, Kind.LIST: 9e4}
# Medians; kinds that are not here do not wait for the store.
STORE_NS = {Kind.PUT: 1.1e6, Kind.TAKE: 0.8e6, Kind.SETTLE: 0.6e6}

SHARES_OF_A_DAY = {Kind.PUT: 0.40, Kind.DELIVER: 0.35, Kind.SETTLE: 0.25}

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of one node, and the part that it records."""

    number: int
    queues: int
    shares: Mapping[Kind, float]
    start_s: int
    length_s: int
    events: int

    @property
    def name(self) -> str:
        return NODES[self.number]


def generate(root: Path, events: int) -> Path:
    """Make a folder of results with one run of about `events` events, unless it is there, and return it."""
    folder = root / f"events-{events}"
    manifest = folder / "run=synthetic" / "run.json"
    if manifest.exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    traces = manifest.parent / "traces"
    traces.mkdir(parents=True)
    with multiprocessing.get_context("spawn").Pool(len(NODES)) as pool:
        loads = [Load(number, 10, SHARES, 0, LENGTH_S, events // len(NODES)) for number in range(len(NODES))]
        pool.starmap(write_node, [(traces, load) for load in loads])
    (folder / "experiment.json").write_text(json.dumps(_experiment()))
    manifest.write_text(json.dumps(_manifest()))
    return folder


def generate_days(root: Path, days: int) -> Path:
    """Make the data folder of a node that recorded by default for some days, with 100 queues; return it."""
    folder = root / f"days-{days}"
    finished = folder / "finished"
    if finished.exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    hours = [hour_of_a_day(hour) for hour in range(24 * days)]
    with multiprocessing.get_context("spawn").Pool(len(NODES)) as pool:
        pool.starmap(write_hour, [(folder / "traces", load) for load in hours], chunksize=1)
    finished.touch()
    return folder


def hour_of_a_day(hour: int) -> Load:
    """Return what a node that records by default goes through in one hour."""
    return Load(0, 100, SHARES_OF_A_DAY, hour * 3600, 3600, 3600 * RECORDED_PER_S)


def write_hour(traces: Path, load: Load) -> None:
    """Write the files of an hour in a folder of their own first: TraceFiles reads all files in its folder."""
    folder = traces / f".hour-{load.start_s}"
    folder.mkdir(parents=True)
    write_node(folder, load)
    for path in folder.iterdir():
        # Their names have the time when they were written, to the microsecond.
        path.rename(traces / f"{path.stem}-{load.start_s:07}.parquet")
    folder.rmdir()


def write_node(traces: Path, load: Load) -> None:
    """Write the trace files of one node."""
    files = TraceFiles(traces, load.name, 1.0, 2**40, 2**40)
    random = np.random.default_rng([load.number, load.start_s])
    part_count = load.length_s // FILE_S
    ends = np.linspace(0, load.events, part_count + 1).astype(np.int64)
    for part, (first, end) in enumerate(itertools.pairwise(ends)):
        batch = _events(random, load, int(first), int(end - first), load.start_s + part * FILE_S)
        for start in range(0, batch.num_rows, BUFFER_RECORDS):
            files.write(batch.slice(start, BUFFER_RECORDS))
        files.close(0)


def _events(random: np.random.Generator, load: Load, first: int, count: int, start_s: int) -> pa.RecordBatch:
    """Return the events of one file: `count` of them, the first of which has the sequence number `first`."""
    number, name = load.number, load.name
    kinds = random.choice(np.array(list(load.shares), np.int8), count, p=list(load.shares.values()))
    slowness = 1 + 0.3 * np.sin(start_s / LENGTH_S * 6 * np.pi)
    received_us = STARTED_US + start_s * 1_000_000 + np.sort(random.integers(0, FILE_S * 1_000_000, count))
    is_empty = (kinds == Kind.TAKE) & (random.random(count, np.float32) < 0.1)
    is_message = np.isin(kinds, [Kind.PUT, Kind.TAKE, Kind.DELIVER, Kind.PEEK]) & ~is_empty
    columns = {
        "kind": _texts(kinds, names_of(Kind)),
        "protocol": _texts(np.full(count, Protocol.AMQP, np.int8), names_of(Protocol)),
        "client_id": random.integers(1, CLIENTS + 1, count),
        "queue_id": random.integers(1, load.queues + 1, count) + number * load.queues,
        "size_bytes": np.where(is_message, random.integers(16, 2048, count), 0),
        "result": _texts(np.where(is_empty, Result.EMPTY, Result.OK).astype(np.int8), names_of(Result)),
        "received_us": received_us,
        "wait_ns": (random.standard_exponential(count, np.float32) * 40_000 * slowness).astype(np.int64),
        "parse_ns": _about(random, np.full(count, 2_500.0), 0.3),
        "engine_ns": _about(random, _by_kind(kinds, ENGINE_NS, 3e3), 0.4),
        "store_ns": _about(random, _by_kind(kinds, STORE_NS, 0.0) * slowness, 0.5),
        "emit_ns": _about(random, np.full(count, 12_000.0), 0.4),
        "message_count": is_message.astype(np.int64),
        "node": _texts(np.zeros(count, np.int8), pa.array([name], pa.string())),
        "sequence": np.arange(first, first + count),
        "weight": np.ones(count, np.int64),
    }
    return pa.RecordBatch.from_arrays([pa.array(columns[name]) for name in SCHEMA.names], schema=SCHEMA)


def _about(random: np.random.Generator, medians: npt.NDArray[np.float64], spread: float) -> Numbers:
    """Return log-normal durations, whose logarithm has the standard deviation `spread`."""
    factors = np.exp(spread * random.standard_normal(len(medians), np.float32))
    return np.asarray(medians * factors, np.int64)


def _by_kind(kinds: npt.NDArray[np.int8], values: dict[Kind, float], other: float) -> npt.NDArray[np.float64]:
    table = np.full(len(Kind), other)
    for kind, value in values.items():
        table[kind] = value
    return table[kinds]


def _texts(codes: npt.NDArray[np.int8], texts: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes), texts)


def _experiment() -> dict[str, object]:
    return {
        "version": 1,
        "name": "synthetic",
        "title": "Two nodes that never ran",
        "about": "Made-up traces, to measure the pipeline with.",
        "source": "",
        "factors": {},
        "repetitions": 1,
        "is_quick": False,
        "run_count": 1,
        "views": [],
        "references": [],
    }


def _manifest() -> dict[str, object]:
    until_us = STARTED_US + LENGTH_S * 1_000_000
    return {
        "version": 1,
        "experiment": "synthetic",
        "run": "synthetic",
        "factors": {},
        "repetition": 1,
        "seed": 0,
        "is_quick": False,
        "measured": {"from_us": STARTED_US, "until_us": until_us},
        "target": {"kind": "flyball", "version": "0.1.0", "nodes": len(NODES), "settings": {}},
        "workload": {"kind": "synthetic", "protocol": "amqp", "clients": CLIENTS},
        "clients": {"count": CLIENTS, "workers": 0, "busiest_cpu_ratio": 0.0, "cpu_s": 0.0, "are_bottleneck": False},
        "nodes": [{"name": name, "cpu_s": 0.0, "store_cpu_s": 0.0, "peak_bytes": 0} for name in NODES],
        "checks": {"calls": 0, "failed": 0, "lost": 0, "doubled": 0},
        "environment": {"python": "", "platform": "", "cpu_count": 2, "flyball": "0.1.0"},
        "warnings": [],
        "started_at": _text_of(STARTED_US),
        "ended_at": _text_of(until_us),
    }


def _text_of(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
