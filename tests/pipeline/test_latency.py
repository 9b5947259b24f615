"""Percentiles and histograms are those of the events, weighted, to half a percent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from flyball.pipeline import events, latency
from flyball.pipeline.throughput import METRICS_OF
from tests.pipeline.rows import Row, calls, requests, windows

ERROR_RATIO = 0.0051


def test_percentiles_are_exact_to_half_a_percent(spark: SparkSession) -> None:
    times_ns = np.random.default_rng(5).lognormal(np.log(2e6), 1.0, 3_000).astype(int)
    found = percentiles_of(spark, [{"store_ns": int(time_ns)} for time_ns in times_ns])["put", "response"]
    for name, share in latency.QUANTILES.items():
        exact = np.quantile(times_ns, share) / 1e6
        assert found[name] == pytest.approx(exact, rel=ERROR_RATIO), name
    assert found["max_ms"] == times_ns.max() / 1e6


def test_a_row_counts_as_often_as_its_weight_says(spark: SparkSession) -> None:
    rows = [{"store_ns": 1_000_000, "weight": 98}, {"store_ns": 9_000_000, "weight": 2}]
    found = percentiles_of(spark, rows)["put", "response"]
    assert found["requests"] == 100
    assert found["p95_ms"] == pytest.approx(1.0, rel=ERROR_RATIO)
    assert found["p99_ms"] == pytest.approx(9.0, rel=ERROR_RATIO)


def test_all_kinds_together_are_one_kind_more(spark: SparkSession) -> None:
    found = percentiles_of(spark, [{"kind": "put", "wait_ns": 1_000}, {"kind": "take", "wait_ns": 9_000}] * 10)
    assert {kind for kind, _ in found} == {"put", "take", "all"}
    assert found["all", "wait"]["requests"] == 20
    assert found["all", "wait"]["p95_ms"] == pytest.approx(0.009, rel=ERROR_RATIO)


def test_a_time_of_zero_is_zero(spark: SparkSession) -> None:
    found = percentiles_of(spark, [{"wait_ns": 1_000}])["put", "store"]
    assert (found["p50_ms"], found["max_ms"]) == (0.0, 0.0)


def test_no_percentile_exceeds_the_maximum(spark: SparkSession) -> None:
    found = percentiles_of(spark, [{"wait_ns": 1_000_001}])["put", "wait"]
    assert found["p999_ms"] <= found["max_ms"] == 1.000001


def test_database_times_leave_out_requests_that_did_not_wait_for_the_store(spark: SparkSession) -> None:
    found = percentiles_of(spark, [{"store_ns": 0}] * 9 + [{"store_ns": 5_000_000}])
    assert found["put", "store"]["p50_ms"] == 0.0
    assert found["put", "database"]["p5_ms"] == pytest.approx(5.0, rel=ERROR_RATIO)
    assert found["put", "database"]["requests"] == 1


def test_nodes_and_clients_have_the_metrics_that_they_know(spark: SparkSession) -> None:
    of_calls = events.of_calls(calls(spark, [{"response_ns": 1_000}]))
    of_requests = events.of_requests(requests(spark, [{"wait_ns": 1_000}]))
    both = events.within(of_requests.unionByName(of_calls), windows(spark, 1))
    found = {(row.source, row.metric) for row in latency.spread(both).collect()}
    assert found == {(source, metric) for source, metrics in METRICS_OF.items() for metric in metrics}


def test_a_sample_holds_every_response_and_every_event_of_a_rare_kind(spark: SparkSession) -> None:
    rows = [{"wait_ns": 1_000 + number, "received_us": 1_700_000_000_000_000 + number} for number in range(2_000)]
    rare = [{"kind": "peek", "wait_ns": 1_000 + number} for number in range(20)]
    counted = latency.spread(within(spark, [*rows, *rare]), one_in={"put": 4})
    by_kind = counted.groupBy("kind", "metric").agg({"requests": "sum"}).toDF("kind", "metric", "requests")
    counts = {(row.kind, row.metric): row.requests for row in by_kind.collect()}
    assert counts["put", "response"] == 2_000
    assert counts["put", "wait"] == counts["put", "store"]
    # One in four is counted, and stands for four.
    assert 1_600 < counts["put", "wait"] < 2_400
    assert counts["put", "wait"] % 4 == 0
    assert counts["peek", "wait"] == counts["peek", "response"] == 20


def test_bars_of_the_histogram_hold_every_event_once(spark: SparkSession) -> None:
    times_ns = [0, 1, 999, 123_456, 2_000_000, 2_000_000, 60_000_000_000]
    found = latency.histogram(latency.spread(within(spark, [{"store_ns": time_ns} for time_ns in times_ns])))
    bars = sorted((row for row in found.collect() if row.kind == "all"), key=lambda bar: bar.low_ms)
    assert sum(bar.requests for bar in bars) == len(times_ns)
    for bar in bars:
        inside = [time_ns for time_ns in times_ns if bar.low_ms <= time_ns / 1e6 < bar.high_ms]
        assert len(inside) == bar.requests
        assert bar.high_ms / max(bar.low_ms, 1e-6) <= 1.11 or bar.low_ms < 1e-5


def within(spark: SparkSession, rows: Sequence[Row]) -> DataFrame:
    return events.within(events.of_requests(requests(spark, rows)), windows(spark, 100))


def percentiles_of(spark: SparkSession, rows: Sequence[Row]) -> dict[tuple[str, str], dict[str, float]]:
    found = latency.percentiles(latency.spread(within(spark, rows))).collect()
    return {(row.kind, row.metric): row.asDict() for row in found}
