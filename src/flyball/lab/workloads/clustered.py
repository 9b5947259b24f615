"""Clients of one queue as in the Selfware report: producers and consumers that commit after every message.

They join together or one by one, on the nodes where they are placed. Independent of how the queue is implemented.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr

from flyball.errors import LabError
from flyball.lab.domains import create_cluster, placed
from flyball.lab.drivers import AmqpSession, QueueRef, Target, connect_amqp
from flyball.lab.workloads.client import Client
from flyball.lab.workloads.stream import HEAD, note_delivery
from flyball.lab.workloads.workload import ProtocolName, Seconds, Workload
from flyball.trace.schema import Kind

PRODUCER, CONSUMER = "producer", "consumer"
QUEUE = "queue"
# Polling interval of a consumer that found no message.
LOOK_AGAIN_S = 0.005


class Clustered(Workload):
    """Producers that publish and commit, and consumers that take, ack and commit, one message per transaction."""

    protocols: ClassVar[tuple[str, ...]] = ("amqp",)
    needs_messages: ClassVar[bool] = True

    kind: Literal["clustered"] = "clustered"
    protocol: ProtocolName = "amqp"
    producers: Annotated[int, Field(ge=1)] = 1
    consumers: Annotated[int, Field(ge=1)] = 1
    # Messages that each producer sends, and all consumers share; 0 means any number until the run stops.
    messages: Annotated[int, Field(ge=0)] = 0
    body_bytes: Annotated[int, Field(ge=HEAD.size)] = 1024
    persistent: bool = True
    # Whether a consumer requests each message, as with JMS, or receives the next one after each commit.
    receive: Literal["get", "consume"] = "get"
    # Whether consumers start when all messages are in the queue.
    fills_first: bool = False
    # Interval between clients that connect; 0 connects all together.
    join_every_s: Seconds = 0.0
    # Where clients connect: to the nodes in turn; to a random one, as JORAM's own clients do; or where the domain's
    # manager places them.
    placement: Literal["number", "standard", "optimised"] = "number"

    # Number of producers of this process that are still publishing.
    _filling: int = PrivateAttr(0)

    def model_post_init(self, context: Any) -> None:
        self._filling = self.producers

    def queue_names(self) -> tuple[str, ...]:
        return (QUEUE,)

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
        if self.fills_first and not self.messages:
            raise LabError("workload.fills_first of clustered is wrong: it needs `messages`, the number to fill in")

    def numbers_of_workers(self, worker_count: int) -> list[Sequence[int]]:
        # Only clients of one process know when all producers are done.
        return [range(self.client_count)] if self.fills_first else super().numbers_of_workers(worker_count)

    def join_order(self) -> list[int]:
        """Return the clients in order of joining, such that the ratio of the roles stays about constant."""
        places = [(number / self.producers, number) for number in range(self.producers)]
        places += [((number + 0.5) / self.consumers, self.producers + number) for number in range(self.consumers)]
        return [number for _, number in sorted(places)]

    def share_of(self, number: int) -> int:
        """Return the number of messages for that consumer in total; 0 means any number."""
        place, total = number - self.producers, self.messages * self.producers
        return total // self.consumers + (place < total % self.consumers)

    async def set_up(self, targets: Sequence[Target]) -> dict[str, Any]:
        """Create the queue: in a domain a clustered one that all clients share."""
        first = targets[0]
        if first.cluster is None:
            if self.placement != "number" or (self.messages and len(targets) > 1):
                raise LabError("workload.placement and messages of several nodes need a target of the kind domain")
            made = await super().set_up(targets)
        else:
            self.check(len(targets))
            name = f"{QUEUE}_{secrets.token_hex(3)}"
            await create_cluster(targets, name)
            addresses = {str(number): number + 1 for number in range(self.client_count)}
            made = {"queues": {target.name: {QUEUE: name} for target in targets}, "addresses": addresses}
        return {**made, "targets": {target.name: target.model_dump() for target in targets}}

    async def behave(self, client: Client) -> None:
        await client.pause(self.join_order().index(client.number) * self.join_every_s)
        while self.fills_first and client.role == CONSUMER and self._filling and not client.finishing:
            await client.pause(LOOK_AGAIN_S)
        if client.finishing or (client.stopping and client.role == PRODUCER):
            return
        session = await self._connect(client)
        try:
            if client.role == PRODUCER:
                await self._produce(client, session, client.queue(QUEUE))
                self._filling -= 1
            elif self.receive == "get":
                await self._ask(client, session, client.queue(QUEUE))
            else:
                await self._listen(client, session, client.queue(QUEUE))
        finally:
            await session.close()

    async def _connect(self, client: Client) -> AmqpSession:
        targets = {name: Target.model_validate(facts) for name, facts in client.set_up["targets"].items()}
        target = targets[client.target]
        if self.placement == "standard":
            target = client.random.choice(list(targets.values()))
        elif self.placement == "optimised":
            target = await placed(list(targets.values()), str(client.queue(QUEUE)), client.role)
        return await connect_amqp(target, is_transactional=True)

    async def _produce(self, client: Client, session: AmqpSession, queue: QueueRef) -> None:
        padding = b"*" * (self.body_bytes - HEAD.size)
        sequence = 0
        while not client.stopping and (not self.messages or sequence < self.messages):
            intended_ns = time.perf_counter_ns()
            head = HEAD.pack(client.number, sequence, client.epoch_ns + intended_ns)
            client.counts.sent += 1
            session.publish(queue, head + padding, persistent=self.persistent, confirmed=_ignored)
            await session.link.commit()
            client.tally.sent(str(client.number), sequence)
            client.record(Kind.PUT, queue, self.body_bytes, intended_ns, intended_ns, time.perf_counter_ns())
            sequence += 1

    async def _ask(self, client: Client, session: AmqpSession, queue: QueueRef) -> None:
        """Consume by polling, as JMS does: get a message, handle it, commit."""
        taken = 0
        while self._goes_on(client, taken):
            found = await session.get(queue)
            if found is None:
                await client.pause(LOOK_AGAIN_S)
                continue
            tag, body = found
            self._note(client, queue, body)
            session.link.ack(tag, multiple=False)
            await session.link.commit()
            taken += 1

    async def _listen(self, client: Client, session: AmqpSession, queue: QueueRef) -> None:
        """Consume with basic.consume: the next message is delivered after the commit of this one."""
        link = session.link
        client.at_next_stage(link.wake)
        await session.consume(queue, 1, no_ack=False)
        taken = 0
        while self._goes_on(client, taken):
            if not link.deliveries:
                await link.news()
                continue
            delivery = link.deliveries.popleft()
            self._note(client, queue, delivery.body)
            link.ack(delivery.tag, multiple=False)
            await link.commit()
            taken += 1

    def _goes_on(self, client: Client, taken: int) -> bool:
        return not client.finishing and (not self.messages or taken < self.share_of(client.number))

    def _note(self, client: Client, queue: QueueRef, body: bytes) -> None:
        note_delivery(client, queue, body, time.perf_counter_ns(), self.body_bytes, self.producers)


def _ignored(now_ns: int) -> None:
    """Ignore publisher confirms: only commits count."""
