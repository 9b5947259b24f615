"""The page of models: what is in force where, its history, and what an administrator changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import StorageState, expect

from tests.broker.management.browser.visitor import PHONE, Visitor
from tests.broker.models import documents


def publish(api: httpx.Client, kind: str, scope: str, document: dict[str, Any], **fields: Any) -> None:
    place = f"/flyball/models/{kind}/{quote(scope, safe='')}/versions"
    body = {"document": document, "evidence": documents.evidence(), "state": "in_force", **fields}
    api.post(place, json=body).raise_for_status()


def open_model(visitor: Visitor, kind: str, scope: str) -> Visitor:
    return visitor.open(f"/models/{kind}/{quote(scope, safe='')}", scope)


def test_empty_page_says_how_to_publish(visitor: Visitor) -> None:
    visitor.open("/models", "Models")
    expect(visitor.main).to_contain_text("No models yet")
    expect(visitor.main).to_contain_text("flyball model import capacity queue:NAME capacity.json")
    assert visitor.complaints == []


def test_list_shows_what_is_in_force_and_why_the_previous_one_went(visitor: Visitor, api: httpx.Client) -> None:
    publish(api, "capacity", "queue:listed", documents.capacity(0.1))
    publish(api, "capacity", "queue:listed", documents.capacity(0.2), reason="weights fitted again")
    publish(api, "capacity", "queue:listed", documents.capacity(0.3), state="shadow")
    publish(api, "design", "loop:forced", documents.design(is_sound=False), force=True)
    visitor.open("/models", "Models")
    row = visitor.row("queue:%2F/listed")
    for text in ("version 2", "in force", "version 3 in shadow", "producer weight 0.2", "file:///traces/a", "5,000"):
        expect(row).to_contain_text(text)
    expect(row).to_contain_text("version 1: version 2 took over: weights fitted again")
    forced = visitor.row("loop:forced")
    for text in ("forced", "not sound"):
        expect(forced).to_contain_text(text)
    expect(visitor.tile("Forced")).to_have_text("1")
    visitor.keep_picture("models")
    row.get_by_role("link").click()
    expect(visitor.page.get_by_role("heading", level=1, name="queue:%2F/listed")).to_be_visible()
    assert visitor.complaints == []


def test_page_of_a_model_shows_evidence_and_changes(visitor: Visitor, api: httpx.Client) -> None:
    publish(api, "capacity", "queue:shown", documents.capacity(0.1))
    publish(api, "capacity", "queue:shown", documents.capacity(0.15), reason="fitted again")
    open_model(visitor, "capacity", "queue:%2F/shown")
    present = visitor.card("In force")
    for text in ("version 2", "fitted again", "1 of 1 test passed", "drift"):
        expect(present).to_contain_text(text)
    difference = visitor.card("Changes of parameters").get_by_role("row").filter(has_text="producer_weight")
    for text in ("0.1", "0.15", "+50.0 %"):
        expect(difference).to_contain_text(text)
    expect(visitor.card("Log").get_by_role("listitem")).to_have_count(3)
    with visitor.page.expect_download() as saved:
        visitor.card("Versions").get_by_role("link", name="Download version 1").click()
    assert "producer_weight" in saved.value.path().read_text()
    visitor.keep_picture("model")
    assert visitor.complaints == []


def test_administrator_pins_rolls_back_and_forces(visitor: Visitor, api: httpx.Client) -> None:
    publish(api, "capacity", "queue:changed", documents.capacity(0.1))
    publish(api, "capacity", "queue:changed", documents.capacity(0.2))
    open_model(visitor, "capacity", "queue:%2F/changed")
    visitor.button("Pin").click()
    visitor.dialog.get_by_label("Reason").fill("end of year")
    visitor.dialog.get_by_role("button", name="Pin").click()
    expect(visitor.toast("Version 2 is pinned")).to_be_visible()
    expect(visitor.main).to_contain_text("no other version takes over until it is unpinned")
    expect(visitor.button("Roll back")).to_have_attribute("aria-disabled", "true")
    visitor.button("Unpin").click()
    visitor.dialog.get_by_role("button", name="Unpin").click()
    expect(visitor.toast("no longer pinned")).to_be_visible()
    visitor.button("Roll back").click()
    expect(visitor.dialog).to_contain_text("Version 1 returns")
    visitor.dialog.get_by_label("Reason").fill("members are overloaded")
    visitor.dialog.get_by_role("button", name="Roll back").click()
    expect(visitor.toast("Version 2 was rolled back")).to_be_visible()
    versions = visitor.card("Versions")
    expect(versions.get_by_role("row").filter(has_text="quarantined")).to_contain_text("members are overloaded")
    versions.get_by_role("button", name="Put in force").click()
    expect(visitor.dialog).to_contain_text("It will be marked as forced")
    visitor.dialog.get_by_role("button", name="Force it").click()
    expect(visitor.toast("Version 2 is in force")).to_be_visible()
    expect(visitor.main).to_contain_text("an operator forced it")
    assert visitor.complaints == []


def test_change_that_is_refused_is_shown_in_the_dialog(visitor: Visitor, api: httpx.Client) -> None:
    publish(api, "capacity", "queue:refused", documents.capacity(0.1))
    open_model(visitor, "capacity", "queue:%2F/refused")
    visitor.button("Roll back").click()
    # Another administrator has done it meanwhile.
    api.post("/flyball/models/capacity/queue%3Arefused/rollback", json={}).raise_for_status()
    visitor.dialog.get_by_role("button", name="Roll back").click()
    expect(visitor.dialog.get_by_role("alert")).to_contain_text("is not in force: read it again")
    visitor.dialog.get_by_role("button", name="Cancel").click()
    assert visitor.own_complaints == []


def test_reader_sees_models_and_changes_none(looker: Visitor, api: httpx.Client) -> None:
    publish(api, "capacity", "queue:read", documents.capacity(0.1))
    open_model(looker, "capacity", "queue:%2F/read")
    for name in ("Pin", "Roll back"):
        expect(looker.button(name)).to_have_attribute("aria-disabled", "true")
    looker.button("Pin").press("Enter")
    expect(looker.toast("only administrators may change models")).to_be_visible()
    assert looker.complaints == []


def test_model_that_is_gone_is_reported(visitor: Visitor) -> None:
    visitor.open("/models/capacity/queue%3Anothing", "capacity of queue:nothing")
    expect(visitor.main.get_by_role("alert")).to_contain_text("No capacity model for scope")


def test_pages_fit_on_a_phone(phone: Visitor, api: httpx.Client) -> None:
    scope = "queue:phone-a-queue-with-quite-a-long-name-that-does-not-fit-on-a-small-screen"
    publish(api, "capacity", scope, documents.capacity(0.1))
    publish(api, "capacity", scope, documents.capacity(0.2), reason="a-reason-without-any-space-" * 8)
    phone.open("/models", "Models")
    expect(phone.row("phone-a-queue")).to_be_visible()
    phone.keep_picture("phone-models")
    assert phone.width() <= PHONE["width"]
    open_model(phone, "capacity", scope.replace("queue:", "queue:%2F/"))
    expect(phone.card("Changes of parameters").get_by_role("row").first).to_be_visible()
    phone.keep_picture("phone-model")
    assert phone.width() <= PHONE["width"]
    assert phone.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_follows_the_colours(
    visit: Callable[..., Visitor], session: StorageState, api: httpx.Client, scheme: str
) -> None:
    publish(api, "capacity", "queue:coloured", documents.capacity(0.1))
    publish(api, "capacity", "queue:coloured", documents.capacity(0.2))
    visitor = visit(color_scheme=scheme, storage_state=session)
    open_model(visitor, "capacity", "queue:%2F/coloured")
    expect(visitor.card("Changes of parameters")).to_contain_text("+100.0 %")
    visitor.keep_picture(f"model-{scheme}")
    assert visitor.complaints == []
