"""Limits of virtual hosts and users, set by administrators, with RabbitMQ's semantics.

A negative value means unlimited.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from flyball.errors import InvalidArgument

MAX_CONNECTIONS = "max-connections"
MAX_QUEUES = "max-queues"
MAX_CHANNELS = "max-channels"

VHOST_LIMITS = frozenset({MAX_CONNECTIONS, MAX_QUEUES})
USER_LIMITS = frozenset({MAX_CONNECTIONS, MAX_CHANNELS})

# Maximum of a 64-bit integer, which a database can store.
LARGEST = 2**63 - 1


class Limits:
    """The limits of all virtual hosts, or of all users, by name."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._limits: dict[str, dict[str, int]] = {}

    def all(self) -> list[tuple[str, dict[str, int]]]:
        """Return all owners with their limits."""
        return list(self._limits.items())

    def of(self, owner: str) -> dict[str, int]:
        """Return the limits as they were set, including negative ones."""
        return dict(self._limits.get(owner, {}))

    def limit(self, owner: str, name: str) -> int | None:
        """Return a limit, or None if unlimited."""
        limits = self._limits.get(owner)
        value = -1 if limits is None else limits.get(name, -1)
        return None if value < 0 else value

    def check(self, limits: Mapping[str, object]) -> dict[str, int]:
        """Return the limits if they are valid. Raises InvalidArgument."""
        checked: dict[str, int] = {}
        for name, value in limits.items():
            if name not in self._names:
                raise InvalidArgument(f"{name!r} is not a limit: give {' or '.join(sorted(self._names))}")
            if not isinstance(value, int) or isinstance(value, bool) or abs(value) > LARGEST:
                raise InvalidArgument(f"{name} should be a number, actually was {json.dumps(value)}")
            checked[name] = value
        return checked

    def set(self, owner: str, limits: Mapping[str, object]) -> None:
        """Replace the owner's limits. Raises InvalidArgument."""
        checked = self.check(limits)
        if checked:
            self._limits[owner] = checked
        else:
            self._limits.pop(owner, None)

    def delete(self, owner: str) -> bool:
        """Delete the owner's limits. Return whether any existed."""
        return self._limits.pop(owner, None) is not None
