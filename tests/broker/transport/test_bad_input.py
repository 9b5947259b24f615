"""Any bytes that a peer sends: an error or a closed connection with one log line, and no effect on other clients."""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from flyball.broker.node.node import Node
from flyball.broker.wire import telesto as wire
from flyball.broker.wire.telesto import WireMessage
from tests.broker.bystander import Bystander
from tests.broker.peers import Closed, Peer, TelestoPeer, amqp, thorbang
from tests.nodes import ANSWER_LIMIT_S, RunningNode

SEED = 20260101

LIMIT_BYTES = 64 * 1024

# Number of queues and clients between the small ids that bad input hits and those of the good client.
FENCE = 260


def plain(*packets: wire.Packet) -> bytes:
    return b"".join([wire.encode(packet) for packet in packets])


THORBANG_SESSION = (
    b"HELLO\0CREATECLIENT,x\0CREATEQUEUE,q\0MSG,1,1,1,1,0,text\0MSG,-1,1,1;2;3,-5,99,t\xc3\xa9xt\0PEEKQ,1,1,1\0"
    b"PEEKS,1,1,1,0\0POPQ,1,1,1\0POPQ,1,1,0\0POPS,1,2,1,1\0REMOVEQUEUE,99\0REMOVECLIENT,99\0"
)
TELESTO_SESSION = plain(
    wire.Ping(1),
    wire.IdentifyClient(2, 1),
    wire.CreateQueue(3, "q"),
    wire.GetQueueId(4, "queue 1"),
    wire.GetQueueName(5, 1),
    wire.GetQueues(6),
    wire.PutMessage(7, WireMessage(0, 1, 0, 1, 9, 5, 0, "text"), [2, 3]),
    wire.GetActiveQueues(8),
    wire.GetMessages(9, 1),
    wire.ReadResponse(10, 1, 9),
    wire.ReadMessage(11, 2, 0, 2),
    wire.DeleteQueue(12, 99),
)


class GoodClient(Bystander):
    """Works over both protocols."""

    def __init__(self, node: RunningNode) -> None:
        super().__init__()
        self._amqp = amqp(node)
        self._thorbang = thorbang(node)
        client_id, queue_id = self._thorbang.ask("CREATECLIENT,good client", "CREATEQUEUE,good queue")
        self._client_id, self._queue_id = int(client_id), int(queue_id)

    def work_once(self) -> None:
        client_id, queue_id = self._client_id, self._queue_id
        self._amqp.put("good queue", b"round %d" % self.rounds)
        (answer,) = self._thorbang.ask(f"POPQ,{client_id},{queue_id},1")
        assert answer.split(",", 4)[4] == f"round {self.rounds}"
        assert self._thorbang.ask(f"MSG,{client_id},{client_id},{queue_id},1,0,back") == ["OK"]
        assert self._amqp.take("good queue") == [b"back"]

    def close(self) -> None:
        self._amqp.close()
        self._thorbang.close()


@pytest.fixture
def node(start_memory_node: Callable[..., RunningNode]) -> RunningNode:
    node = start_memory_node(thorbang_max_request_bytes=LIMIT_BYTES)
    peer = thorbang(node)
    peer.ask(*[f"CREATECLIENT,client {number}" for number in range(1, FENCE)])
    peer.ask(*[f"CREATEQUEUE,queue {number}" for number in range(1, FENCE)])
    return node


@pytest.fixture
def good_client(node: RunningNode) -> Iterator[GoodClient]:
    with GoodClient(node) as good_client:
        yield good_client


def attack(node: RunningNode, protocol: str, data: bytes) -> bytes:
    """Send the bytes and no more, and return what came back until the node closed the connection."""
    with socket.create_connection(node.address(protocol), timeout=ANSWER_LIMIT_S) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(Closed):
            while True:
                answer += Peer(connection).receive_raw()
        return answer


def attack_again_and_again(
    node: RunningNode, protocol: str, attempts: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    for data in attempts:
        caplog.clear()
        attack(node, protocol, data)
        lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(lines) <= 1, (data, lines)
        assert all(record.name == "flyball.server" for record in lines), (data, lines[0].getMessage())


def changed(session: bytes, count: int) -> list[bytes]:
    """Return `count` copies of the session with one byte changed."""
    chance = random.Random(SEED)
    attempts = []
    for _ in range(count):
        damaged = bytearray(session)
        place = chance.randrange(len(session))
        damaged[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256), damaged[place] ^ 1))
        attempts.append(bytes(damaged))
    return attempts


def noise(count: int) -> list[bytes]:
    chance = random.Random(SEED)
    return [chance.randbytes(chance.randrange(1, 300)) for _ in range(count)]


SESSIONS = {
    "thorbang": ("thorbang", THORBANG_SESSION),
    "telesto": ("telesto", TELESTO_SESSION),
}


@pytest.mark.parametrize("name", SESSIONS)
def test_every_part_of_a_session_ends_well(
    name: str, node: RunningNode, good_client: GoodClient, caplog: pytest.LogCaptureFixture
) -> None:
    protocol, session = SESSIONS[name]
    attack_again_and_again(node, protocol, [session[:end] for end in range(len(session) + 1)], caplog)
    expect_no_harm(node, good_client)


@pytest.mark.parametrize("name", SESSIONS)
def test_a_session_with_one_wrong_byte_ends_well(
    name: str, node: RunningNode, good_client: GoodClient, caplog: pytest.LogCaptureFixture
) -> None:
    protocol, session = SESSIONS[name]
    attack_again_and_again(node, protocol, changed(session, 800), caplog)
    expect_no_harm(node, good_client)


@pytest.mark.parametrize("protocol", ["thorbang", "telesto"])
def test_noise_ends_well(
    protocol: str, node: RunningNode, good_client: GoodClient, caplog: pytest.LogCaptureFixture
) -> None:
    attack_again_and_again(node, protocol, noise(400), caplog)
    expect_no_harm(node, good_client)


def frame(length: int, method: int, payload: bytes = b"") -> bytes:
    return struct.pack(">hBi", length, method, 1) + payload


MANY = struct.pack(">i", 2**31 - 1)

BROKEN = {
    "length below the header": ("telesto", frame(4, 0x01)),
    "length of zero": ("telesto", frame(0, 0x01)),
    "negative length": ("telesto", frame(-32768, 0x01)),
    "unknown method": ("telesto", frame(5, 0x66)),
    "method that no packet has": ("telesto", frame(5, 0x51)),
    "surplus bytes": ("telesto", frame(6, 0x01, b"x")),
    "missing bytes": ("telesto", frame(8, 0x13, b"xyz")),
    "string beyond its packet": ("telesto", frame(8, 0x21, b"\0\x09q")),
    "negative length of a string": ("telesto", frame(8, 0x21, b"\xff\xffq")),
    "huge array": ("telesto", frame(5 + 31 + 4, 0x31, bytes(31) + MANY)),
    "unknown error type": ("telesto", frame(8, 0x05, b"\x20\0\0")),
    "request without an end": ("thorbang", b"MSG,1,1,1,1,0," + b"x" * (20 * LIMIT_BYTES)),
    "request above the limit": ("thorbang", b"x" * (LIMIT_BYTES + 1) + b"\0"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_peer_that_breaks_the_rules_is_disconnected_with_one_line_in_the_log(
    case: str, node: RunningNode, caplog: pytest.LogCaptureFixture
) -> None:
    protocol, data = BROKEN[case]
    connection = node.connect(protocol)
    caplog.clear()
    # It is the node that closes: the peer goes on sending and waiting.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(data)
    assert Peer(connection).is_closed_by_node()
    (line,) = caplog.records
    assert line.name == "flyball.server"
    assert line.getMessage().startswith(f"closed {protocol} connection of 127.0.0.1:")
    assert "\n" not in line.getMessage()
    node.wait_until(lambda node: len(node.hub.connections) == 1)


@pytest.mark.parametrize("piece_bytes", [1, 3, 10_000])
@pytest.mark.parametrize("method", ["POST", "GET", "PUT", "OPTIONS", "DELETE"])
@pytest.mark.parametrize("protocol", ["thorbang", "telesto"])
def test_web_page_that_sends_commands_is_cut_off_at_once(
    protocol: str, method: str, piece_bytes: int, node: RunningNode
) -> None:
    queues = node.call(lambda node: [state.queue.name for state in node.hub.broker.engine.queues])
    head = f"{method} / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: text/plain\r\n\r\n".encode()
    commands = {"thorbang": b"\0REMOVEQUEUE,1\0CREATEQUEUE,page\0", "telesto": plain(wire.CreateQueue(1, "page"))}
    data = head + commands[protocol]
    connection = node.connect(protocol)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for start in range(0, len(data), piece_bytes):
            connection.sendall(data[start : start + piece_bytes])
    with pytest.raises(Closed):
        Peer(connection).receive_raw()
    assert node.call(lambda node: [state.queue.name for state in node.hub.broker.engine.queues]) == queues


def test_good_requests_before_a_bad_one_are_carried_out(node: RunningNode) -> None:
    peer = TelestoPeer(node.connect("telesto"))
    peer.send_raw(plain(wire.Ping(1), wire.Ping(2)) + frame(5, 0x66))
    assert [peer.receive(), peer.receive()] == [wire.Pong(1), wire.Pong(2)]
    assert peer.is_closed_by_node()


def test_the_longest_request_that_is_allowed_works(node: RunningNode) -> None:
    head = "MSG,1,1,1,1,0,"
    text = "x" * (LIMIT_BYTES - 128)
    peer = thorbang(node)
    assert peer.ask(f"{head}{text}", "POPQ,1,1,1") == ["OK", f"MSG,1,0,1,{text}"]
    assert peer.ask("x" * LIMIT_BYTES) == ["BAD REQUEST"]


def test_what_is_no_utf_8_becomes_replacement_characters(node: RunningNode) -> None:
    peer = thorbang(node)
    peer.send_raw(b"MSG,1,1,1,1,0,a\xff\xc3\0POPQ,1,1,1\0CREATEQUEUE,\xff\0")
    assert [peer.receive() for _ in range(3)] == ["OK", "MSG,1,0,1,a\ufffd\ufffd", str(FENCE)]
    telesto = TelestoPeer(node.connect("telesto"))
    telesto.send_raw(frame(5 + 2 + 2 + 1, 0x11, b"\0\x02\xffn\x01"))
    assert isinstance(telesto.receive(), wire.RegisterClientResponse)
    names = node.call(lambda node: [client.name for client in node.hub.broker.engine.clients])
    assert names[-1] == "\ufffdn"


def expect_no_harm(node: RunningNode, good_client: GoodClient) -> None:
    """The node has forgotten the bad connections, holds nothing for them, and the good one is at work."""
    node.wait_until(lambda node: len(node.hub.connections) == 3)
    good_client.expect_work()
    good_client.__exit__(None, None, None)
    node.wait_until(is_at_rest)


def is_at_rest(node: Node) -> bool:
    broker = node.hub.broker
    queues = broker.engine.queues
    return (
        all(connection.in_flight == 0 for connection in node.hub.connections)
        and not any(state.unacked or state.consumers for state in queues)
        and broker.journal.pending_count == 0
        and not node.hub.stalled
    )
