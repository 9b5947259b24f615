"""The changes of a domain, other than messages.

The node that makes a change makes it durable and announces it to the other nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

from flyball.model import Client, Definition, Queue


@dataclass(slots=True, frozen=True)
class QueueCreated:
    """A queue was created on this node. A single node does not store transient queues, which end with it."""

    queue: Queue


@dataclass(slots=True, frozen=True)
class QueueDeleted:
    """A queue was deleted with all its stored messages."""

    queue_id: int


@dataclass(slots=True, frozen=True)
class QueueMoved:
    """The queue moved to another node. Decided by the previous owner, or by the leader if the owner is dead."""

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
    """A definition was added, or replaced that of the same kind and key."""

    definition: Definition


@dataclass(slots=True, frozen=True)
class DefinitionDeleted:
    kind: str
    key: str


Change = QueueCreated | QueueDeleted | QueueMoved | ClientCreated | ClientDeleted | DefinitionPut | DefinitionDeleted
