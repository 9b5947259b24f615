"""Passwords: hashed with argon2, checked off the event loop, and never kept.

A check takes tens of milliseconds on purpose. A thousand connections of one user do not pay it a thousand times:
a success is remembered for a short while, in a form from which nobody gets the password.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from collections.abc import Callable

from argon2 import PasswordHasher, Type, extract_parameters
from argon2.exceptions import InvalidHashError, VerificationError

from flyball.broker.core.turns import Turns
from flyball.errors import InvalidArgument

TIME_COST = 2
# The least that OWASP recommends for argon2id: a node checks several passwords at once and has other work.
MEMORY_KIB = 19 * 1024

# Runs of argon2 under way; further ones wait, with the memory that they would need.
MAX_CONCURRENT_RUNS = 2

# Runs that may wait. The longest line of one place is cut when there are more.
MAX_WAITING = 1000

# A success that nobody repeats for so long is forgotten.
REMEMBER_S = 300.0
# When more successes are remembered the oldest is forgotten.
MAX_REMEMBERED = 1000

MAX_PASSWORD_BYTES = 1024

MAX_HASH_LENGTH = 512
MAX_TIME_COST = 16
MAX_MEMORY_KIB = 256 * 1024
# A hash that comes from elsewhere is not taken if it costs more to check.
MAX_THREADS = 16

_SALT_BYTES = 16
_DIGEST_BYTES = 32


class Passwords:
    """Hashes passwords and checks them against hashes. A hash carries its salt and cost."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._hasher = PasswordHasher(
            time_cost=TIME_COST,
            memory_cost=MEMORY_KIB,
            parallelism=1,
            hash_len=_DIGEST_BYTES,
            salt_len=_SALT_BYTES,
        )
        self._now = now
        self._turns = Turns(MAX_CONCURRENT_RUNS, MAX_WAITING)
        self._key = secrets.token_bytes(hashlib.blake2b.MAX_KEY_SIZE)
        # Until when a success is remembered, by its mark; the oldest first.
        self._remembered: dict[bytes, float] = {}
        self._decoy = _decoy()
        # How many times argon2 was run.
        self.runs = 0

    async def hash_password(self, password: str | bytes) -> str:
        """Return a new hash of the password. Raises InvalidArgument for one that nobody could log in with."""
        data = _bytes_of(password)
        # Without the password in the message: messages are shown and logged.
        if not data:
            raise InvalidArgument("a password cannot be empty")
        if len(data) > MAX_PASSWORD_BYTES:
            raise InvalidArgument(f"a password has at most {MAX_PASSWORD_BYTES} bytes")
        if b"\0" in data:
            raise InvalidArgument("a password cannot hold a zero character")
        async with self._turns.turn("") as turn:
            self.runs += 1
            return await turn.run(self._hasher.hash, data)

    async def verify(self, password_hash: str | None, password: str | bytes, place: str = "") -> bool:
        """Return whether the password is the one of the hash.

        Without a hash, for a user that does not exist or has no password, it is not, and the answer takes as long.
        Places where passwords are checked take turns. Raises NotAdmitted if too many checks wait already.
        """
        data = _bytes_of(password)
        if password_hash is None or not 0 < len(data) <= MAX_PASSWORD_BYTES:
            password_hash, data = self._decoy, b"-"
        mark = self._mark(password_hash, data)
        if self._is_remembered(mark):
            return True
        async with self._turns.turn(place) as turn:
            # Somebody may have found out meanwhile: all connections of a program log in at the same moment.
            if self._is_remembered(mark):
                return True
            self.runs += 1
            is_right = await turn.run(self._check, password_hash, data)
        if is_right:
            self._remember(mark)
        return is_right

    def remembers(self, password_hash: str, password: str | bytes) -> bool:
        """Whether the password was found to be the one of the hash a short while ago. It takes no time to say so."""
        return self._is_remembered(self._mark(password_hash, _bytes_of(password)))

    def _mark(self, password_hash: str, data: bytes) -> bytes:
        return hashlib.blake2b(password_hash.encode() + b"\0" + data, key=self._key).digest()

    def _check(self, password_hash: str, data: bytes) -> bool:
        try:
            return self._hasher.verify(password_hash, data)
        except (VerificationError, InvalidHashError):
            return False

    def _is_remembered(self, mark: bytes) -> bool:
        until = self._remembered.get(mark)
        if until is None:
            return False
        del self._remembered[mark]
        if until <= self._now():
            return False
        self._remember(mark)
        return True

    def _remember(self, mark: bytes) -> None:
        self._remembered.pop(mark, None)
        self._remembered[mark] = self._now() + REMEMBER_S
        if len(self._remembered) > MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]


def check_hash(password_hash: str) -> None:
    """Raise InvalidArgument unless it is a hash that `Passwords` makes, or could."""
    try:
        found = extract_parameters(password_hash) if len(password_hash) <= MAX_HASH_LENGTH else None
    except (InvalidHashError, ValueError):
        found = None
    is_ours = found is not None and found.type is Type.ID
    if found is None or not is_ours or found.salt_len < _SALT_BYTES or found.hash_len < _DIGEST_BYTES:
        raise InvalidArgument("this is no hash of a password that Flyball makes (argon2id): give a password instead")
    if found.memory_cost > MAX_MEMORY_KIB or found.time_cost > MAX_TIME_COST or found.parallelism > MAX_THREADS:
        raise InvalidArgument("this hash of a password would cost too much to check: give a password instead")


def _bytes_of(password: str | bytes) -> bytes:
    # Whatever a peer sends is compared, also what is no text.
    return password if isinstance(password, bytes) else password.encode("utf-8", "surrogatepass")


def _decoy() -> str:
    """Return a hash that no password has, and that costs as much to check as any other."""
    salt, digest = (
        base64.b64encode(secrets.token_bytes(size)).decode().rstrip("=") for size in (_SALT_BYTES, _DIGEST_BYTES)
    )
    return f"$argon2id$v=19$m={MEMORY_KIB},t={TIME_COST},p=1${salt}${digest}"
