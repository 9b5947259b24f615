"""Small screens, dark rooms, and colours with enough contrast."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

import httpx
import pytest
from playwright.sync_api import StorageState, expect

from tests.broker.management.browser.visitor import PHONE, Visitor
from tests.broker.management.flyball_api.streams import FACTS

PAGES = [
    ("/", "Overview"),
    ("/queues", "Queues"),
    ("/queues/%2F/screen.a-queue-with-quite-a-long-name-that-does-not-fit", "screen"),
    ("/connections", "Connections"),
    ("/exchanges", "Exchanges"),
    ("/exchanges/%2F/amq.topic", "amq.topic"),
    ("/governor", "Governor"),
    ("/governor/screen-loop", "a loop with a long name"),
    ("/admission", "Admission"),
    ("/models", "Models"),
    ("/domain", "Domain"),
    ("/experiments", "Experiments"),
]

BACK_COLOUR = "() => getComputedStyle(document.body).backgroundColor"
CONTRASTS = """() => {
  const probe = document.createElement('i');
  document.body.append(probe);
  const channel = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const luminance = (name) => {
    probe.style.setProperty('color', `var(--${name})`);
    const [r, g, b] = getComputedStyle(probe).color.match(/[0-9.]+/g).map((part) => channel(Number(part) / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const backs = ['page', 'surface', 'raised', 'sunken'];
  const texts = ['ink', 'ink-2', 'muted', 'accent', 'brass', 'good', 'bad', 'warn'];
  const pairs = texts.flatMap((text) => backs.map((back) => [text, back, 4.5]));
  pairs.push(['on-accent', 'accent', 4.5], ['on-bad', 'bad', 4.5], ['accent', 'info-back', 4.5]);
  for (const tone of ['good', 'warn', 'bad']) pairs.push([tone, `${tone}-back`, 4.5], ['ink', `${tone}-back`, 4.5]);
  for (let number = 1; number <= 8; number += 1) pairs.push([`series-${number}`, 'surface', 3]);
  for (const back of backs) pairs.push(['control-edge', back, 3]);
  const low = pairs.filter(([one, other, needed]) => contrast(one, other) < needed);
  return low.map(([one, other]) => `${one} on ${other}: ${contrast(one, other).toFixed(2)}`);
}"""


def prepare(channel: Any) -> None:
    name = "screen.a-queue-with-quite-a-long-name-that-does-not-fit"
    channel.queue_declare(name, durable=True, arguments={"x-max-length": 1000, "x-message-ttl": 60000})
    channel.queue_bind(name, "amq.topic", "a.rather.long.routing.key.#")
    channel.basic_publish("", name, b"x" * 500)


@pytest.fixture(scope="module")
def loop(api: httpx.Client) -> None:
    """A loop that has reported."""
    facts = {**FACTS, "title": "a loop with a long name that-does-not-fit-on-a-small-screen-and-has-no-spaces"}
    samples = [{"at": 1.0, "setpoint": 400.0, "measurement": 12345.6, "action": 100.0}]
    api.post("/flyball/loops/screen-loop/samples", json={"facts": facts, "samples": samples}).raise_for_status()


@pytest.mark.parametrize(("place", "heading"), PAGES)
def test_on_a_phone_no_page_is_wider_than_the_screen(
    phone: Visitor, channel: Any, loop: None, place: str, heading: str
) -> None:
    prepare(channel)
    phone.open(place, re.compile(heading))
    expect(phone.main.locator(".loading")).to_have_count(0)
    if "screen." in place:
        phone.button("Show messages").click()
        expect(phone.main.get_by_role("article").first).to_be_visible()
    phone.keep_picture(f"phone-{heading.lower().replace(' ', '-')}")
    assert phone.width() <= PHONE["width"]
    assert phone.complaints == []


def test_on_a_phone_the_menu_opens_and_closes(phone: Visitor) -> None:
    phone.open("/", "Overview")
    link = phone.page.get_by_role("link", name="Queues")
    expect(link).not_to_be_visible()
    phone.page.get_by_role("button", name="Menu").click()
    link.click()
    expect(phone.page.get_by_role("heading", level=1, name="Queues")).to_be_visible()
    expect(link).not_to_be_visible()


def test_a_phone_sorts_by_a_choice_and_names_every_value(phone: Visitor, channel: Any) -> None:
    prepare(channel)
    phone.open("/queues", "Queues")
    phone.page.get_by_label("Sort Queues").select_option("messages_ready down")
    cell = phone.main.locator("td[data-label=Ready]").first
    expect(cell).to_be_visible()
    assert cell.evaluate("cell => getComputedStyle(cell, '::before').content") == '"Ready"'


def test_colours_follow_the_browser_and_the_switch_which_is_kept(
    visit: Callable[..., Visitor], session: StorageState
) -> None:
    visitor = visit(color_scheme="light", storage_state=session).open("/", "Overview")
    light = visitor.page.evaluate(BACK_COLOUR)
    visitor.page.emulate_media(color_scheme="dark")
    dark = visitor.page.evaluate(BACK_COLOUR)
    assert light != dark
    visitor.keep_picture("overview-dark")
    visitor.page.get_by_text("Light", exact=True).click()
    assert visitor.page.evaluate(BACK_COLOUR) == light
    visitor.page.reload()
    assert visitor.page.evaluate(BACK_COLOUR) == light
    expect(visitor.page.get_by_role("radio", name="Light")).to_be_checked()
    visitor.page.get_by_text("Auto", exact=True).click()
    assert visitor.page.evaluate(BACK_COLOUR) == dark
    assert visitor.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_colours_have_the_contrast_that_guidelines_ask_for(
    visitor: Visitor, scheme: Literal["light", "dark"]
) -> None:
    visitor.page.emulate_media(color_scheme=scheme)
    found = visitor.page.evaluate(CONTRASTS)
    visitor.page.emulate_media(color_scheme=None)
    assert found == []


def test_without_javascript_a_line_says_what_else_there_is(visit: Callable[..., Visitor]) -> None:
    visitor = visit(java_script_enabled=False)
    visitor.page.goto(visitor.base)
    expect(visitor.page.locator("noscript p")).to_be_visible()
