"""Producers that wait for confirms and consumers that have their acknowledgements answered, on whatever node answers.

They note all requests and answers. When anything fails they connect to another node and start again there.
"""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import aio_pika
from aio_pika.abc import AbstractIncomingMessage
from aio_pika.exceptions import AMQPError, DeliveryError
from aiormq.exceptions import AMQPError as LowerAMQPError
from yarl import URL

from flyball.client import Client, ConnectionFactory, Delivery, LeaseLost
from flyball.client.errors import NotSent
from flyball.errors import FlyballError
from flyball.lab.history import Kind, Recorder

# A client that receives nothing for this time connects to another node.
ANSWER_LIMIT_S = 4.0
# Between two attempts to connect.
PAUSE_S = 0.2
HEARTBEAT_S = 2
PREFETCH = 20
# Acknowledgements per request.
MOST_ACKS = 10
# An answer is noted with this delay: what was delivered before it must have been read by then, whichever
# connection it came through. What comes twice in between is found by its second answer.
LATE_S = 0.3
# And after this number of turns of the loop, in each of which all that has come moves one step from the wire to the
# consumer: a process that the machine has let wait finds the answer and what came before it at the same time.
LATE_TURNS = 30

for _library in ("aio_pika", "aiormq"):
    # Broken connections are what this is about: their log lines are of no use.
    logging.getLogger(_library).setLevel(logging.CRITICAL)

# What a connection that breaks may raise, in this library or that.
Broken = (
    AMQPError,
    LowerAMQPError,
    FlyballError,
    OSError,
    EOFError,
    TimeoutError,
    asyncio.CancelledError,
    asyncio.InvalidStateError,
    RuntimeError,
)


@dataclass(frozen=True, slots=True)
class Ground:
    """State that all clients share."""

    recorder: Recorder
    # Where nodes are, by protocol.
    addresses: Callable[[str], Sequence[str]]
    # Whether redeliveries and the order of a queue are checked: of a clustered one the members are not visible here,
    # nor what they hand to each other.
    is_marked: Callable[[str], bool]

    def acked(self, producer: str, number: int, who: str) -> None:
        """Note an answered acknowledgement, when everything that came before it was read."""
        loop = asyncio.get_running_loop()

        def note_after(turns: int) -> None:
            if turns:
                loop.call_soon(note_after, turns - 1)
            else:
                self.recorder.note(Kind.ACKED, producer, number, who=who)

        loop.call_later(LATE_S, note_after, LATE_TURNS)


class Worker(ABC):
    """A client that works in sessions, each on a node of its choice, until `stop`."""

    protocol: str

    def __init__(self, ground: Ground, name: str, queue: str, seed: int) -> None:
        self.ground = ground
        self.name = name
        self.queue = queue
        self.chance = random.Random(seed)
        self.is_over = asyncio.Event()
        self.sessions = 0
        self.last_error = ""

    @property
    def session(self) -> str:
        """The name of what it does on this connection: order holds within it."""
        return f"{self.name}.{self.sessions}"

    async def run(self) -> None:
        while not self.is_over.is_set():
            self.sessions += 1
            address = self.chance.choice(self.ground.addresses(self.protocol))
            try:
                await self.work(address)
            except Broken as error:
                current = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and current is not None and current.cancelling():
                    raise
                self.last_error = f"{type(error).__name__}: {error}"
            if not self.is_over.is_set():
                await asyncio.sleep(self.chance.uniform(0, PAUSE_S))

    @abstractmethod
    async def work(self, address: str) -> None:
        """Connect there and work until something breaks or all is over."""


class Producer(Worker):
    """Publishes some messages at a time and waits for all their answers."""

    pause_s = 0.05

    async def publish_some(self, publish: Callable[[bytes], asyncio.Future[None] | asyncio.Task[None]]) -> None:
        """Publish, note what is answered, and rest. Raises what broke, when all outcomes are noted."""
        recorder, session = self.ground.recorder, self.session
        answers = {}
        for _ in range(self.chance.randrange(1, 6)):
            number = recorder.publish(session, self.queue)
            answers[number] = publish(f"{session} {number}".encode())
        await asyncio.wait(answers.values(), timeout=ANSWER_LIMIT_S)
        broken: BaseException | None = None
        for number, answer in answers.items():
            if not answer.done():
                answer.cancel()
                recorder.note(Kind.UNKNOWN, session, number)
                broken = TimeoutError("no confirm")
            elif answer.cancelled():
                recorder.note(Kind.UNKNOWN, session, number)
                broken = ConnectionError("the connection ended")
            elif (error := answer.exception()) is None:
                recorder.note(Kind.CONFIRMED, session, number)
            else:
                refused = isinstance(error, DeliveryError | NotSent)
                recorder.note(Kind.REFUSED if refused else Kind.UNKNOWN, session, number)
                broken = error
        if broken is not None:
            raise broken
        await asyncio.sleep(self.chance.uniform(0, 2 * self.pause_s))


class Consumer(Worker):
    """Acks what it is delivered."""

    def delivered(self, body: bytes, is_redelivered: bool) -> tuple[str, int]:
        """Note a delivery; return the message."""
        producer, number = body.decode().split(" ")
        mark = is_redelivered if self.ground.is_marked(self.queue) else None
        self.ground.recorder.note(
            Kind.DELIVERED, producer, int(number), who=self.session, queue=self.queue, is_redelivered=mark
        )
        return producer, int(number)

    async def acknowledge(self, delivery: Delivery) -> None:
        """Note a delivery and ack it. AMQP answers no ack: a node that crashes may deliver the message again."""
        key = self.delivered(delivery.message.body, delivery.message.redelivered)
        self.ground.recorder.note(Kind.ACK, *key, who=self.session)
        try:
            await delivery.ack()
        except LeaseLost:
            self.ground.recorder.note(Kind.ACK_REFUSED, *key, who=self.session)


class AmqpProducer(Producer):
    protocol = "amqp"

    async def work(self, address: str) -> None:
        connection = await connect_amqp(address)
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                channel = await connection.channel()
            exchange = channel.default_exchange
            loop = asyncio.get_running_loop()

            def publish(body: bytes) -> asyncio.Task[None]:
                message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
                return loop.create_task(_published(exchange.publish(message, self.queue, mandatory=True)))

            while not self.is_over.is_set():
                await self.publish_some(publish)
        finally:
            await _close(connection)


async def _published(publishing: object) -> None:
    await publishing  # type: ignore[misc]


class AmqpConsumer(Consumer):
    """Acknowledges in transactions: AMQP answers nothing else."""

    protocol = "amqp"
    # How long it rests after a transaction.
    pause_s = 0.0

    async def work(self, address: str) -> None:
        connection = await connect_amqp(address)
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                channel = await connection.channel(publisher_confirms=False)
                await channel.set_qos(prefetch_count=PREFETCH)
                await channel.transaction().select()
                queue = await channel.get_queue(self.queue, ensure=False)
                arrived: asyncio.Queue[tuple[AbstractIncomingMessage, tuple[str, int]] | None] = asyncio.Queue()

                async def take(message: AbstractIncomingMessage) -> None:
                    arrived.put_nowait((message, self.delivered(message.body, bool(message.redelivered))))

                await queue.consume(take)
            for closable in (connection, channel):
                closable.close_callbacks.add(lambda *_: arrived.put_nowait(None))
            lower = await channel.get_underlay_channel()
            while not self.is_over.is_set():
                first = await _next(arrived, self.is_over)
                if first is None:
                    return
                batch = [first]
                while len(batch) < MOST_ACKS and not arrived.empty():
                    if (message := arrived.get_nowait()) is not None:
                        batch.append(message)
                for _, key in batch:
                    self.ground.recorder.note(Kind.ACK, *key, who=self.session)
                async with asyncio.timeout(ANSWER_LIMIT_S):
                    for incoming, _ in batch:
                        assert incoming.delivery_tag is not None
                        await lower.basic_ack(incoming.delivery_tag)
                    await lower.tx_commit()
                for _, key in batch:
                    self.ground.acked(*key, self.session)
                await asyncio.sleep(self.pause_s)
        finally:
            await _close(connection)


class LazyAmqpConsumer(AmqpConsumer):
    """Leaves a member of a clustered queue with more messages than it may hold: they have to go to others."""

    pause_s = 0.5


class PythonProducer(Producer):
    protocol = "amqp"

    async def work(self, address: str) -> None:
        async with Client.connect(address, time_limit_s=ANSWER_LIMIT_S) as client:
            loop = asyncio.get_running_loop()

            def publish(body: bytes) -> asyncio.Task[None]:
                return loop.create_task(_published(client.put(self.queue, body)))

            while not self.is_over.is_set():
                await self.publish_some(publish)


class PythonConsumer(Consumer):
    protocol = "amqp"

    async def work(self, address: str) -> None:
        async with (
            Client.connect(address, time_limit_s=ANSWER_LIMIT_S) as client,
            client.consume(self.queue, prefetch=PREFETCH) as consumer,
        ):
            while not self.is_over.is_set():
                delivery = await consumer.next(1.0)
                if delivery is None:
                    # A client that is cut off in silence would wait forever.
                    await client.ping()
                    continue
                await self.acknowledge(delivery)


class FactoryProducer(Producer):
    """Is sent to a node by the manager, and moves when asked."""

    protocol = "amqp"

    async def work(self, address: str) -> None:
        async with await self.factory().connect("producer", self.queue) as producer:
            loop = asyncio.get_running_loop()

            def publish(body: bytes) -> asyncio.Task[None]:
                return loop.create_task(_published(producer.send(body)))

            while not self.is_over.is_set():
                await self.publish_some(publish)

    def factory(self) -> ConnectionFactory:
        # What is sent twice is there twice, which no checker could distinguish from what was doubled.
        return ConnectionFactory(*self.ground.addresses(self.protocol), resend=False, time_limit_s=ANSWER_LIMIT_S)


class FactoryConsumer(Consumer):
    """Is sent to a node by the manager, moves when asked, and looks for another node by itself."""

    protocol = "amqp"

    async def work(self, address: str) -> None:
        addresses = self.ground.addresses(self.protocol)
        factory = ConnectionFactory(*addresses, time_limit_s=ANSWER_LIMIT_S)
        async with await factory.connect("consumer", self.queue, prefetch=PREFETCH) as consumer:
            while not self.is_over.is_set():
                delivery = await consumer.receive(1.0)
                if delivery is not None:
                    await self.acknowledge(delivery)


async def connect_amqp(address: str) -> aio_pika.abc.AbstractConnection:
    """Connect to a node. Raises one of Broken."""
    url = f"amqp://guest:guest@{address}/?heartbeat={HEARTBEAT_S}"
    connection = aio_pika.Connection(URL(url))
    try:
        async with asyncio.timeout(ANSWER_LIMIT_S):
            await connection.connect()
    except BaseException:
        await _close(connection)
        raise
    return connection


async def _close(connection: aio_pika.abc.AbstractConnection) -> None:
    try:
        async with asyncio.timeout(1.0):
            await connection.close()
    except Broken:
        pass


async def _next(
    arrived: asyncio.Queue[tuple[AbstractIncomingMessage, tuple[str, int]] | None], is_over: asyncio.Event
) -> tuple[AbstractIncomingMessage, tuple[str, int]] | None:
    """Return the next message; None when the connection has ended or all is over."""
    while not is_over.is_set():
        try:
            async with asyncio.timeout(0.5):
                return await arrived.get()
        except TimeoutError:
            continue
    return None
