"""A gateway brings AMQP clients to the nodes that a placer names, and stays between until they are done."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pika
import pytest
import uvloop
from typer.testing import CliRunner

from flyball.broker.cluster import gateway
from flyball.broker.cluster.gateway import Gateway, GatewaySettings, NodePlacement, PlacementRequest
from flyball.broker.settings import Address
from flyball.broker.wire import amqp
from flyball.cli.main import app
from flyball.errors import ClusterError, QueueNotFound
from tests.nodes import ANSWER_LIMIT_S, TOKEN_FILE, RunningNode

Nodes = Callable[..., RunningNode]


class FakePlacer:
    """Sends clients where the test says, and remembers what it was asked."""

    def __init__(self, *answers: NodePlacement | Exception) -> None:
        self._answers = list(answers)
        self.requests: list[PlacementRequest] = []
        self.lost: list[NodePlacement | None] = []
        self.ends: list[NodePlacement] = []

    async def place(self, request: PlacementRequest, lost: NodePlacement | None = None) -> NodePlacement:
        self.requests.append(request)
        self.lost.append(lost)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def ended(self, request: PlacementRequest, placement: NodePlacement) -> None:
        self.ends.append(placement)


class RunningGateway:
    """A gateway in a thread of its own."""

    def __init__(self, placer: FakePlacer, **settings: Any) -> None:
        self.placer = placer
        self.gateway = Gateway(placer, GatewaySettings("orders", retry_s=(0.0, 0.0), **settings))
        self.address: Address
        self._opened: list[Any] = []
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._run()), name="gateway")

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(ANSWER_LIMIT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._opened:
            with contextlib.suppress(pika.exceptions.AMQPError, OSError):
                connection.close()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def connect(self, **options: Any) -> Any:
        """Open a connection of pika; it is closed with the gateway."""
        host, port = self.address
        self._opened.append(pika.BlockingConnection(pika.ConnectionParameters(host, port, heartbeat=0, **options)))
        return self._opened[-1]

    def connect_plainly(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=ANSWER_LIMIT_S)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with self.gateway.listening(Address("127.0.0.1", 0)) as self.address:
            self._started.set()
            await self._stop.wait()


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Callable[..., RunningGateway]]:
    """Start a gateway; it is stopped after the test."""
    with ExitStack() as gateways:
        yield lambda *answers, **settings: gateways.enter_context(RunningGateway(FakePlacer(*answers), **settings))


@pytest.fixture
def nowhere() -> Iterator[Address]:
    """An address without a listener."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield Address(*taken.getsockname())


def of(node: RunningNode, session: str = "") -> NodePlacement:
    return NodePlacement(node.address("amqp"), "node", session)


def test_a_client_publishes_and_consumes_through_the_gateway(
    memory_node: RunningNode, front: Callable[..., RunningGateway]
) -> None:
    channel = front(of(memory_node)).connect().channel()
    channel.confirm_delivery()
    channel.queue_declare("orders")
    body = bytes(range(256)) * 2000
    channel.basic_publish("", "orders", body)
    method, _, found = channel.basic_get("orders", auto_ack=True)
    assert method is not None
    assert found == body


def test_each_client_goes_to_the_node_that_was_named_for_it(
    start_memory_node: Nodes, front: Callable[..., RunningGateway]
) -> None:
    nodes = start_memory_node(), start_memory_node()
    running = front(*map(of, nodes))
    first, second = running.connect(), running.connect()
    first.channel().queue_declare("first")
    second.channel().queue_declare("second")
    names = [node.call(lambda node: [state.queue.name for state in node.hub.broker.engine.queues]) for node in nodes]
    assert names == [["first"], ["second"]]


@pytest.mark.parametrize(
    ("role", "properties", "requested"),
    [
        ("auto", {}, ("orders", "client", "/")),
        ("producer", {}, ("orders", "producer", "/")),
        ("producer", {"flyball-role": "consumer"}, ("orders", "consumer", "/")),
        ("auto", {"flyball-queue": "bills", "flyball-vhost": "other"}, ("bills", "client", "other")),
    ],
)
def test_what_a_client_tells_of_itself_wins_over_the_options(
    memory_node: RunningNode,
    front: Callable[..., RunningGateway],
    role: str,
    properties: dict[str, str],
    requested: tuple[str, str, str],
) -> None:
    running = front(of(memory_node), role=role)
    running.connect(client_properties=properties).close()
    [request] = running.placer.requests
    assert (request.queue, request.role, request.vhost) == requested
    assert (request.user, request.password) == ("guest", b"guest")


def test_the_node_is_told_what_the_client_tells_of_itself(
    memory_node: RunningNode, front: Callable[..., RunningGateway]
) -> None:
    properties = {"app": "till", "flyball-role": "consumer"}
    running = front(of(memory_node, "s-1"))
    running.connect(client_properties=properties)

    def told(node: Any) -> dict[str, Any]:
        [session] = node.hub.connections
        return dict(session.client_properties)

    assert properties.items() <= memory_node.call(told).items()


def test_the_end_of_a_client_that_its_node_knows_is_the_nodes_business(
    memory_node: RunningNode, front: Callable[..., RunningGateway]
) -> None:
    running = front(of(memory_node, "s-1"))
    running.connect().close()
    memory_node.wait_until(lambda node: not node.hub.connections)
    assert running.placer.ends == []


def test_a_client_that_breaks_off_ends_its_connection_to_the_node(
    memory_node: RunningNode, front: Callable[..., RunningGateway]
) -> None:
    running = front(of(memory_node, "s-1"))
    client = running.connect_plainly()
    client.sendall(amqp.PROTOCOL_HEADER)
    client.sendall(amqp.ConnectionStartOk(0, {}, "PLAIN", b"\0guest\0guest", "en_US").encode())
    memory_node.wait_until(lambda node: len(node.hub.connections) == 1)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    memory_node.wait_until(lambda node: not node.hub.connections)


def test_a_node_that_ends_takes_its_clients_with_it(
    start_memory_node: Nodes, front: Callable[..., RunningGateway]
) -> None:
    node = start_memory_node()
    connection = front(of(node)).connect()
    node.stop()
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
        connection.channel()


def test_when_the_node_cannot_be_reached_another_one_is_asked_for(
    memory_node: RunningNode, front: Callable[..., RunningGateway], nowhere: Address
) -> None:
    there = NodePlacement(nowhere, "gone", "s-1")
    running = front(there, of(memory_node))
    running.connect().close()
    assert running.placer.lost == [None, there]


def test_when_nobody_can_tell_at_first_it_is_asked_again(
    memory_node: RunningNode, front: Callable[..., RunningGateway]
) -> None:
    running = front(ClusterError("no leader yet"), of(memory_node))
    running.connect().close()
    assert len(running.placer.requests) == 2


def test_when_no_node_can_be_reached_the_client_is_told(
    front: Callable[..., RunningGateway], nowhere: Address
) -> None:
    running = front(NodePlacement(nowhere, "gone", "s-1"))
    with pytest.raises(pika.exceptions.AMQPConnectionError) as caught:
        running.connect()
    assert "320" in repr(caught.value)
    assert "no node can be reached" in repr(caught.value)
    assert len(running.placer.requests) == 3
    assert [placement.session for placement in running.placer.ends] == ["s-1"]


def test_a_queue_that_does_not_exist_is_not_asked_for_again(front: Callable[..., RunningGateway]) -> None:
    running = front(QueueNotFound("orders", "/"))
    with pytest.raises(pika.exceptions.AMQPConnectionError) as caught:
        running.connect()
    assert "404" in repr(caught.value)
    assert len(running.placer.requests) == 1


def test_a_role_that_there_is_not_is_refused(front: Callable[..., RunningGateway]) -> None:
    with pytest.raises(pika.exceptions.AMQPConnectionError, match="flyball-role"):
        front(ClusterError("unused")).connect(client_properties={"flyball-role": "judge"})


def test_a_wrong_password_is_refused_by_the_node(
    memory_node: RunningNode, front: Callable[..., RunningGateway]
) -> None:
    credentials = pika.PlainCredentials("guest", "wrong")
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        front(of(memory_node)).connect(credentials=credentials)


def test_users_of_the_machine_itself_are_refused_from_elsewhere(
    memory_node: RunningNode, front: Callable[..., RunningGateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "is_loopback", lambda host: False)
    running = front(of(memory_node))
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        running.connect()
    assert running.placer.requests == []
    front(of(memory_node), loopback_users=("admin",)).connect()


def test_owner_comes_from_the_gateways_machine_only(
    memory_node: RunningNode, front: Callable[..., RunningGateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = pika.PlainCredentials("@owner", TOKEN_FILE.read_text().strip())
    front(of(memory_node), loopback_users=()).connect(credentials=token)
    monkeypatch.setattr(gateway, "is_loopback", lambda host: False)
    running = front(of(memory_node), loopback_users=())
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        running.connect(credentials=token)
    assert running.placer.requests == []


@pytest.mark.parametrize(
    ("given", "refused"), [((), ("guest",)), (("admin,guest",), ("admin", "guest")), (("none",), ())]
)
def test_the_gateway_can_be_told_who_may_come_from_its_machine_only(
    given: tuple[str, ...], refused: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[GatewaySettings] = []

    async def note(placer: object, settings: GatewaySettings, *others: object) -> None:
        taken.append(settings)

    monkeypatch.setattr(gateway, "serve", note)
    flags = [word for names in given for word in ("--loopback-users", names)]
    result = CliRunner().invoke(app, ["gateway", "--queue", "orders", "--node", "127.0.0.1:1", *flags])
    assert result.exit_code == 0, result.output
    assert taken[0].loopback_users == refused


def test_another_protocol_is_answered_with_the_header_of_ours(front: Callable[..., RunningGateway]) -> None:
    with front(ClusterError("unused")).connect_plainly() as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert client.recv(100) == amqp.PROTOCOL_HEADER


def test_a_client_that_says_something_else_than_start_ok_is_disconnected(
    front: Callable[..., RunningGateway],
) -> None:
    with front(ClusterError("unused")).connect_plainly() as client:
        client.sendall(amqp.PROTOCOL_HEADER + amqp.ConnectionCloseOk(0).encode())
        received = b""
        while data := client.recv(65536):
            received += data
        decoder = amqp.Decoder(amqp.HANDSHAKE_FRAME_MAX, 0, from_server=True)
        decoder.feed(received)
        assert isinstance(decoder.next_command(), amqp.ConnectionStart)
        assert decoder.next_command() is None


def test_one_client_too_many_is_not_let_in(memory_node: RunningNode, front: Callable[..., RunningGateway]) -> None:
    running = front(of(memory_node), max_connections=1)
    running.connect()
    with running.connect_plainly() as other:
        assert other.recv(100) == b""


def test_a_client_that_does_not_read_stops_the_node_not_the_memory(
    memory_node: RunningNode, front: Callable[..., RunningGateway]
) -> None:
    running = front(of(memory_node))
    channel = running.connect().channel()
    channel.queue_declare("orders")
    for _ in range(64):
        channel.basic_publish("", "orders", bytes(1024 * 1024))
    reader = running.connect()
    # From here on the client does not read: the gateway can take no more than its buffers, so the node must keep the
    # rest.
    reader.channel().basic_consume("orders", lambda *_: None, auto_ack=True)
    memory_node.wait_until(lambda node: any(session._is_write_paused for session in node.hub.connections))
