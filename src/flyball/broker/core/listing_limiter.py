"""Admission control for listings of long queues: puts and reads take precedence.

A listing costs the event loop as much as thousands of puts. Cheap requests never wait here; their load is measured,
and listings share the remaining capacity, page by page.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from flyball.admission import AdmissionOptions
from flyball.admission.admission import Admission
from flyball.admission.sensors.thread import ThreadSensor
from flyball.errors import NotAdmitted, StoreUnavailable

# Target utilization of the event loop. The load of cheap requests reduces the part left for listings.
BUSY_RATIO = 0.75
# Listings of at most this size bypass admission: they cost less than the wait.
CHEAP_MESSAGES = 100
MAX_WAITING = 10_000


class ListingLimiter:
    """Admits pages of listings by the utilization of the node's thread."""

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
        """Wait until a page of `size` messages may be read. Raises StoreUnavailable if it is not admitted in time."""
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
        """Refuse all waiting pages."""
        self.admission.stop()


def _magnitude(size: int) -> int:
    """Round up to a power of ten: pages of one class cost about the same, and there are few classes."""
    return int(10 ** len(str(size)))
