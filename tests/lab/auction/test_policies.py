"""Policies by name: each lets visitors in, and records what became of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, get_args

import pyarrow.parquet as pq
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Message

from flyball.admission.asgi import AdmissionMiddleware
from flyball.admission.keys import starlette_key
from flyball.admission.recording import Recording
from flyball.admission.sensors.psycopg import PsycopgSensor
from flyball.errors import AdmissionError
from flyball.lab.auction.policies import Guarded, guarded
from flyball.lab.auction.settings import CONTROLLED, Policy, SiteSettings

PROFILE = {
    "version": 1,
    "kind": "profile",
    "unit": "ms",
    "classes": [{"class": 0, "mean": 1.0, "below": 10.0}, {"class": 1, "mean": 50.0, "below": None}],
    "keys": {"GET /items/{item_id}": {"requests": 9, "mean": 50.0, "sd": 1.0, "class": 1}},
}


async def item(request: Request) -> PlainTextResponse:
    return PlainTextResponse("an item")


def put_before(settings: SiteSettings, records: Recording) -> Guarded:
    site = Starlette(routes=[Route("/items/{item_id}", item)])
    return guarded(site, starlette_key(site), PsycopgSensor(), settings, records)


async def status_of(made: Guarded, path: str) -> int:
    messages: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        messages.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b"", "root_path": ""}
    await made.app(scope, receive, send)
    return int(messages[0]["status"])


@pytest.mark.parametrize("policy", get_args(Policy))
def test_every_policy_serves_and_records_whoever_comes_alone(policy: Any, tmp_path: Path) -> None:
    async def main() -> int:
        records = Recording(tmp_path, "node-1")
        records.start()
        made = put_before(SiteSettings(policy=policy, profile=PROFILE, reference=1000), records)
        assert (made.sampler is None) == (policy in CONTROLLED)
        try:
            return await status_of(made, "/items/7")
        finally:
            if isinstance(made.app, AdmissionMiddleware):
                made.app.admission.stop()
            records.stop()

    assert asyncio.run(main()) == 200
    (rows,) = [pq.read_table(path).to_pylist() for path in tmp_path.glob("admissions-*.parquet")]
    assert [(row["key"], row["outcome"]) for row in rows] == [("GET /items/{item_id}", "served")]


def test_the_limit_of_uvicorn_is_the_servers_to_keep(tmp_path: Path) -> None:
    made = put_before(SiteSettings(policy="uvicorn", limit=33), Recording(tmp_path, "node-1"))
    assert made.server_options == {"limit_concurrency": 33}


def test_a_profile_in_another_unit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AdmissionError, match=r"counts cost in .*ms"):
        put_before(SiteSettings(policy="dps", profile=PROFILE, unit="connections"), Recording(tmp_path, "node-1"))
