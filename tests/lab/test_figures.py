"""The simplest figures of a run."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from flyball.lab.figures import figures_of

SECOND_US = 1_000_000


def calls(folder: Path, name: str, rows: list[tuple[int, int, int, int]]) -> None:
    columns = ("intended_us", "late_ns", "response_ns", "weight")
    table = pa.table({column: [row[place] for row in rows] for place, column in enumerate(columns)})
    pq.write_table(table, folder / f"calls-{name}.parquet")


def test_calls_answered_in_the_window_count_by_weight_from_when_they_were_meant(tmp_path: Path) -> None:
    at_us = 10 * SECOND_US
    calls(tmp_path, "worker-1", [(at_us, 1_000_000, 1_000_000, 1), (at_us - 10, 0, 5_000, 1)])
    calls(tmp_path, "worker-2", [(at_us + SECOND_US, 0, 6_000_000, 3), (at_us + 2 * SECOND_US, 0, 1_000, 1)])
    figures = figures_of(tmp_path, at_us, at_us + 2 * SECOND_US)
    # One of 2 ms, three of 6 ms; the others were answered before or after.
    assert figures == {"calls_per_s": 2.0, "response_ms": 5.0}


def test_no_calls_are_no_calls(tmp_path: Path) -> None:
    assert figures_of(tmp_path, 0, SECOND_US) == {"calls_per_s": 0.0, "response_ms": 0.0}
