"""A report on a clustered queue shows its rates and waiting messages, and which policy did better."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from flyball.pipeline import queues
from flyball.pipeline.analysis import Analysis
from flyball.pipeline.manifest import Experiment, Measured, Run, View
from flyball.pipeline.report import write_report
from flyball.pipeline.report.chapters import COLUMNS, Chapter, chapters_of
from flyball.pipeline.report.figures import Figure
from flyball.pipeline.report.queues import placement_words, provisioning_words, scaling_words
from flyball.pipeline.report.views import figures_of
from tests.pipeline.report.pages import Page

START_US = 1_760_000_000_000_000
SECONDS = 40


def compared(factor: str, rates: dict[str, float]) -> Analysis:
    """A queue that fills for half of the time and empties in the other, under policies of different rates."""
    experiment = Experiment("selfware/made", "Made", factors={factor: list(rates)})
    runs = [
        Run(
            policy,
            Measured(START_US, START_US + SECONDS * 1_000_000),
            experiment=experiment.name,
            factors={factor: policy},
            workload={"kind": "clustered"},
            domain={"transfers": 0 if policy == "optimised" else 50, "nodes": 2 if policy == "dynamic" else 1},
        )
        for policy in rates
    ]
    over_time = pd.concat([_over_time(policy, rate) for policy, rate in rates.items()])
    tables = {"queue_over_time": over_time}
    tables["placement"] = queues.placement(over_time, runs)
    tables["provisioning"] = queues.provisioning(over_time, runs)
    tables["scaling"] = queues.scaling(over_time, runs)
    return Analysis([experiment], runs, tables)


def _over_time(policy: str, rate: float) -> pd.DataFrame:
    half = SECONDS // 2
    produced, consumed = [rate] * half + [0.0] * half, [0.0] * half + [rate] * half
    waiting = (pd.Series(produced) - pd.Series(consumed)).cumsum()
    columns = {"produced": produced, "consumed": consumed, "waiting": waiting}
    return pd.DataFrame({"run": policy, "second": range(SECONDS), **columns})


def chapter_of(analysis: Analysis) -> Chapter:
    (chapter,) = chapters_of(analysis)
    return chapter


def figures(analysis: Analysis, kind: str) -> list[Figure]:
    return figures_of(chapter_of(analysis), View(kind))


def test_a_report_reads_the_columns_that_the_stage_writes() -> None:
    assert COLUMNS["queue_over_time"] == queues.OVER_TIME_COLUMNS
    assert COLUMNS["placement"] == queues.PLACEMENT_COLUMNS
    assert COLUMNS["provisioning"] == queues.PROVISIONING_COLUMNS
    assert COLUMNS["scaling"] == queues.SCALING_COLUMNS


def test_rates_and_waiting_messages_are_drawn_over_time_for_each_cell() -> None:
    first, second = figures(compared("placement", {"standard": 10, "optimised": 20}), "queue_over_time")
    assert "standard" in first.title
    assert "optimised" in second.title
    assert [trace["name"] for trace in first.data] == ["production", "consumption", "waiting messages"]
    assert max(first.data[2]["y"]) == 200
    assert first.data[2]["yaxis"] == "y2"
    assert "at most 200 waited" in first.says


def test_rates_are_drawn_over_waiting_messages() -> None:
    [figure] = figures(compared("placement", {"standard": 10}), "rate_over_waiting")
    names = [trace["name"] for trace in figure.data]
    assert names == ["production, each second", "production", "consumption, each second", "consumption"]
    assert set(figure.data[1]["y"]) == {10.0}
    assert max(figure.data[1]["x"]) <= 200


def test_runs_without_such_a_queue_have_nothing_to_draw() -> None:
    analysis = compared("placement", {"standard": 10})
    assert figures(Analysis(analysis.experiments, analysis.runs, {}), "queue_over_time") == []


@pytest.mark.parametrize(("optimised", "verdict"), [(12.0, "is reached"), (11.0, "is not reached")])
def test_the_page_says_whether_placement_reached_its_goal(optimised: float, verdict: str, tmp_path: Path) -> None:
    analysis = compared("placement", {"standard": 10.0, "optimised": optimised})
    words = placement_words(analysis.tables["placement"])
    assert verdict in words
    assert "transfers between members were 0" in words
    write_report(analysis, tmp_path / "report.html")
    assert words in Page(tmp_path / "report.html").text


def test_the_page_says_what_provisioning_brought(tmp_path: Path) -> None:
    analysis = compared("provisioning", {"static": 10.0, "dynamic": 19.0})
    words = provisioning_words(analysis.tables["provisioning"])
    assert "1.90 times" in words
    write_report(analysis, tmp_path / "report.html")
    assert words in Page(tmp_path / "report.html").text


def test_the_page_says_whether_more_nodes_reached_their_goals(tmp_path: Path) -> None:
    analysis = compared("nodes", {"1": 10.0, "2": 19.5, "4": 36.0, "8": 70.0})
    words = scaling_words(analysis.tables["scaling"])
    assert "2 nodes bring 1.95 times the throughput of one (the goal of 1.9 is reached)" in words
    assert "4 nodes bring 3.60 times the throughput of one (the goal of 3.7 is not reached)" in words
    assert words.endswith("8 nodes bring 7.00 times the throughput of one.")
    write_report(analysis, tmp_path / "report.html")
    assert words in Page(tmp_path / "report.html").text


def test_one_policy_alone_is_compared_with_nothing() -> None:
    assert "nothing to compare" in placement_words(compared("placement", {"standard": 10}).tables["placement"])
    assert "nothing to compare" in provisioning_words(compared("provisioning", {"static": 1}).tables["provisioning"])
    assert "nothing to compare" in scaling_words(compared("nodes", {"2": 1}).tables["scaling"])


def test_what_is_compared_with_stands_before_what_it_is_compared_to(tmp_path: Path) -> None:
    analysis = compared("placement", {"optimised": 120.0, "standard": 100.0})
    write_report(analysis, tmp_path / "report.html")
    table = Page(tmp_path / "report.html").table("Policies of placement")
    assert table.column("Policy") == ["standard", "optimised"]
