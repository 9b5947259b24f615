"""Rate limit of login attempts: token buckets per user name and per address.

Both are limited, so that neither one password for many names nor many passwords for one name can be tried quickly. A
name has more attempts than an address, so that one address cannot use up those of a name. Attempts on a name from an
address where it has logged in before use a separate bucket: guessing elsewhere does not lock the user out. From such
an address, recently verified credentials are accepted without waiting for guesses from the same address (`glance`);
these lookups are rate-limited as well, since otherwise they could be used to try all passwords.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TypeVar

# Failures allowed to an address, or to a name at an address where it has logged in.
TRIES = 5
# Interval at which one attempt is refilled.
REFILL_S = 2.0

# Failures allowed to a name from all addresses. Its bucket refills faster than one address can empty it: a peer that
# guesses the password of a name does not delay logins with that name from elsewhere.
NAME_TRIES = 20
NAME_REFILL_S = 0.5

# Maximum number of clients per address or name that wait for an attempt; more are refused. With REFILL_S all of them
# finish before the timeout of the AMQP handshake.
MAX_DELAYED = 4

# Failed lookups of recent logins allowed to a name at an address.
GLANCES = 20
# Interval at which one lookup is refilled.
GLANCE_S = 0.2

# Maximum number of buckets, and of known places; the least recently used are dropped.
MAX_BUCKETS = 10_000


# Maximum length of a name that is stored as it is; a longer one is stored as a digest.
MAX_CACHED_NAME = 64


T = TypeVar("T")


class TooManyAttempts(Exception):
    """No further attempt is allowed yet."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"too many failed logins: try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


@dataclass(slots=True)
class _Bucket:
    """The attempts that a name or an address has left."""

    maximum: int
    refill_s: float
    tries: float
    at_s: float
    # Attempts in progress. They count as failed until they end, so that many at once do not count as one.
    under_way: int = 0
    # Attempts that may start only if one in progress succeeds, first in, first out.
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)

    # Attempts that wait for a refill.
    delayed: int = 0

    def refill(self, now_s: float) -> None:
        self.tries = min(self.maximum, self.tries + (now_s - self.at_s) / self.refill_s)
        self.at_s = now_s

    def wake(self) -> None:
        """Wake the attempts that may start; if none may and none is in progress, wake all, to be refused."""
        count = int(self.tries) - self.under_way
        if count < 1 and not self.under_way:
            count = len(self.waiting)
        while self.waiting and count > 0:
            future = self.waiting.popleft()
            if not future.done():
                future.set_result(None)
                count -= 1


class Attempt:
    """One login attempt. It counts as failed unless `succeed` is called."""

    __slots__ = ("has_succeeded",)

    def __init__(self) -> None:
        self.has_succeeded = False

    def succeed(self) -> None:
        self.has_succeeded = True


class Attempts:
    """Limits login attempts by name and address."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._buckets: OrderedDict[tuple[str, ...], _Bucket] = OrderedDict()
        # Pairs of a name and an address or network from which it has logged in.
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def __len__(self) -> int:
        """The larger of the number of buckets and that of known places."""
        return max(len(self._buckets), len(self._known))

    @contextlib.asynccontextmanager
    async def attempt(self, name: str, address: str, *, can_wait: bool = False) -> AsyncIterator[Attempt]:
        """Guard a login attempt; wait while attempts in progress may use up the limit.

        Raises TooManyAttempts. With `can_wait` a few are delayed until a refill instead of refused. An attempt
        cancelled while it waits does not count, one cancelled later counts as failed.
        """
        name, place = _key_of(name), place_of(address)
        is_known = (name, place) in self._known
        # The place is checked first: a refused peer may invent names, and the bucket of each would evict another.
        keys = [("known", name, place)] if is_known else [("place", place), ("name", name)]
        attempt = Attempt()
        buckets: list[_Bucket] = []
        try:
            for key in keys:
                bucket = self._bucket(key, *((NAME_TRIES, NAME_REFILL_S) if key[0] == "name" else (TRIES, REFILL_S)))
                await self._enter(bucket, can_wait)
                buckets.append(bucket)
        except BaseException:
            for bucket in buckets:
                # No attempt was made.
                bucket.under_way -= 1
                bucket.wake()
            raise
        try:
            yield attempt
        finally:
            for bucket in buckets:
                bucket.under_way -= 1
                bucket.tries = bucket.maximum if attempt.has_succeeded else bucket.tries - 1
                bucket.wake()
            if attempt.has_succeeded:
                self._remember(name, place)

    async def _enter(self, bucket: _Bucket, can_wait: bool) -> None:
        """Wait while attempts in progress may use up the bucket. Raises TooManyAttempts if it is empty."""
        while True:
            bucket.refill(self._now())
            if bucket.tries - bucket.under_way >= 1:
                bucket.under_way += 1
                return
            if not bucket.under_way:
                if not can_wait or bucket.delayed >= MAX_DELAYED:
                    raise TooManyAttempts((1 - bucket.tries) * bucket.refill_s)
                bucket.delayed += 1
                try:
                    await asyncio.sleep((bucket.delayed - bucket.tries) * bucket.refill_s)
                finally:
                    bucket.delayed -= 1
                continue
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            bucket.waiting.append(woken)
            try:
                await woken
            except asyncio.CancelledError:
                if woken in bucket.waiting:
                    bucket.waiting.remove(woken)
                else:
                    # It was woken: pass its turn on.
                    bucket.wake()
                raise

    def glance(self, name: str, address: str, look: Callable[[], T | None]) -> T | None:
        """Return the result of `look`, None where the name has not logged in before or lookups failed too often."""
        name, place = _key_of(name), place_of(address)
        if (name, place) not in self._known:
            return None
        bucket = self._bucket(("glance", name, place), GLANCES, GLANCE_S)
        bucket.refill(self._now())
        if bucket.tries < 1:
            return None
        found = look()
        if found is None:
            bucket.tries -= 1
        return found

    def _bucket(self, key: tuple[str, ...], maximum: int, refill_s: float) -> _Bucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(maximum, refill_s, maximum, self._now())
        self._buckets.move_to_end(key)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return bucket

    def _remember(self, name: str, place: str) -> None:
        self._known[name, place] = None
        self._known.move_to_end((name, place))
        if len(self._known) > MAX_BUCKETS:
            self._known.popitem(last=False)


def _key_of(name: str) -> str:
    """Return the key of a name, of bounded size: unauthenticated peers choose names, and may choose long ones."""
    if len(name) <= MAX_CACHED_NAME:
        return name
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


def place_of(address: str) -> str:
    """Return the address, or of an IPv6 address its /64 network, all of which one client can use."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(found) >> 64 << 64))
