"""A token bucket: spaces out what it lets through so that a rate holds. Pure: takes the time as an argument."""

from __future__ import annotations

# A stall now and then is made up for by a faster pace. Where more than this part of it is not used, something else is
# slower, and a faster pace would only become a burst later on.
MOST_LOST_RATIO = 0.1
# Releases missed for this long may be made up for at once: timers of an event loop are late by milliseconds.
BURST_S = 0.02
# Parts of a token do not add up exactly: who has waited as long as it was told to is not told to wait again.
NEARLY_ONE = 1.0 - 1e-9


class TokenBucket:
    """Lets `per_s` through in a second, evenly; what is not used within BURST_S is lost."""

    __slots__ = ("_at_s", "_due", "_per_s", "_seen", "_tokens", "lost")

    def __init__(self, per_s: float, now_s: float) -> None:
        self._per_s = per_s
        self._at_s = now_s
        self._tokens = 1.0
        self._due = 0.0
        # Messages that could have been let through and did not come.
        self.lost = 0.0
        # What was due and what was lost when it was asked last.
        self._seen = (0.0, 0.0)

    @property
    def per_s(self) -> float:
        return self._per_s

    def change(self, per_s: float, now_s: float) -> None:
        self.refill(now_s)
        self._per_s = per_s

    def take(self, now_s: float) -> bool:
        """Let one through, if it is time."""
        self.refill(now_s)
        if self._tokens < NEARLY_ONE:
            return False
        self._tokens -= 1.0
        return True

    def was_used(self, now_s: float) -> bool:
        """Tell whether most of what could go has gone since this was asked last."""
        self.refill(now_s)
        (due, lost), self._seen = self._seen, (self._due, self.lost)
        return self.lost - lost <= MOST_LOST_RATIO * (self._due - due)

    def wait_s(self) -> float:
        """Return how long, after the last refill, until the next may go."""
        return max(0.0, (1.0 - self._tokens) / self._per_s)

    def refill(self, now_s: float) -> None:
        new = (now_s - self._at_s) * self._per_s
        self._due += new
        tokens = self._tokens + new
        most = 1.0 + self._per_s * BURST_S
        if tokens > most:
            self.lost += tokens - most
            tokens = most
        self._tokens = tokens
        self._at_s = now_s
