"""How often somebody may try to log in: a few times at once, then slowly. Knows neither HTTP nor passwords.

Tries are counted by name and by address: neither one password for many names nor many passwords for one name can be
tried quickly. Those of a name from an address where it has logged in before are counted apart, so that nobody who
guesses elsewhere shuts it out. There, too, one who says what was right a short while ago need not wait for those who
guess, unless they do it all the time: then they could try all passwords.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TypeVar

TRIES = 5
REFILL_S = 2.0
"""After TRIES failures there is another try each so many seconds."""

GLANCES = 20
GLANCE_S = 0.2
"""After GLANCES in vain there is another each so many seconds."""

MOST = 10_000
"""So many names and addresses are remembered; then those are forgotten that were not used for longest."""


T = TypeVar("T")


class TooManyAttempts(Exception):
    """No further try is allowed yet."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"too many failed log-ins: try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


@dataclass(slots=True)
class _Bucket:
    """The tries that a name or an address has left."""

    tries: float
    at_s: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during a try: many at once do not count as one."""


class Attempt:
    """One try to log in. It counts as failed unless `succeed` is called."""

    __slots__ = ("has_succeeded",)

    def __init__(self) -> None:
        self.has_succeeded = False

    def succeed(self) -> None:
        self.has_succeeded = True


class Attempts:
    """Who may try to log in now."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._buckets: OrderedDict[tuple[str, ...], _Bucket] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Names with the places from which they have logged in."""

    def __len__(self) -> int:
        """How many names and addresses are remembered as having failed, or else as having logged in."""
        return max(len(self._buckets), len(self._known))

    @contextlib.asynccontextmanager
    async def attempt(self, name: str, address: str) -> AsyncIterator[Attempt]:
        """Let somebody try; further ones that count together with it wait. Raises TooManyAttempts."""
        place = place_of(address)
        is_known = (name, place) in self._known
        # Always in this order, so that no two wait for each other. The place comes first: who is refused there may
        # have made up the name, and for each that is remembered another is forgotten.
        keys = [("known", name, place)] if is_known else [("place", place), ("name", name)]
        buckets: list[_Bucket] = []
        async with contextlib.AsyncExitStack() as held:
            for key in keys:
                bucket = self._bucket(key, TRIES)
                await held.enter_async_context(bucket.lock)
                self._check(bucket)
                buckets.append(bucket)
            attempt = Attempt()
            try:
                yield attempt
            finally:
                for bucket in buckets:
                    bucket.tries = TRIES if attempt.has_succeeded else bucket.tries - 1
                if attempt.has_succeeded:
                    self._remember(name, place)

    def glance(self, name: str, address: str, look: Callable[[], T | None]) -> T | None:
        """Return what `look` finds, where the name has logged in before and not too many have looked in vain."""
        place = place_of(address)
        if (name, place) not in self._known:
            return None
        bucket = self._bucket(("glance", name, place), GLANCES)
        if self._refilled(bucket, GLANCES, GLANCE_S) < 1:
            return None
        found = look()
        if found is None:
            bucket.tries -= 1
        return found

    def _bucket(self, key: tuple[str, ...], tries: int) -> _Bucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(tries, self._now())
        self._buckets.move_to_end(key)
        if len(self._buckets) > MOST:
            self._buckets.popitem(last=False)
        return bucket

    def _check(self, bucket: _Bucket) -> None:
        if self._refilled(bucket, TRIES, REFILL_S) < 1:
            raise TooManyAttempts((1 - bucket.tries) * REFILL_S)

    def _refilled(self, bucket: _Bucket, most: int, refill_s: float) -> float:
        """Return how many tries are left in the bucket now."""
        now_s = self._now()
        bucket.tries = min(most, bucket.tries + (now_s - bucket.at_s) / refill_s)
        bucket.at_s = now_s
        return bucket.tries

    def _remember(self, name: str, place: str) -> None:
        self._known[name, place] = None
        self._known.move_to_end((name, place))
        if len(self._known) > MOST:
            self._known.popitem(last=False)


def place_of(address: str) -> str:
    """Return what an address counts as: one of IPv6 as its network, of which one client has all the addresses."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(found) >> 64 << 64))
