"""Admission: an application whose middleware reports, its classes, its pool, and its load against r."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest
from playwright.sync_api import expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from flyball.admission import AdmissionMiddleware, AdmissionOptions, Meter
from flyball.client.reporting import LoopReporter
from tests.broker.management.browser.background import in_background
from tests.broker.management.browser.test_overview import PIXELS
from tests.broker.management.browser.visitor import PHONE, Visitor
from tests.nodes import ServeProcess

REFERENCE = 500
POOL = 4
WORK_S = {"/small": 0.001, "/large": 0.02}


class Database:
    """A pool of connections, each held for as long as its work takes."""

    def __init__(self) -> None:
        self.meter = Meter()
        self.meter.size_of(self, POOL)

    async def work(self, request: Request) -> Response:
        hold = self.meter.ask()
        hold.got()
        try:
            await asyncio.sleep(WORK_S[request.url.path])
        finally:
            hold.end()
        return PlainTextResponse("done")


@asynccontextmanager
async def shop(node: ServeProcess) -> AsyncIterator[AdmissionMiddleware]:
    """An application with customers, each of which comes back as soon as it is served."""
    database = Database()
    guarded = AdmissionMiddleware(
        Starlette(routes=[Route(path, database.work) for path in WORK_S]),
        sensor=database,
        reporter=LoopReporter(f"http://guest:guest@{node.address('http')}", period_s=0.2),
        options=AdmissionOptions(reference=float(REFERENCE), name="shop"),
    )

    async def buy(customer: httpx.AsyncClient, path: str) -> None:
        while True:
            await customer.get(path)

    transport = httpx.ASGITransport(guarded)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop", timeout=None) as customer:
        async with asyncio.TaskGroup() as customers:
            tasks = [customers.create_task(buy(customer, path)) for path in WORK_S for _ in range(4)]
            yield guarded
            for task in tasks:
                task.cancel()
        await guarded.stop()


@pytest.fixture(scope="module")
def application(node: ServeProcess, api: httpx.Client) -> Iterator[str]:
    """The name under which the application is known."""
    with in_background(lambda: shop(node)):
        yield reported(api)


def reported(api: httpx.Client) -> str:
    while True:
        for found in api.get("/flyball/admission").json():
            # The classes are known after some requests.
            if found["name"].startswith("shop@") and len(found["classes"]) > 1 and found["load"] > 0:
                return str(found["name"])


def test_the_load_is_drawn_against_r_and_classes_tell_how_they_fare(visitor: Visitor, application: str) -> None:
    visitor.open("/admission", "Admission")
    card = visitor.card(application)
    legend = card.get_by_role("group", name=f"Load of {application} against its reference")
    expect(legend).to_contain_text(re.compile(rf"Load, busy ms/s\d.*Reference r{REFERENCE}Budget u\d"))
    expect(card).to_contain_text(re.compile(rf"Pool\d of {POOL} busy"))
    canvas = card.locator("canvas")
    visitor.page.wait_for_function(f"canvas => ({PIXELS})(canvas) > 300", arg=canvas.element_handle())
    rows = card.get_by_role("table", name="Classes").get_by_role("row")
    expect(rows).to_have_count(3)
    headings = rows.first.get_by_role("columnheader")
    for heading in ("Cost", "Odds", "Probability", "Waiting", "Arrivals"):
        expect(headings.filter(has_text=heading)).to_be_visible()
    dear = rows.filter(has_text="most expensive")
    expect(dear).to_contain_text(re.compile(r"\d ms"))
    expect(dear).to_contain_text(re.compile(r"\d /s"))
    visitor.keep_picture("admission")
    assert visitor.complaints == []


def test_one_application_shows_its_numbers_live_with_its_kinds_of_requests(
    visitor: Visitor, application: str
) -> None:
    visitor.open("/admission", "Admission")
    visitor.main.get_by_role("link", name=application).press("Enter")
    expect(visitor.page.get_by_role("heading", level=1, name=application)).to_be_visible()
    expect(visitor.tile("Reference r")).to_have_text(str(REFERENCE))
    expect(visitor.tile("Pool")).to_have_text(re.compile(rf"\d / {POOL}"))
    kinds = visitor.card("Kinds of requests")
    expect(kinds.get_by_role("row").filter(has_text="GET /large")).to_contain_text("ms")
    expect(kinds.get_by_role("row").filter(has_text="GET /small")).to_be_visible()
    served = visitor.card("Classes").locator("td[data-label=Served]").last
    expect(served).not_to_have_text(served.inner_text())
    visitor.keep_picture("admission-one")
    assert visitor.complaints == []


def test_its_loop_is_one_step_away_and_is_put_into_shadow_there(
    visitor: Visitor, application: str, api: httpx.Client
) -> None:
    visitor.open(f"/admission/{application}", application)
    visitor.main.get_by_role("link", name="Loop and certificate").click()
    expect(visitor.page.get_by_role("heading", level=1, name="admission of shop")).to_be_visible()
    for action, mark in (("Switch to shadow", "shadow: all requests start at once"), ("Activate", "active")):
        visitor.button(action).click()
        visitor.dialog.get_by_role("button", name=action).click()
        expect(visitor.dialog).to_have_count(0)
        visitor.open(f"/admission/{application}", application)
        expect(visitor.main.locator(".badges").first).to_contain_text(mark)
        visitor.open(f"/governor/admission.{application}", "admission of shop")
    assert visitor.complaints == []


def test_the_listings_of_the_node_are_shown_to_who_may_only_look(looker: Visitor, api: httpx.Client) -> None:
    [own] = [one["name"] for one in api.get("/flyball/admission").json() if one["place"] == "node"]
    looker.open("/admission", "Admission")
    expect(looker.card(own)).to_contain_text("listings of node")
    looker.open(f"/admission/{own}", own)
    expect(looker.main.get_by_text("No requests yet")).to_be_visible()
    assert looker.complaints == []


def test_an_application_that_is_not_there_is_told_with_advice(visitor: Visitor) -> None:
    visitor.open("/admission/nobody", "nobody")
    expect(visitor.main.get_by_role("alert").locator(".reason")).to_contain_text("nobody")
    assert visitor.own_complaints == []


def test_on_a_phone_it_fits(phone: Visitor, application: str) -> None:
    for place, heading, name in (("", "Admission", ""), (f"/{application}", application, "-one")):
        phone.open(f"/admission{place}", heading)
        expect(phone.main.locator(".loading")).to_have_count(0)
        phone.keep_picture(f"phone-admission{name}")
        assert phone.width() <= PHONE["width"]
    assert phone.complaints == []
