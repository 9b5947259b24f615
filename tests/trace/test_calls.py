"""Calls of clients on their way into files."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flyball.trace.buffer import Texts
from flyball.trace.calls import CallWriter
from flyball.trace.files import CALLS, TraceFiles
from flyball.trace.schema import CALL_SCHEMA, DROPPED_KEY, NODE_KEY, TABLE_KEY, VERSION_KEY, Kind, Protocol, Result

PATIENCE_S = 30.0


def record(writer: CallWriter, client_id: int, queue: str = "orders") -> None:
    writer.record(
        Kind.PUT,
        Protocol.AMQP,
        Result.OK,
        writer.role("producer"),
        writer.target("node-1"),
        writer.queue(queue),
        client_id,
        size_bytes=10,
        intended_us=1_000_000 + client_id,
        late_ns=1,
        response_ns=2,
        think_ns=3,
        message_count=4,
    )


def rows(folder: Path) -> pa.Table:
    return pq.ParquetDataset(sorted(folder.glob("calls-*.parquet"))).read()


def test_what_is_recorded_is_in_the_files(tmp_path: Path) -> None:
    writer = CallWriter(tmp_path, "worker-1")
    writer.start()
    record(writer, 7)
    writer.stop()
    assert rows(tmp_path).to_pylist() == [
        {
            "kind": "put",
            "protocol": "amqp",
            "role": "producer",
            "client_id": 7,
            "queue": "orders",
            "size_bytes": 10,
            "result": "ok",
            "intended_us": 1_000_007,
            "late_ns": 1,
            "response_ns": 2,
            "think_ns": 3,
            "message_count": 4,
            "target": "node-1",
            "worker": "worker-1",
            "sequence": 0,
            "weight": 1,
        }
    ]
    (path,) = tmp_path.iterdir()
    metadata = pq.read_metadata(path).metadata
    assert path.name.startswith("calls-worker-1-")
    assert metadata[TABLE_KEY.encode()] == b"calls"
    assert metadata[VERSION_KEY.encode()] == b"1"
    assert metadata[NODE_KEY.encode()] == b"worker-1"
    assert metadata[DROPPED_KEY.encode()] == b"0"
    assert pq.read_schema(path).remove_metadata().equals(CALL_SCHEMA)


def test_texts_may_be_added_while_buffers_are_written(tmp_path: Path) -> None:
    writer = CallWriter(tmp_path, "worker-1", buffer_records=4)
    writer.start()
    for number in range(300):
        record(writer, number, f"queue-{number}")
        if number % 100 == 50:
            writer.flush()
    writer.stop()
    table = rows(tmp_path)
    assert table["queue"].to_pylist() == [f"queue-{number}" for number in range(300)]
    assert table["sequence"].to_pylist() == list(range(300))


def test_records_are_dropped_and_counted_when_the_disk_cannot_follow(tmp_path: Path) -> None:
    may_write = threading.Event()

    class SlowFiles(TraceFiles):
        def write(self, batch: pa.RecordBatch) -> None:
            assert may_write.wait(PATIENCE_S)
            super().write(batch)

    files = SlowFiles(tmp_path, "worker-1", 1.0, rotate_bytes=2**30, keep_bytes=2**30, table=CALLS)
    writer = CallWriter(tmp_path, "worker-1", max_buffers=2, buffer_records=10, files=files)
    writer.start()
    for number in range(50):
        record(writer, number)
    may_write.set()
    writer.stop()
    assert writer.dropped == 30
    assert rows(tmp_path).num_rows == 20


def test_more_texts_than_a_column_can_hold_are_refused() -> None:
    texts = Texts(most=1)
    assert [texts.code_of(text) for text in ("a", "b", "a")] == [0, 1, 0]
    with pytest.raises(ValueError, match="more than 2 different texts in a column: 'c'"):
        texts.code_of("c")
