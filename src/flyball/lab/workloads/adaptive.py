"""A consumer that adapts itself, over AMQP: publishers fill a queue by a schedule, a control loop takes from it.

This is what the loop is made of and how it is disturbed. The consumer itself is in `adapting`, the gains that come
from an earlier experiment in `tuning`: both need packages that not everybody has.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_serializer, model_validator

from flyball.control.design import DESIGNS
from flyball.control.laws import law_from_json
from flyball.errors import ControlError, LabError
from flyball.lab.drivers import AmqpSession, QueueRef, Target
from flyball.lab.workloads.arrivals import Gaps
from flyball.lab.workloads.client import Client
from flyball.lab.workloads.stream import HEAD, PRODUCER
from flyball.lab.workloads.workload import EarlierRun, ProtocolName, Seconds, Workload

ADAPTIVE = "adaptive"
PACKAGES = ("aio_pika", "control", "scipy")

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Change(BaseModel):
    """A disturbance, or another goal, after so many samples. Ratios are to what the workload says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at_sample: Annotated[int, Field(ge=1)]
    goal_per_s: Positive | None = None
    producers_ratio: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    capacity_ratio: Positive | None = None
    """At a constant window the rate changes so: network and handler are slower by its inverse."""

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if self.goal_per_s is self.producers_ratio is self.capacity_ratio is None:
            raise ValueError("give goal_per_s, producers_ratio or capacity_ratio")
        return self

    @model_serializer
    def _without_nothing(self) -> dict[str, float]:
        return {name: value for name, value in self if value is not None}


class Adaptive(Workload):
    """One consumer of one queue, in a process of its own, and many publishers that wait for nobody.

    Only deliveries are recorded as calls: what is looked at is what the consumer gets, a small part of what is
    published.
    """

    protocols: ClassVar[tuple[str, ...]] = ("amqp",)
    needs_messages: ClassVar[bool] = True
    shared_queues: ClassVar[tuple[str, ...]] = ("adaptive",)
    least_workers: ClassVar[int] = 2

    kind: Literal["adaptive"] = "adaptive"
    protocol: ProtocolName = "amqp"
    producers: Annotated[int, Field(ge=1)] = 25
    gap_s: Positive = 0.01
    """From one message of a publisher to the next, on average."""
    gap_deviation_s: Seconds = 0.001
    body_bytes: Annotated[int, Field(ge=HEAD.size)] = 256
    persistent: bool = True
    in_flight: Annotated[int, Field(ge=1)] = 1000
    """So many messages of a publisher may be under way, not yet confirmed."""
    fill_s: Seconds = 1.0
    """So long the publishers are alone before the loop begins."""
    handler_time_s: Seconds = 0.001
    """So long the handler of a message takes; handlers run side by side."""
    round_trip_ms: Seconds = 0.0
    """Of the network between consumer and broker, above that of this machine."""
    sample_time_s: Positive = 1.0
    goal_per_s: Positive = 400.0
    signal: Literal["closed", "staircase", "geometric", "random", "prbs"] = "closed"
    """A controller at work, or actions that are played from `lowest` to `highest` to learn what they do."""
    levels: Annotated[int, Field(ge=2)] = 360
    """So many actions are played, one for each sample; the last is held."""
    lowest: Positive = 1.0
    highest: Positive = 360.0
    start: Positive | None = None
    """The first action; the lowest if it is not given."""
    law: dict[str, Any] = Field(default_factory=lambda: {"kind": "multiplicative"})
    """A law and its gains, or {kind = "designed", as = ...} for the plant that an earlier experiment identified."""
    actuator: Literal["integer", "fractional", "pacer"] = "fractional"
    allow_uncertified: bool = False
    """Run a law although it is not known to be stable, or known not to be."""
    schedule: tuple[Change, ...] = ()
    report: Annotated[str, Field(pattern=r"^(\S+:\d+)?$")] = ""
    """The console at this address, host:port, shows the controller at work; who reports is the target's user."""

    @field_validator("law")
    @classmethod
    def _is_a_law(cls, law: dict[str, Any]) -> dict[str, Any]:
        if law.get("kind") == "designed":
            _check_design(law)
            return law
        try:
            law_from_json(law)
        except ControlError as error:
            raise ValueError(str(error)) from None
        return law

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.lowest >= self.highest:
            raise ValueError("lowest must be below highest")
        if self.signal != "closed" and not (
            self.actuator == "integer" and self.lowest.is_integer() and self.highest.is_integer()
        ):
            raise ValueError("a signal is played in whole numbers: give actuator = 'integer' and such limits")
        if [change.at_sample for change in self.schedule] != sorted({change.at_sample for change in self.schedule}):
            raise ValueError("the samples in schedule must grow")
        return self

    @property
    def client_count(self) -> int:
        return self._most_producers + 1

    @property
    def is_open(self) -> bool:
        return True

    @property
    def _most_producers(self) -> int:
        ratios = [1.0, *(change.producers_ratio for change in self.schedule if change.producers_ratio is not None)]
        return max(round(self.producers * ratio) for ratio in ratios)

    def role_of(self, number: int) -> str:
        return PRODUCER if number < self._most_producers else ADAPTIVE

    def numbers_of_workers(self, worker_count: int) -> list[Sequence[int]]:
        # The consumer has a process to itself: publishers would make it late.
        if worker_count == 1:
            return super().numbers_of_workers(1)
        others = [range(worker, self._most_producers, worker_count - 1) for worker in range(worker_count - 1)]
        return [*others, [self._most_producers]]

    def check(self, target_count: int) -> None:
        if target_count != 1:
            raise LabError("workload adaptive has one queue and so needs one target")

    def check_packages(self) -> None:
        for package in PACKAGES:
            if importlib.util.find_spec(package) is None:
                raise LabError(f"workload adaptive needs {package}: pip install 'flyball[control]'")

    def prepare(self, earlier: Sequence[EarlierRun]) -> dict[str, Any]:
        """Return the law with its gains as `law_used`, the plant that it is for and the `certificate`, if any."""
        if self.signal != "closed":
            return {}
        self.check_packages()
        # Here, not above: it takes long to import, and needs packages that may not be installed.
        from flyball.lab.tuning import tuned

        return tuned(self.law, self.sample_time_s, earlier, allow_uncertified=self.allow_uncertified)

    async def set_up(self, targets: Sequence[Target]) -> dict[str, Any]:
        return {**await super().set_up(targets), "broker": targets[0].model_dump()}

    async def behave(self, client: Client) -> None:
        assert isinstance(client.session, AmqpSession)
        queue = client.queue("adaptive")
        if client.role == PRODUCER:
            await self._publish(client, client.session, queue)
            return
        self.check_packages()
        # Here, not above: it needs packages that may not be installed.
        from flyball.lab.adapting import adapt

        await adapt(self, client, queue)

    def sample_at_s(self, sample: int) -> float:
        """Return when, since the start, so many samples have been taken."""
        return self.fill_s + sample * self.sample_time_s

    def spans_of(self, number: int) -> list[tuple[float, float]]:
        """Return from when to when, in seconds since the start, that publisher is at work."""
        spans: list[tuple[float, float]] = []
        begin_s, ratio = 0.0, 1.0
        changes = [change for change in self.schedule if change.producers_ratio is not None]
        for change in [*changes, None]:
            end_s = math.inf if change is None else self.sample_at_s(change.at_sample)
            if number < round(self.producers * ratio):
                if spans and spans[-1][1] == begin_s:
                    begin_s = spans.pop()[0]
                spans.append((begin_s, end_s))
            begin_s = end_s
            ratio = ratio if change is None or change.producers_ratio is None else change.producers_ratio
        return spans

    async def _publish(self, client: Client, session: AmqpSession, queue: QueueRef) -> None:
        client.follow(Gaps(self.gap_s, self.gap_deviation_s, self.spans_of(client.number), client.random))
        link, tally, stream = session.link, client.tally, str(client.number)
        padding = b"*" * (self.body_bytes - HEAD.size)
        for sequence in itertools.count():
            if not await client.pace():
                break
            while len(link.in_flight) >= self.in_flight or link.is_held_up:
                await link.news()

            def confirmed(_: int, sequence: int = sequence) -> None:
                tally.sent(stream, sequence)

            head = HEAD.pack(client.number, sequence, client.epoch_ns + client.intended_ns)
            client.counts.sent += 1
            session.publish(queue, head + padding, persistent=self.persistent, confirmed=confirmed)
        while link.in_flight:
            await link.news()


def _check_design(law: Mapping[str, Any]) -> None:
    wanted = {name: value for name, value in law.items() if name != "kind"}
    if wanted.pop("as", None) not in DESIGNS:
        raise ValueError(f"a designed law is made as one of {', '.join(DESIGNS)}; give that with `as`")
    for name, value in wanted.items():
        if name not in ("pole", "settling_samples", "overshoot") or not isinstance(value, int | float):
            raise ValueError(f"a designed law has a pole, or settling_samples and overshoot, not {name} = {value!r}")
