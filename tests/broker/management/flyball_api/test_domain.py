"""The console shows the domain and why its manager does what it does, and lets administrators change it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest

from flyball.broker.cluster.node import attached
from flyball.broker.management.part import console_part
from flyball.broker.node.node import Node
from tests.broker.domains import two_nodes
from tests.broker.management.flyball_api.streams import GUEST
from tests.nodes import ANSWER_LIMIT_S, RunningNode

Users = dict[str, tuple[str, str]]
Pages = list[httpx.Client]


@asynccontextmanager
async def governed(node: Node) -> AsyncIterator[None]:
    """Let a node take part in the government of its domain."""
    async with attached(node, {}, asyncio.Event()):
        yield


@contextmanager
def pages_of(*nodes: RunningNode) -> Iterator[Pages]:
    pages = [
        httpx.Client(base_url=f"http://{node.address('http')}/api/flyball", auth=GUEST, timeout=ANSWER_LIMIT_S)
        for node in nodes
    ]
    yield pages
    for page in pages:
        page.close()


def test_a_node_by_itself_is_its_own_domain(api: httpx.Client, node: RunningNode) -> None:
    assert api.get("/domain").json()["leader"] == "north"
    assert api.get("/domain/decisions").json() == {"leader": None, "term": None, "last": 0, "decisions": []}
    refused = api.post("/domain/commands/rebalance", json={})
    assert (refused.status_code, "does not belong to a domain" in refused.json()["reason"]) == (404, True)


@pytest.fixture
def nodes(tmp_path: Path, new_database: Callable[[], str]) -> Iterator[tuple[RunningNode, RunningNode]]:
    parts = [governed, console_part()]
    with two_nodes(tmp_path, new_database, parts=parts, http="127.0.0.1:0", thorbang="off") as nodes:
        yield nodes


def until(ask: Callable[[], Any], condition: Callable[[Any], bool]) -> Any:
    while not condition(found := ask()):
        pass
    return found


def test_decisions_are_told_with_their_reasons_on_every_node(nodes: tuple[RunningNode, RunningNode]) -> None:
    with pages_of(*nodes) as pages:
        created = pages[1].post("/domain/commands/cluster.create", json={"name": "orders", "members": ["a"]})
        assert (created.status_code, created.json()) == (200, {"result": None})
        added = pages[0].post("/domain/commands/domain.cluster.add", json={"name": "orders", "node": "b"})
        assert added.status_code == 200, added.text
        until(lambda: members(pages[0]), lambda found: set(found) == {"a", "b"})
        assert (
            pages[0].post("/domain/commands/cluster.remove", json={"name": "orders", "node": "b"}).status_code == 200
        )
        for page in pages:
            told = until(lambda page=page: page.get("/domain/decisions").json(), has_marked)  # type: ignore[misc]
            assert told["leader"] in ("a", "b")
            assert told["decisions"][0]["kind"] == "Lead"
            [marked] = [decision for decision in told["decisions"] if decision["kind"] == "Mark"]
            assert (marked["target"], marked["cluster"]) == ("b", {"vhost": "/", "name": "orders"})
            assert marked["reason"] == "its removal was requested"
            newer = page.get("/domain/decisions", params={"since": marked["number"], "term": told["term"]}).json()
            assert all(decision["number"] > marked["number"] for decision in newer["decisions"])


def test_the_provisioning_of_a_clustered_queue_is_a_loop_of_the_leader(
    nodes: tuple[RunningNode, RunningNode],
) -> None:
    with pages_of(*nodes) as pages:
        pages[0].post("/domain/commands/cluster.create", json={"name": "orders", "members": ["a", "b"]})
        loop = until(lambda: pages[0].get("/loops/domain.orders").json(), lambda found: found.get("last"))
        assert loop["title"] == "provisioning of orders"
        assert loop["last"]["setpoint"] == 1.0
        assert not loop["can_switch"]
        pages[0].post("/domain/commands/cluster.delete", json={"name": "orders"})
        until(lambda: pages[0].get("/loops/domain.orders").status_code, lambda status: status == 404)


def test_who_uses_a_clustered_queue_is_told_with_the_member_that_serves_it(
    nodes: tuple[RunningNode, RunningNode],
) -> None:
    with pages_of(*nodes) as pages:
        pages[0].post("/domain/commands/cluster.create", json={"name": "orders", "members": ["a", "b"]})
        host, port = nodes[1].address("amqp")
        with pika.BlockingConnection(pika.ConnectionParameters(host, port, heartbeat=0)) as connection:
            connection.channel().basic_consume("orders", lambda *_: None)
            for page in pages:
                [session] = until(lambda page=page: page.get("/domain/sessions").json(), bool)  # type: ignore[misc]
                assert (session["role"], session["vhost"], session["queue"]) == ("consumer", "/", "orders")
                assert session["node"] == "b"
        until(lambda: pages[0].get("/domain/sessions").json(), lambda found: found == [])


def members(page: httpx.Client) -> list[str]:
    [cluster] = page.get("/domain").json()["clusters"]
    return [member["node"] for member in cluster["members"]]


def has_marked(told: dict[str, Any]) -> bool:
    return any(decision["kind"] == "Mark" for decision in told.get("decisions", ()))


def test_what_cannot_be_is_refused_with_the_reason(nodes: tuple[RunningNode, RunningNode]) -> None:
    with pages_of(nodes[0]) as [page]:
        refused = page.post("/domain/commands/node.add", json={"name": "a", "provisioner": "cloud"})
        assert (refused.status_code, refused.json()["error"]) == (409, "conflict")
        assert "unknown provisioner 'cloud'" in refused.json()["reason"]
        for arguments in ({"colour": "red"}, {"name": "c", "governor": "me"}, {}):
            assert page.post("/domain/commands/node.add", json=arguments).status_code == 400
        assert page.post("/domain/commands/world.end", json={}).status_code == 404
        assert page.get("/domain/decisions?since=yesterday").status_code == 400


def test_only_those_with_the_right_look_and_change(api: httpx.Client, users: Users) -> None:
    def status(user: str, method: str, path: str) -> int:
        return api.request(method, path, auth=users[user]).status_code

    assert [status(user, "GET", "/domain") for user in users] == [401, 401, 200]
    assert [status(user, "GET", "/domain/decisions") for user in users] == [401, 401, 200]
    assert [status(user, "GET", "/domain/sessions") for user in users] == [401, 401, 200]
    assert [status(user, "POST", "/domain/commands/rebalance") for user in users] == [401, 401, 401]


def test_a_mistake_inside_a_command_is_not_told_as_one_of_who_asks(api: httpx.Client, node: RunningNode) -> None:
    async def broken() -> None:
        raise TypeError("ours")

    node.call(lambda node: node.hub.commands.update({"domain.broken": broken}))
    answer = api.post("/domain/commands/broken", json={})
    assert (answer.status_code, "ours" in answer.text) == (500, False)
