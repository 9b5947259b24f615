"""Texts cannot become markup."""

from __future__ import annotations

import json
import re

from flyball.pipeline.report.markup import Html, element, json_script, markup, table

EVIL = '</script><img src=x onerror="alert(1)">'


def test_text_is_escaped_and_markup_is_not() -> None:
    assert markup("a < b", Html("<br>")) == "a &lt; b<br>"


def test_an_attribute_cannot_be_left() -> None:
    assert element("p", title='" onclick="x') == '<p title="&quot; onclick=&quot;x"></p>'


def test_data_cannot_end_their_script() -> None:
    shown = json_script("data", {"name": EVIL})
    assert shown.count("</script>") == 1
    inside = re.fullmatch(r"<script[^>]*>(.*)</script>", shown)
    assert inside is not None
    assert json.loads(inside[1]) == {"name": EVIL}


def test_a_table_names_its_columns_and_rows_for_screen_readers() -> None:
    shown = table("Cells", ["Cell", "Mean"], [["a", "1"]])
    assert "<caption>Cells</caption>" in shown
    assert '<th scope="col">Cell</th>' in shown
    assert '<th scope="row">a</th><td class="number">1</td>' in shown
