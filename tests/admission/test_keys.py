"""Keys: few of them, whatever clients ask for."""

from __future__ import annotations

from typing import Any

import litestar
import pytest
from fastapi import APIRouter, FastAPI
from hypothesis import given
from hypothesis import strategies as st
from litestar import Litestar, get, websocket
from litestar.params import FromPath
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Host, Mount, Route, Router, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket

from flyball.admission.keys import RouteKey, key_for, litestar_key, path_key, path_of, starlette_key


def scope_of(path: str, method: str | None = "GET", root_path: str = "") -> dict[str, Any]:
    if method is None:
        return {"type": "websocket", "path": path, "root_path": root_path}
    return {"type": "http", "method": method, "path": path, "root_path": root_path}


@pytest.mark.parametrize(
    ("path", "template"),
    [
        ("/", "/"),
        ("/items", "/items"),
        ("/items/", "/items/"),
        ("/items/17", "/items/{}"),
        ("/items/17/bids/4", "/items/{}/bids/{}"),
        ("/v2/items", "/v2/items"),
        ("/users/0f8fad5b-d9cb-469f-a165-70867728950e", "/users/{}"),
        ("/blobs/9e107d9d372bb6826bd81d3542a419d6", "/blobs/{}"),
        ("/facade", "/facade"),
        ("/defaced/effaced", "/defaced/effaced"),
        ("/tokens/" + "x" * 41, "/tokens/{}"),
    ],
)
def test_what_identifies_a_thing_in_a_path_is_left_out(path: str, template: str) -> None:
    assert path_key(scope_of(path)) == f"GET {template}"


@given(st.lists(st.text(st.characters(exclude_characters="/"), max_size=100), max_size=50))
def test_a_key_is_short_however_long_the_path(segments: list[str]) -> None:
    assert len(path_key(scope_of("/" + "/".join(segments)))) < 500


def test_head_has_the_key_of_get_and_methods_that_clients_invent_share_one() -> None:
    assert path_key(scope_of("/items", "HEAD")) == "GET /items"
    assert path_key(scope_of("/items", "BREW")) == path_key(scope_of("/items", "STEEP")) == "OTHER /items"


def test_websockets_have_keys_of_their_own() -> None:
    assert path_key(scope_of("/chat/7", None)) == "WEBSOCKET /chat/{}"


def test_where_the_application_is_mounted_is_no_part_of_the_key() -> None:
    assert path_key(scope_of("/shop/items", root_path="/shop")) == "GET /items"
    assert path_key(scope_of("/shop", root_path="/shop")) == "GET /"


async def endpoint(request: Request) -> Response:
    return Response()


async def socket_endpoint(socket: WebSocket) -> None: ...


@pytest.fixture
def shop() -> Starlette:
    return Starlette(
        routes=[
            Route("/items/new", endpoint),
            Route("/items/{item_id:int}", endpoint),
            Route("/items/{item_id:int}", endpoint, methods=["DELETE"]),
            Route("/users/{name}", endpoint),
            WebSocketRoute("/users/{name}", socket_endpoint),
            Mount("/admin", routes=[Route("/{page}", endpoint), Mount("/logs", routes=[Route("/{day}", endpoint)])]),
            Mount("/static", app=StaticFiles(directory=".")),
            Host("api.test", app=Router([Route("/status", endpoint)])),
        ]
    )


@pytest.mark.parametrize(
    ("path", "method", "key"),
    [
        ("/items/new", "GET", "GET /items/new"),
        ("/items/17", "GET", "GET /items/{item_id}"),
        ("/items/17", "HEAD", "GET /items/{item_id}"),
        ("/items/17", "DELETE", "DELETE /items/{item_id}"),
        ("/users/ada", "GET", "GET /users/{name}"),
        ("/users/ada", None, "WEBSOCKET /users/{name}"),
        ("/admin/users", "GET", "GET /admin/{page}"),
        ("/admin/logs/monday", "GET", "GET /admin/logs/{day}"),
        ("/static/style.css", "GET", "GET /static/{path}"),
        ("/status", "GET", "GET /status"),
        ("/wp-login.php", "GET", "GET (no route)"),
        ("/items/17", "OPTIONS", "OPTIONS (no route)"),
        ("/items/seventeen", "GET", "GET (no route)"),
    ],
)
def test_a_starlette_application_has_a_key_for_each_route(
    shop: Starlette, path: str, method: str | None, key: str
) -> None:
    key_of = starlette_key(shop)
    assert key_of(scope_of(path, method)) == key
    assert key_of(scope_of(path, method)) == key


def test_a_route_that_is_added_later_is_found() -> None:
    app = Starlette(routes=[Route("/items", endpoint)])
    key_of = starlette_key(app)
    assert key_of(scope_of("/bids/1")) == "GET (no route)"
    app.router.routes.append(Route("/bids/{bid_id}", endpoint))
    assert key_of(scope_of("/bids/1")) == "GET /bids/{bid_id}"


def test_more_paths_than_are_remembered_still_have_the_right_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyball.admission.keys.CACHED_PATHS", 3)
    key_of = starlette_key(Starlette(routes=[Route("/items/{item_id}", endpoint)]))
    assert {key_of(scope_of(f"/items/{number}")) for number in [*range(10), *range(10)]} == {"GET /items/{item_id}"}


def test_routes_of_routers_that_fastapi_includes_have_their_prefix() -> None:
    inner = APIRouter()
    inner.add_api_route("/{thing_id}", lambda thing_id: thing_id)
    middle = APIRouter()
    middle.include_router(inner, prefix="/things")
    app = FastAPI()
    app.include_router(middle, prefix="/api")
    app.add_api_route("/plain/{name}", lambda name: name, methods=["PUT"])
    key_of = key_for(app)
    assert key_of(scope_of("/api/things/5")) == "GET /api/things/{thing_id}"
    assert key_of(scope_of("/plain/x", "PUT")) == "PUT /plain/{name}"
    assert key_of(scope_of("/things/5")) == "GET (no route)"


def test_a_litestar_application_has_a_key_for_each_route() -> None:
    @get("/items/{item_id:int}")
    async def item(item_id: FromPath[int]) -> None: ...

    @get("/")
    async def home() -> None: ...

    @websocket("/chat/{room:str}")
    async def chat(socket: litestar.WebSocket[Any, Any, Any], room: FromPath[str]) -> None: ...

    key_of = litestar_key(Litestar([item, home, chat], openapi_config=None))
    assert key_of(scope_of("/items/5")) == key_of(scope_of("/items/6/")) == "GET /items/{item_id}"
    assert key_of(scope_of("/")) == "GET /"
    assert key_of(scope_of("/chat/tea", None)) == "WEBSOCKET /chat/{room}"
    assert key_of(scope_of("/items/5", "POST")) == "POST (no route)"
    assert key_of(scope_of("/none")) == "GET (no route)"


def test_the_key_is_found_below_other_middleware() -> None:
    inside = Starlette(routes=[Route("/users/{name}", endpoint)], middleware=[Middleware(GZipMiddleware)])
    outside = GZipMiddleware(inside)
    assert key_for(outside)(scope_of("/users/ada")) == "GET /users/{name}"
    assert key_for(inside.build_middleware_stack())(scope_of("/users/ada")) == "GET /users/{name}"


def test_an_application_of_no_framework_has_keys_by_path() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    assert key_for(app) is path_key


def test_path_with_the_mount_point_as_mere_prefix_is_not_below_it() -> None:
    assert path_of({"path": "/apple", "root_path": "/app"}) == "/apple"
    assert path_of({"path": "/app/le", "root_path": "/app"}) == "/le"
    assert path_of({"path": "/app", "root_path": "/app"}) == "/"


def test_long_paths_are_not_remembered() -> None:
    asked: list[str] = []

    def route_of(method: str, path: str) -> str:
        asked.append(path)
        return "/{}"

    key = RouteKey(route_of)
    for path in ("/short", "/" + "x" * 100_000):
        for _ in range(2):
            assert key({"type": "http", "method": "GET", "path": path}) == "GET /{}"
    assert [len(path) for path in asked] == [6, 100_001, 100_001]


def test_addresses_of_people_are_not_part_of_a_key() -> None:
    assert path_key({"type": "http", "method": "GET", "path": "/users/alice@example.org"}) == "GET /users/{}"
