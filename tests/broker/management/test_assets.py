"""The files of the console come from the package, with headers that keep its pages safe."""

from __future__ import annotations

import re

import httpx
import pytest
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from flyball.broker.management.console import assets


async def api(request: Request) -> Response:
    return PlainTextResponse("api")


def asked(method: str, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
    """Ask an application with a route of an API and the console's."""
    app = Starlette(routes=[Route("/api/things", api, methods=["GET"]), *assets.routes()])

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
            return await client.request(method, path, headers=headers)

    return uvloop.run(run())


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/web/app.js", "text/javascript; charset=utf-8"),
        ("/web/pages/queue.js", "text/javascript; charset=utf-8"),
        ("/web/style.css", "text/css; charset=utf-8"),
        ("/web/favicon.svg", "image/svg+xml"),
    ],
)
def test_a_file_is_served_with_its_type_and_may_be_kept_but_not_unasked(path: str, content_type: str) -> None:
    answer = asked("GET", path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == content_type
    assert answer.headers["cache-control"] == "no-cache"
    again = asked("GET", path, {"If-None-Match": f'"other", W/{answer.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert asked("GET", path, {"If-None-Match": '"old"'}).status_code == 200


@pytest.mark.parametrize("path", ["/", "/web/app.js", "/nowhere"])
def test_every_answer_forbids_scripts_of_others_frames_and_guesses(path: str) -> None:
    headers = asked("GET", path).headers
    assert headers["content-security-policy"].startswith("default-src 'self';")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_an_unknown_address_has_a_page_that_leads_back() -> None:
    answer = asked("GET", "/nowhere/at/all")
    assert answer.status_code == 404
    assert "Page not found" in answer.text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/nothing", 404),
        ("POST", "/api/things", 405),
        ("GET", "/metrics", 404),
        ("GET", "/web/none.js", 404),
    ],
)
def test_wrong_requests_of_programs_get_no_page(method: str, path: str, status: int) -> None:
    answer = asked(method, path)
    assert answer.status_code == status
    assert "html" not in answer.headers["content-type"]


@pytest.mark.parametrize("path", ["/web/../assets.py", "/web/%2e%2e/assets.py", "/web//etc/passwd", "/web/pages/"])
def test_nothing_outside_the_folder_is_served(path: str) -> None:
    assert asked("GET", path).status_code == 404


def test_no_file_has_code_in_its_html_or_asks_another_address() -> None:
    for name, asset in assets.load_assets().items():
        text = asset.body.decode()
        # In capitals are those that a text leaves to its reader.
        addresses = set(re.findall(r"https?://[a-z0-9][^\s\"'<>)]*", text)) - {"http://www.w3.org/2000/svg"}
        assert addresses == set(), name
        if name.endswith(".html"):
            assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon[a-z]+=", text) == [], name
