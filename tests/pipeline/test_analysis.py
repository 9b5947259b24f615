"""All stages together, on traces with known rates and phases."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession

from flyball.errors import PipelineError
from flyball.pipeline.analysis import Analysis, analyse, find_model
from flyball.pipeline.events import MOST_POINTS
from flyball.pipeline.ingest import ingest
from flyball.pipeline.log_formats import LogFormat
from flyball.pipeline.report import write_report
from flyball.pipeline.throughput import MOST_QUEUES, THROUGHPUT
from tests.pipeline.traces import (
    START_US,
    admission,
    request,
    sample,
    steady_requests,
    write_admissions,
    write_experiment,
    write_requests,
    write_run,
    write_samples,
    write_steady_run,
)

TABLES = [
    *("cells", "effects", "histogram", "laws", "measures", "phases", "quarantine", "references", "series"),
    *("telesto", "throughput", "warm_up"),
]


def measure(analysis: Analysis, run: str, source: str, metric: str, kind: str = "all") -> float:
    table = analysis.tables["measures"]
    row = table[
        (table["run"] == run) & (table["source"] == source) & (table["metric"] == metric) & (table["kind"] == kind)
    ]
    return float(row["mean"].item())


@dataclass(frozen=True)
class Done:
    """An analysis, what it was made of, what it wrote and the stages it went through."""

    source: Path
    out: Path
    analysis: Analysis
    stages: list[tuple[str, int, int]]


@pytest.fixture(scope="module")
def done(spark_process: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Two cells, 100 and 200 requests a second, and a file that is none; the result lies inside the source."""
    source = tmp_path_factory.mktemp("results")
    reference = {"label": "table 8", "metric": "throughput", "mean": 50.0, "factors": {"workload.clients": 1}}
    experiment = write_experiment(source / "clients", references=[reference])
    write_steady_run(experiment, "clients.1.r1", per_s=100.0, factors={"workload.clients": 1})
    write_steady_run(experiment, "clients.2.r1", per_s=200.0, factors={"workload.clients": 2})
    (source / "trace-broken.parquet").write_bytes(b"PAR1")
    stages: list[tuple[str, int, int]] = []
    analysis = analyse(spark_process, source, source / "out", lambda *stage: stages.append(stage))
    return Done(source, source / "out", analysis, stages)


def test_rates_and_phases_are_those_of_the_traces(done: Done) -> None:
    assert measure(done.analysis, "clients.1.r1", "nodes", "throughput") == pytest.approx(100.0)
    assert measure(done.analysis, "clients.2.r1", "clients", "throughput") == pytest.approx(200.0)
    assert measure(done.analysis, "clients.1.r1", "nodes", "throughput", "take") == pytest.approx(50.0)
    assert measure(done.analysis, "clients.1.r1", "nodes", "store") == pytest.approx(0.4)
    assert measure(done.analysis, "clients.1.r1", "clients", "network") == pytest.approx(0.5)


def test_published_figures_are_compared_with_ours(done: Done) -> None:
    [reference] = done.analysis.tables["references"].to_dict("records")
    assert reference["ratio"] == pytest.approx(2.0)


def test_what_was_left_out_is_a_table(done: Done) -> None:
    [left_out] = done.analysis.tables["quarantine"].to_dict("records")
    assert left_out["file"] == str(done.source / "trace-broken.parquet")


def test_all_tables_and_models_are_written_and_nothing_else(done: Done) -> None:
    assert sorted(done.analysis.tables) == TABLES
    for name, table in done.analysis.tables.items():
        kept = pd.read_parquet(done.out / "tables" / f"{name}.parquet")
        if name == "throughput":
            assert sorted(kept.columns) == sorted(THROUGHPUT.names)
            assert kept["requests"].sum() == table["requests"].sum()
            continue
        assert list(kept.columns) == list(table.columns)
        assert len(pd.read_csv(done.out / "tables" / f"{name}.csv")) == len(table)
    assert json.loads((done.out / "profile.json").read_text(encoding="utf-8")) == done.analysis.models["profile"]
    written = {path.name for path in done.out.iterdir()}
    assert written - {"report.html"} == {"tables", *(f"{name}.json" for name in done.analysis.models)}


def test_progress_counts_the_stages(done: Done) -> None:
    assert [number for _, number, _ in done.stages] == list(range(len(done.stages)))
    assert {of for _, _, of in done.stages} == {len(done.stages)}


def test_a_report_can_be_made_of_it(done: Done) -> None:
    write_report(done.analysis, done.out / "report.html")
    assert "Number of clients" in (done.out / "report.html").read_text(encoding="utf-8")


def test_a_store_gives_the_same_as_its_source(spark: SparkSession, done: Done, tmp_path: Path) -> None:
    ingest(spark, done.source, tmp_path / "store")
    stored = analyse(spark, tmp_path / "store", tmp_path / "stored")
    assert stored.runs == done.analysis.runs
    assert stored.experiments == done.analysis.experiments
    for name, table in done.analysis.tables.items():
        keys = [column for column in table.columns if table[column].dtype == object]
        one, other = (frame.sort_values(keys).reset_index(drop=True) for frame in (table, stored.tables[name]))
        pd.testing.assert_frame_equal(one, other)


def test_traces_of_a_node_without_experiment_are_enough(spark: SparkSession, tmp_path: Path) -> None:
    write_requests(tmp_path / "data" / "trace-a-1.parquet", steady_requests(500, 100.0))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.json").write_text("{}", encoding="utf-8")
    analysis = analyse(spark, tmp_path / "data", tmp_path / "out")
    assert analysis.runs == []
    assert measure(analysis, "", "nodes", "throughput") == pytest.approx(100.0, rel=0.05)
    assert not (tmp_path / "out" / "model.json").exists(), "a model of an earlier analysis"
    write_report(analysis, tmp_path / "out" / "report.html")


def test_admissions_alone_are_enough_for_a_report_with_their_profile(spark: SparkSession, tmp_path: Path) -> None:
    rows = [admission(sequence=number, arrived_us=START_US + number * 10_000) for number in range(30)]
    dear = [{**row, "key": "GET /search", "busy_ns": 90_000_000, "connections": 7} for row in rows]
    write_admissions(tmp_path / "traces" / "admissions-shop-1.parquet", [*rows, *dear])
    analysis = analyse(spark, tmp_path / "traces", tmp_path / "out")
    found = analysis.models["profile"]
    assert {key: (facts["mean"], facts["class"]) for key, facts in found["keys"].items()} == {
        "GET /": (2, 0),
        "GET /search": (90, 1),
    }
    write_report(analysis, tmp_path / "out" / "report.html")
    path = Path(find_model(spark, "profile", tmp_path / "traces", tmp_path / "models", unit="connections"))
    assert json.loads(path.read_text(encoding="utf-8"))["keys"]["GET /search"]["mean"] == 7


def test_a_profile_is_of_the_application_where_nodes_were_traced_too(spark: SparkSession, tmp_path: Path) -> None:
    write_requests(tmp_path / "traces" / "trace-a-1.parquet", steady_requests(10))
    write_admissions(tmp_path / "traces" / "admissions-shop-1.parquet", [admission()])
    path = Path(find_model(spark, "profile", tmp_path / "traces", tmp_path / "models"))
    assert list(json.loads(path.read_text(encoding="utf-8"))["keys"]) == ["GET /"]


def test_requests_of_nodes_have_no_cost_in_connections(spark: SparkSession, tmp_path: Path) -> None:
    write_requests(tmp_path / "traces" / "trace-a-1.parquet", steady_requests(10))
    with pytest.raises(PipelineError, match="requests of nodes have no cost in connections: give traces of an"):
        find_model(spark, "profile", tmp_path / "traces", tmp_path / "models", unit="connections")


def test_samples_become_a_model(spark: SparkSession, tmp_path: Path) -> None:
    rows, y = [], 0.0
    for number in range(400):
        u = 5.0 + math.sin(number) + math.sin(number * 0.37)
        rows.append(
            sample(at_us=START_US + number * 1_000_000, measurement=y, action=u, sequence=number, sample_time_s=1.0)
        )
        y = 0.8 * y + 0.2 * u
    write_samples(tmp_path / "data" / "samples-l-1.parquet", rows)
    path = Path(find_model(spark, "model", tmp_path / "data", tmp_path / "out"))
    [plant] = json.loads(path.read_text(encoding="utf-8"))["plants"]
    assert plant["a"] == pytest.approx(0.8, abs=1e-3)


@pytest.fixture(scope="module")
def looped(spark_process: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A closed loop around 400 and an open one of the plant y = 80 u, with what was published of the first."""
    source, out = (tmp_path_factory.mktemp(name) for name in ("loops", "looped"))
    references = [
        {"label": "prefetch paper", "metric": metric, "mean": mean, "factors": {"workload.signal": "closed"}}
        for metric, mean in (("loop_mean", 397.19), ("loop_std", 95.12))
    ]
    levels = {"workload.signal": ["closed", "random"]}
    experiment = write_experiment(source / "loop", title="A loop", factors=levels, references=references)
    for signal in levels["workload.signal"]:
        workload = {"kind": "adaptive", "protocol": "amqp", "signal": signal, "actuator": "pacer"}
        folder = write_run(
            experiment, f"loop.{signal}", length_s=120, workload=workload, factors={"workload.signal": signal}
        )
        actions = [5.0 if signal == "closed" else 1.0 + number * 7 % 11 for number in range(120)]
        rows = [
            sample(
                at_us=START_US + number * 1_000_000,
                setpoint=400.0,
                measurement=80 * before + (-1) ** number * 10.0,
                action=action,
                sequence=number,
            )
            for number, (before, action) in enumerate(zip([5.0, *actions], actions, strict=False))
        ]
        write_samples(folder / "traces" / "samples-w-1.parquet", rows)
    return Done(source, out, analyse(spark_process, source, out), [])


def test_closed_loops_are_compared_with_published_figures_in_a_table(looped: Done) -> None:
    [row] = pd.read_csv(looped.out / "tables" / "closed_loops.csv").to_dict("records")
    assert list(row)[:6] == ["broker", "controller", "gains", "actuator", "goal", "mean"]
    assert (row["run"], row["goal"], row["settling_samples"]) == ("loop.closed", 400, 0)
    assert row["mean"] == pytest.approx(400, abs=0.1)
    assert row["std"] == pytest.approx(10, rel=0.01)
    published = pd.read_csv(looped.out / "tables" / "references.csv").set_index("metric")
    assert dict(published["ours"]) == pytest.approx({"loop_mean": 400.0, "loop_std": 10.04}, rel=0.01)
    assert dict(published["theirs"]) == {"loop_mean": 397.19, "loop_std": 95.12}


def test_only_open_loops_make_the_model(looped: Done) -> None:
    [plant] = json.loads((looped.out / "model.json").read_text(encoding="utf-8"))["plants"]
    assert plant["factors"] == {"workload.signal": "random"}
    assert plant["gain"] == pytest.approx(80, rel=0.05)


def test_a_report_of_loops_alone_can_be_made(looped: Done) -> None:
    write_report(looped.analysis, looped.out / "report.html")
    text = (looped.out / "report.html").read_text(encoding="utf-8")
    assert "The only closed loop held the goal" in text
    assert "397.2 ± 95.1" in text


def test_tables_of_loops_do_not_outlive_their_samples(spark: SparkSession, looped: Done, tmp_path: Path) -> None:
    write_requests(tmp_path / "data" / "trace-a-1.parquet", steady_requests(200))
    shutil.copytree(looped.out, tmp_path / "out")
    analyse(spark, tmp_path / "data", tmp_path / "out")
    assert {path.stem for path in (tmp_path / "out" / "tables").iterdir()} == set(TABLES)


def test_interval_logs_fill_throughput_and_phases(spark: SparkSession, tmp_path: Path) -> None:
    lines = [f"{second * 1000},{30 + second},20,50,100000000,60000000,40000000" for second in range(1, 11)]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "server.log").write_text("\n".join(lines), encoding="utf-8")
    ingest(spark, tmp_path / "logs", tmp_path / "store", LogFormat.THORBANG_SERVER)
    tables = analyse(spark, tmp_path / "store", tmp_path / "out").tables
    puts = tables["throughput"][tables["throughput"]["kind"] == "put"]
    assert list(puts["requests"]) == [30 + second for second in range(1, 11)]
    means = tables["phases"].set_index("phase")["mean_ms"]
    assert means["socket"] == pytest.approx(0.8)
    assert means["worker"] == pytest.approx(0.4)
    assert means["persistence"] == pytest.approx(0.8)


def test_logs_of_telesto_fill_all_its_metrics(spark: SparkSession, tmp_path: Path) -> None:
    start_ms = 1_384_459_200_000
    middleware, client = [], []
    for number in range(1, 200):
        at_ms = start_ms + number * 10
        middleware.append(f"{at_ms}\t{number}000000\t1000\t2000000\t3000")
        client.append(f"{at_ms}\t100000000\t{(0x31, 0x33)[number % 2]}\t2500000\t{(0x03, 0x34)[number % 2]}")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "middleware.log").write_text("\n".join(middleware), encoding="utf-8")
    (tmp_path / "logs" / "client1.log").write_text("\n".join(client), encoding="utf-8")
    ingest(spark, tmp_path / "logs", tmp_path / "store", LogFormat.TELESTO)
    metrics = analyse(spark, tmp_path / "store", tmp_path / "out").tables["telesto"]
    means = metrics[metrics["kind"] == "all"].set_index("metric")["mean"]
    assert means["middleware response time"] == pytest.approx(2.5)
    assert means["database response time"] == pytest.approx(2.0)
    assert means["middleware worker downtime"] == pytest.approx(100.0)
    assert len(means) == 7


def test_a_model_that_the_traces_do_not_allow_is_said_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    write_requests(tmp_path / "data" / "trace-a-1.parquet", [request()])
    with pytest.raises(PipelineError) as caught:
        find_model(spark, "model", tmp_path / "data", tmp_path / "out")
    assert "\n" not in str(caught.value)
    with pytest.raises(PipelineError, match="no experiment here"):
        find_model(spark, "capacity", tmp_path / "data", tmp_path / "out")


def test_rows_of_a_long_run_that_reach_the_driver_are_bounded(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A series has at most MOST_POINTS points of each kind, and no row of a queue is collected, in whatever way."""
    a_month_s, queues = 30 * 86_400, 150
    rows = [
        request(
            kind=("put", "take")[number % 2],
            queue_id=number % queues,
            received_us=START_US + number * a_month_s * 10**6 // 9000,
            sequence=number,
        )
        for number in range(9000)
    ]
    write_requests(tmp_path / "data" / "trace-a-1.parquet", rows)
    collected: list[int] = []
    for way in ("collect", "toArrow", "toPandas", "toLocalIterator", "take"):
        real = getattr(type(spark.range(1)), way)

        def counting(frame: DataFrame, *given: object, real: Any = real) -> Any:
            found = real(frame, *given)
            found = list(found) if isinstance(found, Iterator) else found
            collected.append(len(found))
            return found

        monkeypatch.setattr(type(spark.range(1)), way, counting)
    analysis = analyse(spark, tmp_path / "data", tmp_path / "out")
    kinds = 2
    assert max(collected) <= kinds * (MOST_POINTS + 1)
    # The series is collected once. All else together, of one run and two kinds, is less than that.
    assert 0 < sum(collected) - max(collected) < kinds * MOST_POINTS
    assert measure(analysis, "", "nodes", "throughput") == pytest.approx(9000 / a_month_s, rel=0.01)
    assert analysis.tables["laws"].set_index("law")["holds"]["Little's law (nodes)"]
    kept = pd.read_parquet(tmp_path / "out" / "tables" / "throughput.parquet")
    assert kept["queue"].nunique() == MOST_QUEUES + 1
    assert kept["requests"].sum() == analysis.tables["series"]["requests"].sum()
    write_report(analysis, tmp_path / "out" / "report.html")


def test_records_that_could_not_be_written_are_left_out_like_others(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "data"
    write_requests(source / "trace-a-1.parquet", steady_requests(200), dropped="5")
    [left_out] = analyse(spark, source, tmp_path / "out").tables["quarantine"].to_dict("records")
    assert (left_out["file"], left_out["rows"]) == (str(source), 5)


def test_a_clock_that_jumped_loses_nothing_and_is_said(spark: SparkSession, tmp_path: Path) -> None:
    a_month_us = 30 * 86_400 * 1_000_000
    rows = [*steady_requests(500), *steady_requests(100, received_us=START_US + a_month_us)]
    early = [request(received_us=0, sequence=number) for number in range(7)]
    write_requests(tmp_path / "data" / "trace-a-1.parquet", rows)
    write_requests(tmp_path / "data" / "trace-a-2.parquet", early)
    counted = ingest(spark, tmp_path / "data", tmp_path / "store").seconds
    assert counted.agg({"requests": "sum"}).collect()[0][0] == 600
    analysis = analyse(spark, tmp_path / "store", tmp_path / "out")
    unset, jumped = analysis.tables["quarantine"].to_dict("records")
    assert (unset["reason"], unset["rows"]) == ("received_us is too small", 7)
    assert jumped["reason"].startswith("holds no request from 2026-01-01 01:00 to 2026-01-31 00:00 UTC")
    assert jumped["reason"].endswith("100% of the time over which rates are means: nothing ran, or a clock jumped")


def test_an_output_that_is_a_file_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_requests(tmp_path / "data" / "trace-a-1.parquet", [request()])
    (tmp_path / "out").write_text("", encoding="utf-8")
    with pytest.raises(PipelineError, match="cannot be written to"):
        analyse(spark, tmp_path / "data", tmp_path / "out")
