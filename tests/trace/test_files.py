"""The life of the trace files on disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flyball.trace.buffer import RecordBuffer
from flyball.trace.files import TraceFiles
from flyball.trace.requests import REQUEST

UNLIMITED = 2**40


def batch_of(count: int) -> pa.RecordBatch:
    buffer = RecordBuffer(REQUEST, count, {})
    numbers = range(len(REQUEST.dtype.names or ()) - 3)
    for place in range(count):
        REQUEST.packed.pack_into(buffer.words, place * buffer.record_bytes, 3, 0, 0, *numbers)
    buffer.used_bytes = buffer.capacity_bytes
    return buffer.take(count, "n1", epoch_ns=0)


def trace_files(folder: Path, node: str = "n1", keep_bytes: int = UNLIMITED) -> TraceFiles:
    return TraceFiles(folder, node, 1.0, rotate_bytes=UNLIMITED, keep_bytes=keep_bytes)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_has_a_hidden_name_until_it_is_complete(tmp_path: Path) -> None:
    files = trace_files(tmp_path)
    files.write(batch_of(3))
    (hidden,) = names(tmp_path)
    assert hidden.startswith(".trace-n1-")
    files.write(batch_of(2))
    assert names(tmp_path) == [hidden]

    files.close(dropped=0)
    assert names(tmp_path) == [hidden[1:]]
    assert pq.read_metadata(tmp_path / hidden[1:]).num_rows == 5


def test_closing_twice_makes_one_file(tmp_path: Path) -> None:
    files = trace_files(tmp_path)
    files.write(batch_of(1))
    files.close(dropped=0)
    files.close(dropped=0)
    assert len(names(tmp_path)) == 1


def test_an_abandoned_file_leaves_nothing_behind(tmp_path: Path) -> None:
    files = trace_files(tmp_path)
    files.write(batch_of(3))
    files.abandon()
    assert names(tmp_path) == []
    files.abandon()


def test_a_start_removes_half_files_of_this_node_only(tmp_path: Path) -> None:
    mine = ".trace-n1-20250101T000000000000Z-000001.parquet"
    other = ".trace-n1-b-20250101T000000000000Z-000001.parquet"
    complete = "trace-n1-20250101T000000000000Z-000002.parquet"
    for name in (mine, other, complete):
        (tmp_path / name).touch()
    trace_files(tmp_path).remove_unfinished()
    assert names(tmp_path) == sorted([other, complete])


def test_the_oldest_files_of_this_node_go_when_the_limit_is_passed(tmp_path: Path) -> None:
    for day in range(1, 5):
        (tmp_path / f"trace-n1-2025010{day}T000000000000Z-000001.parquet").write_bytes(bytes(100))
    (tmp_path / "trace-n2-20240101T000000000000Z-000001.parquet").write_bytes(bytes(100))
    trace_files(tmp_path, keep_bytes=250).prune()
    assert names(tmp_path) == [
        "trace-n1-20250103T000000000000Z-000001.parquet",
        "trace-n1-20250104T000000000000Z-000001.parquet",
        "trace-n2-20240101T000000000000Z-000001.parquet",
    ]


def test_the_newest_file_stays_however_small_the_limit(tmp_path: Path) -> None:
    files = trace_files(tmp_path, keep_bytes=1)
    for _ in range(2):
        files.write(batch_of(1))
        files.close(dropped=0)
        files.prune()
    (name,) = names(tmp_path)
    assert name.endswith("-000002.parquet")


@pytest.mark.parametrize("node", ["", "../n1", "a b", "a*"])
def test_a_node_name_that_cannot_be_part_of_a_file_name_is_refused(node: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="node name"):
        trace_files(tmp_path, node=node)


def test_traces_are_private_and_those_of_earlier_versions_are_closed(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir(mode=0o755)
    older = folder / "trace-n1-20250101T000000000000Z-000001.parquet"
    older.write_bytes(b"")
    older.chmod(0o644)
    before = os.umask(0o022)
    try:
        files = trace_files(folder)
        files.remove_unfinished()
        files.write(batch_of(1))
        files.close(dropped=0)
    finally:
        os.umask(before)
    assert len(names(folder)) == 2
    assert [stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()] == [0o600, 0o600]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
