"""A consumer that holds a goal by adapting its prefetch or rate, on RabbitMQ and Flyball.

Assembles the other modules, and manages their start and stop.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Self

from aio_pika.abc import AbstractConnection

from flyball.client.adaptive.actuators import ConsumerActuator, FractionalWindow, Pacer, Window
from flyball.client.adaptive.facts import loop_facts
from flyball.client.adaptive.goals import Fast, Goal, Latency, Rate, default_law, own_certificate
from flyball.client.adaptive.handler_pool import Handler, HandlerPool
from flyball.client.adaptive.meter import Meter
from flyball.client.adaptive.options import AdaptiveOptions, Design
from flyball.client.adaptive.sensors import sensor_for
from flyball.client.adaptive.session import Delivery
from flyball.client.adaptive.state import ConsumerState
from flyball.client.adaptive.subscription import Subscription
from flyball.client.adaptive.traces import LoopTraces
from flyball.client.reporting import ReportedLoop
from flyball.control.certificate import Certificate
from flyball.control.controller import Controller, Smoothing
from flyball.control.laws import Law
from flyball.control.loop import Loop, Sample
from flyball.errors import ControlError

log = logging.getLogger(__name__)

SAMPLE_TIME_S = 1.0


DEFAULTS = AdaptiveOptions()


class AdaptiveConsumer:
    """Consumes a queue and holds a goal.

    Awaits the handler with each message; acks when it returns, and when it raises, requeues, or rejects if the
    options say so. Each message is acked once, on the channel that delivered it. After a lost connection unacked
    messages are delivered again, including those that handlers had started.

    Use it as an asynchronous context manager, or `run` it until it is stopped or cancelled.
    """

    def __init__(
        self,
        source: str | AbstractConnection,
        queue_name: str,
        handler: Handler,
        goal: Goal,
        options: AdaptiveOptions = DEFAULTS,
    ) -> None:
        """`source` is an address (amqp://...) or an aio-pika connection. Connects in `start`.

        Raises ControlError for invalid arguments or combinations.
        """
        _check(source, queue_name, handler, goal)
        design = options.design
        law, certificate = _law_and_proof(goal, options)
        self._goal = goal
        self._actuator = options.actuator or _default_actuator(goal, design)
        sample_time_s = options.sample_time_s
        if sample_time_s is None:
            sample_time_s = design.sample_time_s if design is not None else _default_sample_time_s(goal)
        # Only a design from an identified model may sample faster than the latency.
        self._must_outlast_latency = design is None and not (options.is_shadow or options.allow_uncertified)
        self._check_sample_time(goal, sample_time_s)
        limits = options.limits or (None if design is None else design.limits)
        self._has_own_limits = limits is None
        limits = limits or self._actuator.default_limits(goal)
        self._actuator.check_limits(limits)
        self._options = options
        self._reported: ReportedLoop | None = None
        self._last_sample: Sample | None = None
        self._samples = 0
        self._meter = Meter()
        self._pool = HandlerPool(handler, self._meter, options.concurrency, requeues=options.on_error == "requeue")
        begin = self._actuator.default_start(goal) if options.start is None else options.start
        share = None if design is None else design.smoothing_share
        self._smoothing = None if share is None else Smoothing(share)
        controller = Controller(law, limits, goal.setpoint, begin, self._smoothing)
        self._subscription = Subscription(
            source,
            queue_name,
            self._pool.take,
            self._on_settled,
            self._pool.forget,
            self._actuator.window_at(controller.action, goal),
        )
        self._actuator.bind(self._subscription, self._pool)
        self._sensor = sensor_for(
            goal, self._meter, self._subscription, self._actuator.is_binding, options.concurrency
        )
        self._loop = Loop(
            options.name or queue_name,
            self._sensor,
            controller,
            self._actuator,
            sample_time_s,
            certificate=certificate,
            record=self._on_sample,
            is_shadow=options.is_shadow,
            allow_uncertified=options.allow_uncertified,
            is_open=options.is_open,
            model_version=options.model_version,
        )
        self._traces = None if options.traces is None else LoopTraces(Path(options.traces))
        self._queue_name = queue_name
        self._starting = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None

    # Lifecycle

    async def start(self) -> None:
        """Connect, subscribe and start. Raises ControlError if the broker or the queue does not exist.

        May be called twice, and again after a failure. A stopped consumer does not start again.
        """
        async with self._starting:
            if self._supervisor is not None or self._stopping.is_set():
                return
            await self._subscription.open()
            # Kept here, and awaited in `run` and `stop`.
            self._supervisor = asyncio.get_running_loop().create_task(self._supervise())

    async def run(self) -> None:
        """Start, and consume until `stop` is called or this task is cancelled; running handlers finish first."""
        await self.start()
        try:
            if self._supervisor is not None:
                await asyncio.wait([self._supervisor])
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Stop deliveries, let running handlers finish, ack, and requeue the rest.

        May be called twice, before `start`, and by a handler, in which case it does not wait. If this is cancelled,
        so are the handlers. Raises the error that ended the consumer, if any.
        """
        self._stopping.set()
        self._pool.wind_up()
        async with self._starting:
            pass
        if self._supervisor is None or self._pool.is_worker(asyncio.current_task()):
            return
        try:
            await asyncio.wait([self._supervisor])
        except asyncio.CancelledError:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
            raise
        if not self._supervisor.cancelled():
            self._supervisor.result()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # While running

    @property
    def goal(self) -> Goal:
        return self._goal

    def set_goal(self, goal: Goal) -> None:
        """Change the setpoint of the goal.

        Raises ControlError for another kind of goal, and for a latency longer than the sample time.
        """
        if type(goal) is not type(self._goal):
            raise ControlError(
                f"the goal must stay a {type(self._goal).__name__}: create another consumer for another kind"
            )
        self._check_sample_time(goal, self._loop.sample_time_s)
        self._goal = goal
        if isinstance(self._actuator, Pacer):
            self._actuator.hold_for(goal)
        if isinstance(self._actuator, Pacer) and self._has_own_limits:
            self._pace_for(goal)
        else:
            self._loop.controller.setpoint = goal.setpoint
        if self._reported is not None:
            self._reported.change(loop_facts(self._loop, goal, self._actuator, self._queue_name))

    def _pace_for(self, goal: Goal) -> None:
        # The action is the rate itself: jump to it. Earlier measurements do not apply to the new goal.
        limits, begin = self._actuator.default_limits(goal), self._actuator.default_start(goal)
        self._loop.controller = Controller(self._loop.controller.law, limits, goal.setpoint, begin, self._smoothing)
        if self._supervisor is not None and not self._loop.is_shadow:
            self._pool.set_pace(begin)
            self._sensor.restart()

    @property
    def state(self) -> ConsumerState:
        """Return a snapshot of the current state."""
        meter, session = self._meter, self._subscription.session
        pace = self._pool.pace
        return ConsumerState(
            is_connected=session is not None,
            window=self._subscription.window,
            pace_per_s=None if pace is None else pace.per_s,
            waiting=meter.waiting,
            running=meter.running,
            unsettled=0 if session is None else len(session.unsettled),
            arrived=meter.arrived,
            handled=meter.handled,
            failed=meter.failed,
            settled=meter.settled,
            sessions=self._subscription.sessions,
            samples=self._samples,
            late_samples=self._loop.late_ticks,
            last_sample=self._last_sample,
        )

    # Internals

    async def _supervise(self) -> None:
        try:
            if self._traces is not None:
                self._traces.start()
            if not self._loop.is_shadow:
                await self._actuator.apply(self._loop.controller.action)
            if self._options.reporter is not None:
                facts = loop_facts(self._loop, self._goal, self._actuator, self._queue_name)
                self._reported = self._options.reporter.watch_loop(self._loop.name, facts, self._on_mode)
                self._reported.is_shadow = self._loop.is_shadow
            async with asyncio.TaskGroup() as tasks:
                self._pool.start(tasks)
                failure = await self._until_stopped()
                self._pool.wind_up()
                await self._subscription.end()
                await self._pool.finish(self._options.stop_limit_s)
                self._pool.dismiss()
            if failure is not None:
                raise failure
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._pool.dismiss()
            await self._subscription.close()
            if self._options.reporter is not None and self._reported is not None:
                await self._options.reporter.forget(self._reported)
            if self._traces is not None:
                # It waits for the disk.
                await asyncio.to_thread(self._traces.stop)

    async def _until_stopped(self) -> BaseException | None:
        """Keep connection and loop running until stopped; return the error that ended them before, if any."""
        try:
            async with asyncio.TaskGroup() as tasks:
                others = [
                    tasks.create_task(self._subscription.keep()),
                    tasks.create_task(self._actuator.run()),
                    tasks.create_task(self._loop.run()),
                ]
                await self._stopping.wait()
                for task in others:
                    task.cancel()
        except BaseExceptionGroup as group:
            # The first failure cancels the other tasks: report only that one.
            failure = group.exceptions[0]
            log.error("stopped consuming queue %r: %s", self._queue_name, str(failure) or repr(failure))
            return failure
        return None

    def _check_sample_time(self, goal: Goal, sample_time_s: float) -> None:
        # The measurement reflects the action of one latency ago: a law that samples faster than that oscillates.
        if self._must_outlast_latency and isinstance(goal, Latency) and sample_time_s < goal.seconds:
            raise ControlError(
                f"sample time {sample_time_s:g} s is too short for a latency goal of {goal.seconds:g} s:"
                f" use a sample_time_s of {goal.seconds:g} or more"
            )

    def _on_settled(self, delivery: Delivery) -> None:
        self._meter.settle(monotonic() - delivery.arrived_s)

    def _on_sample(self, sample: Sample) -> None:
        if math.isnan(sample.measurement):
            return
        self._samples += 1
        self._last_sample = sample
        if self._reported is not None:
            self._reported.record(sample)
        if self._traces is not None:
            self._traces.record(sample)
        if self._options.record is not None:
            self._options.record(sample)

    def _on_mode(self, mode: str) -> str | None:
        """Switch the mode of the loop; return a reason if that is refused."""
        assert self._reported is not None, "only called for a reported loop"
        try:
            self._loop.set_shadow(mode == "shadow")
        except ControlError as error:
            return str(error)
        self._reported.is_shadow = self._loop.is_shadow
        return None


def _default_sample_time_s(goal: Goal) -> float:
    return max(SAMPLE_TIME_S, goal.seconds) if isinstance(goal, Latency) else SAMPLE_TIME_S


def _law_and_proof(goal: Goal, options: AdaptiveOptions) -> tuple[Law[Any], Certificate | None]:
    """Return the law and its certificate, if it has one."""
    law, certificate, design = options.law, options.certificate, options.design
    if design is not None:
        return design.law, design.certificate
    if law is None:
        return default_law(goal)
    return law, own_certificate(law, goal) if certificate is None else certificate


def _default_actuator(goal: Goal, design: Design | None) -> ConsumerActuator:
    if isinstance(goal, Rate):
        # A design is for the window as its action: with a pacer it would control another plant.
        return Pacer() if design is None else FractionalWindow()
    return Window()


def _check(source: object, queue_name: object, handler: object, goal: object) -> None:
    """Raise ControlError for the first invalid argument."""
    if not isinstance(source, str | AbstractConnection):
        raise ControlError(
            f"invalid source of type {type(source).__name__}: use an address (amqp://...) or an aio-pika connection"
        )
    if not (isinstance(queue_name, str) and queue_name):
        raise ControlError(f"invalid queue name {queue_name!r}")
    is_plain = inspect.isfunction(handler) and not inspect.iscoroutinefunction(handler)
    if not callable(handler) or (is_plain and getattr(handler, "__name__", "") != "<lambda>"):
        raise ControlError(f"invalid handler {handler!r}: use an `async def` that takes a message")
    if not isinstance(goal, Rate | Latency | Fast):
        raise ControlError(f"invalid goal {goal!r}: use a Rate, Latency or Fast")
