"""Activity of nodes and queues over time, from the seconds that they recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flyball.pipeline.analysis import analyse
from flyball.pipeline.events import MOST_POINTS
from flyball.pipeline.ingest import ingest
from flyball.pipeline.report import write_report
from flyball.pipeline.stored import open_store
from flyball.pipeline.trace_store import Store
from tests.pipeline.traces import (
    START_US,
    node_second,
    queue_second,
    steady_requests,
    time_bucket,
    write_activity,
    write_requests,
)

S = 1_000_000


def test_activity_becomes_tables_over_time_and_a_section(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "traces"
    write_requests(source / "trace-a-1.parquet", steady_requests(400))
    write_activity(
        source,
        [node_second(at_us=START_US + n * S, cpu_ns=n * 10**8, published=100 * n) for n in range(4)],
        [queue_second(at_us=START_US + n * S, ready=n) for n in range(4)],
        [
            time_bucket(messages=90, sum_us=90_000),
            time_bucket(messages=10, from_us=1_048_576, below_us=1_310_720, sum_us=12_000_000),
            time_bucket(metric="service", from_us=7, below_us=8, messages=4, sum_us=28),
        ],
    )
    found = analyse(spark, source, tmp_path / "out")
    nodes = found.tables["nodes_over_time"]
    assert list(nodes["second"]) == [0, 1, 2, 3]
    assert list(nodes["cpu_ratio"]) == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert list(nodes["published_per_s"]) == [0, 100, 200, 300]
    assert set(nodes["memory_bytes"]) == {2.0**27}
    queues = found.tables["queues_over_time"]
    assert list(queues["ready"]) == [0, 1, 2, 3]
    first = queues.iloc[0]
    assert (first["queue"], first["vhost"], first["acked_per_s"]) == ("orders", "/", 100)
    assert first["wait_p50_ms"] == pytest.approx(1.024)
    assert first["wait_p95_ms"] == pytest.approx(1310.72)
    assert first["wait_mean_ms"] == pytest.approx(120.9)
    assert first["service_p99_ms"] == pytest.approx(0.008)
    assert queues["wait_p50_ms"].isna().tolist() == [False, True, True, True]
    write_report(found, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "Nodes and queues" in page
    assert "orders" in page


def test_activity_of_two_batches_is_added_up(spark: SparkSession, tmp_path: Path) -> None:
    """An aggregate of a store does not depend on how its rows came in, and survives a compaction."""
    write_activity(tmp_path / "one", [node_second()], [queue_second()], [time_bucket()])
    write_activity(tmp_path / "two", [node_second(published=50, cpu_ns=0)], [queue_second(acked=1)], [time_bucket()])
    store = tmp_path / "store"
    ingest(spark, tmp_path / "one", store)
    ingest(spark, tmp_path / "two", store)
    Store(store, spark).compact(spark)
    found = open_store(spark, store)
    [node] = found.node_points.collect()
    assert (node.published, node.recorded_s, node.cpu_s) == (150, 2.0, 0.5)
    assert node.ready == 20.0
    [queue] = found.queue_points.collect()
    assert (queue.published, queue.acked) == (200, 101)
    [times] = found.time_points.collect()
    assert (times.timed, times.messages, times.sum_us) == (16, 200, 200_000)
    assert found.rows == {"nodes": 2, "queues": 2, "times": 2}


def test_impossible_rows_are_quarantined(spark: SparkSession, tmp_path: Path) -> None:
    write_activity(
        tmp_path / "traces",
        [node_second(), node_second(cpu_ns=-1), node_second(elapsed_ns=0)],
        [queue_second(), queue_second(queue=None)],
        [time_bucket(), time_bucket(messages=0)],
    )
    found = ingest(spark, tmp_path / "traces", tmp_path / "store")
    assert found.rows == {"nodes": 1, "queues": 1, "times": 1}
    assert sorted(each.reason for each in found.quarantine) == [
        "cpu_ns is negative",
        "elapsed_ns is not above 0",
        "messages is not above 0",
        "queue is missing",
    ]


def test_a_long_run_has_a_bounded_number_of_points(spark: SparkSession, tmp_path: Path) -> None:
    days = 4
    write_activity(
        tmp_path / "traces",
        [node_second(at_us=START_US + n * 60 * S, elapsed_ns=60 * 10**9) for n in range(days * 24 * 60)],
    )
    found = analyse(spark, tmp_path / "traces", tmp_path / "out")
    nodes = found.tables["nodes_over_time"]
    assert MOST_POINTS / 4 < len(nodes) <= MOST_POINTS
    assert nodes["published_per_s"].to_numpy() == pytest.approx(100 / 60)
    assert nodes["connections"].to_numpy() == pytest.approx(3.0)
