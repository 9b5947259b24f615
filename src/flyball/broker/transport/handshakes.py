"""Who may connect: clients that log in, and a bounded number, shared fairly among addresses, that have not yet."""

from __future__ import annotations

import logging
from typing import ClassVar, Generic, Protocol, TypeVar

from flyball.broker.core.attempts import place_of

log = logging.getLogger("flyball.server")

# One connection in so many is left for peers that log in: others may stay for ever without a word.
RESERVED_PART = 10

# Nodes that have connected and not proved yet that they are of the domain. They do not count as clients: a node that
# is full of those still serves its domain.
MAX_LINK_HANDSHAKES = 64

T = TypeVar("T")


class Handshakes(Generic[T]):
    """Up to `maximum` clients under way. Of more, the newest goes of the address that has the most."""

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._places: dict[str, dict[T, None]] = {}
        self._place_of: dict[T, str] = {}

    def __len__(self) -> int:
        return len(self._place_of)

    def add(self, client: T, address: str, maximum: int | None = None) -> T | None:
        """Count a client. Return the one to disconnect if there are too many: the new one or another.

        `maximum` is the limit for now, if that is lower than the usual one.
        """
        place = self._place_of[client] = place_of(address)
        mine = self._places.setdefault(place, {})
        mine[client] = None
        return self._drop(maximum, mine)

    def shrink(self, maximum: int) -> T | None:
        """There is room for `maximum` by now, one less than before. Return the one to disconnect if they are more."""
        return self._drop(maximum, {})

    def _drop(self, maximum: int | None, preferred: dict[T, None]) -> T | None:
        if len(self._place_of) <= (self.maximum if maximum is None else min(maximum, self.maximum)):
            return None
        # The newest and not the oldest: when many come at once, those that came first get through.
        crowded = max(self._places.values(), key=len)
        # Among equals the new one goes: it has waited least.
        dropped = next(reversed(preferred if len(preferred) == len(crowded) else crowded))
        self.remove(dropped)
        return dropped

    def remove(self, client: T) -> None:
        """The client has logged in or gone; it may have been removed before."""
        place = self._place_of.pop(client, None)
        if place is None:
            return
        clients = self._places[place]
        del clients[client]
        if not clients:
            del self._places[place]


class Arriving(Protocol):
    """A connection, as far as it counts."""

    IS_OUTGOING: ClassVar[bool]
    LOGS_IN: ClassVar[bool]
    is_client: bool

    @property
    def is_link(self) -> bool: ...

    @property
    def peer(self) -> str: ...

    @property
    def peer_host(self) -> str: ...

    def abort(self) -> None: ...


C = TypeVar("C", bound=Arriving)


class Entrance(Generic[C]):
    """Counts connections, and decides which of them a node has room for."""

    def __init__(self, max_connections: int, max_unauthenticated: int) -> None:
        self.max_connections = max_connections
        # Those that have not logged in yet, of protocols in which they have to.
        self.handshakes: Handshakes[C] = Handshakes(max_unauthenticated)
        # Those that have to prove that they are nodes of the domain.
        self.link_handshakes: Handshakes[C] = Handshakes(MAX_LINK_HANDSHAKES)
        # How many connections have logged in, or need not; links do not count.
        self.clients = 0

    def admit(self, connection: C) -> bool:
        """Return whether there is room for a connection that has come; another one may have to go for it.

        Whoever has not logged in makes way for those that have, and for those that come from elsewhere.
        """
        if connection.IS_OUTGOING:
            return True
        if connection.LOGS_IN:
            return self.admit_handshake(connection, connection.peer_host, connection.peer)
        limit = self.max_connections
        if not self._has_room(limit - limit // RESERVED_PART, connection.peer):
            return False
        connection.is_client = True
        self.clients += 1
        return self._make_way(self.handshakes.shrink(limit - self.clients), connection)

    def admit_handshake(self, connection: C, host: str, peer: str) -> bool:
        """The same for one that has to log in; over TLS before the peer has agreed on that."""
        if connection.is_link:
            surplus = self.link_handshakes.add(connection, host)
        elif self._has_room(self.max_connections, peer):
            surplus = self.handshakes.add(connection, host, self.max_connections - self.clients)
        else:
            return False
        return self._make_way(surplus, connection)

    def _has_room(self, limit: int, peer: str) -> bool:
        if self.clients >= limit:
            log.warning("refused %s: %d connections are open", peer, self.clients)
        return self.clients < limit

    def _make_way(self, surplus: C | None, connection: C) -> bool:
        """Drop the connection that is one too many, if there is one; return whether the new one stays."""
        if surplus is None:
            return True
        log.warning(
            "dropped %s: %d connections have not logged in; raise max_unauthenticated or max_connections if they are"
            " yours",
            surplus.peer,
            len(self.link_handshakes if surplus.is_link else self.handshakes),
        )
        if surplus is connection:
            return False
        surplus.abort()
        return True

    def logged_in(self, connection: C, *, is_open: bool) -> None:
        """The peer has shown who it is; it is a client if its connection is among the node's."""
        self.end_handshake(connection)
        if is_open and not connection.is_link and not connection.is_client:
            connection.is_client = True
            self.clients += 1

    def end_handshake(self, connection: C) -> None:
        """The peer has logged in, or has not agreed on TLS, or is gone."""
        self.handshakes.remove(connection)
        self.link_handshakes.remove(connection)

    def forget(self, connection: C) -> None:
        """The connection is gone."""
        self.end_handshake(connection)
        if connection.is_client:
            connection.is_client = False
            self.clients -= 1
