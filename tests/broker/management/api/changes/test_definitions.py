"""Definitions are exported in RabbitMQ's form and imported again: all of them, or the answer names which not."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from datetime import UTC
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from pika import spec

from flyball.broker.management.api import definitions
from flyball.model import Binding
from tests.broker.protocols.amqp.compatibility.peer import Peer, method_frame
from tests.nodes import RunningNode

Place = Callable[..., str]

SHA256 = {
    "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR",
    "hashing_algorithm": "rabbit_password_hashing_sha256",
}


def fill(api: httpx.Client, place: Place) -> None:
    """Declare one of each."""
    api.put(place("policies", "short"), json={"pattern": "^q", "definition": {"max-length": 5}, "priority": 1})
    arguments = {"alternate-exchange": "amq.fanout"}
    api.put(place("exchanges", "x"), json={"type": "topic", "durable": True, "arguments": arguments})
    api.put(place("queues", "q"), json={"durable": True, "arguments": {"x-message-ttl": 60000}})
    api.post(place("bindings", "e", "x", "q", "q"), json={"routing_key": "a.*", "arguments": {"n": 1}})
    api.post(place("bindings", "e", "amq.direct", "e", "x"), json={"routing_key": "k"})


def of_vhost(definitions: dict[str, Any], vhost: str) -> dict[str, list[dict[str, Any]]]:
    return {
        section: [item for item in items if item.get("vhost") == vhost]
        for section, items in definitions.items()
        if isinstance(items, list)
    }


def test_all_definitions_are_exported_in_rabbitmqs_form(api: httpx.Client, place: Place, vhost: str) -> None:
    fill(api, place)
    found = api.get("/definitions").json()
    assert {"name": vhost} in found["vhosts"]
    [guest] = [user for user in found["users"] if user["name"] == "guest"]
    assert (guest["hashing_algorithm"], guest["tags"]) == ("flyball_argon2id", ["administrator"])
    policy = {"pattern": "^q", "apply-to": "all", "definition": {"max-length": 5}, "priority": 1}
    binding = {"vhost": vhost, "source": "x", "destination": "q", "destination_type": "queue"}
    other = {"vhost": vhost, "source": "amq.direct", "destination": "x", "destination_type": "exchange"}
    queue = {"name": "q", "durable": True, "auto_delete": False, "arguments": {"x-message-ttl": 60000}}
    exchange = {"name": "x", "type": "topic", "durable": True, "auto_delete": False, "internal": False}
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    assert of_vhost(found, vhost) == {
        "users": [],
        "vhosts": [],
        "permissions": [{"user": "guest", "vhost": vhost, **everything}],
        "topic_permissions": [],
        "parameters": [],
        "global_parameters": [],
        "policies": [{"vhost": vhost, "name": "short", **policy}],
        "queues": [{"vhost": vhost, **queue}],
        "exchanges": [{"vhost": vhost, **exchange, "arguments": {"alternate-exchange": "amq.fanout"}}],
        "bindings": [
            {**other, "routing_key": "k", "arguments": {}},
            {**binding, "routing_key": "a.*", "arguments": {"n": 1}},
        ],
    }


def test_what_was_exported_is_imported_again_and_again(
    api: httpx.Client, place: Place, vhost: str, new_client: Callable[..., httpx.Client]
) -> None:
    fill(api, place)
    api.put("/users/ann", json={"password": "secret", "tags": "monitoring"})
    before = api.get("/definitions").json()
    assert api.delete(f"/vhosts/{quote(vhost, safe='')}").status_code == 204
    assert api.delete("/users/ann").status_code == 204
    for _ in range(2):
        answer = api.post("/definitions", json=before)
        assert (answer.status_code, answer.content) == (204, b"")
        after = api.get("/definitions").json()
        assert of_vhost(after, vhost) == of_vhost(before, vhost)
        assert new_client("ann", "secret").get("/whoami").json()["tags"] == ["monitoring"]
    api.delete("/users/ann")


def test_a_virtual_host_moves_into_another(api: httpx.Client, place: Place, vhost: str) -> None:
    fill(api, place)
    found = api.get(place("definitions")).json()
    assert "users" not in found
    assert not [item for section in ("queues", "bindings") for item in found[section] if "vhost" in item]
    api.put("/vhosts/copy")
    assert api.post("/definitions/copy", json=found).status_code == 204
    copied = api.get("/definitions/copy").json()
    assert [{**policy, "vhost": vhost} for policy in copied.pop("policies")] == found.pop("policies")
    assert copied == found
    api.delete("/vhosts/copy")


def test_export_is_whole_whatever_clients_have_declared(
    api: httpx.Client, place: Place, vhost: str, console_node: RunningNode
) -> None:
    arguments = {"text": "\u00e9", "octets": b"\xff", "time": datetime.datetime(9999, 1, 1, tzinfo=UTC)}
    with Peer(*console_node.address("amqp")).open(vhost=vhost) as peer:
        declare = spec.Queue.Declare(queue="q", durable=True, arguments={**arguments, "XX": 1})
        # The name of an argument may be octets that are not UTF-8; pika writes none.
        peer.send_bytes(method_frame(declare, 1).replace(b"\x02XX", b"\x02\xff\xfe"))
        peer.expect(spec.Queue.DeclareOk)
    for path in ("/definitions", f"/definitions/{quote(vhost, safe='')}", place("queues"), place("bindings")):
        answer = api.get(path)
        assert answer.status_code == 200
        json.loads(answer.content, parse_constant=pytest.fail)
    answer = api.get("/definitions")
    assert answer.headers["content-length"] == str(len(answer.content))
    (queue,) = of_vhost(answer.json(), vhost)["queues"]
    assert queue["arguments"]["\ufffd\ufffd"] == 1


def test_export_that_fails_has_the_status_of_an_error(
    api: httpx.Client, new_client: Callable[..., httpx.Client], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(api, place)

    def fail(binding: Binding) -> dict[str, Any]:
        raise KeyError(binding.source)

    monkeypatch.setattr(definitions, "declared_binding", fail)
    # Another connection: the node closes it with the answer.
    assert new_client().get("/definitions").status_code == 500


def test_a_download_has_a_name(api: httpx.Client) -> None:
    headers = api.get("/definitions", params={"download": 'my"file.json'}).headers
    assert headers["content-disposition"] == "attachment; filename=my_file.json"


def test_nothing_is_done_when_something_is_wrong(api: httpx.Client, place: Place, vhost: str) -> None:
    api.put(place("queues", "kept"), json={})
    definitions = {
        "vhosts": [{"name": "never"}],
        "users": [{"name": "never", "password": "x", "tags": ""}],
        "queues": [
            {"name": "new", "vhost": vhost},
            {"name": "kept", "vhost": vhost, "durable": True},
            {"name": "odd", "vhost": vhost, "arguments": {"x-max-length": "long"}},
            {"name": "nowhere", "vhost": "nowhere"},
        ],
        "bindings": [{"source": "nothing", "destination": "new", "vhost": vhost}],
    }
    answer = api.post("/definitions", json=definitions)
    assert answer.status_code == 400
    reason = answer.json()["reason"]
    assert reason.startswith("nothing was imported. ")
    assert f"queue 'kept' in vhost '{vhost}': inequivalent arg 'durable'" in reason
    assert "invalid arg 'x-max-length'" in reason
    assert "no vhost 'nowhere'" in reason
    assert f"no exchange 'nothing' in vhost '{vhost}'" in reason
    assert api.get(place("queues", "new")).status_code == 404
    assert api.get("/users/never").status_code == 404
    assert "never" not in [found["name"] for found in api.get("/vhosts").json()]


@pytest.mark.parametrize(
    ("definitions", "reason"),
    [
        ({"queues": {}}, "'queues' must be a list of objects"),
        ({"queues": [1]}, "'queues' must be a list of objects"),
        ({"queues": [{"vhost": "/"}]}, "missing field 'name'"),
        ({"queues": [{"name": "q"}]}, "missing field 'vhost'"),
        ({"permissions": [{"user": "nobody", "vhost": "/", "configure": "", "write": "", "read": ""}]}, "no user"),
        ({"policies": [{"name": "p", "vhost": "/", "pattern": "(", "definition": {"max-length": 1}}]}, "expression"),
        ({"exchanges": [{"name": "amq.mine", "vhost": "/", "type": "fanout"}]}, "reserved prefix"),
        ({"bindings": [{"source": "amq.fanout", "destination": "no", "vhost": "/"}]}, "no queue 'no'"),
        ({"bindings": [{"source": "", "destination": "no", "destination_type": "x", "vhost": "/"}]}, "queue or exch"),
        ({"users": [{"name": "u", **SHA256, "hashing_algorithm": "flyball_argon2id"}]}, "not valid base64"),
        (
            {"users": [{"name": "u", "password_hash": "eA==", "hashing_algorithm": "flyball_argon2id"}]},
            "not a password hash",
        ),
    ],
    ids=json.dumps,
)
def test_definitions_that_cannot_be_are_refused_with_the_reason(
    definitions: dict[str, Any], reason: str, api: httpx.Client
) -> None:
    answer = api.post("/definitions", json=definitions)
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")
    assert reason in answer.json()["reason"]


def test_what_flyball_does_not_have_is_left_out_and_told(
    api: httpx.Client, place: Place, vhost: str, new_client: Callable[..., httpx.Client]
) -> None:
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    definitions = {
        "users": [{"name": "bob", "tags": ["management"], **SHA256}, {"name": "guest", "tags": "", **SHA256}],
        "permissions": [{"user": "bob", "vhost": vhost, **everything}],
        "topic_permissions": [{"user": "bob", "vhost": vhost, "exchange": "amq.topic", "write": "", "read": ""}],
        "parameters": [{"name": "s", "vhost": vhost, "component": "shovel", "value": {}}],
        "global_parameters": [{"name": "cluster_name", "value": "rabbit@host"}],
        "policies": [
            {"name": "ha", "vhost": vhost, "pattern": "", "definition": {"ha-mode": "all"}},
            {"name": "both", "vhost": vhost, "pattern": "", "definition": {"ha-mode": "all", "max-length": 9}},
        ],
        "queues": [
            {"name": "log", "vhost": vhost, "durable": True, "arguments": {"x-queue-type": "stream"}},
            {"name": "q", "vhost": vhost, "durable": True, "arguments": {"x-queue-type": "quorum"}},
        ],
        "exchanges": [{"name": "later", "vhost": vhost, "type": "x-delayed-message", "arguments": {}}],
        "bindings": [
            {"source": "amq.fanout", "destination": "log", "destination_type": "queue", "vhost": vhost},
            {"source": "amq.fanout", "destination": "q", "destination_type": "queue", "vhost": vhost},
        ],
    }
    answer = api.post("/definitions", json=definitions)
    assert answer.status_code == 200, answer.text
    told = {(item["kind"], item["name"]): item["reason"] for item in answer.json()["left_out"]}
    place_of = f" in vhost '{vhost}'"
    assert told.keys() == {
        ("password of user", "'bob'"),
        ("password of user", "'guest'"),
        ("topic permission", "'bob'" + place_of),
        ("parameter", "'s'" + place_of),
        ("policy", "'ha'" + place_of),
        ("settings of policy", "'both'" + place_of),
        ("queue", "'log'" + place_of),
        ("exchange", "'later'" + place_of),
        ("binding", "from 'amq.fanout' to 'log'"),
    }
    assert "cannot verify a password_hash of rabbit_password_hashing_sha256" in told["password of user", "'bob'"]
    assert "flyball user password bob" in told["password of user", "'bob'"]
    assert "existing user is unchanged" in told["password of user", "'guest'"]
    assert api.get("/users/guest").json()["tags"] == ["administrator"]
    assert api.get("/users/bob").json() | {"limits": {}} == {
        "name": "bob",
        "password_hash": "",
        "hashing_algorithm": "flyball_argon2id",
        "tags": ["management"],
        "limits": {},
    }
    assert [policy["definition"] for policy in api.get(place("policies")).json()] == [{"max-length": 9}]
    assert [binding["destination"] for binding in of_vhost(api.get("/definitions").json(), vhost)["bindings"]] == [
        "q"
    ]
    api.delete("/users/bob")


def test_an_import_into_a_virtual_host_takes_only_what_belongs_there(
    api: httpx.Client, place: Place, vhost: str
) -> None:
    definitions = {"users": [{"name": "mallory", "password": "x", "tags": ""}], "queues": [{"name": "q"}]}
    answer = api.post(place("definitions"), json=definitions)
    assert [item["kind"] for item in answer.json()["left_out"]] == ["user"]
    assert api.get("/users/mallory").status_code == 404
    assert api.get(place("queues", "q")).status_code == 200


def test_an_administrator_imports_where_it_has_no_permission(api: httpx.Client, place: Place, vhost: str) -> None:
    assert api.delete(f"/permissions/{quote(vhost, safe='')}/guest").status_code == 204
    assert api.put(place("queues", "q"), json={}).status_code == 401
    assert api.post(place("definitions"), json={"queues": [{"name": "q"}]}).status_code == 204
    assert api.get(place("queues", "q")).status_code == 200


def test_many_queues_are_imported_at_once(api: httpx.Client, place: Place, vhost: str) -> None:
    definitions = {
        "queues": [{"name": f"q{number}"} for number in range(1000)],
        "bindings": [
            {"source": "amq.topic", "destination": f"q{number}", "destination_type": "queue", "routing_key": "k"}
            for number in range(1000)
        ],
    }
    assert api.post(place("definitions"), json=definitions).status_code == 204
    found = api.get(place("definitions")).json()
    assert (len(found["queues"]), len(found["bindings"])) == (1000, 1000)


def test_topics_go_out_and_come_in_with_what_rabbitmq_knows_of_them(
    api: httpx.Client, place: Place, vhost: str, console_node: RunningNode
) -> None:
    topics = [{"name": "near", "parent": "far"}, {"name": "far"}]
    for _ in range(2):
        assert api.post(place("definitions"), json={"flyball_topics": topics}).status_code == 204
    found = api.get(place("definitions")).json()
    assert found["flyball_topics"] == topics[::-1]
    assert [(exchange["name"], exchange["type"]) for exchange in found["exchanges"]] == [
        ("far", "topic"),
        ("near", "topic"),
    ]
    api.put("/vhosts/copy")
    assert api.post("/definitions/copy", json=found).status_code == 204
    assert console_node.call(lambda node: node.hub.topics.get("near", "copy").parent) == "far"
    assert api.get("/definitions/copy").json()["bindings"] == found["bindings"]
    # As another document says, and RabbitMQ's part of it follows.
    assert api.post("/definitions/copy", json={"flyball_topics": [{"name": "near"}]}).status_code == 204
    assert api.get("/definitions/copy").json()["bindings"] == []
    api.delete("/vhosts/copy")


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        (
            {"name": "t", "parent": "nobody"},
            "definitions: topics[1] t: parent: no [[topics]] entry is named 'nobody'",
        ),
        ({"name": "t", "children": []}, "unknown key 'children'"),
        ({"name": "amq.fanout"}, "inequivalent arg 'type'"),
        ({}, "missing field 'name'"),
    ],
    ids=json.dumps,
)
def test_topics_that_cannot_be_are_refused_with_the_reason(
    topic: dict[str, Any], reason: str, api: httpx.Client, place: Place
) -> None:
    answer = api.post(place("definitions"), json={"flyball_topics": [topic], "queues": [{"name": "q"}]})
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")
    assert reason in answer.json()["reason"]
    assert api.get(place("queues", "q")).status_code == 404


def test_a_node_without_a_domain_leaves_clustered_queues_out(api: httpx.Client, place: Place, vhost: str) -> None:
    binding = {"source": "amq.fanout", "destination": "c", "destination_type": "queue", "vhost": vhost}
    definitions = {"flyball_clusters": [{"name": "c", "vhost": vhost}], "flyball_bindings": [binding]}
    answer = api.post("/definitions", json=definitions)
    assert answer.json()["left_out"] == [
        {
            "kind": "clustered queue",
            "name": f"'c' in vhost '{vhost}'",
            "reason": "this node does not belong to a domain",
        },
        {"kind": "binding", "name": "from 'amq.fanout' to 'c'", "reason": "its source or destination is left out"},
    ]


@pytest.mark.parametrize("name", ["", "é" * 255])
def test_queue_whose_name_amqp_cannot_say_is_left_out(api: httpx.Client, place: Place, name: str) -> None:
    definitions = {"queues": [{"name": name, "durable": True, "arguments": {}}, {"name": "after", "durable": True}]}
    answer = api.post(place("definitions"), json=definitions)
    assert answer.status_code == 200, answer.text
    assert [(item["kind"], item["name"]) for item in answer.json()["left_out"]] == [("queue", repr(name))]
    assert api.get(place("queues", "after")).status_code == 200
