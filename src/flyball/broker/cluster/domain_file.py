"""Reads and checks domain.toml, the desired state of a domain.

Pure: takes the text of a file and does not look at the current state of the domain.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flyball.broker.cluster.names import suggestion
from flyball.broker.cluster.options import ClusterOptions
from flyball.broker.models.capacity import options_of_model, split_reference
from flyball.errors import ClusterError
from flyball.model import DEFAULT_VHOST

USUAL_PROVISIONER = "local"

# Vhost and name.
Key = tuple[str, str]


@dataclass(slots=True, frozen=True)
class WantedNode:
    name: str
    provisioner: str = USUAL_PROVISIONER
    # Line and section in the file, for error messages.
    place: str = ""


@dataclass(slots=True, frozen=True)
class WantedCluster:
    name: str
    vhost: str = DEFAULT_VHOST
    options: ClusterOptions = field(default_factory=ClusterOptions)
    # Names of nodes; None lets the manager choose.
    members: tuple[str, ...] | None = None
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
    """The content of a file. None stands for a section that the file does not have."""

    nodes: tuple[WantedNode, ...] | None = None
    clusters: tuple[WantedCluster, ...] | None = None
    topics: tuple[WantedTopic, ...] | None = None


SECTIONS = ("nodes", "clusters", "topics")


def _no_files(name: str) -> str:
    raise ClusterError(f"{name} cannot be read here")


def read_domain_file(text: str, source: str = "domain.toml", read: Callable[[str], str] = _no_files) -> DomainFile:
    """Parse the text of a file. Raises ClusterError that names the line or entry, and the remedy.

    `read` returns the text of a capacity model that the file refers to.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ClusterError(f"{source}: {error}") from None
    return read_sections(document, source, read, text)


def read_sections(
    document: Mapping[str, object], source: str, read: Callable[[str], str] = _no_files, text: str = ""
) -> DomainFile:
    """Check the parsed sections of a file, from any source; see `read_domain_file`. With `text`, errors name
    lines.
    """
    for name in document:
        if name not in SECTIONS:
            raise ClusterError(f"{source}: unknown section {name!r}{suggestion(name, SECTIONS)}")
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
    """A table of the file, and its place for error messages."""

    values: dict[str, Any]
    place: str

    def take(self, key: str, usual: str | None = None) -> str:
        """Remove and return a value that must be a non-empty string."""
        value = self.values.pop(key, usual)
        if not isinstance(value, str) or not value:
            raise ClusterError(f'{self.place}: {key} is missing or not a string: add {key} = "..."')
        return value

    def end(self, known: Sequence[str]) -> None:
        """Refuse keys that were not taken."""
        for key in self.values:
            raise ClusterError(f"{self.place}: unknown key {key!r}{suggestion(key, known)}")


def _entries(section: object, name: str, text: str, source: str) -> list[_Entry]:
    if not isinstance(section, list) or not all(isinstance(entry, dict) for entry in section):
        raise ClusterError(f"{source}: {name} is not an array of tables: start each entry with [[{name}]]")
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
        raise ClusterError(
            f"{entry.place}: members must list one or more nodes: remove the key to let the manager choose"
        )
    model = entry.take("capacity_model") if "capacity_model" in entry.values else None
    fitted = {} if model is None else _fitted(model, entry.place, read)
    # Values in the file override the fitted ones.
    options = ClusterOptions.from_dict(fitted | entry.values, entry.place)
    if members is not None and len(members) > options.max_members:
        raise ClusterError(f"{entry.place}: {len(members)} members exceed max_members {options.max_members}")
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
            raise ClusterError(f"{place}: duplicate of {seen[key]}: remove one of them")
        seen[key] = place


def _check_members(nodes: Sequence[WantedNode] | None, clusters: Sequence[WantedCluster]) -> None:
    names = None if nodes is None else [node.name for node in nodes]
    for cluster in clusters:
        members = cluster.members or ()
        for number, member in enumerate(members):
            if member in members[:number]:
                raise ClusterError(f"{cluster.place}: members: {member} is listed twice")
            if names is not None and member not in names:
                raise ClusterError(
                    f"{cluster.place}: members: no [[nodes]] entry is named {member!r}{suggestion(member, names)}"
                )


def _check_parents(topics: Sequence[WantedTopic]) -> None:
    by_key = {topic.key: topic for topic in topics}
    for topic in topics:
        seen = {topic.name}
        parent = topic.parent
        while parent is not None:
            if parent in seen:
                raise ClusterError(f"{topic.place}: parent creates a cycle: choose another parent")
            if (topic.vhost, parent) not in by_key:
                names = [other.name for other in topics if other.vhost == topic.vhost]
                raise ClusterError(
                    f"{topic.place}: parent: no [[topics]] entry is named {parent!r}{suggestion(parent, names)}"
                )
            seen.add(parent)
            parent = by_key[topic.vhost, parent].parent
