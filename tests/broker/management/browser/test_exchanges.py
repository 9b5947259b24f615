"""Exchanges, their bindings, and the picture of the routing."""

from __future__ import annotations

from typing import Any

import httpx
from playwright.sync_api import expect

from tests.broker.management.browser.visitor import Visitor

IS_LEFT_OF = """([left, right]) => {
  const all = [...document.querySelectorAll('.routing a')];
  const box = (name) => all.find((one) => one.textContent.includes(name)).getBoundingClientRect();
  return box(left).right < box(right).left;
}"""


def test_the_picture_leads_from_exchanges_over_exchanges_to_queues(visitor: Visitor, channel: Any) -> None:
    channel.exchange_declare("picture.in", "topic")
    channel.exchange_declare("picture.next", "fanout")
    channel.queue_declare("picture.all")
    channel.queue_declare("picture.red")
    channel.exchange_bind("picture.next", "picture.in", "orders.*")
    channel.queue_bind("picture.all", "picture.next")
    channel.queue_bind("picture.red", "picture.in", "orders.red")
    visitor.open("/exchanges", "Exchanges")
    picture = visitor.page.locator(".routing svg")
    expect(picture.locator("text.key", has_text="orders.red")).to_be_visible()
    assert visitor.page.evaluate(IS_LEFT_OF, ["picture.in", "picture.next"])
    assert visitor.page.evaluate(IS_LEFT_OF, ["picture.next", "picture.all"])
    assert visitor.page.evaluate(IS_LEFT_OF, ["picture.in", "picture.red"])
    visitor.keep_picture("exchanges")
    picture.get_by_role("link", name="Queue picture.all").click()
    expect(visitor.page.get_by_role("heading", level=1, name="picture.all")).to_be_visible()
    assert visitor.complaints == []


def test_exchanges_that_are_bound_in_a_ring_are_drawn(visitor: Visitor, channel: Any) -> None:
    for name in ("ring.a", "ring.b"):
        channel.exchange_declare(name, "fanout")
    channel.exchange_bind("ring.b", "ring.a")
    channel.exchange_bind("ring.a", "ring.b")
    visitor.open("/exchanges/%2F/ring.a", "ring.a")
    expect(visitor.page.locator(".routing a")).to_have_count(2)
    assert visitor.complaints == []


def test_an_exchange_is_made_bound_used_unbound_and_deleted(
    visitor: Visitor, channel: Any, api: httpx.Client
) -> None:
    channel.queue_declare("life.queue")
    visitor.open("/exchanges", "Exchanges")
    visitor.button("New exchange").click()
    visitor.dialog.get_by_label("Name").fill("life")
    visitor.dialog.get_by_label("Type").select_option("direct")
    visitor.dialog.get_by_role("button", name="Create").click()
    visitor.page.get_by_label("Filter exchanges by name").fill("life")
    visitor.row("life").get_by_role("link").click()
    expect(visitor.main.get_by_text("No bindings")).to_be_visible()

    bind = visitor.card("Add a binding")
    bind.get_by_label("Name").fill("life.queue")
    bind.get_by_label("Routing key").fill("key/1")
    visitor.button("Bind").click()
    expect(visitor.row("key/1")).to_be_visible()
    expect(visitor.page.locator(".routing text.key")).to_contain_text("key/1")

    publish = visitor.card("Publish a message")
    publish.get_by_label("Routing key").fill("key/2")
    visitor.button("Publish").click()
    expect(visitor.toast("matched no binding")).to_be_visible()
    publish.get_by_label("Routing key").fill("key/1")
    publish.get_by_label("Message").fill("routed")
    visitor.button("Publish").click()
    expect(visitor.toast("was routed")).to_be_visible()
    assert channel.basic_get("life.queue", auto_ack=True)[2] == b"routed"
    visitor.keep_picture("exchange")

    visitor.row("key/1").get_by_role("button", name="Remove").click()
    visitor.dialog.get_by_role("button", name="Remove").click()
    expect(visitor.row("key/1")).to_have_count(0)

    visitor.button("Delete").click()
    visitor.dialog.get_by_role("textbox").fill("life")
    visitor.dialog.get_by_role("button", name="Delete").click()
    expect(visitor.page.get_by_role("heading", level=1, name="Exchanges")).to_be_visible()
    assert api.get("/exchanges/%2F/life").status_code == 404
    assert visitor.complaints == []


def test_the_default_exchange_has_a_page_but_cannot_be_changed(visitor: Visitor) -> None:
    visitor.open("/exchanges/%2F/amq.default", "(default)")
    expect(visitor.button("Delete")).to_have_attribute("aria-disabled", "true")
    expect(visitor.button("Bind")).to_have_attribute("aria-disabled", "true")
    assert visitor.complaints == []
