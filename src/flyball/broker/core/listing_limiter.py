"""Lets those who list long queues have their turn while the node has time for it: puts and takes go first.

Listings cost the event loop as much as thousands of puts. Cheap requests never wait here; what they cost is measured,
and listings get what is left, a page at a time. Knows neither queues nor messages.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from flyball.admission import AdmissionOptions
from flyball.admission.admission import Admission
from flyball.admission.sensors.thread import ThreadSensor
from flyball.errors import NotAdmitted, StoreUnavailable

# So busy listings may keep the node; what cheap requests take of it is taken from listings.
BUSY_RATIO = 0.75
# A listing of so many messages costs less than to wait for its turn.
CHEAP_MESSAGES = 100
MAX_WAITING = 10_000


class ListingLimiter:
    """Admission control for pages of listings, by how busy the node's thread is."""

    def __init__(self, time_limit_s: float) -> None:
        self.admission = Admission(
            ThreadSensor(),
            options=AdmissionOptions(
                reference=BUSY_RATIO * 1000.0,
                deadline_s=time_limit_s,
                least_deadline_ratio=1.0,
                queue_limit=MAX_WAITING,
                burst_s=0.0,
                name="listings",
            ),
        )

    @asynccontextmanager
    async def turn(self, size: int) -> AsyncIterator[None]:
        """Wait until a page of so many messages may be read. Raises StoreUnavailable if there is no time for it."""
        try:
            admitted = await self.admission.admit(f"page {_magnitude(size)}")
        except NotAdmitted as error:
            raise StoreUnavailable("the node is too busy for listings") from error
        began_s = time.perf_counter()
        is_failure = True
        try:
            yield
            is_failure = False
        finally:
            admitted.use.busy_s = time.perf_counter() - began_s
            admitted.end(is_failure)

    def stop(self) -> None:
        """Turn away those who wait."""
        self.admission.stop()


def _magnitude(size: int) -> int:
    """Return a power of ten that is not below: pages of one key cost about the same, and there are few keys."""
    return int(10 ** len(str(size)))
