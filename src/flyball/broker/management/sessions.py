"""Who is logged in to the console: sessions, each known by a token that only its browser has.

The tokens are not kept, only marks of them. Knows no HTTP.
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

# A session that is not used for so long is over.
IDLE_S = 12 * 3600.0

# With more sessions those end that were not used for longest.
MOST = 10_000

_TOKEN_BYTES = 32


@dataclass(slots=True)
class _Session:
    name: str
    # That of the user when it logged in: with another password it has to log in again.
    password_hash: str | None = field(repr=False)
    used_s: float


class Sessions:
    """The sessions of a node. They end with the node."""

    def __init__(self, access: Access, *, now: Callable[[], float] = time.monotonic) -> None:
        self._access = access
        self._now = now
        # By the marks of their tokens; those used last are last.
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, user: User) -> str:
        """Return the token of a new session of a user who has logged in."""
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._sessions[_mark(token)] = _Session(user.name, user.password_hash, self._now())
        if len(self._sessions) > MOST:
            self._sessions.popitem(last=False)
        return token

    def user_of(self, token: str) -> User | None:
        """Return the user whose session it is, as it is now; None if it has to log in (again)."""
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
    # Looking up a mark takes as long for a token that is nearly right as for any other.
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
