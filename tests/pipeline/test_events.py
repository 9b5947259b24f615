"""Requests and calls become events, with their place in the measured time."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from flyball.errors import PipelineError
from flyball.pipeline import events
from tests.pipeline.rows import START_US, calls, requests, windows

SECOND_US = 1_000_000


def test_the_latency_of_a_request_is_the_sum_of_its_phases(spark: SparkSession) -> None:
    row = {
        "wait_ns": 1_000,
        "parse_ns": 2_000,
        "engine_ns": 3_000,
        "store_ns": 4_000,
        "emit_ns": 5_500,
        "queue_id": 7,
    }
    found = events.of_requests(requests(spark, [row]))
    expected = spark.createDataFrame(
        [("nodes", "node-1", "7", START_US + 15, 15_500, 15_500, 0)],
        "source string, place string, queue string, at_us long, latency_ns long, service_ns long, think_ns long",
    )
    assertDataFrameEqual(found.select(*expected.columns), expected, ignoreNullable=True)


def test_the_latency_of_a_call_counts_from_when_it_was_meant(spark: SparkSession) -> None:
    row = {"late_ns": 10_000_000, "response_ns": 5_000_000, "think_ns": 3_000}
    found = events.of_calls(calls(spark, [row]))
    expected = spark.createDataFrame(
        [("clients", "node-1", "orders", START_US + 15_000, 15_000_000, 5_000_000, 3_000)],
        "source string, place string, queue string, at_us long, latency_ns long, service_ns long, think_ns long",
    )
    assertDataFrameEqual(found.select(*expected.columns), expected, ignoreNullable=True)


def test_both_have_the_same_columns(spark: SparkSession) -> None:
    types = [(field.name, field.dataType) for field in events.EVENTS]
    for found in (events.of_requests(requests(spark, [{}])), events.of_calls(calls(spark, [{}]))):
        assert [(field.name, field.dataType) for field in found.schema] == types


def test_an_event_belongs_to_the_second_in_which_it_was_answered(spark: SparkSession) -> None:
    found = placed(spark, [-SECOND_US, -1, 0, SECOND_US - 1, SECOND_US])
    assert [row.second for row in found.orderBy("at_us").collect()] == [-1, -1, 0, 0, 1]


def test_only_events_answered_in_the_measured_time_are_within(spark: SparkSession) -> None:
    came = [{"received_us": START_US + offset} for offset in (-1, 0, 2 * SECOND_US - 1, 2 * SECOND_US)]
    found = events.within(events.of_requests(requests(spark, came)), windows(spark, 2))
    assert sorted(row.at_us - START_US for row in found.collect()) == [0, 2 * SECOND_US - 1]


def test_events_of_a_run_without_a_window_are_left_out(spark: SparkSession) -> None:
    found = events.placed(
        events.of_requests(requests(spark, [{"run": "r1"}, {"run": "r2"}])), windows(spark, 1, "r2")
    )
    assert [row.run for row in found.collect()] == ["r2"]


def test_a_table_that_lacks_columns_is_refused_by_name(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match="the table of requests lacks wait_ns"):
        events.of_requests(requests(spark, [{}]).drop("wait_ns"))


def placed(spark: SparkSession, offsets_us: list[int]) -> DataFrame:
    came = [{"received_us": START_US + offset} for offset in offsets_us]
    return events.placed(events.of_requests(requests(spark, came)), windows(spark, 10))
