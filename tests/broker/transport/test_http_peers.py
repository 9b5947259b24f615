"""The peer of a request is that of the connection, or the one given by a trusted proxy."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from flyball.broker.settings import load_settings
from flyball.broker.transport.http_peers import behind, own_names


def asked(
    peer: str, headers: dict[str, str], proxies: Sequence[str] = (), names: Sequence[str] = ()
) -> tuple[int, str]:
    """Return the status and body of an application that sends the peer and scheme of the request."""
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse(f"{scope['scheme']} {scope['client'][0]}")(scope, receive, send)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "scheme": "http",
        "query_string": b"",
        "client": (peer, 1234),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }

    async def run() -> None:
        await behind(app, proxies, names)(scope, receive, send)

    asyncio.run(run())
    return sent[0]["status"], sent[1]["body"].decode()


FORWARDED = {"x-forwarded-for": "203.0.113.7", "x-forwarded-proto": "https"}


@pytest.mark.parametrize("peer", ["127.0.0.1", "10.0.0.1"])
def test_without_a_proxy_that_was_named_nobody_is_believed(peer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    assert asked(peer, FORWARDED) == (200, f"http {peer}")
    assert asked(peer, FORWARDED, ["10.9.9.9"]) == (200, f"http {peer}")


@pytest.mark.parametrize(
    ("peer", "proxy"), [("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.0/24"), ("fd00::1", "fd00::/64")]
)
def test_a_proxy_that_was_named_is_believed(peer: str, proxy: str) -> None:
    assert asked(peer, FORWARDED, [proxy]) == (200, "https 203.0.113.7")


def test_of_a_list_the_last_counts_that_no_proxy_has_added() -> None:
    said = {"x-forwarded-for": "127.0.0.1, 203.0.113.7, 10.0.0.2"}
    assert asked("10.0.0.1", said, ["10.0.0.0/24"]) == (200, "http 203.0.113.7")


@pytest.mark.parametrize(
    "host",
    [
        "localhost:15672",
        "LOCALHOST",
        "console.localhost",
        "127.0.0.1:15672",
        "192.168.1.7",
        "[::1]:15672",
        "north:15672",
        "North.",
        "north.example",
    ],
)
def test_a_client_of_this_machine_may_call_it_by_its_names(host: str) -> None:
    assert asked("127.0.0.1", {"host": host}, names=["north", "north.example"])[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:15672", "localhost.evil.example", "127.0.0.1.evil.example"]
)
@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_a_site_that_gives_this_machine_a_name_of_its_own_is_not_answered(peer: str, host: str) -> None:
    status, text = asked(peer, {"host": host}, names=["north"])
    assert status == 403
    assert "--advertise" in text


def test_others_and_proxies_may_call_it_by_any_name() -> None:
    assert asked("10.0.0.7", {"host": "console.example"})[0] == 200
    assert asked("127.0.0.1", {"host": "console.example", **FORWARDED}, ["127.0.0.1"]) == (200, "https 203.0.113.7")
    assert asked("127.0.0.1", {})[0] == 200, "tools that name no host are no browsers"


def test_the_names_of_a_node_are_those_of_its_machine_and_its_settings() -> None:
    settings = load_settings({"advertise": "north.example", "http": "console.example:80"}, {})
    assert own_names(settings) >= {socket.gethostname(), "north.example", "console.example"}
    assert own_names(load_settings({"http": "off"}, {})) >= {socket.gethostname()}
