"""Entering and leaving the console."""

from __future__ import annotations

from collections.abc import Callable

import httpx
from playwright.sync_api import StorageState, expect

from tests.broker.management.browser.visitor import Visitor
from tests.nodes import ANSWER_LIMIT_S


def test_wrong_password_is_refused_and_the_right_one_opens_the_overview(
    visit: Callable[..., Visitor],
) -> None:
    visitor = visit()
    visitor.page.goto(visitor.base)
    assert visitor.complaints == []
    visitor.keep_picture("login")
    visitor.fill_log_in("guest", "wrong")
    expect(visitor.page.get_by_role("alert")).to_contain_text("password")
    visitor.fill_log_in("guest", "guest")
    expect(visitor.page.get_by_role("heading", level=1, name="Overview")).to_be_visible()
    assert visitor.own_complaints == []


def test_a_session_outlives_a_reload_and_ends_with_the_log_out(visit: Callable[..., Visitor]) -> None:
    visitor = visit().log_in()
    visitor.open("/queues", "Queues")
    visitor.page.reload()
    expect(visitor.page.get_by_role("heading", level=1, name="Queues")).to_be_visible()
    cookies = {cookie["name"]: cookie["value"] for cookie in visitor.context.cookies()}
    visitor.page.get_by_role("button", name="Log out").click()
    expect(visitor.page.get_by_role("button", name="Log in")).to_be_visible()
    assert httpx.get(f"{visitor.base}/api/whoami", cookies=cookies, timeout=ANSWER_LIMIT_S).status_code == 401
    visitor.page.reload()
    expect(visitor.page.get_by_role("button", name="Log in")).to_be_visible()
    assert visitor.complaints == []


def test_a_session_that_has_ended_asks_to_log_in_and_goes_on_where_one_was(
    visit: Callable[..., Visitor], session: StorageState
) -> None:
    visitor = visit(storage_state=session).open("/queues", "Queues")
    visitor.context.clear_cookies()
    visitor.page.get_by_role("link", name="Exchanges").click()
    expect(visitor.page.get_by_text("Your session has ended")).to_be_visible()
    visitor.fill_log_in("guest", "guest")
    expect(visitor.page.get_by_role("heading", level=1, name="Exchanges")).to_be_visible()
    expect(visitor.page.get_by_text("Live", exact=True)).to_be_visible()
    expect(visitor.main.locator(".loading")).to_have_count(0)
    visitor.context.clear_cookies()
    visitor.page.reload()
    expect(visitor.page.get_by_text("Your session has ended")).to_be_visible()
    assert visitor.own_complaints == []


def test_a_user_without_a_tag_is_told_which_one_is_missing(visit: Callable[..., Visitor], api: httpx.Client) -> None:
    api.put("/users/nobody", json={"password": "secret", "tags": ""}).raise_for_status()
    visitor = visit()
    visitor.page.goto(visitor.base)
    visitor.fill_log_in("nobody", "secret")
    expect(visitor.page.get_by_text("it needs the tag “monitoring”")).to_be_visible()
    visitor.page.reload()
    expect(visitor.page.get_by_role("button", name="Log in")).to_be_visible()
    assert visitor.own_complaints == []


def test_an_address_that_is_none_leads_back(visitor: Visitor) -> None:
    visitor.page.goto(f"{visitor.base}/#/nowhere")
    visitor.page.get_by_role("link", name="Go to the overview").click()
    expect(visitor.page.get_by_role("heading", level=1, name="Overview")).to_be_visible()
    visitor.page.goto(f"{visitor.base}/nowhere")
    visitor.page.get_by_role("link", name="Open the console").click()
    expect(visitor.page.get_by_role("heading", level=1, name="Overview")).to_be_visible()
