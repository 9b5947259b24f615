"""HTTP: authentication, error responses, and the address of the server."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

import httpx
import pytest
import uvloop
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from flyball import errors
from flyball.broker.settings import Address
from flyball.broker.transport.http import CONSOLE, CONSOLE_HEADER, Login, make_app, serving
from flyball.model import User
from tests.broker.authorities import authority_in_memory

MOST_CONNECTIONS = 2

Ask = Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]


def asked(ask: Ask, error: Exception | None = None) -> httpx.Response:
    """Return the response of an application that sends the user's name, or raises an error."""
    answers: list[httpx.Response] = []

    async def hello(request: Request, user: User) -> Response:
        if error is not None:
            raise error
        return JSONResponse(user.name)

    async def run() -> None:
        async with authority_in_memory() as authority:
            app = make_app([Route("/hello", Login(authority).required(hello))])
            async with (
                serving(app, Address("127.0.0.1", 0), MOST_CONNECTIONS) as address,
                httpx.AsyncClient(base_url=f"http://{address}") as client,
            ):
                answers.append(await ask(client))

    uvloop.run(run())
    return answers[0]


def hello(client: httpx.AsyncClient) -> Awaitable[httpx.Response]:
    return client.get("/hello", auth=("guest", "guest"))


def test_who_says_a_right_name_and_password_is_let_in() -> None:
    assert asked(hello).json() == "guest"


def test_a_browser_is_asked_for_a_password_but_the_console_has_its_own_form() -> None:
    assert "www-authenticate" in asked(lambda client: client.get("/hello")).headers
    headers = {CONSOLE_HEADER: CONSOLE}
    answer = asked(lambda client: client.get("/hello", headers=headers))
    assert answer.status_code == 401
    assert "www-authenticate" not in answer.headers


@pytest.mark.parametrize(
    ("error", "status", "word"),
    [
        (errors.QueueNotFound("orders", "/"), 404, "Object Not Found"),
        (errors.UserNotFound("nobody"), 404, "Object Not Found"),
        (errors.InvalidArgument("it is not a number"), 400, "bad_request"),
        (errors.NotPermitted("you may not"), 403, "not_authorised"),
        (errors.StoreUnavailable("no answer"), 503, "unavailable"),
        (errors.PeerLost(2, "does not answer"), 503, "unavailable"),
        (errors.ControlError("no model"), 500, "internal_error"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_told_with_a_word_a_reason_and_advice(error: errors.FlyballError, status: int, word: str) -> None:
    answer = asked(hello, error)
    assert answer.status_code == status
    told = answer.json()
    assert told.pop("advice")
    assert told == {"error": word, "reason": str(error), "kind": type(error).__name__}


def test_a_path_or_method_that_is_not_there_is_told_alike() -> None:
    assert asked(lambda client: client.get("/nothing")).json()["reason"] == "path /nothing not found"
    answer = asked(lambda client: client.put("/hello"))
    assert (answer.status_code, answer.json()["reason"]) == (405, "PUT is not allowed for /hello")


def test_one_connection_too_many_is_told_to_ask_again() -> None:
    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        first = await hello(client)
        with socket.create_connection((client.base_url.host, client.base_url.port)) as second:
            assert (await hello(client)).status_code == first.status_code == 200
            with socket.create_connection(second.getpeername()):
                return await hello(client)

    assert asked(ask).status_code == 503


def test_an_address_that_is_taken_is_named_with_its_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address(*taken.getsockname())

        async def serve() -> None:
            async with serving(make_app([]), address, MOST_CONNECTIONS):
                raise AssertionError("it is taken")

        with pytest.raises(OSError, match=rf"cannot listen on {address} \(--http\)"):
            uvloop.run(serve())
