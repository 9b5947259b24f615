"""Samples of control loops become rows of Parquet files."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pyarrow.parquet as pq

from flyball.control.loop import Sample
from flyball.control.tuning import Mode, tuning_of
from flyball.trace.samples import MOST_TEXTS, SampleWriter
from flyball.trace.schema import SAMPLE_SCHEMA


def test_samples_are_written_as_they_were(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path, "consumer")
    writer.start()
    before_us = time.time_ns() // 1000
    at_s = time.monotonic()
    writer.record(Sample("orders", at_s, 1.0, 400.0, 391.5, 5.25, 1))
    writer.record(Sample("orders", at_s + 1, 1.0, 400.0, 402.25, 5.3, 2))
    writer.record(Sample("letters", at_s, 0.5, 0.02, 0.03, 7.0, 9))
    writer.stop()
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("samples-consumer-")
    table = pq.read_table(path)
    assert table.schema.equals(SAMPLE_SCHEMA, check_metadata=False)
    rows = table.to_pylist()
    times_us = [row.pop("at_us") for row in rows]
    assert [tuple(row.values())[:6] for row in rows] == [
        ("orders", 1.0, 400.0, 391.5, 5.25, 1),
        ("orders", 1.0, 400.0, 402.25, 5.3, 2),
        ("letters", 0.5, 0.02, 0.03, 7.0, 9),
    ]
    assert times_us[1] - times_us[0] == 1_000_000
    assert -10_000 <= times_us[0] - before_us < 60_000_000


def test_a_buffer_that_is_full_is_followed_by_another(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path, "consumer", buffer_records=3)
    writer.start()
    for number in range(10):
        writer.record(Sample("loop", float(number), 1.0, 1.0, float(number), 1.0, number))
        writer.flush()
    writer.stop()
    sequences = [row["sequence"] for path in sorted(tmp_path.iterdir()) for row in pq.read_table(path).to_pylist()]
    assert sequences == list(range(10))
    assert writer.dropped == 0


def test_samples_beyond_the_buffers_are_dropped_and_counted(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path, "consumer", max_buffers=2, buffer_records=2)
    for number in range(7):
        writer.record(Sample("loop", 0.0, 1.0, 1.0, 1.0, 1.0, number))
    assert writer.dropped == 3


def test_a_sample_says_how_its_loop_was_tuned(tmp_path: Path) -> None:
    law = {"kind": "pi", "kp": 0.5, "ki": 0.25}
    tuning = tuning_of(law, lowest=0.0, model_version="7")
    writer = SampleWriter(tmp_path, "node-1")
    writer.start()
    sample = Sample("node-1.memory", 0.0, 0.02, 4.0, 3.0, 2.0, 1, feedforward=1.5, mode=Mode.SHADOW, tuning=tuning)
    writer.record(sample)
    writer.stop()
    (path,) = tmp_path.iterdir()
    (row,) = pq.read_table(path).to_pylist()
    assert json.loads(row["gains"]) == law
    assert (row["fingerprint"], row["model_version"]) == (tuning.fingerprint, "7")
    assert tuning.fingerprint != tuning_of({**law, "kp": 0.51}).fingerprint
    assert (row["mode"], row["feedforward"]) == ("shadow", 1.5)
    # Without an upper limit there is none, and not an infinite one.
    assert (row["lowest"], row["highest"]) == (0.0, None)
    assert row["process"] == "node-1"
    assert abs(row["started_us"] - time.time_ns() // 1000) < 60_000_000


def test_loops_of_any_number_keep_their_names(tmp_path: Path) -> None:
    """A consumer for each of many short-lived queues has a loop of another name each time."""
    writer = SampleWriter(tmp_path, "consumer")
    count = 2 * MOST_TEXTS + 1
    for number in range(count):
        writer.record(Sample(f"loop-{number}", 0.0, 1.0, 1.0, 1.0, 1.0, number))
    writer.start()
    writer.stop()
    rows = [row for path in sorted(tmp_path.iterdir()) for row in pq.read_table(path).to_pylist()]
    assert [row["loop"] for row in rows] == [f"loop-{number}" for number in range(count)]
    assert writer.dropped == 0
