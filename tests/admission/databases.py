"""A simulated database behind a gate: for tests of the search for the reference."""

from __future__ import annotations

import random

from flyball.admission.budget import BudgetController, BusyLimit
from flyball.admission.reference import Observation, Reference
from flyball.admission.use import Unit

STEPS = 100


class Database:
    """Processor sharing: up to `servers` connections are served at full speed, more of them share it.

    `penalty` is what each connection beyond that costs all: with it more load is less work. Requests cost `cost_ms`
    each, and `capacity` is the most work that can be done.
    """

    def __init__(
        self, servers: float, *, cost_ms: float = 20.0, pool: int = 20, penalty: float = 0.0, noise: float = 0.1
    ) -> None:
        self.servers = servers
        self.cost_ms = cost_ms
        self.pool = pool
        self.penalty = penalty
        self.noise = noise
        self.demand_per_s = float("inf")
        self.failing_above = float("inf")
        self.broken_share = 0.0
        self.in_flight = 0.0
        self._random = random.Random(1)

    @property
    def capacity(self) -> float:
        """In ms of connections per second."""
        return 1000 * self.servers

    def work_per_s(self, in_flight: float) -> float:
        """Return the work done per second at this concurrency, in ms per second."""
        beyond = max(0.0, in_flight - self.servers)
        return 1000 * min(in_flight, self.servers) / (1 + self.penalty * beyond)

    def period(self, budget_per_s: float, most: float, period_s: float, unit: Unit) -> tuple[Observation, float]:
        """Return what a period comes to, and the cost that was admitted in it, per second.

        Up to `budget_per_s` is admitted, while fewer than `most` requests are served.
        """
        step_s = period_s / STEPS
        scale = 1.0 if unit is Unit.BUSY_MS else self.cost_ms
        wanted = min(budget_per_s * scale, self.demand_per_s) * self._random.gauss(1, self.noise)
        admitted = done = busy = 0.0
        for _ in range(STEPS):
            if self.in_flight < most:
                self.in_flight += wanted * step_s / self.cost_ms
                admitted += wanted * step_s
            before = self.in_flight
            work = min(self.work_per_s(before) * step_s, before * self.cost_ms)
            self.in_flight -= work / self.cost_ms
            done += work
            busy += before * 1000 * step_s
        completed = round(done / self.cost_ms)
        chance = self._random.gauss(1, self.noise)
        is_failing = self.in_flight > self.failing_above
        load = busy / period_s if unit is Unit.BUSY_MS else done / period_s / scale
        return (
            Observation(
                period_s=period_s,
                load_per_s=load * chance,
                work_per_s=done / period_s / scale * chance * self._random.gauss(1, self.noise),
                completed=completed,
                response_s=busy / done * self.cost_ms / 1000 if done else None,
                failures=round(completed * max(self.broken_share, 0.5 * is_failing)),
                in_flight=round(self.in_flight),
                is_limited=self.demand_per_s > 1.05 * budget_per_s * scale or self.in_flight >= most,
            ),
            admitted / period_s / scale,
        )


def run(database: Database, reference: Reference, seconds: float, unit: Unit = Unit.BUSY_MS) -> list[Observation]:
    """Let the reference control the database for a while, and return what was seen."""
    period_s = 0.25
    budget, limit = BudgetController(reference.value), BusyLimit(reference.value)
    found = []
    for _ in range(round(seconds / period_s)):
        most = 0.75 * database.pool
        if unit is Unit.BUSY_MS:
            most = min(most, limit.value)
        seen, admitted = database.period(budget.value, most, period_s, unit)
        found.append(seen)
        value = reference.observe(seen)
        budget.step(value, seen.load_per_s, admitted)
        limit.step(value, seen.load_per_s, seen.is_limited)
    return found
