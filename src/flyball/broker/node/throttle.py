"""Throttles a node to a rate of message operations, to model a slower machine.

Operations are counted, not timed: on a machine shared by several nodes, the duration of work varies.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from flyball.broker.core.broker import Broker

# Interval of checks while no responses are sent.
PERIOD_S = 0.05

# Shorter pauses are deferred: a thread cannot sleep for arbitrarily short times.
MIN_PAUSE_S = 0.0002


def operations_of(broker: Broker) -> int:
    """Return the number of publishes, puts, deliveries, acks and hand-overs of messages."""
    counted = [broker.engine.gone, *broker.engine.queues]
    return broker.meters.published + sum(
        counts.arrived
        + counts.delivered
        + counts.delivered_no_ack
        + counts.got
        + counts.got_no_ack
        + counts.acknowledged
        + counts.handed_over
        for counts in counted
    )


class Throttle:
    """Pauses the thread after work, so that the rate of operations is not exceeded."""

    def __init__(
        self,
        rate_per_s: float,
        operations: Callable[[], int],
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate_per_s = rate_per_s
        self._operations = operations
        self._clock = clock
        self._pause = pause
        self._done_s = clock()
        self._done_operations = operations()

    async def run(self) -> None:
        """Enforce the rate forever, in the event loop's thread."""
        while True:
            await asyncio.sleep(PERIOD_S)
            self.catch_up()

    def catch_up(self) -> None:
        """Pause for the time that the slower machine would still need for the operations since the last call."""
        operations = self._operations()
        now_s = self._clock()
        # The time at which the slower machine would be done; idle time is not accumulated.
        done_s = self._done_s + (operations - self._done_operations) / self._rate_per_s
        self._done_operations = operations
        if done_s - now_s >= MIN_PAUSE_S:
            self._pause(done_s - now_s)
            # Not the current time: the next pause compensates for oversleeping.
            self._done_s = done_s
        else:
            self._done_s = max(done_s, now_s)
