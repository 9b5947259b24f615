"""What sessions ask of the other nodes of a domain. A node that is alone answers everything by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flyball.broker.core.directory import RemoteQueue
from flyball.broker.core.pending import TakeDone
from flyball.broker.wire.link import Content, Outcome
from flyball.errors import FlyballError, QueueNotFound
from flyball.model import Selector


async def _nothing_new() -> None:
    """Nobody else changes anything."""


async def _mine(vhost: str, name: str) -> bool:
    return True


def _unnamed(node_id: int) -> str:
    return str(node_id)


def _nobody(node_id: int, protocol: str) -> str | None:
    return None


class Put(Protocol):
    """Puts a message into queues of other nodes, and calls back with the token and an Outcome; see `Remotes.put`."""

    def __call__(
        self,
        remotes: Sequence[RemoteQueue],
        content: Content,
        done: Callable[[int, int], None],
        token: int,
        owner: object = None,
        missing: list[int] | None = None,
    ) -> None: ...


def _refuse(
    remotes: Sequence[RemoteQueue],
    content: Content,
    done: Callable[[int, int], None],
    token: int,
    owner: object = None,
    missing: list[int] | None = None,
) -> None:
    done(token, Outcome.UNKNOWN)


def _forget_nothing(owner: object) -> None:
    """Nothing waits for another node."""


class Read(Protocol):
    """Finds a message of another node's queue; see `Remotes.read`."""

    def __call__(
        self, queue_id: int, selector: Selector, done: TakeDone, *, removes: bool, only_text: bool = False
    ) -> None: ...


def _find_nothing(
    queue_id: int, selector: Selector, done: TakeDone, *, removes: bool, only_text: bool = False
) -> None:
    done(None, QueueNotFound(queue_id))


async def _ask_nobody(
    command: str, arguments: Mapping[str, Any], time_limit_s: float
) -> tuple[dict[int, Any], list[FlyballError]]:
    return {}, []


@dataclass(slots=True)
class Company:
    """The other nodes, as far as a session needs them."""

    address_of: Callable[[int, str], str | None] = _nobody
    """Where a node (id) listens for a protocol, None if it cannot be reached at present."""
    claim: Callable[[str, str], Awaitable[bool]] = _mine
    """Whether a new queue of that virtual host and name may be made here. Raises StoreError."""
    catch_up: Callable[[], Awaitable[None]] = _nothing_new
    """Follows what the others have changed up to now. Raises StoreError."""
    followed: Callable[[], Awaitable[None]] = _nothing_new
    """Returns when the others know what was changed and is durable, as far as they can be reached soon."""
    put: Put = _refuse
    """Puts a message into queues of other nodes."""
    forget: Callable[[object], None] = _forget_nothing
    """Drops the puts of an owner that wait: it has gone."""
    read: Read = _find_nothing
    """Finds a message of a queue of another node."""
    ask_owners: Callable[[str, Mapping[str, Any], float], Awaitable[tuple[dict[int, Any], list[FlyballError]]]] = (
        _ask_nobody
    )
    """Asks all other nodes that serve queues; returns their answers by node, and why others did not answer."""
    name: str = ""
    """How this node is called among them."""
    name_of: Callable[[int], str] = _unnamed
    """How a node (id) is called."""
