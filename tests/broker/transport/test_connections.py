"""Limits of one connection: its memory, its share of the node, and the delay of others."""

from __future__ import annotations

import contextlib
import logging
import resource
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil
import pytest
from pika import spec

from flyball.broker.node.node import Node
from flyball.broker.protocols import requests
from flyball.broker.store.pending_batch import OPERATION_BYTES
from flyball.broker.transport import connection
from flyball.broker.wire import telesto as wire
from tests.broker.peers import Peer, TelestoPeer, amqp, telesto, thorbang
from tests.broker.protocols.amqp.compatibility.peer import Peer as AmqpPeer
from tests.nodes import ANSWER_LIMIT_S, Gate, RunningNode, ServeProcess

IDLE_CONNECTIONS = 1000
IDLE_LIMIT_BYTES = 60 * 1024


# Peers that do not read


@pytest.mark.parametrize(
    ("protocol", "begun"), [("thorbang", b"HELL"), ("telesto", b"\0\5\1"), ("telesto", b"\x7f\0\x21\0\0\0\1abc")]
)
def test_request_that_is_begun_has_to_be_finished(memory_node: RunningNode, protocol: str, begun: bytes) -> None:
    idle, peer = Peer(memory_node.connect(protocol)), Peer(memory_node.connect(protocol))
    peer.send_raw(begun)

    def has_come(node: Node) -> bool:
        return any(each.read_bytes for each in node.hub.connections)

    memory_node.wait_until(has_come)

    began_s = time.monotonic()

    def tick(node: Node, after_s: float) -> int:
        node.hub.tick(began_s + after_s)
        return len(node.hub.connections)

    for after_s in (0, requests.REQUEST_S - 5):
        assert memory_node.call(partial(tick, after_s=after_s)) == 2
    # Another byte does not restart it.
    peer.send_raw(b"x")
    memory_node.wait_until(lambda node: max(each.read_bytes for each in node.hub.connections) == len(begun) + 1)
    memory_node.call(partial(tick, after_s=requests.REQUEST_S + 5))
    assert peer.is_closed_by_node()
    idle.send_raw(b"")
    assert memory_node.call(lambda node: len(node.hub.connections)) == 1, "one without a request may stay"


def one_who_reads_little(node: RunningNode) -> TelestoPeer:
    """Connect with small buffers, so that they are soon full, to a node with a queue 1 that takes 20 kB to show."""
    unread = socket.socket()
    unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    unread.connect(node.address("telesto"))
    node.own(unread)
    peer = TelestoPeer(unread)
    peer.register()
    queue_id = peer.create_queue()
    assert queue_id == 1
    for _ in range(10):
        peer.put_text(queue_id, "x" * 2000)
    return peer


def send_until_it_is_read_no_further(node: RunningNode, peer: Peer, request: bytes) -> None:
    """Send requests without reading any answer until neither side takes more."""
    peer.socket.settimeout(0.1)
    is_reading = True
    while is_reading:
        with contextlib.suppress(TimeoutError):
            while True:
                peer.socket.send(request)
        # It may have been too slow to read more in that time.
        is_reading = node.call(lambda node: write_buffer(node)[1])
    peer.socket.settimeout(ANSWER_LIMIT_S)


def test_peer_that_does_not_read_is_paused_with_a_bounded_buffer(memory_node: RunningNode) -> None:
    peer = one_who_reads_little(memory_node)
    requests = peer.encoded(*[wire.GetMessages(number, 1) for number in range(1000)])
    send_until_it_is_read_no_further(memory_node, peer, requests)
    buffered, is_reading = memory_node.call(lambda node: write_buffer(node))
    assert not is_reading
    assert buffered <= 2 * connection.WRITE_BUFFER_BYTES + wire.FRAME_MAX
    assert telesto(memory_node, "another").ask(wire.Ping(1)) == wire.Pong(1)


def test_a_peer_that_reads_again_gets_every_answer(memory_node: RunningNode) -> None:
    peer = one_who_reads_little(memory_node)
    count = 1000
    peer.send(*[wire.GetMessages(number, 1) for number in range(count)])
    memory_node.wait_until(lambda node: not write_buffer(node)[1])
    assert [peer.receive().packet_id for _ in range(count)] == list(range(count))
    assert peer.ask(wire.Ping(6)) == wire.Pong(6)
    assert memory_node.call(lambda node: write_buffer(node)) == (0, True)


def test_a_peer_that_never_reads_is_dropped(
    memory_node: RunningNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "WRITE_STALL_S", 0.2)
    peer = one_who_reads_little(memory_node)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while True:
            peer.send(*[wire.GetMessages(number, 1) for number in range(1000)])
    memory_node.wait_until(lambda node: not node.hub.connections)
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.startswith("dropped 127.0.0.1:")


def test_a_peer_that_breaks_the_rules_and_does_not_read_is_dropped_too(
    memory_node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "WRITE_STALL_S", 0.2)
    monkeypatch.setattr(connection, "WRITE_BUFFER_BYTES", 1 << 30)
    peer = one_who_reads_little(memory_node)
    peer.send_raw(peer.encoded(*[wire.GetMessages(number, 1) for number in range(400)]) + bytes(7))
    memory_node.wait_until(lambda node: not node.hub.connections)


# Many requests


def test_more_requests_than_are_carried_out_at_once_are_all_answered(gate: Gate, memory_node: RunningNode) -> None:
    peer = telesto(memory_node)
    queue_id = peer.create_queue()
    gate.close(memory_node)
    count = 3 * requests.MAX_IN_FLIGHT
    peer.send(*[put(number, queue_id) for number in range(1, count + 1)])
    memory_node.wait_until(lambda node: in_flight(node) == requests.MAX_IN_FLIGHT)
    assert memory_node.call(lambda node: not write_buffer(node)[1])
    gate.open(memory_node)
    assert [peer.receive().packet_id for _ in range(count)] == list(range(1, count + 1))
    assert memory_node.call(in_flight) == 0


# Congestion


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyball.broker.core.broker.CONGESTED_BYTES", 20 * (OPERATION_BYTES + len(b"body")))


@pytest.mark.usefixtures("little_room")
def test_a_node_whose_store_is_behind_stops_reading_and_goes_on_later(gate: Gate, memory_node: RunningNode) -> None:
    writer, reader = telesto(memory_node, "writer"), telesto(memory_node, "reader")
    queue_id = writer.create_queue()
    gate.close(memory_node)
    writer.send(*[put(number, queue_id) for number in range(100)])
    memory_node.wait_until(lambda node: node.hub.broker.is_congested)
    reader.send(wire.Ping(1))
    memory_node.wait_until(lambda node: len(node.hub.stalled) == 2)
    assert memory_node.call(lambda node: node.hub.broker.journal.pending_count) == 21
    gate.open(memory_node)
    assert [writer.receive().packet_id for _ in range(100)] == list(range(100))
    assert reader.receive() == wire.Pong(1)
    assert memory_node.call(lambda node: not node.hub.stalled)


@pytest.mark.usefixtures("little_room")
def test_who_waits_for_the_store_goes_on_even_if_who_filled_it_is_gone(gate: Gate, memory_node: RunningNode) -> None:
    writer, reader = telesto(memory_node, "writer"), telesto(memory_node, "reader")
    queue_id = writer.create_queue()
    gate.close(memory_node)
    writer.send(*[put(number, queue_id) for number in range(100)])
    memory_node.wait_until(lambda node: node.hub.broker.is_congested)
    reader.send(wire.Ping(1))
    memory_node.wait_until(lambda node: len(node.hub.stalled) == 2)
    writer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.close()
    memory_node.call(lambda node: [c._transport.abort() for c in node.hub.connections if c.client_id == 1])  # type: ignore[union-attr]
    memory_node.wait_until(lambda node: len(node.hub.connections) == 1)
    gate.open(memory_node)
    assert reader.receive() == wire.Pong(1)


# Coming and going


def test_a_connection_too_many_is_refused_until_another_one_ends(
    start_memory_node: Callable[..., RunningNode], caplog: pytest.LogCaptureFixture
) -> None:
    node = start_memory_node(max_connections=2)
    first, second = thorbang(node), telesto(node)
    assert thorbang(node).is_closed_by_node()
    assert [record.getMessage().split(": ")[-1] for record in caplog.records] == [
        "limit of connections reached connections=2"
    ]
    second.close()
    node.wait_until(lambda node: len(node.hub.connections) == 1)
    assert thorbang(node).ask("HELLO") == ["OK"]
    assert first.ask("HELLO") == ["OK"]


def test_peers_that_do_not_log_in_leave_connections_to_those_that_do(
    start_memory_node: Callable[..., RunningNode],
) -> None:
    node = start_memory_node(max_connections=10)
    for number in range(9):
        assert thorbang(node).ask("HELLO") == ["OK"], number
    assert Peer(node.connect("telesto")).is_closed_by_node()
    assert Peer(node.connect("thorbang")).is_closed_by_node()
    with AmqpPeer(*node.address("amqp")) as peer:
        peer.open()


@pytest.mark.parametrize("protocol", ["thorbang", "telesto"])
def test_a_peer_that_has_said_everything_still_gets_its_answers(
    protocol: str, gate: Gate, memory_node: RunningNode
) -> None:
    _, queue_id = thorbang(memory_node).set_up()
    gate.close(memory_node)
    peer = TelestoPeer(memory_node.connect("telesto")) if protocol == "telesto" else thorbang(memory_node)
    if isinstance(peer, TelestoPeer):
        message = wire.WireMessage(0, queue_id, 0, 0, 0, 0, 0, "text")
        peer.send(wire.IdentifyClient(1, 1), wire.PutMessage(2, message, []), wire.Ping(3))
    else:
        peer.send(f"MSG,1,1,{queue_id},1,0,text", "HELLO")
    peer.socket.shutdown(socket.SHUT_WR)
    memory_node.wait_until(lambda node: in_flight(node) >= 1)
    gate.open(memory_node)
    if isinstance(peer, TelestoPeer):
        assert {peer.receive().packet_id for _ in range(3)} == {1, 2, 3}
    else:
        assert [peer.receive(), peer.receive()] == ["OK", "OK"]
    assert peer.is_closed_by_node()


def test_a_peer_that_has_said_everything_and_stalled_still_gets_its_answers(
    gate: Gate, memory_node: RunningNode
) -> None:
    peer = telesto(memory_node)
    queue_id = peer.create_queue()
    gate.close(memory_node)
    count = 2 * requests.MAX_IN_FLIGHT
    peer.send(*[put(number, queue_id) for number in range(count)])
    peer.socket.shutdown(socket.SHUT_WR)
    memory_node.wait_until(lambda node: in_flight(node) == requests.MAX_IN_FLIGHT)
    gate.open(memory_node)
    assert [peer.receive().packet_id for _ in range(count)] == list(range(count))
    assert peer.is_closed_by_node()
    memory_node.wait_until(lambda node: not node.hub.connections and not node.hub.stalled)


def test_a_peer_that_hangs_up_leaves_nothing_behind(gate: Gate, memory_node: RunningNode) -> None:
    peer, consumer = telesto(memory_node), amqp(memory_node)
    queue_id = peer.create_queue()
    peer.put_text(queue_id, "body")
    consumer.consume("queue")
    consumer.next_delivery()
    gate.close(memory_node)
    peer.send(put(1, queue_id))
    consumer.publish(b"more", routing_key="queue", properties=spec.BasicProperties(delivery_mode=2))
    state = memory_node.node.hub.broker.engine.queue(queue_id)
    memory_node.wait_until(lambda node: in_flight(node) == 1 and len(state.unacked) == 3)
    peer.close()
    consumer.close()
    gate.open(memory_node)
    memory_node.wait_until(lambda node: not node.hub.connections)
    memory_node.wait_until(lambda _: not state.unacked and not state.consumers)
    assert sorted(amqp(memory_node).take("queue", most=5)) == [b"body", b"body", b"more"]


# Memory


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * IDLE_CONNECTIONS + 200
    assert hard == resource.RLIM_INFINITY or hard >= wanted, f"only {hard} open files are allowed: raise ulimit -Hn"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_an_idle_connection_costs_little(tmp_path: Path) -> None:
    with ServeProcess(tmp_path, store="memory") as node, ExitStack() as opened:
        process = psutil.Process(node.pid)
        # The first ones make the node load and allocate what all share.
        open_idle(node, 50, opened)
        before = process.memory_info().rss
        open_idle(node, IDLE_CONNECTIONS, opened)
        each = (process.memory_info().rss - before) / IDLE_CONNECTIONS
        assert each < IDLE_LIMIT_BYTES
        with node.connect("thorbang") as one_more:
            one_more.sendall(b"HELLO\0")
            assert one_more.recv(10) == b"OK\0"


def open_idle(node: ServeProcess, count: int, opened: ExitStack) -> None:
    """Connect `count` clients, half of each protocol, which have sent one request each."""
    with selectors.DefaultSelector() as answers:
        for number in range(count):
            protocol, request = (("telesto", wire.encode(wire.Ping(1))), ("thorbang", b"HELLO\0"))[number % 2]
            peer = opened.enter_context(node.connect(protocol))
            peer.sendall(request)
            answers.register(peer, selectors.EVENT_READ)
        while answers.get_map():
            for key, _ in answers.select(timeout=ANSWER_LIMIT_S):
                assert isinstance(key.fileobj, socket.socket)
                assert key.fileobj.recv(100)
                answers.unregister(key.fileobj)


def put(packet_id: int, queue_id: int) -> wire.PutMessage:
    return wire.PutMessage(packet_id, wire.WireMessage(0, queue_id, 0, 0, 0, 0, 0, "body"), [])


def in_flight(node: Node) -> int:
    return sum(connection.in_flight for connection in node.hub.connections)


def write_buffer(node: Node) -> tuple[int, bool]:
    """Return how much the only connection has not written, and whether the node reads from it."""
    (only,) = node.hub.connections
    assert only._transport is not None
    return only._transport.get_write_buffer_size(), only._transport.is_reading()
