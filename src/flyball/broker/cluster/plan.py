"""Computes the steps from the current state of a domain to the state in a file, as text and as commands.

Pure: takes the file's content and the domain's facts. Sections missing in the file are left alone; objects missing in
the file are removed only with `prune`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flyball.broker.cluster.domain_file import DomainFile, Key, WantedCluster, WantedTopic
from flyball.broker.cluster.facts import ClusterFacts, DomainFacts, NodeFacts, TopicFacts
from flyball.broker.cluster.names import suggestion, titled, valued
from flyball.errors import ClusterError

# The provisioner of nodes that an operator starts by hand.
BY_HAND = "none"


class Sign(enum.StrEnum):
    ADD = "+"
    CHANGE = "~"
    REMOVE = "-"


@dataclass(slots=True, frozen=True)
class Step:
    """A step of a plan: a description, and the command that does it."""

    sign: Sign
    words: str
    command: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.sign} {self.words}"

    def is_done(self, facts: DomainFacts) -> bool:
        """Return whether the step has taken effect: nodes take time to join and leave, members to drain."""
        name = self.arguments["name"]
        if self.command == "domain.node.add":
            return any(node["name"] == name and node["state"] == "up" for node in facts["nodes"])
        if self.command == "domain.node.remove":
            return not any(node["name"] == name for node in facts["nodes"])
        if self.command in ("domain.cluster.add", "domain.cluster.remove"):
            clusters = [cluster for cluster in facts["clusters"] if _key_of(cluster) == _key_of(self.arguments)]
            serving = [member["node"] for cluster in clusters for member in cluster["members"]]
            return (self.arguments["node"] in serving) == (self.command == "domain.cluster.add")
        return True


@dataclass(slots=True, frozen=True)
class Plan:
    """Steps, in an order in which they can be done."""

    steps: tuple[Step, ...] = ()
    # Descriptions of objects that the file does not name and that are kept.
    kept: tuple[str, ...] = ()


def plan_of(wanted: DomainFile, present: DomainFacts, *, prune: bool = False) -> Plan:
    """Return the steps from the present state to the wanted one. Raises ClusterError if there are none.

    Adds first, nodes before what they serve; then changes; removes last, in the opposite order. Members that the
    manager added are not touched.
    """
    made = [*_node_steps(wanted, present), *_topic_steps(wanted, present), *_cluster_steps(wanted, present)]
    removals = [*_member_removals(wanted, present), *_cluster_removals(wanted, present)]
    removals += [*_topic_removals(wanted, present), *_node_removals(wanted, present)]
    if prune:
        return Plan((*made, *removals))
    return Plan(tuple(made), tuple(step.words for step in removals))


def _node_steps(wanted: DomainFile, present: DomainFacts) -> Iterator[Step]:
    known = {node["name"]: node for node in present["nodes"]}
    for node in wanted.nodes or ():
        found = known.get(node.name)
        if found is not None and found["state"] in ("up", "joining"):
            continue
        if found is not None and found["state"] == "leaving":
            raise ClusterError(f"{node.place}: node {node.name} is leaving: apply the file again once it has left")
        if node.provisioner == BY_HAND:
            raise ClusterError(
                f"{node.place}: node {node.name} is not running and has no provisioner: "
                f"start it with `flyball serve --name {node.name} --store URL`"
            )
        if node.provisioner not in present["provisioners"]:
            names = [*present["provisioners"], BY_HAND]
            raise ClusterError(
                f"{node.place}: unknown provisioner {node.provisioner!r}{suggestion(node.provisioner, names)}"
            )
        how = "again (dead)" if found is not None else f"by {node.provisioner}"
        yield Step(
            Sign.ADD,
            f"node {node.name}, started {how}",
            "domain.node.add",
            {"name": node.name, "provisioner": node.provisioner},
        )


def _topic_steps(wanted: DomainFile, present: DomainFacts) -> Iterator[Step]:
    known = {_key_of(topic): topic for topic in present["topics"]}
    # Parents first: a parent has reached its place before a topic is moved below it, so no cycle can arise on the
    # way.
    for topic in _from_the_top(wanted.topics or ()):
        arguments = {"name": topic.name, "vhost": topic.vhost, "parent": topic.parent}
        below = f"below {topic.parent}" if topic.parent is not None else "at the top"
        if topic.key not in known:
            yield Step(Sign.ADD, f"topic {titled(*topic.key)} {below}", "topic.create", arguments)
        elif known[topic.key]["parent"] != topic.parent:
            yield Step(Sign.CHANGE, f"topic {titled(*topic.key)} moves {below}", "topic.parent", arguments)


def _from_the_top(topics: Sequence[WantedTopic]) -> list[WantedTopic]:
    by_key = {topic.key: topic for topic in topics}

    def depth(topic: WantedTopic) -> int:
        return 0 if topic.parent is None else 1 + depth(by_key[topic.vhost, topic.parent])

    return sorted(topics, key=depth)


def _cluster_steps(wanted: DomainFile, present: DomainFacts) -> Iterator[Step]:
    known = {_key_of(cluster): cluster for cluster in present["clusters"]}
    for cluster in wanted.clusters or ():
        _check_nodes(cluster, wanted, present)
        _check_provisioner(cluster, present)
        if cluster.key in known:
            yield from _cluster_changes(cluster, known[cluster.key])
        else:
            yield _creation(cluster)


def _check_nodes(cluster: WantedCluster, wanted: DomainFile, present: DomainFacts) -> None:
    """A file without nodes can only refer to nodes that exist."""
    if wanted.nodes is not None:
        return
    names = [node["name"] for node in present["nodes"] if node["state"] in ("up", "joining")]
    for member in cluster.members or ():
        if member not in names:
            raise ClusterError(
                f"{cluster.place}: members: unknown node {member!r}{suggestion(member, names)};"
                " see `flyball domain show`"
            )


def _check_provisioner(cluster: WantedCluster, present: DomainFacts) -> None:
    name = cluster.options.provisioner
    if name and name not in present["provisioners"]:
        raise ClusterError(
            f"{cluster.place}: unknown provisioner {name!r}{suggestion(name, present['provisioners'])}"
        )


def _creation(cluster: WantedCluster) -> Step:
    where = f"on {', '.join(cluster.members)}" if cluster.members else "on nodes that the manager chooses"
    options = cluster.options.to_dict(only_changed=True)
    said = "".join(f", {name} {valued(value)}" for name, value in options.items())
    return Step(
        Sign.ADD,
        f"clustered queue {titled(*cluster.key)} {where}{said}",
        "domain.cluster.create",
        {
            "name": cluster.name,
            "vhost": cluster.vhost,
            "options": options,
            "members": list(cluster.members or ()),
        },
    )


def _cluster_changes(cluster: WantedCluster, found: ClusterFacts) -> Iterator[Step]:
    title = titled(*cluster.key)
    options = cluster.options.to_dict()
    changed = {name: value for name, value in options.items() if found["options"].get(name) != value}
    names = {"name": cluster.name, "vhost": cluster.vhost}
    if changed:
        said = ", ".join(
            f"{name} {valued(found['options'].get(name))} → {valued(value)}" for name, value in changed.items()
        )
        command = "domain.cluster.change"
        yield Step(Sign.CHANGE, f"clustered queue {title}: {said}", command, {**names, "options": changed})
    fixed = {member["node"] for member in found["members"] if member["fixed"]}
    others = {member["node"] for member in found["members"]} - fixed
    for node in cluster.members or ():
        if node in others:
            words = f"clustered queue {title}: its member on {node} becomes fixed"
            yield Step(Sign.CHANGE, words, "domain.cluster.add", {**names, "node": node})
        elif node not in fixed:
            words = f"clustered queue {title}: a member on {node}"
            yield Step(Sign.ADD, words, "domain.cluster.add", {**names, "node": node})


def _member_removals(wanted: DomainFile, present: DomainFacts) -> Iterator[Step]:
    known = {_key_of(cluster): cluster for cluster in present["clusters"]}
    for cluster in wanted.clusters or ():
        if cluster.members is None or cluster.key not in known:
            continue
        for member in known[cluster.key]["members"]:
            if member["fixed"] and member["node"] not in cluster.members:
                yield Step(
                    Sign.REMOVE,
                    f"clustered queue {titled(*cluster.key)}: the member on {member['node']}, after draining",
                    "domain.cluster.remove",
                    {"name": cluster.name, "vhost": cluster.vhost, "node": member["node"]},
                )


def _cluster_removals(wanted: DomainFile, present: DomainFacts) -> Iterator[Step]:
    for cluster in _unnamed(wanted.clusters, present["clusters"]):
        ready = sum(member["ready"] + member["unacked"] for member in cluster["members"])
        yield Step(
            Sign.REMOVE,
            f"clustered queue {titled(*_key_of(cluster))} with {ready} messages",
            "domain.cluster.delete",
            {"name": cluster["name"], "vhost": cluster["vhost"]},
        )


def _topic_removals(wanted: DomainFile, present: DomainFacts) -> Iterator[Step]:
    by_key = {_key_of(topic): topic for topic in present["topics"]}

    def depth(topic: TopicFacts) -> int:
        parent = None if topic["parent"] is None else by_key.get((topic["vhost"], topic["parent"]))
        return 0 if parent is None else 1 + depth(parent)

    for topic in sorted(_unnamed(wanted.topics, present["topics"]), key=depth, reverse=True):
        yield Step(
            Sign.REMOVE,
            f"topic {titled(*_key_of(topic))} with {len(topic['subscriptions'])} subscriptions",
            "topic.delete",
            {"name": topic["name"], "vhost": topic["vhost"]},
        )


def _node_removals(wanted: DomainFile, present: DomainFacts) -> Iterator[Step]:
    names = None if wanted.nodes is None else {node.name for node in wanted.nodes}
    # The node that answers is removed last: without it the progress of the others could not be observed.
    for node in sorted(present["nodes"], key=lambda node: node["name"] == present["asked"]):
        if names is None or node["name"] in names or node["managed"] or node["state"] == "leaving":
            continue
        yield _node_removal(node)


def _node_removal(node: NodeFacts) -> Step:
    is_dead = node["state"] == "dead"
    words = f"node {node['name']} (dead)" if is_dead else f"node {node['name']}, after draining"
    return Step(Sign.REMOVE, words, "domain.node.remove", {"name": node["name"], "force": is_dead})


def _unnamed(wanted: Sequence[Any] | None, present: Sequence[Any]) -> list[Any]:
    """Return the objects that the file does not name, if it has the section."""
    if wanted is None:
        return []
    keys = {entry.key for entry in wanted}
    return [entry for entry in present if _key_of(entry) not in keys]


def _key_of(entry: Mapping[str, Any]) -> Key:
    return entry["vhost"], entry["name"]
