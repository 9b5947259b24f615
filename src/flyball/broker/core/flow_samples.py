"""Samples of the flow control loops for the trace, recorded only while the loops run.

The loops decide every 20 ms, but commits make the level a sawtooth. Five decisions are recorded as one sample: its
measurement is the level at the first decision, its action the inflow since then, which is below the allowed rate if
publishers send less. Where the outflow is not measured, the action is the mean of the rates: two successive samples
identify the plant only if publishers had to wait. Otherwise, and after a sample of a different length, one sequence
number is skipped, which readers treat as a gap.
"""

from __future__ import annotations

from collections.abc import Callable

from flyball.broker.core.flow_controller import SAMPLE_S, Tank
from flyball.control.loop import Sample
from flyball.control.tuning import Mode, Tuning

RECORDED_S = 5 * SAMPLE_S

# Minimum and maximum length of a sample that counts as RECORDED_S: timers of a busy event loop fire late.
_SHORTEST_S, _LONGEST_S = 0.9 * RECORDED_S, 1.6 * RECORDED_S


class TankSamples:
    """Records the samples of one tank."""

    __slots__ = (
        "_allowed",
        "_at_s",
        "_begun_s",
        "_drained_bytes",
        "_feedforward",
        "_is_bound",
        "_level_bytes",
        "_name",
        "_now_feedforward",
        "_record",
        "_sequence",
        "_tank",
        "_tuning",
        "rate_per_s",
    )

    def __init__(self, name: str, tank: Tank, tuning: Tuning, record: Callable[[Sample], None]) -> None:
        self._name = name
        self._tank = tank
        self._tuning = tuning
        self._record = record
        self._sequence = 0
        # The current sample: its start, time of the last decision, level and outflow at the start, inflow allowed so
        # far.
        self._begun_s = self._at_s = 0.0
        self._level_bytes = 0
        self._drained_bytes: int | None = None
        self._allowed = self._feedforward = 0.0
        self._is_bound = True
        # Of the last decision.
        self.rate_per_s = self._now_feedforward = 0.0

    def note(
        self, level_bytes: int, drained_bytes: int | None, now_s: float, *, was_limited: bool, other_per_s: float
    ) -> None:
        """Record a decision of the loop. `drained_bytes` counts the outflow, None if it is not measured.

        `was_limited`: publishers had to wait since the previous decision. `other_per_s` is the rate that the other
        tank allowed in that time.
        """
        elapsed_s = now_s - self._at_s
        if elapsed_s > _LONGEST_S:
            # The loop was at rest, or the event loop was blocked.
            self._sequence += 1
            self._begin(level_bytes, drained_bytes, now_s)
        else:
            self._allowed += self.rate_per_s * elapsed_s
            self._feedforward += self._now_feedforward * elapsed_s
            self._is_bound = self._is_bound and was_limited and self.rate_per_s <= other_per_s
            if now_s - self._begun_s >= _SHORTEST_S:
                self._end(level_bytes, drained_bytes, now_s)
                self._begin(level_bytes, drained_bytes, now_s)
        self._at_s = now_s
        self.rate_per_s = self._tank.rate_per_s
        # At a standstill the inflow is zero, whatever the drain.
        self._now_feedforward = min(self._tank.drain_per_s, self.rate_per_s)

    def _begin(self, level_bytes: int, drained_bytes: int | None, now_s: float) -> None:
        self._begun_s = now_s
        self._level_bytes = level_bytes
        self._drained_bytes = drained_bytes
        self._allowed = self._feedforward = 0.0
        self._is_bound = True

    def _end(self, level_bytes: int, drained_bytes: int | None, now_s: float) -> None:
        tank, length_s = self._tank, now_s - self._begun_s
        inflow = self._allowed
        if drained_bytes is not None and self._drained_bytes is not None:
            inflow = level_bytes - self._level_bytes + drained_bytes - self._drained_bytes
            self._is_bound = True
        self._sequence += 1
        # Below this pressure the rate does not limit publishers.
        if tank.is_pressed(self._level_bytes):
            self._record(
                Sample(
                    self._name,
                    self._begun_s,
                    RECORDED_S,
                    tank.setpoint_bytes,
                    self._level_bytes,
                    inflow / length_s,
                    self._sequence,
                    feedforward=self._feedforward / length_s,
                    mode=Mode.ACTIVE,
                    tuning=self._tuning,
                )
            )
        if not self._is_bound or length_s > _LONGEST_S:
            self._sequence += 1
