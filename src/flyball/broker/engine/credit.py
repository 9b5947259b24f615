"""The credit of a consumer: the maximum number of its unacked messages. A prefetch may be fractional.

A prefetch of 2.3 is a window of 2 for 70 % of the time and of 3 for the rest, switched every few milliseconds. A
controller that samples once a second sees the average: its actuator is continuous instead of quantized to integers.
`test_the_average_window_over_a_cycle_is_the_prefetch` checks this.
"""

from __future__ import annotations

import math

# Time slot during which the window of a fractional prefetch is constant.
SLOT_US = 10_000

# Slots per period of the pattern, and so the resolution of the fraction.
_CYCLE = 1000

UNLIMITED = 2**31 - 1


class Credit:
    """Computes the window of a prefetch at a given time."""

    __slots__ = ("_fraction", "_whole", "prefetch")

    def __init__(self, prefetch: float) -> None:
        """`prefetch` is at least 0 (nothing is delivered); infinity means unlimited."""
        if math.isnan(prefetch) or prefetch < 0:
            raise ValueError(f"a prefetch must be 0 or more, not {prefetch}")
        self.prefetch = prefetch
        self._whole = int(min(prefetch, UNLIMITED))
        self._fraction = round((min(prefetch, UNLIMITED) - self._whole) * _CYCLE)

    @property
    def is_fractional(self) -> bool:
        return self._fraction > 0

    def window(self, now_us: int) -> int:
        """Return the maximum number of unacked messages now.

        Slots with the larger window are spread evenly over the cycle (Bresenham's line), so that the error of the
        average is below one slot at any time.
        """
        if self._fraction == 0:
            return self._whole
        slot = now_us // SLOT_US % _CYCLE
        return self._whole + (slot + 1) * self._fraction // _CYCLE - slot * self._fraction // _CYCLE
