"""A report of control loops says which held their goal, compares them, and shows each run and each plant."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from flyball.pipeline.analysis import Analysis
from flyball.pipeline.manifest import View
from flyball.pipeline.report import write_report
from flyball.pipeline.report.chapters import Chapter, chapters_of
from flyball.pipeline.report.figures import Figure
from flyball.pipeline.report.loop_findings import loop_findings, loop_results
from flyball.pipeline.report.loops import MOST_RUNS
from flyball.pipeline.report.models import model_passage
from flyball.pipeline.report.open_loops import MOST_LEVELS
from flyball.pipeline.report.views import figures_of, views_of
from tests.pipeline.report import made, made_loops
from tests.pipeline.report.pages import Page

STEPS = [("", 400.0), ("goal 800", 800.0), ("capacity × 0.5", 800.0)]


def chapter_of(analysis: Analysis) -> Chapter:
    (chapter,) = chapters_of(analysis)
    return chapter


def words_of(analysis: Analysis) -> str:
    (found,) = loop_findings(chapters_of(analysis))
    return " ".join(goal.says for goals in found.sentences.values() for goal in goals)


def figures(analysis: Analysis, kind: str) -> list[Figure]:
    return figures_of(chapter_of(analysis), View(kind))


def page_of(analysis: Analysis, folder: Path) -> Page:
    write_report(analysis, folder / "report.html")
    return Page(folder / "report.html")


def changed(analysis: Analysis, **columns: Any) -> Analysis:
    table = analysis.tables["closed_loops"].assign(**columns)
    return replace(analysis, tables={**analysis.tables, "closed_loops": table})


@pytest.mark.parametrize(
    ("mean", "std", "is_held"),
    [(400.0, 30.0, True), (404.0, 5.0, True), (404.5, 5.0, False), (395.5, 5.0, False), (400.0, 31.0, False)],
)
def test_a_goal_is_held_within_one_percent_and_a_deviation_of_30_at_400(
    mean: float, std: float, is_held: bool
) -> None:
    analysis = made_loops.closed(["rabbitmq"], {"PI": (mean, std)})
    [one] = loop_results(chapter_of(analysis))
    assert one.is_held is is_held


def test_repetitions_count_together_and_the_worst_decides() -> None:
    analysis = made_loops.closed(["rabbitmq"], {"PI": (400.0, 12.0)}, repetitions=2)
    [one] = loop_results(chapter_of(analysis))
    assert (one.runs, one.settling_samples, one.is_held) == (2, 5, True)
    [other] = loop_results(
        chapter_of(changed(analysis, std=[12.0, 90.0], settling_samples=pd.array([4, None], "Int64")))
    )
    assert (other.std, other.settling_samples, other.is_held) == (51, None, False)


def test_the_summary_says_in_plain_words_which_controllers_held_their_goal(tmp_path: Path) -> None:
    page = page_of(made_loops.closed(), tmp_path)
    summary = page.text[: page.text.rindex("Results")]
    assert "2 of 4 held the goal of 400, the steadiest first: λ-PI on RabbitMQ (400.0 ± 12.0); λ-PI on" in summary
    assert "The mean was too far away: P, printed on RabbitMQ (262.0 ± 128.0); P, printed on Flyball" in summary
    assert "Ours, and what was published: P, printed on RabbitMQ 262.0 ± 128.0 (414.4 ± 216.1)" in summary
    assert "Steadiest of them" in summary
    assert "within 1 % of the goal" in summary
    assert "Closed loops that held their goal" in summary


@pytest.mark.parametrize(
    ("std", "count", "says"),
    [
        (8.0, 2, "All 2 held the goal of 400: "),
        (99.0, 2, "None of 2 held the goal of 400."),
        (99.0, 2, "The deviation was too large: PI 0 (400.0 ± 99.0); PI 1"),
        (99.0, 1, "The only closed loop did not hold the goal of 400."),
    ],
)
def test_the_summary_says_it_when_all_or_none_held_the_goal(std: float, count: int, says: str) -> None:
    controllers = {f"PI {number}": (400.0, std) for number in range(count)}
    assert says in words_of(made_loops.closed(["rabbitmq"], controllers))


def test_the_summary_says_how_often_loops_settled_soon_after_a_disturbance() -> None:
    words = words_of(made_loops.closed(["rabbitmq"], parts=STEPS))
    assert "Settled within 10 samples after 2 of 4 disturbances." in words


def test_a_report_without_loops_says_nothing_about_them(tmp_path: Path) -> None:
    analysis = made.analysis(made.experiment())
    assert loop_findings(chapters_of(analysis)) == []
    assert "losed loop" not in page_of(analysis, tmp_path).text


def test_numbers_of_the_paper_are_compared_with_ours(tmp_path: Path) -> None:
    table = page_of(made_loops.closed(), tmp_path).table("How closed loops did")
    assert table.column("Controller") == ["λ-PI", "P, printed"] * 2
    assert table.column("Broker") == ["RabbitMQ"] * 2 + ["Flyball"] * 2
    assert table.column("Mean ± std [messages/s]")[:2] == ["400.0 ± 12.0", "262.0 ± 128.0"]
    assert table.column("Published")[:2] == ["–", "414.4 ± 216.1"]
    assert table.column("Settling [samples]")[:2] == ["4", "never"]
    assert table.column("Held")[:2] == ["yes", "no"]


def test_controllers_are_compared_at_a_glance_with_goal_and_paper() -> None:
    comparison, *_ = figures(made_loops.closed(), "loop")
    rabbitmq, flyball, paper = comparison.data
    assert [trace["name"] for trace in comparison.data] == ["RabbitMQ", "Flyball", "prefetch paper"]
    assert rabbitmq["y"] == ["λ-PI", "P, printed"]
    assert rabbitmq["x"] == [400, 262]
    assert rabbitmq["error_x"]["array"] == [12, 128]
    assert flyball["y"] == rabbitmq["y"]
    assert paper["y"] == ["P, printed"], "once, though it stands beside two brokers"
    assert (paper["x"], paper["error_x"]["array"]) == ([414.37], [216.09])
    assert comparison.layout["shapes"][0]["x0"] == 400


def test_what_was_published_in_several_places_is_one_entry_of_the_legend() -> None:
    analysis = made_loops.closed(["rabbitmq"], {"PI": (400.0, 8.0), "P, printed": (262.0, 128.0)})
    [paper] = [trace for trace in figures(analysis, "loop")[0].data if trace["offsetgroup"] == "published"]
    references = analysis.tables["references"]
    more = references.assign(label="figure 5", cell=references["cell"].str.replace("P, printed", "PI"))
    tables = {**analysis.tables, "references": pd.concat([references, more])}
    *_, published = figures(replace(analysis, tables=tables), "loop")[0].data
    assert (paper["name"], published["name"]) == ("prefetch paper", "published")
    assert sorted(published["text"]) == ["figure 5", "prefetch paper"]


def test_the_comparison_shows_the_bars_and_not_the_way_from_zero() -> None:
    comparison, *_ = figures(made_loops.closed(["rabbitmq"], {"PI": (396.0, 8.0)}), "loop")
    low, high = comparison.layout["xaxis"]["range"]
    assert 300 < low < 388
    assert 404 < high < 500


def test_what_all_loops_have_in_common_is_said_once_and_is_no_column(tmp_path: Path) -> None:
    page = page_of(made_loops.closed(["rabbitmq"], {"PI": (400.0, 8.0), "P": (262.0, 99.0)}), tmp_path)
    head = page.table("How closed loops did").rows[0]
    assert head[:3] == ["Controller", "Held", "Mean ± std [messages/s]"]
    assert not {"Broker", "After", "Goal", "Actuator", "Runs"} & set(head)
    assert "Of each: goal 400, broker RabbitMQ, actuator fractional, 1 run." in page.text


def test_what_others_begin_with_is_repeated_first(tmp_path: Path) -> None:
    closed, opened = made_loops.closed(), made_loops.held_open()
    first = replace(opened.experiments[0], name="z/open")
    needing = replace(closed.experiments[0], needs="z/open")
    opened_runs = [replace(run, experiment="z/open") for run in opened.runs]
    page = page_of(Analysis([needing, first], [*closed.runs, *opened_runs], closed.tables), tmp_path)
    assert page.text.index("flyball lab run z/open") < page.text.index(f"flyball lab run {made_loops.CLOSED}")


def test_how_many_messages_came_is_no_headline_where_a_loop_decides_it(tmp_path: Path) -> None:
    page = page_of(made_loops.closed(), tmp_path)
    assert "Shortest mean response" not in page.text
    assert "Highest throughput" not in page.text


def test_experiment_of_loops_without_views_shows_its_loops_alone() -> None:
    assert {view.kind for view in views_of(chapter_of(made_loops.closed()))} == {"loop", "open_loop"}


def test_loops_with_several_goals_are_compared_in_percent_of_them() -> None:
    comparison, *_ = figures(made_loops.closed(["rabbitmq"], {"PI": (396.0, 8.0)}, parts=STEPS), "loop")
    assert comparison.data[0]["y"] == ["the beginning", "after goal 800", "after capacity × 0.5"]
    assert comparison.data[0]["x"] == [99, 99, 99]
    assert comparison.layout["shapes"][0]["x0"] == 100


def test_each_run_has_a_plot_of_its_loop_with_its_disturbances() -> None:
    _, figure = figures(made_loops.closed(["rabbitmq"], {"PI": (400.0, 8.0)}, parts=STEPS), "loop")
    measured, goal, action = figure.data
    assert [trace["name"] for trace in figure.data] == ["Rate", "Goal", "Prefetch count"]
    assert goal["y"][0] == 400
    assert goal["y"][-1] == 800
    assert len(measured["x"]) == 180
    assert action["yaxis"] == "y2"
    assert figure.layout["yaxis2"]["domain"][1] < figure.layout["yaxis"]["domain"][0]
    assert [mark["text"] for mark in figure.layout["annotations"]] == ["goal 800", "capacity × 0.5"]
    lines = [shape["x0"] for shape in figure.layout["shapes"] if shape["type"] == "line"]
    assert lines == [55, 115]
    assert "after goal 800: goal 800, 800.0 ± 8.0, settled after 4 samples" in figure.says


def test_titles_distinguish_runs() -> None:
    _, *runs = figures(made_loops.closed(repetitions=2), "loop")
    assert [run.title for run in runs[:2]] == [
        "λ-PI on RabbitMQ, repetition 1",
        "λ-PI on RabbitMQ, repetition 2",
    ]
    assert len({run.title for run in runs}) == 8


def test_a_thinned_run_shows_the_band_of_its_samples() -> None:
    analysis = made_loops.closed(["rabbitmq"], {"PI": (400.0, 8.0)})
    loops = analysis.tables["loops"]
    loops = loops.assign(samples=5, low=loops["measurement"] - 9, high=loops["measurement"] + 9)
    _, figure = figures(replace(analysis, tables={**analysis.tables, "loops": loops}), "loop")
    low, high, *_ = figure.data
    assert high["fill"] == "tonexty"
    assert high["y"][0] - low["y"][0] == pytest.approx(18, abs=0.1)
    assert "several samples" in figure.note


def test_of_very_many_runs_some_are_plotted_and_the_report_says_so() -> None:
    many = {f"PI {number}": (400.0, 8.0) for number in range(MOST_RUNS + 10)}
    comparison, *runs = figures(made_loops.closed(["rabbitmq"], many, length=5), "loop")
    assert len(runs) == MOST_RUNS
    assert f"{MOST_RUNS} of {MOST_RUNS + 10} runs" in comparison.note


def test_an_open_loop_shows_samples_median_plant_and_linear_range() -> None:
    staircase, prbs = figures(made_loops.held_open(), "open_loop")
    samples, median, plant = prbs.data
    assert len(samples["x"]) == 200
    assert len(median["x"]) == 12
    assert plant["x"] == [1, 10]
    assert plant["y"][1] == pytest.approx(784 / 0.98, rel=1e-4)
    assert (prbs.layout["shapes"][0]["x0"], prbs.layout["shapes"][0]["x1"]) == (1, 10)
    assert "b = 78.4 (90 %: 76.0 to 80.8)" in prbs.note
    assert "Warning" not in prbs.note
    assert "Warning: measurement and action moved together" in staircase.note


def test_many_different_actions_are_put_into_ranges() -> None:
    figure, *_ = figures(made_loops.held_open(levels=150), "open_loop")
    assert len(figure.data[1]["x"]) <= MOST_LEVELS


@pytest.mark.parametrize("plant", [{"reason": "too few", "a": None}, {"a": 1.2}])
def test_a_plant_that_is_not_known_or_does_not_settle_has_no_line(plant: dict[str, Any]) -> None:
    figure, *_ = figures(made_loops.held_open(**plant), "open_loop")
    assert [trace["name"] for trace in figure.data] == ["samples", "median"]
    assert figure.layout["shapes"] == []


def test_identified_plants_are_a_table_with_confidence_and_warnings(tmp_path: Path) -> None:
    analysis = made_loops.held_open()
    table = page_of(analysis, tmp_path).table("Plant")
    assert table.column("90 % of b") == ["76 to 80.8"] * 2
    assert table.column("Linear range") == ["from 1, until 10"] * 2
    assert table.column("Warnings") == ["measurement and action moved together", "none"]
    assert model_passage("model", analysis.models["model"]).heading == "Plant"


def test_doubts_about_a_plant_stand_among_the_warnings(tmp_path: Path) -> None:
    page = page_of(made_loops.held_open(), tmp_path)
    assert "In 1 identified plant measurement and action moved together." in page.text


@pytest.mark.parametrize("views", [[], [View("bars", "loop_mean")]])
def test_loops_are_shown_whether_they_are_asked_for_or_not(views: list[View]) -> None:
    shown = views_of(chapter_of(made_loops.closed(views=views)))
    assert [view.kind for view in shown][:2] == ["loop", "open_loop"]
    assert views == [] or shown[2:] == views


def test_loops_that_are_asked_for_stand_where_they_are_wanted() -> None:
    shown = views_of(chapter_of(made_loops.closed(views=[View("over_time"), View("loop", title="Mine")])))
    assert [view.kind for view in shown] == ["open_loop", "over_time", "loop"]


def test_a_name_has_only_what_sets_it_apart() -> None:
    analysis = made_loops.closed(["rabbitmq"], {"PI": (400.0, 8.0), "P": (400.0, 8.0)})
    assert [one.name for one in loop_results(chapter_of(analysis))] == ["PI", "P"]
    twice = pd.concat([analysis.tables["closed_loops"], analysis.tables["closed_loops"].assign(actuator="pacer")])
    chapter = chapter_of(replace(analysis, tables={**analysis.tables, "closed_loops": twice}))
    assert loop_results(chapter)[0].name == "PI, fractional"


def test_loops_of_no_experiment_are_shown_too(tmp_path: Path) -> None:
    found = made_loops.closed(["rabbitmq"], {"PI": (400.0, 8.0)})
    loops, closed = found.tables["loops"].assign(run=""), found.tables["closed_loops"].assign(run="", broker="")
    page = page_of(Analysis([], [], {"loops": loops, "closed_loops": closed}), tmp_path)
    assert "The only closed loop held the goal of 400: PI (400.0 ± 8.0)" in page.text


@pytest.mark.parametrize("kind", ["loop", "open_loop"])
def test_every_plot_can_be_written_as_json_and_says_its_numbers(kind: str) -> None:
    analysis = made_loops.closed(parts=STEPS) if kind == "loop" else made_loops.held_open()
    found = figures(analysis, kind)
    assert found
    for figure in found:
        json.dumps({"data": figure.data, "layout": figure.layout}, allow_nan=False)
        assert any(letter.isdigit() for letter in figure.says)
        assert figure.numbers is not None


def test_a_window_set_by_hand_is_not_a_closed_loop(tmp_path: Path) -> None:
    analysis = made_loops.closed(["flyball"], {"PI": (400.0, 8.0), "by hand": (262.0, 99.0)})
    rows = analysis.tables["closed_loops"]
    rows.loc[rows["controller"] == "by hand", "gains"] = "ki=0"
    page = page_of(analysis, tmp_path)
    assert page.table("How closed loops did").column("Held") == ["yes", "set by hand"]
    assert "Closed loops that held their goal\n1 of 1" in page.text
    assert "The only closed loop held the goal of 400" in page.text
    assert "Set by hand, for the goal of 400: by hand" in page.text
