"""The consuming client of the workload `adaptive`: an adaptive consumer, a relay that delays its network, and checks.

Needs aio-pika. The workload decides how the loop is set up and disturbed.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from urllib.parse import quote

from aio_pika import IncomingMessage

from flyball.client.adaptive import AdaptiveConsumer, AdaptiveOptions, FractionalWindow, Pacer, Rate, Window
from flyball.client.adaptive.actuators import ConsumerActuator
from flyball.client.reporting import LoopReporter
from flyball.control.certificate import certificate_from_json
from flyball.control.laws import law_from_json
from flyball.control.limits import Limits
from flyball.control.loop import Sample
from flyball.control.signals import prbs, random_steps, staircase
from flyball.errors import ControlError, LabError
from flyball.lab.drivers import QueueRef, Target
from flyball.lab.relay import Relay
from flyball.lab.workloads.adaptive_loop import AdaptiveLoop
from flyball.lab.workloads.client import Client
from flyball.lab.workloads.stream import note_delivery
from flyball.lab.workloads.workload import first_error
from flyball.trace.samples import SampleWriter

LOOP = "adaptive"


async def adapt(workload: AdaptiveLoop, client: Client, queue: QueueRef) -> None:
    """Consume the queue with a control loop until the run stops. Raises LabError on a failure."""
    broker = Target.model_validate(client.set_up["broker"])
    async with AsyncExitStack() as opened:
        relay = None
        if workload.round_trip_ms:
            relay = await opened.enter_async_context(Relay(broker.host, broker.port, workload.round_trip_ms / 1000))
            broker = broker.model_copy(update={"host": relay.host, "port": relay.port})
        samples = SampleWriter(client.traces, client.worker)
        samples.start()
        opened.callback(samples.stop)
        try:
            await _Adapting(workload, client, queue, relay, samples).run(url_of(broker))
        except (ControlError, BaseExceptionGroup) as failure:
            error = first_error(failure)
            raise (LabError(str(error)) if isinstance(error, ControlError) else error) from failure


def url_of(broker: Target) -> str:
    """Return the address of a broker in the form that AMQP libraries expect."""
    user, password, vhost = (quote(part, safe="") for part in (broker.user, broker.password, broker.vhost))
    host = f"[{broker.host}]" if ":" in broker.host else broker.host
    return f"amqp://{user}:{password}@{host}:{broker.port}/{vhost}"


class _Adapting:
    """The running consumer: handles its messages and samples."""

    def __init__(
        self, workload: AdaptiveLoop, client: Client, queue: QueueRef, relay: Relay | None, samples: SampleWriter
    ) -> None:
        self._workload = workload
        self._client = client
        self._queue = queue
        self._relay = relay
        self._samples = samples
        self._handler_time_s = workload.handler_time_s
        self._changes = list(workload.schedule)
        self._has_ended = asyncio.Event()
        self._failure: LabError | None = None
        self._player: _Player | None = None
        self._consumer: AdaptiveConsumer | None = None

    async def run(self, url: str) -> None:
        """Let the queue fill, then consume it until the run stops."""
        workload, client = self._workload, self._client
        client.at_next_stage(self._has_ended.set)
        self._consumer = self._make(url)
        since_begin_s = (time.perf_counter_ns() - client.begin_ns) / 1e9
        await client.pause(workload.fill_s - since_begin_s)
        if client.stopping:
            return
        async with asyncio.TaskGroup() as tasks:
            consuming = tasks.create_task(self._consumer.run())
            consuming.add_done_callback(lambda _: self._has_ended.set())
            await self._has_ended.wait()
            await self._consumer.stop()
        if self._failure is not None:
            raise self._failure

    def _make(self, url: str) -> AdaptiveConsumer:
        workload, set_up = self._workload, self._client.set_up
        is_closed = workload.signal == "closed"
        law, certificate = set_up.get("law_used", workload.law), set_up.get("certificate")
        is_pacer = workload.actuator == "pacer"
        return AdaptiveConsumer(
            url,
            str(self._queue),
            self.handle,
            Rate(workload.goal_per_s),
            options=AdaptiveOptions(
                actuator=self._actuator(),
                law=law_from_json(law) if is_closed else None,
                certificate=certificate_from_json(certificate) if is_closed and certificate else None,
                sample_time_s=workload.sample_time_s,
                # The limits of a pacer, whose action is a rate, follow from the goal.
                limits=None if is_pacer else Limits(workload.lowest, workload.highest),
                start=None if is_pacer else workload.start or workload.lowest,
                record=self._note,
                reporter=self._reporter() if is_closed else None,
                allow_uncertified=workload.allow_uncertified or not is_closed,
                is_open=not is_closed,
                name=LOOP,
            ),
        )

    def _reporter(self) -> LoopReporter | None:
        if not self._workload.report:
            return None
        broker = Target.model_validate(self._client.set_up["broker"])
        user, password = quote(broker.user, safe=""), quote(broker.password, safe="")
        return LoopReporter(f"http://{user}:{password}@{self._workload.report}")

    def _actuator(self) -> ConsumerActuator:
        workload = self._workload
        if workload.signal != "closed":
            self._player = _Player(_actions_of(workload, self._client))
            return self._player
        actuators = {"integer": Window, "fractional": FractionalWindow, "pacer": Pacer}
        return actuators[workload.actuator]()

    async def handle(self, message: IncomingMessage) -> None:
        """Handle a message: check it and take the simulated handler time."""
        received_ns = time.perf_counter_ns()
        client, workload = self._client, self._workload
        try:
            note_delivery(client, self._queue, message.body, received_ns, workload.body_bytes, client.number)
        except LabError as error:
            self._failure = self._failure or error
            self._has_ended.set()
        await self._client.pause(self._handler_time_s)

    def _note(self, sample: Sample) -> None:
        self._samples.record(sample)
        if self._player is not None:
            # Not the sample's number: a skipped sample must not skip a step of the signal.
            self._player.place += 1
        while self._changes and self._changes[0].at_sample <= sample.sequence:
            change = self._changes.pop(0)
            if change.goal_per_s is not None and self._consumer is not None:
                self._consumer.set_goal(Rate(change.goal_per_s))
            if change.capacity_ratio is not None:
                self._change_capacity(change.capacity_ratio)

    def _change_capacity(self, ratio: float) -> None:
        """Divide the round trip and the handler time of each message by this ratio."""
        self._handler_time_s = self._workload.handler_time_s / ratio
        if self._relay is not None:
            self._relay.round_trip_s = self._workload.round_trip_ms / 1000 / ratio


class _Player(Window):
    """A window that follows a signal, regardless of the controller, and finally holds its last value."""

    def __init__(self, actions: Sequence[float]) -> None:
        super().__init__()
        # Number of samples so far.
        self.place = 0
        self._actions = actions

    async def apply(self, action: float) -> float:
        return await super().apply(self._actions[min(self.place, len(self._actions) - 1)])


def _actions_of(workload: AdaptiveLoop, client: Client) -> list[float]:
    span = workload.lowest, workload.highest, workload.levels
    if workload.signal == "staircase":
        return staircase(*span, is_integer=True)
    if workload.signal == "geometric":
        powers = staircase(math.log(workload.lowest), math.log(workload.highest), workload.levels)
        return [float(round(math.exp(power))) for power in powers]
    seed = client.random.randrange(2**31)
    if workload.signal == "prbs":
        return prbs(*span, seed=seed)
    return random_steps(*span, seed=seed, is_integer=True)
