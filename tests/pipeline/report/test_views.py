"""Each kind of view shows what it promises."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from flyball.pipeline.analysis import Analysis
from flyball.pipeline.manifest import View
from flyball.pipeline.report.chapters import chapters_of
from flyball.pipeline.report.figures import Figure, is_geometric, level_axis
from flyball.pipeline.report.views import KINDS, default_views, figures_of
from tests.pipeline.report import made

TWO_FACTORS = {"workload.clients": [1, 4, 16, 64], "target.nodes": [1, 2]}


def figures(analysis: Analysis, view: View) -> list[Figure]:
    return figures_of(chapters_of(analysis)[0], view)


def names(figure: Figure) -> list[str]:
    return [trace["name"] for trace in figure.data]


def axis_title(figure: Figure, axis: str) -> str:
    return str(figure.layout[axis]["title"]["text"])


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_plot_can_be_written_as_json_and_says_its_numbers(kind: str) -> None:
    factors = {"workload.clients": [16, 64], "target.nodes": [1, 2]}
    for figure in figures(made.analysis(made.experiment(factors=factors)), View(kind)):
        json.dumps({"data": figure.data, "layout": figure.layout}, allow_nan=False)
        assert any(letter.isdigit() for letter in figure.says)
        assert figure.numbers is not None
        assert "title" in figure.layout["xaxis"]


def test_a_curve_has_a_line_for_each_level_of_its_series_and_error_bars() -> None:
    view = View("curve", x="workload.clients", series="target.nodes")
    (figure,) = figures(made.analysis(made.experiment(factors=TWO_FACTORS), references=False), view)
    assert names(figure) == ["nodes 1", "nodes 2"]
    assert figure.data[0]["x"] == [1, 4, 16, 64]
    assert all(width > 0 for width in figure.data[0]["error_y"]["array"])
    assert axis_title(figure, "xaxis") == "Clients, logarithmic"
    assert axis_title(figure, "yaxis") == "Throughput [requests/s]"


def test_published_numbers_are_diamonds_in_the_plot() -> None:
    (figure,) = figures(made.analysis(made.experiment()), View("curve", x="workload.clients"))
    ours, theirs = figure.data
    assert theirs["name"] == "table 8"
    assert theirs["marker"]["symbol"] == "diamond"
    assert theirs["x"] == ours["x"]
    assert theirs["error_y"]["arrayminus"][0] > 0


def test_a_single_line_is_named_after_its_target() -> None:
    (figure,) = figures(made.analysis(made.experiment(), changes={"target": {"kind": "rabbitmq"}}), View("curve"))
    assert names(figure)[0] == "RabbitMQ"


def test_the_diamond_of_a_line_has_its_colour() -> None:
    (figure,) = figures(made.analysis(made.experiment(factors=TWO_FACTORS)), View("curve"))
    lines = {trace["name"]: trace for trace in figure.data}
    assert lines["table 8: nodes 2"]["marker"]["line"]["color"] == lines["nodes 2"]["line"]["color"]


def test_response_times_that_differ_much_are_on_a_logarithmic_axis() -> None:
    factors = {"workload.clients": [1, 10, 100, 1000]}
    (figure,) = figures(made.analysis(made.experiment(factors=factors)), View("curve", "response"))
    assert figure.layout["yaxis"]["type"] == "log"


@pytest.mark.parametrize(
    ("levels", "is_log"), [([1, 2, 4, 8], True), ([1, 2, 3, 4], False), ([0, 1, 10, 100], False)]
)
def test_levels_that_grow_by_a_factor_are_on_a_logarithmic_axis(levels: list[float], is_log: bool) -> None:
    assert is_geometric(levels) is is_log


def test_levels_that_are_no_numbers_have_names_on_the_axis() -> None:
    assert level_axis("Store", ["memory", "embedded"])["type"] == "category"
    assert level_axis("Is on", [True, False])["type"] == "category"


def test_a_view_of_clients_falls_back_to_nodes_where_only_they_measured() -> None:
    (figure,) = figures(made.traces("a", "b"), View("percentiles", "response", source="clients"))
    assert "nodes" in figure.note


def test_bars_are_grouped_by_level() -> None:
    factors: dict[str, list[Any]] = {"target.store": ["embedded", "memory"], "workload.clients": [1, 4]}
    (figure,) = figures(made.analysis(made.experiment(factors=factors)), View("bars", x="target.store"))
    bars = [trace for trace in figure.data if trace["type"] == "bar"]
    assert [trace["name"] for trace in bars] == ["clients 1", "clients 4"]
    assert bars[0]["x"] == ["embedded", "memory"]


def test_bars_without_a_factor_are_by_kind_of_request() -> None:
    (figure,) = figures(made.analysis(made.experiment(factors={})), View("bars", "response"))
    assert figure.data[0]["x"] == ["put", "take"]


def test_over_time_a_single_run_has_a_line_for_each_kind() -> None:
    (figure,) = figures(made.analysis(made.experiment(factors={}, repetitions=1)), View("over_time"))
    assert names(figure) == ["put", "take"]
    assert len(figure.data[0]["x"]) == 20


def test_over_time_repetitions_of_a_cell_share_a_colour_and_a_name() -> None:
    (figure,) = figures(made.analysis(made.experiment(factors={"workload.clients": [1, 4]})), View("over_time"))
    assert [trace["showlegend"] for trace in figure.data] == [True, False, True, False]
    assert figure.data[0]["line"]["color"] == figure.data[1]["line"]["color"]


def test_a_run_of_hours_stays_small_and_shows_its_envelope() -> None:
    analysis = made.analysis(made.experiment(factors={}, repetitions=1), seconds=4 * 3600)
    (figure,) = figures(analysis, View("over_time"))
    assert len(json.dumps(figure.data)) < 100_000
    low, high, mean = figure.data[:3]
    assert high["fill"] == "tonexty"
    assert all(below <= middle <= above for below, middle, above in zip(low["y"], mean["y"], high["y"], strict=True))
    assert "band" in figure.note


def test_many_runs_over_time_stay_small() -> None:
    factors = {"workload.clients": list(range(1, 21))}
    (figure,) = figures(
        made.analysis(made.experiment(factors=factors, repetitions=3), seconds=600), View("over_time")
    )
    assert sum(len(trace["x"]) for trace in figure.data) <= 3 * 6000


def test_a_second_without_requests_is_zero() -> None:
    analysis = made.analysis(made.experiment(factors={}, repetitions=1))
    throughput = analysis.tables["throughput"]
    analysis = replace(analysis, tables={**analysis.tables, "throughput": throughput[throughput["second"] != 7]})
    (figure,) = figures(analysis, View("over_time"))
    assert figure.data[0]["y"][7] == 0


def test_response_over_time_is_the_mean_of_each_second_and_has_gaps() -> None:
    analysis = made.analysis(made.experiment(factors={}, repetitions=1))
    series = analysis.tables["series"]
    analysis = replace(analysis, tables={**analysis.tables, "series": series[series["second"] != 7]})
    (figure,) = figures(analysis, View("over_time", "response", request="put"))
    response_ms = analysis.tables["measures"].query("metric == 'response' and source == 'clients' and kind == 'all'")
    assert figure.data[0]["y"][7] is None
    assert figure.data[0]["y"][6] == pytest.approx(response_ms["mean"].iloc[0], rel=1e-3)
    assert axis_title(figure, "yaxis") == "Response time [ms]"


def test_a_histogram_shows_shares_that_add_up_for_each_cell() -> None:
    (figure,) = figures(made.analysis(made.experiment()), View("histogram"))
    assert len(figure.data) == 4
    assert all(sum(trace["y"]) == pytest.approx(100, abs=0.1) for trace in figure.data)
    assert all(len(trace["x"]) <= 82 for trace in figure.data)
    assert figure.layout["xaxis"]["type"] == "log"


def test_of_many_cells_a_histogram_shows_some_and_says_so() -> None:
    factors = {"workload.clients": list(range(1, 21))}
    (figure,) = figures(made.analysis(made.experiment(factors=factors)), View("histogram"))
    assert len(figure.data) == 8
    assert "8 of 20 cells are shown" in figure.note


def test_a_breakdown_stacks_the_phases_in_their_order() -> None:
    (figure,) = figures(made.analysis(made.experiment(), references=False), View("breakdown"))
    assert names(figure) == ["Waiting in the node", "Parsing", "Engine", "Store", "Emitting"]
    assert figure.data[0]["y"][:2] == ["clients 1: put", "clients 1: take"]


def test_a_breakdown_compared_with_the_thorbangmq_report_has_its_components() -> None:
    (figure,) = figures(made.analysis(made.experiment()), View("breakdown", "socket"))
    assert names(figure) == ["Socket I/O and queueing", "Request worker", "Persistence"]


def test_a_breakdown_of_many_cells_puts_kinds_together() -> None:
    factors = {"workload.clients": list(range(1, 31))}
    (figure,) = figures(made.analysis(made.experiment(factors=factors)), View("breakdown"))
    assert len(figure.data[0]["y"]) == 30


def _effects(**changes: Any) -> Figure:
    analysis = made.analysis(made.experiment(factors={"workload.clients": [1, 4], "target.nodes": [1, 2]}))
    effects = analysis.tables["effects"].assign(**changes)
    (figure,) = figures(replace(analysis, tables={**analysis.tables, "effects": effects}), View("effects"))
    return figure


def test_effects_have_intervals_and_the_share_that_they_explain() -> None:
    figure = _effects()
    assert figure.data[0]["y"] == ["clients", "nodes", "clients × nodes"]
    assert figure.data[0]["error_x"]["array"] == [20, 20, 20]
    assert "explains 80 %" in figure.says
    assert figure.layout["shapes"][0]["x0"] == 0


def test_effects_that_multiply_are_held_against_one() -> None:
    assert _effects(model="multiplicative").layout["shapes"][0]["x0"] == 1


def test_the_network_is_what_clients_wait_beyond_the_nodes() -> None:
    (figure,) = figures(made.analysis(made.experiment()), View("network"))
    assert names(figure) == ["clients wait", "nodes work", "network"]


def test_an_experiment_without_views_gets_curves_over_its_first_factor() -> None:
    (chapter,) = chapters_of(made.analysis(made.experiment(factors=TWO_FACTORS)))
    first, second, *_ = default_views(chapter)
    assert (first.kind, first.metric, first.x, first.series) == (
        "curve",
        "throughput",
        "workload.clients",
        "target.nodes",
    )
    assert second.metric == "response"


def test_traces_without_experiment_show_time_percentiles_and_phases() -> None:
    (chapter,) = chapters_of(made.traces())
    assert [view.kind for view in default_views(chapter)] == ["over_time", "percentiles", "histogram", "breakdown"]
    assert all(figures_of(chapter, view) for view in default_views(chapter))


def test_a_view_without_data_has_no_plot() -> None:
    analysis = made.analysis(made.experiment())
    assert figures(analysis, View("curve", "unheard")) == []
    assert figures(analysis, View("unheard")) == []
    assert all(figures(Analysis([made.experiment()], []), View(kind)) == [] for kind in KINDS)
