"""Admission control in front of a Litestar application."""

from __future__ import annotations

from typing import Any

import litestar
from litestar import Litestar, MediaType, get, post
from litestar.params import FromPath

from flyball.admission.asgi import AdmissionMiddleware
from tests.admission.frameworks.checks import check
from tests.admission.serving import Database, on_uvloop


def make_site(database: Database) -> Litestar:
    @get("/items/{item_id:int}", media_type=MediaType.TEXT)
    async def item(item_id: FromPath[int]) -> str:
        database.query()
        return f"item {item_id}"

    @post("/items", media_type=MediaType.TEXT)
    async def bid(request: litestar.Request[Any, Any, Any]) -> bytes:
        return await request.body()

    @get("/error", media_type=MediaType.TEXT, status_code=500)
    async def error() -> str:
        return "sorry"

    return Litestar([item, bid, error], openapi_config=None)


@on_uvloop
async def test_a_litestar_application_has_admission_control_after_three_lines() -> None:
    sensor = Database()
    app = AdmissionMiddleware(make_site(sensor), sensor=sensor, state_path="/admission")
    await check(app, app, sensor, "GET /items/{item_id}")
