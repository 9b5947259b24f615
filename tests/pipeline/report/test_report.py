"""A report says first what matters, shows every experiment, and is one file that needs nothing else."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from flyball.pipeline.analysis import Analysis
from flyball.pipeline.manifest import View
from flyball.pipeline.report import write_report
from tests.pipeline.report import made
from tests.pipeline.report.pages import Page

EVIL = "<img src=x onerror=alert(1)></script>&amp;\"'"


@pytest.fixture
def report(tmp_path: Path) -> Any:
    def write(analysis: Analysis) -> Page:
        write_report(analysis, tmp_path / "out" / "report.html")
        return Page(tmp_path / "out" / "report.html")

    return write


def with_table(analysis: Analysis, name: str, table: pd.DataFrame) -> Analysis:
    return replace(analysis, tables={**analysis.tables, name: table})


def test_a_report_begins_with_title_headline_and_warnings(report: Any) -> None:
    page = report(made.analysis(made.experiment()))
    assert page.headings[0] == (1, "Number of clients")
    start = page.text.index("Number of clients")
    assert (
        start
        < page.text.index("Highest throughput")
        < page.text.index("Nothing to warn of")
        < page.text.index("By cell")
    )
    assert "1 experiment in 8 runs against Flyball over ThorBangMQ, on 2026-01-01." in page.text


def test_cells_are_in_the_notation_of_the_papers(report: Any) -> None:
    cells = report(made.analysis(made.experiment())).table("Throughput and response time, measured by clients")
    assert cells.column("Clients") == ["1", "4", "16", "64"]
    assert all(" ± " in text for text in cells.column("Throughput [requests/s]"))


@pytest.mark.parametrize(("repetitions", "sign"), [(2, " ± "), (1, " [")])
def test_every_latency_table_has_percentiles_with_intervals(report: Any, repetitions: int, sign: str) -> None:
    page = report(made.analysis(made.experiment(repetitions=repetitions)))
    tables = [table for table in page.tables if "p99 [ms]" in table.rows[0]]
    # By cell and by kind of request, of clients and of nodes, and the numbers of the histogram.
    latencies = [table for table in tables if "Where the time goes" not in table.caption]
    assert len(latencies) == 5
    for table in latencies:
        heads = [head for head in table.rows[0] if head in ("p50 [ms]", "p95 [ms]", "p99 [ms]")]
        assert len(heads) == 3
        assert all(sign in text for head in heads for text in table.column(head))


def test_published_numbers_are_compared_with_ours(report: Any) -> None:
    page = report(made.analysis(made.experiment(differs="The paper had slower disks.")))
    table = page.table("Published numbers")
    assert set(table.column("Published in")) == {"table 8"}
    assert set(table.column("Difference")) == {"5.0 ×", "0.200 ×"}
    assert "The paper had slower disks." in page.text


def test_several_experiments_have_a_table_of_contents(report: Any) -> None:
    experiments = [made.experiment(f"thorbangmq/e{number}", f"Experiment {number}") for number in range(20)]
    page = report(made.analysis(*experiments))
    links = {attributes["href"] for tag, attributes in page.tags if tag == "a"}
    anchors = {f"#{attributes['id']}" for tag, attributes in page.tags if tag == "section"}
    assert anchors <= links
    assert page.headings[0] == (1, "ThorBangMQ report: 20 experiments")
    assert [text for level, text in page.headings if level == 2][:20] == [
        f"Experiment {number}" for number in range(20)
    ]


def test_a_report_is_one_small_file_that_asks_for_nothing(report: Any) -> None:
    page = report(made.analysis(made.experiment()))
    assert len(page.markup) < 2_500_000
    assert not [attributes for _, attributes in page.tags if "src" in attributes]
    assert {attributes.get("href", "#")[0] for _, attributes in page.tags} <= {"#", "d"}
    assert "default-src 'none'" in page.markup


def test_twenty_experiments_stay_a_small_file(report: Any) -> None:
    factors = {"workload.clients": [1, 2, 4, 8, 16, 32, 64]}
    views = [View("curve"), View("curve", "response"), View("over_time"), View("histogram"), View("breakdown")]
    experiments = [made.experiment(f"s/e{number}", f"E {number}", factors, views) for number in range(20)]
    assert len(report(made.analysis(*experiments, seconds=60)).markup) < 6_000_000


def test_the_same_analysis_gives_the_same_file(report: Any) -> None:
    analysis = made.analysis(made.experiment())
    assert report(analysis).markup == report(analysis).markup


def test_each_plot_is_described_in_words_with_numbers(report: Any) -> None:
    page = report(made.analysis(made.experiment()))
    said = page.labelled("canvas")
    assert len(said) == len(page.figures) == 4
    assert all(any(letter.isdigit() for letter in text) for text in said)


def test_every_table_has_a_caption_and_headings_leave_out_no_level(report: Any) -> None:
    page = report(made.analysis(made.experiment(), made.experiment("thorbangmq/other", "Other")))
    assert all(table.caption for table in page.tables)
    levels = [level for level, _ in page.headings]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"checks": {"failed": 3}}, "24 calls failed in 8 runs"),
        ({"checks": {"lost": 1}}, "8 messages were lost in 8 runs"),
        ({"checks": {"doubled": 1}}, "8 messages came twice in 8 runs"),
        (
            {"clients": {"are_bottleneck": True, "busiest_cpu_ratio": 0.97}},
            "In 8 runs the clients were the bottleneck",
        ),
        ({"warnings": ["the clock went backwards"]}, "The clock went backwards"),
    ],
)
def test_what_is_wrong_with_runs_is_said_first(report: Any, changes: dict[str, Any], says: str) -> None:
    page = report(made.analysis(made.experiment(), changes=changes))
    assert says in page.text
    assert page.text.index(says) < page.text.index("By cell")
    assert "Nothing to warn of" not in page.text


def test_a_violated_law_is_said_first_and_in_the_table(report: Any) -> None:
    analysis = made.analysis(made.experiment())
    laws = analysis.tables["laws"].assign(holds=lambda rows: rows["law"] != "Little's law")
    page = report(with_table(analysis, "laws", laws))
    assert "Little's law does not hold in 8 runs" in page.text
    assert page.table("Does the trace agree").column("Verdict") == ["violated in 8 runs", "holds"]


def test_quarantined_rows_are_counted_and_listed(report: Any) -> None:
    rows = pd.DataFrame([("trace-1.parquet", "cut short", 12), ("trace-2.parquet", "no time", 3)])
    page = report(
        with_table(made.analysis(made.experiment()), "quarantine", rows.set_axis(["file", "reason", "rows"], axis=1))
    )
    assert "15 rows of 2 files could not be read" in page.text
    assert page.table("Left out").column("Reason") == ["cut short", "no time"]


def test_missing_runs_and_a_scaled_down_experiment_are_said(report: Any) -> None:
    page = report(made.analysis(made.experiment(run_count=10, is_quick=True)))
    assert "2 planned runs are missing" in page.text
    assert "scaled down with --quick" in page.text
    assert "flyball lab run thorbangmq/clients --quick" in page.text


def test_settings_versions_and_runs_are_at_the_end(report: Any) -> None:
    page = report(made.analysis(made.experiment()))
    assert "target.settings.trace_most_per_s" in page.text
    assert "environment.python" in page.text
    runs = page.table("Runs of")
    assert runs.column("Run")[0] == "thorbangmq-clients.1.r1"
    assert runs.column("Peak memory [MiB]")[0] == "80.0"


def test_models_are_shown_as_lines_and_tables(report: Any) -> None:
    target = {"experiment": "thorbangmq/clients", "clients_at_knee": 28.04, "fit": {"model": "two lines"}}
    capacity = {"version": 1, "kind": "capacity", "reason": None, "targets": [target]}
    other = {"kind": "unheard", "quality": 0.81234, "rows": [{"kind": "put", "cost": 1.5}]}
    page = report(made.analysis(made.experiment(), models={"capacity": capacity, "other": other}))
    assert (2, "Models found") in page.headings
    assert page.table("Capacity").column("Clients at the knee") == ["28.04"]
    assert "Quality0.8123" in page.text
    assert page.table("Rows").column("Cost") == ["1.5"]


def test_a_published_number_without_ours_is_counted_and_plotted(report: Any) -> None:
    analysis = made.analysis(made.experiment())
    references = analysis.tables["references"].iloc[[0, 0]].reset_index(drop=True)
    references.loc[1, "cell"] = '{"workload.clients": 256}'
    references.loc[1, ["ours", "ours_low", "ours_high", "ratio", "theirs_low", "theirs_high"]] = np.nan
    page = report(with_table(analysis, "references", references))
    assert page.table("Published numbers").column("Cell") == ["clients 1"]
    assert "1 of 2 published numbers have no run to compare with" in page.text
    assert 256 in page.figures["experiment-1-plot-1"]["data"][1]["x"]


def test_a_view_that_cannot_be_shown_says_why(report: Any) -> None:
    page = report(made.analysis(made.experiment(views=[View("curve", "unheard"), View("pie"), View("table")])))
    assert "Not shown: curve of unheard: these runs have no data for it." in page.text
    assert "there is no kind of view 'pie'" in page.text
    assert page.text.count("Not shown") == 2


def test_traces_of_a_node_alone_make_a_report(report: Any) -> None:
    page = report(made.traces())
    assert page.headings[0] == (1, "What a node recorded")
    assert len(page.figures) == 4
    assert "flyball pipeline report results --out report" in page.text


def test_an_analysis_without_any_data_makes_a_report(report: Any) -> None:
    assert report(Analysis([], [])).headings[0][0] == 1
    assert "8 planned runs are missing" in report(Analysis([made.experiment()], [])).text


def test_no_text_of_the_data_becomes_markup(report: Any) -> None:
    one = made.experiment(
        EVIL,
        EVIL,
        {EVIL: [EVIL, "other"]},
        [View(kind, title=EVIL) for kind in ("curve", "over_time", EVIL)],
        about=EVIL,
        source=EVIL,
    )
    changes = {"warnings": [EVIL], "target": {"kind": EVIL, EVIL: EVIL}, "seed": 1}
    analysis = made.analysis(one, queue=EVIL, models={EVIL: {EVIL: [{EVIL: EVIL}]}}, changes=changes)
    quarantine = pd.DataFrame([(EVIL, EVIL, 1)], columns=["file", "reason", "rows"])
    plain, evil = report(made.analysis(made.experiment())), report(with_table(analysis, "quarantine", quarantine))
    assert not [tag for tag, attributes in evil.tags if tag == "img" or "onerror" in attributes]
    assert [tag for tag, _ in evil.tags].count("script") == len(evil.figures) + 2
    assert {tag for tag, _ in evil.tags} <= {tag for tag, _ in plain.tags} | {"strong"}
    assert EVIL in evil.text


def test_plots_get_texts_of_the_data_as_text(report: Any) -> None:
    page = report(made.analysis(made.experiment(factors={"target.store": ["<b>x</b>", "y"]}, views=[View("bars")])))
    (figure,) = page.figures.values()
    assert figure["data"][0]["x"] == ["&lt;b&gt;x&lt;/b&gt;", "y"]


def test_a_view_of_a_table_opens_the_table_by_kind(report: Any) -> None:
    def opened(page: Page) -> int:
        return sum(tag == "details" and "open" in attributes for tag, attributes in page.tags)

    without = report(made.analysis(made.experiment(views=[View("curve")])))
    asked = report(made.analysis(made.experiment(views=[View("curve"), View("table")])))
    assert opened(asked) == opened(without) + 2


def test_a_report_needs_no_spark() -> None:
    asked = "import sys, flyball.pipeline.report; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], check=False).returncode == 0


def test_experiments_stand_in_the_order_in_which_they_happened(report: Any) -> None:
    names = ("after", "before", "steps")
    times = {"after": "2026-01-01T12:00:00Z", "before": "2026-01-01T10:00:00Z", "steps": "2026-01-01T11:00:00Z"}
    analysis = made.analysis(*(made.experiment(name, name.title()) for name in names))
    runs = [replace(run, started_at=times[run.experiment]) for run in analysis.runs]
    page = report(replace(analysis, runs=runs))
    assert [text for level, text in page.headings if level == 2][:3] == ["Before", "Steps", "After"]


def test_headline_of_a_run_at_a_given_rate_is_its_latency(report: Any) -> None:
    workload = {"kind": "stream", "protocol": "amqp", "rate_per_s": 2000}
    page = report(made.analysis(made.experiment(), changes={"workload": workload}))
    assert "Lowest p99 latency" in page.text
    assert "Highest throughput" not in page.text


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ({"kind": "foreign", "addresses": ["127.0.0.1:5672"]}, "the server at 127.0.0.1:5672"),
        ({"kind": "foreign", "addresses": ["127.0.0.1:5672"], "label": "the demo's node"}, "the demo's node"),
        ({"kind": "rabbitmq"}, "RabbitMQ"),
    ],
)
def test_target_is_called_by_its_name(report: Any, target: dict[str, Any], name: str) -> None:
    page = report(made.analysis(made.experiment(), changes={"target": target}))
    assert f"against {name} over" in page.text
    assert "foreign" not in page.text.partition("How it was run")[0]


def test_law_says_what_deviation_is_allowed(report: Any) -> None:
    table = report(made.analysis(made.experiment())).table("Does the trace agree")
    assert set(table.column("Allowed")) == {"10 %"}
