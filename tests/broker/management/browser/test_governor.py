"""The governor: loops that run, drawn and explained, and switched by those who may."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from aio_pika import IncomingMessage
from playwright.sync_api import Locator, expect

from flyball.client.adaptive import AdaptiveConsumer, AdaptiveOptions, Rate, Window
from flyball.client.reporting import LoopReporter
from flyball.control.laws import ProportionalIntegral
from tests.broker.management.browser.background import in_background, meanwhile
from tests.broker.management.browser.test_overview import PIXELS
from tests.broker.management.browser.visitor import Visitor
from tests.broker.management.flyball_api.streams import FACTS, SHAKY
from tests.nodes import ServeProcess

SETPOINT = 50
ONLY = "Read-only access: only administrators may switch loops."
LOOK_AGAIN_MS = 20


async def handle(message: IncomingMessage) -> None:
    """Work that takes a while, so that there is a rate to see."""
    await asyncio.sleep(0.02)


def consumer_of(node: ServeProcess, queue: str, **options: Any) -> AdaptiveConsumer:
    """Return a consumer in shadow that reports to the node."""
    return AdaptiveConsumer(
        f"amqp://guest:guest@{node.address('amqp')}",
        queue,
        handle,
        Rate(SETPOINT),
        options=AdaptiveOptions(
            sample_time_s=0.2,
            is_shadow=True,
            concurrency=1,
            reporter=LoopReporter(f"http://guest:guest@{node.address('http')}", period_s=0.2),
            **options,
        ),
    )


@pytest.fixture(scope="module")
def gone(api: httpx.Client) -> str:
    """A loop whose process reported once, and then no more."""
    facts = {**FACTS, "title": "lost", "sample_time_s": 0.1}
    report = {"facts": facts, "samples": [{"at": 1.0, "setpoint": 400.0, "measurement": 390.0}]}
    api.post("/flyball/loops/lost@elsewhere/samples", json=report).raise_for_status()
    return "lost@elsewhere"


@pytest.fixture(scope="module")
def consumer(gone: str, node: ServeProcess, channel: Any) -> Iterator[AdaptiveConsumer]:
    channel.queue_declare("governor.orders", durable=True)
    with in_background(lambda: consumer_of(node, "governor.orders")) as running:
        yield running


@pytest.fixture(scope="module")
def loop(consumer: AdaptiveConsumer, api: httpx.Client) -> dict[str, Any]:
    return reported(api, "governor.orders")


def reported(api: httpx.Client, title: str) -> dict[str, Any]:
    """Return a loop once it has reported."""
    while True:
        for found in api.get("/flyball/loops").json():
            if found["title"] == title and found["last"] is not None:
                return dict(found)


def opened(visitor: Visitor, loop: dict[str, Any]) -> Visitor:
    return visitor.open(f"/governor/{loop['name']}", loop["title"])


def marks(visitor: Visitor) -> Locator:
    return visitor.main.locator(".badges").first


def test_running_loops_are_drawn_with_setpoint_measurement_and_action(visitor: Visitor, loop: dict[str, Any]) -> None:
    visitor.open("/governor", "Governor")
    card = visitor.card("governor.orders")
    expect(card).to_contain_text("shadow")
    expect(card).to_contain_text("certified stable")
    expect(card.get_by_role("group", name="governor.orders: measurement and setpoint")).to_contain_text(
        re.compile(rf"Measurement\d.*Setpoint{SETPOINT}")
    )
    expect(card.get_by_role("group", name="governor.orders: action")).to_contain_text(re.compile(r"Action\d"))
    canvas = card.locator("canvas").first
    canvas.scroll_into_view_if_needed()
    visitor.page.wait_for_function(f"canvas => ({PIXELS})(canvas) > 200", arg=canvas.element_handle())
    visitor.keep_picture("governor")
    assert visitor.complaints == []


def test_what_a_loop_draws_comes_live(visitor: Visitor, loop: dict[str, Any], new_channel: Callable[[], Any]) -> None:
    opened(visitor, loop)
    # Another tile speaks of the setpoint, too.
    setpoint = visitor.page.locator("li.tile", has=visitor.page.get_by_text("Setpoint", exact=True))
    expect(setpoint.locator(".value")).to_have_text(str(SETPOINT))
    expect(visitor.tile("Measurement")).to_have_text("0")
    publishing = new_channel()
    with meanwhile(lambda: publishing.basic_publish("", "governor.orders", b"order")):
        expect(visitor.tile("Measurement")).not_to_have_text("0")
    assert visitor.complaints == []


def test_a_loop_tells_its_law_limits_and_certificate_in_words(visitor: Visitor, loop: dict[str, Any]) -> None:
    opened(visitor, loop)
    law = visitor.card("Law")
    expect(law).to_contain_text("Multiplicative")
    expect(law).to_contain_text("exponent = 0.5")
    expect(law).to_contain_text(re.compile(r"Limits of the action\d.* to \d.* messages/s"))
    proof = visitor.card("Certificate")
    expect(proof).to_contain_text("Stable, with sufficient margins")
    expect(proof).to_contain_text("The plant's gain may be 4 times the estimate before the loop oscillates")
    expect(proof).to_contain_text(re.compile(r"The delay may be .+ samples? \(.+ ms\) longer than estimated"))
    expect(proof).to_contain_text("without a model")
    visitor.keep_picture("governor-loop")
    assert visitor.complaints == []


def test_a_loop_is_made_active_after_a_question_and_put_back(
    visitor: Visitor, loop: dict[str, Any], consumer: AdaptiveConsumer, api: httpx.Client
) -> None:
    opened(visitor, loop)
    visitor.button("Activate").click()
    expect(visitor.dialog).to_contain_text("It then controls, every 200 ms: rate at which handlers start")
    visitor.dialog.get_by_role("button", name="Cancel").click()
    expect(marks(visitor)).to_contain_text("shadow")
    visitor.button("Activate").press("Enter")
    visitor.keep_picture("governor-question")
    visitor.dialog.get_by_role("button", name="Activate").click()
    expect(visitor.toast("is active")).to_be_visible()
    expect(marks(visitor)).to_contain_text("active")
    expect(marks(visitor)).not_to_contain_text("wanted")
    # The loop reports the change before it acts on it.
    while consumer.state.pace_per_s is None:
        visitor.page.wait_for_timeout(LOOK_AGAIN_MS)
    visitor.button("Switch to shadow").click()
    visitor.dialog.get_by_role("button", name="Switch to shadow").click()
    expect(visitor.main.get_by_text("Shadow mode: it measures")).to_be_visible()
    assert api.get(f"/flyball/loops/{loop['name']}").json()["is_shadow"]
    assert visitor.complaints == []


def test_a_loop_without_a_certificate_cannot_be_made_active_and_says_why(
    visitor: Visitor, node: ServeProcess, channel: Any, api: httpx.Client
) -> None:
    queue = "governor.unproved"
    channel.queue_declare(queue, durable=True)
    law = ProportionalIntegral(0.1, 0.1)
    with in_background(lambda: consumer_of(node, queue, actuator=Window(), law=law)):
        opened(visitor, reported(api, queue))
        button = visitor.button("Activate")
        expect(button).to_have_attribute("aria-disabled", "true")
        expect(button).to_have_accessible_description(re.compile("without a stability certificate"))
        expect(visitor.card("Certificate")).to_contain_text("This loop has no proof of stability")
        button.press("Enter")
        expect(visitor.toast("flyball control design")).to_be_visible()
        assert visitor.dialog.count() == 0
    assert visitor.complaints == []


def test_a_certificate_that_is_not_sound_tells_its_reason(visitor: Visitor, api: httpx.Client) -> None:
    report = {"facts": {**FACTS, "title": "shaky", "certificate": SHAKY}, "is_shadow": True}
    api.post("/flyball/loops/shaky/samples", json=report).raise_for_status()
    visitor.open("/governor/shaky", "shaky")
    expect(visitor.card("Certificate")).to_contain_text("Not proven stable: the loop may oscillate")
    expect(visitor.card("Certificate")).to_contain_text("below 2")
    expect(visitor.button("Activate")).to_have_accessible_description(re.compile("no stability"))


def test_a_loop_that_protects_the_node_cannot_be_switched_and_says_why(visitor: Visitor, api: httpx.Client) -> None:
    [own] = [found for found in api.get("/flyball/loops").json() if found["title"] == "memory"]
    opened(visitor, own)
    expect(visitor.main.locator(".notice").filter(has_text="it keeps the node from running out")).to_be_visible()
    expect(visitor.button("Switch to shadow")).to_have_attribute("aria-disabled", "true")
    expect(visitor.main.get_by_text("Idle: there is nothing to control")).to_be_visible()
    assert visitor.complaints == []


def test_a_loop_of_the_node_itself_is_switched(visitor: Visitor, api: httpx.Client) -> None:
    [own] = [found for found in api.get("/flyball/loops").json() if found["name"].endswith(".listings")]
    opened(visitor, own)
    for action, is_shadow in (("Switch to shadow", True), ("Activate", False)):
        visitor.button(action).click()
        visitor.dialog.get_by_role("button", name=action).click()
        expect(visitor.button("Activate" if is_shadow else "Switch to shadow")).to_be_visible()
        assert api.get(f"/flyball/loops/{own['name']}").json()["is_shadow"] is is_shadow
    assert visitor.complaints == []


def test_who_may_only_look_cannot_switch(looker: Visitor, loop: dict[str, Any], api: httpx.Client) -> None:
    opened(looker, loop)
    button = looker.button("Activate")
    expect(button).to_have_accessible_description(ONLY)
    button.press("Enter")
    expect(looker.toast(ONLY)).to_be_visible()
    assert looker.dialog.count() == 0
    assert api.get(f"/flyball/loops/{loop['name']}").json()["wanted_mode"] != "active"
    assert looker.complaints == []
    switch = "(where) => import('/web/api.js').then((api) => api.put(where, {mode: 'active'})).catch((e) => e.status)"
    assert looker.page.evaluate(switch, f"/api/flyball/loops/{loop['name']}/mode") == 403


def test_a_user_without_the_tag_is_told_so_and_stays_connected(
    visit: Callable[..., Visitor], manager: tuple[str, str]
) -> None:
    visitor = visit().log_in(*manager)
    for place, heading in (("/governor", "Governor"), ("/admission", "Admission"), ("/domain", "Domain")):
        visitor.open(place, heading)
        expect(visitor.main.get_by_text("It requires the tag “monitoring”")).to_be_visible()
    expect(visitor.page.get_by_role("status").filter(has_text="Live")).to_be_visible()
    assert visitor.complaints == []


def test_a_loop_that_is_not_there_is_told_with_advice(visitor: Visitor) -> None:
    visitor.open("/governor/no%20such%20loop", "no such loop")
    expect(visitor.main.get_by_role("alert").locator(".reason")).to_contain_text("no such loop")
    assert visitor.own_complaints == []


def test_loops_are_found_by_name(visitor: Visitor, loop: dict[str, Any]) -> None:
    visitor.open("/governor", "Governor")
    expect(visitor.card("memory")).to_be_visible()
    visitor.page.keyboard.press("/")
    visitor.page.keyboard.type("governor.ord")
    expect(visitor.main.get_by_role("listitem").filter(has=visitor.page.get_by_role("heading"))).to_have_count(1)
    visitor.page.keyboard.type("no such")
    expect(visitor.main.get_by_text("Nothing matches “governor.ordno such”")).to_be_visible()


def test_a_loop_that_reports_no_more_is_grey_and_cannot_be_switched(visitor: Visitor, gone: str) -> None:
    visitor.open("/governor", "Governor")
    expect(visitor.card("lost")).to_have_class(re.compile(r"\bgone\b"))
    expect(visitor.card("lost")).to_contain_text("Last report")
    visitor.open(f"/governor/{gone}", "lost")
    expect(visitor.main.get_by_text("Not reporting since")).to_be_visible()
    expect(visitor.button("Switch to shadow")).to_have_accessible_description(re.compile("not reporting"))
    visitor.keep_picture("governor-gone")
    assert visitor.complaints == []
