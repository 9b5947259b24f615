"""Clients of a simulated domain. They record all requests and answers, and reconnect elsewhere when anything breaks.

They speak through Flyball's own codec.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, cast

from flyball.broker.core.placement import Place, PlaceRequest, Role
from flyball.broker.protocols.amqp.placement import PLACEMENT
from flyball.broker.wire import amqp as wire
from flyball.errors import FlyballError
from flyball.lab.history import Kind, Recorder
from tests.broker.cluster.simulation.network import HOST

ANSWER_LIMIT_S = 4.0
PAUSE_S = 0.3
PREFETCH = 10
MOST_ACKS = 6
LEAVING_S = 1.0
# An answer is recorded this long after it came: what was sent before it has arrived by then, on every connection.
LATE_S = 0.6

# A consumer that receives nothing for this long asks whether its node is still there.
SILENCE_S = 2.0

# The tag of consumers that say which session a connection serves.
PLACED = "placed"

CAPABILITIES: dict[str, Any] = {
    "capabilities": {"publisher_confirms": True, "basic.nack": True, "consumer_cancel_notify": True}
}
PERSISTENT = wire.Properties(delivery_mode=2).encode()
FRAME_MAX = 131_072


class Broken(Exception):
    """The connection, the channel or the consumer has ended."""


Troubles = (Broken, FlyballError, OSError, TimeoutError)


async def nowhere(address: str, request: PlaceRequest) -> Place:
    """Refuse to place a client."""
    raise Broken("nobody places clients here")


@dataclass(frozen=True, slots=True)
class Ground:
    """Environment that all clients share."""

    recorder: Recorder
    # Where nodes are, by protocol.
    addresses: Callable[[str], Sequence[str]]
    # Source of a message just delivered from a queue: of a clustered one the member, None if it is unknown by now.
    source: Callable[[str, bytes], str | None]
    # Ask the node at an address where to go. Raises Broken if it does not say.
    place: Callable[[str, PlaceRequest], Awaitable[Place]] = nowhere

    def leaves(self, who: str) -> None:
        """A consumer goes: what is on its way to it may come to another one unmarked, and later than it should."""
        self.recorder.upheaval(Kind.DISTURBED, who)
        asyncio.get_running_loop().call_later(LEAVING_S, self.recorder.upheaval, Kind.CALM, who)

    def acked(self, producer: str, number: int, who: str) -> None:
        note = self.recorder.note
        asyncio.get_running_loop().call_later(LATE_S, lambda: note(Kind.ACKED, producer, number, who=who))


def key_of(body: bytes) -> tuple[str, int]:
    """Return the producer that published a message, and its number."""
    producer, number = body.decode().split(" ")
    return producer, int(number)


class Worker(ABC):
    """A client that works in sessions, each on a node of its choice, until it is stopped."""

    protocol = "amqp"

    def __init__(self, ground: Ground, name: str, queue: str, seed: int) -> None:
        self.ground = ground
        self.name = name
        self.queue = queue
        self.chance = Random(seed)
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
            addresses = self.ground.addresses(self.protocol)
            try:
                if addresses:
                    await self.work(self.choose(addresses))
            except Troubles as error:
                self.last_error = f"{type(error).__name__}: {error}"
            if isinstance(self, Consumer):
                self.ground.leaves(self.session)
            if not self.is_over.is_set():
                await asyncio.sleep(self.chance.uniform(0, PAUSE_S))

    @property
    def is_leaving(self) -> bool:
        """Whether to go on elsewhere, or not at all."""
        return self.is_over.is_set()

    async def arrived(self, connection: AmqpConnection) -> None:  # noqa: B027
        """Announce the session, where that matters."""

    async def leaves(self, connection: AmqpConnection) -> None:  # noqa: B027
        """Announce that the session will not resume, where that matters."""

    def choose(self, addresses: Sequence[str]) -> str:
        """Return which of the nodes to go to."""
        return self.chance.choice(addresses)

    async def rest(self, most_s: float) -> None:
        """Do nothing for a while, unless it is time to stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.chance.uniform(0, most_s)):
                await self.is_over.wait()

    @abstractmethod
    async def work(self, address: str) -> None:
        """Connect there and work until something breaks or all is over."""


class AmqpConnection(asyncio.Protocol):
    """One connection with one channel."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.on_delivery: Callable[[wire.BasicDeliver], None] = lambda delivery: None
        # Receives the deliveries of the consumer PLACED.
        self.on_placement: Callable[[wire.BasicDeliver], None] = lambda delivery: None
        self.confirms: dict[int, asyncio.Future[bool]] = {}
        self._published = 0
        self._decoder = wire.Decoder(FRAME_MAX, 1 << 20, from_server=True)
        self._awaited: deque[tuple[type[Any], asyncio.Future[Any]]] = deque()
        self._ended = ""
        self.is_ended = asyncio.Event()

    async def open(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(ANSWER_LIMIT_S):
            await loop.create_connection(lambda: self, HOST, int(address.rpartition(":")[2]))
            self._write(wire.PROTOCOL_HEADER)
            await self._expect(wire.ConnectionStart)
            start = wire.ConnectionStartOk(0, CAPABILITIES, "PLAIN", b"\0guest\0guest", "en_US")
            await self.ask(start, wire.ConnectionTune)
            self.send(wire.ConnectionTuneOk(0, 10, FRAME_MAX, 0))
            await self.ask(wire.ConnectionOpen(0, "/"), wire.ConnectionOpenOk)
            await self.ask(wire.ChannelOpen(1), wire.ChannelOpenOk)

    def close(self) -> None:
        self.end("it was closed")

    def send(self, method: wire.Method) -> None:
        self._write(method.encode())

    async def ask(self, method: wire.Method, kind: type[Any]) -> Any:
        self.send(method)
        async with asyncio.timeout(ANSWER_LIMIT_S):
            return await self._expect(kind)

    def publish(self, queue: str, body: bytes, properties: bytes = PERSISTENT) -> asyncio.Future[bool]:
        """Publish a message; the future says whether it is confirmed."""
        if self._ended:
            raise Broken(self._ended)
        self.send_message(queue, body, properties)
        self._published += 1
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.confirms[self._published] = answer
        return answer

    def send_message(self, queue: str, body: bytes, properties: bytes = PERSISTENT) -> None:
        """Publish a message without a confirm of its own, as in a transaction."""
        method = wire.BasicPublish(1, "", queue, False, False)
        self._write(method.encode() + wire.encode_content(1, properties, body, FRAME_MAX))

    def end(self, why: str) -> None:
        if self._ended:
            return
        self._ended = why
        self.is_ended.set()
        if self.transport is not None:
            self.transport.abort()
        confirms, self.confirms = self.confirms, {}
        for answer in [*confirms.values(), *(answer for _, answer in self._awaited)]:
            if not answer.done():
                answer.set_exception(Broken(why))
                # The caller may have gone.
                answer.exception()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        if self._ended:
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.end(f"the connection was lost: {error}")

    def data_received(self, data: bytes) -> None:
        self._decoder.feed(data)
        while not self._ended and (command := self._decoder.next_command()) is not None:
            self._take(command)

    def _take(self, command: Any) -> None:
        if isinstance(command, wire.BasicDeliver):
            (self.on_placement if command.consumer_tag == PLACED else self.on_delivery)(command)
        elif isinstance(command, wire.BasicAck | wire.BasicNack):
            self._confirm(command.delivery_tag, command.multiple, isinstance(command, wire.BasicAck))
        elif isinstance(command, wire.ConnectionClose | wire.ChannelClose):
            self.end(f"{command.reply_code} {command.reply_text}")
        elif isinstance(command, wire.BasicCancel):
            self.end("the consumer was cancelled")
        elif self._awaited and isinstance(command, self._awaited[0][0]):
            _, answer = self._awaited.popleft()
            if not answer.done():
                answer.set_result(command)

    def _confirm(self, tag: int, multiple: bool, is_good: bool) -> None:
        tags = [one for one in self.confirms if one <= tag] if multiple else [tag]
        for one in tags:
            answer = self.confirms.pop(one, None)
            if answer is not None and not answer.done():
                answer.set_result(is_good)

    async def _expect(self, kind: type[Any]) -> Any:
        if self._ended:
            raise Broken(self._ended)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._awaited.append((kind, answer))
        return await answer

    def _write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)


class Producer(Worker):
    """Publishes some messages at a time and waits for all their answers."""

    pause_s = 0.8

    async def publish_some(self, publish: Callable[[bytes], asyncio.Future[Any]]) -> None:
        """Publish, note what is answered, and rest. Raises what broke, when all outcomes are noted."""
        recorder, session = self.ground.recorder, self.session
        answers: dict[int, asyncio.Future[Any]] = {}
        broken: BaseException | None = None
        # Now and then so many that a member has more than it may hold, and hands them to others.
        most = 60 if self.chance.random() < 0.1 else 6
        for _ in range(self.chance.randrange(1, most)):
            number = recorder.publish(session, self.queue)
            try:
                answers[number] = publish(f"{session} {number}".encode())
            except Broken as error:
                recorder.note(Kind.UNKNOWN, session, number)
                broken = error
                break
        if answers:
            await asyncio.wait(answers.values(), timeout=ANSWER_LIMIT_S)
        for number, answer in answers.items():
            broken = self._note(number, answer) or broken
        if broken is not None:
            raise broken
        await self.rest(2 * self.pause_s)

    def _note(self, number: int, answer: asyncio.Future[Any]) -> BaseException | None:
        recorder, session = self.ground.recorder, self.session
        if not answer.done():
            answer.cancel()
            recorder.note(Kind.UNKNOWN, session, number)
            return TimeoutError("no confirm")
        error = answer.exception()
        if error is None and answer.result() is not False:
            recorder.note(Kind.CONFIRMED, session, number)
            return None
        recorder.note(Kind.REFUSED if error is None else Kind.UNKNOWN, session, number)
        return error or Broken("it was refused")


class Consumer(Worker):
    """Acknowledges some messages at a time and waits for the answer."""

    def delivered(self, body: bytes, is_redelivered: bool) -> tuple[str, int]:
        """Note a delivery; return the message."""
        producer, number = key_of(body)
        source = self.ground.source(self.queue, body)
        self.ground.recorder.note(
            Kind.DELIVERED,
            producer,
            number,
            who=self.session,
            queue=source or self.queue,
            is_redelivered=None if source is None else is_redelivered,
        )
        return producer, number


class AmqpProducer(Producer):
    """Publishes with confirms."""

    async def work(self, address: str) -> None:
        connection = AmqpConnection()
        try:
            await connection.open(address)
            await self.arrived(connection)
            await connection.ask(wire.ConfirmSelect(1, False), wire.ConfirmSelectOk)
            while not self.is_leaving:
                await self.publish_some(lambda body: connection.publish(self.queue, body, self.properties()))
                if self.chance.random() < 0.03:
                    break
            await self.leaves(connection)
        finally:
            connection.close()

    def properties(self) -> bytes:
        """Return the properties of the next message."""
        return PERSISTENT


class AmqpConsumer(Consumer):
    """Acknowledges in transactions: AMQP answers nothing else. Sometimes it leaves with messages in its hands."""

    has_transactions = True

    async def work(self, address: str) -> None:
        connection = AmqpConnection()
        held: dict[int, tuple[str, int]] = {}
        arrived = asyncio.Event()

        def take(delivery: wire.BasicDeliver) -> None:
            held[delivery.delivery_tag] = self.delivered(delivery.body, delivery.redelivered)
            arrived.set()

        connection.on_delivery = take
        try:
            await connection.open(address)
            await self.arrived(connection)
            await connection.ask(wire.BasicQos(1, 0, PREFETCH, False), wire.BasicQosOk)
            if self.has_transactions:
                await connection.ask(wire.TxSelect(1), wire.TxSelectOk)
            consume = wire.BasicConsume(1, self.queue, "", False, False, False, False, {})
            await connection.ask(consume, wire.BasicConsumeOk)
            while not self.is_leaving:
                await self.await_some(connection, held, arrived)
                if self.chance.random() < 0.05:
                    await self.rest(1.0)
                if self.chance.random() < 0.02:
                    break
                if held:
                    await self.deal_with(connection, held)
            await self.leaves(connection)
        finally:
            connection.close()

    async def await_some(
        self, connection: AmqpConnection, held: dict[int, tuple[str, int]], arrived: asyncio.Event
    ) -> None:
        while not held and not self.is_leaving:
            arrived.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await arrived.wait()
            if connection.is_ended.is_set():
                raise Broken("the connection ended")

    def take_some(self, held: dict[int, tuple[str, int]]) -> tuple[list[int], list[tuple[str, int]]]:
        """Return tags and messages to deal with next; there may be others in their place before the answer comes."""
        tags = list(held)[:MOST_ACKS]
        return tags, [held.pop(tag) for tag in tags]

    async def deal_with(self, connection: AmqpConnection, held: dict[int, tuple[str, int]]) -> None:
        """Acknowledge some of the messages and note the answer."""
        tags, keys = self.take_some(held)
        for key in keys:
            self.ground.recorder.note(Kind.ACK, *key, who=self.session)
        for tag in tags:
            connection.send(wire.BasicAck(1, tag, False))
        await connection.ask(wire.TxCommit(1), wire.TxCommitOk)
        for key in keys:
            self.ground.acked(*key, self.session)


class AttentiveConsumer(AmqpConsumer):
    """Notices a connection that is cut in silence."""

    async def await_some(
        self, connection: AmqpConnection, held: dict[int, tuple[str, int]], arrived: asyncio.Event
    ) -> None:
        while not held and not self.is_leaving:
            arrived.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SILENCE_S):
                    await arrived.wait()
            if not held:
                await connection.ask(wire.BasicQos(1, 0, PREFETCH, False), wire.BasicQosOk)


class Staying(Worker):
    """Stays on a node for a while, also when its connection breaks."""

    _address = ""
    _leaves_at_s = 0.0

    def choose(self, addresses: Sequence[str]) -> str:
        now_s = asyncio.get_running_loop().time()
        if self._address not in addresses or now_s > self._leaves_at_s:
            self._address = super().choose(addresses)
            self._leaves_at_s = now_s + self.chance.uniform(5, 30)
        return self._address


class StayingProducer(Staying, AmqpProducer):
    """A producer that stays on the node that it knows."""


class PlainConsumer(Staying, AttentiveConsumer):
    """Acknowledges without a transaction: an answer to what it asks afterwards says that it was read."""

    has_transactions = False

    async def deal_with(self, connection: AmqpConnection, held: dict[int, tuple[str, int]]) -> None:
        tags, keys = self.take_some(held)
        for key in keys:
            self.ground.recorder.note(Kind.ACK, *key, who=self.session)
        for tag in tags:
            connection.send(wire.BasicAck(1, tag, False))
        await connection.ask(wire.BasicQos(1, 0, PREFETCH, False), wire.BasicQosOk)
        for key in keys:
            self.ground.recorder.note(Kind.ACK_TAKEN, *key, who=self.session)


class Placed(Worker):
    """Asks where to go, says there which session it is, and moves when it is asked to.

    A client that loses its node asks for another place for its session.
    """

    role: Role
    _session_id = ""
    _node = ""
    # Where to go next, if it knows.
    _address = ""

    @property
    def is_leaving(self) -> bool:
        return super().is_leaving or bool(self._address)

    async def work(self, address: str) -> None:
        if not self._address:
            request = PlaceRequest("/", self.queue, self.role, self.name, self._session_id, self._node)
            place = await self.ground.place(address, request)
            self._session_id, self._node = place.session_id, place.node
            self._address = place.addresses[self.protocol]
        address, self._address = self._address, ""
        await super().work(address)  # type: ignore[safe-super]

    async def arrived(self, connection: AmqpConnection) -> None:
        connection.on_placement = self._move
        arguments: dict[str, wire.Value] = {"x-session": self._session_id}
        consume = wire.BasicConsume(1, PLACEMENT, PLACED, False, True, False, False, arguments)
        await connection.ask(consume, wire.BasicConsumeOk)

    async def leaves(self, connection: AmqpConnection) -> None:
        if not self._address:
            await connection.ask(wire.BasicCancel(1, PLACED, False), wire.BasicCancelOk)
            self._session_id = self._node = ""

    def _move(self, delivery: wire.BasicDeliver) -> None:
        request = json.loads(delivery.body)
        assert request["session"] == self._session_id
        self._node, self._address = request["node"], request["address"]


class PlacedProducer(Placed, AmqpProducer):
    """A producer that is sent to a node."""

    role = Role.PRODUCER


class PlacedConsumer(Placed, AttentiveConsumer):
    """A consumer that is sent to a node."""

    role = Role.CONSUMER
