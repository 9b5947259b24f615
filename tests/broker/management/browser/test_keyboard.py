"""The console without a mouse."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.broker.management.browser.visitor import Visitor

NOTE_CONTROLS = """() => {
  const all = document.querySelectorAll('a[href], button:not(:disabled), input, select, textarea, [tabindex="0"]');
  window.isUsed = (one) => one.checkVisibility() && !(one.type === 'radio' && !one.checked);
  window.controls = [...all].filter(window.isUsed);
  return window.controls.length;
}"""
# Where one begins is up to the browser, and there may be more controls by then.
MOST_ROUNDS = 3
NOTE_FOCUS = """() => {
  const isNoted = window.visited !== undefined;
  window.visited = new Map();
  if (isNoted) return;
  const shownOf = (one) => {
    if (one.type === 'radio') return one.nextElementSibling;
    return one.matches('.routing a') ? one.querySelector('rect') : one;
  };
  document.addEventListener('focusin', ({ target }) => {
    const style = getComputedStyle(shownOf(target));
    const isMarked = style.outlineStyle !== 'none' || parseFloat(style.strokeWidth) >= 2;
    window.visited.set(target, isMarked);
  });
}"""
# What has gone meanwhile, as a connection that is closed, need not be reached.
UNREACHED = """() => window.controls
  .filter((one) => one.isConnected && window.isUsed(one) && !window.visited.has(one))
  .map((one) => one.outerHTML.slice(0, 120))"""
UNMARKED = """() => [...window.visited].filter(([, isMarked]) => !isMarked)
  .map(([one]) => one.outerHTML.slice(0, 120))"""


@pytest.mark.parametrize(
    ("place", "heading"),
    [("/", "Overview"), ("/queues", "Queues"), ("/queues/%2F/keys", "keys"), ("/connections", "Connections"),
     ("/exchanges", "Exchanges"), ("/exchanges/%2F/amq.topic", "amq.topic"), ("/governor", "Governor"),
     ("/admission", "Admission"), ("/domain", "Domain"), ("/experiments", "Experiments")],
)  # fmt: skip
def test_every_control_is_reachable_by_tab_with_visible_focus(
    visitor: Visitor, channel: Any, place: str, heading: str
) -> None:
    channel.queue_declare("keys")
    channel.queue_bind("keys", "amq.topic", "keys")
    visitor.open(place, heading)
    expect(visitor.main.locator(".loading")).to_have_count(0)
    count = visitor.page.evaluate(NOTE_CONTROLS)
    assert count > 10
    visitor.page.evaluate("document.activeElement.blur()")
    visitor.page.evaluate(NOTE_FOCUS)
    for _ in range(MOST_ROUNDS):
        for _ in range(count):
            visitor.page.keyboard.press("Tab")
        if not (unreached := visitor.page.evaluate(UNREACHED)):
            break
    assert unreached == []
    assert visitor.page.evaluate(UNMARKED) == []


def test_the_skip_link_comes_first_and_leads_to_the_content(visitor: Visitor) -> None:
    visitor.open("/queues", "Queues")
    visitor.page.reload()
    expect(visitor.page.get_by_role("heading", level=1, name="Queues")).to_be_visible()
    visitor.page.keyboard.press("Tab")
    skip = visitor.page.get_by_role("link", name="Skip to content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    visitor.page.keyboard.press("Enter")
    expect(visitor.main).to_be_focused()
    assert visitor.page.url.endswith("#/queues")


def test_a_slash_leads_to_the_filter_but_not_while_one_types(visitor: Visitor) -> None:
    visitor.open("/queues", "Queues")
    search = visitor.page.get_by_label("Filter queues by name")
    visitor.page.keyboard.press("/")
    expect(search).to_be_focused()
    visitor.page.keyboard.type("a/b")
    expect(search).to_have_value("a/b")


def test_a_dialog_is_left_with_escape_and_gives_the_focus_back(visitor: Visitor) -> None:
    visitor.open("/queues", "Queues")
    visitor.button("New queue").focus()
    visitor.page.keyboard.press("Enter")
    expect(visitor.dialog.get_by_label("Name")).to_be_focused()
    visitor.page.keyboard.press("Escape")
    expect(visitor.dialog).to_have_count(0)
    expect(visitor.button("New queue")).to_be_focused()


def test_a_dialog_does_not_outlive_its_page(visitor: Visitor) -> None:
    visitor.open("/exchanges", "Exchanges").open("/queues", "Queues")
    visitor.button("New queue").press("Enter")
    expect(visitor.dialog).to_be_visible()
    visitor.page.go_back()
    expect(visitor.page.get_by_role("heading", level=1, name="Exchanges")).to_be_visible()
    expect(visitor.dialog).to_have_count(0)


def test_a_new_page_is_announced_by_its_heading(visitor: Visitor) -> None:
    visitor.open("/", "Overview")
    visitor.page.get_by_role("link", name="Queues").press("Enter")
    expect(visitor.page.get_by_role("heading", level=1, name="Queues")).to_be_focused()
    expect(visitor.page).to_have_title("Queues · Flyball")
