"""What is taken of a database: connections, the time they are held, the time somebody waits for one.

Only what is counted, and in which unit; who counts is the meter.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(slots=True)
class Use:
    """What one request has taken so far, of connections that it has given back."""

    connections: int = 0
    busy_s: float = 0.0
    waiting_s: float = 0.0
    # Connections that it has not given back yet.
    held: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """What has been taken since a meter began, and how its pools are now."""

    connections: int = 0
    # The sum over all connections of the time they were held, of those that are still held until now.
    busy_s: float = 0.0
    waiting_s: float = 0.0
    busy: int = 0
    waiting: int = 0
    # How many connections there can be at most, None if nobody has said or some pool has no bound.
    size: int | None = None


class Unit(enum.Enum):
    """What cost is counted in."""

    # Milliseconds that connections are held: 1000 of them a second is one connection busy all the time.
    BUSY_MS = "ms"
    # Connections taken, however long each is held: the unit of the admission paper.
    CONNECTIONS = "connections"

    def cost_of(self, use: Use | Usage) -> float:
        """Return what was taken as a cost."""
        return use.busy_s * 1000.0 if self is _BUSY_MS else float(use.connections)


# To look a member up in its class takes longer than all the rest of `cost_of`, which is asked for each request.
_BUSY_MS = Unit.BUSY_MS
