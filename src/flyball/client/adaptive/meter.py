"""Counts messages inside a consumer. Takes the time as an argument; independent of brokers."""

from __future__ import annotations


class Meter:
    """Running counters. Sensors keep their own previous readings."""

    __slots__ = (
        "_changed_s",
        "arrived",
        "failed",
        "handled",
        "latency_s",
        "running",
        "running_area",
        "settled",
        "started",
        "waiting",
        "waiting_area",
    )

    def __init__(self) -> None:
        self.arrived = 0
        # Handlers started.
        self.started = 0
        # Messages acked, requeued or rejected.
        self.settled = 0
        self.handled = 0
        self.failed = 0
        # Sum over all settled messages.
        self.latency_s = 0.0
        self.waiting = 0
        self.running = 0
        # Integral of the number of waiting messages over time.
        self.waiting_area = 0.0
        self.running_area = 0.0
        self._changed_s = 0.0

    def advance(self, now_s: float) -> None:
        """Advance the clock."""
        elapsed_s = now_s - self._changed_s
        self.waiting_area += self.waiting * elapsed_s
        self.running_area += self.running * elapsed_s
        self._changed_s = now_s

    def arrive(self, now_s: float) -> None:
        self.advance(now_s)
        self.arrived += 1
        self.waiting += 1

    def begin(self, now_s: float) -> None:
        """A handler has started with a waiting message."""
        self.advance(now_s)
        self.started += 1
        self.waiting -= 1
        self.running += 1

    def end(self, now_s: float) -> None:
        """A handler has returned or raised."""
        self.advance(now_s)
        self.running -= 1

    def settle(self, latency_s: float) -> None:
        """A message was settled, this long after its arrival."""
        self.settled += 1
        self.latency_s += latency_s

    def forget(self, count: int, now_s: float) -> None:
        """Waiting messages were dropped."""
        self.advance(now_s)
        self.waiting -= count
