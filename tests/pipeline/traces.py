"""Traces with known rates and phases, written as nodes, clients, control loops and the lab write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flyball.trace.schema import (
    ADMISSION_SCHEMA,
    CALL_SCHEMA,
    NODE_SCHEMA,
    QUEUE_SCHEMA,
    SAMPLE_SCHEMA,
    SCHEMA,
    SCHEMA_VERSION,
    TABLE_KEY,
    TIME_SCHEMA,
    VERSION_KEY,
)

# The first of January 2026: when all of these traces begin.
START_US = 1_767_225_600_000_000

Row = dict[str, Any]


def request(**columns: Any) -> Row:
    """One row of a node's trace: a `put` of half a millisecond at the start, unless `columns` differ."""
    row = {
        "kind": "put",
        "protocol": "thorbang",
        "client_id": 1,
        "queue_id": 1,
        "size_bytes": 5,
        "result": "ok",
        "received_us": START_US,
        "wait_ns": 20_000,
        "parse_ns": 10_000,
        "engine_ns": 30_000,
        "store_ns": 400_000,
        "emit_ns": 40_000,
        "message_count": 1,
        "node": "node-1",
        "sequence": 0,
        "weight": 1,
    }
    return _changed(row, columns)


def call(**columns: Any) -> Row:
    """One row of a client's trace: a `put` of one millisecond at the start, unless `columns` differ."""
    row = {
        "kind": "put",
        "protocol": "thorbang",
        "role": "client",
        "client_id": 1,
        "queue": "queue-1",
        "size_bytes": 5,
        "result": "ok",
        "intended_us": START_US,
        "late_ns": 0,
        "response_ns": 1_000_000,
        "think_ns": 0,
        "message_count": 1,
        "target": "node-1",
        "worker": "worker-1",
        "sequence": 0,
        "weight": 1,
    }
    return _changed(row, columns)


def sample(**columns: Any) -> Row:
    """One row of a control loop's trace."""
    row = {
        "loop": "loop-1",
        "at_us": START_US,
        "sample_time_s": 1.0,
        "setpoint": 10.0,
        "measurement": 9.0,
        "action": 1.0,
        "sequence": 0,
        "feedforward": 0.0,
        "lowest": 0.0,
        "highest": None,
        "mode": "active",
        "gains": "",
        "fingerprint": "",
        "model_version": "",
        "process": "worker-1",
        "started_us": START_US,
    }
    return _changed(row, columns)


def admission(**columns: Any) -> Row:
    """One row of an application's trace: a request that took 1 connection for 2 ms, unless `columns` differ."""
    row = {
        "key": "GET /",
        "class_number": 0,
        "outcome": "served",
        "arrived_us": START_US,
        "waited_ns": 0,
        "served_ns": 3_000_000,
        "connections": 1,
        "busy_ns": 2_000_000,
        "pool_ns": 0,
        "application": "auction",
        "sequence": 0,
        "weight": 1,
    }
    return _changed(row, columns)


def node_second(**columns: Any) -> Row:
    """One second of a node: 100 messages came and went, with half a core, unless `columns` differ."""
    row = {
        "node": "node-1",
        "at_us": START_US,
        "elapsed_ns": 1_000_000_000,
        "cpu_ns": 500_000_000,
        "store_cpu_ns": 250_000_000,
        "memory_bytes": 2**27,
        "held_bytes": 2**20,
        "connections": 3,
        "channels": 4,
        "consumers": 2,
        "queues": 1,
        "ready": 10,
        "unacked": 5,
        "published": 100,
        "delivered": 100,
        "acked": 100,
        "confirmed": 100,
        "read_bytes": 10_000,
        "written_bytes": 20_000,
        "started_us": START_US,
        "sequence": 0,
    }
    return _changed(row, columns)


def queue_second(**columns: Any) -> Row:
    """One second of a queue, unless `columns` differ."""
    row = {
        "node": "node-1",
        "vhost": "/",
        "queue": "orders",
        "at_us": START_US,
        "elapsed_ns": 1_000_000_000,
        "ready": 10,
        "unacked": 5,
        "consumers": 2,
        "published": 100,
        "delivered": 100,
        "acked": 100,
        "sequence": 0,
    }
    return _changed(row, columns)


def time_bucket(**columns: Any) -> Row:
    """100 messages of a queue that waited about a millisecond in a second, unless `columns` differ."""
    row = {
        "node": "node-1",
        "vhost": "/",
        "queue": "orders",
        "metric": "wait",
        "at_us": START_US,
        "from_us": 896,
        "below_us": 1024,
        "timed": 8,
        "messages": 100,
        "sum_us": 100_000,
        "sequence": 0,
    }
    return _changed(row, columns)


def _changed(row: Row, columns: Mapping[str, Any]) -> Row:
    unknown = columns.keys() - row.keys()
    assert not unknown, f"no such columns: {unknown}"
    return {**row, **columns}


def steady_requests(count: int, per_s: float = 100.0, **columns: Any) -> list[Row]:
    """`count` requests of a node, evenly spaced from the start: `put` and `take` in turn."""
    return [
        request(
            **{
                "kind": ("put", "take")[number % 2],
                "received_us": START_US + round(number * 1e6 / per_s),
                "sequence": number,
                **columns,
            }
        )
        for number in range(count)
    ]


def steady_calls(count: int, per_s: float = 100.0, **columns: Any) -> list[Row]:
    """`count` calls of a client, evenly spaced from the start: `put` and `take` in turn."""
    return [
        call(
            **{
                "kind": ("put", "take")[number % 2],
                "intended_us": START_US + round(number * 1e6 / per_s),
                "sequence": number,
                **columns,
            }
        )
        for number in range(count)
    ]


def write_requests(path: Path, rows: Sequence[Row], **metadata: str) -> Path:
    """Write a file as a node does; `metadata` without the prefix `flyball.` and with more or other values."""
    return _write(path, rows, SCHEMA, "requests", metadata)


def write_calls(path: Path, rows: Sequence[Row], **metadata: str) -> Path:
    """Write a file as a client does."""
    return _write(path, rows, CALL_SCHEMA, "calls", metadata)


def write_samples(path: Path, rows: Sequence[Row], **metadata: str) -> Path:
    """Write a file as a control loop does."""
    return _write(path, rows, SAMPLE_SCHEMA, "samples", metadata)


def write_admissions(path: Path, rows: Sequence[Row], **metadata: str) -> Path:
    """Write a file as an application does."""
    return _write(path, rows, ADMISSION_SCHEMA, "admissions", metadata)


def write_activity(folder: Path, nodes: Sequence[Row], queues: Sequence[Row] = (), times: Sequence[Row] = ()) -> None:
    """Write files of the activity of a node as it does."""
    for table, schema, rows in (
        ("nodes", NODE_SCHEMA, nodes),
        ("queues", QUEUE_SCHEMA, queues),
        ("times", TIME_SCHEMA, times),
    ):
        if rows:
            _write(folder / f"{table}-a-1.parquet", rows, schema, table, {})


def _write(path: Path, rows: Sequence[Row], schema: pa.Schema, table: str, metadata: Mapping[str, str]) -> Path:
    facts = {VERSION_KEY: str(SCHEMA_VERSION), TABLE_KEY: table}
    facts |= {f"flyball.{key}": value for key, value in metadata.items()}
    # Rows may be malformed on purpose.
    lenient = pa.schema([field.with_nullable(True) for field in schema], metadata=facts)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), schema=lenient), path, compression="zstd")
    return path


def write_experiment(folder: Path, name: str = "thorbangmq/clients", **facts: Any) -> Path:
    """Describe an experiment in `folder` as the lab does; return the folder."""
    description = {
        "version": 1,
        "name": name,
        "title": "Number of clients",
        "about": "",
        "source": "",
        "factors": {"workload.clients": [1, 2]},
        "repetitions": 1,
        "is_quick": False,
        "run_count": 2,
        "views": [],
        "references": [],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "experiment.json").write_text(json.dumps({**description, **facts}), encoding="utf-8")
    return folder


def write_run(experiment: Path, run: str, /, *, length_s: float = 10.0, **facts: Any) -> Path:
    """Make a complete run of `length_s` without traces in the folder of its experiment; return its folder."""
    manifest = {
        "version": 1,
        "experiment": "thorbangmq/clients",
        "run": run,
        "factors": {"workload.clients": 1},
        "repetition": 1,
        "seed": 1,
        "is_quick": False,
        "measured": {"from_us": START_US, "until_us": START_US + round(length_s * 1e6)},
        "target": {"kind": "flyball", "version": "0.1.0", "nodes": 1, "settings": {}},
        "workload": {"kind": "send_and_pop", "protocol": "thorbang", "clients": 1},
        "clients": {"count": 1, "workers": 1, "busiest_cpu_ratio": 0.4, "cpu_s": 3.1, "are_bottleneck": False},
        "nodes": [{"name": "node-1", "cpu_s": 1.2, "store_cpu_s": 0.8, "peak_bytes": 1}],
        "checks": {"calls": 1000, "failed": 0, "lost": 0, "doubled": 0},
        "environment": {"python": "3.11", "platform": "linux", "cpu_count": 2, "flyball": "0.1.0"},
        "warnings": [],
        "started_at": "2026-01-01T00:00:00Z",
        "ended_at": "2026-01-01T00:00:10Z",
    }
    folder = experiment / f"run={run}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps({**manifest, **facts}), encoding="utf-8")
    return folder


def write_steady_run(
    experiment: Path, run: str, *, length_s: float = 10.0, per_s: float = 100.0, **facts: Any
) -> Path:
    """Make a complete run with `per_s` requests and calls a second, evenly spaced; return its folder."""
    folder = write_run(experiment, run, length_s=length_s, **facts)
    count = round(length_s * per_s)
    write_requests(folder / "traces" / "trace-node-1-1.parquet", steady_requests(count, per_s))
    write_calls(folder / "traces" / "calls-worker-1-1.parquet", steady_calls(count, per_s))
    return folder
