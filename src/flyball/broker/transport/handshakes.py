"""The clients that are connected and have not logged in: a bounded number, shared fairly among addresses."""

from __future__ import annotations

from typing import Generic, TypeVar

from flyball.broker.core.attempts import place_of

T = TypeVar("T")


class Handshakes(Generic[T]):
    """Up to `most` clients under way. Of more, the newest goes of the address that has the most."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._places: dict[str, dict[T, None]] = {}
        self._place_of: dict[T, str] = {}

    def __len__(self) -> int:
        return len(self._place_of)

    def add(self, client: T, address: str, most: int | None = None) -> T | None:
        """Count a client. Return the one to disconnect if there are too many: the new one or another.

        `most` is the limit for now, if that is lower than the usual one.
        """
        place = self._place_of[client] = place_of(address)
        mine = self._places.setdefault(place, {})
        mine[client] = None
        return self._drop(most, mine)

    def shrink(self, most: int) -> T | None:
        """There is room for `most` by now, one less than before. Return the one to disconnect if they are more."""
        return self._drop(most, {})

    def _drop(self, most: int | None, preferred: dict[T, None]) -> T | None:
        if len(self._place_of) <= (self.most if most is None else min(most, self.most)):
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
