"""Seconds of nodes and queues become rows of Parquet files, and times of messages histograms."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flyball.trace.activity import (
    MOST_NAMES,
    NodeSecond,
    NodeWriter,
    QueueSecond,
    QueueWriter,
    Timed,
    TimeWriter,
    bucket_of,
)
from flyball.trace.schema import NODE_SCHEMA, QUEUE_SCHEMA, TIME_SCHEMA, Metric

KEEP_BYTES = 2**20


def rows_in(folder: Path, prefix: str) -> list[dict[str, Any]]:
    paths = sorted(folder.glob(f"{prefix}-*.parquet"))
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


def second_of(**numbers: int) -> NodeSecond:
    return NodeSecond(**{**dict.fromkeys(NodeSecond.__slots__, 0), **numbers})


def queue_second(name: str, published: int = 1) -> QueueSecond:
    return QueueSecond("/", name, 3, 2, 1, published, 5, 4)


def test_a_second_of_a_node_is_written_as_it_was(tmp_path: Path) -> None:
    writer = NodeWriter(tmp_path, "node-1", KEEP_BYTES)
    writer.start()
    writer.record(second_of(at_ns=time.perf_counter_ns(), cpu_ns=7, store_cpu_ns=8, delivered=9))
    writer.stop()
    (path,) = tmp_path.glob("nodes-node-1-*.parquet")
    assert pq.read_schema(path).equals(NODE_SCHEMA, check_metadata=False)
    (row,) = rows_in(tmp_path, "nodes")
    assert (row["node"], row["cpu_ns"], row["store_cpu_ns"], row["delivered"]) == ("node-1", 7, 8, 9)
    assert abs(row["at_us"] - time.time_ns() // 1000) < 60_000_000


def test_a_second_of_a_queue_is_written_as_it_was(tmp_path: Path) -> None:
    writer = QueueWriter(tmp_path, "node-1", KEEP_BYTES)
    writer.start()
    writer.record(time.perf_counter_ns(), 1_000_000_000, queue_second("orders", 6))
    writer.stop()
    (path,) = tmp_path.glob("queues-node-1-*.parquet")
    assert pq.read_schema(path).equals(QUEUE_SCHEMA, check_metadata=False)
    (row,) = rows_in(tmp_path, "queues")
    del row["at_us"]
    assert row == {
        "node": "node-1",
        "vhost": "/",
        "queue": "orders",
        "elapsed_ns": 1_000_000_000,
        "sequence": 0,
        "ready": 3,
        "unacked": 2,
        "consumers": 1,
        "published": 6,
        "delivered": 5,
        "acked": 4,
    }


def test_queues_of_any_number_keep_their_names(tmp_path: Path) -> None:
    """Reply queues come and go: a node meets more names than it may remember."""
    writer = QueueWriter(tmp_path, "node-1", KEEP_BYTES)
    writer.start()
    names = [f"amq.gen-{number}" for number in range(2 * MOST_NAMES + 1)]
    for number, name in enumerate(names):
        writer.record(0, 1, queue_second(name))
        if number % 1000 == 0:
            writer.flush()
    writer.stop()
    found = rows_in(tmp_path, "queues")
    assert [row["queue"] for row in found] == names
    assert [row["sequence"] for row in found] == list(range(len(names)))
    assert writer.dropped == 0


def test_queue_named_in_other_octets_than_utf_8_does_not_end_the_trace(tmp_path: Path) -> None:
    """AMQP's decoder keeps such octets as lone surrogates, which Parquet has not."""
    writer = QueueWriter(tmp_path, "n", KEEP_BYTES)
    writer.start()
    names = ("orders", "b\udcffd", "b\\udcffd", "größe")
    for name in names:
        writer.record(time.perf_counter_ns(), 10**9, queue_second(name))
    writer.flush()
    writer.record(time.perf_counter_ns(), 10**9, queue_second("later"))
    writer.stop()
    assert (writer.dropped, writer.failures) == (0, 0)
    found = [row["queue"] for row in rows_in(tmp_path, "queues")]
    assert found == ["orders", "b\\udcffd", "b\\udcffd", "größe", "later"]


def test_times_of_a_clock_that_was_wrong_do_not_end_the_trace(tmp_path: Path) -> None:
    """A machine without a battery begins in 1970: messages from then have waited for decades, by the clock."""
    writer = TimeWriter(tmp_path, "n", KEEP_BYTES)
    writer.start()
    writer.record(time.perf_counter_ns(), "/", "orders", [Timed(Metric.WAIT, 18 * 10**14, 10**4)])
    writer.stop()
    (row,) = rows_in(tmp_path, "times")
    assert (row["messages"], row["sum_us"]) == (10**4, 2**63 - 1)


def test_times_become_buckets_that_can_be_added(tmp_path: Path) -> None:
    writer = TimeWriter(tmp_path, "node-1", KEEP_BYTES)
    writer.start()
    wait, service = Metric.WAIT, Metric.SERVICE
    writer.record(0, "/", "orders", [Timed(wait, 1000, 1), Timed(wait, 1010, 10), Timed(service, 0, 2)])
    writer.stop()
    (path,) = tmp_path.glob("times-node-1-*.parquet")
    assert pq.read_schema(path).equals(TIME_SCHEMA, check_metadata=False)
    found = [
        tuple(row[name] for name in ("metric", "from_us", "below_us", "timed", "messages", "sum_us"))
        for row in rows_in(tmp_path, "times")
    ]
    assert found == [("wait", 896, 1024, 2, 11, 11_100), ("service", 0, 1, 1, 2, 0)]


@pytest.mark.parametrize("took_us", [0, 1, 3, 4, 5, 7, 8, 9, 1000, 1023, 1024, 10**6 + 7, 2**40])
def test_bucket_holds_the_time_and_is_narrow(took_us: int) -> None:
    first, below = bucket_of(took_us)
    assert first <= took_us < below
    assert below - first <= max(1, took_us / 4)
    # Buckets adjoin: the first time beyond a bucket begins the next one.
    assert bucket_of(below)[0] == below


def test_files_beyond_the_limit_are_removed(tmp_path: Path) -> None:
    writer = NodeWriter(tmp_path, "node-1", keep_bytes=40_000)
    writer.start()
    for number in range(30):
        writer.record(second_of(at_ns=number))
        writer.flush()
    writer.stop()
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert sum(sizes) <= 40_000
    assert max(row["sequence"] for row in rows_in(tmp_path, "nodes")) == 29
