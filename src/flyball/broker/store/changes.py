"""The changes of a domain, other than messages.

A change is made durable by the node that decides it, and announced to the other nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

from flyball.model import Client, Definition, Queue


@dataclass(slots=True, frozen=True)
class QueueCreated:
    """A queue was created on this node. Transient queues end with the node, so a single node does not store them."""

    queue: Queue


@dataclass(slots=True, frozen=True)
class QueueDeleted:
    """A queue was deleted, with all of its stored messages."""

    queue_id: int


@dataclass(slots=True, frozen=True)
class QueueMoved:
    """Another node serves the queue. Decided by the previous owner, or by the leader if that node is dead."""

    queue: Queue
    owner: int


@dataclass(slots=True, frozen=True)
class ClientCreated:
    client: Client


@dataclass(slots=True, frozen=True)
class ClientDeleted:
    client_id: int


@dataclass(slots=True, frozen=True)
class DefinitionPut:
    """A definition was added, or replaced the one with its kind and key."""

    definition: Definition


@dataclass(slots=True, frozen=True)
class DefinitionDeleted:
    kind: str
    key: str


Change = QueueCreated | QueueDeleted | QueueMoved | ClientCreated | ClientDeleted | DefinitionPut | DefinitionDeleted
