"""Display of a domain: a tree, a table of members, lines for moves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from flyball.broker.cluster.names import titled, valued
from flyball.cli.output import Branch, Output

if TYPE_CHECKING:
    from flyball.broker.cluster.facts import (
        ClusterFacts,
        DomainFacts,
        FactoryFacts,
        MemberFacts,
        MoveFacts,
        NodeFacts,
        QueueFacts,
        TopicFacts,
        UserFacts,
    )

BY_HAND = "by hand"


def tree_of(facts: DomainFacts) -> Branch:
    """Return the tree of a domain. Empty parts are left out."""
    leader = facts["leader"]
    root = Branch(f"domain of {counted(len(facts['nodes']), 'node')}, led by {leader or 'no node yet'}")
    parts = (
        ("nodes", [_node(node, leader) for node in facts["nodes"]]),
        ("clustered queues", [_cluster(cluster) for cluster in facts["clusters"]]),
        ("topics", _topics(facts["topics"])),
        ("users", [_user(user) for user in facts["users"]]),
        ("connection factories", [_factory(factory) for factory in facts["factories"]]),
    )
    root.twigs = [Branch(name, twigs) for name, twigs in parts if twigs]
    return root


def _node(node: NodeFacts, leader: str | None) -> Branch:
    lease_s = node["lease_left_s"]
    words = [
        f"{node['state']}, epoch {node['epoch']}",
        "no lease" if lease_s is None else f"lease {lease_s:.1f} s" if lease_s > 0 else "lease over",
        f"started {BY_HAND}" if node["provisioner"] is None else f"started by {node['provisioner']}",
    ]
    words += ["for the manager"] if node["managed"] else []
    words += ["leader"] if node["name"] == leader else []
    twigs = [Branch(f"{protocol} {address}") for protocol, address in node["addresses"].items()]
    twigs += [Branch(_queue(queue)) for queue in node["queues"]]
    return Branch(f"{node['name']}: {', '.join(words)}", twigs)


def _queue(queue: QueueFacts) -> str:
    if queue["ready"] is None or queue["consumers"] is None:
        return f"queue {titled(queue['vhost'], queue['name'])}: ? ready, ? unacknowledged, ? consumers"
    return (
        f"queue {titled(queue['vhost'], queue['name'])}: {queue['ready']} ready, "
        f"{queue['unacked']} unacknowledged, {counted(queue['consumers'], 'consumer')}"
    )


def _cluster(cluster: ClusterFacts) -> Branch:
    return Branch(summary_of(cluster), [Branch(_member(member)) for member in cluster["members"]])


def summary_of(cluster: ClusterFacts) -> str:
    """Describe a clustered queue in one line."""
    return (
        f"{titled(cluster['vhost'], cluster['name'])}: {counted(len(cluster['members']), 'member')}, "
        f"{counted(cluster['producers'], 'producer')}, {counted(cluster['consumers'], 'consumer')}, "
        f"load {cluster['load']:.2f}"
    )


def _member(member: MemberFacts) -> str:
    return (
        f"{member['node']}: {counted(member['producers'], 'producer')} (x {member['x']:.2f}), "
        f"{counted(member['consumers'], 'consumer')} (y {member['y']:.2f}), "
        f"load {member['load']:.2f} of capacity {member['capacity']:g}, "
        f"{member['ready']} ready, {member['unacked']} unacknowledged{_remarks(member)}"
    )


def _remarks(member: MemberFacts) -> str:
    return (", fixed" if member["fixed"] else "") + (", draining" if member["marked"] else "")


def _topics(topics: Sequence[TopicFacts]) -> list[Branch]:
    """Nest topics below their parents; a topic whose parent is gone is at the top."""
    branches = {(topic["vhost"], topic["name"]): Branch(_topic(topic)) for topic in topics}
    roots: list[Branch] = []
    for topic in topics:
        branch = branches[topic["vhost"], topic["name"]]
        parent = None if topic["parent"] is None else branches.get((topic["vhost"], topic["parent"]))
        (roots if parent is None else parent.twigs).append(branch)
    return roots


def _topic(topic: TopicFacts) -> str:
    subscriptions = topic["subscriptions"]
    below = f": {', '.join(subscriptions)}" if subscriptions else ""
    return f"{titled(topic['vhost'], topic['name'])}, {counted(len(subscriptions), 'subscription')}{below}"


def _user(user: UserFacts) -> Branch:
    return Branch(f"{user['name']}: {', '.join(user['tags'])}" if user["tags"] else user["name"])


def _factory(factory: FactoryFacts) -> Branch:
    kind = "clustered, " if factory["clustered"] else ""
    return Branch(f"{factory['name']}: {kind}to {', '.join(factory['nodes']) or 'no node'}")


def show_cluster(cluster: ClusterFacts, out: Output) -> None:
    """Print a clustered queue: members, options and decisions."""
    out.show(summary_of(cluster), None)
    out.show("", None)
    out.table(
        ("node", "producers", "x", "consumers", "y", "load", "capacity", "ready", "unacked", "given", ""),
        [
            (
                member["node"],
                member["producers"],
                f"{member['x']:.2f}",
                member["consumers"],
                f"{member['y']:.2f}",
                f"{member['load']:.2f}",
                f"{member['capacity']:g}",
                member["ready"],
                member["unacked"],
                member["given"],
                _remarks(member).removeprefix(", "),
            )
            for member in cluster["members"]
        ],
    )
    out.show("", None)
    out.table(("option", "value"), [(name, valued(value)) for name, value in cluster["options"].items()])
    if cluster["decisions"]:
        out.show("", None)
        out.table(
            ("at", "decision", "reason"),
            [(_clock(decision["at"]), decision["what"], decision["reason"]) for decision in cluster["decisions"]],
        )


def show_moves(moves: Iterable[MoveFacts], out: Output) -> None:
    out.table(
        ("what", "name", "from", "to", "reason"),
        [
            (move["what"], titled(move["vhost"], move["name"]), move["source"], move["destination"], move["reason"])
            for move in moves
        ],
    )


def counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _clock(at: str) -> str:
    """Format the time of a decision in local time."""
    try:
        return datetime.fromisoformat(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return at
