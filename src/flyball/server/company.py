"""What sessions ask of the other nodes of a domain. A node that is alone answers everything by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from flyball.server.directory import RemoteQueue
from flyball.wire.link import Content, Outcome


async def _nothing_new() -> None:
    """Nobody else changes anything."""


async def _mine(vhost: str, name: str) -> bool:
    return True


def _nobody(node_id: int, protocol: str) -> str | None:
    return None


def _refuse(remotes: Sequence[RemoteQueue], content: Content, done: Callable[[int, int], None], token: int) -> None:
    done(token, Outcome.UNKNOWN)


@dataclass(slots=True)
class Company:
    """The other nodes, as far as a session needs them."""

    address_of: Callable[[int, str], str | None] = _nobody
    """Where a node (id) listens for a protocol, None if it cannot be reached at present."""
    claim: Callable[[str, str], Awaitable[bool]] = _mine
    """Whether a new queue of that virtual host and name may be made here. Raises StoreError."""
    catch_up: Callable[[], Awaitable[None]] = _nothing_new
    """Follows what the others have changed up to now. Raises StoreError."""
    put: Callable[[Sequence[RemoteQueue], Content, Callable[[int, int], None], int], None] = _refuse
    """Puts a message into queues of other nodes, and calls back with the token and an Outcome."""
