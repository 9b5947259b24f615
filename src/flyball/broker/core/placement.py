"""Where the clients of a clustered queue go: what a node asks of whoever places them, and who comes and leaves.

Here a client is served where it asked. A node in a domain has somebody else in this place, who knows the others.
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
    """What a client does with a queue."""

    # Both, or not known.
    CLIENT = 0
    PRODUCER = 1
    CONSUMER = 2


@dataclass(slots=True, frozen=True)
class PlaceRequest:
    """Somebody wants to use a queue, wherever it is best."""

    vhost: str
    queue_name: str
    role: Role
    client_name: str = ""
    # The session that looks for a new place; empty for a new one.
    session_id: str = ""
    # The name of a node that the client has lost, or could not reach.
    avoid: str = ""
    # Whether the client will say its session id where it goes. A plain one cannot: it is known by what it does.
    arrives: bool = True


@dataclass(slots=True, frozen=True)
class Place:
    """Where to go."""

    node: str
    queue_id: int
    session_id: str
    # Where the node listens, by protocol. Without its own protocol, a client stays with the node it has asked.
    addresses: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class NoPlaceYet:
    """There is no place at present: ask again."""

    retry_s: float
    reason: str


class Movable(Protocol):
    """A connection whose client can be asked to go on elsewhere."""

    @property
    def protocol(self) -> str:
        """The name of the protocol it speaks: it goes on at an address for that."""
        ...

    @property
    def requests(self) -> int:
        """How many requests it has made: a measure of what its client does."""
        ...

    @property
    def user_name(self) -> str:
        """The user that its client has logged in as: a session belongs to one."""
        ...

    def may(self, action: Action, vhost: str, queue_name: str) -> bool:
        """Whether its client may do that to a queue."""
        ...

    def ask_to_move(self, session_id: str, node: str, address: str, queue_id: int, deadline_s: float) -> None:
        """Ask the client to go to the queue at that address within so long. It may not: then it stays."""
        ...


class Placement(Protocol):
    """Decides where clients go, and is told where they are."""

    async def place(self, request: PlaceRequest) -> Place | NoPlaceYet:
        """Return a place for the client. Raises RequestError if there will never be one."""
        ...

    def arrived(self, session_id: str, connection: Movable) -> None:
        """A client that was placed, or has moved, is served through this connection now."""
        ...

    def left(self, session_id: str, connection: Movable, *, orderly: bool) -> None:
        """A client is no longer served through this connection.

        If that is `orderly` it said so: its session is over. Else its connection has ended: it has moved, or is
        lost, or will ask again.
        """
        ...

    async def ended(self, session_id: str, user_name: str) -> None:
        """A client that was placed is gone again, or never got anywhere. Only its user can say so."""
        ...


class HerePlacement:
    """Places every client where it asked, if the queue is there."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def place(self, request: PlaceRequest) -> Place | NoPlaceYet:
        state = self._engine.find_queue(request.queue_name, request.vhost)
        if state is None:
            raise QueueNotFound(request.queue_name, request.vhost)
        return Place("", state.queue.id, request.session_id or uuid.uuid4().hex)

    def arrived(self, session_id: str, connection: Movable) -> None:
        """Nobody counts them."""

    def left(self, session_id: str, connection: Movable, *, orderly: bool) -> None:
        """Nobody counts them."""

    async def ended(self, session_id: str, user_name: str) -> None:
        """Nobody counts them."""
