"""Whoever has the node's token is its administrator, from the node's machine only; others are not by any way."""

from __future__ import annotations

import asyncio
import json
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
from flyball.broker.wire import telesto as wire
from flyball.broker.wire.telesto import ErrorCode
from flyball.errors import ReservedName, SettingsError, UserNotFound
from flyball.model import OWNER, Definition, Permission
from tests.broker.peers import TelestoPeer, telesto
from tests.nodes import ANSWER_LIMIT_S, TOKEN_FILE, RunningNode
from tests.telesto_client import NotOwner
from tests.telesto_client.sync import Client

TOKEN = "0123456789abcdef" * 4

Definitions = tuple[Definition, ...]


def authority_with_token(definitions: Definitions = (), token: str = TOKEN) -> Authority:
    # No time passes: tries are not given back.
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


# Telesto


def stranger(node: RunningNode) -> TelestoPeer:
    peer = TelestoPeer(node.connect("telesto"))
    peer.widen()
    return peer


def command(name: str, /, **arguments: object) -> bytes:
    return json.dumps({"command": name, **arguments}).encode()


COMMANDS: dict[str, dict[str, object]] = {
    "user.add": {"name": "eve", "password": "eve", "tags": ["administrator"]},
    "user.delete": {"name": "guest"},
    "user.list": {},
    "user.password": {"name": "guest", "password": "eve"},
    "vhost.delete": {"name": "/"},
    "permission.set": {"user": "guest"},
    "policy.set": {"name": "p", "pattern": ".*", "definition": {"max-length": 0}},
    "topic.delete": {"name": "t"},
    "topic.parent": {"name": "t", "parent": None},
    "topic.unsubscribe": {"name": "t", "subscription": "s"},
    "domain.show": {},
    "no.such": {},
}

ADMINISTERING = [
    *(wire.Manage(1, command(name, **arguments)) for name, arguments in COMMANDS.items()),
    wire.Manage(1, command("topic.create", name="t", vhost="other")),
    wire.Manage(1, command("topic.list", vhost="other")),
    wire.Manage(1, command("topic.subscriptions", name="t", vhost="other")),
    wire.Place(1, 0, "other", "closed", "client", "", ""),
    wire.DeleteQueue(1, 1),
    wire.Purge(1, 1),
    wire.RemoveClient(1, 1),
    wire.Forwarded(1),
]


@pytest.mark.parametrize("packet", ADMINISTERING, ids=lambda packet: type(packet).__name__)
def test_nothing_is_administered_without_the_token(memory_node: RunningNode, packet: wire.Packet) -> None:
    telesto(memory_node).create_queue()
    peer = stranger(memory_node)
    assert peer.refusal(packet) == ErrorCode.NOT_OWNER
    peer.join("client")
    assert peer.refusal(packet) == ErrorCode.NOT_OWNER
    assert memory_node.call(lambda node: [user.name for user in node.hub.authority.access.users]) == ["guest"]
    assert memory_node.call(lambda node: len(list(node.hub.broker.engine.queues))) == 1


def test_wrong_token_proves_nothing_and_a_nonce_is_good_once(memory_node: RunningNode) -> None:
    peer = stranger(memory_node)
    for token in (b"", b"x" * 64):
        answer = peer.prove(token)
        assert isinstance(answer, wire.Error)
        assert answer.code == ErrorCode.NOT_OWNER
    nonce = peer.get(wire.Nonce, wire.AskNonce(peer.next_id())).data
    token = memory_node.call(lambda node: node.hub.owner_keys[0])
    assert peer.refusal(wire.Prove(peer.next_id(), b"")) == ErrorCode.NOT_OWNER
    assert peer.refusal(wire.Prove(peer.next_id(), wire.proof_of(token, nonce))) == ErrorCode.NOT_OWNER
    assert peer.refusal(wire.Prove(peer.next_id(), wire.proof_of(token, b""))) == ErrorCode.NOT_OWNER
    assert isinstance(peer.prove(token), wire.Success)
    peer.get(wire.Managed, wire.Manage(peer.next_id(), command("user.list")))


@pytest.mark.parametrize("is_wide", [False, True])
def test_queues_of_other_virtual_hosts_are_out_of_reach_without_the_token(
    memory_node: RunningNode, is_wide: bool
) -> None:
    memory_node.call(lambda node: node.hub.broker.engine.create_queue("closed", vhost="other"))
    peer = stranger(memory_node) if is_wide else telesto(memory_node)
    packets: list[wire.Packet] = [
        wire.PutMessage(1, wire.WireMessage(0, 1, 0, 0, 0, 1, 0, "text"), []),
        wire.ReadMessage(2, 1, 0, wire.ReadMode.TIME),
        wire.ReadResponse(3, 1, 1),
        wire.GetMessages(4, 1),
        wire.GetQueueName(5, 1),
        wire.DeleteQueue(6, 1),
    ]
    if is_wide:
        peer.join("client")
        packets = [
            wire.Put(1, [1], [wire.WireDraft(b"text")]),
            wire.Take(2, 1, wire.WireSelector(), 1, 0),
            wire.Consume(3, 1, wire.WireSelector(), 1.0),
            wire.Peek(4, 1, wire.WireSelector()),
        ]
    for packet in packets:
        assert peer.refusal(packet) == ErrorCode.QUEUE_NOT_EXISTING
    assert memory_node.call(lambda node: [(w.queue.name, len(w)) for w in node.hub.broker.engine.queues]) == [
        ("closed", 0)
    ]


def test_only_the_owner_is_told_of_other_virtual_hosts(
    memory_node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    telesto(memory_node).create_queue("open")
    memory_node.run(lambda node: node.hub.authority.add_vhost("other"))
    memory_node.call(lambda node: node.hub.broker.engine.create_queue("closed", vhost="other"))
    address = str(memory_node.address("telesto"))

    def told(client: Client) -> list[list[str]]:
        found = client.status()["queues"], client.manage("queue.list"), client.manage("topic.list")
        return [[each["name"] for each in names] for names in found]

    with Client.connect(address) as owner:
        owner.create_topic("news")
        owner.manage("topic.create", name="secret", vhost="other")
        assert told(owner) == [["open", "closed"], ["open", "closed"], ["news", "secret"]]
    monkeypatch.setenv("FLYBALL_TOKEN_FILE", "/nowhere")
    with Client.connect(address) as client:
        client.create_topic("more")
        assert told(client) == [["open"], ["open"], ["more", "news"]]


def test_recorded_protocol_needs_no_token(memory_node: RunningNode) -> None:
    peer = telesto(memory_node)
    queue_id = peer.create_queue()
    peer.put_text(queue_id, "text")
    assert peer.read_text(queue_id) == "text"
    peer.get(wire.Success, wire.DeleteQueue(peer.next_id(), queue_id))
    peer.get(wire.Success, wire.DeleteClient(peer.next_id()))


def test_client_finds_the_token_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.delenv("FLYBALL_TOKEN_FILE")
    monkeypatch.delenv("FLYBALL_DATA", raising=False)
    monkeypatch.chdir(elsewhere)
    with RunningNode(data, store="memory", token_file=str(data / "admin.token")) as node:
        address = str(node.address("telesto"))
        with Client.connect(address) as client, pytest.raises(NotOwner, match="FLYBALL_TOKEN_FILE"):
            client.manage("user.list")
        with Client.connect(address, token_file=data / "admin.token") as client:
            assert client.manage("user.list")
        monkeypatch.setenv("FLYBALL_DATA", str(data))
        with Client.connect(address) as client:
            assert client.manage("user.list")
        monkeypatch.delenv("FLYBALL_DATA")
        monkeypatch.chdir(tmp_path)
        with Client.connect(address) as client:
            assert client.manage("user.list")


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
    assert "others could read the token" in caplog.text


def test_token_that_could_be_guessed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "admin.token"
    path.write_text("secret\n")
    path.chmod(0o600)
    with pytest.raises(SettingsError, match="fewer than 32 characters"):
        owner_token(path)
