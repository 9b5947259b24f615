"""A report on policies of admission says how many clients are held, which goals were reached, and shows why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flyball.pipeline.analysis import Analysis
from flyball.pipeline.manifest import View
from flyball.pipeline.policies import RUN_COLUMNS
from flyball.pipeline.report import write_report
from flyball.pipeline.report.chapters import COLUMNS, Chapter, chapters_of
from flyball.pipeline.report.content import Goal
from flyball.pipeline.report.figures import Figure
from flyball.pipeline.report.policies import (
    client_capacity,
    goals_of,
    judged_of,
    lawful_ratio,
    overloaded,
    policy_findings,
)
from flyball.pipeline.report.views import POLICY_KINDS, figures_of, views_of
from tests.pipeline.report import made_loops
from tests.pipeline.report.made_policies import SCHEDULE, compared
from tests.pipeline.report.pages import Page


def chapter_of(analysis: Analysis) -> Chapter:
    (chapter,) = chapters_of(analysis)
    return chapter


def figures(analysis: Analysis, kind: str, **view: str) -> list[Figure]:
    return figures_of(chapter_of(analysis), View(kind, **view))


def goals(analysis: Analysis) -> list[Goal]:
    return goals_of(judged_of(chapter_of(analysis)))


def page_of(analysis: Analysis, folder: Path) -> Page:
    write_report(analysis, folder / "report.html")
    return Page(folder / "report.html")


def test_a_report_reads_the_columns_that_the_stage_writes() -> None:
    assert COLUMNS["policy_runs"] == RUN_COLUMNS


def test_site_without_control_collapses_with_the_next_number_of_clients() -> None:
    held = client_capacity(judged_of(chapter_of(compared())))
    assert held is not None
    assert held.without is not None
    assert held.collapsed is not None
    assert held.ours is not None
    assert (held.without.clients, held.collapsed.clients, held.ours.clients) == (150, 200, 400)
    assert held.ratio == pytest.approx(400 / 150)


def test_summary_says_what_collapsed_and_which_goals_were_reached(tmp_path: Path) -> None:
    summary = page_of(compared(), tmp_path).text
    assert "Without control 150 clients are held (goodput 120.0/s); with 200 it collapses: goodput 20.0/s" in summary
    assert "With DPS 400 clients are held, 2.7 times as many (goal: at least 2.5; the paper: 150 → 400" in summary
    assert "50 % were refused and 0.0 % failed; more were not tried. Goal reached." in summary
    assert "the standard deviation is 10 % of r (goal: at most 20 %). Goal reached." in summary
    assert "99 % of small requests within 50.0 ms, without control within 8,000.0 ms: 0.6 % of it" in summary
    assert "50 % of small and 9.1 % of large requests were admitted; the law" in summary
    assert "Goal missed" not in summary
    assert "150 → 400" in summary
    assert "no control → DPS" in summary
    assert "Highest throughput" not in summary


@pytest.mark.parametrize(
    ("figure", "says"),
    [
        ({"load_std": 250.0}, "25 % of r"),
        ({"p99_small": 900.0}, "99 % of small requests within 900.0 ms"),
        ({"admitted_large": 0.5}, "50 % of large requests were admitted; the law"),
        ({"failed": 0.1}, "no number of clients was held"),
        ({"goodput": 60.0}, "no number of clients was held"),
    ],
)
def test_a_goal_that_was_missed_is_called_so(figure: dict[str, float], says: str) -> None:
    [missed] = [goal for goal in goals(compared(changes={"dps": figure})) if goal.is_reached is False]
    assert says in missed.says


def test_a_site_that_never_collapses_leaves_the_goal_open() -> None:
    said = goals(compared(clients=[50, 150]))
    assert "no collapse seen" in said[0].says
    assert said[1].is_reached is None
    assert "150 clients are held" in said[1].says


def test_a_site_that_fails_from_the_beginning_holds_no_clients() -> None:
    first, *_ = goals(compared(changes={"none": {"failed": 0.5}}))
    assert "no number of clients is held: goodput 40.0/s, 50 % errors already with 50" in first.says


def test_where_small_requests_hardly_wait_the_law_does_not_bind() -> None:
    said = goals(compared(changes={"dps": {"admitted_small": 1.0, "admitted_large": 0.7}}))
    [law] = [goal for goal in said if "were admitted" in goal.says]
    assert law.is_reached is None
    assert "take what is left" in law.says


def test_the_law_favours_small_requests_by_the_ratio_of_costs() -> None:
    assert lawful_ratio(0.5, 10) == pytest.approx(1 / 11)
    assert lawful_ratio(0.961, 10) == pytest.approx(0.712, abs=0.002)


def test_overload_is_the_largest_number_that_all_policies_were_tried_with() -> None:
    found = judged_of(chapter_of(compared()))
    some = [one for one in found if one.policy == "dps" or one.clients < 400]
    assert {one.clients for one in overloaded(some)} == {200}
    assert overloaded([]) == []


def test_repetitions_are_averaged_and_give_an_interval() -> None:
    analysis = compared(["dps"], [200], repetitions=2)
    table = analysis.tables["policy_runs"].assign(goodput=[100.0, 120.0])
    [one] = judged_of(chapter_of(replace(analysis, tables={**analysis.tables, "policy_runs": table})))
    assert (one.goodput, one.runs) == (110, 2)
    assert one.goodput_half_width == pytest.approx(6.314 * 10, rel=1e-3)


def test_the_table_marks_the_best_of_each_number_of_clients(tmp_path: Path) -> None:
    page = page_of(compared(["none", "dps", "static"], [400], changes={"static": {"goodput": 90.0}}), tmp_path)
    table = page.table("Policies of admission")
    assert table.column("Policy") == ["no control", "DPS", "static probabilities"]
    assert table.column("Goodput [1/s]")[1] == "118.0 ± 1.0"
    assert table.column("Std / r") == ["–", "10 %", "10 %"]
    assert '<strong class="good-text">118.0 ± 1.0</strong>' in page.markup
    assert '<strong class="good-text">90.0' not in page.markup
    times = page.table("Response times of small and large requests")
    assert times.rows[0][1:4] == ["Small p50 [ms]", "Small p95 [ms]", "Small p99 [ms]"]


def test_where_all_policies_are_equal_none_is_marked_as_best(tmp_path: Path) -> None:
    page = page_of(compared(["dps", "static"], [400]), tmp_path)
    assert '<strong class="good-text">' not in page.markup


def test_goodput_over_clients_shows_where_it_collapses() -> None:
    goodput, errors = figures(compared(), "goodput")
    none, dps = goodput.data
    assert none["x"] == [50, 150, 200, 400]
    assert none["y"] == [40, 120, 20, 20]
    assert [mark["text"] for mark in goodput.layout["annotations"]] == ["collapse without control", "held by DPS"]
    assert [shape["x0"] for shape in goodput.layout["shapes"]] == [200, 400]
    assert errors.data[1]["y"] == [0, 0, 50, 50]
    assert dps["error_y"]["array"] == [1, 1, 1, 1]


def test_with_one_number_of_clients_bars_show_how_calls_ended() -> None:
    assert figures(compared(clients=[400]), "goodput") == []
    figure, *_ = figures(compared(clients=[400]), "policies")
    succeeded, refused, failed = figure.data
    assert succeeded["x"] == [20, 118]
    assert refused["x"] == [0, 118]
    assert failed["x"] == [30, 0]


def test_times_are_bars_for_each_class() -> None:
    _, small, large = figures(compared(), "policies")
    assert [trace["name"] for trace in small.data] == ["50 %", "95 %", "99 %"]
    assert small.data[2]["y"] == [8000, 50]
    assert large.data[0]["y"] == [80, 80]
    *_, only = figures(compared(), "policies", request="large")
    assert only.title == large.title


def test_what_a_view_is_called_stands_below_each_of_its_plots() -> None:
    for kind in ("policies", "response_over_time", "admission"):
        found = figures(compared(), kind, title="After figure 3")
        assert all(figure.note.startswith("After figure 3.") for figure in found)
        assert len({figure.title for figure in found}) == len(found)


def test_the_cdf_of_the_load_has_a_line_for_each_policy_and_one_at_r() -> None:
    [figure] = figures(compared(), "load_cdf")
    assert [trace["name"] for trace in figure.data] == ["no control", "DPS"]
    assert figure.data[0]["y"][-1] == 100
    assert [shape["x0"] for shape in figure.layout["shapes"]] == [1000]
    assert figure.layout["annotations"][0]["text"] == "r = 1,000.0"


def test_policies_with_references_of_their_own_have_lines_of_their_own() -> None:
    [figure] = figures(compared(["static", "dps"], [400], changes={"static": {"r": 800.0}}), "load_cdf")
    lines = {shape["x0"]: shape["line"]["color"] for shape in figure.layout["shapes"]}
    assert lines == {800: figure.data[0]["line"]["color"], 1000: figure.data[1]["line"]["color"]}


def test_responses_over_time_show_where_the_schedule_changes_the_clients() -> None:
    small, large = figures(compared(schedule=SCHEDULE), "response_over_time")
    assert [shape["x0"] for shape in small.layout["shapes"]] == [10, 20]
    texts = [mark["text"] for mark in small.layout["annotations"]]
    assert texts == ["200 clients + 100 small-only", "400 clients + 100 small-only"]
    assert small.data[1]["y"][:3] == [10, 11, 12]
    assert large.data[1]["y"][0] == 80


def test_a_long_run_is_thinned_over_time() -> None:
    analysis = compared(["dps"], [400])
    table = analysis.tables["response_over_time"]
    late = table.assign(second=table["second"] + 600)
    small, _ = figures(
        replace(analysis, tables={**analysis.tables, "response_over_time": late}), "response_over_time"
    )
    assert len(small.data[0]["x"]) <= 150
    assert "mean of 5 s" in small.note
    assert small.data[0]["y"][0] is None, "nothing was answered there"


def test_load_reference_and_budget_are_shown_for_policies_with_a_reference() -> None:
    [figure] = figures(compared(), "admission")
    assert figure.title == "DPS, 400 clients: load, reference and budget"
    assert [trace["name"] for trace in figure.data] == ["Budget u", "Load y", "Reference r"]


def test_admission_control_outside_the_lab_is_shown_without_policies(tmp_path: Path) -> None:
    loops = compared(["dps"], [400]).tables["loops"].assign(run="")
    analysis = Analysis([], [], {"loops": loops})
    assert views_of(chapter_of(analysis))[0].kind == "admission"
    page = page_of(analysis, tmp_path)
    assert "Admission control, this run: load, reference and budget" in page.text
    assert "Closed loops" not in page.text


def test_policies_are_shown_unless_the_experiment_asks_for_some_of_the_plots() -> None:
    assert tuple(view.kind for view in views_of(chapter_of(compared()))) == POLICY_KINDS
    asked = [View("load_cdf"), View("over_time")]
    assert views_of(chapter_of(compared(views=asked))) == asked
    assert [view.kind for view in views_of(chapter_of(compared(views=[View("over_time")])))][-1] == "over_time"


def test_nothing_is_said_of_policies_where_there_are_none() -> None:
    loops = made_loops.closed()
    assert policy_findings(chapters_of(loops)) == []
    assert all(figures(loops, kind) == [] for kind in POLICY_KINDS)
    assert goals(compared(["none", "semaphore"])) == []


@pytest.mark.parametrize("kind", POLICY_KINDS)
@pytest.mark.parametrize("clients", [[400], [50, 400]])
def test_every_plot_can_be_written_as_json_and_says_its_numbers(kind: str, clients: list[int]) -> None:
    found = figures(compared(clients=clients), kind)
    assert found or (kind == "goodput" and len(clients) == 1)
    for figure in found:
        json.dumps({"data": figure.data, "layout": figure.layout}, allow_nan=False)
        assert any(letter.isdigit() for letter in figure.says)
        assert figure.numbers is not None


def test_published_numbers_of_clients_are_compared_with_ours(tmp_path: Path) -> None:
    table = page_of(compared(["none", "integral", "dps"]), tmp_path).table("Published numbers")
    rows = [row for row in table.rows[1:] if row[1] == "clients held"]
    assert [(row[0], row[3], row[4], row[5]) for row in rows] == [
        ("no control", "150", "150", "+0.0 %"),
        ("integral, no classes", "300", "400", "+33 %"),
        ("DPS", "400", "400", "+0.0 %"),
    ]


def test_effect_of_classes_on_the_reference_is_compared_with_the_paper(tmp_path: Path) -> None:
    analysis = compared(["integral", "classes"], [400], changes={"integral": {"r": 50.0}, "classes": {"r": 70.0}})
    runs = [replace(run, workload={**run.workload, "finds_reference": True}) for run in analysis.runs]
    table = page_of(replace(analysis, runs=runs), tmp_path).table("Published numbers")
    (row,) = [row for row in table.rows[1:] if row[1] == "growth of the reference r"]
    assert row[3:] == ["90.0 → 120.0 (1.33 ×)", "50.0 → 70.0 (1.40 ×)", "+5.0 %"]
