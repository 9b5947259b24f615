"""Passwords: hashed with argon2, verified off the event loop, never stored in clear.

A verification costs tens of milliseconds on purpose. To spare a thousand connections of one user this cost, a success
is cached for a short time as a keyed hash, from which the password cannot be recovered.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from collections.abc import Callable

from argon2 import PasswordHasher, Type, extract_parameters
from argon2.exceptions import InvalidHashError, VerificationError

from flyball.broker.core.fair_executor import FairExecutor
from flyball.errors import InvalidArgument

TIME_COST = 2
# OWASP's minimum for argon2id: a node verifies several passwords at once and has other work.
MEMORY_KIB = 19 * 1024

# Concurrent runs of argon2, which need `MEMORY_KIB` each; further ones wait.
MAX_CONCURRENT_RUNS = 2

# Maximum number of waiting runs; above it, the last one of the place with the longest queue is refused.
MAX_WAITING = 1000

# Lifetime of a cached success since its last use.
REMEMBER_S = 300.0
# Maximum number of cached successes; the oldest is dropped.
MAX_CACHED = 1000

MAX_PASSWORD_BYTES = 1024

MAX_HASH_LENGTH = 512
MAX_TIME_COST = 16
MAX_MEMORY_KIB = 256 * 1024
# Maximum parallelism. With the limits above it bounds the cost of an imported hash.
MAX_THREADS = 16

_SALT_BYTES = 16
_DIGEST_BYTES = 32


class Passwords:
    """Hashes passwords and verifies them. A hash includes its salt and cost."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._hasher = PasswordHasher(
            time_cost=TIME_COST,
            memory_cost=MEMORY_KIB,
            parallelism=1,
            hash_len=_DIGEST_BYTES,
            salt_len=_SALT_BYTES,
        )
        self._now = now
        self._turns = FairExecutor(MAX_CONCURRENT_RUNS, MAX_WAITING)
        self._key = secrets.token_bytes(hashlib.blake2b.MAX_KEY_SIZE)
        # Expiry of cached successes, by mark; the oldest first.
        self._cached: dict[bytes, float] = {}
        self._decoy = _decoy()
        # Number of runs of argon2 so far.
        self.runs = 0

    async def hash_password(self, password: str | bytes) -> str:
        """Return a new hash of the password. Raises InvalidArgument for an unusable password."""
        data = _bytes_of(password)
        # Messages leave out the password, since they are shown and logged.
        if not data:
            raise InvalidArgument("a password cannot be empty")
        if len(data) > MAX_PASSWORD_BYTES:
            raise InvalidArgument(f"a password cannot be longer than {MAX_PASSWORD_BYTES} bytes")
        if b"\0" in data:
            raise InvalidArgument("a password cannot contain a null character")
        async with self._turns.turn("") as turn:
            self.runs += 1
            return await turn.run(self._hasher.hash, data)

    async def verify(self, password_hash: str | None, password: str | bytes, place: str = "") -> bool:
        """Whether the password matches the hash.

        Without a hash, for a user that does not exist or has no password, return False after the same time.
        Places take turns. Raises NotAdmitted if too many verifications are waiting.
        """
        data = _bytes_of(password)
        if password_hash is None or not 0 < len(data) <= MAX_PASSWORD_BYTES:
            password_hash, data = self._decoy, b"-"
        mark = self._mark(password_hash, data)
        if self._is_cached(mark):
            return True
        async with self._turns.turn(place) as turn:
            # Another connection may have verified it in the meantime: a program's connections log in together.
            if self._is_cached(mark):
                return True
            self.runs += 1
            is_right = await turn.run(self._check, password_hash, data)
        if is_right:
            self._remember(mark)
        return is_right

    def remembers(self, password_hash: str, password: str | bytes) -> bool:
        """Whether the cache holds a recent verification of the password against the hash."""
        return self._is_cached(self._mark(password_hash, _bytes_of(password)))

    def _mark(self, password_hash: str, data: bytes) -> bytes:
        return hashlib.blake2b(password_hash.encode() + b"\0" + data, key=self._key).digest()

    def _check(self, password_hash: str, data: bytes) -> bool:
        try:
            return self._hasher.verify(password_hash, data)
        except (VerificationError, InvalidHashError):
            return False

    def _is_cached(self, mark: bytes) -> bool:
        until = self._cached.get(mark)
        if until is None:
            return False
        del self._cached[mark]
        if until <= self._now():
            return False
        self._remember(mark)
        return True

    def _remember(self, mark: bytes) -> None:
        self._cached.pop(mark, None)
        self._cached[mark] = self._now() + REMEMBER_S
        if len(self._cached) > MAX_CACHED:
            del self._cached[next(iter(self._cached))]


def check_hash(password_hash: str) -> None:
    """Raise InvalidArgument unless it is an argon2id hash of acceptable strength and cost."""
    try:
        found = extract_parameters(password_hash) if len(password_hash) <= MAX_HASH_LENGTH else None
    except (InvalidHashError, ValueError):
        found = None
    is_ours = found is not None and found.type is Type.ID
    if found is None or not is_ours or found.salt_len < _SALT_BYTES or found.hash_len < _DIGEST_BYTES:
        raise InvalidArgument("not a password hash of Flyball (argon2id): set a password instead")
    if found.memory_cost > MAX_MEMORY_KIB or found.time_cost > MAX_TIME_COST or found.parallelism > MAX_THREADS:
        raise InvalidArgument("the password hash is too expensive to verify: set a password instead")


def _bytes_of(password: str | bytes) -> bytes:
    # A peer may send a password that is not valid Unicode.
    return password if isinstance(password, bytes) else password.encode("utf-8", "surrogatepass")


def _decoy() -> str:
    """Return a hash that no password matches, with the usual cost of verification."""
    salt, digest = (
        base64.b64encode(secrets.token_bytes(size)).decode().rstrip("=") for size in (_SALT_BYTES, _DIGEST_BYTES)
    )
    return f"$argon2id$v=19$m={MEMORY_KIB},t={TIME_COST},p=1${salt}${digest}"
