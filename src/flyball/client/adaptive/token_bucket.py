"""A token bucket that spaces out messages to hold a rate. Pure: takes the time as an argument."""

from __future__ import annotations

# Stalls are compensated by a faster rate. If more than this share of it goes unused, something else is the
# bottleneck, and a faster rate would only cause a burst later.
MOST_LOST_RATIO = 0.1
# Missed releases of the last 20 ms may be made up at once: event loop timers are late by milliseconds.
BURST_S = 0.02
# Fractions of a token do not add up exactly: a caller that has waited `wait_s` must not be sent back to wait.
NEARLY_ONE = 1.0 - 1e-9


class TokenBucket:
    """Lets `per_s` messages through per second, evenly; releases unused for BURST_S are lost."""

    __slots__ = ("_at_s", "_due", "_per_s", "_seen", "_tokens", "lost")

    def __init__(self, per_s: float, now_s: float) -> None:
        self._per_s = per_s
        self._at_s = now_s
        self._tokens = 1.0
        self._due = 0.0
        # Releases that were not used.
        self.lost = 0.0
        # Due and lost releases at the last check.
        self._seen = (0.0, 0.0)

    @property
    def per_s(self) -> float:
        return self._per_s

    def change(self, per_s: float, now_s: float) -> None:
        self.refill(now_s)
        self._per_s = per_s

    def take(self, now_s: float) -> bool:
        """Take one token, if available."""
        self.refill(now_s)
        if self._tokens < NEARLY_ONE:
            return False
        self._tokens -= 1.0
        return True

    def was_used(self, now_s: float) -> bool:
        """Return whether most releases since the last call were used."""
        self.refill(now_s)
        (due, lost), self._seen = self._seen, (self._due, self.lost)
        return self.lost - lost <= MOST_LOST_RATIO * (self._due - due)

    def wait_s(self) -> float:
        """Return the seconds until the next token, counted from the last refill."""
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
