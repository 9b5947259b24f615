"""Probes answer without a login whether the event loop turns and the node serves clients, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import uvloop

from flyball.broker.management import probes
from flyball.broker.node.node import Node
from flyball.broker.store.postgres.embedded import EmbeddedPostgres
from flyball.broker.store.registry import NodeState
from tests.nodes import ANSWER_LIMIT_S, RunningNode, with_api

OK = {"status": "ok"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with RunningNode(tmp_path_factory.mktemp("probed"), **with_api(store="memory")) as found:
        yield found


def probe(node: RunningNode, name: str, **options: object) -> httpx.Response:
    return httpx.get(f"{node.url}/health/{name}", timeout=ANSWER_LIMIT_S, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["live", "ready"])
def test_serving_node_is_live_and_ready_without_login(node: RunningNode, name: str) -> None:
    answer = probe(node, name)
    assert (answer.status_code, answer.json()) == (200, OK)
    assert answer.headers["cache-control"] == "no-store"
    assert httpx.head(f"{node.url}/health/{name}", timeout=ANSWER_LIMIT_S).status_code == 200


def test_wrong_login_does_not_matter_and_is_not_counted(node: RunningNode) -> None:
    for _ in range(50):
        assert probe(node, "ready", auth=("guest", "wrong")).status_code == 200
    assert httpx.get(f"{node.url}/api/whoami", auth=("guest", "guest"), timeout=ANSWER_LIMIT_S).status_code == 200


def _stopping(node: Node) -> Callable[[], None]:
    node.hub.is_stopping = True
    return lambda: setattr(node.hub, "is_stopping", False)


def _starting(node: Node) -> Callable[[], None]:
    node.membership.state = NodeState.JOINING
    return lambda: setattr(node.membership, "state", NodeState.UP)


def _without_lease(node: Node) -> Callable[[], None]:
    ends_s = node.hub.lease_ends_s
    node.hub.lease_ends_s = 0.0
    return lambda: setattr(node.hub, "lease_ends_s", ends_s)


@pytest.mark.parametrize(
    ("hinder", "reason"),
    [
        (_stopping, "the node is stopping"),
        (_starting, "the node is starting"),
        (_without_lease, "the node has lost its lease"),
    ],
)
def test_node_that_does_not_serve_clients_says_why(
    node: RunningNode, hinder: Callable[[Node], Callable[[], None]], reason: str
) -> None:
    def look(node: Node) -> str | None:
        # In one turn of the loop: the node itself must not notice.
        end = hinder(node)
        try:
            return probes.obstacle(node)
        finally:
            end()

    assert node.call(look) == reason
    assert probe(node, "ready").status_code == 200


def test_idle_node_whose_store_is_gone_is_live_but_not_ready(tmp_path: Path) -> None:
    database = EmbeddedPostgres(tmp_path / "database")
    uvloop.run(database.start())
    try:
        with RunningNode(tmp_path / "node", **with_api(store=database.dsn)) as node:
            assert probe(node, "ready").json() == OK
            uvloop.run(database.stop())
            while (answer := probe(node, "ready")).status_code == 200:
                pass
            assert answer.status_code == 503
            # No path, address or name of the database: anyone may ask.
            assert answer.json()["reason"] in ("the store does not answer", "the node has lost its lease")
            assert probe(node, "live").json() == OK
            uvloop.run(database.start())
            while probe(node, "ready").status_code != 200:
                pass
    finally:
        uvloop.run(database.stop())
