"""How fast publishers may fill what is scarce: a loop for each tank, which is anything with a level that they raise.

Decides and does nothing: levels and the time come in, a rate comes out. Who may send how much of it, and when these
loops run at all, is the flow's business.

The plant is an integrator: a level rises by what flows in and falls by what drains. The actuator is exact, since what
has flowed in is measured and not guessed: a message that goes into ten queues has cost ten times as much, one that
was taken out before it was written nothing. What is left is delay: a rate holds for one sample (20 ms), it is up to
one sample old when it is used up, and the commit queue shows the effect with the commit under way (1 to 20 ms):
50 ms together. For an integrator with a delay of d the SIMC rules (Skogestad, Journal of Process Control 13 (2003),
Table 1) give kp = 1 / (c + d) and ki = kp / (4 (c + d)) for a wanted time constant c. With c = 3 d, so c + d = 0.2 s:
kp = 5 /s and ki = 6.25 /s². The loop then bears six times the gain or the delay before it swings (pi/2 / (kp d) =
6.3), so a commit may take 0.3 s. A commit takes the level down at once by all that it wrote, which no rate can
smooth: while the store is the bottleneck the level saws about its setpoint by the size of a batch, commit by commit.
"""

from __future__ import annotations

import math

from flyball.control.certificate import Certificate
from flyball.control.limits import Limits
from flyball.control.timed_pi import PiLaw, PiState

SAMPLE_S = 0.02

# From this part of its setpoint on a level is watched; below, everybody sends as fast as they can.
PRESSURE_RATIO = 0.5

JOURNAL_KP = 5.0
JOURNAL_KI_PER_S = 6.25

# What drains from memory is not measured apart but shows in its level, so the rate is that at which it may grow: none
# at the setpoint, which needs no integral. A time constant of 2 s makes the slowing gentle.
MEMORY_KP = 0.5

# In bytes per second; nobody can send so much.
MAX_RATE = 4e9

# A rate that would fill the tank in a thousand seconds or more is none: publishers stand, and should hear why.
STANDSTILL_RATIO_PER_S = 0.001

# Above this multiple of its setpoint nothing is let in, whatever the rate: a store that has just begun to hang is
# still believed to drain.
CEILING_RATIO = 2.0

# Over about so long the drain is averaged: commits come one by one.
DRAIN_MEMORY_S = 0.5


# What `flyball.control.verification` finds for the law in samples, on a tank with two samples of delay. A test
# compares, since that takes long to import.
JOURNAL_CERTIFICATE = Certificate(
    law={"kind": "pi", "kp": JOURNAL_KP, "ki": JOURNAL_KI_PER_S * SAMPLE_S},
    plant="y(k+1) = 1 y(k) + 0.02 u(k-2)",
    poles=(0.9636 + 0j, 0.9095 + 0j, 0.4072 + 0j, -0.2802 + 0j),
    largest_pole=0.9636,
    gain_margin=5.95,
    delay_margin_samples=10.0,
    sample_time_s=SAMPLE_S,
)

MEMORY_CERTIFICATE = Certificate(
    law={"kind": "p", "kp": MEMORY_KP, "feedforward": 0.0},
    plant="y(k+1) = 1 y(k) + 0.02 u(k-2)",
    poles=(0.9898 + 0j, 0.1057 + 0j, -0.0955 + 0j),
    largest_pole=0.9898,
    gain_margin=61.8,
    delay_margin_samples=32.0,
    sample_time_s=SAMPLE_S,
)


class Tank:
    """One level and its loop: `begin` when there is pressure, then `sample` again and again, `rest` after it."""

    __slots__ = (
        "_budget_bytes",
        "_ceiling_bytes",
        "_drained_bytes",
        "_law",
        "_level_bytes",
        "_state",
        "drain_per_s",
        "rate_per_s",
        "reason",
        "setpoint_bytes",
    )

    def __init__(self, reason: str, setpoint_bytes: int, kp: float, ki_per_s: float = 0.0) -> None:
        # What a publisher is told that cannot send because of it.
        self.reason = reason
        self.setpoint_bytes = setpoint_bytes
        self._ceiling_bytes = CEILING_RATIO * setpoint_bytes
        self._law = PiLaw(setpoint_bytes, kp, ki_per_s, Limits(0.0, MAX_RATE))
        self.drain_per_s = 0.0
        # The action: so many bytes may flow in each second.
        self.rate_per_s = MAX_RATE
        self._state = PiState(0.0, 0.0)
        self._level_bytes = 0
        self._drained_bytes = 0
        self._budget_bytes = 0.0

    def is_pressed(self, level_bytes: int) -> bool:
        return level_bytes >= PRESSURE_RATIO * self.setpoint_bytes

    def begin(self, level_bytes: int, drained_bytes: int, drain_per_s: float, now: float) -> None:
        """Start the loop. `drained_bytes` counts all that ever left, `drain_per_s` is a first guess at its rate."""
        self._state = PiState(0.0, now)
        self._drained_bytes = drained_bytes
        self.drain_per_s = drain_per_s
        self.sample(level_bytes, drained_bytes, now, is_open=False)

    def sample(self, level_bytes: int, drained_bytes: int, now: float, *, is_open: bool) -> None:
        """Set the rate for the next sample time. The loop is open if nobody had to wait since the last one."""
        elapsed_s = now - self._state.at
        if elapsed_s > 0:
            share = 1.0 - math.exp(-elapsed_s / DRAIN_MEMORY_S)
            self.drain_per_s += share * ((drained_bytes - self._drained_bytes) / elapsed_s - self.drain_per_s)
        self._state, rate = self._law.step(
            self._state, level_bytes, now, feedforward=self.drain_per_s, is_open=is_open
        )
        is_standstill = rate < STANDSTILL_RATIO_PER_S * self.setpoint_bytes or level_bytes >= self._ceiling_bytes
        self.rate_per_s = 0.0 if is_standstill else rate
        self._budget_bytes = self.rate_per_s * max(SAMPLE_S, min(elapsed_s, 5 * SAMPLE_S))
        self._level_bytes = level_bytes
        self._drained_bytes = drained_bytes

    def rest(self) -> None:
        """The pressure is over: nothing is limited."""
        self.rate_per_s = MAX_RATE

    def room_bytes(self, level_bytes: int, drained_bytes: int) -> float:
        """Return how much may still flow in before the next sample; 0 or less if nothing."""
        if self.rate_per_s <= 0:
            return 0.0
        come_bytes = level_bytes - self._level_bytes + drained_bytes - self._drained_bytes
        return min(self._budget_bytes - come_bytes, self._ceiling_bytes - level_bytes)
