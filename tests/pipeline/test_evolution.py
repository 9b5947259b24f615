"""Traces of every released version are read, and those of later ones that add columns, kinds or results."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flyball.pipeline.analysis import analyse
from flyball.pipeline.ingest import ingest
from flyball.pipeline.stored import drill_down
from tests.pipeline.traces import request, write_requests

FROZEN = sorted(Path(__file__).with_name("fixtures").glob("traces-*"))


@pytest.mark.parametrize("folder", FROZEN, ids=lambda folder: folder.name)
def test_traces_of_a_released_version_are_read(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    found = ingest(spark, folder, tmp_path / "store")
    assert found.rows == {"requests": 20, "calls": 20, "samples": 20, "admissions": 20}
    assert found.quarantine == []
    assert found.dropped == 2
    analysis = analyse(spark, tmp_path / "store", tmp_path / "out")
    measures = analysis.tables["measures"].set_index(["source", "metric", "kind"])["mean"]
    assert measures["nodes", "response", "put"] == pytest.approx(0.5)
    assert measures["clients", "response", "all"] == pytest.approx(1.0)


def test_a_frozen_version_exists() -> None:
    assert "traces-0.1" in {folder.name for folder in FROZEN}


def test_columns_may_be_added_or_missing(spark: SparkSession, tmp_path: Path) -> None:
    """A file of a later version has one more, one of an earlier one lacks those that have a default."""
    source = tmp_path / "data"
    later = write_requests(source / "trace-a-2.parquet", [request(sequence=2)])
    table = pq.read_table(later)
    pq.write_table(table.append_column("colour", pa.array(["red"])), later)
    earlier = write_requests(source / "trace-a-1.parquet", [request(sequence=1)])
    pq.write_table(pq.read_table(earlier).drop_columns(["weight", "protocol", "queue_id"]), earlier)
    found = ingest(spark, source, tmp_path / "store")
    assert found.quarantine == []
    rows = drill_down(spark, tmp_path / "store", "requests").orderBy("sequence").collect()
    assert [(row.weight, row.protocol, row.queue_id) for row in rows] == [(1, "", 0), (1, "thorbang", 1)]


def test_kinds_and_results_may_be_added(spark: SparkSession, tmp_path: Path) -> None:
    write_requests(tmp_path / "data" / "trace-a-1.parquet", [request(kind="subscribe", result="throttled")] * 3)
    found = ingest(spark, tmp_path / "data", tmp_path / "store")
    assert found.quarantine == []
    assert [(row.kind, row.requests) for row in found.seconds.collect()] == [("subscribe", 3)]
