"""How busy the database should be: the reference of the controller, fixed or found by slow start and probing.

All loads are cost per second. Knows neither clock nor requests: it is told what every period came to.
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

# Half a connection busy, or fifty taken a second: any database bears it.
START = {Unit.BUSY_MS: 500.0, Unit.CONNECTIONS: 50.0}
# So many times the most work is held. Connections taken are work; a bit less than can be done is held of them.
#
# The time that connections are busy is work as long as nobody is in another's way. By Little's law, with twice as
# much of it requests take twice their least time: it keeps the database at work, and no queue grows in it.
HOLD_RATIO = {Unit.BUSY_MS: 2.0, Unit.CONNECTIONS: 0.9}

ROUND_PERIODS = 3
ROUND_RESPONSES = 3.0
# At the beginning of a round what was admitted before is still being served.
SETTLING_PERIODS = 1
# A round of fewer says little, and goes on.
FEWEST_COMPLETED = 20
LONGEST_ROUND_PERIODS = 24

# Twice the load brings so much more work, or there is not much more to be had.
GROWTH = 1.25
ROUNDS_WITHOUT_GROWTH = 3
# So many times the least response is slow.
SLOW_RATIO = 2.0
DRAINED_RATIO = 1.25
MOST_DRAIN_ROUNDS = 4
REMEMBERED_RESPONSES = 32

CYCLE_ROUNDS = 8
# In two rounds of a cycle it is seen what more load would bring, and what less would.
PROBES = {CYCLE_ROUNDS - 2: 1.25, CYCLE_ROUNDS - 1: 0.75}
# Where a cycle begins while it moves: one round before the probes.
SOON = CYCLE_ROUNDS - 3
MOVED_RATIO = 0.05
# In one cycle.
MOST_FALL = 1.5

BACK_OFF = 0.7
# Of the reference at which things went wrong, in each round after it.
RECOVERY_STEP = 0.05
RECOVERED = 0.9
# Of fewer no share of failures is made.
FEWEST_ENDED = 10
# So many more failures than usual, as a share of what has ended, are a sign of overload.
FAILING_SHARE = 0.05
# How fast what is usual follows what is.
USUAL_PART = 0.1
HELPED_RATIO = 0.8
# After so many steps down that did not help, the load is not the reason: a broken page must not close the gate.
MOST_VAIN_STEPS = 3


@dataclass(frozen=True, slots=True)
class Observation:
    """What a period came to."""

    period_s: float
    # The cost that was measured, per second.
    load_per_s: float
    # What was completed, in what it costs while nothing is overloaded, per second.
    work_per_s: float
    completed: int
    # The mean of those completed, as if the mix of requests were always the same; None if there were none.
    response_s: float | None
    failures: int
    in_flight: int
    # Whether somebody had to wait. If not, the period says nothing about what more load would have brought.
    is_limited: bool
    # The longest time that one of those took that have failed.
    failed_s: float = 0.0


class Reference(Protocol):
    """Says how much cost per second the database should be given."""

    @property
    def value(self) -> float:
        """The reference now; above 0."""

    @property
    def state(self) -> str:
        """What it is doing, in a word."""

    def observe(self, seen: Observation) -> float:
        """Note what a period came to, and return the reference of the next."""


class FixedReference:
    """A reference that somebody has chosen."""

    def __init__(self, value: float) -> None:
        if not (math.isfinite(value) and value > 0):
            raise AdmissionError(f"the reference is {value}; give a cost per second above 0")
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
    """What slow start is doing."""

    # The reference doubles each round, until that brings no more work.
    STARTUP = "startup"
    # It is halved, until what has piled up is gone.
    DRAIN = "drain"
    # It follows the work that is done, and more and less of it is tried again and again.
    CRUISE = "cruise"
    # Things went wrong: it was lowered at once, and grows slowly.
    RECOVER = "recover"


@dataclass(slots=True)
class _Round:
    """What was seen since the reference last changed."""

    number: int
    periods: int = 0
    seconds: float = 0.0
    limited: int = 0
    completed: int = 0
    responses_s: float = 0.0
    failures: int = 0
    # Those that have failed, and others, from the first period on.
    ended: int = 0
    failed_s: float = 0.0
    # The sum over all periods but the first ones; the lists have one for each of them.
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
    """Finds how much work the database can do, and holds the load that keeps it at it.

    It doubles until more load brings no more work (STARTUP), lets what has piled up go (DRAIN), then holds
    `hold_ratio` times the most work of the last rounds, and tries more and less in two of eight (CRUISE). When many
    requests fail it backs off and grows again slowly (RECOVER). Rounds in which nobody had to wait change nothing.
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
                raise AdmissionError(f"slow start: {name} is {value}; give a number above 0")
        self._least = least
        self._hold_ratio = hold_ratio
        self._phase = Phase.STARTUP
        self._value = start
        self._base = start
        self._recent = RecentRounds()
        self._round = _Round(0)
        self._responses_s: deque[float] = deque(maxlen=REMEMBERED_RESPONSES)
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
        """Whether many fail. Without waiting, and far from the reference, something else must be the reason."""
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
            # As many fail with much less load: it is not the load. They have to be borne.
            self._usual_share = found.failing_share
            self._cruise_at(self._right_before)
            return
        self._recent.forget_above(RECOVERED * self._value)
        self._wrong_at = self._value
        # Whoever was admitted before may still fail: that says nothing about the new reference.
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
        """Learn what is usual; what fails in the first round, with hardly any load, must be that."""
        share = self._round.failing_share
        if self._usual_share is None:
            self._usual_share = share
        elif self._hold_off_s <= 0:
            self._usual_share += USUAL_PART * (share - self._usual_share)

    def _pass_over(self) -> None:
        """A round that says nothing: a probe in it is given up."""
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
        # A slow round alone may be chance; together with work that does not grow it is none.
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
        """Whether more requests at once do not go with more work."""
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
            # The same load brings less work than before, so what was learned of other loads is out of date too.
            # It may also be chance: the same load once more, then the probes.
            self._recent.forget_before(self._round.number)
            self._position = SOON
        elif self._position == CYCLE_ROUNDS - 1:
            self._position = self._move_base()
        else:
            self._position += 1
        self._set(self._base * PROBES.get(self._position, 1.0))

    def _move_base(self) -> int:
        """Go to what is to be held; return where the next cycle begins."""
        before = self._base
        self._base = max(self._least, self._held(before), before / MOST_FALL)
        return SOON if abs(self._base - before) > MOVED_RATIO * before else 0

    def _held(self, otherwise: float) -> float:
        """Return what to hold by all that is known."""
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
