"""Experiments and reports: what can be run, and a real report shown without any power."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from flyball.pipeline.report import write_report
from tests.broker.management.browser.visitor import Visitor
from tests.pipeline.report import made


@pytest.fixture(scope="module")
def report(data: Path) -> str:
    """A report as the pipeline writes it, where the node looks for reports."""
    folder = data / "reports" / "march" / "clients"
    (folder / "tables").mkdir(parents=True)
    write_report(made.analysis(made.experiment("march", "March")), folder / "report.html")
    (folder / "tables" / "latency.csv").write_text("clients,latency_ms\n1,0.5\n")
    return "march/clients"


def test_without_a_report_the_page_says_how_to_make_one(visitor: Visitor, data: Path) -> None:
    assert not (data / "reports").exists(), "the first test here"
    visitor.open("/experiments", "Experiments")
    card = visitor.card("Reports")
    expect(card).to_contain_text("No reports yet")
    expect(card).to_contain_text("flyball pipeline report results --out DATA/reports/NAME")
    assert visitor.complaints == []


def test_built_in_experiments_are_listed_with_their_commands(visitor: Visitor) -> None:
    visitor.open("/experiments", "Experiments")
    visitor.page.get_by_label("Filter experiments by name").fill("thorbangmq/clients")
    card = visitor.card("Number of clients")
    expect(card).to_contain_text("Response time")
    expect(card).to_contain_text("Varies")
    expect(visitor.main.get_by_role("button", name="Copy")).to_have_count(1)
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visitor.main.get_by_role("button", name="Copy").click()
    expect(visitor.toast("Command copied")).to_be_visible()
    assert visitor.page.evaluate("navigator.clipboard.readText()") == "flyball lab run thorbangmq/clients --quick"
    assert visitor.complaints == []


def test_of_many_experiments_some_are_shown_and_more_when_asked(visitor: Visitor) -> None:
    visitor.open("/experiments", "Experiments")
    cards = visitor.main.get_by_role("list", name="Experiments").get_by_role("listitem")
    expect(cards).to_have_count(12)
    visitor.button("Show more").press("Enter")
    expect(cards).to_have_count(24)
    assert visitor.complaints == []


def test_a_report_is_shown_in_a_frame_that_can_ask_the_node_for_nothing(visitor: Visitor, report: str) -> None:
    visitor.open("/experiments", "Experiments")
    visitor.row(report).get_by_role("link", name="Show here").click()
    frame = visitor.main.locator("iframe")
    expect(frame).to_have_attribute("sandbox", "allow-scripts allow-downloads")
    inside = frame.content_frame
    expect(inside.get_by_role("heading", level=1)).to_be_visible()
    # A report draws what comes into view.
    inside.locator(".canvas").first.scroll_into_view_if_needed()
    expect(inside.locator(".js-plotly-plot").first).to_be_visible()
    heading = inside.get_by_role("heading", level=1)
    assert heading.evaluate("() => origin") == "null"
    asks = "() => fetch('/api/whoami').then((answer) => answer.status).catch(() => 'refused')"
    assert heading.evaluate(asks) == "refused"
    visitor.keep_picture("report")


def test_a_report_opens_in_a_tab_of_its_own_and_its_tables_are_saved(visitor: Visitor, report: str) -> None:
    visitor.open("/experiments", "Experiments")
    visitor.keep_picture("experiments")
    with visitor.context.expect_page() as opened:
        visitor.row(report).get_by_role("link", name="New tab").click()
    expect(opened.value.get_by_role("heading", level=1)).to_be_visible()
    opened.value.close()
    visitor.row(report).get_by_role("link", name="Show here").press("Enter")
    with visitor.page.expect_download() as saved:
        visitor.card("Tables and models").get_by_role("link", name="tables/latency.csv").click()
    assert saved.value.path().read_text() == "clients,latency_ms\n1,0.5\n"


def test_a_report_that_is_gone_is_told_with_advice(visitor: Visitor) -> None:
    visitor.open("/experiments?report=nothing", "nothing")
    expect(visitor.main.get_by_role("alert")).to_contain_text("Report “nothing” not found")
    expect(visitor.main.get_by_role("link", name="Experiments")).to_be_visible()
    assert visitor.complaints == []


def test_who_may_only_look_sees_them_too(looker: Visitor, report: str) -> None:
    looker.open(f"/experiments?report={report}", "")
    expect(looker.main.locator("iframe").content_frame.get_by_role("heading", level=1)).to_be_visible()
