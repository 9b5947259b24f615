"""What changes in a domain beside messages.

Each change is made durable by the node that decides it, and told to the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from flyball.model import Client, Definition, Queue


@dataclass(slots=True, frozen=True)
class QueueCreated:
    """A queue of this node. Any that is not durable is gone with the node: while that is alone, its store need not
    know it."""

    queue: Queue


@dataclass(slots=True, frozen=True)
class QueueDeleted:
    """The queue is gone, and with it every message that is stored in it."""

    queue_id: int


@dataclass(slots=True, frozen=True)
class QueueMoved:
    """Another node serves the queue from now on. Said by the one that did, or by the leader if that one is dead."""

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
    """Takes the place of what had the same kind and key."""

    definition: Definition


@dataclass(slots=True, frozen=True)
class DefinitionDeleted:
    kind: str
    key: str


Change = QueueCreated | QueueDeleted | QueueMoved | ClientCreated | ClientDeleted | DefinitionPut | DefinitionDeleted
