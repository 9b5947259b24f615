"""Exponential backoff with jitter. Pure: the caller sleeps."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Doubles from `first_s` up to `max_s`; `jitter_ratio` of each delay is random.

    Without jitter, clients that lost their connections together would reconnect together.
    """

    first_s: float = 0.05
    max_s: float = 5.0
    jitter_ratio: float = 0.5

    def delay_s(self, attempt: int, chance: float) -> float:
        """Return the delay before the attempt, counted from 0; `chance` is a random number from 0 to 1."""
        # 2.0 ** 1024 overflows; long before that the delay is at its maximum.
        full_s = min(self.max_s, self.first_s * 2.0 ** min(attempt, 64))
        return full_s * (1.0 - self.jitter_ratio * (1.0 - chance))


class Retries:
    """Counts attempts at one operation: delays grow until `reset`."""

    __slots__ = ("_backoff", "_chance", "attempts")

    def __init__(self, backoff: Backoff, chance: Callable[[], float] = random.random) -> None:
        self.attempts = 0
        self._backoff = backoff
        self._chance = chance

    def next_delay_s(self) -> float:
        """Count an attempt and return the delay before it."""
        delay_s = self._backoff.delay_s(self.attempts, self._chance())
        self.attempts += 1
        return delay_s

    def reset(self) -> None:
        """Start over with the first delay, after a success."""
        self.attempts = 0
