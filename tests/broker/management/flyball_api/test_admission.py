"""The console shows admission control: the node's own, and that of applications that report theirs."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from flyball.admission import Admission, AdmissionMiddleware, AdmissionOptions, Meter
from flyball.admission.state import loop_facts_of, state_of
from flyball.broker.management.flyball_api import admission as module
from flyball.client.reporting import LoopReporter
from tests.broker.management.metrics.scrapes import scrape
from tests.nodes import ANSWER_LIMIT_S, RunningNode

Users = dict[str, tuple[str, str]]


class Sensor:
    def __init__(self) -> None:
        self.meter = Meter()


def told(name: str = "shop", **others: Any) -> dict[str, Any]:
    admission = Admission(Sensor(), options=AdmissionOptions(reference=1000.0, name=name))
    return {**state_of(admission), "facts": {**loop_facts_of(admission), "client": "host-1"}, **others}


def test_admission_of_the_nodes_listings_is_shown(api: httpx.Client) -> None:
    [found] = api.get("/admission").json()
    assert (found["name"], found["node"], found["place"], found["state"]) == (
        "north.listings",
        "north",
        "node",
        "running",
    )
    assert (found["unit"], found["reference"]) == ("ms", {"value": 750.0, "state": "fixed"})
    assert found["classes"]
    assert "keys" not in found
    whole = api.get("/admission/north.listings").json()
    assert whole["keys"] == {}
    assert whole["history"][-1]["reference"] == 750.0


def test_an_application_that_reports_is_shown_and_is_a_loop_as_well(api: httpx.Client) -> None:
    assert api.post("/admission/shop", json=told()).json() == {"mode": None}
    api.post("/admission/shop", json=told(load=900.0))
    found = api.get("/admission/shop").json()
    assert (found["place"], found["client"], found["load"]) == ("client", "host-1", 900.0)
    assert [row["load"] for row in found["history"]] == [0.0, 900.0]
    loop = api.get("/loops/admission.shop").json()
    assert (loop["title"], loop["last"]["measurement"], loop["certificate"]["is_sound"]) == (
        "admission of shop",
        900.0,
        True,
    )
    assert api.put("/loops/admission.shop/mode", json={"mode": "shadow"}).status_code == 200
    assert api.post("/admission/shop", json=told()).json() == {"mode": "shadow"}


A_CLASS = told()["classes"][0]


@pytest.mark.parametrize(
    "document",
    [
        {},
        told(load="much"),
        told(in_flight=10**400),
        told(classes=[{}]),
        told(classes=[{"waiting": 0}]),
        told(classes=[A_CLASS, A_CLASS]),
        told(classes=[{**A_CLASS, "class": number} for number in range(101)]),
        told(colour="red"),
        told(facts={}),
    ],
)
def test_a_report_that_is_none_is_refused(api: httpx.Client, document: dict[str, Any]) -> None:
    refused = api.post("/admission/shop", json=document)
    assert (refused.status_code, bool(refused.json()["reason"])) == (400, True)
    assert api.get("/admission/shop").status_code == 404


def test_what_an_application_reports_is_scraped_as_what_the_node_has_itself(
    api: httpx.Client, node: RunningNode
) -> None:
    api.post("/admission/shop", json=told(classes=[A_CLASS, {**A_CLASS, "class": 1.0}])).raise_for_status()
    found = scrape(node.address("http"))
    assert found.value("flyball_admission_waiting", admission="shop", class_="1") == 0


def test_only_those_with_the_right_see_and_report(api: httpx.Client, users: Users) -> None:
    def status(user: str, method: str, path: str, body: Any = None) -> int:
        return api.request(method, path, json=body, auth=users[user]).status_code

    assert [status(user, "GET", "/admission") for user in users] == [401, 401, 200]
    assert [status(user, "GET", "/admission/north.listings") for user in users] == [401, 401, 200]
    assert [status(user, "POST", f"/admission/of-{user}", told()) for user in users] == [401, 200, 200]
    assert status("monitoring", "POST", "/admission/of-management", told()) == 401, "it is another user's"


def test_so_many_applications_and_no_more(api: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ADMISSIONS", 2)
    assert api.post("/admission/first", json=told()).status_code == 200
    assert api.post("/admission/second", json=told()).status_code == 429


def test_a_real_application_reports_and_is_switched(api: httpx.Client, node: RunningNode) -> None:
    async def hello(request: Request) -> Response:
        return PlainTextResponse("hello")

    async def run() -> None:
        async with asyncio.timeout(ANSWER_LIMIT_S):
            await scenario()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    async def scenario() -> None:
        reporter = LoopReporter(f"http://guest:guest@{node.address('http')}", period_s=0.02)
        guarded = AdmissionMiddleware(
            Starlette(routes=[Route("/", hello)]),
            sensor=Sensor(),
            reporter=reporter,
            options=AdmissionOptions(name="shop"),
        )
        transport = httpx.ASGITransport(guarded)
        base = api.base_url
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://shop") as customer,
            httpx.AsyncClient(base_url=str(base), auth=("guest", "guest"), timeout=ANSWER_LIMIT_S) as console,
        ):
            assert (await customer.get("/")).text == "hello"
            name = await until_reported(console)
            await console.put(f"/loops/admission.{name}/mode", json={"mode": "shadow"})
            while not guarded.admission.is_shadow:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert (await customer.get("/")).text == "hello"
            await console.put(f"/loops/admission.{name}/mode", json={"mode": "active"})
            while guarded.admission.is_shadow:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await guarded.stop()

    async def until_reported(console: httpx.AsyncClient) -> str:
        while True:
            for found in (await console.get("/admission")).json():
                if found["name"].startswith("shop@"):
                    return str(found["name"])

    asyncio.run(run())
