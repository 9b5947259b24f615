"""Counts of connections and channels per virtual host and user, and their limits."""

from __future__ import annotations

from collections import Counter

from flyball.broker.core.authority import Authority
from flyball.broker.engine.limits import MAX_CHANNELS, MAX_CONNECTIONS
from flyball.errors import ConnectionLimitReached


class ConnectionLimits:
    """Counts the connections and channels of this node, and enforces their limits."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority
        self._in_vhost: Counter[str] = Counter()
        self._of_user: Counter[str] = Counter()
        self._channels: Counter[str] = Counter()
        # Channels of all users.
        self.channels = 0

    def check_connection(self, vhost: str, user: str = "") -> None:
        """Raise ConnectionLimitReached if the virtual host, or the user if any, is at its limit."""
        limit = self._authority.vhost_limits.limit(vhost, MAX_CONNECTIONS)
        if limit is not None and self._in_vhost[vhost] >= limit:
            suffix = f" for user '{user}'" if user else ""
            raise ConnectionLimitReached(
                f"access to vhost '{vhost}' refused{suffix}: connection limit ({limit}) is reached"
            )
        limit = self._authority.user_limits.limit(user, MAX_CONNECTIONS)
        if user and limit is not None and self._of_user[user] >= limit:
            raise ConnectionLimitReached(
                f"connection refused for user '{user}': user connection limit ({limit}) is reached"
            )

    def enter(self, vhost: str, user: str = "") -> None:
        """Count a connection."""
        self._in_vhost[vhost] += 1
        if user:
            self._of_user[user] += 1

    def leave(self, vhost: str, user: str = "") -> None:
        """Uncount a connection."""
        _less(self._in_vhost, vhost, 1)
        if user:
            _less(self._of_user, user, 1)

    def channel_limit(self, user: str) -> int | None:
        """Return the channel limit of the user if it is reached, else None."""
        limit = self._authority.user_limits.limit(user, MAX_CHANNELS)
        return limit if limit is not None and self._channels[user] >= limit else None

    def open_channel(self, user: str) -> None:
        self._channels[user] += 1
        self.channels += 1

    def close_channels(self, user: str, count: int) -> None:
        if count:
            _less(self._channels, user, count)
            self.channels -= count


def _less(counter: Counter[str], key: str, count: int) -> None:
    counter[key] -= count
    if not counter[key]:
        # Without this the counter would grow with every user and virtual host that ever existed.
        del counter[key]
