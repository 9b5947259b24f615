"""When connections write and go on: what a turn of the event loop has for a peer goes out with one write.

Commands only say that their connection has something to send; the flush at the end of the turn lets publishers write
their confirms, then each connection write once, and then those go on that waited for room.
"""

from __future__ import annotations

import abc
import asyncio
import math
from collections.abc import Callable
from typing import ClassVar, Generic, Protocol, TypeVar

from flyball.broker.core import clock
from flyball.broker.core.broker import Broker


class Flushed(Protocol):
    """A connection, as far as the flush knows it."""

    HEEDS_CONGESTION: ClassVar[bool]
    is_scheduled: bool
    waits_for_turn: bool

    def flush(self) -> None: ...

    def take_turn(self) -> None: ...

    def go_on(self) -> None: ...

    def crash(self, error: BaseException) -> None: ...


class Confirming(Protocol):
    """A publisher that owes its peer confirms."""

    def send_confirms(self) -> None: ...

    def crash(self, error: BaseException) -> None: ...


T = TypeVar("T", bound=Flushed)


class Flushing(abc.ABC, Generic[T]):
    """Who has something to send, and who waits."""

    def __init__(self, broker: Broker, before_flush: Callable[[], None] | None = None) -> None:
        """`before_flush` is called before answers go out: they may have to wait for what they have cost."""
        self.broker = broker
        self.stalled: set[T] = set()
        # Until then, by the clock of leases, nobody else serves what is this node's: later it says nothing.
        self.lease_ends_s = math.inf
        self.is_stopping = False
        self._before_flush = before_flush
        self._dirty: list[T] = []
        self._confirming: list[Confirming] = []
        # Whether a flush will come: in this turn, or when the node has its lease again.
        self._is_due = False
        self._loop = asyncio.get_running_loop()
        broker.journal.flushed.subscribe(self._wake)

    def next_turn(self, connection: T, *, is_over: bool = True) -> None:
        """Let the connection go on in the next turn of the loop.

        Unless its time `is_over` it may go on before, once what there is to send has been sent: with one share of a
        publisher in each turn, transient messages were 3 to 5 % slower than without any limit.
        """
        if not connection.is_scheduled:
            connection.is_scheduled = True
            self._loop.call_soon(connection.take_turn)
        if is_over:
            connection.waits_for_turn = True

    def mark_dirty(self, connection: T) -> None:
        """The connection has something to send: it goes out once in this turn of the loop."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self.flush)
        self._dirty.append(connection)

    def confirm_soon(self, publisher: Confirming) -> None:
        """Let a publisher write its confirms at the end of this turn: by then there may be more."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self.flush)
        self._confirming.append(publisher)

    def flush(self) -> None:
        """Write what the connections have to send, one write each, and let those go on that waited."""
        if self._before_flush is not None:
            try:
                self._before_flush()
            except Exception as error:
                self.broker.faults.note("before_flush", error)
        if not self.holds_lease:
            return
        confirming, self._confirming = self._confirming, []
        for publisher in confirming:
            try:
                publisher.send_confirms()
            except Exception as error:
                publisher.crash(error)
        dirty, self._dirty = self._dirty, []
        self._is_due = False
        for connection in dirty:
            try:
                connection.flush()
            except Exception as error:
                connection.crash(error)
        if self.stalled:
            is_congested = self.broker.is_congested
            for connection in list(self.stalled):
                if not (connection.waits_for_turn or (is_congested and connection.HEEDS_CONGESTION)):
                    connection.go_on()
        if self.is_stopping:
            self.check_idle()

    @abc.abstractmethod
    def check_idle(self) -> None:
        """See whether all is answered, as the node stops."""

    @property
    def holds_lease(self) -> bool:
        """Whether the node has its lease: without it, what it says may not be true any more."""
        return clock.lease_time_s() < self.lease_ends_s

    def extend_lease(self, end_s: float) -> None:
        """The node's lease lasts until then: what was held back since it ended goes out."""
        self.lease_ends_s = end_s
        if self._is_due or self.stalled:
            self._loop.call_soon(self.flush)

    def _wake(self) -> None:
        """The store has caught up: who waited for that may go on, even if nobody is left to be answered."""
        if self.stalled and not self._is_due:
            self._loop.call_soon(self.flush)
