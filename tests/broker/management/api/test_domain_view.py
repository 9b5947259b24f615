"""Reports of several nodes on a clustered queue are merged into one."""

from __future__ import annotations

from typing import Any

from flyball.broker.management import inspection
from flyball.broker.management.api.domain_view import ListedQueue, queue_count
from flyball.broker.node.node import Node
from flyball.model import Queue
from tests.nodes import RunningNode

MEMBER = Queue(1, "clustered", member=True)


def told(console_node: RunningNode, node: str, **differences: Any) -> dict[str, Any]:
    """Return a node's report on its member."""

    def facts(here: Node) -> dict[str, Any]:
        return inspection.queue_facts(here, here.hub.broker.engine.queues[0])

    return {**console_node.call(facts), "name": "clustered", "node": node, "member": True, **differences}


def test_members_of_a_clustered_queue_are_counted_together(console_node: RunningNode, channel: Any) -> None:
    channel.queue_declare("any")
    listed = ListedQueue(console_node.node, MEMBER, None, 2)
    listed.add(told(console_node, "south", ready=2, messages=3, published=7, ready_bytes=10, head_age_s=None))
    listed.add(told(console_node, "west", ready=1, messages=1, published=1, ready_bytes=5, head_age_s=4.0))
    assert (listed.count("ready"), listed.count("messages")) == (3, 4)
    found = listed.facts()
    assert (found["ready"], found["messages"], found["published"]) == (3, 4, 8)
    assert (found["ready_bytes"], found["head_age_s"], found["members"]) == (15, 4.0, ["south", "west"])


def test_bytes_that_one_member_does_not_know_nobody_knows(console_node: RunningNode, channel: Any) -> None:
    channel.queue_declare("any")
    listed = ListedQueue(console_node.node, MEMBER, None, 2)
    for node, ready_bytes, unacked_bytes in (("south", None, 3), ("west", 5, 4)):
        listed.add(told(console_node, node, ready_bytes=ready_bytes, unacked_bytes=unacked_bytes))
    assert (listed.facts()["ready_bytes"], listed.facts()["unacked_bytes"]) == (None, 7)


def test_of_a_queue_that_nobody_tells_of_only_the_declaration_is_known(console_node: RunningNode) -> None:
    listed = ListedQueue(console_node.node, Queue(1, "silent", arguments={"x-queue-type": "quorum"}), None, 2)
    assert listed.count("messages") is None
    found = listed.facts()
    assert (found["state"], found["name"], found["type"], found["node"]) == ("down", "silent", "quorum", "2")


def test_a_clustered_queue_is_counted_once(console_node: RunningNode) -> None:
    def scenario(node: Node) -> list[int]:
        counts = [queue_count(node)]
        for number in (901, 902):
            node.hub.directory.put(Queue(number, "clustered", member=True), number)
            counts.append(queue_count(node))
        for number in (901, 902):
            node.hub.directory.remove(number)
        return counts

    none, one, still_one = console_node.call(scenario)
    assert (one, still_one) == (none + 1, none + 1)
