"""Counts what happens to messages inside a consumer. Takes the time as an argument and knows nothing of brokers."""

from __future__ import annotations


class Meter:
    """What has happened so far. Sensors look at it and remember what they have seen."""

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
        # Handlers that have begun.
        self.started = 0
        # Messages that were acknowledged, requeued or rejected.
        self.settled = 0
        self.handled = 0
        self.failed = 0
        # Of all settled messages together.
        self.latency_s = 0.0
        self.waiting = 0
        self.running = 0
        # Messages that waited, times the seconds for which they did.
        self.waiting_area = 0.0
        self.running_area = 0.0
        self._changed_s = 0.0

    def advance(self, now_s: float) -> None:
        """Let time pass until now."""
        elapsed_s = now_s - self._changed_s
        self.waiting_area += self.waiting * elapsed_s
        self.running_area += self.running * elapsed_s
        self._changed_s = now_s

    def arrive(self, now_s: float) -> None:
        self.advance(now_s)
        self.arrived += 1
        self.waiting += 1

    def begin(self, now_s: float) -> None:
        """A handler begins with a message that waited."""
        self.advance(now_s)
        self.started += 1
        self.waiting -= 1
        self.running += 1

    def end(self, now_s: float) -> None:
        """A handler has returned, or failed."""
        self.advance(now_s)
        self.running -= 1

    def settle(self, latency_s: float) -> None:
        """A message that arrived so long ago is settled."""
        self.settled += 1
        self.latency_s += latency_s

    def forget(self, count: int, now_s: float) -> None:
        """So many messages that waited are gone."""
        self.advance(now_s)
        self.waiting -= count
