"""How long to wait before the next attempt to connect. Pure: the caller brings the random number and waits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Doubles from `first_s` up to `most_s`; up to half of each delay is left to chance.

    Without chance, clients that lost their connections together would come back together.
    """

    first_s: float = 0.05
    most_s: float = 5.0

    def delay_s(self, attempt: int, chance: float) -> float:
        """Return the delay before the attempt, counted from 0; `chance` is a random number from 0 to 1."""
        # 2.0 ** 1024 overflows; long before that the delay is at its most.
        full_s = min(self.most_s, self.first_s * 2.0 ** min(attempt, 64))
        return full_s * (0.5 + 0.5 * chance)
