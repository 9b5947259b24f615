"""How many messages a consumer may hold at once: its prefetch, which may be a fraction.

A window of 2.3 is 2 for seven tenths of the time and 3 for the rest, changing every few milliseconds. A controller
that samples once a second sees the average, and is spared the hopping of an integer actuator.
"""

from __future__ import annotations

import math

# How long the window of a fractional prefetch stays the same.
SLOT_US = 10_000

# Slots after which the pattern repeats; also the resolution of the fraction.
_CYCLE = 1000

UNLIMITED = 2**31 - 1


class Credit:
    """Turns a prefetch into the window that holds at a given time."""

    __slots__ = ("_fraction", "_whole", "prefetch")

    def __init__(self, prefetch: float) -> None:
        """`prefetch` is 0 (nothing is delivered) or more; infinity is no limit."""
        if math.isnan(prefetch) or prefetch < 0:
            raise ValueError(f"a prefetch must be 0 or more, not {prefetch}")
        self.prefetch = prefetch
        self._whole = int(min(prefetch, UNLIMITED))
        self._fraction = round((min(prefetch, UNLIMITED) - self._whole) * _CYCLE)

    @property
    def is_fractional(self) -> bool:
        return self._fraction > 0

    def window(self, now_us: int) -> int:
        """Return how many messages the consumer may hold now.

        The slots with the larger window are spread evenly over the cycle (Bresenham's line).
        """
        if self._fraction == 0:
            return self._whole
        slot = now_us // SLOT_US % _CYCLE
        return self._whole + (slot + 1) * self._fraction // _CYCLE - slot * self._fraction // _CYCLE
