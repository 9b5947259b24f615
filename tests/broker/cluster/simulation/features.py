"""Queues with features of their own and clients of them: transactions, dead letters, lifetimes, priorities, limits.

Used by the simulation and by bench.chaos. All messages are persistent and all queues durable, and what expires, is
rejected or does not fit goes to a queue of dead letters: every confirmed message is acknowledged in the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flyball.broker.wire import amqp as wire
from flyball.lab.history import Kind
from tests.broker.cluster.simulation.clients import (
    AmqpConnection,
    AmqpProducer,
    AttentiveConsumer,
    Broken,
    PlainConsumer,
    Troubles,
    Worker,
    key_of,
)

REQUESTS, REPLIES = "requests", "replies"
DYING, DEAD, BURIED = "dying", "dead", "buried"
FULL, SPILLED, REFUSING, RANKED, PLAIN_ACKS = "full", "spilled", "refusing", "ranked", "plain-acks"
LARGEST_COUNT = (1 << 63) - 1


class FeatureConsumer(AttentiveConsumer):
    """Acknowledges in transactions."""

    # Whether its queue keeps the order of a producer's messages, and marks those that come again.
    is_ordered = True

    def delivered(self, body: bytes, is_redelivered: bool) -> tuple[str, int]:
        if self.is_ordered:
            return super().delivered(body, is_redelivered)
        producer, number = key_of(body)
        self.ground.recorder.note(Kind.DELIVERED, producer, number, who=self.session, queue=self.queue)
        return producer, number


class Forwarder(FeatureConsumer):
    """Publishes a reply to each request, in one transaction with the acknowledgements."""

    transactions = 0

    async def deal_with(self, connection: AmqpConnection, held: dict[int, tuple[str, int]]) -> None:
        recorder, session = self.ground.recorder, self.session
        tags, keys = self.take_some(held)
        self.transactions += 1
        transaction = f"{session}/{self.transactions}"
        replies = [recorder.publish(session, REPLIES, transaction) for _ in keys]
        for key in keys:
            recorder.note(Kind.ACK, *key, who=session, transaction=transaction)
        for number in replies:
            connection.send_message(REPLIES, f"{session} {number}".encode())
        for tag in tags:
            connection.send(wire.BasicAck(1, tag, False))
        try:
            await connection.ask(wire.TxCommit(1), wire.TxCommitOk)
        except Troubles:
            for number in replies:
                recorder.note(Kind.UNKNOWN, session, number)
            raise
        for number in replies:
            recorder.note(Kind.CONFIRMED, session, number, transaction=transaction)
        for key in keys:
            self.ground.acked(*key, session)


class DyingProducer(AmqpProducer):
    """Publishes messages that expire, some with a history of deaths that is as long as a number can say."""

    def properties(self) -> bytes:
        chance = self.chance
        expiration = str(chance.randrange(0, 200)) if chance.random() < 0.3 else None
        headers = None
        if chance.random() < 0.1:
            reason = chance.choice(("expired", "rejected"))
            death: wire.Value = {
                "queue": self.queue,
                "reason": reason,
                "exchange": "",
                "routing-keys": [self.queue],
                "count": LARGEST_COUNT,
            }
            headers = wire.write_table({"x-death": [death]})
        return wire.Properties(delivery_mode=2, expiration=expiration, headers=headers).encode()


class RankedProducer(AmqpProducer):
    """Publishes messages of different priorities."""

    def properties(self) -> bytes:
        return wire.Properties(delivery_mode=2, priority=self.chance.randrange(0, 8)).encode()


class UnorderedConsumer(FeatureConsumer):
    """Consumes where messages do not come in the order in which they were published."""

    is_ordered = False


class SlowConsumer(UnorderedConsumer):
    """Lets its queue become full."""

    async def deal_with(self, connection: AmqpConnection, held: dict[int, tuple[str, int]]) -> None:
        await super().deal_with(connection, held)
        await self.rest(1.0)


class RejectingConsumer(UnorderedConsumer):
    """Rejects all that it gets, with requeue or without."""

    has_transactions = False

    async def deal_with(self, connection: AmqpConnection, held: dict[int, tuple[str, int]]) -> None:
        tags, _ = self.take_some(held)
        for tag in tags:
            connection.send(wire.BasicReject(1, tag, self.chance.random() < 0.3))
        await connection.ask(wire.BasicQos(1, 0, 10, False), wire.BasicQosOk)


class DeadLetterConsumer(UnorderedConsumer):
    """Consumes dead letters."""

    def delivered(self, body: bytes, is_redelivered: bool) -> tuple[str, int]:
        self.ground.recorder.note(Kind.DEAD_LETTERED, *key_of(body), queue=self.queue)
        return super().delivered(body, is_redelivered)


class CrashingConsumer(UnorderedConsumer):
    """Goes without a word now and then, between its acknowledgements and their commit or before them."""

    async def deal_with(self, connection: AmqpConnection, held: dict[int, tuple[str, int]]) -> None:
        if self.chance.random() < 0.1:
            if self.chance.random() < 0.5:
                for tag in held:
                    connection.send(wire.BasicAck(1, tag, False))
            raise Broken("the consumer has crashed")
        await super().deal_with(connection, held)


def dead_letters_to(queue: str) -> dict[str, Any]:
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}


@dataclass(frozen=True, slots=True)
class Feature:
    """A queue and its clients."""

    queue: str
    clients: tuple[type[Worker], ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)


# What a run may have besides ordinary and clustered queues, by what it is about.
GROUPS: dict[str, tuple[Feature, ...]] = {
    "transactions": (Feature(REQUESTS, (AmqpProducer, Forwarder)), Feature(REPLIES, (FeatureConsumer,))),
    "dead letters": (
        Feature(DYING, (DyingProducer, RejectingConsumer), {"x-message-ttl": 400, **dead_letters_to(DEAD)}),
        Feature(DEAD, (), {"x-message-ttl": 100, **dead_letters_to(BURIED)}),
        Feature(BURIED, (DeadLetterConsumer,)),
    ),
    "drop head": (
        Feature(FULL, (AmqpProducer, SlowConsumer), {"x-max-length": 10, **dead_letters_to(SPILLED)}),
        Feature(SPILLED, (DeadLetterConsumer,)),
    ),
    "refuse": (
        Feature(REFUSING, (AmqpProducer, SlowConsumer), {"x-max-length": 10, "x-overflow": "reject-publish"}),
    ),
    "priorities": (Feature(RANKED, (RankedProducer, CrashingConsumer), {"x-max-priority": 5}),),
    "plain acks": (Feature(PLAIN_ACKS, (AmqpProducer, PlainConsumer)),),
}


def features_of(seed: int, groups: int) -> list[Feature]:
    """Return the queues of some groups: seeds take turns, so that a few in a row have all of them."""
    names = sorted(GROUPS)
    chosen = [names[(seed + number) % len(names)] for number in range(groups)]
    return [feature for name in chosen for feature in GROUPS[name]]
