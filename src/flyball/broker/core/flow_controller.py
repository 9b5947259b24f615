"""The rate limit of publishers: one control loop per tank, a resource whose level publishers raise.

Pure control laws: level and time in, rate out. `flow` runs the loops and shares the rate among publishers.

The plant is an integrator: the level rises by the inflow and falls by the drain. The actuator is exact, since the
inflow is measured and not estimated: a message routed to ten queues costs ten times as much, one acked before it was
written costs nothing. The remaining dynamics are delay: a rate holds for one sample (20 ms), it is up to one sample
old when it is used up, and the commit queue shows the effect with the commit in progress (1 to 20 ms): 50 ms in
total. For an integrator with a delay of d the SIMC rules (Skogestad, Journal of Process Control 13 (2003), Table 1)
give kp = 1 / (c + d) and ki = kp / (4 (c + d)) for a closed-loop time constant c. With c = 3 d, so c + d = 0.2 s:
kp = 5 /s and ki = 6.25 /s². The loop then tolerates six times the gain or the delay before it oscillates
(pi/2 / (kp d) = 6.3), so a commit may take 0.3 s. A commit lowers the level in one step, which no rate can smooth:
while the store is the bottleneck, the level is a sawtooth about its setpoint, with the amplitude of a batch.
"""

from __future__ import annotations

import math

from flyball.control.certificate import Certificate
from flyball.control.limits import Limits
from flyball.control.timed_pi import PiLaw, PiState

SAMPLE_S = 0.02

# Fraction of its setpoint above which a level is controlled; below it, publishers are not limited.
PRESSURE_RATIO = 0.5

JOURNAL_KP = 5.0
JOURNAL_KI_PER_S = 6.25

# The drain of memory is not measured separately but is part of its level, so the rate is the allowed growth: zero at
# the setpoint, which needs no integral action. A time constant of 2 s throttles gently.
MEMORY_KP = 0.5

# Unlimited, in bytes per second: more than publishers can send.
MAX_RATE = 4e9

# A rate that would fill the tank in a thousand seconds or more counts as zero, so that publishers are notified.
STANDSTILL_RATIO_PER_S = 0.001

# Multiple of the setpoint above which nothing is accepted, whatever the rate: when a store stops responding, the
# estimate of its drain is outdated.
CEILING_RATIO = 2.0

# Time constant of the average of the drain, which is measured commit by commit.
DRAIN_MEMORY_S = 0.5


# The result of `flyball.control.verification` for the sampled law on a tank with two samples of delay. A constant,
# since that module takes long to import; a test compares them.
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
    """A level and its loop: `begin` under pressure, then `sample` periodically, then `rest`."""

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
        # The reason sent to publishers that this tank blocks.
        self.reason = reason
        self.setpoint_bytes = setpoint_bytes
        self._ceiling_bytes = CEILING_RATIO * setpoint_bytes
        self._law = PiLaw(setpoint_bytes, kp, ki_per_s, Limits(0.0, MAX_RATE))
        self.drain_per_s = 0.0
        # The control action: inflow in bytes per second.
        self.rate_per_s = MAX_RATE
        self._state = PiState(0.0, 0.0)
        self._level_bytes = 0
        self._drained_bytes = 0
        self._budget_bytes = 0.0

    def is_pressed(self, level_bytes: int) -> bool:
        return level_bytes >= PRESSURE_RATIO * self.setpoint_bytes

    def begin(self, level_bytes: int, drained_bytes: int, drain_per_s: float, now: float) -> None:
        """Start the loop. `drained_bytes` is a counter of the outflow, `drain_per_s` a first estimate of its rate."""
        self._state = PiState(0.0, now)
        self._drained_bytes = drained_bytes
        self.drain_per_s = drain_per_s
        self.sample(level_bytes, drained_bytes, now, is_open=False)

    def sample(self, level_bytes: int, drained_bytes: int, now: float, *, is_open: bool) -> None:
        """Set the rate for the next sample. The loop is open if no publisher had to wait since the last one."""
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
        """Stop the loop: the rate is unlimited."""
        self.rate_per_s = MAX_RATE

    def room_bytes(self, level_bytes: int, drained_bytes: int) -> float:
        """Return the inflow left until the next sample; 0 or less if none."""
        if self.rate_per_s <= 0:
            return 0.0
        come_bytes = level_bytes - self._level_bytes + drained_bytes - self._drained_bytes
        return min(self._budget_bytes - come_bytes, self._ceiling_bytes - level_bytes)
