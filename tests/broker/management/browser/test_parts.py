"""Parts of pages that are functions: numbers with units, scales, lists that are sorted here."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.broker.management.browser.visitor import Visitor

CALL = "([module, name, parameters]) => import(`/web/${module}.js`).then((found) => found[name](...parameters))"


@pytest.fixture
def page(window: Visitor) -> Page:
    """Any page of the console: its modules are there."""
    return window.page


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("count", 1234567, "1,234,567"),
        ("count", None, "–"),
        ("short", 950, "950"),
        ("short", 12345, "12.3 k"),
        ("short", 4_500_000, "4.5 M"),
        ("perSecond", 1234.6, "1,235 /s"),
        ("perSecond", 0.25, "0.3 /s"),
        ("perSecond", 0, "0 /s"),
        ("bytes", 999, "999 B"),
        ("bytes", 1234567, "1.2 MB"),
        ("ms", 0.42, "420 µs"),
        ("ms", 4.234, "4.2 ms"),
        ("ms", 1234, "1.2 s"),
        ("seconds", 45, "45 s"),
        ("seconds", 185, "3 min 5 s"),
        ("seconds", 3600, "1 h"),
        ("seconds", 90061, "1 d 1 h"),
        ("percent", 0.42, "42 %"),
        ("percent", 0.0123, "1.2 %"),
    ],
)
def test_numbers_have_few_digits_and_their_unit(page: Page, name: str, value: float | None, text: str) -> None:
    assert page.evaluate(CALL, ["format", name, [value]]) == text


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 1, [0, 0.5, 1]),
        (0, 100, [0, 50, 100]),
        (0, 12345, [0, 5000, 10000, 15000]),
        (0, 0.003, [0, 0.001, 0.002, 0.003]),
        (90, 110, [90, 100, 110]),
        (-5, 5, [-5, 0, 5]),
    ],
)
def test_a_scale_has_a_few_round_numbers_around_what_is_drawn(
    page: Page, low: float, high: float, ticks: list[float]
) -> None:
    assert page.evaluate(CALL, ["chart", "niceTicks", [low, high]]) == ticks


def test_client_side_list_sorts_numbers_and_names_naturally(page: Page) -> None:
    sorted_by = """async (sort) => {
      const { local } = await import('/web/table.js');
      const rows = [['q-10', 9], ['q-9', 1000], ['q-1', 20]].map(([name, size]) => ({ name, size }));
      const columns = [{ key: 'name' }, { key: 'size', value: (row) => row.size.toLocaleString() }];
      const load = local(rows, { columns, text: (row) => row.name });
      const found = await load({ filter: '', sort, page: 1, pageSize: 10 });
      return found.items.map((row) => row.name);
    }"""
    assert page.evaluate(sorted_by, "name") == ["q-1", "q-9", "q-10"]
    assert page.evaluate(sorted_by, "size") == ["q-10", "q-1", "q-9"]


def test_a_picture_leads_arrows_around_the_boxes_between(page: Page) -> None:
    columns = """async (bindings) => {
      const { graphOf } = await import('/web/routing.js');
      const all = bindings.map(([source, destination, kind]) => ({ source, destination, destination_type: kind }));
      return graphOf(all).columns.map((column) => column.map((node) => node.name ?? 'bend'));
    }"""
    bindings = [["in", "next", "exchange"], ["next", "all", "queue"], ["in", "red", "queue"]]
    assert page.evaluate(columns, bindings) == [["in"], ["next", "bend"], ["all", "red"]]


def test_a_picture_of_a_ring_is_no_wider_than_the_ring(page: Page) -> None:
    columns = """async (names) => {
      const { graphOf } = await import('/web/routing.js');
      const next = (index) => names[(index + 1) % names.length];
      const bind = (source, index) => ({ source, destination: next(index), destination_type: 'exchange' });
      return graphOf(names.map(bind)).columns.length;
    }"""
    assert page.evaluate(columns, ["a", "b", "c"]) == 3
