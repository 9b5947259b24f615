"""Whoever cannot read the node's token administers nothing by Telesto, and has all of the recorded protocol."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from flyball.broker.node.owner import owner_token
from flyball.broker.wire import telesto as wire
from flyball.broker.wire.telesto import ErrorCode
from flyball.client import NotOwner
from flyball.client.sync import Client
from flyball.errors import SettingsError
from tests.broker.peers import TelestoPeer, telesto
from tests.nodes import RunningNode


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
