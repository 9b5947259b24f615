"""Admission control in a FastAPI application."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import PlainTextResponse

from flyball.admission.asgi import AdmissionMiddleware
from tests.admission.frameworks.checks import check
from tests.admission.serving import Database, ask, count, found_in, on_uvloop, serve


def make_site(database: Database) -> FastAPI:
    items = APIRouter(prefix="/items", default_response_class=PlainTextResponse)

    # Not a coroutine: it runs in a thread.
    @items.get("/{item_id}")
    def item(item_id: int) -> str:
        database.query()
        return f"item {item_id}"

    @items.post("")
    async def bid(request: Request) -> PlainTextResponse:
        return PlainTextResponse(await request.body())

    app = FastAPI()
    app.include_router(items)

    @app.get("/error")
    async def error() -> PlainTextResponse:
        return PlainTextResponse("sorry", 500)

    return app


@on_uvloop
async def test_a_fastapi_application_has_admission_control_after_three_lines() -> None:
    sensor = Database()
    app = make_site(sensor)
    app.add_middleware(AdmissionMiddleware, sensor=sensor, state_path="/admission")
    await check(app, found_in(app), sensor, "GET /items/{item_id}")


@on_uvloop
async def test_connection_returned_after_the_response_is_charged() -> None:
    sensor = Database()
    app = FastAPI()

    async def connection() -> AsyncIterator[None]:
        hold = sensor.take()
        yield
        hold.end()

    @app.get("/items")
    async def items(_: Annotated[None, Depends(connection)]) -> str:
        return "items"

    app.add_middleware(AdmissionMiddleware, sensor=sensor)
    guarded = found_in(app)
    async with serve(app) as port:
        await ask(port, "/items")
    assert guarded.admission.classifier.keys["GET /items"].mean > 0
    assert count(guarded.admission, "served") == 1
