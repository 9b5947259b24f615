"""The list of queues."""

from __future__ import annotations

from typing import Any

import httpx
from playwright.sync_api import expect

from tests.broker.management.browser.visitor import Visitor

NAMES = "() => [...document.querySelectorAll('tbody th')].map(cell => cell.textContent)"


def names(visitor: Visitor) -> list[str]:
    found: list[str] = visitor.page.evaluate(NAMES)
    return found


def test_queues_are_listed_with_what_they_hold(visitor: Visitor, channel: Any) -> None:
    channel.queue_declare("list.full", durable=True, arguments={"x-max-length": 100})
    for _ in range(3):
        channel.basic_publish("", "list.full", b"order")
    visitor.open("/queues", "Queues")
    row = visitor.row("list.full")
    expect(row).to_contain_text("durable")
    expect(row).to_contain_text("limited")
    expect(row.get_by_role("cell").nth(3)).to_have_text("3")
    visitor.keep_picture("queues")
    assert visitor.complaints == []


def test_a_filter_keeps_the_queues_whose_name_has_it(visitor: Visitor, channel: Any) -> None:
    for number in range(3):
        channel.queue_declare(f"filter.{number}")
    visitor.open("/queues", "Queues")
    search = visitor.page.get_by_label("Filter queues by name")
    search.fill("filter.")
    expect(visitor.main.locator(".table-status")).to_contain_text("3 of ")
    assert names(visitor) == ["filter.0", "filter.1", "filter.2"]
    visitor.page.get_by_label("Regex").check()
    search.fill("filter.[12]$")
    expect(visitor.main.locator(".table-status")).to_contain_text("2 of ")
    search.fill("no such queue")
    expect(visitor.main.get_by_text("Nothing matches")).to_be_visible()
    visitor.button("Clear the filter").click()
    expect(visitor.row("filter.0")).to_be_visible()
    assert visitor.complaints == []


def test_a_heading_sorts_by_its_column_and_back(visitor: Visitor, channel: Any) -> None:
    for number, held in enumerate((2, 9, 5)):
        channel.queue_declare(f"sort.{number}")
        for _ in range(held):
            channel.basic_publish("", f"sort.{number}", b"order")
    visitor.open("/queues", "Queues")
    visitor.page.get_by_label("Filter queues by name").fill("sort.")
    expect(visitor.main.locator(".table-status")).to_contain_text("3 of ")
    heading = visitor.page.get_by_role("columnheader", name="Ready")
    heading.get_by_role("button").click()
    expect(heading).to_have_attribute("aria-sort", "descending")
    assert names(visitor) == ["sort.1", "sort.2", "sort.0"]
    heading.get_by_role("button").click()
    expect(heading).to_have_attribute("aria-sort", "ascending")
    assert names(visitor) == ["sort.0", "sort.2", "sort.1"]


def test_a_queue_can_be_made_and_is_listed_at_once(visitor: Visitor, api: httpx.Client) -> None:
    visitor.open("/queues", "Queues")
    visitor.button("New queue").click()
    visitor.dialog.get_by_label("Name").fill("made/in the console?")
    visitor.dialog.get_by_label("Arguments").fill("{not json")
    visitor.dialog.get_by_role("button", name="Create").click()
    expect(visitor.dialog.get_by_role("alert")).to_contain_text("is not JSON")
    visitor.dialog.get_by_label("Arguments").fill('{"x-max-length": 7}')
    visitor.dialog.get_by_role("button", name="Create").click()
    visitor.row("made/in the console?").get_by_role("link").click()
    expect(visitor.page.get_by_role("heading", level=1, name="made/in the console?")).to_be_visible()
    expect(visitor.card("About")).to_contain_text("x-max-length = 7")
    assert visitor.complaints == []


def test_names_are_text_and_never_markup(visitor: Visitor, channel: Any) -> None:
    channel.queue_declare("<b>bold</b><script>alert(1)</script>")
    visitor.open("/queues", "Queues")
    expect(visitor.row("<b>bold</b><script>alert(1)</script>")).to_be_visible()
    assert visitor.main.locator("b").count() == 0
    assert visitor.complaints == []
