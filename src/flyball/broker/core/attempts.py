"""How often a client may try to log in: a few times at once, then slowly. Knows neither protocols nor passwords.

Tries are counted by name and by address: neither one password for many names nor many passwords for one name can be
tried quickly. A name has more tries than an address, so that one address cannot use up those of a name. Tries of a
name from an address where it has logged in before are counted apart, so that nobody who guesses elsewhere shuts it
out. There, too, one who says what was right a short while ago need not wait for those who guess, unless they do it
all the time: then they could try all passwords.
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

# Failures of an address, or of a name at an address where it has logged in, before it has to wait.
TRIES = 5
# Seconds until it has another try.
REFILL_S = 2.0

# Failures of a name, from anywhere. It fills faster than one address can use it up: a peer that guesses the password
# of a name delays nobody who logs in with that name elsewhere.
NAME_TRIES = 20
NAME_REFILL_S = 0.5

# Clients of one address or name that wait for their next try; further ones are refused. With REFILL_S all of them
# are through before AMQP's handshake has to be over.
MAX_DELAYED = 4

GLANCES = 20
# After GLANCES in vain there is another each so many seconds.
GLANCE_S = 0.2

# So many names and addresses are remembered; then those are forgotten that were not used for longest.
MOST = 10_000


# Characters of a name that is remembered as it is; of a longer one it is a digest.
MAX_REMEMBERED_NAME = 64


T = TypeVar("T")


class TooManyAttempts(Exception):
    """No further try is allowed yet."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"too many failed log-ins: try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


@dataclass(slots=True)
class _Bucket:
    """The tries that a name or an address has left."""

    maximum: int
    refill_s: float
    tries: float
    at_s: float
    # Tries whose outcome is open. They count as failed until it is known: many at once do not count as one.
    under_way: int = 0
    # Those that may only begin if one that is under way succeeds; the first to come is the first to go on.
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)

    # Those that wait for the next try.
    delayed: int = 0

    def refill(self, now_s: float) -> None:
        self.tries = min(self.maximum, self.tries + (now_s - self.at_s) / self.refill_s)
        self.at_s = now_s

    def wake(self) -> None:
        """Let those go on that can begin now; if none can and nothing is under way, all of them: they are refused."""
        count = int(self.tries) - self.under_way
        if count < 1 and not self.under_way:
            count = len(self.waiting)
        while self.waiting and count > 0:
            future = self.waiting.popleft()
            if not future.done():
                future.set_result(None)
                count -= 1


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
        # Names with the places from which they have logged in.
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def __len__(self) -> int:
        """How many names and addresses are remembered as having failed, or else as having logged in."""
        return max(len(self._buckets), len(self._known))

    @contextlib.asynccontextmanager
    async def attempt(self, name: str, address: str, *, can_wait: bool = False) -> AsyncIterator[Attempt]:
        """Let a client try; those that would have no try left if it failed wait for that. Raises TooManyAttempts.

        With `can_wait` a few are delayed until there is another try, instead of refused. One that is cancelled while
        it waits has not tried; one that is cancelled later has failed.
        """
        name, place = _key_of(name), place_of(address)
        is_known = (name, place) in self._known
        # The place comes first: who is refused there may have made up the name, and for each that is remembered
        # another is forgotten.
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
                # It was not tried.
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
        """Wait while those under way may use up the tries. Raises TooManyAttempts if they are used up."""
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
                    # It was to go on: another can.
                    bucket.wake()
                raise

    def glance(self, name: str, address: str, look: Callable[[], T | None]) -> T | None:
        """Return what `look` finds, where the name has logged in before and not too many have looked in vain."""
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
        if len(self._buckets) > MOST:
            self._buckets.popitem(last=False)
        return bucket

    def _remember(self, name: str, place: str) -> None:
        self._known[name, place] = None
        self._known.move_to_end((name, place))
        if len(self._known) > MOST:
            self._known.popitem(last=False)


def _key_of(name: str) -> str:
    """Return what a name is remembered by: peers that have not logged in choose it, and may choose long ones."""
    if len(name) <= MAX_REMEMBERED_NAME:
        return name
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


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
