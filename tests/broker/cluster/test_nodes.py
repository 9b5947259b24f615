"""Nodes that are started, stopped and forgotten, also by a leader that cannot reach where they run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from flyball.broker.cluster import nodes
from flyball.broker.cluster.names import cluster_key
from flyball.broker.cluster.nodes import JOIN_S, Nodes
from flyball.broker.cluster.overview import Overview
from flyball.broker.store.registry import NodeRecord, NodeState
from flyball.errors import ClusterError
from flyball.model import Definition
from tests.broker.cluster.simulation.stage import Stage, on_stage
from tests.broker.cluster.simulation.world import PROVISIONER

ORDERS = cluster_key("/", "orders")


class Machine:
    """A provisioner that records its commands, and does what it can."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.running: set[str] = set()
        self.can_start = self.can_stop = self.can_be_seen = True

    async def start(self, name: str) -> str:
        self.told.append(f"start {name}")
        if not self.can_start:
            raise ClusterError("there is no room")
        self.running.add(f"{name}!")
        return f"{name}!"

    async def stop(self, handle: str) -> None:
        self.told.append(f"stop {handle}")
        if not self.can_stop:
            raise ClusterError("it does not stop")
        self.running.discard(handle)

    async def alive(self, handle: str) -> bool:
        if not self.can_be_seen:
            raise ClusterError("nobody knows")
        return handle in self.running


class Definitions:
    """Definitions that are kept at once."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, Mapping[str, Any]]] = {"node": {}, "cluster": {}}

    def of(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        return self.kept[kind]

    def put(self, definition: Definition, done: Callable[[None], None]) -> None:
        self.kept[definition.kind][definition.key] = definition.value
        done(None)

    def delete(self, kind: str, key: str, done: Callable[[None], None]) -> None:
        self.kept[kind].pop(key, None)
        done(None)


class Leading:
    """A leader's nodes, over a registry that is a list."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.definitions = Definitions()
        self.records = [NodeRecord(1, "n1", 1, NodeState.UP, 1, 4.0)]
        self.asked: list[str] = []
        self.is_reached = True
        self.meanwhile: Callable[[], None] = lambda: None
        directory = SimpleNamespace(of_node=lambda node_id: [], all=list)
        engine = SimpleNamespace(queues=[])
        node: Any = SimpleNamespace(
            membership=SimpleNamespace(nodes=self.records, node=lambda node_id: None, node_id=1, remove=self._remove),
            definitions=self.definitions,
            topology=SimpleNamespace(directory=directory),
            hub=SimpleNamespace(broker=SimpleNamespace(engine=engine)),
        )
        agent: Any = SimpleNamespace(node=node, ask=self._ask, watch_nodes=self._hear_of_nodes)
        self.nodes = Nodes(agent, Overview(node), {"machine": self.machine})

    def joined(self, name: str, *, is_dead: bool = False) -> NodeRecord:
        state = NodeState.DEAD if is_dead else NodeState.UP
        record = NodeRecord(len(self.records) + 1, name, 1, state, 1, -1.0 if is_dead else 4.0)
        self.records.append(record)
        return record

    async def _remove(self, node_id: int) -> None:
        self.records[:] = [record for record in self.records if record.id != node_id]

    async def _hear_of_nodes(self) -> None:
        self.meanwhile()
        await asyncio.sleep(0)

    async def _ask(self, node_id: int, command: str, **arguments: object) -> None:
        self.asked.append(command)
        if not self.is_reached:
            raise ClusterError(f"node {node_id} does not answer")


@pytest.fixture
def leading() -> Leading:
    return Leading()


def start(leading: Leading, name: str, cluster: str = "") -> None:
    asyncio.run(leading.nodes.start(name, "machine", cluster, None))


def test_a_node_whose_machine_is_gone_can_be_forgotten(leading: Leading) -> None:
    start(leading, "n2")
    record = leading.joined("n2", is_dead=True)
    leading.machine.can_stop = leading.machine.can_be_seen = False
    asyncio.run(leading.nodes.forget(record))
    assert [node.name for node in leading.records] == ["n1"]
    assert leading.definitions.of("node") == {}


def test_provisioner_stops_a_node_only_if_it_does_not_answer(leading: Leading) -> None:
    start(leading, "n2")
    record = leading.joined("n2")
    asyncio.run(leading.nodes.finish_removal(record))
    assert (leading.asked, leading.machine.told) == (["node.stop"], ["start n2"])
    leading.is_reached = False
    asyncio.run(leading.nodes.finish_removal(record))
    assert leading.machine.told == ["start n2", "stop n2!"]


def test_a_node_that_nobody_started_and_that_does_not_answer_cannot_be_stopped(leading: Leading) -> None:
    leading.is_reached = False
    with pytest.raises(ClusterError, match="does not answer"):
        asyncio.run(leading.nodes.finish_removal(leading.joined("n2")))


def test_process_of_a_dead_node_is_found_without_a_replacement(leading: Leading) -> None:
    start(leading, "n2")
    before = leading.definitions.of("node")["n2"]
    leading.joined("n2", is_dead=True)
    leading.machine.can_stop = leading.machine.can_start = False
    with pytest.raises(ClusterError, match="there is no room"):
        start(leading, "n2")
    assert leading.definitions.of("node") == {"n2": before}


def test_nothing_is_left_of_a_node_that_could_not_be_started(leading: Leading) -> None:
    leading.machine.can_start = False
    with pytest.raises(ClusterError, match="there is no room"):
        start(leading, "n2")
    assert leading.definitions.of("node") == {}


def test_a_node_that_was_started_and_never_joins_is_stopped_and_forgotten(leading: Leading) -> None:
    start(leading, "n2")
    assert leading.nodes.overdue(0.0) == []
    assert leading.nodes.overdue(JOIN_S) == []
    assert leading.nodes.overdue(JOIN_S + 1) == ["n2"]
    asyncio.run(leading.nodes.give_up("n2"))
    assert leading.machine.running == set()
    assert leading.definitions.of("node") == {}
    assert leading.nodes.overdue(JOIN_S + 1) == []


def test_nobody_gives_up_who_is_there_or_who_a_person_wants_back(leading: Leading) -> None:
    start(leading, "n2")
    leading.joined("n2")
    start(leading, "n3")
    leading.joined("n3", is_dead=True)
    assert leading.nodes.overdue(0.0) == leading.nodes.overdue(2 * JOIN_S) == []


def test_dead_nodes_that_somebody_had_started_and_still_wants_are_lost(leading: Leading) -> None:
    for name in ("here", "dead", "leaving", "for a queue"):
        start(leading, name, ORDERS if name == "for a queue" else "")
        record = leading.joined(name, is_dead=name != "here")
        if name == "leaving":
            asyncio.run(leading.nodes.begin_removal(record))
    leading.joined("started by hand", is_dead=True)
    assert leading.nodes.lost() == ["dead"]


def test_a_lost_node_is_started_again_and_awaited(leading: Leading) -> None:
    start(leading, "n2")
    leading.joined("n2", is_dead=True)

    def join() -> None:
        del leading.records[1:]
        leading.joined("n2")

    leading.meanwhile = join
    asyncio.run(leading.nodes.start_again("n2"))
    assert leading.machine.told == ["start n2", "stop n2!", "start n2"]
    assert leading.nodes.lost() == []


def test_a_lost_node_that_does_not_come_is_lost_still(leading: Leading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "JOIN_S", 0.0)
    start(leading, "n2")
    leading.joined("n2", is_dead=True)
    with pytest.raises(ClusterError, match="was restarted and has not joined"):
        asyncio.run(leading.nodes.start_again("n2"))
    assert leading.nodes.lost() == ["n2"]


def test_dead_node_of_a_clustered_queue_without_replacement_is_forgotten(
    leading: Leading,
) -> None:
    leading.definitions.kept["cluster"][ORDERS] = {"options": {"start_s": 5.0}}
    start(leading, "orders-1", ORDERS)
    leading.joined("orders-1", is_dead=True)
    leading.machine.can_stop = False
    assert leading.nodes.overdue(0.0) == []
    assert leading.nodes.overdue(6.0) == ["orders-1"]
    asyncio.run(leading.nodes.give_up("orders-1"))
    assert [node.name for node in leading.records] == ["n1"]
    assert leading.definitions.of("node") == {}


def test_a_node_that_may_still_come_is_not_forgotten(leading: Leading) -> None:
    start(leading, "n2")
    leading.machine.can_stop = False
    with pytest.raises(ClusterError, match="it does not stop"):
        asyncio.run(leading.nodes.give_up("n2"))
    leading.machine.can_be_seen = False
    with pytest.raises(ClusterError, match="nobody knows"):
        asyncio.run(leading.nodes.give_up("n2"))
    assert "n2" in leading.definitions.of("node")
    leading.machine.can_be_seen, leading.machine.running = True, set()
    asyncio.run(leading.nodes.give_up("n2"))
    assert leading.definitions.of("node") == {}


@on_stage("a")
async def test_a_domain_stops_a_node_that_it_has_started_and_that_never_joins(stage: Stage) -> None:
    started: list[str] = []
    stopped: list[str] = []

    async def start(name: str) -> str:
        started.append(name)
        return name

    async def stop(handle: str) -> None:
        stopped.append(handle)

    stage.world.start, stage.world.stop = start, stop  # type: ignore[method-assign]
    options = {"provisioner": PROVISIONER, "min_members": 2, "start_s": 5.0}
    await stage.do(stage.leading, "domain.cluster.create", name="orders", options=options)
    await stage.until(lambda: len(started) > 1, "another node is started instead")
    assert stopped == started[:-1]


@on_stage("a")
async def test_node_of_an_operator_is_restarted_by_any_leader(stage: Stage) -> None:
    leading, world = stage.leading, stage.world
    await stage.do(leading, "domain.node.add", name="extra", provisioner=PROVISIONER)
    await stage.until(lambda: len(world.serving()) == 2, "it joins")
    start, refused = world.start, []

    async def refuse(name: str) -> str:
        refused.append(name)
        raise ClusterError("there is no room")

    world.start = refuse  # type: ignore[method-assign]
    world.nodes["extra"].kill()
    await stage.until(lambda: len(refused) > 1, "nobody can start it")
    assert leading.agent is not None
    # Another term: this manager has never been notified of the node.
    leading.agent.leads = False
    world.start = start  # type: ignore[method-assign]
    await stage.until(lambda: len(world.serving()) == 2, "it is there again")
