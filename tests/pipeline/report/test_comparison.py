"""A comparison holds the same cells of several analyses against the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from flyball.errors import PipelineError
from flyball.pipeline.analysis import Analysis
from flyball.pipeline.report import write_comparison
from tests.pipeline.report import made
from tests.pipeline.report.pages import Page

Compare = Callable[[Mapping[str, Analysis]], Page]


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    def write(analyses: Mapping[str, Analysis]) -> Page:
        write_comparison(analyses, tmp_path / "comparison.html")
        return Page(tmp_path / "comparison.html")

    return write


def test_the_same_cells_stand_side_by_side_with_ratio_and_verdict(compare: Compare) -> None:
    one = made.experiment(repetitions=5)
    page = compare({"old": made.analysis(one), "new": made.analysis(one, speed=2.0)})
    table = page.table("Throughput, compared with old")
    assert table.column("Cell") == ["clients 1", "clients 4", "clients 16", "clients 64"]
    assert all(1.8 < float(text.removesuffix(" ×")) < 2.2 for text in table.column("Ratio"))
    assert all(text.startswith("better: significantly higher by") for text in table.column("Verdict"))
    response = page.table("Response time, compared with old")
    assert all(text.startswith("better: significantly lower by") for text in response.column("Verdict"))


def test_an_analysis_does_not_differ_from_itself(compare: Compare) -> None:
    analysis = made.analysis(made.experiment(repetitions=3))
    page = compare({"one": analysis, "same": analysis})
    assert set(page.table("Throughput").column("Verdict")) == {"no significant difference"}
    assert "Settings, workloads and versions are the same" in page.text


def test_a_single_repetition_is_judged_by_the_interval_within_the_run(compare: Compare) -> None:
    one = made.experiment(repetitions=1)
    page = compare({"old": made.analysis(one), "new": made.analysis(one, speed=2.0)})
    assert all(text.startswith("better") for text in page.table("Throughput").column("Verdict"))


def test_curves_of_all_lie_in_one_plot(compare: Compare) -> None:
    one = made.experiment()
    page = compare({name: made.analysis(one) for name in ("a", "b", "c")})
    figure = page.figures["experiment-1-plot-1"]
    assert [trace["name"] for trace in figure["data"]] == ["a", "b", "c"]


def test_runs_without_factors_are_compared_as_bars(compare: Compare) -> None:
    one = made.experiment(factors={}, repetitions=3)
    page = compare({"a": made.analysis(one), "b": made.analysis(one, speed=1.5)})
    assert {trace["type"] for trace in page.figures["experiment-1-plot-1"]["data"]} == {"bar"}


def test_settings_that_differ_are_listed(compare: Compare) -> None:
    one = made.experiment()
    changed = made.analysis(one, changes={"environment": {"python": "3.12.1"}})
    table = compare({"a": made.analysis(one), "b": changed}).table("What differs")
    assert ["environment.python", "3.11.7", "3.12.1"] in table.rows


def test_cells_that_only_one_has_are_left_out(compare: Compare) -> None:
    more = made.experiment(factors={"workload.clients": [1, 4, 16, 64, 256]})
    page = compare({"a": made.analysis(made.experiment()), "b": made.analysis(more)})
    assert len(page.table("Throughput").column("Cell")) == 4


def test_two_different_experiments_alone_are_compared_by_cell(compare: Compare) -> None:
    other = made.experiment("telesto/clients", "Clients again")
    page = compare({"a": made.analysis(made.experiment()), "b": made.analysis(other)})
    assert (2, "Number of clients compared with Clients again") in page.headings


def test_names_of_analyses_do_not_become_markup(compare: Compare) -> None:
    one = made.experiment()
    page = compare({"<b>a</b>": made.analysis(one), "b": made.analysis(one)})
    assert "b" not in {tag for tag, _ in page.tags}


def test_one_analysis_cannot_be_compared(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="two or more"):
        write_comparison({"a": made.analysis(made.experiment())}, tmp_path / "x.html")


def test_analyses_without_a_common_experiment_cannot_be_compared(tmp_path: Path) -> None:
    first = made.analysis(made.experiment("a"), made.experiment("b"))
    other = made.analysis(made.experiment("c"), made.experiment("d"))
    with pytest.raises(PipelineError, match="no experiment in common"):
        write_comparison({"a": first, "b": other}, tmp_path / "x.html")


def test_each_analysis_has_its_own_colour_also_where_it_has_several_lines(compare: Compare) -> None:
    one = made.experiment(factors={"workload.clients": [1, 4], "target.nodes": [1, 2]})
    page = compare({"a": made.analysis(one), "b": made.analysis(one, speed=1.5)})
    data = page.figures["experiment-1-plot-1"]["data"]
    colours: dict[str, set[str]] = {trace["name"].partition(":")[0]: set() for trace in data}
    dashes: dict[str, set[str]] = {trace["name"].partition(": ")[2]: set() for trace in data}
    for trace in data:
        name, _, line = trace["name"].partition(": ")
        colours[name].add(trace["line"]["color"])
        dashes[line].add(trace["line"]["dash"])
    assert colours == {"a": {"series-1"}, "b": {"series-2"}}
    assert dashes == {"nodes 1": {"solid"}, "nodes 2": {"dash"}}


def test_percentiles_stand_side_by_side_with_their_intervals(compare: Compare) -> None:
    one = made.experiment()
    page = compare({"old": made.analysis(one), "new": made.analysis(one, speed=1.5)})
    for name in ("p50", "p95", "p99"):
        table = page.table(f"{name} of the response time, compared with old")
        assert all(" ± " in text for text in (*table.column("old [ms]"), *table.column("new [ms]")))
