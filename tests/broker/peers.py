"""Clients for tests: they send exactly the given bytes, and read what comes back."""

from __future__ import annotations

import socket
from typing import Any, Self, TypeVar

from pika import spec

from flyball.broker.wire import telesto as wire
from flyball.broker.wire.telesto import ErrorCode, WireMessage
from flyball.broker.wire.thorbang import AnswerDecoder
from tests.broker.protocols.amqp.compatibility import peer as frames
from tests.nodes import RunningNode, ServeProcess

P = TypeVar("P", bound=wire.Packet)


class Closed(Exception):
    """The node ended the connection."""


class Peer:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def send_raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive_raw(self) -> bytes:
        """Return what has come. Raises Closed at the end."""
        try:
            data = self.socket.recv(65536)
        except ConnectionResetError:
            data = b""
        if not data:
            raise Closed
        return data

    def is_closed_by_node(self) -> bool:
        """Read on to the end. Raises TimeoutError if the node keeps the connection open."""
        try:
            while True:
                self.receive_raw()
        except Closed:
            return True

    def close(self) -> None:
        self.socket.close()


class ThorBangPeer(Peer):
    """Speaks ThorBangMQ's protocol, in text without the zero bytes."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self._decoder = AnswerDecoder()

    def send(self, *requests: str) -> None:
        """Send all in one piece."""
        self.send_raw("".join(f"{request}\0" for request in requests).encode())

    def receive(self) -> str:
        answer = self._decoder.next_answer()
        while answer is None:
            self._decoder.feed(self.receive_raw())
            answer = self._decoder.next_answer()
        return answer.decode()

    def ask(self, *requests: str) -> list[str]:
        """Send all in one piece and return their answers."""
        self.send(*requests)
        return [self.receive() for _ in requests]

    def wait_for_the_store(self) -> None:
        """Return when the store answers in time again: until then what needs it is refused."""
        for number in range(20):
            if self.ask(f"CREATECLIENT,waiting {number}")[0].isdecimal():
                return
        raise AssertionError("the store does not come back")

    def set_up(self) -> tuple[int, int]:
        """Create a client and a queue, and return their ids."""
        client_id, queue_id = self.ask("CREATECLIENT,client", "CREATEQUEUE,queue")
        return int(client_id), int(queue_id)


class AmqpPeer(frames.Peer):
    """Speaks AMQP on one channel, and waits for each answer: one that consumes does nothing else."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._received = b""
        self._published = 0

    def begin(self) -> Self:
        """Log in, and have what is published confirmed."""
        self.open()
        self.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
        return self

    def declare(self, queue: str = "queue", **arguments: Any) -> str:
        self.ask(spec.Queue.Declare(queue=queue, durable=True, arguments=arguments), spec.Queue.DeclareOk)
        return queue

    def put(
        self,
        queue: str,
        *bodies: bytes,
        persistent: bool = True,
        priority: int | None = None,
        headers: dict[str, Any] | None = None,
    ) -> None:
        """Publish to a queue, and wait for the confirms."""
        properties = spec.BasicProperties(delivery_mode=2 if persistent else 1, priority=priority, headers=headers)
        for body in bodies:
            self.publish(body, routing_key=queue, properties=properties)
        self._published += len(bodies)
        confirmed = 0
        while confirmed < self._published:
            confirmed = self.expect(spec.Basic.Ack).delivery_tag

    def take(self, queue: str, most: int = 1) -> list[bytes]:
        """Remove what is at the head of a queue."""
        bodies: list[bytes] = []
        while len(bodies) < most and (content := self.get(queue, no_ack=True)) is not None:
            bodies.append(content.body)
        return bodies

    def get(self, queue: str, *, no_ack: bool = False) -> frames.Content | None:
        self.send(spec.Basic.Get(queue=queue, no_ack=no_ack))
        return self.try_content(spec.Basic.GetOk, spec.Basic.GetEmpty)

    def peek(self, queue: str) -> bytes | None:
        """Look at the head of a queue, and leave it there."""
        content = self.get(queue)
        if content is None:
            return None
        self.send(spec.Basic.Nack(delivery_tag=content.method.delivery_tag, requeue=True))
        self.sync()
        return content.body

    def consume(self, queue: str, arguments: dict[str, Any] | None = None, *, prefetch: int = 0) -> None:
        self.ask(spec.Basic.Qos(prefetch_count=prefetch), spec.Basic.QosOk)
        self.ask(spec.Basic.Consume(queue=queue, arguments=arguments or {}), spec.Basic.ConsumeOk)

    def next_delivery(self) -> frames.Content:
        return self.expect_content(spec.Basic.Deliver)

    def ack(self, *contents: frames.Content) -> None:
        for content in contents:
            self.send(spec.Basic.Ack(delivery_tag=content.method.delivery_tag))

    def sync(self) -> None:
        """Return when the node has read all that was sent before."""
        self.ask(spec.Channel.Flow(active=True), spec.Channel.FlowOk)

    def close(self) -> None:
        self._socket.close()


class TelestoPeer(Peer):
    """Speaks Telesto's protocol."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self._decoder = wire.PacketDecoder(from_server=True)
        self._last_id = 0
        self.client_id = 0

    def encoded(self, *packets: wire.Packet) -> bytes:
        return b"".join([wire.encode(packet) for packet in packets])

    def send(self, *packets: wire.Packet) -> None:
        """Send all in one piece."""
        self.send_raw(self.encoded(*packets))

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def receive(self) -> wire.Packet:
        packet = self._decoder.next_packet()
        while packet is None:
            self._decoder.feed(self.receive_raw())
            packet = self._decoder.next_packet()
        return packet

    def ask(self, packet: wire.Packet) -> wire.Packet:
        self.send(packet)
        answer = self.receive()
        assert answer.packet_id == packet.packet_id, (packet, answer)
        return answer

    def get(self, wanted: type[P], packet: wire.Packet) -> P:
        """Ask, and expect an answer of that type."""
        answer = self.ask(packet)
        assert isinstance(answer, wanted), answer
        return answer

    def refusal(self, packet: wire.Packet) -> ErrorCode:
        """Ask, and expect an error."""
        return ErrorCode(self.get(wire.Error, packet).code)

    def register(self, name: str = "client", mode: int = 1) -> int:
        answer = self.get(wire.RegisterClientResponse, wire.RegisterClient(self.next_id(), name, mode))
        self.client_id = answer.client_id
        return answer.client_id

    def create_queue(self, name: str = "queue") -> int:
        return self.get(wire.CreateQueueResponse, wire.CreateQueue(self.next_id(), name)).queue_id

    def put_text(
        self, queue_id: int, text: str, *more_queues: int, receiver: int = 0, priority: int = 0
    ) -> wire.Packet:
        message = WireMessage(0, queue_id, 0, receiver, 0, priority, 0, text)
        return self.ask(wire.PutMessage(self.next_id(), message, list(more_queues)))

    def read_text(self, queue_id: int, mode: int = wire.ReadMode.TIME) -> str | None:
        answer = self.ask(wire.ReadMessage(self.next_id(), queue_id, 0, mode))
        if isinstance(answer, wire.Error):
            assert answer.code == ErrorCode.NO_MESSAGES_RETRIEVED, answer
            return None
        assert isinstance(answer, wire.ReadMessageResponse)
        return answer.message.text


def thorbang(node: RunningNode | ServeProcess) -> ThorBangPeer:
    return ThorBangPeer(node.connect("thorbang"))


def amqp(node: RunningNode | ServeProcess) -> AmqpPeer:
    """Connect, and open a channel with confirms."""
    return AmqpPeer(node.connect("amqp")).begin()


def telesto(node: RunningNode | ServeProcess, name: str | None = "client", mode: int = 1) -> TelestoPeer:
    """Connect, and register a client of that name."""
    peer = TelestoPeer(node.connect("telesto"))
    if name is not None:
        peer.register(name, mode)
    return peer
