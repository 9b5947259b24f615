"""`ingest --follow` over a simulated day: the files of a store stay few, and each row counts once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flyball.pipeline import ingest
from flyball.pipeline.ingest import follow_round
from flyball.pipeline.stored import open_store
from flyball.pipeline.trace_store import Store
from tests.pipeline.traces import START_US, request, write_requests

ROUNDS = 6
FILES = 4
COMPACT_AFTER = 2
HOURS_OF_A_ROUND = 24 / ROUNDS


def record(folder: Path, number: int) -> None:
    """Write the files of one round: 30 requests each."""
    for part in range(FILES):
        begin_us = START_US + round((number + part / FILES) * HOURS_OF_A_ROUND * 3_600_000_000)
        rows = [request(received_us=begin_us + second * 1_000_000, queue_id=second) for second in range(30)]
        write_requests(folder / f"trace-node-1-{number:03}-{part}.parquet", rows)


def test_rounds_and_files_of_a_day_stay_flat(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m bench.pipeline --follow-day` measures the time of 288 rounds; here their files are counted."""
    monkeypatch.setattr(ingest, "COMPACT_AFTER", COMPACT_AFTER)
    source = tmp_path / "data"
    store = Store(tmp_path / "store", spark)
    store.create()
    files, batches = [], []
    with store.locked():
        for number in range(ROUNDS):
            record(source, number)
            follow_round(spark, source, store)
            counted = [path for path in (tmp_path / "store").rglob("*.parquet") if "_checkpoints" not in path.parts]
            files.append(len(counted))
            batches.append(len(store.batches()))
        # A file that was seen already comes again, and one comes late.
        write_requests(source / "trace-node-1-000-9.parquet", [request(received_us=START_US - 1_000_000)])
        again = source / "trace-node-1-000-0.parquet"
        again.write_bytes(again.read_bytes())
        follow_round(spark, source, store)
    assert max(batches) <= COMPACT_AFTER
    assert max(files[-COMPACT_AFTER:]) <= max(files[: COMPACT_AFTER + 1]), (
        "the store has no more files at the end of the day"
    )
    found = open_store(spark, tmp_path / "store")
    assert found.rows == {"requests": ROUNDS * FILES * 30 + 1}
    assert found.seconds.agg({"requests": "sum"}).collect()[0][0] == ROUNDS * FILES * 30 + 1
    assert found.seconds.agg({"second": "min"}).collect()[0][0] <= 0, "what came late is counted where it belongs"
