"""The numbers of runs and cells, compared with the papers'."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from flyball.pipeline import events, latency, throughput
from flyball.pipeline.manifest import Experiment, Measured, Reference, Run
from flyball.pipeline.measures import CELL_COLUMNS, COLUMNS, cells, measures, references, telesto_metrics
from tests.pipeline.rows import START_US, Row, calls, requests, windows

SECOND_US = 1_000_000
MS = 1_000_000


def test_seconds_without_requests_count_as_zero(spark: SparkSession) -> None:
    came = [{"received_us": START_US + second * SECOND_US, "weight": 8} for second in (0, 2)]
    row = measured(spark, of_nodes=came, length_s=4)["nodes", "throughput", "put"]
    assert (row["n"], row["mean"], row["p50"], row["max"]) == (4, 4.0, 4.0, 8.0)
    assert (row["low"], row["high"]) == (-4.0, 4.0)
    assert row["sd"] == pytest.approx(4.6188, rel=1e-4)


def test_a_run_of_less_than_a_second_has_its_rate(spark: SparkSession) -> None:
    row = measured(spark, of_nodes=[{"weight": 10}], length_s=0.5)["nodes", "throughput", "all"]
    assert row["mean"] == 20.0


def test_messages_of_all_kinds_are_those_that_were_received(spark: SparkSession) -> None:
    came: list[Row] = [
        {"kind": "put", "message_count": 5},
        {"kind": "take", "message_count": 2},
        {"kind": "deliver", "message_count": 1},
    ]
    found = measured(spark, of_nodes=came, length_s=1)
    assert found["nodes", "messages", "put"]["mean"] == 5.0
    assert found["nodes", "messages", "all"]["mean"] == 3.0


def test_a_run_in_which_nothing_can_be_received_has_no_rate_of_messages(spark: SparkSession) -> None:
    assert ("nodes", "messages", "all") not in measured(spark, of_nodes=[{"kind": "put"}], length_s=1)


def test_times_are_weighted_means_with_their_spread(spark: SparkSession) -> None:
    came = [{"store_ns": 1 * MS, "weight": 3}, {"store_ns": 5 * MS}]
    row = measured(spark, of_nodes=came, length_s=2)["nodes", "response", "put"]
    assert (row["unit"], row["n"], row["mean"], row["sd"], row["max"]) == ("ms", 4, 2.0, 2.0, 5.0)
    assert row["low"] == pytest.approx(-1.0, abs=0.01)
    assert row["high"] == pytest.approx(2.4, abs=0.03)


def test_in_one_second_a_sample_has_the_weight_of_its_records(spark: SparkSession) -> None:
    few = measured(spark, of_nodes=[{"store_ns": ms * MS, "weight": 64} for ms in (1, 5) * 8], length_s=1)
    many = measured(spark, of_nodes=[{"store_ns": ms * MS} for ms in (1, 5) * 8], length_s=1)
    one, other = (found["nodes", "response", "put"]["half_width"] for found in (few, many))
    assert other == pytest.approx(0.9053, rel=1e-3)
    assert one == pytest.approx(other, rel=0.04)


def test_a_kind_whose_times_were_not_spread_keeps_its_mean(spark: SparkSession) -> None:
    window = windows(spark, 1)
    both = events.of_requests(requests(spark, [{"store_ns": 2 * MS}]))
    series = throughput.series(throughput.seconds(events.placed(both, window))).toPandas()
    spread = latency.percentiles(latency.spread(events.within(both, window))).toPandas()
    found = measures(series, spread[spread["metric"] == "response"], window.toPandas())
    rows = {row["metric"]: row for row in records(found[found["kind"] == "put"])}
    assert rows["store"]["mean"] == 2.0
    assert math.isnan(rows["store"]["p99"])
    assert rows["response"]["p99"] == pytest.approx(2.0, rel=0.01)


def test_every_metric_of_a_node_is_there_under_both_names(spark: SparkSession) -> None:
    phases = {"wait_ns": 1 * MS, "parse_ns": 2 * MS, "engine_ns": 3 * MS, "store_ns": 4 * MS, "emit_ns": 5 * MS}
    found = measured(spark, of_nodes=[phases], length_s=1)
    means = {metric: row["mean"] for (_, metric, kind), row in found.items() if kind == "put" and row["unit"] == "ms"}
    own = {"response": 15.0, "wait": 1.0, "parse": 2.0, "engine": 3.0, "store": 4.0, "emit": 5.0, "database": 4.0}
    assert means == {**own, "socket": 8.0, "worker": 3.0, "persistence": 4.0}


def test_clients_measure_response_service_and_think_time(spark: SparkSession) -> None:
    came = [{"late_ns": 1 * MS, "response_ns": 2 * MS, "think_ns": 7 * MS}]
    found = measured(spark, of_clients=came, length_s=1)
    assert [found["clients", metric, "put"]["mean"] for metric in ("response", "service", "think")] == [3.0, 2.0, 7.0]


def test_the_network_is_what_clients_wait_longer_than_nodes_work(spark: SparkSession) -> None:
    seen: list[Row] = [{"late_ns": 9 * MS, "response_ns": 5 * MS}, {"kind": "deliver", "response_ns": 99 * MS}]
    found = measured(spark, of_nodes=[{"store_ns": 3 * MS}, {"kind": "ping"}], of_clients=seen, length_s=1)
    assert found["clients", "network", "put"]["mean"] == 2.0
    assert found["clients", "network", "all"]["mean"] == 2.0
    assert ("clients", "network", "deliver") not in found


def test_the_metrics_of_the_telesto_report_have_its_names(spark: SparkSession) -> None:
    came: list[Row] = [{"kind": "take", "parse_ns": 1 * MS, "emit_ns": 2 * MS}, {"kind": "take", "store_ns": 8 * MS}]
    window = windows(spark, 1)
    of_nodes = telesto_metrics(tables(spark, came, [], window))
    means = {row.metric: row.mean for row in of_nodes[of_nodes["kind"] == "all"].itertuples()}
    assert means == {
        "middleware response time": 5.5,
        "packet parsing duration": 0.5,
        "database response time": 8.0,
        "packet emitting duration": 1.0,
        "packet throughput": 2.0,
        "message throughput": 2.0,
    }


def test_response_time_of_the_telesto_report_is_the_clients_if_there_are_any(spark: SparkSession) -> None:
    found = telesto_metrics(tables(spark, [{"store_ns": 8 * MS}], [{"response_ns": 9 * MS}], windows(spark, 1)))
    response = found[(found["metric"] == "middleware response time") & (found["kind"] == "all")]
    assert list(response["mean"]) == [9.0]


def test_a_cell_is_the_mean_of_its_repetitions_with_an_interval_by_student() -> None:
    found = cells(of_runs({"a.r1": 10.0, "a.r2": 12.0, "a.r3": 14.0}), [run("a", number) for number in (1, 2, 3)])
    [row] = found.to_dict("records")
    assert (row["experiment"], row["cell"], row["repetitions"], row["mean"]) == ("demo", '{"x": "a"}', 3, 12.0)
    assert row["half_width"] == pytest.approx(2.92 * 2.0 / math.sqrt(3), rel=1e-3)
    assert (row["low"], row["high"]) == (-1.0, 2.0)


def test_a_single_repetition_lends_its_own_interval() -> None:
    [row] = cells(of_runs({"a.r1": 10.0}), [run("a", 1)]).to_dict("records")
    assert (row["repetitions"], row["mean"], row["half_width"]) == (1, 10.0, 0.5)


def test_runs_without_an_experiment_belong_to_no_cell() -> None:
    found = cells(of_runs({"": 10.0}), [])
    assert list(found.columns) == list(CELL_COLUMNS)
    assert found.empty


def test_a_reference_is_compared_with_its_cell() -> None:
    [row] = beside(Reference("table 8", "throughput", 20.0, {"x": "a"}, low=-3.0, high=4.0))
    assert (row["cell"], row["ours"], row["theirs"], row["ratio"]) == ('{"x": "a"}', 10.0, 20.0, 0.5)
    assert (row["ours_low"], row["ours_high"], row["theirs_low"], row["theirs_high"]) == (-1.0, 2.0, -3.0, 4.0)


def test_interval_compared_with_a_symmetric_one_is_by_student() -> None:
    [row] = beside(Reference("table 7", "throughput", 20.0, {"x": "a"}, low=-3.0, high=3.0))
    assert (row["ours_low"], row["ours_high"]) == (-0.5, 0.5)


def test_a_reference_that_names_no_factor_is_compared_with_every_cell() -> None:
    assert [row["cell"] for row in beside(Reference("table 1", "throughput", 20.0))] == ['{"x": "a"}', '{"x": "b"}']


def test_a_reference_whose_cell_was_not_measured_stands_alone() -> None:
    [row] = beside(Reference("table 8", "response", 20.0, {"x": "c"}))
    assert (row["cell"], row["theirs"], row["unit"]) == ('{"x": "c"}', 20.0, "ms")
    assert math.isnan(row["ours"])
    assert math.isnan(row["ratio"])


def measured(
    spark: SparkSession, length_s: float, of_nodes: Sequence[Row] = (), of_clients: Sequence[Row] = ()
) -> dict[tuple[str, str, str], dict[str, Any]]:
    found = tables(spark, of_nodes, of_clients, windows(spark, length_s))
    assert list(found.columns) == list(COLUMNS)
    return {(row["source"], row["metric"], row["kind"]): row for row in records(found)}


def tables(spark: SparkSession, of_nodes: Sequence[Row], of_clients: Sequence[Row], window: Any) -> pd.DataFrame:
    both = events.of_requests(requests(spark, of_nodes)).unionByName(events.of_calls(calls(spark, of_clients)))
    series = throughput.series(throughput.seconds(events.placed(both, window)))
    percentiles = latency.percentiles(latency.spread(events.within(both, window)))
    return measures(series.toPandas(), percentiles.toPandas(), window.toPandas())


def of_runs(means: dict[str, float]) -> pd.DataFrame:
    """The throughput of runs, each with the interval ± 0.5 and the quantiles [-1, 2]."""
    usual = {"source": "clients", "metric": "throughput", "kind": "all", "unit": "1/s", "n": 60}
    usual |= {"half_width": 0.5, "low": -1.0, "high": 2.0}
    rows = [{**usual, "run": name, "mean": mean} for name, mean in means.items()]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def run(level: str, repetition: int) -> Run:
    measured_time = Measured(0, SECOND_US)
    return Run(f"{level}.r{repetition}", measured_time, "demo", factors={"x": level}, repetition=repetition)


def beside(reference: Reference) -> list[dict[str, Any]]:
    own = cells(of_runs({"a.r1": 10.0, "b.r1": 30.0}), [run("a", 1), run("b", 1)])
    return records(references(own, [Experiment("demo", references=[reference]), Experiment("other")]))


def records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    return [dict(zip(rows.columns, row, strict=True)) for row in rows.itertuples(index=False)]
