"""The reference: the database load to hold, fixed or found by slow start and probing.

All loads are in cost per second. Independent of clock and requests: it receives the observations of each period.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from dataclasses import dataclass, field
from statistics import covariance
from typing import Protocol

from flyball.admission.rounds import RecentRounds, Round
from flyball.admission.use import Unit
from flyball.errors import AdmissionError

# Half a connection busy, or fifty taken per second: any database can handle it.
START = {Unit.BUSY_MS: 500.0, Unit.CONNECTIONS: 50.0}
# The load to hold, as a multiple of the maximum work. For connections taken, which are work themselves, a bit less
# than the maximum.
#
# Busy time of connections is work while requests do not slow each other down. By Little's law, at twice the work
# requests take twice their minimum time: the database stays busy, without a growing queue.
HOLD_RATIO = {Unit.BUSY_MS: 2.0, Unit.CONNECTIONS: 0.9}

ROUND_PERIODS = 3
ROUND_RESPONSES = 3.0
# At the start of a round the database still serves requests admitted before.
SETTLING_PERIODS = 1
# A round with fewer completed requests is extended, since it says little.
FEWEST_COMPLETED = 20
LONGEST_ROUND_PERIODS = 24

# Doubling the load must yield this much more work, or the maximum is near.
GROWTH = 1.25
ROUNDS_WITHOUT_GROWTH = 3
# A response slower than this multiple of the minimum is slow.
SLOW_RATIO = 2.0
DRAINED_RATIO = 1.25
MOST_DRAIN_ROUNDS = 4
KEPT_RESPONSES = 32

CYCLE_ROUNDS = 8
# Rounds of a cycle that probe a higher and a lower load.
PROBES = {CYCLE_ROUNDS - 2: 1.25, CYCLE_ROUNDS - 1: 0.75}
# Start of a cycle while the reference moves: one round before the probes.
SOON = CYCLE_ROUNDS - 3
MOVED_RATIO = 0.05
# Per cycle.
MOST_FALL = 1.5

BACK_OFF = 0.7
# Growth per round, as a share of the reference at which overload was detected.
RECOVERY_STEP = 0.05
RECOVERED = 0.9
# Minimum number of requests for a share of failures.
FEWEST_ENDED = 10
# Overload is detected when failures exceed the usual share by this much.
FAILING_SHARE = 0.05
# Smoothing factor of the usual share.
USUAL_PART = 0.1
HELPED_RATIO = 0.8
# After this many unsuccessful steps down, the load is not the cause: a broken page must not close the gate.
MOST_VAIN_STEPS = 3


@dataclass(frozen=True, slots=True)
class Observation:
    """Observations of one period."""

    period_s: float
    # Measured cost per second.
    load_per_s: float
    # Completed work, at base cost, per second.
    work_per_s: float
    completed: int
    # Mean response time, corrected for the mix; None without completed requests.
    response_s: float | None
    failures: int
    in_flight: int
    # Whether requests had to wait. If not, the period says nothing about a higher load.
    is_limited: bool
    # Longest time of a failed request.
    failed_s: float = 0.0


class Reference(Protocol):
    """The setpoint of the database's load, in cost per second."""

    @property
    def value(self) -> float:
        """The present reference; above 0."""

    @property
    def state(self) -> str:
        """Its state, in one word."""

    def observe(self, seen: Observation) -> float:
        """Process the observations of a period, and return the next reference."""


class FixedReference:
    """A constant reference."""

    def __init__(self, value: float) -> None:
        if not (math.isfinite(value) and value > 0):
            raise AdmissionError(f"invalid reference {value}: use a cost per second above 0")
        self._value = float(value)

    @property
    def value(self) -> float:
        return self._value

    @property
    def state(self) -> str:
        return "fixed"

    def observe(self, seen: Observation) -> float:
        return self._value


class Phase(enum.Enum):
    """Phases of slow start."""

    # Doubles each round, until that yields no more work.
    STARTUP = "startup"
    # Halves, until the backlog is served.
    DRAIN = "drain"
    # Follows the maximum work, and probes higher and lower loads.
    CRUISE = "cruise"
    # Overload was detected: lowered at once, grows slowly.
    RECOVER = "recover"


@dataclass(slots=True)
class _Round:
    """Observations since the reference last changed."""

    number: int
    periods: int = 0
    seconds: float = 0.0
    limited: int = 0
    completed: int = 0
    responses_s: float = 0.0
    failures: int = 0
    # Failed and all requests, from the first period on.
    ended: int = 0
    failed_s: float = 0.0
    # Sum over all periods but the first ones; the lists have one entry for each of them.
    loads: float = 0.0
    works: list[float] = field(default_factory=list)
    in_flight: list[float] = field(default_factory=list)

    def add(self, seen: Observation) -> None:
        self.periods += 1
        self.failures += seen.failures
        self.ended += seen.failures + seen.completed
        self.failed_s = max(self.failed_s, seen.failed_s)
        if self.periods <= SETTLING_PERIODS:
            return
        self.seconds += seen.period_s
        self.limited += seen.is_limited
        self.completed += seen.completed
        self.responses_s += seen.completed * (seen.response_s or 0.0)
        self.loads += seen.load_per_s
        self.works.append(seen.work_per_s)
        self.in_flight.append(float(seen.in_flight))

    @property
    def is_over(self) -> bool:
        measured = self.periods - SETTLING_PERIODS
        if measured < ROUND_PERIODS:
            return False
        is_long = self.seconds >= ROUND_RESPONSES * (self.response_s or 0.0)
        return (is_long and self.completed >= FEWEST_COMPLETED) or measured >= LONGEST_ROUND_PERIODS

    @property
    def is_limited(self) -> bool:
        return 2 * self.limited >= len(self.works)

    @property
    def response_s(self) -> float | None:
        return self.responses_s / self.completed if self.completed else None

    @property
    def load(self) -> float:
        return self.loads / len(self.works)

    @property
    def work(self) -> float:
        return sum(self.works) / len(self.works)

    @property
    def failing_share(self) -> float:
        return self.failures / max(1, self.ended)


class SlowStart:
    """Finds the maximum work of the database, and holds a load that keeps it there.

    It doubles until a higher load yields no more work (STARTUP), lets the backlog drain (DRAIN), then holds
    `hold_ratio` times the maximum work of recent rounds, and probes a higher and a lower load in two of eight rounds
    (CRUISE). When many requests fail it backs off and grows slowly (RECOVER). Rounds without waiting requests change
    nothing.
    """

    def __init__(
        self,
        unit: Unit = Unit.BUSY_MS,
        *,
        start: float | None = None,
        least: float | None = None,
        hold_ratio: float | None = None,
    ) -> None:
        start = START[unit] if start is None else start
        least = start / 4 if least is None else least
        hold_ratio = HOLD_RATIO[unit] if hold_ratio is None else hold_ratio
        for name, value in (("start", start), ("least", least), ("hold_ratio", hold_ratio)):
            if not (math.isfinite(value) and value > 0):
                raise AdmissionError(f"slow start: invalid {name} {value}: use a number above 0")
        self._least = least
        self._hold_ratio = hold_ratio
        self._phase = Phase.STARTUP
        self._value = start
        self._base = start
        self._recent = RecentRounds()
        self._round = _Round(0)
        self._responses_s: deque[float] = deque(maxlen=KEPT_RESPONSES)
        self._usual_share: float | None = None
        self._hold_off_s = 0.0
        self._phase_rounds = 0
        self._position = 0
        self._grown_work = 0.0
        self._in_flight_and_work: deque[tuple[float, float]] = deque(maxlen=3 * ROUND_PERIODS)
        self._rounds_without_growth = 0
        self._wrong_at = start
        self._wrong_share = 0.0
        self._right_before = start
        self._is_lowered = False
        self._vain_steps = 0

    @property
    def value(self) -> float:
        return self._value

    @property
    def state(self) -> str:
        return self._phase.value

    def observe(self, seen: Observation) -> float:
        self._hold_off_s = max(0.0, self._hold_off_s - seen.period_s)
        self._round.add(seen)
        if self._is_overload():
            self._back_off()
        elif self._round.is_over:
            self._end_round()
        return self._value

    def _is_overload(self) -> bool:
        """Whether many requests fail. Without waiting requests, far from the reference, there must be another
        cause.
        """
        found = self._round
        if self._usual_share is None or self._hold_off_s > 0:
            return False
        if found.ended < FEWEST_ENDED or not found.works:
            return False
        is_loaded = found.is_limited or found.load >= self._value / 2
        return is_loaded and found.failing_share > self._usual_share + FAILING_SHARE

    def _back_off(self) -> None:
        found = self._round
        self._learn_failures()
        if self._is_lowered and found.failing_share > HELPED_RATIO * self._wrong_share:
            self._vain_steps += 1
        elif not self._is_lowered:
            self._vain_steps = 0
            self._right_before = self._value
        self._wrong_share = found.failing_share
        if self._vain_steps >= MOST_VAIN_STEPS:
            # The failures did not decrease with the load, so it is not their cause: accept them.
            self._usual_share = found.failing_share
            self._cruise_at(self._right_before)
            return
        self._recent.forget_above(RECOVERED * self._value)
        self._wrong_at = self._value
        # Requests admitted before may still fail, which says nothing about the new reference.
        self._hold_off_s = max(found.failed_s, found.seconds)
        self._go(Phase.RECOVER, BACK_OFF * self._value)
        self._is_lowered = True

    def _end_round(self) -> None:
        found = self._round
        self._learn_failures()
        if found.response_s is not None:
            self._responses_s.append(found.response_s)
        if self._phase is Phase.DRAIN:
            self._drain()
        elif not found.is_limited or found.work <= 0:
            self._pass_over()
        else:
            has_fallen = self._recent.add(Round(found.number, self._value, found.works))
            match self._phase:
                case Phase.STARTUP:
                    self._start_up()
                case Phase.RECOVER:
                    self._recover()
                case _:
                    self._cruise(has_fallen)
        self._phase_rounds += 1
        self._round = _Round(found.number + 1)

    def _learn_failures(self) -> None:
        """Learn the usual share of failures; those of the first round, almost without load, are usual."""
        share = self._round.failing_share
        if self._usual_share is None:
            self._usual_share = share
        elif self._hold_off_s <= 0:
            self._usual_share += USUAL_PART * (share - self._usual_share)

    def _pass_over(self) -> None:
        """End a round without information; a probe in it is abandoned."""
        if self._phase is Phase.CRUISE:
            self._position = 0
            self._value = self._base

    def _start_up(self) -> None:
        found = self._round
        self._in_flight_and_work.extend(zip(found.in_flight, found.works, strict=True))
        if found.work >= GROWTH * self._grown_work:
            self._grown_work = found.work
            self._rounds_without_growth = 0
            self._set(2 * self._value)
            return
        # One slow round may be chance; together with work that does not grow it is not.
        self._rounds_without_growth += 1
        rounds = self._rounds_without_growth
        is_over = rounds >= ROUNDS_WITHOUT_GROWTH or self._is_slow() or (rounds > 1 and self._is_crowded())
        if is_over:
            self._go(Phase.DRAIN, self._value / 2)
        else:
            self._set(2 * self._value)

    def _is_slow(self) -> bool:
        response_s = self._round.response_s
        return response_s is not None and response_s > SLOW_RATIO * min(self._responses_s)

    def _is_crowded(self) -> bool:
        """Whether more concurrent requests do not yield more work."""
        in_flight, works = zip(*self._in_flight_and_work, strict=True)
        return len(works) >= ROUND_PERIODS and covariance(in_flight, works) <= 0

    def _drain(self) -> None:
        response_s = self._round.response_s
        is_drained = response_s is None or response_s <= DRAINED_RATIO * min(self._responses_s)
        held = self._held(self._value)
        if is_drained or self._value <= held / 2 or self._phase_rounds >= MOST_DRAIN_ROUNDS:
            self._cruise_at(held)
            self._position = SOON
        else:
            self._set(self._value / 2)

    def _cruise(self, has_fallen: bool) -> None:
        if has_fallen and self._position not in PROBES:
            # The same load yields less work than before, so earlier observations of other loads are outdated too. As
            # it may be chance, repeat the load once, then probe.
            self._recent.forget_before(self._round.number)
            self._position = SOON
        elif self._position == CYCLE_ROUNDS - 1:
            self._position = self._move_base()
        else:
            self._position += 1
        self._set(self._base * PROBES.get(self._position, 1.0))

    def _move_base(self) -> int:
        """Move to the load to hold; return where the next cycle starts."""
        before = self._base
        self._base = max(self._least, self._held(before), before / MOST_FALL)
        return SOON if abs(self._base - before) > MOVED_RATIO * before else 0

    def _held(self, otherwise: float) -> float:
        """Return the load to hold by all observations."""
        most_work = self._recent.most_work
        return otherwise if most_work is None else self._hold_ratio * most_work

    def _recover(self) -> None:
        if self._hold_off_s > 0:
            return
        self._set(self._value + RECOVERY_STEP * self._wrong_at)
        self._is_lowered = False
        if self._value >= RECOVERED * self._wrong_at:
            self._cruise_at(self._value)

    def _cruise_at(self, value: float) -> None:
        self._base = max(self._least, value)
        self._position = 0
        self._is_lowered = False
        self._go(Phase.CRUISE, self._base)

    def _go(self, phase: Phase, value: float) -> None:
        self._phase = phase
        self._phase_rounds = 0
        self._round = _Round(self._round.number + 1)
        self._set(value)

    def _set(self, value: float) -> None:
        self._value = max(self._least, value)
