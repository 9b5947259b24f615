"""The clients that are connected and have not logged in: a bounded number, shared fairly among addresses."""

from __future__ import annotations

from typing import Generic, TypeVar

from flyball.server.attempts import place_of

T = TypeVar("T")


class Handshakes(Generic[T]):
    """Up to `most` clients under way. Of more, the newest goes of the address that has the most."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._places: dict[str, dict[T, None]] = {}
        self._place_of: dict[T, str] = {}

    def __len__(self) -> int:
        return len(self._place_of)

    def add(self, client: T, address: str) -> T | None:
        """Count a client. Return the one to disconnect if there are too many: the new one or another."""
        place = self._place_of[client] = place_of(address)
        self._places.setdefault(place, {})[client] = None
        if len(self._place_of) <= self._most:
            return None
        # The newest and not the oldest: when many come at once, those that came first get through.
        crowded = max(self._places.values(), key=len)
        # Among equals the new one goes: it has waited least.
        mine = self._places[place]
        dropped = next(reversed(mine if len(mine) == len(crowded) else crowded))
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
