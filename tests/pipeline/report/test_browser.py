"""A report in a real browser: it draws its plots without a network, in light and dark, on wide and small screens."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from flyball.pipeline.analysis import Analysis
from flyball.pipeline.manifest import View
from flyball.pipeline.report import write_comparison, write_report
from flyball.pipeline.report.chapters import COLUMNS
from flyball.pipeline.report.views import KINDS
from tests.pipeline.report import made, made_loops, made_policies

# The width of a sheet of paper without its margins, at 96 pixels an inch.
A4_PIXELS = 700

IS_DRAWN = "canvas => canvas.querySelector('.main-svg') !== null"
ALL_DRAWN = f"() => [...document.querySelectorAll('.canvas')].every({IS_DRAWN})"
TEXT_COLOUR = "() => getComputedStyle(document.querySelector('.canvas .ytick text')).fill"
PAGE_COLOUR = "() => getComputedStyle(document.body).backgroundColor"
SHAPE_COLOURS = "() => [...document.querySelectorAll('.shapelayer path')].map((path) => path.style.stroke)"
LINE_COLOUR = "() => document.querySelector('.canvas .scatterlayer path.js-line').style.stroke"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium; it is for one module, since it costs a second to start."""
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with a plot of every kind, and two more experiments."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    factors = {"workload.clients": [16, 64], "target.nodes": [1, 2]}
    views = [View(kind) for kind in KINDS]
    experiments = [made.experiment("s/kinds", "Every kind", factors, views), made.experiment("s/a", "<b>A</b>")]
    experiments.append(made.experiment("s/long", "Long", {}, repetitions=1))
    analysis = made.analysis(*experiments)
    seconds = [(run.run, second, 100, 90, 10 * second) for run in analysis.runs for second in range(20)]
    over_time = pd.DataFrame(seconds, columns=list(COLUMNS["queue_over_time"]))
    tables = {**analysis.tables, "queue_over_time": over_time}
    write_report(Analysis(analysis.experiments, analysis.runs, tables, analysis.models), path)
    return path


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("comparison") / "comparison.html"
    one = made.experiment()
    write_comparison({"old": made.analysis(one), "new": made.analysis(one, speed=1.2)}, path)
    return path


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on control loops, closed with disturbances and open."""
    path = tmp_path_factory.mktemp("loops") / "report.html"
    closed = made_loops.closed(parts=[("", 400.0), ("goal 800", 800.0)])
    opened = made_loops.held_open()
    tables = {**closed.tables, "loops": pd.concat([closed.tables["loops"], opened.tables["loops"]])}
    experiments, runs = [*closed.experiments, *opened.experiments], [*closed.runs, *opened.runs]
    write_report(Analysis(experiments, runs, tables, opened.models), path)
    return path


class Reader:
    """Opens a page with the network off, and notes what goes wrong."""

    def __init__(self, browser: Browser, path: Path, **options: Any) -> None:
        self.context: BrowserContext = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})
        self.context.set_offline(True)
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda said: self.complaints.append(said.text))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.url = path.as_uri()
        self.page.goto(self.url)

    def scroll_through(self) -> None:
        """Look at every plot, and wait until it is drawn."""
        for canvas in self.page.locator(".canvas").all():
            canvas.scroll_into_view_if_needed()
            self.page.wait_for_function(IS_DRAWN, arg=canvas.element_handle())


@pytest.fixture
def reader(browser: Browser, report: Path) -> Iterator[Reader]:
    found = Reader(browser, report, color_scheme="light")
    yield found
    found.context.close()


def test_every_plot_is_drawn_without_a_network_and_without_an_error(reader: Reader) -> None:
    reader.scroll_through()
    assert reader.page.locator(".canvas").count() >= len(KINDS)
    assert reader.page.evaluate(ALL_DRAWN)
    assert reader.complaints == []
    assert [url for url in reader.requests if not url.startswith(("data:", "blob:"))] == [reader.url]


def test_a_plot_is_drawn_only_when_it_comes_into_view(reader: Reader) -> None:
    reader.page.locator(".canvas").first.scroll_into_view_if_needed()
    reader.page.wait_for_function(IS_DRAWN, arg=reader.page.locator(".canvas").first.element_handle())
    assert not reader.page.locator(".canvas").last.evaluate(IS_DRAWN)


def test_a_comparison_is_drawn_too(browser: Browser, comparison: Path) -> None:
    reader = Reader(browser, comparison)
    reader.scroll_through()
    assert reader.page.evaluate(ALL_DRAWN)
    assert reader.complaints == []
    reader.context.close()


@pytest.mark.parametrize("width", [360, 1400])
def test_control_loops_are_drawn_with_their_action_below(browser: Browser, loops: Path, width: int) -> None:
    reader = Reader(browser, loops, viewport={"width": width, "height": 900})
    reader.scroll_through()
    assert reader.page.evaluate(ALL_DRAWN)
    assert reader.complaints == []
    run = reader.page.locator("figure", has_text="λ-PI on RabbitMQ").nth(1)
    assert run.locator(".canvas .subplot").count() == 2
    assert "goal 800" in run.locator(".canvas .annotation").all_text_contents()
    above, below = (run.locator(f".canvas .{name}title").bounding_box() for name in ("y", "y2"))
    assert above is not None
    assert below is not None
    assert above["y"] < below["y"]
    assert reader.page.evaluate("document.documentElement.scrollWidth") <= width
    reader.context.close()


@pytest.mark.parametrize("clients", [[400], [50, 150, 200, 400]])
def test_policies_of_admission_are_drawn_with_their_schedule(
    browser: Browser, tmp_path: Path, clients: list[int]
) -> None:
    analysis = made_policies.compared(["none", "static", "dps"], clients, schedule=made_policies.SCHEDULE)
    write_report(analysis, tmp_path / "report.html")
    reader = Reader(browser, tmp_path / "report.html", viewport={"width": 360, "height": 900})
    reader.scroll_through()
    assert reader.page.evaluate(ALL_DRAWN)
    assert reader.complaints == []
    marks = reader.page.locator("figure", has_text="small requests over time").locator(".canvas .annotation")
    assert marks.all_text_contents() == ["200 clients + 100 small-only", "400 clients + 100 small-only"]
    assert reader.page.evaluate("document.documentElement.scrollWidth") <= 360
    reader.context.close()


def test_marks_in_a_plot_have_colours_of_the_page(browser: Browser, loops: Path) -> None:
    reader = Reader(browser, loops)
    reader.scroll_through()
    strokes = reader.page.evaluate(SHAPE_COLOURS)
    assert strokes
    assert all(stroke.startswith("rgb") and stroke != "rgb(68, 68, 68)" for stroke in strokes)
    reader.context.close()


def test_the_switch_changes_the_colours_of_page_and_plots(reader: Reader) -> None:
    reader.page.locator(".canvas").first.scroll_into_view_if_needed()
    reader.page.wait_for_selector(".canvas .ytick text")
    before = [reader.page.evaluate(what) for what in (PAGE_COLOUR, TEXT_COLOUR, LINE_COLOUR)]
    reader.page.get_by_text("Dark", exact=True).click()
    for what, old in zip((PAGE_COLOUR, TEXT_COLOUR, LINE_COLOUR), before, strict=True):
        reader.page.wait_for_function(f"old => ({what})() !== old", arg=old)
    reader.page.get_by_text("Auto", exact=True).click()
    reader.page.wait_for_function(f"old => ({TEXT_COLOUR})() === old", arg=before[1])
    assert reader.complaints == []


def test_plots_follow_the_setting_of_the_browser(reader: Reader) -> None:
    reader.page.locator(".canvas").first.scroll_into_view_if_needed()
    reader.page.wait_for_selector(".canvas .ytick text")
    light = reader.page.evaluate(TEXT_COLOUR)
    reader.page.emulate_media(color_scheme="dark")
    reader.page.wait_for_function(f"light => ({TEXT_COLOUR})() !== light", arg=light)


def test_names_in_plots_are_shown_as_they_are(reader: Reader) -> None:
    assert reader.page.get_by_role("heading", name="<b>A</b>", level=2).count() == 1
    assert reader.page.locator("main b").count() == 0


@pytest.mark.parametrize("width", [360, 800, 1400])
def test_the_page_is_never_wider_than_the_screen(browser: Browser, report: Path, width: int) -> None:
    reader = Reader(browser, report, viewport={"width": width, "height": 800})
    reader.scroll_through()
    reader.page.evaluate("() => document.querySelectorAll('details').forEach(part => { part.open = true })")
    assert reader.page.evaluate("document.documentElement.scrollWidth") <= width
    reader.context.close()


def test_the_contents_stay_in_view_on_a_wide_screen_and_mark_where_one_is(reader: Reader) -> None:
    reader.page.evaluate("() => document.querySelector('#settings').scrollIntoView({behavior: 'instant'})")
    current = reader.page.locator("nav.contents a[aria-current]")
    reader.page.wait_for_function("() => document.querySelector('nav.contents a[aria-current]').hash === '#settings'")
    assert current.count() == 1
    box = current.bounding_box()
    assert box is not None
    assert 0 <= box["y"] <= 900


def test_without_javascript_the_tables_are_there_and_a_line_says_why_no_plots(browser: Browser, report: Path) -> None:
    reader = Reader(browser, report, java_script_enabled=False)
    assert reader.page.locator("noscript p").is_visible()
    assert reader.page.locator("section > .scroll table").first.is_visible()
    assert reader.page.locator("nav.contents a").first.is_visible()
    reader.context.close()


def test_on_paper_everything_is_drawn_and_open(reader: Reader) -> None:
    reader.page.locator(".canvas").first.scroll_into_view_if_needed()
    reader.page.wait_for_selector(".canvas .ytick text")
    reader.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    reader.page.wait_for_function(ALL_DRAWN)
    assert reader.page.locator("main details:not([open])").count() == 0
    widths = reader.page.evaluate("() => [...document.querySelectorAll('.main-svg')].map(svg => svg.clientWidth)")
    assert max(widths) <= A4_PIXELS
    reader.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert reader.page.locator("main details:not([open])").count() > 0
    assert reader.complaints == []
