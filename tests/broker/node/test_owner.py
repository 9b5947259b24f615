"""The node's token makes its user an administrator, but only on the node's machine."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable
from pathlib import Path

import httpx
import pika
import pytest

from flyball.broker.core.attempts import NAME_TRIES, TRIES, Attempts, TooManyAttempts
from flyball.broker.core.authority import Authority
from flyball.broker.engine.access import Action
from flyball.broker.management.part import console_part
from flyball.broker.node.owner import owner_token
from flyball.broker.store.group_commit import GroupCommit
from flyball.broker.store.memory import MemoryStore
from flyball.errors import ReservedName, SettingsError, UserNotFound
from flyball.model import OWNER, Definition, Permission
from tests.nodes import ANSWER_LIMIT_S, TOKEN_FILE, RunningNode

TOKEN = "0123456789abcdef" * 4

Definitions = tuple[Definition, ...]


def authority_with_token(definitions: Definitions = (), token: str = TOKEN) -> Authority:
    # No time passes: attempts are not refilled.
    attempts = Attempts(now=lambda: 0.0)
    return Authority(GroupCommit(MemoryStore()), definitions, attempts=attempts, owner_token=token.encode())


async def logged_in(authority: Authority, token: str | bytes, address: str = "127.0.0.1") -> bool:
    user = await authority.log_in(OWNER, token, address, address == "127.0.0.1")
    return user is not None and user.name == OWNER


def test_token_logs_in_from_the_nodes_machine_only() -> None:
    async def run() -> None:
        authority = authority_with_token()
        for right in (TOKEN, TOKEN.encode()):
            assert await logged_in(authority, right)
            assert not await logged_in(authority, right, "192.0.2.1")
        for wrong in ("", TOKEN[:-1], TOKEN + "0", "\ud800", "é"):
            assert not await logged_in(authority_with_token(), wrong)
        assert not await logged_in(authority_with_token(token=""), "")
        assert authority.authenticate_certificate(OWNER, peer_is_loopback=True) is None

    asyncio.run(run())


def test_guesses_of_the_token_are_limited() -> None:
    async def run() -> None:
        authority = authority_with_token()
        for _ in range(TRIES):
            assert not await logged_in(authority, "guess")
        with pytest.raises(TooManyAttempts):
            await logged_in(authority, "guess")

    asyncio.run(run())


def test_guesses_from_elsewhere_do_not_keep_the_owner_out() -> None:
    async def run() -> None:
        authority = authority_with_token()
        for number in range(NAME_TRIES):
            assert not await logged_in(authority, "guess", f"192.0.2.{number}")
        assert await logged_in(authority, TOKEN)

    asyncio.run(run())


def test_owner_may_do_everything_in_every_vhost() -> None:
    access = authority_with_token().access
    access.add_vhost("shop")
    for vhost in ("/", "shop"):
        assert access.may_enter(OWNER, vhost)
        assert all(access.may(OWNER, vhost, action, name) for action in Action for name in ("", "orders"))
    access.delete_vhost("shop")
    assert not access.may_enter(OWNER, "shop")
    assert not access.may(OWNER, "shop", Action.READ, "orders")


CHANGES: dict[str, tuple[type[Exception], Callable[[Authority], object]]] = {
    "add": (ReservedName, lambda authority: authority.add_user(OWNER, "secret")),
    "put": (ReservedName, lambda authority: authority.put_user(OWNER, [], password="secret")),
    "password": (UserNotFound, lambda authority: authority.change_password(OWNER, "secret")),
    "tags": (UserNotFound, lambda authority: authority.set_tags(OWNER, [])),
    "delete": (UserNotFound, lambda authority: authority.delete_user(OWNER)),
    "permission": (UserNotFound, lambda authority: authority.set_permission(Permission(OWNER, "/"))),
    "limits": (UserNotFound, lambda authority: authority.set_user_limits(OWNER, {"max-channels": 1})),
}


@pytest.mark.parametrize("change", CHANGES)
def test_owner_is_no_stored_user(change: str) -> None:
    async def run() -> None:
        error, begin = CHANGES[change]
        authority = authority_with_token()
        with pytest.raises(error, match=OWNER):
            await begin(authority)  # type: ignore[misc]
        assert OWNER not in [user.name for user in authority.access.users]

    asyncio.run(run())


def test_stored_user_of_the_owners_name_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    stored = Definition("user", OWNER, {"name": OWNER, "password_hash": None, "tags": []})
    authority = authority_with_token((stored,))
    assert authority.access.users == []
    assert "is reserved" in caplog.text


def test_token_is_the_owners_password_over_http_and_amqp(start_memory_node: Callable[..., RunningNode]) -> None:
    node = start_memory_node(parts=[console_part()], http="127.0.0.1:0", loopback_users="none")
    token = TOKEN_FILE.read_text().strip()
    with httpx.Client(
        base_url=f"http://{node.address('http')}/api", auth=(OWNER, token), timeout=ANSWER_LIMIT_S
    ) as api:
        assert api.put("/vhosts/shop").status_code == 201
        assert api.put("/queues/shop/orders", json={"durable": True}).status_code == 201
        who = api.get("/whoami").json()
        assert (who["name"], who["tags"]) == (OWNER, ["administrator"])
        assert [found["vhost"] for found in who["permissions"]] == ["/", "shop"]
        assert [user["name"] for user in api.get("/users").json()] == ["guest"]
        assert [found["user"] for found in api.get("/permissions").json()] == ["guest"]
        assert api.delete(f"/users/{OWNER}").status_code == 404
        assert api.put(f"/users/{OWNER}", json={"tags": ""}).status_code == 400
        assert api.post("/login", json={"name": OWNER, "password": token}).status_code == 401
        assert api.get("/whoami", auth=(OWNER, "guest")).status_code == 401
    address = node.address("amqp")
    parameters = pika.ConnectionParameters(
        address.host, address.port, "shop", pika.PlainCredentials(OWNER, token), heartbeat=0
    )
    with pika.BlockingConnection(parameters) as connection:
        assert connection.channel().queue_declare("orders", passive=True).method.queue == "orders"


def test_token_is_private_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "data" / "admin.token"
    token = owner_token(path)
    assert len(token) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert owner_token(path) == token
    assert [each.name for each in path.parent.iterdir()] == ["admin.token"]


def test_token_that_others_could_read_is_closed_to_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "admin.token"
    owner_token(path)
    path.chmod(0o644)
    owner_token(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "token was readable by other users" in caplog.text


def test_token_that_could_be_guessed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "admin.token"
    path.write_text("secret\n")
    path.chmod(0o600)
    with pytest.raises(SettingsError, match="shorter than 32 characters"):
        owner_token(path)
