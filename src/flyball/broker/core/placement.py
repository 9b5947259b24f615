"""Placement of the clients of clustered queues: the interface, and the placement of a single node.

A single node serves every client itself. In a domain, the cluster provides a placement over all nodes.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from flyball.broker.engine.access import Action
from flyball.broker.engine.engine import Engine
from flyball.errors import QueueNotFound


class Role(enum.IntEnum):
    """Whether a client publishes to a queue or consumes from it."""

    # Both, or unknown.
    CLIENT = 0
    PRODUCER = 1
    CONSUMER = 2


@dataclass(slots=True, frozen=True)
class PlaceRequest:
    """A client's request for the best node to use a queue."""

    vhost: str
    queue_name: str
    role: Role
    client_name: str = ""
    # The session to be placed again; empty for a new session.
    session_id: str = ""
    # The name of a node that the client lost or could not reach.
    avoid: str = ""
    # Whether the client will present its session id at its place. Plain clients cannot: they are recognized by their
    # requests.
    arrives: bool = True


@dataclass(slots=True, frozen=True)
class Place:
    """The node and queue that a client must use."""

    node: str
    queue_id: int
    session_id: str
    # Addresses of the node by protocol. A client whose protocol is missing stays at the node that it asked.
    addresses: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class NoPlaceYet:
    """No place is available at present: retry."""

    retry_s: float
    reason: str


class Movable(Protocol):
    """A connection whose client can be asked to move to another node."""

    @property
    def protocol(self) -> str:
        """The name of its protocol, which its new address must serve."""
        ...

    @property
    def requests(self) -> int:
        """Number of its requests, a measure of its client's load."""
        ...

    @property
    def user_name(self) -> str:
        """The user that its client is logged in as, which owns the session."""
        ...

    def may(self, action: Action, vhost: str, queue_name: str) -> bool:
        """Whether its client may perform the action on a queue."""
        ...

    def ask_to_move(self, session_id: str, node: str, address: str, queue_id: int, deadline_s: float) -> None:
        """Ask the client to move to the queue at the address within `deadline_s`; otherwise it stays."""
        ...


class Placement(Protocol):
    """Decides where clients are served, and is notified when they arrive and leave."""

    async def place(self, request: PlaceRequest) -> Place | NoPlaceYet:
        """Return a place for the client. Raises RequestError if none is possible."""
        ...

    def arrived(self, session_id: str, connection: Movable) -> None:
        """Record that a placed or moved client is served through this connection."""
        ...

    def left(self, session_id: str, connection: Movable, *, orderly: bool) -> None:
        """Record that a client is no longer served through this connection.

        If `orderly`, the client closed its session. Otherwise its connection ended: it moved, failed, or will ask for
        another place.
        """
        ...

    async def ended(self, session_id: str, user_name: str) -> None:
        """End the session of a client that was placed, at its user's request."""
        ...


class HerePlacement:
    """Places every client on this node, if it has the queue."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def place(self, request: PlaceRequest) -> Place | NoPlaceYet:
        state = self._engine.find_queue(request.queue_name, request.vhost)
        if state is None:
            raise QueueNotFound(request.queue_name, request.vhost)
        return Place("", state.queue.id, request.session_id or uuid.uuid4().hex)

    def arrived(self, session_id: str, connection: Movable) -> None:
        """Do nothing: a single node has no sessions to place."""

    def left(self, session_id: str, connection: Movable, *, orderly: bool) -> None:
        """Do nothing."""

    async def ended(self, session_id: str, user_name: str) -> None:
        """Do nothing."""
