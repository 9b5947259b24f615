"""What must be done so that a domain is as a file says: a list of steps, in words and as commands.

Pure: takes the text of a file and the facts of a domain, and does nothing itself. A section that is not in the file
is left alone; what the file does not name is removed only if so wished.
"""

from __future__ import annotations

import difflib
import enum
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flyball.cluster.capacity import options_of_model, split_reference
from flyball.cluster.domain import ClusterOptions
from flyball.cluster.facts import ClusterFacts, DomainFacts, NodeFacts, TopicFacts
from flyball.errors import ClusterError
from flyball.model import DEFAULT_VHOST

BY_HAND = "none"
"""The provisioner of nodes that somebody starts."""

USUAL_PROVISIONER = "local"

Key = tuple[str, str]
"""A virtual host and a name."""


# The file


@dataclass(slots=True, frozen=True)
class WantedNode:
    name: str
    provisioner: str = USUAL_PROVISIONER
    place: str = ""
    """Where the file says so."""


@dataclass(slots=True, frozen=True)
class WantedCluster:
    name: str
    vhost: str = DEFAULT_VHOST
    options: ClusterOptions = field(default_factory=ClusterOptions)
    members: tuple[str, ...] | None = None
    """Names of nodes; None leaves it to the manager."""
    place: str = ""

    @property
    def key(self) -> Key:
        return self.vhost, self.name


@dataclass(slots=True, frozen=True)
class WantedTopic:
    name: str
    vhost: str = DEFAULT_VHOST
    parent: str | None = None
    place: str = ""

    @property
    def key(self) -> Key:
        return self.vhost, self.name


@dataclass(slots=True, frozen=True)
class DomainFile:
    """What a file says. None is a section that it does not have."""

    nodes: tuple[WantedNode, ...] | None = None
    clusters: tuple[WantedCluster, ...] | None = None
    topics: tuple[WantedTopic, ...] | None = None


SECTIONS = ("nodes", "clusters", "topics")


def _no_files(name: str) -> str:
    raise ClusterError(f"{name} cannot be read here")


def read_domain_file(text: str, source: str = "domain.toml", read: Callable[[str], str] = _no_files) -> DomainFile:
    """Read the text of a file. Raises ClusterError, which names the line or the entry, and what to do.

    `read` returns the text of a capacity model that the file names.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ClusterError(f"{source}: {error}") from None
    for name in document:
        if name not in SECTIONS:
            raise ClusterError(f"{source}: there is no section {name!r}{_suggestion(name, SECTIONS)}")
    tables = {name: _entries(document[name], name, text, source) for name in SECTIONS if name in document}
    nodes = tuple(_node(entry) for entry in tables["nodes"]) if "nodes" in tables else None
    clusters = tuple(_cluster(entry, read) for entry in tables["clusters"]) if "clusters" in tables else None
    topics = tuple(_topic(entry) for entry in tables["topics"]) if "topics" in tables else None
    _refuse_twins((node.name, node.place) for node in nodes or ())
    _refuse_twins((cluster.key, cluster.place) for cluster in clusters or ())
    _refuse_twins((topic.key, topic.place) for topic in topics or ())
    _check_members(nodes, clusters or ())
    _check_parents(topics or ())
    return DomainFile(nodes, clusters, topics)


@dataclass(slots=True, frozen=True)
class _Entry:
    """A table of the file, and where it stands."""

    values: dict[str, Any]
    place: str

    def take(self, key: str, usual: str | None = None) -> str:
        """Remove and return a text that is not empty."""
        value = self.values.pop(key, usual)
        if not isinstance(value, str) or not value:
            raise ClusterError(f'{self.place}: {key} is missing or no text: give {key} = "..."')
        return value

    def end(self, known: Sequence[str]) -> None:
        """Refuse what nobody has taken."""
        for key in self.values:
            raise ClusterError(f"{self.place}: there is no key {key!r}{_suggestion(key, known)}")


def _entries(section: object, name: str, text: str, source: str) -> list[_Entry]:
    if not isinstance(section, list) or not all(isinstance(entry, dict) for entry in section):
        raise ClusterError(f"{source}: {name} is no list of tables: begin each entry with [[{name}]]")
    heading = re.compile(rf"\s*\[\[\s*{name}\s*\]\]")
    lines = [number for number, line in enumerate(text.splitlines(), 1) if heading.match(line)]
    places = [f"{source}: {name}[{number}]" for number in range(1, len(section) + 1)]
    if len(lines) == len(section):
        places = [f"{source}, line {line}: [[{name}]]" for line in lines]
    return [
        _Entry(dict(entry), f"{place} {entry['name']}" if isinstance(entry.get("name"), str) else place)
        for entry, place in zip(section, places, strict=True)
    ]


def _node(entry: _Entry) -> WantedNode:
    name, provisioner = entry.take("name"), entry.take("provisioner", USUAL_PROVISIONER)
    entry.end(("name", "provisioner"))
    return WantedNode(name, provisioner, entry.place)


def _cluster(entry: _Entry, read: Callable[[str], str]) -> WantedCluster:
    name, vhost = entry.take("name"), entry.take("vhost", DEFAULT_VHOST)
    members = entry.values.pop("members", None)
    if members is not None and (
        not isinstance(members, list) or not members or not all(isinstance(member, str) for member in members)
    ):
        raise ClusterError(f"{entry.place}: members: name one node or more, or leave it out and the manager chooses")
    model = entry.take("capacity_model") if "capacity_model" in entry.values else None
    fitted = {} if model is None else _fitted(model, entry.place, read)
    # What the file says itself wins.
    options = ClusterOptions.from_dict(fitted | entry.values, entry.place)
    if members is not None and len(members) > options.max_members:
        raise ClusterError(f"{entry.place}: {len(members)} members are more than max_members {options.max_members}")
    return WantedCluster(name, vhost, options, None if members is None else tuple(members), entry.place)


def _fitted(reference: str, place: str, read: Callable[[str], str]) -> dict[str, object]:
    file, experiment = split_reference(reference)
    try:
        return options_of_model(read(file), file, experiment)
    except ClusterError as error:
        raise ClusterError(f"{place}: capacity_model: {error}") from None


def _topic(entry: _Entry) -> WantedTopic:
    name, vhost = entry.take("name"), entry.take("vhost", DEFAULT_VHOST)
    parent = entry.take("parent") if "parent" in entry.values else None
    entry.end(("name", "vhost", "parent"))
    return WantedTopic(name, vhost, parent, entry.place)


def _refuse_twins(entries: Iterable[tuple[object, str]]) -> None:
    seen: dict[object, str] = {}
    for key, place in entries:
        if key in seen:
            raise ClusterError(f"{place}: is there already, at {seen[key]}: remove one of them")
        seen[key] = place


def _check_members(nodes: Sequence[WantedNode] | None, clusters: Sequence[WantedCluster]) -> None:
    names = None if nodes is None else [node.name for node in nodes]
    for cluster in clusters:
        members = cluster.members or ()
        for number, member in enumerate(members):
            if member in members[:number]:
                raise ClusterError(f"{cluster.place}: members: {member} is there twice")
            if names is not None and member not in names:
                raise ClusterError(
                    f"{cluster.place}: members: no [[nodes]] entry is named {member!r}{_suggestion(member, names)}"
                )


def _check_parents(topics: Sequence[WantedTopic]) -> None:
    by_key = {topic.key: topic for topic in topics}
    for topic in topics:
        seen = {topic.name}
        parent = topic.parent
        while parent is not None:
            if parent in seen:
                raise ClusterError(f"{topic.place}: would be its own ancestor: give it another parent")
            if (topic.vhost, parent) not in by_key:
                names = [other.name for other in topics if other.vhost == topic.vhost]
                raise ClusterError(
                    f"{topic.place}: parent: no [[topics]] entry is named {parent!r}{_suggestion(parent, names)}"
                )
            seen.add(parent)
            parent = by_key[topic.vhost, parent].parent


def _suggestion(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, 1)
    if close:
        return f", did you mean {close[0]!r}?"
    return f"; there are {', '.join(names)}" if names else ""


# The plan


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
    kept: tuple[str, ...] = ()
    """What the file does not name and nobody wished to be removed, in words."""


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
                f"{node.place}: there is no provisioner {node.provisioner!r}{_suggestion(node.provisioner, names)}"
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
            yield Step(Sign.ADD, f"topic {_title(topic.key)} {below}", "topic.create", arguments)
        elif known[topic.key]["parent"] != topic.parent:
            yield Step(Sign.CHANGE, f"topic {_title(topic.key)} moves {below}", "topic.parent", arguments)


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
                f"{cluster.place}: members: there is no node {member!r}{_suggestion(member, names)};"
                " see `flyball domain show`"
            )


def _check_provisioner(cluster: WantedCluster, present: DomainFacts) -> None:
    name = cluster.options.provisioner
    if name and name not in present["provisioners"]:
        raise ClusterError(
            f"{cluster.place}: there is no provisioner {name!r}{_suggestion(name, present['provisioners'])}"
        )


def _creation(cluster: WantedCluster) -> Step:
    where = f"on {', '.join(cluster.members)}" if cluster.members else "where the manager likes"
    options = cluster.options.to_dict(only_changed=True)
    said = "".join(f", {name} {_shown(value)}" for name, value in options.items())
    return Step(
        Sign.ADD,
        f"clustered queue {_title(cluster.key)} {where}{said}",
        "domain.cluster.create",
        {
            "name": cluster.name,
            "vhost": cluster.vhost,
            "options": options,
            "members": list(cluster.members or ()),
        },
    )


def _cluster_changes(cluster: WantedCluster, found: ClusterFacts) -> Iterator[Step]:
    title = _title(cluster.key)
    options = cluster.options.to_dict()
    changed = {name: value for name, value in options.items() if found["options"].get(name) != value}
    names = {"name": cluster.name, "vhost": cluster.vhost}
    if changed:
        said = ", ".join(
            f"{name} {_shown(found['options'].get(name))} → {_shown(value)}" for name, value in changed.items()
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
                    f"clustered queue {_title(cluster.key)}: the member on {member['node']}, once it is drained",
                    "domain.cluster.remove",
                    {"name": cluster.name, "vhost": cluster.vhost, "node": member["node"]},
                )


def _cluster_removals(wanted: DomainFile, present: DomainFacts) -> Iterator[Step]:
    for cluster in _unnamed(wanted.clusters, present["clusters"]):
        ready = sum(member["ready"] + member["unacked"] for member in cluster["members"])
        yield Step(
            Sign.REMOVE,
            f"clustered queue {_title(_key_of(cluster))} with {ready} messages",
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
            f"topic {_title(_key_of(topic))} with {len(topic['subscriptions'])} subscriptions",
            "topic.delete",
            {"name": topic["name"], "vhost": topic["vhost"]},
        )


def _node_removals(wanted: DomainFile, present: DomainFacts) -> Iterator[Step]:
    names = None if wanted.nodes is None else {node.name for node in wanted.nodes}
    for node in present["nodes"]:
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


def _title(key: Key) -> str:
    vhost, name = key
    return name if vhost == DEFAULT_VHOST else f"{name} in {vhost}"


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value) or "none"
