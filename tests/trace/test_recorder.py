"""The recorder as the event loop sees it, and what its thread makes of the records."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flyball.trace.files import TraceFiles
from flyball.trace.recorder import SPARSE, Recorder
from flyball.trace.schema import (
    DROPPED_KEY,
    NODE_KEY,
    SAMPLE_RATIO_KEY,
    SCHEMA,
    VERSION_KEY,
    Kind,
    Protocol,
    Result,
)
from flyball.trace.span import Span

# How long a test waits for an event that must come.
PATIENCE_S = 30.0


class FakeFiles(TraceFiles):
    """Keeps the records in memory; can be held up, and can be broken."""

    def __init__(self) -> None:
        super().__init__(Path("/nonexistent"), "n1", 1.0, rotate_bytes=1, keep_bytes=1)
        self.batches: list[pa.RecordBatch] = []
        self.closed = threading.Event()
        self.entered = threading.Event()
        self.may_write = threading.Event()
        self.may_write.set()
        self.error: Exception | None = None

    @property
    def is_full(self) -> bool:
        return False

    def write(self, batch: pa.RecordBatch) -> None:
        self.entered.set()
        assert self.may_write.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        self.batches.append(batch)

    def close(self, dropped: int) -> None:
        if self.batches:
            self.closed.set()

    def prune(self) -> None:
        pass

    def sequences(self) -> list[int]:
        return [n for batch in self.batches for n in batch.column("sequence").to_pylist()]


def span_of(kind: Kind = Kind.PUT, **fields: int) -> Span:
    """A request that was read 1 s after the clock began to count."""
    span = Span()
    span.kind = kind
    span.received_ns = 1_000_000_000
    span.started_ns, span.parsed_ns, span.submitted_ns, span.answered_ns = (
        span.received_ns + after for after in (11, 23, 36, 50)
    )
    for name, value in fields.items():
        setattr(span, name, value)
    return span


EMITTED_NS = 1_000_000_065


def put(recorder: Recorder, count: int = 1, size_bytes: int = 100) -> None:
    for _ in range(count):
        recorder.record(span_of(client_id=7, queue_id=9, size_bytes=size_bytes, message_count=1), EMITTED_NS)


def complete_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("trace-*.parquet"))


def test_a_record_comes_back_with_every_field_in_its_column(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "n1")
    recorder.start()
    recorder.record(
        span_of(Kind.TAKE, protocol=Protocol.AMQP, result=Result.EMPTY, client_id=7, queue_id=9, size_bytes=2**40),
        EMITTED_NS,
    )
    recorder.record(span_of(Kind.OTHER, protocol=Protocol.HTTP, result=Result.FAILED, message_count=3), EMITTED_NS)
    recorder.stop()

    (path,) = complete_files(tmp_path)
    first, second = pq.read_table(path).to_pylist()
    assert first.pop("received_us") == second.pop("received_us")
    phases = {"wait_ns": 11, "parse_ns": 12, "engine_ns": 13, "store_ns": 14, "emit_ns": 15}
    assert first == phases | {
        "kind": "take",
        "protocol": "amqp",
        "client_id": 7,
        "queue_id": 9,
        "size_bytes": 2**40,
        "result": "empty",
        "message_count": 0,
        "node": "n1",
        "sequence": 0,
        "weight": 1,
    }
    assert second == phases | {
        "kind": "other",
        "protocol": "http",
        "client_id": 0,
        "queue_id": 0,
        "size_bytes": 0,
        "result": "failed",
        "message_count": 3,
        "node": "n1",
        "sequence": 1,
        "weight": 1,
    }


def test_a_request_that_never_went_to_the_store_has_no_store_time(tmp_path: Path) -> None:
    (row,) = recorded(tmp_path, span_of(submitted_ns=0))
    assert (row["engine_ns"], row["store_ns"], row["emit_ns"]) == (27, 0, 15)


def test_the_time_of_reading_is_told_by_the_clock_of_the_day(tmp_path: Path) -> None:
    before_us = time.time_ns() // 1000
    now_ns = time.perf_counter_ns()
    (row,) = recorded(tmp_path, span_of(received_ns=now_ns))
    assert before_us - 10_000 <= row["received_us"] <= time.time_ns() // 1000 + 10_000


def recorded(folder: Path, *spans: Span) -> list[dict[str, Any]]:
    recorder = Recorder(folder, "n1")
    recorder.start()
    for span in spans:
        recorder.record(span, EMITTED_NS)
    recorder.stop()
    (path,) = complete_files(folder)
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def test_a_file_tells_its_schema_version_node_sample_ratio_and_losses(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "n1", sample_ratio=0.5)
    recorder.start()
    put(recorder)
    recorder.stop()

    (path,) = complete_files(tmp_path)
    assert pq.read_schema(path).equals(SCHEMA, check_metadata=False)
    metadata = pq.read_metadata(path).metadata
    assert metadata[VERSION_KEY.encode()] == b"1"
    assert metadata[NODE_KEY.encode()] == b"n1"
    assert metadata[SAMPLE_RATIO_KEY.encode()] == b"0.5"
    assert metadata[DROPPED_KEY.encode()] == b"0"


def test_many_buffers_keep_every_record_in_order(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "n1", max_buffers=20, buffer_records=10)
    recorder.start()
    for size_bytes in range(101):
        put(recorder, size_bytes=size_bytes)
    recorder.stop()

    table = pa.concat_tables([pq.read_table(path) for path in complete_files(tmp_path)])
    assert table.column("size_bytes").to_pylist() == list(range(101))
    assert table.column("sequence").to_pylist() == list(range(101))
    assert recorder.dropped == 0


def test_a_partly_filled_buffer_is_written_piece_by_piece_and_never_twice(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "n1", buffer_records=10)
    recorder.start()
    for _ in range(4):
        put(recorder, count=3)
        recorder.flush()
    recorder.stop()

    tables = [pq.read_table(path) for path in complete_files(tmp_path)]
    assert [table.column("sequence").to_pylist() for table in tables] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8],
        [9, 10, 11],
    ]


def test_a_record_is_written_when_it_has_aged_though_no_other_follows() -> None:
    files = FakeFiles()
    recorder = Recorder(Path(), "n1", rotate_s=0.01, files=files)
    put(recorder)
    recorder.start()
    assert files.closed.wait(PATIENCE_S)
    assert files.sequences() == [0]
    recorder.stop()


def test_a_file_is_closed_at_its_size_limit(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "n1", rotate_s=PATIENCE_S, rotate_bytes=1, max_buffers=20, buffer_records=5)
    recorder.start()
    put(recorder, count=16)
    recorder.stop()
    assert [pq.read_metadata(path).num_rows for path in complete_files(tmp_path)] == [5, 5, 5, 1]


def test_records_beyond_the_waiting_buffers_are_dropped_and_counted() -> None:
    files = FakeFiles()
    files.may_write.clear()
    recorder = Recorder(Path(), "n1", rotate_s=PATIENCE_S, max_buffers=3, buffer_records=10, files=files)
    recorder.start()
    put(recorder, count=11)
    assert files.entered.wait(PATIENCE_S)
    put(recorder, count=19)
    assert recorder.dropped == 0
    put(recorder, count=7)
    assert recorder.dropped == 7

    files.may_write.set()
    recorder.flush()
    put(recorder)
    recorder.stop()
    assert files.sequences() == [*range(30), 37]
    assert recorder.dropped == 7


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("a mistake of ours")])
def test_a_failing_write_is_counted_and_logged_once_and_the_writer_goes_on(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    files = FakeFiles()
    files.error = error
    recorder = Recorder(Path(), "n1", buffer_records=10, files=files)
    recorder.start()
    for _ in range(3):
        put(recorder, count=2)
        recorder.flush()
    assert recorder.failures == 3
    assert recorder.dropped == 6
    assert [entry.levelno for entry in caplog.records] == [logging.WARNING]

    files.error = None
    put(recorder)
    recorder.stop()
    assert files.sequences() == [6]
    assert "resumed writing traces" in caplog.records[-1].message


def test_a_folder_that_cannot_be_made_costs_the_records_but_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "traces").write_text("in the way")
    recorder = Recorder(tmp_path / "traces", "n1")
    recorder.start()
    put(recorder, count=5)
    recorder.stop()
    assert recorder.dropped == 5
    assert recorder.failures > 0


def test_start_and_stop_may_be_called_twice_and_in_any_order(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "n1")
    recorder.stop()
    recorder.flush()
    put(recorder)
    recorder.start()
    recorder.start()
    recorder.stop()
    recorder.stop()
    put(recorder)
    recorder.start()
    recorder.stop()
    sequences = [pq.read_table(path).column("sequence").to_pylist() for path in complete_files(tmp_path)]
    assert sequences == [[0], [1]]


def test_stopping_without_a_record_leaves_no_file(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "n1")
    recorder.start()
    recorder.stop()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("sample_ratio", "low", "high"), [(0.0, 0, 0), (0.1, 900, 1100), (1.0, 10_000, 10_000)])
def test_the_sample_has_about_the_size_asked_for(sample_ratio: float, low: int, high: int, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "n1", sample_ratio=sample_ratio, most_per_s=10_000)
    assert low <= sum(recorder.sample(1) for _ in range(10_000)) <= high


def test_requests_beyond_the_rate_are_sampled_with_weights(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "n1", most_per_s=100)
    for second in range(3):
        now_ns = second * 1_000_000_000 + 1
        while recorder.skip:
            recorder.sample(now_ns)
        assert [recorder.sample(now_ns) for _ in range(100)] == [1] * 100
        weights = [recorder.sample(now_ns) for _ in range(64_000)]
        assert set(weights) == {0, SPARSE}
        assert 56_000 < sum(weights) < 72_000


def test_a_client_that_alternates_two_requests_shows_both_in_the_sample(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "n1", sample_ratio=0.5, most_per_s=10_000)
    chosen = [turn % 2 for turn in range(10_000) if recorder.sample(1)]
    assert 0.45 < sum(chosen) / len(chosen) < 0.55


@pytest.mark.parametrize("sample_ratio", [-0.1, 1.1])
def test_a_sample_ratio_outside_0_to_1_is_refused(sample_ratio: float, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        Recorder(tmp_path, "n1", sample_ratio=sample_ratio)


def test_one_buffer_is_too_few(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_buffers"):
        Recorder(tmp_path, "n1", max_buffers=1)
