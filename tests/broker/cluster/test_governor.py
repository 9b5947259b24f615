"""Commands of a domain, given to any of its nodes and carried out by the one that leads."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pytest

from flyball.broker.cluster import agent
from flyball.broker.cluster.names import cluster_key
from flyball.broker.cluster.rebalancing import OwnerMove
from flyball.broker.core.pending import outcome
from flyball.broker.wire import amqp as wire
from flyball.errors import ClusterError, InvalidArgument
from flyball.model import Definition
from tests.broker.cluster.simulation.clients import AmqpConnection
from tests.broker.cluster.simulation.stage import Stage, on_stage
from tests.broker.cluster.simulation.world import SimulatedNode

ORDERS = cluster_key("/", "orders")


@on_stage("a", "b", "c")
async def test_options_that_two_change_at_the_same_time_are_both_changed(stage: Stage) -> None:
    await stage.do(stage.leading, "domain.cluster.create", name="orders", options={"min_members": 2})
    first, second = stage.following
    await asyncio.gather(
        stage.do(first, "domain.cluster.change", name="orders", options={"max_members": 8}),
        stage.do(second, "domain.cluster.change", name="orders", options={"dwell_s": 60.0}),
    )
    facts = await stage.do(first, "domain.show")
    options = facts["clusters"][0]["options"]
    assert (options["min_members"], options["max_members"], options["dwell_s"]) == (2, 8, 60.0)


@on_stage("a", "b", "c")
async def test_one_of_two_concurrent_creations_is_refused(
    stage: Stage,
) -> None:
    creating = [stage.do(node, "domain.cluster.create", name="orders") for node in stage.following]
    outcomes = await asyncio.gather(*creating, return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["ClusterError", "NoneType"]
    facts = await stage.do(stage.leading, "domain.show")
    assert [len(cluster["members"]) for cluster in facts["clusters"]] == [1]


@on_stage("a", "b")
async def test_clustered_queue_cannot_be_created_during_its_deletion(stage: Stage) -> None:
    (other,) = stage.following
    await stage.do(other, "domain.cluster.create", name="orders", members=[other.name])
    other.process.freeze()
    deleting = stage.do(stage.leading, "domain.cluster.delete", name="orders")
    await asyncio.sleep(0)
    with pytest.raises(ClusterError, match="is being deleted: retry"):
        await stage.do(stage.leading, "domain.cluster.create", name="orders")
    other.process.thaw()
    await deleting
    await stage.do(stage.leading, "domain.cluster.create", name="orders")


@on_stage("a", "b")
async def test_a_node_that_does_not_lead_changes_nothing_whoever_asks(stage: Stage) -> None:
    (other,) = stage.following
    assert stage.leading.agent is not None
    assert other.node is not None
    own_id = other.node.membership.node_id
    commands: dict[str, dict[str, Any]] = {
        "domain.govern": {"name": "domain.cluster.create", "arguments": {"name": "orders"}},
        "cluster.place": {"vhost": "/", "name": "orders", "role": "producer"},
        "cluster.left": {"session_id": "x"},
        "domain.tell": {},
    }
    for command, arguments in commands.items():
        asking = stage.leading.process.start(stage.leading.agent.ask(own_id, command, **arguments))
        with pytest.raises(ClusterError, match="is not the leader: retry"):
            await asking
    assert (await stage.do(other, "domain.show"))["clusters"] == []


@on_stage("a", "b")
async def test_what_is_wrong_with_an_argument_is_told_whichever_node_was_asked(stage: Stage) -> None:
    for node in (stage.leading, *stage.following):
        with pytest.raises(InvalidArgument, match=r"domain\.cluster\.create: name: Input should be a valid string"):
            await stage.do(node, "domain.cluster.create", name=7)
        with pytest.raises(ClusterError, match="unknown option 'max_member', did you mean 'max_members'"):
            await stage.do(node, "domain.cluster.create", name="orders", options={"max_member": 7})


@on_stage("a", "b")
async def test_an_option_of_a_newer_version_ends_nobody_and_outlives_a_change(stage: Stage) -> None:
    leading = stage.leading
    await stage.do(leading, "domain.cluster.create", name="orders", options={"min_members": 2})
    assert leading.node is not None
    definitions = leading.node.definitions

    async def upgrade() -> None:
        value = definitions.of("cluster")[ORDERS]
        newer = {**value, "options": {**value["options"], "mood": "good"}}
        await outcome(lambda done: definitions.put(Definition("cluster", ORDERS, newer), done))

    await leading.process.start(upgrade())
    await stage.do(stage.following[0], "domain.cluster.change", name="orders", options={"surplus": 7})
    await asyncio.sleep(5.0)
    assert len(stage.world.serving()) == 2
    assert definitions.of("cluster")[ORDERS]["options"] == {"min_members": 2, "mood": "good", "surplus": 7}
    (cluster,) = (await stage.do(leading, "domain.show"))["clusters"]
    assert (cluster["options"]["min_members"], cluster["options"]["surplus"]) == (2, 7)


async def declare(stage: Stage, node: SimulatedNode, *names: str) -> None:
    """Let a node have durable queues of these names."""
    assert node.node is not None
    address = str(node.node.addresses["amqp"])

    async def work() -> None:
        connection = AmqpConnection()
        await connection.open(address)
        for name in names:
            declared = wire.QueueDeclare(1, name, False, True, False, False, False, {})
            await connection.ask(declared, wire.QueueDeclareOk)
        connection.close()

    await stage.world.user.start(work())


@on_stage("a", "b")
async def test_queues_that_are_rebalanced_move_each_for_itself_while_nobody_waits(stage: Stage) -> None:
    leading, (other,) = stage.leading, stage.following
    await declare(stage, leading, "first", "second", "third", "fourth")
    assert leading.leader is not None
    nodes = leading.leader.nodes
    move = nodes.move
    failed: list[int] = []

    async def fail_once(wanted: OwnerMove) -> None:
        if not failed:
            failed.append(wanted.queue)
            raise ClusterError("the node does not answer")
        await move(wanted)

    def owners() -> dict[int, int]:
        assert other.agent is not None
        return {queue.id: owner for queue, owner in other.agent.overview.ordinary()}

    await stage.until(lambda: len(owners()) == 4, "both know the queues")
    before = owners()
    with mock.patch.object(nodes, "move", fail_once):
        assert len(await stage.do(leading, "domain.rebalance", dry_run=True)) == 2
        moves = await stage.do(leading, "domain.rebalance")
        assert len(moves) == 2
        told = leading.leader.decision_log.since(0, "")["decisions"]
        assert [(decision["kind"], decision["target"]) for decision in told if decision["kind"] != "Lead"] == [
            ("MoveQueue", move["name"]) for move in moves
        ]
        assert told[-1]["reason"] == f"a rebalance was requested: {moves[-1]['reason']}"
        assert owners() == before
        await stage.until(lambda: owners() != before, "one moves")
    (stayed,) = failed
    assert owners()[stayed] == before[stayed]


@on_stage("a")
async def test_what_is_in_a_queue_that_its_node_does_not_tell_of_is_shown_as_unknown(stage: Stage) -> None:
    leading = stage.leading
    with mock.patch.object(agent, "MAX_QUEUES_REPORTED", 1):
        await declare(stage, leading, "first", "second")
        await asyncio.sleep(2.0)
        (node,) = (await stage.do(leading, "domain.show"))["nodes"]
    assert [(queue["name"], queue["ready"]) for queue in node["queues"]] == [("first", 0), ("second", None)]


@on_stage("a", "b", "c")
async def test_a_node_whose_member_somebody_had_removed_gets_none_again_whoever_leads(stage: Stage) -> None:
    leading = stage.leading
    first, second = sorted(stage.following, key=lambda node: node.store.registry.node_id if node.store else 0)
    options = {"dwell_s": 1.0}
    await stage.do(
        leading, "domain.cluster.create", name="orders", options=options, members=[leading.name, first.name]
    )

    def served_by() -> set[str]:
        assert leading.leader is not None
        overview = leading.leader.overview
        return {overview.name_of(owner) for _, owner in overview.members(ORDERS)}

    await stage.do(leading, "domain.cluster.remove", name="orders", node=first.name)
    await stage.until(lambda: served_by() == {leading.name}, "the member is gone")
    assert leading.agent is not None
    # Another term.
    leading.agent.leads = False
    await stage.until(stage.is_known, "it leads again")
    await stage.do(leading, "domain.cluster.change", name="orders", options={"min_members": 2})
    await stage.until(lambda: len(served_by()) == 2, "there is another member")
    assert served_by() == {leading.name, second.name}
    await stage.do(leading, "domain.cluster.add", name="orders", node=first.name)
    await stage.until(lambda: len(served_by()) == 3, "it is wanted again")
    assert leading.leader is not None
    assert leading.leader.overview.unwanted(ORDERS) == frozenset()


@on_stage("a", "b")
async def test_topics_are_shown_as_clustered_where_several_nodes_have_them(stage: Stage) -> None:
    leading, following = stage.leading, stage.following[0]
    assert leading.node is not None
    await leading.process.start(leading.node.hub.topics.create("news"))
    facts = await stage.do(leading, "domain.show")
    assert facts["clustered_topics"] == [{"vhost": "/", "name": "news", "nodes": ["a", "b"]}]
    following.kill()
    await stage.until(lambda: len(stage.world.serving()) == 1, "one is left")
    assert leading.leader is not None
    overview = leading.leader.overview
    await stage.until(lambda: len(overview.live) == 1, "the other is missed")
    assert (await stage.do(leading, "domain.show"))["clustered_topics"] == []
