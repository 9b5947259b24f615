"""An adaptive consumer over AMQP: publishers fill a queue by a schedule, and a control loop consumes it.

The settings of its loop are in `adaptive_loop`. The consumer is in `adaptive_client`, the gains from an earlier
experiment in `tuning`: both need optional packages.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from flyball.errors import LabError
from flyball.lab.drivers import AmqpSession, QueueRef, Target
from flyball.lab.workloads.adaptive_loop import AdaptiveLoop
from flyball.lab.workloads.arrivals import Gaps
from flyball.lab.workloads.client import Client
from flyball.lab.workloads.stream import HEAD, PRODUCER
from flyball.lab.workloads.workload import EarlierRun, ProtocolName

ADAPTIVE = "adaptive"
PACKAGES = ("aio_pika", "control", "scipy")


class Adaptive(AdaptiveLoop):
    """One consumer of one queue, in a process of its own, and many publishers that do not wait for confirms.

    Only deliveries are recorded as calls: the consumer's deliveries are what is studied, and a small part of all
    published messages.
    """

    protocols: ClassVar[tuple[str, ...]] = ("amqp",)
    needs_messages: ClassVar[bool] = True
    shared_queues: ClassVar[tuple[str, ...]] = ("adaptive",)
    least_workers: ClassVar[int] = 2

    kind: Literal["adaptive"] = "adaptive"
    protocol: ProtocolName = "amqp"

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
        # The consumer has its own process: publishers would delay it.
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
        """Return the law with its gains as `law_used`, its `plant` and the `certificate`, if any."""
        if self.signal != "closed":
            return {}
        self.check_packages()
        # Imported lazily: it is slow, and needs packages that may not be installed.
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
        # Imported lazily: it needs packages that may not be installed.
        from flyball.lab.adaptive_client import adapt

        await adapt(self, client, queue)

    def spans_of(self, number: int) -> list[tuple[float, float]]:
        """Return the intervals, in seconds since the start, in which that publisher is active."""
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
