"""Events are counted and their times added up, second by second."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from flyball.pipeline import events, throughput
from tests.pipeline.rows import START_US, Row, calls, requests, windows

SECOND_US = 1_000_000


def test_requests_are_counted_by_their_weight(spark: SparkSession) -> None:
    [row] = seconds(spark, [{"weight": 64}, {"weight": 1}]).collect()
    assert (row.requests, row.messages) == (65, 65)


def test_messages_are_those_of_requests_that_moved_some(spark: SparkSession) -> None:
    came: list[Row] = [
        {"kind": "take", "message_count": 3, "weight": 2},
        {"kind": "take", "message_count": 3, "result": "empty"},
        {"kind": "ping", "message_count": 5},
    ]
    found = {row.kind: row.messages for row in seconds(spark, came).collect()}
    assert found == {"take": 6, "ping": 0}


def test_throughput_is_per_node_kind_queue_and_second(spark: SparkSession) -> None:
    came: list[Row] = [
        {"node": "node-1", "kind": "put", "queue_id": 1},
        {"node": "node-1", "kind": "put", "queue_id": 1},
        {"node": "node-1", "kind": "put", "queue_id": 2},
        {"node": "node-2", "kind": "put", "queue_id": 1},
        {"node": "node-1", "kind": "ping", "queue_id": 1, "received_us": START_US + SECOND_US},
    ]
    expected = spark.createDataFrame(
        [
            ("r1", "nodes", "node-1", "put", "1", 0, 2, 2),
            ("r1", "nodes", "node-1", "put", "2", 0, 1, 1),
            ("r1", "nodes", "node-2", "put", "1", 0, 1, 1),
            ("r1", "nodes", "node-1", "ping", "1", 1, 1, 0),
        ],
        throughput.THROUGHPUT,
    )
    assertDataFrameEqual(throughput.throughput(seconds(spark, came)), expected, ignoreNullable=True)


def test_sums_of_times_and_of_their_squares_are_weighted(spark: SparkSession) -> None:
    [row] = seconds(spark, [{"store_ns": 2_000_000, "weight": 3}, {"wait_ns": 1_000_000}]).collect()
    assert (row.store_ms, row.store_ms2, row.stored) == (6.0, 12.0, 3)
    assert (row.response_ms, row.response_ms2) == (7.0, 13.0)
    assert (row.socket_ms, row.think_ms) == (1.0, 0.0)


def test_a_client_adds_its_response_service_and_think_time(spark: SparkSession) -> None:
    came = calls(spark, [{"late_ns": 1_000_000, "response_ns": 2_000_000, "think_ns": 4_000_000}])
    [row] = throughput.seconds(events.placed(events.of_calls(came), windows(spark, 1))).collect()
    assert (row.response_ms, row.service_ms, row.think_ms, row.store_ms) == (3.0, 2.0, 4.0, 0.0)


def test_days_of_waiting_do_not_overflow(spark: SparkSession) -> None:
    day_ns = 86_400_000_000_000
    [row] = seconds(spark, [{"store_ns": day_ns, "weight": 1_000_000}] * 20).collect()
    assert row.store_ms == pytest.approx(20 * 1_000_000 * 86_400_000)


def test_the_series_of_a_node_adds_up_its_queues(spark: SparkSession) -> None:
    came: list[Row] = [{"queue_id": 1, "wait_ns": 1_000_000}, {"queue_id": 2}]
    [row] = throughput.series(seconds(spark, came)).collect()
    assert (row.requests, row.wait_ms, row.wait_ms2) == (2, 1.0, 1.0)


@pytest.mark.parametrize(("length_s", "kept"), [(2.5, [0, 1]), (3, [0, 1, 2]), (0.5, [0])])
def test_only_whole_seconds_of_the_measured_time_are_compared(
    spark: SparkSession, length_s: float, kept: list[int]
) -> None:
    came = [{"received_us": START_US + second * SECOND_US} for second in range(-2, 5)]
    found = throughput.measured(seconds(spark, came), windows(spark, length_s))
    assert sorted(row.second for row in found.collect()) == kept


def test_queues_beyond_the_busiest_are_counted_together(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "MOST_QUEUES", 2)
    rows = [{"queue_id": queue, "weight": weight} for queue, weight in ((1, 5), (2, 1), (3, 7), (4, 2))]
    found = throughput.throughput(seconds(spark, rows)).collect()
    assert {row.queue: row.requests for row in found} == {"1": 5, "3": 7, throughput.OTHER_QUEUES: 3}


def seconds(spark: SparkSession, rows: Sequence[Row]) -> DataFrame:
    return throughput.seconds(events.placed(events.of_requests(requests(spark, rows)), windows(spark, 10)))
