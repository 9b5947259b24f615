"""Policies of admission are compared by their admitted requests, response times and load."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import SparkSession

from flyball.pipeline.analysis import Analysis, analyse
from flyball.pipeline.manifest import Measured, Run
from flyball.pipeline.policies import (
    COLUMNS,
    LOAD_STEPS,
    RUN_COLUMNS,
    clients_of,
    compared_runs,
    kappa_of,
    policy_of,
)
from flyball.pipeline.report import write_report
from tests.pipeline.admissions import (
    KAPPA,
    KEYS,
    PROFILE,
    load_samples,
    site_call,
    write_site_experiment,
    write_site_run,
)
from tests.pipeline.traces import Row, sample, write_run, write_samples

LENGTH_S = 10.0

Rows = dict[str, dict[Any, Any]]


def uncontrolled_calls() -> list[Row]:
    """Small ones 10 a second, half of which fail after 4 s; large ones one a second, which all fail."""
    small = [
        site_call("small", number / 10, *(("failed", 4000.0) if number % 2 else ("ok", 20.0)))
        for number in range(100)
    ]
    return [*small, *(site_call("large", float(number), "failed", 4000.0) for number in range(10))]


def controlled_calls() -> list[Row]:
    """Small ones 20 a second, all fine; of two large ones a second every other one refused at once."""
    small = [site_call("small", number / 20, "ok", 5.0) for number in range(200)]
    large = [
        site_call("large", number / 2, *(("refused", 1.0) if number % 2 else ("ok", 100.0))) for number in range(20)
    ]
    return [*small, *large]


@pytest.fixture(scope="module")
def done(spark_process: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Analysis, Path]:
    """A run without control, one with, and one that made the profile."""
    source, out = tmp_path_factory.mktemp("results"), tmp_path_factory.mktemp("out")
    experiment = write_site_experiment(source / "clients")
    write_site_run(experiment, "none.200.r1", "none", 200, uncontrolled_calls(), load_samples([500, 1500] * 20))
    loads = [*[1000.0, 1100.0] * 20, 9999.0]
    write_site_run(experiment, "dps.1000.r1", "dps", 1000, controlled_calls(), load_samples(loads, 1050.0))
    write_site_run(experiment, "dps.200.r1", "dps", 200, controlled_calls(), [])
    write_site_experiment(source / "profile", "admission/profile", factors={"purpose": ["costs"]})
    write_site_run(
        source / "profile",
        "costs",
        "none",
        5,
        [site_call("small", 1.0)],
        load_samples([10.0] * 40),
        experiment="admission/profile",
        factors={"purpose": "costs"},
        classes=None,
    )
    return analyse(spark_process, source, out), out


@pytest.fixture
def rows(done: tuple[Analysis, Path]) -> Rows:
    return {row["run"]: row for row in done[0].tables["policy_runs"].to_dict("records")}


def test_the_table_of_policies_has_exactly_the_columns_that_were_asked_for(done: tuple[Analysis, Path]) -> None:
    table = pd.read_csv(done[1] / "tables" / "policies.csv")
    assert list(table.columns) == [
        *("policy", "clients", "goodput", "errors", "p50_small", "p99_small", "p50_large", "p99_large"),
        *("load_mean", "load_std", "r"),
    ]
    assert list(table.columns) == list(COLUMNS)
    assert list(zip(table["policy"], table["clients"], strict=True)) == [("dps", 200), ("dps", 1000), ("none", 200)]


def test_goodput_is_what_succeeded_and_errors_are_what_did_not(rows: Rows) -> None:
    none, dps = rows["none.200.r1"], rows["dps.1000.r1"]
    # Of the last four seconds the failed ones are answered after the end.
    assert none["goodput"] == pytest.approx(50 / LENGTH_S)
    assert none["errors"] == pytest.approx((30 + 6) / (50 + 30 + 6), rel=1e-5)
    assert (none["refused"], none["failed"]) == (0, none["errors"])
    assert dps["goodput"] == pytest.approx(210 / LENGTH_S)
    assert (dps["errors"], dps["failed"]) == (pytest.approx(10 / 220, rel=1e-5), 0)


def test_a_time_out_counts_with_the_time_waited_and_a_refusal_not_at_all(rows: Rows) -> None:
    none, dps = rows["none.200.r1"], rows["dps.1000.r1"]
    assert none["p99_small"] == pytest.approx(4000, rel=0.01)
    assert none["p50_small"] == pytest.approx(20, rel=0.01)
    assert none["p50_large"] == pytest.approx(4000, rel=0.01)
    assert dps["p50_large"] == pytest.approx(100, rel=0.01)
    assert dps["p99_small"] == pytest.approx(5, rel=0.01)
    assert dps["mean_large"] == pytest.approx(100)


def test_what_was_admitted_of_each_class_is_what_was_not_refused(rows: Rows) -> None:
    dps = rows["dps.1000.r1"]
    assert (dps["admitted_small"], dps["admitted_large"]) == (1, 0.5)
    assert rows["none.200.r1"]["admitted_large"] == 1
    assert dps["kappa"] == pytest.approx(KAPPA)


def test_load_is_that_of_the_samples_in_the_measured_time(rows: Rows) -> None:
    dps = rows["dps.1000.r1"]
    assert dps["load_mean"] == pytest.approx(1050)
    assert dps["load_std"] == pytest.approx(np.std([1000, 1100] * 20, ddof=1), rel=1e-5)
    assert dps["r"] == 1050
    assert math.isnan(rows["none.200.r1"]["r"])
    assert math.isnan(rows["dps.200.r1"]["load_mean"])


def test_the_cdf_of_the_load_rises_from_its_least_to_its_largest(done: tuple[Analysis, Path]) -> None:
    table = done[0].tables["load_cdf"]
    own = table[table["run"] == "none.200.r1"]
    assert len(own) == LOAD_STEPS + 1
    assert (own["load"].iloc[0], own["load"].iloc[-1]) == (500, 1500)
    assert own["load"].is_monotonic_increasing
    assert (own["ratio"].iloc[0], own["ratio"].iloc[-1]) == (0, 1)


def test_responses_over_time_are_those_of_each_class_in_each_second(done: tuple[Analysis, Path]) -> None:
    rows = done[0].tables["response_over_time"].to_dict("records")
    large = {(row["run"], row["second"]): row for row in rows if row["kind"] == "large"}
    second = large["dps.1000.r1", 3]
    assert (second["ok"], second["refused"], second["failed"]) == (1, 1, 0)
    assert second["mean_ms"] == pytest.approx(100)
    assert [at for run, at in large if run == "none.200.r1"] == list(range(4, 10))


def test_a_run_without_classes_is_no_policy(done: tuple[Analysis, Path]) -> None:
    assert set(done[0].tables["policy_runs"]["experiment"]) == {"admission/clients"}


def test_intervals_and_further_percentiles_stand_in_a_table_of_their_own(rows: Rows) -> None:
    dps = rows["dps.1000.r1"]
    assert list(dps) == list(RUN_COLUMNS)
    assert 0 <= dps["goodput_half_width"] < 1
    assert dps["p95_small"] == pytest.approx(5, rel=0.01)


def test_admission_is_no_closed_loop_with_a_goal_to_be_held(done: tuple[Analysis, Path]) -> None:
    analysis, out = done
    assert "closed_loops" not in analysis.tables
    assert "model" not in analysis.models
    assert set(analysis.tables["loops"]["loop"]) == {"admission"}
    write_report(analysis, out / "report.html")
    assert "Closed loops" not in (out / "report.html").read_text(encoding="utf-8")


def test_a_site_that_refuses_has_no_capacity_of_answers(done: tuple[Analysis, Path]) -> None:
    assert "capacity" not in done[0].models


def test_throughput_counts_every_answer(done: tuple[Analysis, Path]) -> None:
    rows = done[0].tables["measures"].to_dict("records")
    found = {(row["run"], row["metric"], row["kind"]): row["mean"] for row in rows}
    assert found["dps.1000.r1", "throughput", "all"] == pytest.approx(22)


def test_tables_of_policies_do_not_outlive_their_runs(spark: SparkSession, tmp_path: Path) -> None:
    experiment = write_site_experiment(tmp_path / "results" / "clients")
    write_site_run(experiment, "dps", "dps", 100, controlled_calls(), load_samples([1000.0] * 40, 1000.0))
    analyse(spark, tmp_path / "results", tmp_path / "out")
    assert (tmp_path / "out" / "tables" / "policies.csv").exists()
    other = write_site_experiment(tmp_path / "others" / "loops")
    folder = write_run(other, "r1", length_s=10, workload={"kind": "adaptive", "signal": "closed"})
    write_samples(folder / "traces" / "samples-node-1.parquet", [sample(sequence=number) for number in range(20)])
    analyse(spark, tmp_path / "others", tmp_path / "out")
    assert not (tmp_path / "out" / "tables" / "policies.csv").exists()
    assert (tmp_path / "out" / "tables" / "closed_loops.csv").exists()


def run_of(**facts: object) -> Run:
    return Run("r1", Measured(0, 1), **facts)  # type: ignore[arg-type]


def test_a_policy_is_found_whether_it_was_varied_or_not() -> None:
    assert policy_of(run_of(factors={"policy": "dps"})) == "dps"
    assert policy_of(run_of(target={"settings": {"policy": "static"}})) == "static"
    assert policy_of(run_of()) == "none"
    assert clients_of(run_of(workload={"clients": 7})) == 7
    assert clients_of(run_of(clients={"count": 8})) == 8


def test_without_a_profile_the_cost_of_a_large_request_is_unknown() -> None:
    assert math.isnan(kappa_of(run_of(workload={"classes": KEYS})))
    only_small = dict.fromkeys(KEYS, "small")
    assert math.isnan(kappa_of(run_of(workload={"classes": only_small, "profile": PROFILE})))
    assert compared_runs([run_of()]) == []
