"""Use of a database: connections, busy time, waiting time, and the units of cost."""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(slots=True)
class Use:
    """Use of one request so far, in connections that it has returned."""

    connections: int = 0
    busy_s: float = 0.0
    waiting_s: float = 0.0
    # Connections not yet returned.
    held: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """Total use since a meter's start, and the present state of its pools."""

    connections: int = 0
    # Busy time of all connections, including those in use.
    busy_s: float = 0.0
    waiting_s: float = 0.0
    busy: int = 0
    waiting: int = 0
    # Maximum connections, None if unknown or unbounded.
    size: int | None = None


class Unit(enum.Enum):
    """Unit of cost."""

    # Milliseconds of busy connections: 1000 per second is one connection busy all the time.
    BUSY_MS = "ms"
    # Connections taken, regardless of their busy time: the unit of the admission paper.
    CONNECTIONS = "connections"

    def cost_of(self, use: Use | Usage) -> float:
        """Return the cost of a use."""
        return use.busy_s * 1000.0 if self is _BUSY_MS else float(use.connections)


# Looking up an enum member takes longer than the rest of `cost_of`, which is called per request.
_BUSY_MS = Unit.BUSY_MS
