"""Whatever clients make a node hold stays within its limits, and others are served meanwhile.

Each attacker works on a node of its own process with small limits; what the process takes of the machine is compared
with `--memory-bytes` + `--resident-bytes` + `memory.BASE_BYTES`.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import psutil
import pytest
from pika import spec

from flyball.broker.core.memory import BASE_BYTES
from flyball.broker.wire import telesto
from flyball.client.api import Api, place_at
from tests.broker.bystander import Bystander
from tests.broker.peers import TelestoPeer, ThorBangPeer
from tests.broker.protocols.amqp.compatibility.peer import BODY, HEADER, Peer, frame, method_frame
from tests.nodes import ANSWER_LIMIT_S, ServeProcess

MIB = 1024 * 1024
MEMORY_BYTES = 64 * MIB
RESIDENT_BYTES = 32 * MIB
ALLOWED_BYTES = MEMORY_BYTES + RESIDENT_BYTES + BASE_BYTES
PERSISTENT = spec.BasicProperties(delivery_mode=2)


def rss_bytes(node: ServeProcess) -> int:
    return int(psutil.Process(node.pid).memory_info().rss)


def peak_rss_bytes(node: ServeProcess) -> int:
    """Return the most that the process has ever taken."""
    for line in Path(f"/proc/{node.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


def wait_until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    """Poll until the condition holds: from outside of the process no event reports it."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def settles_below(node: ServeProcess, limit_bytes: int, within_s: float = 10.0) -> bool:
    """Whether the process returns memory: no event says when the system has taken it."""
    deadline = time.monotonic() + within_s
    while rss_bytes(node) >= limit_bytes and time.monotonic() < deadline:
        time.sleep(0.02)
    return rss_bytes(node) < limit_bytes


@pytest.fixture
def plain_node(tmp_path: Path) -> Iterator[ServeProcess]:
    with ServeProcess(tmp_path, store="memory", log_level="error") as node:
        yield node


def unfinished_content(channel: int, body_bytes: int) -> bytes:
    """Return a publish that lacks the last byte of its body."""
    head = struct.pack(">HHQ", spec.Basic.INDEX, 0, body_bytes + 1) + b"\0\0"
    parts = [method_frame(spec.Basic.Publish(routing_key="queue"), channel), frame(HEADER, channel, head)]
    piece = bytes(100_000)
    for at in range(0, body_bytes, len(piece)):
        parts.append(frame(BODY, channel, piece[: body_bytes - at]))
    return b"".join(parts)


# Before login


def test_contents_before_login_are_refused_and_not_kept(plain_node: ServeProcess) -> None:
    before = rss_bytes(plain_node)
    with contextlib.ExitStack() as all_:
        for _ in range(10):
            peer = all_.enter_context(Peer(*plain_node.address("amqp")))
            peer.start()
            piece = bytes(8000)
            head = struct.pack(">HHQ", spec.Basic.INDEX, 0, 100 * MIB) + b"\0\0"
            with contextlib.suppress(OSError):
                for channel in range(1, 9):
                    peer.send_bytes(method_frame(spec.Basic.Publish(), channel) + frame(HEADER, channel, head))
                    peer.send_bytes(frame(BODY, channel, piece) * 125)
        assert rss_bytes(plain_node) - before < 20 * MIB


def test_contents_of_channels_that_are_not_open_end_the_connection(plain_node: ServeProcess) -> None:
    with Peer(*plain_node.address("amqp")) as peer:
        peer.open()
        peer.send_bytes(unfinished_content(5, 1000))
        peer.expect_connection_close(504, "CHANNEL_ERROR - expected 'channel.open'", spec.Basic.Publish)


# After a connection is gone


def unfinished_thorbang(node: ServeProcess) -> Callable[[], None]:
    peer = ThorBangPeer(node.connect("thorbang"))
    peer.send_raw(b"MSG,0,1,1,1,0," + b"x" * 8 * MIB)
    return peer.close


def unfinished_amqp(node: ServeProcess) -> Callable[[], None]:
    peer = Peer(*node.address("amqp")).open()
    peer.send_bytes(unfinished_content(1, 8 * MIB))
    return lambda: peer.__exit__(None, None, None)


def uncommitted_amqp(node: ServeProcess) -> Callable[[], None]:
    peer = Peer(*node.address("amqp")).open()
    peer.ask(spec.Tx.Select(), spec.Tx.SelectOk)
    for _ in range(8):
        peer.publish(bytes(100_000), routing_key="queue")
    peer.send_bytes(unfinished_content(1, 7 * MIB))
    return lambda: peer.__exit__(None, None, None)


@pytest.mark.parametrize("attack", [unfinished_thorbang, unfinished_amqp, uncommitted_amqp])
def test_what_a_connection_held_is_free_when_it_is_gone(
    plain_node: ServeProcess, attack: Callable[[ServeProcess], Callable[[], None]]
) -> None:
    before = rss_bytes(plain_node)
    ends = [attack(plain_node) for _ in range(12)]
    for end in ends:
        end()
    assert settles_below(plain_node, before + 30 * MIB)


# With small limits


@pytest.fixture
def node(tmp_path: Path, new_database: Callable[[], str]) -> Iterator[ServeProcess]:
    with ServeProcess(
        tmp_path,
        store=new_database(),
        memory_bytes=MEMORY_BYTES,
        resident_bytes=RESIDENT_BYTES,
        http="127.0.0.1:0",
        log_level="error",
    ) as node:
        yield node


class Honest(Bystander):
    """Publishes a message with confirms, gets it back and acks it, and notes how long that took at most."""

    def __init__(self, node: ServeProcess, name: str = "honest") -> None:
        super().__init__()
        self._name = name
        self.slowest_s = 0.0
        self._peer = Peer(*node.address("amqp")).open()
        self._peer.ask(spec.Queue.Declare(queue=name, durable=True), spec.Queue.DeclareOk)
        self._peer.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)

    def work_once(self) -> None:
        began = time.monotonic()
        self._peer.publish(b"x" * 1000, routing_key=self._name, properties=PERSISTENT)
        method = self._peer.read_frame().method
        while not isinstance(method, spec.Basic.Ack):
            # Slowed for a while is fine: that is what the ledger does to publishers.
            assert isinstance(method, spec.Connection.Blocked | spec.Connection.Unblocked), method
            method = self._peer.read_frame().method
        self._peer.send(spec.Basic.Get(queue=self._name, no_ack=True))
        assert self._peer.expect_content(spec.Basic.GetOk).body == b"x" * 1000
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def close(self) -> None:
        self._peer.__exit__(None, None, None)


def fill(node: ServeProcess, queue: str, total_bytes: int, body_bytes: int, **arguments: Any) -> None:
    """Publish persistent messages with confirms."""
    with Peer(*node.address("amqp")).open() as peer:
        peer.ask(spec.Queue.Declare(queue=queue, durable=True, arguments=arguments), spec.Queue.DeclareOk)
        peer.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
        last = total_bytes // body_bytes
        for _ in range(last):
            peer.publish(bytes(body_bytes), routing_key=queue, properties=PERSISTENT)
        confirmed = 0
        while confirmed < last:
            method = peer.read_frame().method
            confirmed = method.delivery_tag if isinstance(method, spec.Basic.Ack) else confirmed


def test_unacked_deliveries_without_prefetch_are_paged_out(node: ServeProcess) -> None:
    fill(node, "queue", 300 * MIB, 100_000)
    with Honest(node) as honest, Peer(*node.address("amqp")).open() as hoarder:
        hoarder.ask(spec.Basic.Consume(queue="queue"), spec.Basic.ConsumeOk)
        for _ in range(300 * MIB // 100_000):
            assert len(hoarder.expect_content(spec.Basic.Deliver).body) == 100_000
        honest.expect_work()
        assert peak_rss_bytes(node) < ALLOWED_BYTES
    assert honest.slowest_s < 5


def test_uncommitted_transactions_are_refused_when_they_take_too_much(node: ServeProcess) -> None:
    with Honest(node) as honest, contextlib.ExitStack() as all_:
        peers = [all_.enter_context(Peer(*node.address("amqp"))).open() for _ in range(3)]
        for peer in peers:
            peer.ask(spec.Tx.Select(), spec.Tx.SelectOk)
        for _ in range(900):
            for peer in peers:
                with contextlib.suppress(OSError):
                    peer.publish(bytes(100_000), routing_key="honest", properties=PERSISTENT)
        honest.expect_work()
        assert peak_rss_bytes(node) < ALLOWED_BYTES
    assert honest.slowest_s < 5


def test_transaction_that_is_too_large_is_told_so(node: ServeProcess) -> None:
    with Peer(*node.address("amqp")).open() as peer:
        peer.ask(spec.Tx.Select(), spec.Tx.SelectOk)
        for _ in range(400):
            peer.publish(bytes(100_000), routing_key="queue", properties=PERSISTENT)
        peer.expect_connection_close(506, "RESOURCE_ERROR - the connection uses")


def test_transaction_within_its_share_is_committed(node: ServeProcess) -> None:
    with Peer(*node.address("amqp")).open() as peer:
        peer.ask(spec.Queue.Declare(queue="queue", durable=True), spec.Queue.DeclareOk)
        peer.ask(spec.Tx.Select(), spec.Tx.SelectOk)
        for _ in range(100):
            peer.publish(bytes(100_000), routing_key="queue", properties=PERSISTENT)
        peer.ask(spec.Tx.Commit(), spec.Tx.CommitOk)
        assert peer.ask(spec.Queue.Declare(queue="queue", passive=True), spec.Queue.DeclareOk).message_count == 100


def test_unfinished_contents_are_refused_when_they_take_too_much(node: ServeProcess) -> None:
    with Honest(node) as honest, contextlib.ExitStack() as all_:
        for _ in range(4):
            peer = all_.enter_context(Peer(*node.address("amqp"))).open(channels=20)
            with contextlib.suppress(OSError):
                for channel in range(1, 21):
                    peer.send_bytes(unfinished_content(channel, 4 * MIB))
        honest.expect_work()
        assert peak_rss_bytes(node) < ALLOWED_BYTES
    assert honest.slowest_s < 5


def test_unfinished_thorbang_requests_are_refused_when_they_take_too_much(node: ServeProcess) -> None:
    with Honest(node) as honest:
        for _ in range(30):
            peer = ThorBangPeer(node.connect("thorbang"))
            with contextlib.suppress(OSError):
                peer.send_raw(b"MSG,0,1,1,1,0," + b"x" * 10 * MIB)
        honest.expect_work()
        assert peak_rss_bytes(node) < ALLOWED_BYTES
    assert honest.slowest_s < 5


def test_direct_replies_to_clients_that_do_not_read_are_dropped(node: ServeProcess) -> None:
    with Honest(node) as honest, contextlib.ExitStack() as all_:
        requesters = [all_.enter_context(Peer(*node.address("amqp"))).open() for _ in range(4)]
        server = all_.enter_context(Peer(*node.address("amqp"))).open()
        server.ask(spec.Queue.Declare(queue="requests"), spec.Queue.DeclareOk)
        for peer in requesters:
            peer.ask(spec.Basic.Consume(queue="amq.rabbitmq.reply-to", no_ack=True), spec.Basic.ConsumeOk)
            reply_to = spec.BasicProperties(reply_to="amq.rabbitmq.reply-to")
            peer.publish(b"?", routing_key="requests", properties=reply_to)
        server.ask(spec.Basic.Consume(queue="requests", no_ack=True), spec.Basic.ConsumeOk)
        names = [server.expect_content(spec.Basic.Deliver).properties.reply_to for _ in requesters]
        for _ in range(600):
            for name in names:
                server.publish(bytes(100_000), routing_key=name)
        server.ask(spec.Basic.Qos(), spec.Basic.QosOk)
        honest.expect_work()
        assert peak_rss_bytes(node) < ALLOWED_BYTES
        # What was sent before is whole.
        assert len(requesters[0].expect_content(spec.Basic.Deliver).body) == 100_000
    assert honest.slowest_s < 5


def status(node: ServeProcess) -> Any:
    with Api(place_at(f"http://{node.address('http')}")) as api:
        return api.get("flyball", "status")


def put_large(node: ServeProcess, count: int) -> tuple[ThorBangPeer, int, int]:
    """Put messages of 10 MB into a queue, and others behind them, so that not all of them are in memory."""
    peer = ThorBangPeer(node.connect("thorbang"))
    client_id, queue_id = peer.set_up()
    for size in [10 * MIB] * count + [MIB] * 40:
        assert peer.ask(f"MSG,-1,{client_id},{queue_id},1,0," + "x" * size) == ["OK"]
    return peer, client_id, queue_id


def test_hundreds_of_peeks_at_a_large_message_go_one_by_one(node: ServeProcess) -> None:
    peer, client_id, queue_id = put_large(node, 5)
    with Honest(node) as honest:
        peer.send(*[f"PEEKQ,{client_id},{queue_id},1"] * 256)
        honest.expect_work()
        assert len(peer.receive()) > 10 * MIB
        honest.expect_work()
        assert peak_rss_bytes(node) < ALLOWED_BYTES
    assert honest.slowest_s < 5


def test_hundreds_of_listings_of_large_messages_go_one_by_one(node: ServeProcess) -> None:
    _, client_id, queue_id = put_large(node, 3)
    peer = TelestoPeer(node.connect("telesto"))
    peer.get(telesto.IdentifyClientResponse, telesto.IdentifyClient(1, client_id))
    with Honest(node) as honest:
        peer.send(*[telesto.GetMessages(1000 + number, queue_id) for number in range(256)])
        honest.expect_work()
        refused = peer.receive()
        assert isinstance(refused, telesto.Error)
        assert "do not fit into an answer" in refused.details
        honest.expect_work()
        assert peak_rss_bytes(node) < ALLOWED_BYTES
    assert honest.slowest_s < 5


def test_takes_of_large_messages_wait_for_the_answers_before_them(tmp_path: Path) -> None:
    # All of them are in memory: what is measured is how many answers are there at once.
    with ServeProcess(tmp_path, store="memory", log_level="error") as node:
        thorbang = ThorBangPeer(node.connect("thorbang"))
        client_id, queue_id = thorbang.set_up()
        for _ in range(12):
            assert thorbang.ask(f"MSG,-1,{client_id},{queue_id},1,0," + "x" * 10 * MIB) == ["OK"]
        before = peak_rss_bytes(node)
        thorbang.send(*[f"POPQ,{client_id},{queue_id},1"] * 12)
        for _ in range(12):
            assert len(thorbang.receive()) > 10 * MIB
        assert peak_rss_bytes(node) - before < 60 * MIB


def test_puts_of_the_research_protocols_are_refused_when_memory_is_full(tmp_path: Path) -> None:
    with ServeProcess(tmp_path, store="memory", memory_bytes=MEMORY_BYTES, log_level="error") as node:
        peer = ThorBangPeer(node.connect("thorbang"))
        client_id, queue_id = peer.set_up()
        put = f"MSG,-1,{client_id},{queue_id},1,0,text"
        with Peer(*node.address("amqp")).open() as publisher:
            publisher.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
            method: object = spec.Basic.Ack()
            while isinstance(method, spec.Basic.Ack):
                publisher.publish(b"x" * 100_000, routing_key="queue")
                method = publisher.read_frame().method
            assert isinstance(method, spec.Connection.Blocked)
            wait_until(lambda: peer.ask(put)[0].startswith("FAIL"))
            assert peak_rss_bytes(node) < ALLOWED_BYTES
            # What is taken makes room.
            assert all(len(answer) > 100_000 for answer in peer.ask(*[f"POPQ,{client_id},{queue_id},1"] * 200))
            wait_until(lambda: peer.ask(put) == ["OK"])


def test_put_of_many_copies_keeps_others_from_putting_only_until_it_is_stored(node: ServeProcess) -> None:
    peer = ThorBangPeer(node.connect("thorbang"))
    client_id, queue_id = peer.set_up()
    queue_ids = ";".join([str(queue_id)] * 200)
    assert peer.ask(f"MSG,-1,{client_id},{queue_ids},1,0," + "x" * MIB) == ["OK"]
    wait_until(lambda: peer.ask(f"MSG,-1,{client_id},{queue_id},1,0,x") == ["OK"])
    assert peak_rss_bytes(node) < ALLOWED_BYTES


def test_unpageable_messages_are_delivered_up_to_a_share(node: ServeProcess) -> None:
    with Peer(*node.address("amqp")).open() as peer, Peer(*node.address("amqp")).open() as hoarder:
        peer.ask(spec.Queue.Declare(queue="queue", durable=True), spec.Queue.DeclareOk)
        peer.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
        for _ in range(720):
            peer.publish(bytes(100_000), routing_key="queue")
            peer.expect(spec.Basic.Ack)
        with Honest(node) as honest:
            hoarder.ask(spec.Basic.Consume(queue="queue"), spec.Basic.ConsumeOk)
            for _ in range(720):
                hoarder.expect_content(spec.Basic.Deliver)
            wait_until(lambda: status(node)["ledger"]["held_back_connections"] == 1)
            peer.publish(b"more", routing_key="queue")
            peer.expect(spec.Basic.Ack)
            # Whatever was sent before this answer has come.
            hoarder.ask(spec.Basic.Qos(), spec.Basic.QosOk)
            honest.expect_work()
            hoarder.send(spec.Basic.Ack(delivery_tag=720, multiple=True))
            assert hoarder.expect_content(spec.Basic.Deliver).body == b"more"
            assert peak_rss_bytes(node) < ALLOWED_BYTES
        assert honest.slowest_s < 5


def test_distinct_properties_of_many_channels_are_not_all_remembered(node: ServeProcess) -> None:
    before = rss_bytes(node)
    with Honest(node) as honest, Peer(*node.address("amqp")).open(channels=4) as peer:
        for number in range(2500):
            properties = spec.BasicProperties(headers={"h": f"{number:06d}" * 8000})
            peer.publish(b"x", routing_key="nowhere", properties=properties, channel=1 + number % 4)
        peer.ask(spec.Basic.Qos(), spec.Basic.QosOk)
        honest.expect_work()
        assert rss_bytes(node) - before < 40 * MIB
    assert honest.slowest_s < 5


def test_definitions_beyond_their_share_are_refused(node: ServeProcess) -> None:
    with Honest(node) as honest, Peer(*node.address("amqp")).open() as peer:
        arguments = {"x-text": "x" * 60_000}
        refused = None
        for number in range(2000):
            peer.send(spec.Queue.Declare(queue=f"q{number}", arguments=arguments, exclusive=True))
            method = peer.read_frame().method
            if isinstance(method, spec.Channel.Close):
                refused = method
                break
        assert refused is not None
        assert (refused.reply_code, "raise --memory-bytes" in refused.reply_text) == (406, True)
        honest.expect_work()
        assert peak_rss_bytes(node) < ALLOWED_BYTES
    assert honest.slowest_s < 5


# Over HTTP


def ask_over_http(node: ServeProcess, request: str, body: bytes = b"") -> socket.socket:
    """Ask for something whose answer is not read."""
    asking = socket.socket()
    asking.settimeout(ANSWER_LIMIT_S)
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    asking.connect(node.address("http"))
    # One that holds too much may be refused before all of it is sent.
    with contextlib.suppress(OSError):
        asking.sendall(
            f"{request} HTTP/1.1\r\nhost: localhost\r\nauthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
    return asking


def fill_with_large(node: ServeProcess, queue: str, count: int, body_bytes: int) -> None:
    """Publish persistent messages that need many frames each."""
    host, port = node.address("amqp")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port, heartbeat=0))
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    for _ in range(count):
        channel.basic_publish("", queue, bytes(body_bytes), pika.BasicProperties(delivery_mode=2))
    connection.close()


GET = b'{"count": 100, "ackmode": "ack_requeue_true", "encoding": "base64"}'


@pytest.mark.parametrize("body_bytes", [600_000, 10 * MIB])
@pytest.mark.parametrize(
    ("request_line", "document"),
    [
        ("GET /api/flyball/queues/%2F/queue/messages", b""),
        ("GET /api/flyball/queues/%2F/queue/messages/first", b""),
        ("POST /api/queues/%2F/queue/get", GET),
    ],
    ids=["list", "first", "get"],
)
def test_what_http_answers_hold_is_bounded_by_the_limits(
    node: ServeProcess, request_line: str, document: bytes, body_bytes: int
) -> None:
    fill_with_large(node, "queue", 60 * MIB // body_bytes, body_bytes)
    with Honest(node) as honest, contextlib.ExitStack() as all_:
        asking = [
            all_.enter_context(contextlib.closing(ask_over_http(node, request_line, document))) for _ in range(50)
        ]
        # Answers begin when what they hold at first is in memory, or are refused.
        assert asking[0].recv(5) == b"HTTP/"
        for _ in range(20):
            honest.expect_work()
        assert peak_rss_bytes(node) < ALLOWED_BYTES
    assert honest.slowest_s < 5


def test_what_http_requests_hold_is_bounded_by_the_limits(node: ServeProcess) -> None:
    document = b'{"properties":{},"routing_key":"none","payload_encoding":"string","payload":"%s"}' % (b"x" * 7 * MIB)
    with Honest(node) as honest, contextlib.ExitStack() as all_:
        request_line = "POST /api/exchanges/%2F/amq.default/publish"
        asking = [
            all_.enter_context(contextlib.closing(ask_over_http(node, request_line, document))) for _ in range(20)
        ]
        for each in asking:
            with contextlib.suppress(ConnectionResetError):
                assert each.recv(5) in (b"HTTP/", b"")
        honest.expect_work()
        assert peak_rss_bytes(node) < ALLOWED_BYTES
    assert honest.slowest_s < 5
