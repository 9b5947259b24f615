"""Users are let in by name and password or by a session, no other site can act for them, and guessing is slow."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import httpx
import pytest
import uvloop
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from flyball.broker.core.attempts import TRIES, Attempts
from flyball.broker.core.authority import Authority
from flyball.broker.management.login import COOKIE, ConsoleLogin
from flyball.broker.settings import Address
from flyball.broker.transport.http import make_app, serving
from flyball.broker.transport.http_peers import behind
from flyball.model import Permission, User
from tests.broker.authorities import authority_in_memory
from tests.nodes import ANSWER_LIMIT_S

GUEST = ("guest", "guest")
CONSOLE = {"X-Requested-With": "flyball-console"}

Use = Callable[[httpx.AsyncClient, Authority], Awaitable[None]]


def with_login(use: Use, *, loopback_users: tuple[str, ...] = (), proxies: tuple[str, ...] = ()) -> None:
    """Let a test use an application that returns the user's name, whatever the method."""

    async def hello(request: Request, user: User) -> Response:
        return JSONResponse(user.name)

    async def run() -> None:
        # No time passes: what has failed often has to wait, however slow this machine is.
        attempts = Attempts(now=lambda: 0.0)
        async with authority_in_memory(loopback_users, attempts) as authority:
            login = ConsoleLogin(authority, "north", {"amqp": Address("127.0.0.1", 5672)})
            route = Route("/hello", login.required(hello), methods=["GET", "POST"])
            app = behind(make_app([*login.routes(), route]), proxies, ["broker.example"])
            async with (
                serving(app, Address("127.0.0.1", 0), 100) as address,
                httpx.AsyncClient(base_url=f"http://{address}", timeout=ANSWER_LIMIT_S) as client,
            ):
                await use(client, authority)

    uvloop.run(run())


async def log_in(client: httpx.AsyncClient, password: str = "guest", **headers: str) -> httpx.Response:
    body = {"name": "guest", "password": password}
    return await client.post("/api/login", json=body, headers={**CONSOLE, **headers})


def test_a_session_is_as_good_as_a_password_until_it_is_ended() -> None:
    async def use(client: httpx.AsyncClient, authority: Authority) -> None:
        answer = await log_in(client)
        assert (answer.status_code, answer.content) == (204, b"")
        assert (await client.get("/hello")).json() == "guest"
        assert (await client.post("/hello", headers=CONSOLE)).json() == "guest"
        [(name, token)] = client.cookies.items()
        assert (await client.delete("/api/login", headers=CONSOLE)).status_code == 204
        assert not client.cookies
        assert (await client.get("/hello", headers={"Cookie": f"{name}={token}"})).status_code == 401

    with_login(use)


def test_two_nodes_of_one_host_have_a_session_each() -> None:
    async def use(client: httpx.AsyncClient, authority: Authority) -> None:
        other = make_app(ConsoleLogin(authority).routes())
        async with serving(other, Address("127.0.0.1", 0), 100) as address:
            body = {"name": "guest", "password": "guest"}
            for url in ("/api/login", f"http://{address}/api/login"):
                assert (await client.post(url, json=body, headers=CONSOLE)).status_code == 204
            for url in ("/hello", f"http://{address}/api/whoami"):
                assert (await client.get(url)).status_code == 200
            assert (await client.delete("/api/login", headers=CONSOLE)).status_code == 204
            assert (await client.get(f"http://{address}/api/whoami")).status_code == 200

    with_login(use)


def test_an_address_without_a_port_has_a_session_too() -> None:
    async def use(client: httpx.AsyncClient, authority: Authority) -> None:
        cookie = (await log_in(client, Host="broker.example")).headers["set-cookie"]
        name, _, token = cookie.partition(";")[0].partition("=")
        assert name == COOKIE
        answer = await client.get("/hello", headers={"Host": "broker.example", "Cookie": f"{COOKIE}={token}"})
        assert answer.json() == "guest"

    with_login(use)


def test_the_cookie_is_out_of_reach_for_scripts_and_other_sites() -> None:
    async def use(client: httpx.AsyncClient, authority: Authority) -> None:
        cookie = (await log_in(client)).headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert "path=/" in cookie
        assert "secure" not in cookie

    with_login(use)


@pytest.mark.parametrize("proxies", [(), ("127.0.0.1",)])
def test_behind_a_proxy_that_speaks_https_the_cookie_goes_nowhere_else(proxies: tuple[str, ...]) -> None:
    async def use(client: httpx.AsyncClient, authority: Authority) -> None:
        cookie = (await log_in(client, **{"X-Forwarded-Proto": "https"})).headers["set-cookie"].lower()
        assert ("secure" in cookie) == bool(proxies)

    with_login(use, proxies=proxies)


def test_a_session_is_over_when_its_user_gets_another_password_or_is_deleted() -> None:
    async def use(client: httpx.AsyncClient, authority: Authority) -> None:
        await log_in(client)
        await authority.change_password("guest", "another")
        assert (await client.get("/hello", headers=CONSOLE)).status_code == 401
        await log_in(client, "another")
        assert (await client.get("/hello")).json() == "guest"
        await authority.delete_user("guest")
        assert (await client.get("/hello", headers=CONSOLE)).status_code == 401

    with_login(use)


def test_login_challenge_is_sent_to_tools_only() -> None:
    async def use(client: httpx.AsyncClient, authority: Authority) -> None:
        answer = await client.get("/hello")
        assert (answer.status_code, answer.json()["error"]) == (401, "not_authorised")
        assert answer.headers["www-authenticate"].startswith("Basic ")
        for refused in (
            await client.get("/hello", headers=CONSOLE),
            await log_in(client, "wrong"),
            await client.get("/hello", headers={**CONSOLE, "Cookie": f"{COOKIE}_{client.base_url.port}=nonsense"}),
        ):
            assert refused.status_code == 401
            assert "www-authenticate" not in refused.headers

    with_login(use)


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://[broken"},
    ],
    ids=str,
)
def test_another_site_cannot_change_anything(headers: dict[str, str]) -> None:
    async def use(client: httpx.AsyncClient, authority: Authority) -> None:
        refused = await client.post("/hello", auth=GUEST, headers=headers)
        assert (refused.status_code, refused.json()["error"]) == (403, "forbidden")
        assert (await log_in(client, **headers)).status_code == 403
        await log_in(client)
        assert (await client.post("/hello", headers={**CONSOLE, **headers})).status_code == 403
        assert (await client.delete("/api/login", headers={**CONSOLE, **headers})).status_code == 403
        assert (await client.get("/hello", headers=headers)).status_code == 200

    with_login(use)


def test_the_consoles_own_page_can() -> None:
    async def use(client: httpx.AsyncClient, authority: Authority) -> None:
        own = {"Sec-Fetch-Site": "same-origin", "Origin": str(client.base_url).rstrip("/")}
        assert (await log_in(client, **own)).status_code == 204
        assert (await client.post("/hello", headers={**CONSOLE, **own})).status_code == 200

    with_login(use)


def test_a_session_changes_nothing_without_the_header_that_no_form_can_set() -> None:
    async def use(client: httpx.AsyncClient, authority: Authority) -> None:
        await log_in(client)
        refused = await client.post("/hello")
        assert refused.status_code == 403
        assert "x-requested-with" in refused.json()["reason"]
        assert (await client.post("/hello", auth=GUEST)).status_code == 200

    with_login(use)


def test_guessing_is_slow_however_it_is_done() -> None:
    async def use(client: httpx.AsyncClient, authority: Authority) -> None:
        for _ in range(TRIES - 1):
            assert (await client.get("/hello", auth=("guest", "wrong"))).status_code == 401
        assert (await log_in(client, "wrong")).status_code == 401
        for refused in (await log_in(client), await client.get("/hello", auth=GUEST)):
            assert (refused.status_code, refused.json()["error"]) == (429, "too_many_requests")
            assert refused.headers["retry-after"] == "2"

    with_login(use)


def test_a_tool_with_the_right_password_goes_on_beside_one_with_a_wrong_one() -> None:
    async def use(client: httpx.AsyncClient, authority: Authority) -> None:
        assert (await client.get("/hello", auth=GUEST)).status_code == 200
        for _ in range(TRIES):
            assert (await client.get("/hello", auth=("guest", "wrong"))).status_code == 401
        assert (await client.get("/hello", auth=("guest", "wrong"))).status_code == 429
        assert (await client.get("/hello", auth=GUEST)).status_code == 200

    with_login(use)


def test_many_requests_with_the_right_password_at_once_are_let_in() -> None:
    async def use(client: httpx.AsyncClient, authority: Authority) -> None:
        answers = await asyncio.gather(*[client.get("/hello", auth=GUEST) for _ in range(20)])
        assert {answer.status_code for answer in answers} == {200}

    with_login(use)


@pytest.mark.parametrize(
    "said",
    [
        b"Basic gu\xc3\xa9st",
        b"Basic Z3Vlc3Q6Z3Vlc3Q=\xff",
        b"Basic \xff\xfe",
        b"Basic /////w==",
        b"Basic Z3Vlc3Q6Z3Vlc3Q",
        b"Basic",
        b"\xc3\xa9 Z3Vlc3Q6Z3Vlc3Q=",
        b"Bearer \xe2\x82\xac",
    ],
)
def test_header_that_is_no_basic_authentication_is_401(said: bytes) -> None:
    async def use(client: httpx.AsyncClient, authority: Authority) -> None:
        for method in ("GET", "POST"):
            answer = await client.request(method, "/hello", headers=[(b"Authorization", said)])
            assert answer.status_code == 401

    with_login(use)


@pytest.mark.parametrize(
    "headers",
    [
        [(b"Cookie", b"flyball_session=\xff\xfe; \xc3\xa9=\xc3\xa9")],
        [(b"Host", b"127.0.0.1:\xb2\xb3"), (b"Cookie", b"flyball_session=x")],
        [(b"Origin", b"http://[::1"), (b"Cookie", b"flyball_session=x")],
        [(b"Sec-Fetch-Site", b"\xff"), (b"X-Requested-With", b"\xff")],
    ],
)
def test_headers_of_any_octets_are_refused_not_an_error(headers: list[tuple[bytes, bytes]]) -> None:
    async def use(client: httpx.AsyncClient, authority: Authority) -> None:
        for method in ("GET", "POST"):
            answer = await client.request(method, "/hello?%ff=\u20ac", headers=headers)
            assert answer.status_code in (400, 401, 403)

    with_login(use)


def test_half_a_character_in_a_log_in_is_refused_not_an_error() -> None:
    async def use(client: httpx.AsyncClient, authority: Authority) -> None:
        for content in ('{"name": "guest", "password": "\\ud800"}', '{"name": "\\ud800", "password": "x"}'):
            answer = await client.post("/api/login", content=content, headers=CONSOLE)
            assert answer.status_code == 401

    with_login(use)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"name": "guest"}', '{"name": 1, "password": 2}', "x" * 20_000])
def test_what_is_no_log_in_is_told_so(content: str) -> None:
    async def use(client: httpx.AsyncClient, authority: Authority) -> None:
        answer = await client.post("/api/login", content=content, headers=CONSOLE)
        assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")

    with_login(use)


def test_a_session_of_a_user_of_this_machine_is_of_no_use_elsewhere() -> None:
    async def use(client: httpx.AsyncClient, authority: Authority) -> None:
        await log_in(client)
        assert (await client.get("/hello")).status_code == 200
        # What a proxy on this machine says of where a request comes from.
        assert (await client.get("/hello", headers={"X-Forwarded-For": "10.1.2.3"})).status_code == 401

    with_login(use, loopback_users=("guest",), proxies=("127.0.0.1",))


def test_a_user_is_told_its_tags_and_permissions() -> None:
    async def use(client: httpx.AsyncClient, authority: Authority) -> None:
        await authority.add_user("ann", "secret", ["monitoring"])
        await authority.set_permission(Permission("ann", "/", "", "^x", ".*"))
        answer = await client.get("/api/whoami", auth=("ann", "secret"))
        assert answer.json() == {
            "name": "ann",
            "tags": ["monitoring"],
            "permissions": [{"vhost": "/", "configure": "", "write": "^x", "read": ".*"}],
            "node": "north",
            "listeners": {"amqp": "127.0.0.1:5672"},
        }

    with_login(use)


def test_no_secret_reaches_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def use(client: httpx.AsyncClient, authority: Authority) -> None:
        await log_in(client)
        await log_in(client, "my-wrong-password")
        await client.get("/hello", auth=("typed-my-password-here", "x"))
        secrets = [*client.cookies.values(), "my-wrong-password", "typed-my-password-here"]
        # The client of the test has a log of its own.
        log = [record.getMessage() for record in caplog.records if record.name.startswith(("flyball", "uvicorn"))]
        assert any("login refused peer=" in line for line in log)
        assert not [secret for secret in secrets if secret in "".join(log)]

    with_login(use)
