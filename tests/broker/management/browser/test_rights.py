"""Users with read-only rights cannot act, and see why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from tests.broker.management.browser.visitor import Visitor

WHY = "Read-only access"


@pytest.mark.parametrize(
    ("action", "right"), [("Purge", "read"), ("Delete", "configure"), ("Publish", "write"), ("Show messages", "read")]
)
def test_no_action_on_a_queue_can_be_taken(looker: Visitor, channel: Any, action: str, right: str) -> None:
    channel.queue_declare("rights.kept")
    channel.queue_purge("rights.kept")
    channel.basic_publish("", "rights.kept", b"order")
    looker.open("/queues/%2F/rights.kept", "rights.kept")
    before = len(looker.requests)
    button = looker.button(action)
    expect(button).to_have_attribute("aria-disabled", "true")
    reason = f"{WHY}: user “reader” has no {right} permission for this in vhost “/”."
    expect(button).to_have_accessible_description(reason)
    button.press("Enter")
    expect(looker.toast(WHY)).to_be_visible()
    assert looker.dialog.count() == 0
    assert not any("publish" in url or "/get" in url for url in looker.requests[before:])
    assert channel.queue_declare("rights.kept", passive=True).method.message_count == 1
    assert looker.complaints == []


def test_what_there_is_can_still_be_seen(looker: Visitor, channel: Any) -> None:
    channel.queue_declare("rights.seen")
    looker.open("/queues", "Queues")
    expect(looker.row("rights.seen")).to_be_visible()
    expect(looker.button("New queue")).to_have_attribute("aria-disabled", "true")
    looker.open("/connections", "Connections")
    close = looker.card("Connections").get_by_role("button", name="Close").first
    expect(close).to_have_attribute("aria-disabled", "true")
    looker.open("/exchanges", "Exchanges")
    expect(looker.button("New exchange")).to_have_attribute("aria-disabled", "true")
    looker.keep_picture("read-only")
    assert looker.complaints == []


def test_the_node_refuses_too_if_the_page_is_tricked(looker: Visitor, channel: Any) -> None:
    channel.queue_declare("rights.refused")
    looker.open("/queues", "Queues")
    delete = "(where) => import('/web/api.js').then((api) => api.del(where)).catch((error) => error.status)"
    assert looker.page.evaluate(delete, "/api/queues/%2F/rights.refused") == 403
    assert channel.queue_declare("rights.refused", passive=True).method.queue == "rights.refused"


def test_who_may_only_manage_sees_every_page_of_the_broker_without_an_error(
    visit: Callable[..., Visitor], api: httpx.Client
) -> None:
    api.put("/users/keeper", json={"password": "secret", "tags": "management"}).raise_for_status()
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    api.put("/permissions/%2F/keeper", json=everything).raise_for_status()
    keeper = visit().log_in("keeper", "secret")
    for place, heading in (("/", "Overview"), ("/queues", "Queues"), ("/exchanges", "Exchanges")):
        keeper.open(place, heading)
        expect(keeper.main.locator(".loading")).to_have_count(0)
    keeper.open("/connections", "Connections")
    expect(keeper.main.get_by_text("Your own connections")).to_be_visible()
    assert keeper.complaints == []


def test_management_user_sees_its_vhosts_on_the_overview(
    visit: Callable[..., Visitor], api: httpx.Client, channel: Any
) -> None:
    api.put("/vhosts/shop").raise_for_status()
    api.put("/queues/shop/orders", json={}).raise_for_status()
    message = {"routing_key": "orders", "payload": "order", "payload_encoding": "string", "properties": {}}
    for _ in range(3):
        api.post("/exchanges/shop/amq.default/publish", json=message).raise_for_status()
    channel.queue_declare("rights.elsewhere")
    channel.basic_publish("", "rights.elsewhere", b"order")
    api.put("/users/shopkeeper", json={"password": "secret", "tags": "management"}).raise_for_status()
    api.put("/permissions/shop/shopkeeper", json={"configure": "", "write": "", "read": ".*"}).raise_for_status()
    keeper = visit().log_in("shopkeeper", "secret")
    keeper.open("/", "Overview")
    expect(keeper.tile("Ready")).to_have_text("3")
    expect(keeper.tile("Queues")).to_have_text("1")
    expect(keeper.card("Messages in queues").locator(".legend")).to_contain_text("3")
    expect(keeper.main.get_by_text("Memory")).to_have_count(0)
    assert keeper.complaints == []
