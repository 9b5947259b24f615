"""The breakdown of a node's time, in its own phases and in the components of the ThorBangMQ report."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pyspark.sql import Row as Found
from pyspark.sql import SparkSession

from flyball.pipeline import events, latency, throughput
from flyball.pipeline.phases import PHASES, phases
from tests.pipeline.rows import Row, requests, windows

ROW: Row = {
    "wait_ns": 1_000_000,
    "parse_ns": 2_000_000,
    "engine_ns": 3_000_000,
    "store_ns": 4_000_000,
    "emit_ns": 5_000_000,
}


def test_every_phase_has_its_mean(spark: SparkSession) -> None:
    found = phases_of(spark, [ROW])
    means = {phase: row.mean_ms for (_, kind, phase), row in found.items() if kind == "put"}
    own = {"wait": 1.0, "parse": 2.0, "engine": 3.0, "store": 4.0, "emit": 5.0, "total": 15.0}
    assert means == {**own, "socket": 8.0, "worker": 3.0, "persistence": 4.0}


def test_the_components_of_the_thorbangmq_report_add_up_to_the_total(spark: SparkSession) -> None:
    found = phases_of(spark, [ROW, {"wait_ns": 500_000}, {"store_ns": 7_000_000, "weight": 64}])
    parts = [found["node-1", "put", phase].mean_ms for phase in ("socket", "worker", "persistence")]
    assert sum(parts) == pytest.approx(found["node-1", "put", "total"].mean_ms)


def test_mean_and_deviation_are_weighted(spark: SparkSession) -> None:
    """Three times 1 ms and once 5 ms: mean 2 ms, variance 12 / 3."""
    found = phases_of(spark, [{"store_ns": 1_000_000, "weight": 3}, {"store_ns": 5_000_000}])
    row = found["node-1", "put", "store"]
    assert (row.requests, row.mean_ms, row.sd_ms) == (4, 2.0, 2.0)
    assert row.p50_ms == pytest.approx(1.0, rel=0.0051)


def test_nodes_and_kinds_are_apart_and_all_kinds_together(spark: SparkSession) -> None:
    rows = [{"node": node, "kind": kind, "wait_ns": 1_000} for node in ("a", "b") for kind in ("put", "take")]
    found = phases_of(spark, rows)
    assert {key[:2] for key in found} == {(node, kind) for node in "ab" for kind in ("put", "take", "all")}
    assert found["a", "all", "wait"].requests == 2


def test_one_request_deviates_from_nothing(spark: SparkSession) -> None:
    assert phases_of(spark, [ROW])["node-1", "put", "total"].sd_ms == 0.0


def test_a_kind_whose_times_were_not_spread_keeps_its_mean(spark: SparkSession) -> None:
    window = windows(spark, 10)
    of_requests = events.of_requests(requests(spark, [ROW]))
    counted = throughput.seconds(events.placed(of_requests, window))
    spread = latency.spread(events.within(of_requests, window)).where("metric = 'response'")
    found = {row.phase: row for row in phases(counted, spread).where("kind = 'put'").collect()}
    assert (found["store"].mean_ms, found["store"].p50_ms) == (4.0, None)
    assert found["total"].p50_ms == pytest.approx(15.0, rel=0.01)


def phases_of(spark: SparkSession, rows: Sequence[Row]) -> dict[tuple[str, str, str], Found]:
    window = windows(spark, 10)
    of_requests = events.of_requests(requests(spark, rows))
    counted = throughput.seconds(events.placed(of_requests, window))
    found = phases(counted, latency.spread(events.within(of_requests, window)))
    assert found.columns == PHASES.names
    return {(row.node, row.kind, row.phase): row for row in found.collect()}
