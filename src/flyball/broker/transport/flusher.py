"""Batches writes: one write per peer and turn of the event loop.

Commands only mark their connection as dirty. The flush at the end of the turn collects the confirms of publishers,
writes the output of each dirty connection once, and resumes connections that waited for room.
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
    """The part of a connection that the flush uses."""

    HEEDS_CONGESTION: ClassVar[bool]
    is_scheduled: bool
    waits_for_turn: bool

    def flush(self) -> None: ...

    def take_turn(self) -> None: ...

    def go_on(self) -> None: ...

    def crash(self, error: BaseException) -> None: ...


class Confirming(Protocol):
    """A publisher with confirms to send."""

    def send_confirms(self) -> None: ...

    def crash(self, error: BaseException) -> None: ...


T = TypeVar("T", bound=Flushed)


class Flusher(abc.ABC, Generic[T]):
    """The connections with output, and those that wait for room."""

    def __init__(self, broker: Broker, before_flush: Callable[[], None] | None = None) -> None:
        """`before_flush` is called before responses are written: a throttle may delay them."""
        self.broker = broker
        self.stalled: set[T] = set()
        # End of the lease, by the clock of leases. Nothing is written after it: another node may serve the queues.
        self.lease_ends_s = math.inf
        self.is_stopping = False
        self._before_flush = before_flush
        self._dirty: list[T] = []
        self._confirming: list[Confirming] = []
        # Whether a flush is pending: in this turn, or when the node has renewed its lease.
        self._is_due = False
        self._loop = asyncio.get_running_loop()
        broker.journal.flushed.subscribe(self._wake)

    def next_turn(self, connection: T, *, is_over: bool = True) -> None:
        """Resume the connection in the next turn of the event loop.

        Unless its time `is_over`, it may continue earlier, after the flush: with one share per publisher and turn,
        transient messages were 3 to 5 % slower than without any limit.
        """
        if not connection.is_scheduled:
            connection.is_scheduled = True
            self._loop.call_soon(connection.take_turn)
        if is_over:
            connection.waits_for_turn = True

    def mark_dirty(self, connection: T) -> None:
        """Flush the connection at the end of this turn of the event loop."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self.flush)
        self._dirty.append(connection)

    def confirm_soon(self, publisher: Confirming) -> None:
        """Write the confirms of a publisher at the end of this turn, together with later ones."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self.flush)
        self._confirming.append(publisher)

    def flush(self) -> None:
        """Write the output of the connections, with one write each, and resume waiting connections."""
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
        """Check whether all requests have responses, while the node is stopping."""

    @property
    def holds_lease(self) -> bool:
        """Whether the node holds its lease: without it, a confirm or an empty queue may be false."""
        return clock.lease_time_s() < self.lease_ends_s

    def extend_lease(self, end_s: float) -> None:
        """Extend the lease, and send the output retained since it expired."""
        self.lease_ends_s = end_s
        if self._is_due or self.stalled:
            self._loop.call_soon(self.flush)

    def _wake(self) -> None:
        """Resume connections that waited for the store, even if none have output."""
        if self.stalled and not self._is_due:
            self._loop.call_soon(self.flush)
