"""A stream over AMQP: producers publish with confirms, consumers receive messages and ack them."""

from __future__ import annotations

import asyncio
import struct
import time
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from flyball.errors import LabError
from flyball.lab.drivers import AmqpSession, QueueRef
from flyball.lab.drivers.amqp import AmqpLink
from flyball.lab.workloads.client import Client
from flyball.lab.workloads.paced import PacedWorkload
from flyball.lab.workloads.workload import ProtocolName, Seconds
from flyball.trace.schema import Kind

PRODUCER, CONSUMER = "producer", "consumer"
# Start of a body: the producer's number, the message's, and its scheduled send time (ns since 1970).
HEAD = struct.Struct(">qqq")
# Messages of a producer without a pause before others get a turn.
BREATH = 64


class Stream(PacedWorkload):
    """Producers and consumers use the queues of their target in turn. Rates and think times are for producers."""

    protocols: ClassVar[tuple[str, ...]] = ("amqp",)
    needs_messages: ClassVar[bool] = True

    kind: Literal["stream"] = "stream"
    protocol: ProtocolName = "amqp"
    producers: Annotated[int, Field(ge=1)] = 1
    consumers: Annotated[int, Field(ge=1)] = 1
    queues: Annotated[int, Field(ge=1)] = 1
    body_bytes: Annotated[int, Field(ge=HEAD.size)] = 100
    persistent: bool = True
    # Maximum number of a producer's unconfirmed messages.
    in_flight: Annotated[int, Field(ge=1)] = 100
    # Maximum number of a consumer's unacked messages; 0 means any number.
    prefetch: Annotated[int, Field(ge=0, le=65535)] = 100
    # Each message separately, all that were received together with one ack, or no_ack.
    acks: Literal["single", "multiple", "none"] = "single"
    # Duration of a consumer's simulated handler.
    handler_time_s: Seconds = 0.0

    def queue_names(self) -> tuple[str, ...]:
        return tuple(f"stream_{number}" for number in range(self.queues))

    @property
    def client_count(self) -> int:
        return self.producers + self.consumers

    @property
    def drains(self) -> bool:
        return True

    def role_of(self, number: int) -> str:
        return PRODUCER if number < self.producers else CONSUMER

    def listens(self, client: Client) -> bool:
        return client.role == CONSUMER

    def check(self, target_count: int) -> None:
        for place in range(target_count):
            roles = [self.role_of(number) for number in self.numbers_at(place, target_count)]
            if roles.count(CONSUMER) < self.queues:
                raise LabError("workload.consumers of stream is wrong: every queue of every target needs one of them")

    async def behave(self, client: Client) -> None:
        assert isinstance(client.session, AmqpSession)
        queue = client.queue(f"stream_{self.peers(client).index(client.number) % self.queues}")
        if client.role == PRODUCER:
            await self._produce(client, client.session, queue)
        else:
            await self._consume(client, client.session, queue)

    async def _produce(self, client: Client, session: AmqpSession, queue: QueueRef) -> None:
        client.follow(self.arrivals_of(client, client.number, self.producers))
        link = session.link
        padding = b"*" * (self.body_bytes - HEAD.size)
        sequence = 0
        while await client.pace():
            while len(link.in_flight) >= self.in_flight or link.is_held_up:
                await link.news()
            intended_ns = client.intended_ns or time.perf_counter_ns()
            head = HEAD.pack(client.number, sequence, client.epoch_ns + intended_ns)
            confirmed = _Confirmed(client, queue, self.body_bytes, sequence, intended_ns)
            client.counts.sent += 1
            confirmed.sent_ns = session.publish(
                queue, head + padding, persistent=self.persistent, confirmed=confirmed
            )
            sequence += 1
            if sequence % BREATH == 0:
                await asyncio.sleep(0)
        while link.in_flight:
            await link.news()

    async def _consume(self, client: Client, session: AmqpSession, queue: QueueRef) -> None:
        link = session.link
        client.at_next_stage(link.wake)
        await session.consume(queue, self.prefetch, no_ack=self.acks == "none")
        while not client.finishing:
            if not link.deliveries:
                await link.news()
            await self._handle_all(client, link, queue)
        # Everything is received: a message that is ready, or delivered, now is a duplicate.
        left = await session.waiting_in(queue)
        await self._handle_all(client, link, queue)
        if left:
            client.fail(f"{left} messages are left in the queue when all should have come")

    async def _handle_all(self, client: Client, link: AmqpLink, queue: QueueRef) -> None:
        last = None
        while link.deliveries:
            delivery = link.deliveries.popleft()
            note_delivery(client, queue, delivery.body, delivery.received_ns, self.body_bytes, self.producers)
            if self.handler_time_s:
                await client.pause(self.handler_time_s)
            if self.acks == "single":
                link.ack(delivery.tag, multiple=False)
            last = delivery
        if self.acks == "multiple" and last is not None:
            link.ack(last.tag, multiple=True)


class _Confirmed:
    """Records the confirm of one message."""

    __slots__ = ("_client", "_intended_ns", "_queue", "_sequence", "_size_bytes", "sent_ns")

    def __init__(self, client: Client, queue: QueueRef, size_bytes: int, sequence: int, intended_ns: int) -> None:
        self._client = client
        self._queue = queue
        self._size_bytes = size_bytes
        self._sequence = sequence
        self._intended_ns = intended_ns
        self.sent_ns = 0

    def __call__(self, now_ns: int) -> None:
        client = self._client
        client.tally.sent(str(client.number), self._sequence)
        client.record(Kind.PUT, self._queue, self._size_bytes, self._intended_ns, self.sent_ns, now_ns)


def note_delivery(
    client: Client, queue: QueueRef, body: bytes, received_ns: int, body_bytes: int, producer_count: int
) -> None:
    """Record a delivery. Raises LabError if the message was never sent, or is a duplicate."""
    if len(body) != body_bytes:
        client.fail(f"a message of {len(body)} bytes, which was never sent: {body[:50]!r}")
    producer, sequence, intended_ns = HEAD.unpack_from(body)
    if not 0 <= producer < producer_count or sequence < 0:
        client.fail(f"a message that was never sent: {body[:50]!r}")
    client.counts.received += 1
    if not client.tally.received(str(producer), sequence):
        client.fail(f"message {sequence} of client {producer} was duplicated")
    sent_ns = intended_ns - client.epoch_ns
    client.record(Kind.DELIVER, queue, len(body), sent_ns, sent_ns, received_ns)
