"""Login sessions of the console, each identified by a token that only its browser has.

Only digests of the tokens are stored.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from flyball.broker.engine.access import Access
from flyball.model import User

# Idle timeout of a session.
IDLE_S = 12 * 3600.0

# Maximum number of sessions; the least recently used ones end first.
MOST = 10_000

_TOKEN_BYTES = 32


@dataclass(slots=True)
class _Session:
    name: str
    # The user's hash at login: a password change ends the session.
    password_hash: str | None = field(repr=False)
    used_s: float


class Sessions:
    """The sessions of a node, in memory only."""

    def __init__(self, access: Access, *, now: Callable[[], float] = time.monotonic) -> None:
        self._access = access
        self._now = now
        # By digest of the token; the most recently used last.
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, user: User) -> str:
        """Start a session for a user and return its token."""
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._sessions[_mark(token)] = _Session(user.name, user.password_hash, self._now())
        if len(self._sessions) > MOST:
            self._sessions.popitem(last=False)
        return token

    def user_of(self, token: str) -> User | None:
        """Return the current user of a session; None if it has ended."""
        mark = _mark(token)
        session = self._sessions.get(mark)
        if session is None:
            return None
        user = self._access.find_user(session.name)
        is_over = self._now() - session.used_s > IDLE_S
        if is_over or user is None or user.password_hash != session.password_hash:
            del self._sessions[mark]
            return None
        session.used_s = self._now()
        self._sessions.move_to_end(mark)
        return user

    def end(self, token: str) -> None:
        """End a session, if there is one."""
        self._sessions.pop(_mark(token), None)


def _mark(token: str) -> bytes:
    # Looking up a digest takes the same time for an almost correct token as for any other (timing attack).
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
