"""The middleware and WebSockets on a real server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from flyball.admission import AdmissionOptions
from flyball.admission.asgi import AdmissionMiddleware
from tests.admission.serving import Database, count, on_uvloop, serve, until, waiting


async def echo(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text(await socket.receive_text())
    await socket.close()


def make_guarded(database: Database, **options: Any) -> AdmissionMiddleware:
    app = Starlette(routes=[WebSocketRoute("/rooms/{name}", echo)])
    return AdmissionMiddleware(app, sensor=database, options=AdmissionOptions(**options))


@on_uvloop
async def test_a_websocket_is_a_stream_from_its_handshake_to_its_end() -> None:
    guarded = make_guarded(Database())
    async with serve(guarded, ws="websockets-sansio") as port:
        async with connect(f"ws://127.0.0.1:{port}/rooms/tea") as socket:
            await until(lambda: guarded.admission.streams == 1)
            await socket.send("hello")
            assert await socket.recv() == "hello"
        await until(lambda: guarded.admission.streams == 0)
    assert count(guarded.admission, "served") == 1
    assert guarded.admission.in_flight == 0


@on_uvloop
async def test_a_websocket_that_may_not_begin_is_answered_with_503() -> None:
    database = Database()
    database.take()
    async with serve(make_guarded(database, deadline_s=0.05), ws="websockets-sansio") as port:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://127.0.0.1:{port}/rooms/tea")
    assert refused.value.response.status_code == 503
    assert int(refused.value.response.headers["retry-after"]) >= 1


@on_uvloop
async def test_a_websocket_that_goes_away_before_its_handshake_leaves_the_queue() -> None:
    database = Database()
    database.take()
    guarded = make_guarded(database, deadline_s=3600)
    async with serve(guarded, ws="websockets-sansio") as port:
        connecting = asyncio.ensure_future(_connected(port))
        await until(lambda: waiting(guarded.admission) == 1)
        connecting.cancel()
        await until(lambda: count(guarded.admission, "left") == 1)
    assert waiting(guarded.admission) == 0


async def _connected(port: int) -> ClientConnection:
    return await connect(f"ws://127.0.0.1:{port}/rooms/tea", open_timeout=None)
