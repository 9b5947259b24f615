"""The gate: requests wait in one queue for each class, and pass while the budget lasts.

The budget flows in at a rate that somebody else sets; who is next is the scheduler's word. Time is an argument: the
gate knows neither clock nor event loop, nor what a request is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from flyball.admission.schedulers.scheduler import Scheduler, Standing, Turnout
from flyball.errors import AdmissionError, FlyballError

# Over how many periods arrivals are averaged.
AVERAGED_PERIODS = 30
# Between two dispatches for budget: timers are not finer, and rounding must not make one come too early.
LEAST_PAUSE_S = 0.001


class Full(FlyballError):
    """A request came while as many of its class as may wait did so already."""

    def __init__(self, class_number: int, waiting: int) -> None:
        super().__init__(f"{waiting} requests of class {class_number} wait already")
        self.class_number = class_number
        self.waiting = waiting


@dataclass(slots=True, eq=False)
class Ticket:
    """One request that waits, was admitted, or has gone."""

    key: str
    class_number: int
    cost: float
    arrived_s: float
    admitted_s: float | None = field(default=None, init=False)


@dataclass(frozen=True, slots=True)
class PeriodTurnout:
    """What became of all classes, cheap to dear, in a period. Requests that cost nothing are not in it."""

    arrived: tuple[int, ...]
    admitted: tuple[int, ...]
    # Those who wait at its end.
    waiting: tuple[int, ...]
    # Those whose time was up, or whose queue was full.
    lost: tuple[int, ...]
    # Those who went away by themselves while they waited.
    left: tuple[int, ...]
    admitted_cost: float
    # Whether somebody had to wait because the budget was spent.
    was_limited: bool
    # Whether somebody had to wait because the gate was held.
    was_held: bool


@dataclass(slots=True)
class _Line:
    """Those of one class who wait, the first first, and what became of others of it in this period."""

    cost: float
    queue: OrderedDict[Ticket, None] = field(default_factory=OrderedDict)
    arrived: int = 0
    admitted: int = 0
    lost: int = 0
    left: int = 0
    arrivals_per_s: float = 0.0

    def standing(self, now_s: float) -> Standing:
        """Return how the class stands now."""
        queue = self.queue
        head_age_s = now_s - next(iter(queue)).arrived_s if queue else 0.0
        return Standing(self.cost, len(queue), head_age_s, self.arrivals_per_s)


class Gate:
    """Lets requests pass while the budget lasts.

    What is not spent is saved up to `burst_s` seconds of the rate, or one request of the dearest class if that is
    more; whoever passes may leave a debt, which is repaid before the next does. The round over the classes goes on
    where it stopped when the budget was spent: if each began with the cheapest, a trickle would reach no other.
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
        """What a request of each class costs on average, cheap to dear."""
        return tuple(line.cost for line in self._lines)

    @property
    def rate(self) -> float:
        """The budget that flows in, in cost per second."""
        return self._rate

    @property
    def budget(self) -> float:
        """What was left when it was last looked at; below 0 it is a debt."""
        return self._budget

    @property
    def waiting(self) -> tuple[int, ...]:
        """How many of each class wait."""
        return tuple(len(line.queue) for line in self._lines)

    @property
    def arrivals_per_s(self) -> tuple[float, ...]:
        """How many of each class come, averaged over some 30 periods."""
        return tuple(line.arrivals_per_s for line in self._lines)

    def set_rate(self, per_s: float, now_s: float) -> None:
        """Let the budget flow in at `per_s` from now on. The first time all is there that can be saved."""
        is_first = self._refilled_s is None
        self._refill(now_s)
        self._rate = max(0.0, per_s)
        self._limit_savings()
        if is_first:
            self._budget = self._most_saved

    def passes(self, class_number: int, cost: float, now_s: float) -> bool:
        """Let a request of a cost above 0 come if it is admitted at once; it needs no ticket then."""
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
        """Count a request that begins whatever the budget: nobody is held up, and none of it is spent."""
        line = self._lines[class_number]
        line.arrived += 1
        line.admitted += 1
        self._admitted_cost += cost

    def admit_all(self, now_s: float) -> list[Ticket]:
        """Admit everybody who waits, whatever the budget, and return them. None of it is spent."""
        budget = self._budget
        admitted = [self._admit_first(line, now_s) for line in self._lines for _ in range(len(line.queue))]
        self._budget = budget
        return admitted

    def arrive(self, ticket: Ticket, most: int | None = None) -> list[Ticket]:
        """Let a request come, and return all who are admitted now; it waits if it is not one of them.

        One that costs nothing passes at once; of others at most `most` do. Raises Full, and admits nobody, when too
        many of its class wait.
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
        """Admit whom the budget allows, at most `most` requests, and return them in order."""
        self._refill(now_s)
        return self._dispatch(now_s, most)

    def has_budget(self, now_s: float) -> bool:
        """Return whether a dispatch could admit somebody; if not, no more than time can change it."""
        self._refill(now_s)
        return self._budget > 0.0

    def next_dispatch_s(self, now_s: float) -> float | None:
        """Return when to dispatch again, None if that would admit nobody however late it is.

        That is so while nobody waits, the gate is held or nothing flows in: dispatch when that has changed.
        """
        if self._total_waiting == 0 or self._is_held or self._rate <= 0.0:
            return None
        self._refill(now_s)
        return now_s + max(0.0, -self._budget) / self._rate + LEAST_PAUSE_S

    def hold(self, is_full: bool) -> None:
        """Admit nobody while `is_full`. The end of a hold admits nobody by itself: dispatch then."""
        self._is_held = is_full

    def leave(self, ticket: Ticket) -> bool:
        """Forget a request that nobody wants any more. Return False if it does not wait."""
        was_waiting = self._forget(ticket)
        if was_waiting:
            self._lines[ticket.class_number].left += 1
        return was_waiting

    def expire(self, ticket: Ticket) -> bool:
        """Turn a request away whose time is up. Return False if it does not wait."""
        was_waiting = self._forget(ticket)
        if was_waiting:
            self._lines[ticket.class_number].lost += 1
        return was_waiting

    def end_period(self, now_s: float) -> PeriodTurnout:
        """Return what became of everybody since the last period's end, and tell the scheduler."""
        self._refill(now_s)
        self._note_who_waits()
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
        """Go on with other classes: whoever waits moves to the class of its key, in the order of arrival.

        If there are now more or fewer of them, what was counted of each in this period is forgotten, and arrivals are
        averaged anew: call it when a period has just ended.
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
        """Work out what may be saved: without a bound, what an idle night has saved would pass at once."""
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
        self._note_who_waits()
        return admitted

    def _only_waiting(self) -> int | None:
        """Return the class of all who wait, None if they are of several."""
        for number, line in enumerate(self._lines):
            if line.queue:
                return number if len(line.queue) == self._total_waiting else None
        return None

    def _admit_only(self, number: int, admitted: list[Ticket], now_s: float, most: int | None) -> None:
        """Admit those of one class while nobody else waits: there is nothing to choose, and no need to ask."""
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
        # Of one that does not wait any more, the class may not exist any more either.
        if ticket.class_number >= len(self._lines) or ticket not in self._lines[ticket.class_number].queue:
            return False
        del self._lines[ticket.class_number].queue[ticket]
        self._total_waiting -= 1
        return True

    def _note_who_waits(self) -> None:
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
        # The first periods count alike: an average that began at 0 would take as long as it looks back to be right.
        self._averaged_periods = min(self._averaged_periods + 1, AVERAGED_PERIODS)
        for line in self._lines:
            line.arrivals_per_s += (line.arrived / passed_s - line.arrivals_per_s) / self._averaged_periods


def _lines(class_costs: Sequence[float]) -> list[_Line]:
    costs = list(class_costs)
    if not costs or min(costs) <= 0.0 or costs != sorted(costs):
        raise AdmissionError(f"the costs of classes must be above 0 and go from cheap to dear, not {costs}")
    return [_Line(cost) for cost in costs]
