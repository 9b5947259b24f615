"""Commands of administrators: what they do, what they refuse, and whom."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flyball.broker.management.commands import COMMANDS, FOR_EVERYBODY
from flyball.broker.protocols.telesto.session import TelestoSession
from flyball.broker.transport.connection import is_loopback
from flyball.broker.wire import telesto as wire
from flyball.broker.wire.telesto import ErrorCode
from flyball.errors import ClusterError
from tests.broker.peers import TelestoPeer
from tests.nodes import RunningNode


@pytest.fixture
def peer(memory_node: RunningNode) -> TelestoPeer:
    """A tool: it speaks wide frames and is no client."""
    peer = TelestoPeer(memory_node.connect("telesto"))
    peer.widen()
    peer.prove()
    return peer


def send(peer: TelestoPeer, document: bytes) -> wire.Packet:
    peer.send(wire.Manage(peer.next_id(), document))
    return peer.receive()


def manage(peer: TelestoPeer, command: str, **arguments: Any) -> Any:
    answer = send(peer, json.dumps({"command": command, **arguments}).encode())
    assert isinstance(answer, wire.Managed), answer
    return json.loads(answer.result)


def refusal(peer: TelestoPeer, command: str, **arguments: Any) -> str:
    answer = send(peer, json.dumps({"command": command, **arguments}).encode())
    assert isinstance(answer, wire.Error), answer
    assert answer.code == ErrorCode.COMMAND_REFUSED
    return answer.details


def test_users_are_added_changed_listed_and_deleted(peer: TelestoPeer) -> None:
    assert manage(peer, "user.add", name="alice", password="secret", tags=["monitoring"]) is None
    assert manage(peer, "user.add", name="robot") is None
    assert manage(peer, "user.tags", name="alice", tags=[]) is None
    assert manage(peer, "user.password", name="alice", password=None) is None
    assert manage(peer, "user.password", name="robot", password="secret") is None
    assert manage(peer, "user.delete", name="guest") is None
    assert manage(peer, "user.list") == [
        {"name": "alice", "tags": [], "has_password": False},
        {"name": "robot", "tags": [], "has_password": True},
    ]


def test_other_parts_of_a_node_can_have_commands_too(memory_node: RunningNode, peer: TelestoPeer) -> None:
    async def double(number: int) -> int:
        if number < 0:
            raise ClusterError("give a number from 0 on")
        return 2 * number

    memory_node.call(lambda node: node.hub.commands.update({"number.double": double}))
    assert manage(peer, "number.double", number=4) == 8
    assert refusal(peer, "number.double", number=-1) == "give a number from 0 on"
    assert refusal(peer, "number.halve", number=4) == "there is no command 'number.halve'"


def test_vhosts_are_added_listed_and_deleted(peer: TelestoPeer) -> None:
    assert manage(peer, "vhost.add", name="shop") is None
    assert manage(peer, "vhost.list") == [{"name": "/"}, {"name": "shop"}]
    assert manage(peer, "vhost.delete", name="shop") is None
    assert manage(peer, "vhost.list") == [{"name": "/"}]


def test_permissions_are_set_cleared_and_listed(peer: TelestoPeer) -> None:
    manage(peer, "vhost.add", name="shop")
    assert manage(peer, "permission.set", user="guest", vhost="shop", read=".*") is None
    in_shop = {"user": "guest", "vhost": "shop", "configure": "", "write": "", "read": ".*"}
    everywhere = {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    assert manage(peer, "permission.list") == [everywhere, in_shop]
    assert manage(peer, "permission.list", vhost="shop") == [in_shop]
    assert manage(peer, "permission.list", user="guest", vhost="/") == [everywhere]
    assert manage(peer, "permission.list", user="alice") == []
    assert manage(peer, "permission.clear", user="guest") is None
    assert manage(peer, "permission.list") == [in_shop]


def test_policies_are_set_cleared_and_listed(peer: TelestoPeer) -> None:
    manage(peer, "vhost.add", name="shop")
    assert manage(peer, "policy.set", name="p", pattern="^a", definition={"max-length": 5}) is None
    assert (
        manage(
            peer,
            "policy.set",
            name="q",
            pattern="",
            definition={"overflow": "drop-head"},
            vhost="shop",
            apply_to="queues",
            priority=-2,
        )
        is None
    )
    p = {
        "name": "p",
        "vhost": "/",
        "pattern": "^a",
        "apply_to": "all",
        "priority": 0,
        "definition": {"max-length": 5},
    }
    q = {
        "name": "q",
        "vhost": "shop",
        "pattern": "",
        "apply_to": "queues",
        "priority": -2,
        "definition": {"overflow": "drop-head"},
    }
    assert manage(peer, "policy.list") == [p, q]
    assert manage(peer, "policy.list", vhost="shop") == [q]
    assert manage(peer, "policy.clear", name="p") is None
    assert manage(peer, "policy.list") == [q]


@pytest.mark.parametrize(
    ("command", "arguments", "problem"),
    [
        ("user.sing", {}, "there is no command 'user.sing'"),
        ("user.add", {}, "user.add: name: Missing required argument"),
        ("user.add", {"name": 5}, "user.add: name: Input should be a valid string"),
        ("user.add", {"name": "a", "tags": "administrator"}, "user.add: tags: Input should be a valid list"),
        ("user.add", {"name": "a", "pasword": "x"}, "user.add: pasword: Unexpected keyword argument"),
        ("user.add", {"name": "a", "hub": 1}, "user.add: hub: Got multiple values for argument"),
        ("user.add", {"name": "guest"}, "there is already a user named 'guest'"),
        ("user.add", {"name": "a", "password": ""}, "a password cannot be empty"),
        ("user.password", {"name": "guest"}, "user.password: password: Missing required argument"),
        ("user.delete", {"name": "nobody"}, "no user 'nobody'"),
        ("vhost.add", {"name": "/"}, "there is already a vhost named '/'"),
        ("vhost.delete", {"name": "shop"}, "no vhost 'shop'"),
        ("vhost.delete", {"name": "/"}, "vhost '/' cannot be deleted"),
        ("permission.set", {"user": "guest", "read": "("}, "'(' is not a regular expression"),
        ("permission.set", {"user": "guest", "vhost": "shop"}, "no vhost 'shop'"),
        ("permission.clear", {"user": "nobody"}, "no user 'nobody'"),
        ("policy.set", {"name": "p", "pattern": "", "definition": []}, "policy.set: definition: Input should be a"),
        ("policy.set", {"name": "p", "pattern": "", "definition": {"x": 1}}, "'x' is no setting of a policy"),
        ("policy.set", {"name": "p", "pattern": "", "definition": {}, "priority": 1.5}, "policy.set: priority: "),
        ("policy.clear", {"name": "p"}, "no policy 'p' in vhost '/'"),
    ],
)
def test_a_refusal_says_why(peer: TelestoPeer, command: str, arguments: dict[str, Any], problem: str) -> None:
    assert refusal(peer, command, **arguments).startswith(problem)
    assert [user["name"] for user in manage(peer, "user.list")] == ["guest"]


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"null",
        b'"user.list"',
        b"{}",
        b'{"command": 5}',
        b"[" * 100_000,
        b"9" * 5000,
        b'{"command": "vhost.delete", "name": "half \\ud83d"}',
        b'{"command": "user.list", "\\ud83d": 1}',
    ],
    ids=lambda document: repr(document[:12]),
)
def test_what_is_no_command_is_refused_and_the_connection_goes_on(peer: TelestoPeer, document: bytes) -> None:
    answer = send(peer, document)
    assert isinstance(answer, wire.Error)
    assert answer.code == ErrorCode.COMMAND_REFUSED
    assert manage(peer, "vhost.list") == [{"name": "/"}]


def test_no_refusal_repeats_a_password(peer: TelestoPeer) -> None:
    for arguments in (
        {"name": "alice", "password": ["secret"]},
        {"name": "alice", "password": "secret\0"},
        {"name": "guest", "password": "secret"},
        {"name": "alice", "password": "secret" * 300},
    ):
        assert "secret" not in refusal(peer, "user.add", **arguments)
    assert "secret" not in repr(wire.Manage(1, b"secret"))


def test_commands_sent_together_are_carried_out_in_their_order(peer: TelestoPeer) -> None:
    commands = [
        {"command": "user.add", "name": "alice", "password": "secret"},
        {"command": "permission.set", "user": "alice"},
        {"command": "user.delete", "name": "alice"},
        {"command": "user.list"},
    ]
    ids = [peer.next_id() for _ in commands]
    peer.send(*[wire.Manage(i, json.dumps(c).encode()) for i, c in zip(ids, commands, strict=True)])
    answers = [peer.receive() for _ in commands]
    assert [(type(answer), answer.packet_id) for answer in answers] == [(wire.Managed, i) for i in ids]


def test_a_peer_on_another_machine_manages_topics_as_it_does_queues(
    peer: TelestoPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TelestoSession, "peer_is_loopback", False)
    assert manage(peer, "topic.create", name="news") is None
    assert manage(peer, "topic.list") == [{"name": "news", "vhost": "/", "parent": None}]


def test_a_peer_on_another_machine_manages_nothing_else(peer: TelestoPeer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TelestoSession, "peer_is_loopback", False)
    for command in COMMANDS.keys() - FOR_EVERYBODY:
        answer = send(peer, json.dumps({"command": command}).encode())
        assert isinstance(answer, wire.Error)
        assert answer.code == ErrorCode.NOT_LOCAL


def test_plain_frames_manage_nothing(memory_node: RunningNode) -> None:
    plain = TelestoPeer(memory_node.connect("telesto"))
    plain.send_raw(wire.encode_wide(wire.Manage(1, b'{"command": "user.list"}'))[2:])
    assert plain.is_closed_by_node()


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("example", False),
        ("", False),
    ],
)
def test_only_loopback_addresses_are_this_machine(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
