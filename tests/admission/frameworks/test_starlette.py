"""Admission control in a Starlette application."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from flyball.admission.asgi import AdmissionMiddleware
from tests.admission.frameworks.checks import check
from tests.admission.serving import Database, found_in, on_uvloop


def make_site(database: Database) -> Starlette:
    async def item(request: Request) -> Response:
        database.query()
        return PlainTextResponse(f"item {request.path_params['item_id']}")

    # Not a coroutine: it runs in a thread.
    def bid_in_thread(request: Request) -> Response:
        database.query()
        return PlainTextResponse("item 7")

    async def bid(request: Request) -> Response:
        return PlainTextResponse(await request.body())

    async def error(request: Request) -> Response:
        return PlainTextResponse("sorry", 500)

    return Starlette(
        routes=[
            Route("/items/7", bid_in_thread),
            Route("/items/{item_id:int}", item),
            Route("/items", bid, methods=["POST"]),
            Route("/error", error),
        ]
    )


@on_uvloop
async def test_a_starlette_application_has_admission_control_after_three_lines() -> None:
    sensor = Database()
    app = make_site(sensor)
    app.add_middleware(AdmissionMiddleware, sensor=sensor, state_path="/admission")
    await check(app, found_in(app), sensor, "GET /items/{item_id}")


@on_uvloop
async def test_a_starlette_application_can_be_wrapped_from_outside() -> None:
    sensor = Database()
    app = AdmissionMiddleware(make_site(sensor), sensor=sensor, state_path="/admission")
    await check(app, app, sensor, "GET /items/{item_id}")
