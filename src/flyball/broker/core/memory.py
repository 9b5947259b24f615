"""The memory ledger: one account of all that clients can make a node hold, and what is done when it is too much.

What is held is charged to one of these:

- messages: bodies, properties and `model.MESSAGE_OVERHEAD_BYTES` each, ready or unacked (`Engine.resident_bytes`),
  and the places in indexes of those that are only in the store (`Engine.absent_bytes`);
- connections: what each has sent that is not complete, transactions that are not committed, what it has not read,
  channels, consumers and caches (`Holder.held_bytes`);
- links to other nodes: what those have not read or answered. Puts wait before a link holds much (`peering.puts`),
  and what waits is charged to the connection that it came from;
- HTTP: requests that are not answered and answers that are not sent;
- definitions: queues, exchanges, bindings and their arguments, and registered clients.

What waits for the store (`GroupCommit.pending_bytes`) has a loop and a setpoint of its own: see `core.flow`.

The policy has three steps:

1. Page out. Above `--resident-bytes` messages that the store has are dropped from memory: ready ones first, then the
   bodies of unacked ones.
2. Back-pressure. Publishers are slowed as what cannot be paged out approaches `--memory-bytes` (`core.flow`,
   which reads `Ledger.level_bytes`), those of other nodes by answers that wait; puts of the research protocols are
   refused when it is reached. From half of it on, connections that hold more than their share of unacked messages get
   no more until they ack some.
3. Refuse. When connections hold more than three eighths of `--memory-bytes`, the one that holds most is closed, with
   an error that says so. Links do not count for that: no client is to be closed for what another node does not read.
   Definitions beyond three eighths of it are refused.

So a process stays below `--memory-bytes` + `--resident-bytes` + `BASE_BYTES`. No I/O here, and nothing is looked up
or locked for a message: the engine and the connections count in plain integers, and the ledger adds them up.
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

# What a process takes beside what is charged: the interpreter and its libraries (about 90 MB), the commit queue with
# its copies on the way to PostgreSQL (four times 16 MiB), a read from the store of 16 MiB twice, one message of the
# largest size on its way in or out, and what the allocator keeps. `tests/broker/node/test_memory.py` measures it.
BASE_BYTES = 256 * 1024 * 1024

# A connection is charged again when what it holds has changed by so much, and about once a second. It is looked at
# whenever it has sent so many bytes.
CHARGE_STEP_BYTES = 64 * 1024
CHARGE_READ_BYTES = 4 * 1024

# The parts of `--memory-bytes` for what connections hold, for unacked messages under pressure, and for definitions.
# Together less than all of it: whatever one sort of clients does, something is left for the others.
CONNECTIONS_RATIO = 0.375
UNACKED_RATIO = 0.125
DEFINITIONS_RATIO = 0.375

# What requests and answers over HTTP may hold, and which part of `--memory-bytes` where that is less.
HTTP_BYTES = 64 * 1024 * 1024
HTTP_RATIO = 0.25

# From this part of `--memory-bytes` on consumers are held to their share of unacked messages.
PRESSURE_RATIO = 0.5

# No connection is held back, or closed, for less; where they are many, for less than an equal share.
MIN_SHARE_BYTES = 1024 * 1024

# How often connections are looked at under pressure, and those that are held back.
LOOK_S = 0.02

# When so much was let go of, the allocator is asked to give it back to the system.
TRIM_BYTES = 16 * 1024 * 1024

CONNECTION_BYTES = 8 * 1024
CHANNEL_BYTES = 6 * 1024
CONSUMER_BYTES = 2 * 1024
UNCONFIRMED_BYTES = 100


# Of one connection, unacked messages that are looked at in search of what can be paged out; and those in a row that
# were paged out before, after which older ones were, too.
_MAX_EXAMINED = 20_000
_PAGED_IN_A_ROW = 1000


class Messages(Protocol):
    """The part of the engine that the ledger reads."""

    resident_bytes: int
    resident_limit_bytes: int | None
    absent_bytes: int


class Holder(Protocol):
    """One that memory is charged to: a connection."""

    # What it was charged last.
    charged_bytes: int
    # Whether its consumers get nothing because it holds too much.
    is_held_back: bool

    @property
    def is_link(self) -> bool: ...

    @property
    def unacked_bytes(self) -> int:
        """What the messages take that it has not acked, as far as they are in memory."""
        ...

    def held_bytes(self) -> int:
        """What it holds now, beside messages."""
        ...

    def page_out(self, wanted_bytes: int) -> int:
        """Leave bodies of unacked messages to the store; return how much that freed."""
        ...

    def hold_back(self) -> None:
        """Send its consumers nothing more until `let_go_on`."""
        ...

    def let_go_on(self) -> None: ...

    def exhaust(self, reason: str) -> None:
        """End it, and let go of what it holds at once."""
        ...


class Ledger:
    """The account of one node."""

    def __init__(self, messages: Messages, limit_bytes: int) -> None:
        self._messages = messages
        self.limit_bytes = limit_bytes
        # All that is charged: the hub's connections.
        self.holders: set[Holder] = set()
        # What clients' connections hold.
        self.connections_bytes = 0
        # What links to and from other nodes hold.
        self.links_bytes = 0
        # What the definitions took at the last tick and what was declared since; what was deleted since still counts.
        self.definitions_bytes = 0
        # What requests over HTTP hold that are not answered, and answers that are not sent.
        self.http_bytes = 0
        # How many connections were closed since they held too much.
        self.refused = 0
        self._held_back: set[Holder] = set()
        # What one connection may hold of unacked messages, as of the last look.
        self._share_bytes = 0
        self._next_look = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._highest_bytes = 0

    # What is held

    @property
    def messages_bytes(self) -> int:
        """What messages take, in memory and with their places in indexes."""
        return self._messages.resident_bytes + self._messages.absent_bytes

    @property
    def unpageable_bytes(self) -> int:
        """What messages take beyond what they may, since the store cannot take them over."""
        return max(0, self.messages_bytes - (self._messages.resident_limit_bytes or 0))

    @property
    def level_bytes(self) -> int:
        """What is held of `limit_bytes`."""
        held_bytes = self.connections_bytes + self.links_bytes + self.definitions_bytes + self.http_bytes
        return self.unpageable_bytes + held_bytes

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be let in."""
        return self.level_bytes >= self.limit_bytes

    @property
    def total_bytes(self) -> int:
        held_bytes = self.connections_bytes + self.links_bytes + self.definitions_bytes + self.http_bytes
        return self.messages_bytes + held_bytes

    @property
    def http_limit_bytes(self) -> int:
        """What `http_bytes` may be."""
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
        """Note what a connection holds. If that is too much for all of them, the largest are refused."""
        self._add(holder, held_bytes - holder.charged_bytes)
        holder.charged_bytes = held_bytes
        self._highest_bytes = max(self._highest_bytes, self.total_bytes)
        if self.connections_bytes > CONNECTIONS_RATIO * self.limit_bytes:
            self._refuse_largest()

    def forget(self, holder: Holder) -> None:
        """The connection is gone, and with it what it held."""
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
        # Of thousands of connections that each hold little, all together may hold too much.
        min_bytes = min(MIN_SHARE_BYTES, limit_bytes // max(1, len(self.holders)))
        # Links are other nodes of the domain: what they hold is what many clients want.
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
                f"the connection holds {held_bytes} bytes, more than any other, and all together exceed the limit of"
                f" {limit_bytes}: commit or complete what was sent, read what was delivered, or raise --memory-bytes"
            )

    # Definitions

    def charge_definition(self, size_bytes: int) -> None:
        """Count a new queue, exchange, binding or client. Raise MemoryLimitReached if there is no room for it."""
        limit_bytes = int(DEFINITIONS_RATIO * self.limit_bytes)
        if self.definitions_bytes + size_bytes > limit_bytes:
            raise MemoryLimitReached(self.definitions_bytes, limit_bytes)
        self.definitions_bytes += size_bytes

    # Unacked messages

    def page_out(self, wanted_bytes: int) -> int:
        """Leave bodies of unacked messages to the store; return how much that freed. See `Engine`."""
        freed = 0
        for holder in list(self.holders):
            freed += holder.page_out(wanted_bytes - freed)
            if freed >= wanted_bytes:
                break
        else:
            # Called in the middle of a decision of the engine: nobody may be fed now, only held back.
            self._hold_back()
        return freed

    @property
    def is_pressed(self) -> bool:
        """Whether consumers are held to their share of unacked messages."""
        return self.level_bytes >= PRESSURE_RATIO * self.limit_bytes

    def _hold_back(self) -> None:
        """Send those nothing more that hold more than their share of unacked messages."""
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
        """Let those go on that hold less by now, and all if the pressure is over."""
        self._timer = None
        is_pressed = self.is_pressed
        for holder in list(self._held_back):
            if not is_pressed or holder.unacked_bytes <= self._share_bytes // 2:
                self._held_back.discard(holder)
                holder.let_go_on()
        if self._held_back and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._let_go_on)

    # Housekeeping

    def tick(self, definitions_bytes: int) -> None:
        """Called about once a second: charge everyone for what they hold by now, and give memory back."""
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
    """Leave the bodies of unacked messages to the store until that has freed so much; return how much it has.

    Older ones were looked at before, when memory ran short the last time, but for those that were not stored yet.
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
    """Let the C library give free memory back: it keeps what lies between blocks that are in use."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        # Another C library than glibc keeps less, or has another name for it.
        return
