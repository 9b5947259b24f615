"""Outcomes of an application's requests become rows of Parquet files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flyball.trace.admissions import AdmissionWriter
from flyball.trace.schema import ADMISSION_SCHEMA


def rows_in(folder: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(folder.iterdir()) for row in pq.read_table(path).to_pylist()]


def note(writer: AdmissionWriter, key: str = "GET /", outcome: str = "served", **facts: Any) -> None:
    usual = {
        "class_number": 0,
        "arrived_s": 1.0,
        "waited_s": 0.0,
        "served_s": 0.01,
        "connections": 1,
        "busy_s": 0.005,
        "pool_s": 0.0,
    }
    writer.record(key=key, outcome=outcome, **{**usual, **facts})


def test_requests_are_written_as_they_were(tmp_path: Path) -> None:
    writer = AdmissionWriter(tmp_path, "auction")
    writer.start()
    before_us = time.time_ns() // 1000
    at_s = time.monotonic()
    writer.record("GET /items/{}", 0, "served", at_s, 0.25, 1.5, 3, 0.75, 0.125)
    writer.record("POST /bids", 1, "refused", at_s + 1, 5.0, 0.0, 0, 0.0, 0.0)
    writer.stop()
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("admissions-auction-")
    table = pq.read_table(path)
    assert table.schema.equals(ADMISSION_SCHEMA, check_metadata=False)
    assert table.schema.metadata[b"flyball.table"] == b"admissions"
    rows = table.to_pylist()
    times_us = [row.pop("arrived_us") for row in rows]
    assert [tuple(row.values()) for row in rows] == [
        ("GET /items/{}", 0, "served", 250_000_000, 1_500_000_000, 3, 750_000_000, 125_000_000, "auction", 0, 1),
        ("POST /bids", 1, "refused", 5_000_000_000, 0, 0, 0, 0, "auction", 1, 1),
    ]
    assert times_us[1] - times_us[0] == 1_000_000
    assert -10_000 <= times_us[0] - before_us < 60_000_000


@pytest.mark.parametrize("outcome", ["served", "failed", "refused", "left"])
def test_every_outcome_has_its_text(tmp_path: Path, outcome: str) -> None:
    writer = AdmissionWriter(tmp_path, "auction")
    writer.start()
    note(writer, outcome=outcome)
    writer.stop()
    assert [row["outcome"] for row in rows_in(tmp_path)] == [outcome]


def test_keys_beyond_the_most_are_taken_together(tmp_path: Path) -> None:
    writer = AdmissionWriter(tmp_path, "auction", most_keys=2)
    writer.start()
    for key in ("a", "b", "c", "d", "a"):
        note(writer, key)
    writer.stop()
    assert [row["key"] for row in rows_in(tmp_path)] == ["a", "b", "other", "other", "a"]


def test_a_buffer_that_is_full_is_followed_by_another(tmp_path: Path) -> None:
    writer = AdmissionWriter(tmp_path, "auction", buffer_records=3)
    writer.start()
    for number in range(10):
        note(writer, class_number=number)
        writer.flush()
    writer.stop()
    assert [(row["sequence"], row["class_number"]) for row in rows_in(tmp_path)] == [(n, n) for n in range(10)]
    assert writer.dropped == 0


def test_records_beyond_the_buffers_are_dropped_and_counted(tmp_path: Path) -> None:
    writer = AdmissionWriter(tmp_path, "auction", max_buffers=2, buffer_records=2)
    for _ in range(7):
        note(writer)
    assert writer.dropped == 3
