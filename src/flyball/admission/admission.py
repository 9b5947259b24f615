"""Delays requests until the application's database has capacity: sensor, controller, classes and gate.

Runs on one event loop with timers, without tasks of its own. Independent of HTTP: a caller asks for admission with a
request's key, and reports the request's end.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Protocol

from flyball.admission.alarm import Alarm
from flyball.admission.budget import BudgetController, BusyLimit
from flyball.admission.classes import RequestClasses
from flyball.admission.classifier import FIRST_COST, Classifier
from flyball.admission.counts import Blocking, ClassCounts, Finished, Outcome, Served
from flyball.admission.gate import Full, Gate, Ticket
from flyball.admission.meter import Meter
from flyball.admission.options import AdmissionOptions, check_above_0
from flyball.admission.reference import FixedReference, Observation, Reference, SlowStart
from flyball.admission.room import Room
from flyball.admission.schedulers import make_scheduler
from flyball.admission.timeouts import Timeouts
from flyball.admission.use import Unit, Usage, Use
from flyball.control.loop import Sample
from flyball.control.tuning import Mode, tuning_of
from flyball.errors import AdmissionError, NotAdmitted

# A short wait.
BRIEFLY_S = 0.01
# Resolution of timers: a deadline this close has been reached.
TIMER_S = 0.001
# Poll interval while the connection limit is reached: the return of a connection is not signalled.
LOOK_AGAIN_S = 0.002
RETRY_AFTER_S = (1.0, 60.0)
# Assumed cost of a request while nothing is known, if cost is counted in connections.
FIRST_CONNECTIONS = 2.0


DEFAULTS = AdmissionOptions()


class HasMeter(Protocol):
    """A sensor: its meter counts the use of the database."""

    @property
    def meter(self) -> Meter: ...


class Admitted:
    """An admitted request. Its use of the database is charged to its `use`, if that is the current one."""

    __slots__ = ("_admission", "admitted_s", "arrived_s", "class_number", "has_ended", "is_stream", "key", "use")

    def __init__(
        self, admission: Admission, key: str, class_number: int, arrived_s: float, admitted_s: float
    ) -> None:
        self._admission = admission
        self.key = key
        self.class_number = class_number
        self.arrived_s = arrived_s
        self.admitted_s = admitted_s
        self.use = Use()
        self.is_stream = False
        self.has_ended = False

    def end(self, is_failure: bool = False) -> None:
        """Report the end of the request. Idempotent."""
        self._admission._end(self, "failed" if is_failure else "served")

    def leave(self) -> None:
        """Report that the request was aborted: its use so far says nothing about others."""
        self._admission._end(self, "left")

    def stream(self) -> None:
        """Mark the request as long-lived, such as a WebSocket: its use says nothing about others of its key."""
        self._admission._become_stream(self)


class Waiting:
    """A waiting request. The caller must await it."""

    __slots__ = ("_admission", "_loop", "_waiter", "class_number", "deadline_s", "is_admitted", "ticket")

    def __init__(
        self, admission: Admission, loop: asyncio.AbstractEventLoop, ticket: Ticket, deadline_s: float
    ) -> None:
        self._admission = admission
        self._loop = loop
        self._waiter: asyncio.Future[None] | None = None
        self.ticket = ticket
        self.class_number = ticket.class_number
        self.deadline_s = deadline_s
        # None until decided.
        self.is_admitted: bool | None = None

    async def wait(self) -> Admitted:
        """Wait for admission. Raises NotAdmitted at the deadline; cancellation leaves the queue at once."""
        while self.is_admitted is None:
            await self._sleep()
        return self._admission._go_on(self)

    async def wait_briefly(self) -> Admitted | None:
        """Like `wait`, but return None after BRIEFLY_S; the request is then still waiting."""
        if self.is_admitted is None:
            self._admission._wake_soon(self)
            await self._sleep()
        return None if self.is_admitted is None else self._admission._go_on(self)

    async def _sleep(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        except asyncio.CancelledError:
            self._admission._give_up(self)
            raise

    def wake(self) -> None:
        """Wake the waiter to check for a decision."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Admission:
    """Admission control of one application.

    Starts with the first request; used on another event loop, it starts over there.
    """

    def __init__(self, sensor: HasMeter, options: AdmissionOptions = DEFAULTS) -> None:
        self.name = options.name
        self.unit = unit = _unit_of(options.unit)
        self.classifier = options.classifier if options.classifier is not None else _new_classifier(unit)
        _check_unit(self.classifier, unit)
        scheduler = options.scheduler
        self.scheduler = make_scheduler(scheduler) if isinstance(scheduler, str) else scheduler
        self.reference = _reference_of(options.reference, unit)
        self.period_s = options.period_s
        self._deadline_s = options.deadline_s
        self._least_deadline_ratio = options.least_deadline_ratio
        self.stream_after_s = options.stream_after_s
        self.counts: list[ClassCounts] = []
        self.blocking = Blocking()
        # Shadow mode: measure and compute, but admit everything at once.
        self.is_shadow = False
        # Measured cost of the last period, per second.
        self.load_per_s = 0.0
        self._meter = _meter_of(sensor)
        self._record = options.record
        self._note = options.note
        self.gain = options.gain
        self._tuning = tuning_of({"kind": "i", "ki": options.gain}, lowest=0.0)
        self._budget = BudgetController(self.reference.value, options.gain)
        self._busy_limit = BusyLimit(self.reference.value)
        self._gate = Gate(
            self.scheduler,
            self._class_costs(),
            queue_limit=options.queue_limit,
            burst_s=options.burst_s,
            random=options.random,
        )
        self._room = Room(self._meter, options.full_ratio, self._find_most_busy())
        self._finished = Finished()
        self._waiters: dict[Ticket, Waiting] = {}
        self._deadlines_s: list[float] = []
        self._deadlines: Timeouts[Waiting] = Timeouts()
        self._brief: Timeouts[Waiting] = Timeouts()
        self._running: dict[Admitted, None] = {}
        self._streams: set[Admitted] = set()
        # None while stopped.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._last_loop: asyncio.AbstractEventLoop | None = None
        self._time: Callable[[], float] = time.monotonic
        self._period_end = Alarm(self._tick)
        self._next_dispatch = Alarm(self._dispatch)
        self._next_timeout = Alarm(self._time_out)
        self._alarms = (self._period_end, self._next_dispatch, self._next_timeout)
        self._is_held = False
        self._period_began_s = 0.0
        self._usage_then = Usage()
        self._sequence = 0
        self._know_classes()

    @property
    def gate(self) -> Gate:
        """The gate that queues requests."""
        return self._gate

    @property
    def usage(self) -> Usage:
        """Total use of the database so far."""
        return self._meter.usage

    @property
    def budget_per_s(self) -> float:
        """The admitted cost per second."""
        return self._budget.value

    @property
    def deadline_s(self) -> float:
        """Deadline of the most expensive requests. A new value applies to later requests."""
        return self._deadline_s

    @deadline_s.setter
    def deadline_s(self, deadline_s: float) -> None:
        check_above_0(deadline_s=deadline_s)
        self._deadline_s = deadline_s
        self._know_classes()

    @property
    def in_flight(self) -> int:
        """Number of admitted requests that have not ended, without streams."""
        return len(self._running)

    @property
    def is_running(self) -> bool:
        """Whether it is controlling: from the first request until it is stopped."""
        return self._loop is not None

    @property
    def streams(self) -> int:
        """Number of WebSockets and other long-lived requests."""
        return len(self._streams)

    @property
    def is_held(self) -> bool:
        """Whether admission is stopped since enough connections are busy."""
        return self._is_held

    def start(self) -> None:
        """Start controlling, on the running event loop. Idempotent."""
        self._start()

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return loop
        if loop is not self._last_loop:
            self._forget_all()
        self._loop = self._last_loop = loop
        self._time = loop.time
        now_s = loop.time()
        self._period_began_s = now_s
        self._usage_then = self._meter.usage
        self._gate.set_rate(self._budget.value, now_s)
        self._period_end.set(loop, now_s + self.period_s)
        return loop

    def set_shadow(self, is_shadow: bool) -> None:
        """Enter shadow mode and admit all waiting requests, or leave it."""
        self.is_shadow = is_shadow
        if is_shadow and self._loop is not None:
            self._let_in(self._gate.admit_all(self._loop.time()))

    def record_with(self, record: Callable[[Sample], None]) -> None:
        """Call `record` after each period from now on."""
        self._record = record

    def stop(self) -> None:
        """Stop controlling: waiting requests are refused, admitted ones continue. Idempotent."""
        if self._loop is None:
            return
        for waiting in list(self._waiters.values()):
            self._gate.leave(waiting.ticket)
            self._decide(waiting, is_admitted=False)
        for alarm in self._alarms:
            alarm.cancel()
        self._loop = None

    async def admit(self, key: str) -> Admitted:
        """Wait until a request of this key is admitted.

        Raises NotAdmitted at its deadline, or if the queue is full. Cancellation leaves the queue at once.
        """
        asked = self.ask(key)
        return asked if isinstance(asked, Admitted) else await asked.wait()

    def ask(self, key: str) -> Admitted | Waiting:
        """Ask for admission of a request of this key: it starts, or has to wait. Raises NotAdmitted if the queue is
        full.
        """
        loop = self._loop
        # get_running_loop() would cost a system call per request.
        if loop is None or not loop.is_running():
            loop = self._start()
        number, cost = self.classifier.classify(key)
        now_s = loop.time()
        self.counts[number].arrived += 1
        if cost <= 0.0:
            return self._begin(key, number, cost, now_s, now_s)
        room = self._look_at_pool(now_s)
        if self._gate.passes(number, cost, now_s):
            return self._begin(key, number, cost, now_s, now_s)
        if self.is_shadow:
            self._gate.pass_by(number, cost)
            return self._begin(key, number, cost, now_s, now_s)
        return self._queue(Ticket(key, number, cost, now_s), room, loop)

    def _queue(self, ticket: Ticket, room: int | None, loop: asyncio.AbstractEventLoop) -> Admitted | Waiting:
        number, now_s = ticket.class_number, ticket.arrived_s
        try:
            self._let_in(self._gate.arrive(ticket, room))
        except Full:
            raise self._refusal(ticket, number, "queue full") from None
        if ticket.admitted_s is not None:
            return self._begin(ticket.key, number, ticket.cost, now_s, now_s)
        waiting = self._waiters[ticket] = Waiting(self, loop, ticket, self._deadlines_s[number])
        self._plan_timeout(self._deadlines.add(waiting, waiting.deadline_s, now_s))
        self._plan_dispatch(now_s)
        return waiting

    def deadline_of(self, number: int) -> float:
        """Return the deadline of a class in seconds: shorter for cheaper classes.

        Under overload admitted requests have waited almost until their deadline. With one deadline for all, small
        requests would be as slow as large ones.
        """
        return self._deadlines_s[number]

    def _know_classes(self) -> None:
        """Prepare for the gate's new classes."""
        costs = self._gate.class_costs
        self._deadlines_s = [self._deadline_s * max(self._least_deadline_ratio, cost / costs[-1]) for cost in costs]
        while len(self.counts) < len(costs):
            self.counts.append(ClassCounts())

    def _decide(self, waiting: Waiting, is_admitted: bool) -> None:
        """Decide a waiting request; its waiter continues in a later turn of the event loop."""
        self._waiters.pop(waiting.ticket, None)
        self._deadlines.remove(waiting, waiting.deadline_s)
        self._brief.remove(waiting, BRIEFLY_S)
        waiting.is_admitted = is_admitted
        if is_admitted:
            self._room.woken += 1
        waiting.wake()

    def _go_on(self, waiting: Waiting) -> Admitted:
        """Start or refuse a request after its decision."""
        if waiting.is_admitted:
            self._room.woken -= 1
            ticket = waiting.ticket
            assert ticket.admitted_s is not None
            return self._begin(ticket.key, waiting.class_number, ticket.cost, ticket.arrived_s, ticket.admitted_s)
        reason = "the database is busy" if self._loop is not None else "the application is shutting down"
        raise self._refusal(waiting.ticket, waiting.class_number, reason)

    def _give_up(self, waiting: Waiting) -> None:
        """Remove a request whose waiter has gone."""
        if waiting.is_admitted is None:
            self._gate.leave(waiting.ticket)
            self._decide(waiting, is_admitted=False)
        elif waiting.is_admitted:
            # Admitted at this moment: its budget is lost, but it does not count as started.
            self._room.woken -= 1
        self.counts[waiting.class_number].left += 1
        self._note_refusal(waiting.ticket, waiting.class_number, "left")

    def _wake_soon(self, waiting: Waiting) -> None:
        self._plan_timeout(self._brief.add(waiting, BRIEFLY_S, waiting.ticket.arrived_s))

    def _plan_timeout(self, at_s: float) -> None:
        """Check deadlines at this time or earlier."""
        if at_s < math.inf:
            assert self._loop is not None
            self._next_timeout.set(self._loop, at_s)

    def _time_out(self) -> None:
        now_s = self._time() + TIMER_S
        for waiting in self._deadlines.pop_due(now_s):
            self._gate.expire(waiting.ticket)
            self._decide(waiting, is_admitted=False)
        for waiting in self._brief.pop_due(now_s):
            waiting.wake()
        self._plan_timeout(min(self._deadlines.next_s(), self._brief.next_s()))

    def _begin(self, key: str, number: int, cost: float, arrived_s: float, admitted_s: float) -> Admitted:
        self.counts[number].admit(admitted_s - arrived_s)
        admitted = Admitted(self, key, number, arrived_s, admitted_s)
        self._running[admitted] = None
        if cost > 0.0:
            self._room.begin(admitted)
        return admitted

    def _end(self, admitted: Admitted, outcome: Outcome) -> None:
        if admitted.has_ended:
            return
        admitted.has_ended = True
        now_s = self._time()
        served_s = now_s - admitted.admitted_s
        if served_s > self.stream_after_s:
            self._become_stream(admitted)
        if admitted.is_stream:
            self._streams.discard(admitted)
        else:
            self._running.pop(admitted, None)
        counts = self.counts[admitted.class_number]
        if outcome == "left":
            counts.left += 1
        elif outcome == "failed":
            # The cost of a failed request says nothing about others of its key.
            counts.failed += 1
            self._finished.fail(served_s)
        else:
            counts.served += 1
            if not admitted.is_stream and not admitted.use.held:
                # Its class may have changed since it was admitted.
                number, base_cost = self.classifier.learn(admitted.key, self.unit.cost_of(admitted.use))
                self._finished.add(number, served_s, base_cost)
        if self._note is not None:
            self._note(_served(admitted, served_s, outcome))
        if self._waiters and self._gate.has_budget(now_s):
            self._dispatch(now_s)

    def _become_stream(self, admitted: Admitted) -> None:
        if not admitted.is_stream:
            admitted.is_stream = True
            self._running.pop(admitted, None)
            self._streams.add(admitted)

    def _tick(self) -> None:
        loop = self._loop
        if loop is None:
            return
        now_s = loop.time()
        self._period_end.set(loop, now_s + self.period_s)
        self.end_period(now_s)

    def end_period(self, now_s: float) -> None:
        """Measure the period that ends now, and set the budget of the next one."""
        passed_s = now_s - self._period_began_s
        if passed_s <= 0.0:
            return
        self._period_began_s = now_s
        usage = self._meter.usage
        taken = self.unit.cost_of(usage) - self.unit.cost_of(self._usage_then)
        self._usage_then = usage
        self.load_per_s = taken / passed_s
        self._find_streams(now_s)
        turnout = self._gate.end_period(now_s)
        self.blocking.end_period(turnout.admitted, turnout.waiting, turnout.lost)
        finished = self._finished
        reference = self.reference.observe(
            Observation(
                period_s=passed_s,
                load_per_s=self.load_per_s,
                work_per_s=finished.work / passed_s,
                completed=finished.count,
                response_s=finished.response_s,
                failures=finished.failures,
                failed_s=finished.failed_s,
                in_flight=len(self._running),
                is_limited=turnout.was_limited or turnout.was_held,
            )
        )
        finished.end_period()
        if self.classifier.end_period():
            self._gate.reclassify(self._class_costs(), lambda key: self.classifier.classify(key)[0])
            self._know_classes()
            finished.forget_classes()
        budget = self._budget.step(reference, self.load_per_s, turnout.admitted_cost / passed_s)
        self._busy_limit.step(reference, self.load_per_s, turnout.was_held)
        self._room.most_busy = self._find_most_busy()
        self._gate.set_rate(budget, now_s)
        if self._record is not None:
            self._record(
                Sample(
                    self.name,
                    now_s,
                    self.period_s,
                    reference,
                    self.load_per_s,
                    budget,
                    self._sequence,
                    mode=Mode.SHADOW if self.is_shadow else Mode.ACTIVE,
                    tuning=self._tuning,
                )
            )
        self._sequence += 1
        self._dispatch(now_s)

    def _find_streams(self, now_s: float) -> None:
        """Requests that run long are streams. The dictionary is in order of admission."""
        while self._running:
            eldest = next(iter(self._running))
            if now_s - eldest.admitted_s <= self.stream_after_s:
                return
            self._become_stream(eldest)

    def _dispatch(self, now_s: float | None = None) -> None:
        if self._loop is None:
            return
        now_s = now_s if now_s is not None else self._loop.time()
        self._let_in(self._gate.dispatch(now_s, self._look_at_pool(now_s)))
        self._plan_dispatch(now_s)

    def _let_in(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            waiting = self._waiters.get(ticket)
            # The request that is just arriving has no waiter yet.
            if waiting is not None:
                self._decide(waiting, is_admitted=True)

    def _plan_dispatch(self, now_s: float) -> None:
        at_s = self._gate.next_dispatch_s(now_s)
        if at_s is None and self._is_held and self._waiters:
            at_s = now_s + LOOK_AGAIN_S
        if at_s is not None:
            assert self._loop is not None
            self._next_dispatch.set(self._loop, at_s)

    def _look_at_pool(self, now_s: float) -> int | None:
        """Return how many more requests may start (None: unbounded), and hold the gate at zero."""
        room = self._room.find(now_s, self._running, bool(self._waiters))
        is_held = room == 0
        if is_held is not self._is_held:
            self._is_held = is_held
            self._gate.hold(is_held)
        return room

    def _refusal(self, ticket: Ticket, number: int, reason: str) -> NotAdmitted:
        self.counts[number].refused += 1
        self._note_refusal(ticket, number, "refused")
        return NotAdmitted(reason, self.retry_after_s())

    def retry_after_s(self) -> float:
        """Return the Retry-After time: when the present queue will have been admitted, 1 to 60 s."""
        waiting = zip(self._gate.waiting, self._gate.class_costs, strict=True)
        cost = sum(count * each for count, each in waiting)
        least_s, most_s = RETRY_AFTER_S
        return min(most_s, max(least_s, cost / self._budget.value))

    def _note_refusal(self, ticket: Ticket, number: int, outcome: Outcome) -> None:
        if self._note is not None:
            self._note(Served(ticket.key, number, outcome, ticket.arrived_s, self._time() - ticket.arrived_s, 0.0))

    def counts_of(self, number: int) -> ClassCounts:
        """Return the outcome counts of a class."""
        return self.counts[number]

    def _find_most_busy(self) -> float:
        """Return the number of busy connections that the reference permits."""
        return self._busy_limit.value if self.unit is Unit.BUSY_MS else math.inf

    def _class_costs(self) -> list[float]:
        return [each.mean for each in self.classifier.classes]

    def _forget_all(self) -> None:
        """Forget the waiters of an event loop that no longer runs."""
        for ticket in self._waiters:
            self._gate.leave(ticket)
        self._waiters.clear()
        self._deadlines.clear()
        self._brief.clear()
        self._running.clear()
        self._room.clear()
        self._streams.clear()
        for alarm in self._alarms:
            alarm.forget()


def _served(admitted: Admitted, served_s: float, outcome: Outcome) -> Served:
    use = admitted.use
    return Served(
        admitted.key,
        admitted.class_number,
        outcome,
        admitted.arrived_s,
        admitted.admitted_s - admitted.arrived_s,
        served_s,
        use.connections,
        use.busy_s,
        use.waiting_s,
    )


def _new_classifier(unit: Unit) -> Classifier:
    return Classifier(first_cost=FIRST_COST if unit is Unit.BUSY_MS else FIRST_CONNECTIONS)


def _reference_of(reference: Reference | float | None, unit: Unit) -> Reference:
    if reference is None:
        return SlowStart(unit)
    if isinstance(reference, int | float):
        return FixedReference(reference)
    if not hasattr(reference, "observe"):
        raise AdmissionError(f"invalid reference {reference!r}: use a cost per second above 0")
    return reference


def _meter_of(sensor: HasMeter) -> Meter:
    if not hasattr(sensor, "meter"):
        raise AdmissionError(
            f"invalid sensor {sensor!r}: use one of flyball.admission.sensors, such as PsycopgSensor()"
        )
    return sensor.meter


def _unit_of(unit: Unit | str) -> Unit:
    try:
        return Unit(unit)
    except ValueError:
        raise AdmissionError(f"invalid unit {unit!r}: use one of {', '.join(each.value for each in Unit)}") from None


def _check_unit(classifier: RequestClasses, unit: Unit) -> None:
    if classifier.unit is not None and classifier.unit != unit.value:
        raise AdmissionError(
            f"the profile counts cost in {classifier.unit}, admission in {unit.value}:"
            f" create the profile with --unit {unit.value}, or set unit={classifier.unit!r}"
        )
