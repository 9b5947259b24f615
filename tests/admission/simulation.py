"""A gate under simulated load: arrivals at random, an ideal database that takes exactly what is admitted.

Time is simulated, so minutes of load take a second.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from flyball.admission.gate import Gate, Ticket
from flyball.admission.schedulers import Scheduler

CAPACITY_PER_S = 120.0
# How often the gate dispatches. Shorter than what the budget can be saved for, so nothing is lost.
TICK_S = 0.025


@dataclass(frozen=True)
class Outcome:
    """Outcome of each class, cheap to dear, after the warm-up."""

    # Those who were admitted over those who came.
    fractions: tuple[float, ...]
    # What came, as a multiple of the capacity: by chance a little more or less than was asked for.
    loads: tuple[float, ...]
    # How long those who were admitted had waited, on average.
    waits_s: tuple[float, ...]
    cost_per_s: float
    probabilities: tuple[float, ...]

    def slowdown_ratio(self, costs: Sequence[float]) -> float:
        """Return how long the dearest wait for their cost, over how long the cheapest do."""
        return self.waits_s[-1] / costs[-1] / (self.waits_s[0] / costs[0])


def simulate(
    scheduler: Scheduler,
    costs: Sequence[float],
    loads: Sequence[float],
    *,
    seconds: float = 240.0,
    warm_up_s: float = 60.0,
    deadline_s: float = math.inf,
    is_impatient: bool = False,
    period_s: float = 0.25,
    seed: int = 1,
) -> Outcome:
    """Offer each class its load, as a multiple of the capacity, and return what became of it after the warm-up.

    After `deadline_s` a request is turned away, or leaves by itself if `is_impatient`.
    """
    random = Random(seed)
    gate = Gate(scheduler, costs, queue_limit=10**9, random=random)
    gate.set_rate(CAPACITY_PER_S, 0.0)
    rates_per_s = [load * CAPACITY_PER_S / cost for load, cost in zip(loads, costs, strict=True)]
    next_s = [random.expovariate(rate) for rate in rates_per_s]
    deadlines: deque[Ticket] = deque()
    arrived, admitted, waited_s = [0] * len(costs), [0] * len(costs), [0.0] * len(costs)
    ticks_in_period = round(period_s / TICK_S)
    for tick in range(1, round(seconds / TICK_S) + 1):
        now_s = tick * TICK_S
        passed = gate.dispatch(now_s)
        coming = []
        for number, cost in enumerate(costs):
            while next_s[number] <= now_s:
                coming.append(Ticket("key", number, cost, next_s[number]))
                next_s[number] += random.expovariate(rates_per_s[number])
        coming.sort(key=lambda ticket: ticket.arrived_s)
        for ticket in coming:
            passed += gate.arrive(ticket)
        deadlines.extend(coming)
        while deadlines and deadlines[0].arrived_s + deadline_s <= now_s:
            (gate.leave if is_impatient else gate.expire)(deadlines.popleft())
        if now_s > warm_up_s:
            for ticket in coming:
                arrived[ticket.class_number] += 1
            for ticket in passed:
                admitted[ticket.class_number] += 1
                waited_s[ticket.class_number] += now_s - ticket.arrived_s
        if tick % ticks_in_period == 0:
            gate.end_period(now_s)
    measured_s = seconds - warm_up_s
    return Outcome(
        fractions=tuple(one / of for one, of in zip(admitted, arrived, strict=True)),
        loads=tuple(one * cost / CAPACITY_PER_S / measured_s for one, cost in zip(arrived, costs, strict=True)),
        waits_s=tuple(one / of if of else math.nan for one, of in zip(waited_s, admitted, strict=True)),
        cost_per_s=sum(one * cost for one, cost in zip(admitted, costs, strict=True)) / measured_s,
        probabilities=scheduler.probabilities(),
    )


def fractions_by_law(costs: Sequence[float], loads: Sequence[float]) -> tuple[float, ...]:
    """Return at which fractions the odds of being blocked are as the costs and the capacity is used up."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        is_too_much = sum(load * each for load, each in zip(loads, _by_law(costs, middle), strict=True)) > 1.0
        low, high = (low, middle) if is_too_much else (middle, high)
    return _by_law(costs, low)


def _by_law(costs: Sequence[float], cheapest: float) -> tuple[float, ...]:
    return tuple(cheapest / (cost / costs[0] * (1.0 - cheapest) + cheapest) for cost in costs)
