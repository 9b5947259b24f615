"""Members that are marked and removed while others change their minds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from flyball.broker.cluster.clusters import Clusters
from flyball.broker.cluster.names import cluster_key
from flyball.broker.store.registry import NodeRecord, NodeState
from flyball.model import Definition

ORDERS = cluster_key("/", "orders")


class Leading:
    """A leader's clustered queues; `n2` serves member 7, and catches up with definitions on demand."""

    def __init__(self, **definition: Any) -> None:
        self.clusters: dict[str, Any] = {ORDERS: {"vhost": "/", "name": "orders", **definition}}
        self.asked: list[str] = []
        self.version = 1
        self.seen_version = 1
        self.meanwhile: Callable[[], None] = lambda: None

    @property
    def nodes(self) -> list[NodeRecord]:
        return [NodeRecord(2, "n2", 1, NodeState.UP, 1, 4.0, seen_version=self.seen_version)]

    def of(self, kind: str) -> dict[str, Any]:
        return self.clusters

    def put(self, definition: Definition, done: Callable[[None], None]) -> None:
        self.clusters[definition.key] = definition.value
        self.version += 1
        done(None)

    async def catch_up(self) -> None:
        self.meanwhile()

    async def watch_nodes(self) -> None:
        self.meanwhile()

    async def ask(self, node_id: int, command: str, **arguments: object) -> bool:
        self.asked.append(command)
        return True

    def made(self) -> Clusters:
        agent: Any = SimpleNamespace(
            node=SimpleNamespace(definitions=self, membership=self), ask=self.ask, watch_nodes=self.watch_nodes
        )
        overview: Any = self
        clusters = Clusters(agent, overview)
        clusters.begin()
        return clusters


def test_a_member_that_is_wanted_again_while_its_removal_waits_is_not_removed() -> None:
    leading = Leading(marked=[])
    clusters = leading.made()

    def un_mark() -> None:
        leading.clusters[ORDERS] = {**leading.clusters[ORDERS], "marked": []}
        leading.seen_version = leading.version

    async def scenario() -> None:
        await clusters.mark(ORDERS, 7)
        leading.meanwhile = un_mark
        await clusters.remove_member(ORDERS, 7, 2)

    asyncio.run(scenario())
    assert leading.asked == []


def test_a_member_is_not_left_alone_before_its_mark_is_known_to_be_stored() -> None:
    leading = Leading(marked=[])
    clusters = leading.made()
    left_alone: list[bool] = []
    leading.meanwhile = lambda: left_alone.append(clusters._is_left_alone(7))

    async def scenario() -> None:
        leading.seen_version = 1000
        await clusters.mark(ORDERS, 7)

    asyncio.run(scenario())
    assert left_alone == [False]
    assert clusters._is_left_alone(7)


def test_a_marked_member_is_removed_when_all_nodes_know_of_the_mark() -> None:
    leading = Leading(marked=[])
    clusters = leading.made()

    def follow() -> None:
        leading.seen_version = leading.version

    async def scenario() -> None:
        await clusters.mark(ORDERS, 7)
        leading.meanwhile = follow
        await clusters.remove_member(ORDERS, 7, 2)

    asyncio.run(scenario())
    assert leading.asked == ["member.remove"]
    assert leading.clusters[ORDERS]["marked"] == []
