"""The memory ledger: the account of all memory that clients can make a node use, and the policy under pressure.

Memory is charged to one of these categories:

- messages: bodies, properties and `model.MESSAGE_OVERHEAD_BYTES` each, ready or unacked (`Engine.resident_bytes`),
  and the index entries of paged-out ones (`Engine.absent_bytes`);
- connections: incomplete input, open transactions, unsent output, channels, consumers and caches
  (`Holder.held_bytes`);
- links to other nodes: unsent output and unanswered requests. The number of puts per link is limited
  (`peering.puts`); waiting ones are charged to the publishing connection;
- HTTP: requests in progress and unsent responses;
- definitions: queues, exchanges, bindings and their arguments, registered clients, and the versions of models.

The commit queue (`GroupCommit.pending_bytes`) has a separate loop and setpoint: see `core.flow`.

The policy has three steps:

1. Page out. Above `--resident-bytes`, stored messages are dropped from memory: ready ones first, then the bodies of
   unacked ones.
2. Backpressure. As memory that cannot be paged out approaches `--memory-bytes`, publishers are throttled
   (`core.flow`, which reads `Ledger.level_bytes`), those on other nodes by delayed responses; at the limit, puts of
   the research protocols are refused. Above half of it, connections with more than their share of unacked messages
   receive no deliveries until they ack some.
3. Refuse. When connections use more than three eighths of `--memory-bytes`, the largest is closed with an error that
   states the reason. Links are exempt: no client is closed because another node does not read. Definitions beyond
   three eighths are refused.

So a process stays below `--memory-bytes` + `--resident-bytes` + `BASE_BYTES`. No I/O here, and no lookup or lock per
message: the engine and the connections count in plain integers, and the ledger adds them up.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import time
from collections.abc import Iterable
from itertools import islice
from typing import Any, Protocol

from flyball.broker.engine.consumer import Consumer
from flyball.broker.engine.engine import Engine
from flyball.errors import MemoryLimitReached
from flyball.model import Message

log = logging.getLogger("flyball.server")

# Memory of a process that is not charged: the interpreter and its libraries (about 90 MB), the commit queue with its
# copies in transit to PostgreSQL (four times 16 MiB), a read from the store of 16 MiB twice, one message of maximum
# size in transit, and free memory kept by the allocator. `tests/broker/node/test_memory.py` measures it.
BASE_BYTES = 256 * 1024 * 1024

# A connection's charge is updated when its memory has changed by `CHARGE_STEP_BYTES`, which is checked after each
# `CHARGE_READ_BYTES` of input, and about once a second.
CHARGE_STEP_BYTES = 64 * 1024
CHARGE_READ_BYTES = 4 * 1024

# Fractions of `--memory-bytes` for connections, for unacked messages under pressure, and for definitions. Their sum
# is less than 1: one kind of use cannot take all memory from the others.
CONNECTIONS_RATIO = 0.375
UNACKED_RATIO = 0.125
DEFINITIONS_RATIO = 0.375

# Limit of requests and responses over HTTP: the smaller of this size and this fraction of `--memory-bytes`.
HTTP_BYTES = 64 * 1024 * 1024
HTTP_RATIO = 0.25

# Fraction of `--memory-bytes` above which connections are limited to their share of unacked messages.
PRESSURE_RATIO = 0.5

# Connections that use less are not paused or closed. With many connections, the limit is an equal share.
MIN_SHARE_BYTES = 1024 * 1024

# Minimum interval between checks of connections under pressure.
LOOK_S = 0.02

# Amount of freed memory after which the allocator is asked to return it to the system.
TRIM_BYTES = 16 * 1024 * 1024

CONNECTION_BYTES = 8 * 1024
CHANNEL_BYTES = 6 * 1024
CONSUMER_BYTES = 2 * 1024
UNCONFIRMED_BYTES = 100


# Maximum number of a connection's unacked messages that a page-out examines; and of consecutive ones found paged out,
# after which older ones are assumed to be paged out as well.
_MAX_EXAMINED = 20_000
_PAGED_IN_A_ROW = 1000


class Messages(Protocol):
    """The part of the engine that the ledger reads."""

    resident_bytes: int
    resident_limit_bytes: int | None
    absent_bytes: int


class Holder(Protocol):
    """A connection, to which memory is charged."""

    # Its current charge.
    charged_bytes: int
    # Whether its consumers are paused because it has too many unacked messages.
    is_held_back: bool

    @property
    def is_link(self) -> bool: ...

    @property
    def unacked_bytes(self) -> int:
        """Memory of its unacked messages that are not paged out."""
        ...

    def held_bytes(self) -> int:
        """Its memory without messages."""
        ...

    def page_out(self, wanted_bytes: int) -> int:
        """Page out bodies of its unacked messages; return the number of bytes freed."""
        ...

    def hold_back(self) -> None:
        """Pause its consumers until `let_go_on`."""
        ...

    def let_go_on(self) -> None: ...

    def exhaust(self, reason: str) -> None:
        """Close it and free its memory at once."""
        ...


class Ledger:
    """The memory account of one node."""

    def __init__(self, messages: Messages, limit_bytes: int) -> None:
        self._messages = messages
        self.limit_bytes = limit_bytes
        # All charged connections, which are those of the hub.
        self.holders: set[Holder] = set()
        # Memory of clients' connections.
        self.connections_bytes = 0
        # Memory of links to and from other nodes.
        self.links_bytes = 0
        # Memory of definitions at the last tick, plus later declarations; deletions count at the next tick.
        self.definitions_bytes = 0
        # Memory of HTTP requests in progress and of unsent responses.
        self.http_bytes = 0
        # Number of connections closed because of their memory.
        self.refused = 0
        self._held_back: set[Holder] = set()
        # Each connection's share of unacked messages, as of the last check.
        self._share_bytes = 0
        self._next_look = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._highest_bytes = 0

    # Levels

    @property
    def messages_bytes(self) -> int:
        """Memory of messages and of index entries."""
        return self._messages.resident_bytes + self._messages.absent_bytes

    @property
    def unpageable_bytes(self) -> int:
        """Memory of messages in excess of their budget, which could not be paged out."""
        return max(0, self.messages_bytes - (self._messages.resident_limit_bytes or 0))

    @property
    def level_bytes(self) -> int:
        """Memory that counts against `limit_bytes`."""
        held_bytes = self.connections_bytes + self.links_bytes + self.definitions_bytes + self.http_bytes
        return self.unpageable_bytes + held_bytes

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached."""
        return self.level_bytes >= self.limit_bytes

    @property
    def total_bytes(self) -> int:
        held_bytes = self.connections_bytes + self.links_bytes + self.definitions_bytes + self.http_bytes
        return self.messages_bytes + held_bytes

    @property
    def http_limit_bytes(self) -> int:
        """The limit of `http_bytes`."""
        return min(HTTP_BYTES, int(HTTP_RATIO * self.limit_bytes))

    def report(self) -> dict[str, Any]:
        """Return the account as plain values, by category."""
        return {
            "limit_bytes": self.limit_bytes,
            "level_bytes": self.level_bytes,
            "messages_bytes": self._messages.resident_bytes,
            "indexes_bytes": self._messages.absent_bytes,
            "unpageable_bytes": self.unpageable_bytes,
            "connections_bytes": self.connections_bytes,
            "links_bytes": self.links_bytes,
            "definitions_bytes": self.definitions_bytes,
            "http_bytes": self.http_bytes,
            "held_back_connections": len(self._held_back),
            "refused_connections": self.refused,
        }

    # Connections

    def charge(self, holder: Holder, held_bytes: int) -> None:
        """Charge a connection for its memory. If all of them exceed their limit, close the largest."""
        self._add(holder, held_bytes - holder.charged_bytes)
        holder.charged_bytes = held_bytes
        self._highest_bytes = max(self._highest_bytes, self.total_bytes)
        if self.connections_bytes > CONNECTIONS_RATIO * self.limit_bytes:
            self._refuse_largest()

    def forget(self, holder: Holder) -> None:
        """Remove the charge of a closed connection."""
        self._add(holder, -holder.charged_bytes)
        holder.charged_bytes = 0
        self._held_back.discard(holder)

    def _add(self, holder: Holder, more_bytes: int) -> None:
        if holder.is_link:
            self.links_bytes += more_bytes
        else:
            self.connections_bytes += more_bytes

    def _refuse_largest(self) -> None:
        limit_bytes = int(CONNECTIONS_RATIO * self.limit_bytes)
        # Thousands of connections with little memory each may together exceed the limit.
        min_bytes = min(MIN_SHARE_BYTES, limit_bytes // max(1, len(self.holders)))
        # Links are exempt: a link carries the traffic of many clients.
        holders = sorted(
            [holder for holder in self.holders if not holder.is_link and holder.charged_bytes > min_bytes],
            key=lambda holder: holder.charged_bytes,
        )
        while holders and self.connections_bytes > limit_bytes:
            holder = holders.pop()
            held_bytes = holder.charged_bytes
            self.refused += 1
            self.forget(holder)
            holder.exhaust(
                f"the connection uses {held_bytes} bytes, more than any other, and all connections together exceed"
                f" the limit of {limit_bytes}: commit or complete what was sent, read what was delivered, or raise"
                " --memory-bytes"
            )

    # Definitions

    def charge_definition(self, size_bytes: int) -> None:
        """Charge a new queue, exchange, binding, client or version of a model. Raises MemoryLimitReached."""
        limit_bytes = int(DEFINITIONS_RATIO * self.limit_bytes)
        if self.definitions_bytes + size_bytes > limit_bytes:
            raise MemoryLimitReached(self.definitions_bytes, limit_bytes)
        self.definitions_bytes += size_bytes

    # Unacked messages

    def page_out(self, wanted_bytes: int) -> int:
        """Page out bodies of unacked messages; return the number of bytes freed. See `Engine`."""
        freed = 0
        for holder in list(self.holders):
            freed += holder.page_out(wanted_bytes - freed)
            if freed >= wanted_bytes:
                break
        else:
            # Called from within an operation of the engine: consumers may be paused now, but not fed.
            self._hold_back()
        return freed

    @property
    def is_pressed(self) -> bool:
        """Whether connections are limited to their share of unacked messages."""
        return self.level_bytes >= PRESSURE_RATIO * self.limit_bytes

    def _hold_back(self) -> None:
        """Pause the consumers of connections with more than their share of unacked messages."""
        if not self.is_pressed:
            return
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_S
        sizes = {holder: holder.unacked_bytes for holder in self.holders if not holder.is_link}
        large = {holder: size for holder, size in sizes.items() if size > MIN_SHARE_BYTES}
        self._share_bytes = max(MIN_SHARE_BYTES, int(UNACKED_RATIO * self.limit_bytes) // max(1, len(large)))
        for holder, size in large.items():
            if size > self._share_bytes and holder not in self._held_back:
                self._held_back.add(holder)
                holder.hold_back()
        if self._held_back and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._let_go_on)

    def _let_go_on(self) -> None:
        """Resume connections that are at most at half their share, or all when the pressure is over."""
        self._timer = None
        is_pressed = self.is_pressed
        for holder in list(self._held_back):
            if not is_pressed or holder.unacked_bytes <= self._share_bytes // 2:
                self._held_back.discard(holder)
                holder.let_go_on()
        if self._held_back and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._let_go_on)

    # Maintenance

    def tick(self, definitions_bytes: int) -> None:
        """Update the charges of all connections; return freed memory to the system. Called about once a second."""
        self.definitions_bytes = definitions_bytes
        for holder in list(self.holders):
            held_bytes = holder.held_bytes()
            if held_bytes != holder.charged_bytes:
                self.charge(holder, held_bytes)
        self._hold_back()
        held = self.total_bytes
        if self._highest_bytes - held > TRIM_BYTES:
            _trim()
            self._highest_bytes = held
        self._highest_bytes = max(self._highest_bytes, held)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def page_out(engine: Engine, newest_first: Iterable[tuple[Consumer | None, Message]], wanted_bytes: int) -> int:
    """Page out bodies of unacked messages until `wanted_bytes` are freed; return the number of bytes freed.

    Newest first: older ones were examined at earlier page-outs, and paged out unless they were not stored.
    """
    freed = in_a_row = 0
    for consumer, message in islice(newest_first, _MAX_EXAMINED):
        in_a_row = in_a_row + 1 if message.is_paged else 0
        if freed >= wanted_bytes or in_a_row > _PAGED_IN_A_ROW:
            break
        size = len(message.body)
        gained = engine.page_out(message)
        if gained:
            freed += gained
            if consumer is not None:
                consumer.leased_bytes -= size
    return freed


def _trim() -> None:
    """Make the C library return free memory, which it otherwise keeps between blocks in use."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        # Not glibc: other C libraries keep less, or name the function differently.
        return
