"""A trace that breaks an operational law is reported; one that keeps them all is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flyball.pipeline import events, throughput
from flyball.pipeline.manifest import Measured, Run
from flyball.pipeline.operational_laws import COLUMNS, laws
from tests.pipeline.rows import START_US, Row, calls, requests, windows

MS = 1_000_000
LENGTH_S = 4

Found = dict[str, dict[str, Any]]


def test_a_steady_closed_loop_keeps_every_law(spark: SparkSession) -> None:
    found = checked(spark, of_nodes=loop("node", 80), of_clients=loop("client", 80), run=closed(1))
    assert {law: row["says"] for law, row in found.items() if not row["holds"]} == {}
    assert set(found) == {
        "Little's law (clients)",
        "Little's law (nodes)",
        "flow balance (clients)",
        "flow balance (nodes)",
        "interactive response time law",
        "utilisation (node-1)",
        "the same requests (put)",
        "the same requests (take)",
        "nodes within clients (put)",
        "nodes within clients (take)",
    }


def test_requests_that_do_not_end_break_littles_law(spark: SparkSession) -> None:
    """Ten short requests are answered; twenty that begin in the middle are in progress to the end, seen to 0.5 s."""
    short = [{"received_us": START_US + number * 100_000, "store_ns": 1 * MS} for number in range(10)]
    stuck = [{"received_us": START_US + 2_000_000, "store_ns": 5_000 * MS}] * 20
    row = checked(spark, of_nodes=[*short, *stuck])["Little's law (nodes)"]
    assert not row["holds"]
    assert row["expected"] == pytest.approx(10 / LENGTH_S * 0.001)
    assert row["measured"] == pytest.approx((20 * 1.5 + 10 * 0.001) / LENGTH_S)


def test_clients_that_are_unaccounted_for_break_the_interactive_law(spark: SparkSession) -> None:
    row = checked(spark, of_clients=loop("client", 80), run=closed(2))["interactive response time law"]
    assert (row["expected"], row["holds"]) == (2.0, False)
    assert row["error_ratio"] == pytest.approx(0.5, abs=0.05)


def test_a_queue_that_grows_before_a_control_loop_breaks_no_law(spark: SparkSession) -> None:
    run = closed(1, signal="closed")
    found = checked(spark, of_nodes=loop("node", 80), of_clients=loop("client", 80), run=run)
    assert "Little's law (nodes)" in found
    assert not {"Little's law (clients)", "flow balance (clients)", "flow balance (nodes)"} & set(found)


@pytest.mark.parametrize("workload", [{"rate_per_s": 20.0}, {"rate_curve": [[0, 20]]}])
def test_the_interactive_law_says_nothing_about_open_loops(spark: SparkSession, workload: dict[str, Any]) -> None:
    found = checked(spark, of_clients=loop("client", 80), run=closed(2, **workload))
    assert "interactive response time law" not in found


def test_a_node_cannot_be_busy_for_longer_than_it_is_watched(spark: SparkSession) -> None:
    busy = [{"received_us": START_US + 1_000_000, "engine_ns": 900 * MS, "node": node} for node in ("a", "a", "b")]
    found = checked(spark, of_nodes=[*busy, *busy, *busy])
    assert (found["utilisation (a)"]["measured"], found["utilisation (a)"]["holds"]) == (1.35, False)
    assert found["utilisation (b)"]["holds"]


def test_more_messages_put_than_taken_break_the_flow_balance(spark: SparkSession) -> None:
    came: list[Row] = [{"kind": "put", "message_count": 10}, {"kind": "take", "message_count": 5}]
    row = checked(spark, of_nodes=came)["flow balance (nodes)"]
    assert (row["error_ratio"], row["holds"]) == (0.5, False)
    assert row["says"] == "10 messages put, 5 received, seen by nodes"


def test_flow_balance_is_not_checked_without_takes(spark: SparkSession) -> None:
    assert "flow balance (nodes)" not in checked(spark, of_nodes=[{"kind": "put"}])


def test_a_trace_that_lost_requests_is_not_that_of_the_clients(spark: SparkSession) -> None:
    found = checked(spark, of_nodes=loop("node", 80)[:60], of_clients=loop("client", 80))
    assert not found["the same requests (put)"]["holds"]


def test_a_count_from_a_sample_may_be_off_by_as_much_as_chance_allows(spark: SparkSession) -> None:
    sampled = [{"received_us": START_US + number * 100_000, "weight": 64} for number in range(12)]
    seen = [{"intended_us": START_US + number * 4_000} for number in range(900)]
    row = checked(spark, of_nodes=sampled, of_clients=seen)["the same requests (put)"]
    assert (row["measured"], row["expected"], row["holds"]) == (768, 900, True)


def test_a_node_that_takes_longer_than_its_clients_wait_is_reported(spark: SparkSession) -> None:
    row = checked(spark, of_nodes=[{"store_ns": 9 * MS}], of_clients=[{"response_ns": 3 * MS}])[
        "nodes within clients (put)"
    ]
    assert (row["expected"], row["measured"], row["error_ratio"], row["holds"]) == (3.0, 9.0, 2.0, False)


def test_a_run_without_requests_has_nothing_to_check(spark: SparkSession) -> None:
    assert checked(spark) == {}


def loop(side: str, count: int) -> list[Row]:
    """One client puts and takes in turn for 4 s: 20 ms of response, 12 ms in the node, 30 ms of thought."""
    rows: list[Row] = []
    for number in range(count):
        kind, begun_us = ("put", "take")[number % 2], START_US + number * 50_000
        if side == "node":
            rows.append({"kind": kind, "received_us": begun_us + 4_000, "store_ns": 11 * MS, "engine_ns": 1 * MS})
        else:
            rows.append({"kind": kind, "intended_us": begun_us, "response_ns": 20 * MS, "think_ns": 30 * MS})
    return rows


def closed(count: int, **workload: Any) -> Run:
    return Run("r1", Measured(START_US, START_US + LENGTH_S * 1_000_000), clients={"count": count}, workload=workload)


def test_what_nodes_record_of_a_put_over_amqp_may_outlast_its_confirm(spark: SparkSession) -> None:
    slow = [{"kind": "put", "received_us": START_US, "store_ns": 50 * MS}]
    quick = [{"kind": "put", "intended_us": START_US, "response_ns": 1 * MS}]
    assert "nodes within clients (put)" not in checked(
        spark, of_nodes=slow, of_clients=quick, run=closed(1, protocol="amqp")
    )


def test_a_mean_of_few_records_may_be_off_by_as_much_as_chance_allows(spark: SparkSession) -> None:
    of_nodes = [{"store_ns": store_ns} for store_ns in (1 * MS, 1 * MS, 10 * MS)]
    of_clients = [{"response_ns": 3 * MS}] * 3
    assert checked(spark, of_nodes=of_nodes, of_clients=of_clients)["nodes within clients (put)"]["holds"]


def test_a_rare_kind_that_the_sample_has_missed_is_no_violation(spark: SparkSession) -> None:
    """Every sixty-fourth of the takes is recorded, and none of the seven puts between them."""
    takes = [{"kind": "take", "received_us": START_US + n * 20_000, "weight": 64} for n in range(20)]
    of_nodes = [*takes, *({"kind": "put", "received_us": START_US + n * 10_000} for n in range(80))]
    of_clients = [{"kind": "put", "intended_us": START_US + n * 10_000} for n in range(87)]
    assert checked(spark, of_nodes=of_nodes, of_clients=of_clients)["the same requests (put)"]["holds"]


def checked(
    spark: SparkSession, of_nodes: Sequence[Row] = (), of_clients: Sequence[Row] = (), run: Run | None = None
) -> Found:
    window = windows(spark, LENGTH_S)
    both = events.of_requests(requests(spark, of_nodes)).unionByName(events.of_calls(calls(spark, of_clients)))
    series = throughput.series(throughput.seconds(events.placed(both, window)))
    found = laws(series.toPandas(), window.toPandas(), [run] if run else [])
    assert list(found.columns) == list(COLUMNS)
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.itertuples(index=False)]
    return {row["law"]: row for row in rows}
