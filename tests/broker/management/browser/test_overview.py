"""The overview shows what the node does, as it does it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
from playwright.sync_api import expect

from tests.broker.management.browser.background import meanwhile
from tests.broker.management.browser.visitor import Visitor

PIXELS = """canvas => {
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return data.filter((value, index) => index % 4 === 3 && value > 200).length;
}"""


def test_messages_that_are_published_show_up_within_seconds(
    visitor: Visitor, channel: Any, new_channel: Callable[[], Any], api: httpx.Client
) -> None:
    channel.queue_declare("overview.orders")
    visitor.open("/", "Overview")
    expect(visitor.tile("Ready")).not_to_have_text("–")
    for _ in range(40):
        channel.basic_publish("", "overview.orders", b"order")
    # When this is answered, they are there.
    channel.queue_declare("overview.orders", passive=True)
    ready = api.get("/overview").json()["queue_totals"]["messages_ready"]
    expect(visitor.tile("Ready")).to_have_text(str(ready))
    expect(visitor.card("Messages in queues").locator(".legend")).to_contain_text(str(ready))
    # Rates and times are those of the last seconds.
    publishing = new_channel()
    with meanwhile(lambda: publishing.basic_publish("", "overview.orders", b"order")):
        expect(visitor.tile("Published")).not_to_have_text("0 /s")
        phases = visitor.card("Time by phase").locator(".legend")
        for phase in ("Waiting for the event loop", "Parsing", "Routing and queues", "Store", "Sending"):
            expect(phases).to_contain_text(re.compile(rf"{phase}\d[\d.]* ([µm]s|s)"))
        response = visitor.card("Response time").locator(".legend")
        expect(response).to_contain_text(re.compile(r"Median\d"))
        expect(visitor.card("Store").locator(".legend")).to_contain_text(re.compile(r"Commits per second\d"))
        visitor.keep_picture("overview")
    publishing.connection.close()
    assert visitor.complaints == []


def test_charts_are_drawn_and_tell_the_values_under_the_pointer(visitor: Visitor, channel: Any) -> None:
    visitor.open("/", "Overview")
    card = visitor.card("Memory")
    expect(card.locator(".legend")).to_contain_text("MB")
    canvas = card.locator("canvas")
    canvas.scroll_into_view_if_needed()
    visitor.page.wait_for_function(f"canvas => ({PIXELS})(canvas) > 500", arg=canvas.element_handle())
    canvas.hover()
    expect(card.locator(".chart-time")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
    visitor.page.mouse.move(0, 0)
    expect(card.locator(".chart-time")).to_have_text("")


def test_the_node_says_what_it_is_and_where_it_listens(visitor: Visitor) -> None:
    visitor.open("/", "Overview")
    expect(visitor.card("This node")).to_contain_text("amqp 127.0.0.1:")
    expect(visitor.card("This node")).to_contain_text("Up for")


def test_a_chart_that_was_left_is_full_when_one_comes_back(visitor: Visitor) -> None:
    visitor.open("/", "Overview")
    expect(visitor.card("Memory").locator(".legend")).to_contain_text("MB")
    visitor.open("/queues", "Queues")
    visitor.open("/", "Overview")
    points = "() => import('/web/live.js').then(live => live.history().length)"
    assert visitor.page.evaluate(points) > 0
    assert "MB" in visitor.card("Memory").locator(".legend").inner_text()
