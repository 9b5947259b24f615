"""Texts and data cannot become markup, and tables can be read by screen readers."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyball.pipeline.report.content import Facts, Mark, Passage, Section, Table
from flyball.pipeline.report.figures import Figure
from flyball.pipeline.report.page import write_page
from tests.pipeline.report.pages import Page

EVIL = '</script><img src=x onerror="alert(1)">'


def page_of(folder: Path, *blocks: str | Mark | Table | Facts) -> Page:
    section = Section("one", "One", "section.html", {"passages": [Passage("", blocks)]})
    write_page(folder / "page.html", EVIL, [section], EVIL)
    return Page(folder / "page.html")


@pytest.mark.parametrize(
    "block", [EVIL, Mark(EVIL, "note"), Table(EVIL, [EVIL], [[EVIL]]), Facts([(EVIL, EVIL)], summary=EVIL)]
)
def test_text_is_escaped_and_cannot_leave_an_attribute(tmp_path: Path, block: str | Mark | Table | Facts) -> None:
    page = page_of(tmp_path, block)
    assert EVIL in page.text
    assert not [tag for tag, attributes in page.tags if tag == "img" or "onerror" in attributes]


def test_data_of_a_figure_cannot_end_their_script(tmp_path: Path) -> None:
    figure = Figure(EVIL, [{"name": EVIL}], {}, EVIL)
    data = {"name": "", "about": "", "source": "", "tiles": [], "first": [], "notes": [], "last": []}
    section = Section("one", "One", "chapter.html", {**data, "figures": [figure]})
    write_page(tmp_path / "page.html", "One", [section], "")
    page = Page(tmp_path / "page.html")
    assert page.figures["one-plot-1"]["data"] == [{"name": EVIL}]
    assert page.labelled("canvas") == [EVIL]


def test_a_table_names_its_columns_and_rows_for_screen_readers(tmp_path: Path) -> None:
    shown = page_of(tmp_path, Table("Cells", ["Cell", "Mean"], [["a", "1"]])).markup
    assert "<caption>Cells</caption>" in shown
    assert '<th scope="col">Cell</th>' in shown
    assert '<th scope="col" class="number">Mean</th>' in shown
    assert '<th scope="row">a</th>' in shown
    assert '<td class="number">1</td>' in shown


def test_a_table_with_a_summary_is_folded(tmp_path: Path) -> None:
    page = page_of(tmp_path, Table("Cells", ["Cell"], [["a"]], summary="More"))
    assert ("details", {}) in page.tags
    assert "More" in page.text
