"""Limits of connections: of clients, and of unauthenticated peers, with a fair share per address."""

from __future__ import annotations

import logging
from typing import ClassVar, Generic, Protocol, TypeVar

from flyball.broker.core.attempts import place_of

log = logging.getLogger("flyball.server")

# 1/n of the connections is reserved for protocols with authentication: peers of other protocols may idle forever.
RESERVED_PART = 10

# Maximum number of unauthenticated links. They do not count as clients: a node with the maximum number of clients
# still serves its domain.
MAX_LINK_HANDSHAKES = 64

T = TypeVar("T")


class Handshakes(Generic[T]):
    """Up to `maximum` unauthenticated clients. Above it, the newest of the address with the most is dropped."""

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._places: dict[str, dict[T, None]] = {}
        self._place_of: dict[T, str] = {}

    def __len__(self) -> int:
        return len(self._place_of)

    def add(self, client: T, address: str, maximum: int | None = None) -> T | None:
        """Add a client. If there are too many, return the client to disconnect: the new one or another.

        `maximum` is a temporary, lower limit.
        """
        place = self._place_of[client] = place_of(address)
        mine = self._places.setdefault(place, {})
        mine[client] = None
        return self._drop(maximum, mine)

    def shrink(self, maximum: int) -> T | None:
        """Lower the limit by one, to `maximum`. If it is exceeded, return the client to disconnect."""
        return self._drop(maximum, {})

    def _drop(self, maximum: int | None, preferred: dict[T, None]) -> T | None:
        if len(self._place_of) <= (self.maximum if maximum is None else min(maximum, self.maximum)):
            return None
        # The newest, not the oldest: when many connect at once, the first ones succeed.
        crowded = max(self._places.values(), key=len)
        # With equal numbers the new one is dropped: it has waited least.
        dropped = next(reversed(preferred if len(preferred) == len(crowded) else crowded))
        self.remove(dropped)
        return dropped

    def remove(self, client: T) -> None:
        """Remove a client that logged in or disconnected; idempotent."""
        place = self._place_of.pop(client, None)
        if place is None:
            return
        clients = self._places[place]
        del clients[client]
        if not clients:
            del self._places[place]


class Arriving(Protocol):
    """The part of a connection that the entrance uses."""

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
    """Counts connections and enforces their limits."""

    def __init__(self, max_connections: int, max_unauthenticated: int) -> None:
        self.max_connections = max_connections
        # Unauthenticated connections of protocols with authentication.
        self.handshakes: Handshakes[C] = Handshakes(max_unauthenticated)
        # Unauthenticated links.
        self.link_handshakes: Handshakes[C] = Handshakes(MAX_LINK_HANDSHAKES)
        # Number of connections that are authenticated or need no authentication, without links.
        self.clients = 0

    def admit(self, connection: C) -> bool:
        """Return whether a new connection is accepted; another one may be dropped for it.

        Unauthenticated connections are dropped for authenticated ones, and for those from other addresses.
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
        """Return whether a connection that must authenticate is accepted; over TLS before its handshake."""
        if connection.is_link:
            surplus = self.link_handshakes.add(connection, host)
        elif self._has_room(self.max_connections, peer):
            surplus = self.handshakes.add(connection, host, self.max_connections - self.clients)
        else:
            return False
        return self._make_way(surplus, connection)

    def _has_room(self, limit: int, peer: str) -> bool:
        if self.clients >= limit:
            log.warning("refused %s: limit of connections reached connections=%d", peer, self.clients)
        return self.clients < limit

    def _make_way(self, surplus: C | None, connection: C) -> bool:
        """Drop the surplus connection, if any; return whether the new one stays open."""
        if surplus is None:
            return True
        log.warning(
            "dropped %s: too many unauthenticated connections; if they are legitimate, raise max_unauthenticated or"
            " max_connections connections=%d",
            surplus.peer,
            len(self.link_handshakes if surplus.is_link else self.handshakes),
        )
        if surplus is connection:
            return False
        surplus.abort()
        return True

    def logged_in(self, connection: C, *, is_open: bool) -> None:
        """Count an authenticated peer as a client, if its connection is still open."""
        self.end_handshake(connection)
        if is_open and not connection.is_link and not connection.is_client:
            connection.is_client = True
            self.clients += 1

    def end_handshake(self, connection: C) -> None:
        """Remove a peer that logged in, failed its TLS handshake, or disconnected."""
        self.handshakes.remove(connection)
        self.link_handshakes.remove(connection)

    def forget(self, connection: C) -> None:
        """Remove a closed connection."""
        self.end_handshake(connection)
        if connection.is_client:
            connection.is_client = False
            self.clients -= 1
