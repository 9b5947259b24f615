"""Makes a node slow on purpose: it does at most so many operations a second, as if it ran on a slower machine.

What real work costs differs from moment to moment on a machine that several nodes share; operations are only counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from flyball.broker.core.broker import Broker

# How often it is looked at what was done while nothing is answered.
PERIOD_S = 0.05

# Shorter ones are put off: a thread cannot sleep for just any time.
MIN_PAUSE_S = 0.0002


def operations_of(broker: Broker) -> int:
    """Return how often a message was published, put into a queue, handed out, settled or given to another node."""
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
    """Pauses its thread after it has worked, so that no more operations are done in a second than the rate."""

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
        """Keep to the rate for ever, in the loop's thread."""
        while True:
            await asyncio.sleep(PERIOD_S)
            self.catch_up()

    def catch_up(self) -> None:
        """Pause for as long as the slower machine would still work on what was done since the last time."""
        operations = self._operations()
        now_s = self._clock()
        # When the slower machine is done; not before now, since it cannot work ahead of time.
        done_s = self._done_s + (operations - self._done_operations) / self._rate_per_s
        self._done_operations = operations
        if done_s - now_s >= MIN_PAUSE_S:
            self._pause(done_s - now_s)
            # Not the clock: what a pause was too long is made up for by the next one.
            self._done_s = done_s
        else:
            self._done_s = max(done_s, now_s)
