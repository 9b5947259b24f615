"""Changes over HTTP on one node take effect on all, also where another one serves the queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from flyball.broker.cluster.node import attached
from flyball.broker.management.part import console_part
from flyball.broker.node.node import Node
from tests.broker.domains import two_nodes
from tests.nodes import ANSWER_LIMIT_S, RunningNode

Pair = tuple[httpx.Client, httpx.Client]

GUEST = ("guest", "guest")


def client(node: RunningNode) -> httpx.Client:
    return httpx.Client(base_url=f"http://{node.address('http')}/api", auth=GUEST, timeout=ANSWER_LIMIT_S)


@pytest.fixture
def pair(tmp_path: Path, new_database: Callable[[], str]) -> Iterator[Pair]:
    """Clients of two nodes of a domain."""
    flags = {"http": "127.0.0.1:0", "link": "127.0.0.1:0", "parts": [console_part()]}
    with two_nodes(tmp_path, new_database, **flags) as (first, second), client(first) as a, client(second) as b:
        yield a, b


def test_a_queue_of_another_node_is_used_like_ones_own(pair: Pair) -> None:
    a, b = pair
    durable = {"durable": True}
    assert a.put("/queues/%2F/q", json=durable).status_code == 201
    # At once: a client that has its answer may go to another node.
    assert b.put("/queues/%2F/q", json=durable).status_code == 204
    assert b.put("/queues/%2F/q", json={}).status_code == 400
    assert b.post("/bindings/%2F/e/amq.topic/q/q", json={"routing_key": "k"}).status_code == 201
    message = {"properties": {"delivery_mode": 2}, "routing_key": "k", "payload": "m", "payload_encoding": "string"}
    for _ in range(3):
        assert b.post("/exchanges/%2F/amq.topic/publish", json=message).json() == {"routed": True}
    wanted = {"count": 5, "ackmode": "ack_requeue_true", "encoding": "auto"}
    for mode, count in (("ack_requeue_true", 3), ("reject_requeue_true", 3), ("ack_requeue_true", 3)):
        found = b.post("/queues/%2F/q/get", json={**wanted, "ackmode": mode}).json()
        assert [item["payload"] for item in found] == ["m"] * count
    assert len(b.post("/queues/%2F/q/get", json={**wanted, "ackmode": "ack_requeue_false", "count": 1}).json()) == 1
    assert b.delete("/queues/%2F/q", params={"if-empty": "true"}).status_code == 400
    assert b.delete("/queues/%2F/q/contents").status_code == 204
    assert b.delete("/queues/%2F/q", params={"if-empty": "true"}).status_code == 204
    assert a.delete("/queues/%2F/q").status_code == 404
    assert a.get("/bindings/%2F/e/amq.topic/q/q").status_code == 404


def test_users_and_definitions_are_the_domains(pair: Pair) -> None:
    a, b = pair
    a.put("/users/ann", json={"password": "secret", "tags": "administrator"})
    a.put("/vhosts/v")
    a.put("/queues/v/on-a", json={})
    a.put("/exchanges/v/x", json={"type": "fanout"})
    b.put("/queues/v/on-b", json={})
    assert b.get("/whoami", auth=("ann", "secret")).json()["tags"] == ["administrator"]
    exported = b.get("/definitions/v").json()
    assert sorted(queue["name"] for queue in exported["queues"]) == ["on-a", "on-b"]
    assert [exchange["name"] for exchange in exported["exchanges"]] == ["x"]
    assert a.post("/definitions/v", json=exported).status_code == 204
    assert b.delete("/vhosts/v").status_code == 204
    assert a.get("/definitions/v").status_code == 404


@asynccontextmanager
async def governed(node: Node) -> AsyncIterator[None]:
    """Let a node take part in the government of its domain."""
    async with attached(node, {}, asyncio.Event()):
        yield


@pytest.fixture
def governed_pair(tmp_path: Path, new_database: Callable[[], str]) -> Iterator[Pair]:
    """Clients of two nodes of a domain that can have clustered queues."""
    flags = {"http": "127.0.0.1:0", "link": "127.0.0.1:0", "parts": [governed, console_part()]}
    with two_nodes(tmp_path, new_database, **flags) as (first, second), client(first) as a, client(second) as b:
        yield a, b


def clusters(node: httpx.Client) -> list[tuple[str, Any, list[str]]]:
    """Return the clustered queues of a domain: names, maximum number of members, and the nodes of fixed ones."""
    return [
        (
            found["name"],
            found["options"]["max_members"],
            [member["node"] for member in found["members"] if member["fixed"]],
        )
        for found in node.get("/flyball/domain").json()["clusters"]
    ]


def test_clustered_queues_go_out_and_come_in_as_such(governed_pair: Pair) -> None:
    a, b = governed_pair
    orders = {"name": "orders", "options": {"max_members": 3}, "members": ["a"]}
    assert a.post("/flyball/domain/commands/cluster.create", json=orders).status_code == 200
    assert a.put("/queues/%2F/plain", json={"durable": True}).status_code == 201
    assert a.post("/bindings/%2F/e/amq.topic/q/orders", json={"routing_key": "k"}).status_code == 201
    exported = b.get("/definitions").json()
    assert [queue["name"] for queue in exported["queues"]] == ["plain"]
    assert exported["bindings"] == []
    assert exported["flyball_clusters"] == [{"name": "orders", "vhost": "/", "max_members": 3, "members": ["a"]}]
    assert [binding["destination"] for binding in exported["flyball_bindings"]] == ["orders"]
    assert a.post("/flyball/domain/commands/cluster.delete", json={"name": "orders"}).status_code == 200
    for _ in range(2):
        answer = b.post("/definitions", json=exported)
        assert (answer.status_code, answer.content) == (204, b"")
        assert clusters(a) == [("orders", 3, ["a"])]
        assert b.get("/definitions").json() == exported


def test_a_clustered_queue_of_another_domain_takes_what_there_is(governed_pair: Pair) -> None:
    a, _ = governed_pair
    orders = {"name": "orders", "vhost": "/", "members": ["b", "elsewhere"], "provisioner": "cloud"}
    left_out = a.post("/definitions", json={"flyball_clusters": [orders]}).json()["left_out"]
    assert [(item["kind"], item["reason"]) for item in left_out] == [
        ("member of clustered queue", "this domain has no node 'elsewhere'"),
        ("provisioner of clustered queue", "this domain has no provisioner 'cloud'"),
    ]
    assert clusters(a) == [("orders", 16, ["b"])]
    # Another document changes it, as a file of the domain would.
    changed = {"name": "orders", "vhost": "/", "max_members": 2, "members": ["a", "b"]}
    assert a.post("/definitions", json={"flyball_clusters": [changed]}).status_code == 204
    assert clusters(a) == [("orders", 2, ["a", "b"])]


def test_clustered_queues_that_cannot_be_are_refused_with_the_reason(governed_pair: Pair) -> None:
    a, _ = governed_pair
    assert a.put("/queues/%2F/plain", json={"durable": True}).status_code == 201
    for wanted, reason in (
        ({"name": "plain"}, "clustered queue 'plain' in vhost '/': a queue of that name exists and is not clustered"),
        ({"name": "q", "most_members": 3}, "definitions: clusters[1] q: unknown option 'most_members'"),
        ({"name": "q", "members": "a"}, "members must list one or more nodes"),
    ):
        definitions = {"flyball_clusters": [{**wanted, "vhost": "/"}], "queues": [{"name": "new", "vhost": "/"}]}
        answer = a.post("/definitions", json=definitions)
        assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")
        assert answer.json()["reason"].startswith("nothing was imported. ")
        assert reason in answer.json()["reason"]
    assert a.get("/queues/%2F/new").status_code == 404
    assert clusters(a) == []
