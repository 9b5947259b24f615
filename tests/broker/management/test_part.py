"""The part that serves HTTP for a node."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from flyball.broker.management.api.context import ApiContext
from flyball.broker.management.part import FACTORIES, console_part
from flyball.model import User
from tests.nodes import RunningNode, ServeProcess, StartFailed

GUEST = ("guest", "guest")


def routes(context: ApiContext) -> list[Route]:
    async def name(request: Request, user: User) -> Response:
        return JSONResponse([context.name, user.name])

    return [Route("/name", context.login.required(name))]


def test_the_routes_of_all_factories_are_served(tmp_path: Path) -> None:
    part = console_part([*FACTORIES, routes])
    with RunningNode(tmp_path, parts=[part], store="memory", name="north", http="127.0.0.1:0") as node:
        base = f"http://{node.address('http')}"
        assert httpx.get(f"{base}/name", auth=GUEST).json() == ["north", "guest"]
        assert httpx.get(f"{base}/api/domain", auth=GUEST).json()["leader"] == "north"


@pytest.mark.parametrize("proxies", ["none", "127.0.0.1"])
def test_a_browser_here_does_not_take_the_node_for_another_site(tmp_path: Path, proxies: str) -> None:
    settings = {"store": "memory", "http": "127.0.0.1:0", "advertise": "north.example", "http_proxies": proxies}
    with RunningNode(tmp_path, parts=[console_part()], **settings) as node:

        def status(host: str) -> int:
            url = f"http://{node.address('http')}/api/whoami"
            return httpx.get(url, auth=GUEST, headers={"host": host}).status_code

        assert [status(host) for host in ("localhost", "north.example:15672", socket.gethostname())] == [200] * 3
        assert status("evil.example") == (403 if proxies == "none" else 200)


def test_nothing_is_served_when_it_is_switched_off(tmp_path: Path) -> None:
    with RunningNode(tmp_path, parts=[console_part()], store="memory", http="off") as node:
        assert "http" not in node.node.addresses


def test_a_node_whose_http_address_is_taken_says_which_flag_to_change(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "a", store="memory", http="127.0.0.1:0") as node:
        with (
            pytest.raises(StartFailed) as failed,
            ServeProcess(tmp_path / "b", store="memory", http=node.address("http")),
        ):
            raise AssertionError("both have it")
        assert failed.value.code == 1
        assert failed.value.complaints.count("\n") == 1
        assert f"cannot listen on {node.address('http')} (--http): " in failed.value.complaints
