"""What must be done so that a domain is as a file says: a list of steps, in words and as commands.

Pure: takes what a file says and the facts of a domain, and does nothing itself. A section that is not in the file is
left alone; what the file does not name is removed only if so wished.
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

# The provisioner of nodes that somebody starts.
BY_HAND = "none"


class Sign(enum.StrEnum):
    ADD = "+"
    CHANGE = "~"
    REMOVE = "-"


@dataclass(slots=True, frozen=True)
class Step:
    """Something to do: in words, and as a command for a node."""

    sign: Sign
    words: str
    command: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.sign} {self.words}"

    def is_done(self, facts: DomainFacts) -> bool:
        """Tell whether the domain has got so far: nodes take time to join and to leave, members to drain."""
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
    """Steps in the order in which they can be done."""

    steps: tuple[Step, ...] = ()
    # What the file does not name and nobody wished to be removed, in words.
    kept: tuple[str, ...] = ()


def plan_of(wanted: DomainFile, present: DomainFacts, *, prune: bool = False) -> Plan:
    """Return how to get from the present domain to the wanted one. Raises ClusterError if that cannot be.

    Adds first, nodes before what they serve; then changes; removes last and in the opposite order. What the manager
    has added by itself is not touched.
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
            raise ClusterError(f"{node.place}: node {node.name} is leaving: apply the file again when it is gone")
        if node.provisioner == BY_HAND:
            raise ClusterError(
                f"{node.place}: node {node.name} is not there and has no provisioner: "
                f"start it with `flyball serve --name {node.name} --store URL`"
            )
        if node.provisioner not in present["provisioners"]:
            names = [*present["provisioners"], BY_HAND]
            raise ClusterError(
                f"{node.place}: there is no provisioner {node.provisioner!r}{suggestion(node.provisioner, names)}"
            )
        how = "again, it is dead" if found is not None else f"by {node.provisioner}"
        yield Step(
            Sign.ADD,
            f"node {node.name}, started {how}",
            "domain.node.add",
            {"name": node.name, "provisioner": node.provisioner},
        )


def _topic_steps(wanted: DomainFile, present: DomainFacts) -> Iterator[Step]:
    known = {_key_of(topic): topic for topic in present["topics"]}
    # From the top: a parent has its own place for good before a topic comes below it, so no circle can arise.
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
    """A file without nodes can only name those that are there."""
    if wanted.nodes is not None:
        return
    names = [node["name"] for node in present["nodes"] if node["state"] in ("up", "joining")]
    for member in cluster.members or ():
        if member not in names:
            raise ClusterError(
                f"{cluster.place}: members: there is no node {member!r}{suggestion(member, names)};"
                " see `flyball domain show`"
            )


def _check_provisioner(cluster: WantedCluster, present: DomainFacts) -> None:
    name = cluster.options.provisioner
    if name and name not in present["provisioners"]:
        raise ClusterError(
            f"{cluster.place}: there is no provisioner {name!r}{suggestion(name, present['provisioners'])}"
        )


def _creation(cluster: WantedCluster) -> Step:
    where = f"on {', '.join(cluster.members)}" if cluster.members else "where the manager likes"
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
            words = f"clustered queue {title}: its member on {node} stays there for good"
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
                    f"clustered queue {titled(*cluster.key)}: the member on {member['node']}, once it is drained",
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
    # The node that is asked goes last: nobody would hear how the others get on.
    for node in sorted(present["nodes"], key=lambda node: node["name"] == present["asked"]):
        if names is None or node["name"] in names or node["managed"] or node["state"] == "leaving":
            continue
        yield _node_removal(node)


def _node_removal(node: NodeFacts) -> Step:
    is_dead = node["state"] == "dead"
    words = f"node {node['name']}, which is dead" if is_dead else f"node {node['name']}, once it is drained"
    return Step(Sign.REMOVE, words, "domain.node.remove", {"name": node["name"], "force": is_dead})


def _unnamed(wanted: Sequence[Any] | None, present: Sequence[Any]) -> list[Any]:
    """Return what the file does not name, if it has the section at all."""
    if wanted is None:
        return []
    keys = {entry.key for entry in wanted}
    return [entry for entry in present if _key_of(entry) not in keys]


def _key_of(entry: Mapping[str, Any]) -> Key:
    return entry["vhost"], entry["name"]
