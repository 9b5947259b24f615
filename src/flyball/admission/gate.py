"""The gate: one queue per class; requests pass while the budget lasts.

The budget is refilled at a rate set from outside; the scheduler chooses the next class. Time is an argument: no
clock, no event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from flyball.admission.schedulers.scheduler import Scheduler, Standing, Turnout
from flyball.errors import AdmissionError, FlyballError

# Number of periods in the average of arrivals.
AVERAGED_PERIODS = 30
# Minimum pause between dispatches: the resolution of timers; rounding must not trigger one too early.
LEAST_PAUSE_S = 0.001


class Full(FlyballError):
    """The queue of a request's class is full."""

    def __init__(self, class_number: int, waiting: int) -> None:
        super().__init__(f"queue of class {class_number} is full: {waiting} requests are waiting")
        self.class_number = class_number
        self.waiting = waiting


@dataclass(slots=True, eq=False)
class Ticket:
    """A request that waits, was admitted, or has left."""

    key: str
    class_number: int
    cost: float
    arrived_s: float
    admitted_s: float | None = field(default=None, init=False)


@dataclass(frozen=True, slots=True)
class PeriodTurnout:
    """Counts of a period by class, cheap to expensive. Free requests are not included."""

    arrived: tuple[int, ...]
    admitted: tuple[int, ...]
    # Waiting at its end.
    waiting: tuple[int, ...]
    # Refused: deadline reached or queue full.
    lost: tuple[int, ...]
    # Left while waiting.
    left: tuple[int, ...]
    admitted_cost: float
    # Whether requests had to wait since the budget was spent.
    was_limited: bool
    # Whether requests had to wait since the gate was held.
    was_held: bool


@dataclass(slots=True)
class _Line:
    """The waiting requests of a class in order, and its counts of this period."""

    cost: float
    queue: OrderedDict[Ticket, None] = field(default_factory=OrderedDict)
    arrived: int = 0
    admitted: int = 0
    lost: int = 0
    left: int = 0
    arrivals_per_s: float = 0.0

    def standing(self, now_s: float) -> Standing:
        """Return the present state of the class."""
        queue = self.queue
        head_age_s = now_s - next(iter(queue)).arrived_s if queue else 0.0
        return Standing(self.cost, len(queue), head_age_s, self.arrivals_per_s)


class Gate:
    """Passes requests while the budget lasts.

    Unspent budget is saved, up to `burst_s` seconds of the rate or one request of the most expensive class; a passing
    request may leave a debt, which is repaid before the next one. The round over the classes resumes where it stopped
    when the budget was spent: starting with the cheapest each time, a trickle of budget would reach no other class.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        class_costs: Sequence[float],
        *,
        queue_limit: int = 1000,
        burst_s: float = 0.1,
        random: Random | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._lines = _lines(class_costs)
        self._queue_limit = queue_limit
        self._burst_s = burst_s
        self._random = random if random is not None else Random()
        self._rate = 0.0
        self._budget = 0.0
        self._most_saved = 0.0
        self._refilled_s: float | None = None
        self._is_held = False
        self._total_waiting = 0
        self._cursor = 0
        self._admitted_cost = 0.0
        self._was_limited = False
        self._was_held = False
        self._period_start_s: float | None = None
        self._averaged_periods = 0

    @property
    def class_costs(self) -> tuple[float, ...]:
        """Mean cost by class, cheap to expensive."""
        return tuple(line.cost for line in self._lines)

    @property
    def rate(self) -> float:
        """The inflow of budget, in cost per second."""
        return self._rate

    @property
    def budget(self) -> float:
        """The budget at the last update; negative for a debt."""
        return self._budget

    @property
    def waiting(self) -> tuple[int, ...]:
        """Number of waiting requests by class."""
        return tuple(len(line.queue) for line in self._lines)

    @property
    def arrivals_per_s(self) -> tuple[float, ...]:
        """Arrivals per second by class, averaged over about 30 periods."""
        return tuple(line.arrivals_per_s for line in self._lines)

    def set_rate(self, per_s: float, now_s: float) -> None:
        """Set the inflow of budget. The first call fills the savings."""
        is_first = self._refilled_s is None
        self._refill(now_s)
        self._rate = max(0.0, per_s)
        self._limit_savings()
        if is_first:
            self._budget = self._most_saved

    def passes(self, class_number: int, cost: float, now_s: float) -> bool:
        """Admit a request of a cost above 0 if that is possible at once; it then needs no ticket."""
        self._refill(now_s)
        if self._total_waiting or self._budget <= 0.0 or self._is_held:
            return False
        line = self._lines[class_number]
        line.arrived += 1
        line.admitted += 1
        self._admitted_cost += cost
        self._budget -= cost
        return True

    def pass_by(self, class_number: int, cost: float) -> None:
        """Count a request that starts regardless of the budget, without spending it."""
        line = self._lines[class_number]
        line.arrived += 1
        line.admitted += 1
        self._admitted_cost += cost

    def admit_all(self, now_s: float) -> list[Ticket]:
        """Admit all waiting requests regardless of the budget, without spending it, and return them."""
        budget = self._budget
        admitted = [self._admit_first(line, now_s) for line in self._lines for _ in range(len(line.queue))]
        self._budget = budget
        return admitted

    def arrive(self, ticket: Ticket, most: int | None = None) -> list[Ticket]:
        """Add an arriving request, and return all requests admitted now; it waits if it is not among them.

        A free request passes at once; at most `most` others do. Raises Full, and admits none, if its queue is
        full.
        """
        now_s = ticket.arrived_s
        if ticket.cost <= 0.0:
            ticket.admitted_s = now_s
            return [ticket]
        if self.passes(ticket.class_number, ticket.cost, now_s):
            ticket.admitted_s = now_s
            return [ticket]
        line = self._lines[ticket.class_number]
        line.arrived += 1
        if len(line.queue) >= self._queue_limit:
            line.lost += 1
            raise Full(ticket.class_number, len(line.queue))
        line.queue[ticket] = None
        self._total_waiting += 1
        return self._dispatch(now_s, most)

    def dispatch(self, now_s: float, most: int | None = None) -> list[Ticket]:
        """Admit requests as the budget allows, at most `most`, and return them in order."""
        self._refill(now_s)
        return self._dispatch(now_s, most)

    def has_budget(self, now_s: float) -> bool:
        """Return whether a dispatch could admit a request now or later."""
        self._refill(now_s)
        return self._budget > 0.0

    def next_dispatch_s(self, now_s: float) -> float | None:
        """Return the time of the next dispatch; None if waiting does not help.

        That is the case if no request waits, the gate is held or there is no inflow: dispatch when that has changed.
        """
        if self._total_waiting == 0 or self._is_held or self._rate <= 0.0:
            return None
        self._refill(now_s)
        return now_s + max(0.0, -self._budget) / self._rate + LEAST_PAUSE_S

    def hold(self, is_full: bool) -> None:
        """Hold the gate while `is_full`. Releasing it admits none: dispatch then."""
        self._is_held = is_full

    def leave(self, ticket: Ticket) -> bool:
        """Remove a request whose waiter has gone. Return False if it does not wait."""
        was_waiting = self._forget(ticket)
        if was_waiting:
            self._lines[ticket.class_number].left += 1
        return was_waiting

    def expire(self, ticket: Ticket) -> bool:
        """Refuse a request at its deadline. Return False if it does not wait."""
        was_waiting = self._forget(ticket)
        if was_waiting:
            self._lines[ticket.class_number].lost += 1
        return was_waiting

    def end_period(self, now_s: float) -> PeriodTurnout:
        """Return the counts since the last period's end, and pass them to the scheduler."""
        self._refill(now_s)
        self._note_waiting()
        self._average_arrivals(now_s)
        lines = self._lines
        turnout = PeriodTurnout(
            arrived=tuple(line.arrived for line in lines),
            admitted=tuple(line.admitted for line in lines),
            waiting=self.waiting,
            lost=tuple(line.lost for line in lines),
            left=tuple(line.left for line in lines),
            admitted_cost=self._admitted_cost,
            was_limited=self._was_limited,
            was_held=self._was_held,
        )
        self.scheduler.end_period(
            [Turnout(line.cost, line.admitted, len(line.queue), line.lost, line.left) for line in lines]
        )
        for line in lines:
            line.arrived = line.admitted = line.lost = line.left = 0
        self._admitted_cost = 0.0
        self._was_limited = self._was_held = False
        return turnout

    def reclassify(self, class_costs: Sequence[float], class_of: Callable[[str], int]) -> None:
        """Change the classes: waiting requests move to the class of their key, in order of arrival.

        If the number of classes changes, this period's counts and the average of arrivals are reset: call it right
        after the end of a period.
        """
        tickets = sorted((ticket for line in self._lines for ticket in line.queue), key=lambda each: each.arrived_s)
        lines = _lines(class_costs)
        if len(lines) == len(self._lines):
            for line, before in zip(lines, self._lines, strict=True):
                line.arrived, line.admitted = before.arrived, before.admitted
                line.lost, line.left = before.lost, before.left
                line.arrivals_per_s = before.arrivals_per_s
        else:
            self._cursor = 0
            self._averaged_periods = 0
        for ticket in tickets:
            ticket.class_number = class_of(ticket.key)
            lines[ticket.class_number].queue[ticket] = None
        self._lines = lines
        self._limit_savings()

    def _refill(self, now_s: float) -> None:
        if self._refilled_s is None:
            self._refilled_s = self._period_start_s = now_s
        passed_s = now_s - self._refilled_s
        if passed_s > 0.0:
            self._refilled_s = now_s
            budget = self._budget + self._rate * passed_s
            self._budget = budget if budget < self._most_saved else self._most_saved

    def _limit_savings(self) -> None:
        """Compute the cap of the savings: without one, the savings of an idle night would pass at once."""
        self._most_saved = max(self._rate * self._burst_s, self._lines[-1].cost) if self._rate > 0.0 else 0.0
        self._budget = min(self._budget, self._most_saved)

    def _dispatch(self, now_s: float, most: int | None) -> list[Ticket]:
        admitted: list[Ticket] = []
        if self._total_waiting and self._budget > 0.0 and not self._is_held:
            number = self._only_waiting()
            if number is not None:
                self._admit_only(number, admitted, now_s, most)
            else:
                self._admit_in_rounds(admitted, now_s, most)
        self._note_waiting()
        return admitted

    def _only_waiting(self) -> int | None:
        """Return the class of all waiting requests, None if there are several."""
        for number, line in enumerate(self._lines):
            if line.queue:
                return number if len(line.queue) == self._total_waiting else None
        return None

    def _admit_only(self, number: int, admitted: list[Ticket], now_s: float, most: int | None) -> None:
        """Admit requests of one class while only that class waits: no choice, so the scheduler is not consulted."""
        line = self._lines[number]
        while line.queue and self._budget > 0.0 and (most is None or len(admitted) < most):
            admitted.append(self._admit_first(line, now_s))
            self._cursor = (number + 1) % len(self._lines)

    def _admit_in_rounds(self, admitted: list[Ticket], now_s: float, most: int | None) -> None:
        lines = self._lines
        standings = [line.standing(now_s) for line in lines]
        while self._total_waiting and self._budget > 0.0 and (most is None or len(admitted) < most):
            number = self._cursor
            self._cursor = (number + 1) % len(lines)
            if standings[number].waiting and self._has_luck(number, standings):
                admitted.append(self._admit_first(lines[number], now_s))
                standings[number] = lines[number].standing(now_s)

    def _admit_first(self, line: _Line, now_s: float) -> Ticket:
        ticket, _ = line.queue.popitem(last=False)
        self._total_waiting -= 1
        ticket.admitted_s = now_s
        line.admitted += 1
        self._admitted_cost += ticket.cost
        self._budget -= ticket.cost
        return ticket

    def _has_luck(self, number: int, standings: Sequence[Standing]) -> bool:
        probability = self.scheduler.probability(number, standings)
        return probability >= 1.0 or self._random.random() < probability

    def _forget(self, ticket: Ticket) -> bool:
        # If it no longer waits, its class may not exist any longer either.
        if ticket.class_number >= len(self._lines) or ticket not in self._lines[ticket.class_number].queue:
            return False
        del self._lines[ticket.class_number].queue[ticket]
        self._total_waiting -= 1
        return True

    def _note_waiting(self) -> None:
        if self._total_waiting:
            if self._is_held:
                self._was_held = True
            else:
                self._was_limited = True

    def _average_arrivals(self, now_s: float) -> None:
        passed_s = now_s - self._period_start_s if self._period_start_s is not None else 0.0
        self._period_start_s = now_s
        if passed_s <= 0.0:
            return
        # The first periods have equal weights: an average that starts at 0 would take its whole window to settle.
        self._averaged_periods = min(self._averaged_periods + 1, AVERAGED_PERIODS)
        for line in self._lines:
            line.arrivals_per_s += (line.arrived / passed_s - line.arrivals_per_s) / self._averaged_periods


def _lines(class_costs: Sequence[float]) -> list[_Line]:
    costs = list(class_costs)
    if not costs or min(costs) <= 0.0 or costs != sorted(costs):
        raise AdmissionError(f"class costs must be above 0 and ascending, not {costs}")
    return [_Line(cost) for cost in costs]
