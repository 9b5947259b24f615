"""Samples of the loops of flow control, for the trace: while they run, with gaps where the rate did not bind.

A plant can be identified from two successive samples only if the rate that the first one set was what came in. Where
no publisher had to wait, or the other loop allowed less, a number is left out, which readers see as a gap.
"""

from __future__ import annotations

from collections.abc import Callable

from flyball.broker.core.flow_controller import MAX_RATE, SAMPLE_S, Tank
from flyball.control.loop import Sample
from flyball.control.tuning import Mode, Tuning

# Samples that are late by more than half of the sample time leave a gap.
_LATEST_S = 1.5 * SAMPLE_S


class TankSamples:
    """Records the samples of one tank."""

    __slots__ = ("_at_s", "_name", "_record", "_sequence", "_tank", "_tuning", "rate_per_s")

    def __init__(self, name: str, tank: Tank, tuning: Tuning, record: Callable[[Sample], None]) -> None:
        self._name = name
        self._tank = tank
        self._tuning = tuning
        self._record = record
        self._sequence = 0
        self._at_s = 0.0
        # The rate since the last sample.
        self.rate_per_s = MAX_RATE

    def note(self, level_bytes: int, now_s: float, *, was_limited: bool, other_per_s: float) -> None:
        """Record a sample that was just taken.

        `was_limited`: publishers had to wait since the last one. `other_per_s` is the rate that the other tank
        allowed meanwhile.
        """
        tank = self._tank
        is_next = was_limited and self.rate_per_s <= other_per_s and now_s - self._at_s <= _LATEST_S
        self._sequence += 1 if is_next else 2
        self._at_s = now_s
        self.rate_per_s = tank.rate_per_s
        if not tank.is_pressed(level_bytes):
            # It allows more than anyone sends.
            return
        self._record(
            Sample(
                self._name,
                now_s,
                SAMPLE_S,
                tank.setpoint_bytes,
                level_bytes,
                tank.rate_per_s,
                self._sequence,
                # At a standstill nothing comes in, whatever drains.
                feedforward=min(tank.drain_per_s, tank.rate_per_s),
                mode=Mode.ACTIVE,
                tuning=self._tuning,
            )
        )
