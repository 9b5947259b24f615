"""The leader goes on whatever the store says, but not when others have taken its node's place."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from flyball.broker.cluster import leader as leader_module
from flyball.broker.cluster.decisions import SessionReport
from flyball.broker.cluster.leader import Leader
from flyball.broker.cluster.names import cluster_key
from flyball.broker.cluster.options import Role
from flyball.broker.cluster.overview import Overview
from flyball.broker.core.directory import Directory
from flyball.broker.peering.membership import Membership
from flyball.broker.store.registry import NodeRecord, NodeState
from flyball.broker.wire import amqp as wire
from flyball.errors import ClusterError, Fenced, StoreError, StoreUnavailable
from flyball.model import PlacedQueue, Queue
from tests.broker.cluster.simulation.clients import AmqpConnection
from tests.broker.cluster.simulation.stage import Stage, on_stage
from tests.broker.cluster.simulation.world import SimulatedNode
from tests.broker.cluster.snapshots import snapshot_of

ORDERS = cluster_key("/", "orders")


class Gravedigger(Leader):
    """A leader that notes whose place others have to take."""

    def __init__(self, directory: Directory, records: list[NodeRecord]) -> None:
        hub = SimpleNamespace(broker=SimpleNamespace(engine=None))
        membership, topology = SimpleNamespace(node_id=1, nodes=records), SimpleNamespace(directory=directory)
        node: Any = SimpleNamespace(membership=membership, topology=topology, hub=hub, definitions=None)
        self.overview = Overview(node)
        self.buried: list[int] = []

    async def _replace(self, node_id: int) -> None:
        self.buried.append(node_id)


def test_queues_that_were_left_to_a_node_which_is_removed_find_another_one() -> None:
    directory = Directory([PlacedQueue(Queue(owner, f"queue {owner}"), owner) for owner in (2, 9)])
    leader = Gravedigger(directory, [NodeRecord(number, "", 1, NodeState.UP, 1, 5.0) for number in (1, 2)])
    asyncio.run(leader._remove_dead_nodes())
    assert leader.buried == [9]


class Stumbling(Leader):
    """A leader that meets these errors, one after the other."""

    def __init__(self, *errors: StoreError) -> None:
        self._errors = list(errors)
        self._agent: Any = SimpleNamespace(leads=True)
        self._jobs: Any = SimpleNamespace(cancel=self._cancel)
        self.led: list[bool] = []
        self.given_up = 0

    async def step(self) -> None:
        self.led.append(self._agent.leads)
        raise self._errors.pop(0)

    def _cancel(self) -> None:
        self.given_up += 1


def stumble(monkeypatch: pytest.MonkeyPatch, *errors: StoreError) -> Stumbling:
    monkeypatch.setattr(leader_module, "PERIOD_S", 0.0)
    leader = Stumbling(*errors, Fenced("it is over"))
    with pytest.raises(Fenced):
        asyncio.run(leader.run())
    return leader


def test_a_node_that_joins_again_while_it_is_replaced_does_not_end_the_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader = stumble(monkeypatch, StoreError("node 3 is not dead"), StoreUnavailable("the store is away"))
    assert leader.led == [True, False, False]


def test_a_leader_that_has_lost_the_store_does_not_go_on_with_its_errands(monkeypatch: pytest.MonkeyPatch) -> None:
    # Once for the store, and once at its end.
    assert stumble(monkeypatch, StoreUnavailable("the store is away")).given_up == 2


async def rest() -> None:
    """In the place of a leader's rounds: it does nothing."""


async def declare(connection: AmqpConnection, node: SimulatedNode, *names: str, durable: bool = False) -> None:
    """Make queues through AMQP, as a client of the node would."""
    assert node.node is not None
    await connection.open(str(node.node.addresses["amqp"]))
    for name in names:
        await connection.ask(wire.QueueDeclare(1, name, False, durable, False, False, False, {}), wire.QueueDeclareOk)


def leader_of(stage: Stage) -> Leader:
    leader = stage.leading.leader
    assert leader is not None
    return leader


@on_stage("a", "b", "c")
async def test_decisions_that_cannot_be_carried_out_are_made_anew_by_another_manager(stage: Stage) -> None:
    leading, leader = stage.leading, leader_of(stage)
    options = {"capacity": 1.0, "max_members": 2}
    await stage.do(leading, "domain.cluster.create", name="orders", options=options, members=[leading.name])
    before = leader.manager

    async def fail(decisions: object) -> None:
        raise StoreUnavailable("the store is away")

    with mock.patch.object(leader._executor, "carry_out", fail), mock.patch.object(leader, "step", rest):
        for _ in range(2):
            await leading.process.start(leader.place("/", "orders", Role.PRODUCER))
        await stage.until(lambda: leading.agent is not None and not leading.agent.leads, "it leads no more")
    await stage.until(stage.is_known, "somebody leads again")
    assert leader_of(stage).manager is not before
    assert len(leader_of(stage).overview.members(ORDERS)) == 1


@on_stage("a")
async def test_nobody_can_end_a_session_or_take_it_over_without_its_id(stage: Stage) -> None:
    leading, leader = stage.leading, leader_of(stage)
    for name in ("orders", "bills"):
        await stage.do(leading, "domain.cluster.create", name=name)

    async def place(name: str, session_id: str = "", arrives: bool = False) -> str:
        placing = leader.place("/", name, Role.PRODUCER, session_id=session_id, arrives=arrives)
        return str((await leading.process.start(placing))["session_id"])

    def producers(name: str) -> int:
        return int(snapshot_of(leader.manager, cluster_key("/", name), 0.0)["producers"])

    first, second = await place("orders"), await place("orders", arrives=True)
    assert len({first, second, await place("orders", first)}) == 2
    assert first.partition(".")[2].partition(".")[0] != second.partition(".")[2].partition(".")[0]
    assert await place("bills", first) != first
    assert (producers("orders"), producers("bills")) == (2, 1)
    leader.manager.report(
        leader.overview.members(ORDERS)[0][0].id,
        0.0,
        ready=0,
        unacked=0,
        sessions=[SessionReport("amqp.1.7", Role.PRODUCER)],
    )
    assert producers("orders") == 2, "it has the place of who does not say its name"
    await leading.process.start(leader.left("amqp.1.7"))
    assert producers("orders") == 2
    await leading.process.start(leader.left(second))
    assert producers("orders") == 1


@on_stage("a", "b")
async def test_reasons_name_nodes_wherever_they_are_shown(stage: Stage) -> None:
    leading, (other,) = stage.leading, stage.following
    await stage.do(leading, "domain.cluster.create", name="orders", members=[other.name])
    await stage.do(leading, "domain.node.remove", name=other.name)
    overview = leader_of(stage).overview
    await stage.until(lambda: overview.member_on(ORDERS, overview.own_id) is not None, "there is another member")
    [orders] = (await stage.do(leading, "domain.show"))["clusters"]
    assert orders["decisions"][0]["what"] == "AddMember"
    assert orders["decisions"][0]["reason"] == f"the member on '{other.name}', the only one, is being removed"


@on_stage("a", "b")
async def test_whoever_spreads_the_queues_reads_the_names_of_the_nodes(stage: Stage) -> None:
    leading, (other,) = stage.leading, stage.following
    connection = AmqpConnection()
    await stage.world.user.start(declare(connection, leading, "q1", "q2", "q3", "q4", durable=True))
    connection.close()
    moves = await stage.do(leading, "domain.rebalance", dry_run=True)
    assert moves[0]["reason"] == f"node '{leading.name}' is at 200 % of the average, node '{other.name}' at 0 %"


@on_stage("a")
async def test_a_node_that_is_started_again_for_a_person_is_told_of_with_the_reason(stage: Stage) -> None:
    leading = stage.leading
    await stage.do(leading, "domain.node.add", name="extra", provisioner="simulated")
    await stage.until(lambda: len(stage.world.serving()) == 2 and stage.is_known(), "it is there")
    stage.world.nodes["extra"].kill()
    await stage.until(lambda: len(stage.world.serving()) == 1, "it is dead")
    await stage.until(lambda: len(stage.world.serving()) == 2 and stage.is_known(), "it is there again")
    decisions = (await stage.do(leading, "domain.decisions"))["decisions"]
    [again] = [told for told in decisions if told["kind"] == "Provision"]
    assert (again["target"], again["what"]) == ("extra", "Restart node 'extra' with provisioner 'simulated'")
    assert again["reason"] == "node 'extra', added by an operator, is dead"


@on_stage("a")
async def test_why_a_node_is_not_there_again_is_told_too(stage: Stage) -> None:
    leader = leader_of(stage)
    await stage.do(stage.leading, "domain.node.add", name="extra", provisioner="simulated")
    await stage.until(lambda: len(stage.world.serving()) == 2 and stage.is_known(), "it is there")

    async def fail(name: str) -> None:
        raise ClusterError("there is no room")

    with mock.patch.object(leader.nodes, "start_again", fail):
        stage.world.nodes["extra"].kill()
        await stage.until(lambda: leader.decision_log.counts["Failure"] > 0, "it is tried in vain")
    told = leader.decision_log.since(0, "")["decisions"]
    assert [decision["kind"] for decision in told[:3]] == ["Lead", "Provision", "Failure"]
    assert told[2]["reason"] == "node 'extra' did not rejoin: there is no room"


@on_stage("a", "b", "c")
async def test_a_dead_node_that_had_only_passing_queues_is_cleaned_up_after(stage: Stage) -> None:
    dead = stage.following[0]
    connection = AmqpConnection()
    await stage.world.user.start(declare(connection, dead, "replies"))
    assert [placed.queue.name for placed in stage.world.domain.queues.values()] == ["replies"]
    dead.kill()
    await stage.until(lambda: not stage.world.domain.queues, "the queue is gone")
    assert ("/", "replies") not in stage.world.domain.names
    await stage.do(stage.leading, "domain.node.remove", name=dead.name, force=True)
    names = [node["name"] for node in (await stage.do(stage.leading, "domain.show"))["nodes"]]
    assert sorted(names) == sorted(node.name for node in stage.world.serving())


@on_stage("a", "b", "c")
async def test_only_a_node_known_to_be_dead_can_be_removed_by_force(
    stage: Stage,
) -> None:
    leading, (dead, silent) = stage.leading, stage.following
    leader = leader_of(stage)

    def is_over(name: str) -> bool:
        return not leader.overview.named(name).is_live

    with mock.patch.object(leader, "step", rest):
        dead.kill()
        silent.process.freeze()
        await stage.until(lambda: is_over(dead.name) and is_over(silent.name), "the leases are over")
        with (
            mock.patch.object(Membership, "may_judge", False),
            pytest.raises(ClusterError, match=r"the lease of node '.' has not expired yet: retry"),
        ):
            await stage.do(leading, "domain.node.remove", name=dead.name, force=True)
        await stage.do(leading, "domain.node.remove", name=dead.name, force=True)
        assert leader.overview.named(silent.name).state is NodeState.UP
        silent.process.thaw()
        await stage.until(lambda: not is_over(silent.name), "it goes on")


@on_stage("a", "b", "c")
async def test_a_node_that_dies_is_replaced_however_long_another_one_has_been_dead(stage: Stage) -> None:
    overview, (first, second) = leader_of(stage).overview, stage.following
    first.kill()
    await stage.until(lambda: overview.named(first.name).state is NodeState.DEAD, "it is declared dead")
    await asyncio.sleep(10.0)
    second.kill()
    await stage.until(lambda: overview.named(second.name).state is NodeState.DEAD, "so is the other one")


@on_stage("a")
async def test_unneeded_node_is_drained_and_stopped_by_one_job(stage: Stage) -> None:
    leading = stage.leading
    options = {"provisioner": "simulated", "min_members": 2, "dwell_s": 1.0}
    await stage.do(leading, "domain.cluster.create", name="orders", options=options)
    await stage.until(lambda: len(stage.world.serving()) == 2, "a node is started")
    await stage.until(lambda: len(leader_of(stage).overview.members(ORDERS)) == 2, "it has a member")
    abouts: list[Any] = []
    jobs = leader_of(stage)._jobs
    spawn = jobs.spawn

    def watched(about: Any, work: Any) -> None:
        abouts.append(about)
        spawn(about, work)

    with mock.patch.object(jobs, "spawn", watched):
        await stage.do(leading, "domain.cluster.change", name="orders", options={"min_members": 1})
        await stage.until(lambda: len(leader_of(stage).overview.nodes) == 1, "it is gone")
    assert {about[0] for about in abouts} == {"remove member", "remove node"}
