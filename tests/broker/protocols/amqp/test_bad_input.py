"""Whatever bytes a peer of AMQP sends: an answer or a closed connection, and no other client notices."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil
import pytest
from pika import spec

from flyball.broker.node.node import Node
from flyball.broker.protocols.amqp import connection as amqp_connection
from flyball.broker.protocols.amqp import session
from tests.broker.bystander import Bystander
from tests.broker.protocols.amqp.compatibility.peer import (
    BODY,
    CAPABILITIES,
    HEADER,
    HEARTBEAT,
    METHOD,
    PROTOCOL_HEADER,
    Peer,
    frame,
    method_frame,
    start_ok,
)
from tests.nodes import ANSWER_LIMIT_S, RunningNode, ServeProcess

SEED = 20260101
AT_ONCE = 50
MAX_MESSAGE_BYTES = 1024 * 1024

HEADERS = {
    "text": "é",
    "number": 2**40,
    "fraction": Decimal("1.5"),
    "flag": True,
    "time": datetime(2026, 1, 1, tzinfo=UTC),
    "list": [1, "two", {"three": None}],
    "CC": ["queue"],
}
PROPERTIES = spec.BasicProperties(
    "text/plain", "utf-8", HEADERS, 2, 5, "correlation", "queue", "60000", "id", 1_700_000_000, "type", None, "app"
)


def content(body: bytes, properties: Any = PROPERTIES, size: int | None = None) -> bytes:
    header = struct.pack(">HHQ", spec.Basic.INDEX, 0, len(body) if size is None else size)
    header += b"".join(properties.encode())
    return frame(HEADER, 1, header) + (frame(BODY, 1, body) if body else b"")


HANDSHAKE = b"".join(
    [
        PROTOCOL_HEADER,
        method_frame(start_ok({"capabilities": CAPABILITIES}, "PLAIN", b"\0guest\0guest"), 0),
        method_frame(spec.Connection.TuneOk(channel_max=2047, frame_max=131072, heartbeat=0), 0),
        method_frame(spec.Connection.Open(virtual_host="/"), 0),
        method_frame(spec.Channel.Open()),
    ]
)

DECLARING = b"".join(
    method_frame(method)
    for method in (
        spec.Exchange.Declare(
            exchange="exchange", type="headers", durable=True, arguments={"alternate-exchange": "amq.fanout"}
        ),
        spec.Exchange.Declare(exchange="other", type="topic", auto_delete=True),
        spec.Queue.Declare(
            queue="queue", durable=True, arguments={"x-max-length": 10, "x-dead-letter-exchange": "other"}
        ),
        spec.Queue.Bind(queue="queue", exchange="exchange", routing_key="key", arguments={"x-match": "any", "a": 1}),
        spec.Exchange.Bind(destination="other", source="exchange", routing_key="#"),
        spec.Queue.Unbind(queue="queue", exchange="exchange", routing_key="key"),
        spec.Exchange.Unbind(destination="other", source="exchange", routing_key="#"),
        spec.Queue.Purge(queue="queue"),
        spec.Exchange.Delete(exchange="exchange"),
        spec.Queue.Delete(queue="queue"),
    )
)

MESSAGES = b"".join(
    [
        method_frame(spec.Queue.Declare(queue="queue", durable=True, arguments={"x-max-length": 10})),
        method_frame(spec.Confirm.Select()),
        method_frame(spec.Basic.Publish(routing_key="queue", mandatory=True)) + content(b"body" * 100),
        method_frame(spec.Basic.Publish(exchange="amq.headers", routing_key="key")) + content(b""),
        method_frame(spec.Basic.Get(queue="queue")),
        method_frame(spec.Basic.Nack(delivery_tag=1)),
        method_frame(spec.Basic.Qos(prefetch_count=2)),
        method_frame(spec.Basic.Consume(queue="queue", consumer_tag="tag", arguments={"x-priority": 3})),
        frame(HEARTBEAT, 0, b""),
        method_frame(spec.Basic.Publish(routing_key="queue")) + content(b"", size=8) + frame(BODY, 1, b"two "),
        frame(BODY, 1, b"part"),
        method_frame(spec.Basic.Recover(requeue=True)),
        method_frame(spec.Basic.Cancel(consumer_tag="tag")),
        method_frame(spec.Channel.Open(), 2),
        method_frame(spec.Tx.Select(), 2),
        method_frame(spec.Tx.Commit(), 2),
        method_frame(spec.Channel.Close(reply_code=200, reply_text="bye", class_id=0, method_id=0), 2),
        method_frame(spec.Connection.Close(reply_code=200, reply_text="bye", class_id=0, method_id=0), 0),
    ]
)

# What comes unharmed, and what is damaged.
SESSIONS = {"handshake": (b"", HANDSHAKE), "declaring": (HANDSHAKE, DECLARING), "messages": (HANDSHAKE, MESSAGES)}


class GoodClient(Bystander):
    """Publishes and consumes."""

    def __init__(self, node: RunningNode) -> None:
        super().__init__()
        self._peer = Peer(*node.address("amqp")).open()
        self._peer.ask(spec.Queue.Declare(queue="good", exclusive=True), spec.Queue.DeclareOk)
        self._peer.ask(spec.Basic.Consume(queue="good", consumer_tag="good"), spec.Basic.ConsumeOk)

    def work_once(self) -> None:
        body = b"round %d" % self.rounds
        self._peer.publish(body, routing_key="good")
        delivery = self._peer.expect_content(spec.Basic.Deliver)
        assert delivery.body == body
        self._peer.send(spec.Basic.Ack(delivery_tag=delivery.method.delivery_tag))

    def close(self) -> None:
        self._peer.__exit__(None, None, None)


@pytest.fixture
def node(
    start_node: Callable[..., RunningNode], new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunningNode]:
    # A failed login is slow on purpose, and thousands of them are made here.
    monkeypatch.setattr(amqp_connection, "SILENT_CLOSE_S", 0.05)
    database = new_database()
    node = start_node(store=database, max_message_bytes=MAX_MESSAGE_BYTES, telesto="off", thorbang="off")
    yield node
    node.stop()
    # Whatever was declared and published can be read again.
    start_node(store=database, telesto="off", thorbang="off")


@pytest.fixture
def good_client(node: RunningNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[GoodClient]:
    with GoodClient(node) as good_client:
        # For those who come after it.
        monkeypatch.setattr(amqp_connection, "HANDSHAKE_S", 1.0)
        yield good_client


def attack(node: RunningNode, attempts: list[bytes], caplog: pytest.LogCaptureFixture) -> None:
    """Send each of them on a connection of its own, and see that the node ends each and has little to say."""
    caplog.clear()
    asyncio.run(_attack(node, attempts))
    for record in caplog.records:
        assert record.levelno < logging.WARNING or record.name == "flyball.server", record.getMessage()
        assert record.exc_info is None
        assert "\n" not in record.getMessage()
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) <= 2 * len(attempts)


async def _attack(node: RunningNode, attempts: list[bytes]) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(data: bytes) -> None:
        async with room:
            reader, writer = await asyncio.open_connection(*node.address("amqp"))
            try:
                async with asyncio.timeout(ANSWER_LIMIT_S):
                    # The node may have ended it before everything is said, which shows in many ways.
                    with contextlib.suppress(OSError):
                        writer.write(data)
                        await writer.drain()
                        writer.write_eof()
                        while await reader.read(65536):
                            pass
            except TimeoutError:
                raise AssertionError(f"the node neither ends nor answers after {data!r}") from None
            finally:
                writer.close()

    async with asyncio.TaskGroup() as tasks:
        for data in attempts:
            tasks.create_task(one(data))


def with_flipped_bits(damaged: bytes, chance: random.Random) -> bytes:
    data = bytearray(damaged)
    for _ in range(chance.choice((1, 1, 1, 3))):
        place = chance.randrange(len(data))
        data[place] = chance.choice((0, 1, 0x7F, 0x80, 0xCE, 0xFF, data[place] ^ 1 << chance.randrange(8)))
    return bytes(data)


def spliced(damaged: bytes, chance: random.Random) -> bytes:
    """Leave out, repeat or move a part."""
    first, second = sorted(chance.randrange(len(damaged)) for _ in range(2))
    part = damaged[first:second]
    return chance.choice(
        (
            damaged[:first] + damaged[second:],
            damaged[:second] + part + damaged[second:],
            part + damaged,
            damaged[second:] + part + damaged[:first],
        )
    )


def with_huge_sizes(damaged: bytes, chance: random.Random) -> bytes:
    """Put a large number where there may be a size."""
    size = chance.choice((b"\x00\x01\xff\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\x00\x00\x00"))
    place = chance.randrange(len(damaged))
    return damaged[:place] + size + damaged[place + len(size) :]


@pytest.mark.parametrize("damage", [with_flipped_bits, spliced, with_huge_sizes])
@pytest.mark.parametrize("name", SESSIONS)
def test_a_damaged_session_ends_well(
    name: str,
    damage: Callable[[bytes, random.Random], bytes],
    node: RunningNode,
    good_client: GoodClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before, damaged = SESSIONS[name]
    chance = random.Random(SEED)
    attack(node, [before + damage(damaged, chance) for _ in range(400)], caplog)
    expect_no_harm(node, good_client)


@pytest.mark.parametrize("name", SESSIONS)
def test_every_part_of_a_session_ends_well(
    name: str, node: RunningNode, good_client: GoodClient, caplog: pytest.LogCaptureFixture
) -> None:
    before, session = SESSIONS[name]
    attack(node, [before + session[:end] for end in range(0, len(session) + 1, 2)], caplog)
    expect_no_harm(node, good_client)


def test_noise_ends_well(node: RunningNode, good_client: GoodClient, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(SEED)
    for before in (b"", PROTOCOL_HEADER, HANDSHAKE):
        attack(node, [before + chance.randbytes(chance.randrange(1, 300)) for _ in range(200)], caplog)
    expect_no_harm(node, good_client)


def test_noise_in_whole_frames_ends_well(
    node: RunningNode, good_client: GoodClient, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(SEED)
    attempts: list[bytes] = []
    for _ in range(600):
        data = HANDSHAKE
        for _ in range(chance.randrange(1, 5)):
            class_id, method_id = chance.choice((10, 20, 40, 50, 60, 85, 90)), chance.randrange(1, 120)
            noise = chance.randbytes(chance.randrange(0, 40))
            payload = chance.choice((noise, struct.pack(">HH", class_id, method_id) + noise))
            data += frame(chance.choice((METHOD, METHOD, HEADER, BODY, HEARTBEAT)), chance.randrange(3), payload)
        attempts.append(data)
    attack(node, attempts, caplog)
    expect_no_harm(node, good_client)


def nested(depth: int, opening: bytes) -> bytes:
    """Return a table of tables of tables, or of lists, of this depth."""
    value = b"V"
    for _ in range(depth):
        inner = value if opening == b"A" else b"\x01x" + value
        value = opening + struct.pack(">I", len(inner)) + inner
    return struct.pack(">I", len(value) + 2) + b"\x01x" + value


@pytest.mark.parametrize("opening", [b"F", b"A"], ids=["tables", "lists"])
@pytest.mark.parametrize("depth", [50, 5000])
def test_what_is_nested_deeply_ends_well(
    depth: int, opening: bytes, node: RunningNode, good_client: GoodClient, caplog: pytest.LogCaptureFixture
) -> None:
    table = nested(depth, opening)
    declare = struct.pack(">HHHB", 50, 10, 0, 4) + b"deep" + b"\2" + table
    consume = struct.pack(">HHHB", 60, 20, 0, 4) + b"deep" + b"\x03tag\0" + table
    header = struct.pack(">HHQH", 60, 0, 0, 0x2000) + table
    publish = method_frame(spec.Basic.Publish(routing_key="deep")) + frame(HEADER, 1, header)
    to_headers = method_frame(spec.Basic.Publish(exchange="amq.headers")) + frame(HEADER, 1, header)
    bind = struct.pack(">HHHB", 50, 20, 0, 4) + b"deep" + b"\x0bamq.headers" + b"\0\0" + table
    queue = method_frame(spec.Queue.Declare(queue="deep", durable=True))
    bound = queue + method_frame(spec.Queue.Bind(queue="deep", exchange="amq.headers", arguments={"x": "y"}))
    attempts = [frame(METHOD, 1, declare), queue + publish, bound + to_headers, queue + frame(METHOD, 1, bind)]
    attempts += [queue + frame(METHOD, 1, consume)]
    attack(node, [HANDSHAKE + attempt for attempt in attempts], caplog)
    expect_no_harm(node, good_client)


def expect_no_harm(node: RunningNode, good_client: GoodClient) -> None:
    """The node has forgotten the bad connections, holds nothing for them, and the good one is at work."""
    node.wait_until(lambda node: len(node.hub.connections) == 1)
    good_client.expect_work()
    good_client.__exit__(None, None, None)
    node.wait_until(is_at_rest)


def is_at_rest(node: Node) -> bool:
    broker = node.hub.broker
    return (
        not node.hub.connections
        and not any(state.unacked or state.consumers for state in broker.engine.queues)
        and broker.journal.pending_count == 0
        and not node.hub.stalled
    )


# Peers that say little


BEGINNINGS = {
    "nothing": b"",
    "half a header": PROTOCOL_HEADER[:4],
    "a header": PROTOCOL_HEADER,
    "half a frame": PROTOCOL_HEADER + method_frame(start_ok({}, "PLAIN", b"\0guest\0guest"), 0)[:20],
    "a login": PROTOCOL_HEADER + method_frame(start_ok({}, "PLAIN", b"\0guest\0guest"), 0),
    "heartbeats": PROTOCOL_HEADER + 100 * frame(HEARTBEAT, 0, b""),
}


@pytest.mark.parametrize("case", BEGINNINGS)
def test_a_peer_that_does_not_end_its_handshake_is_disconnected(
    case: str, node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amqp_connection, "HANDSHAKE_S", 1.0)
    with Peer(*node.address("amqp")) as peer:
        peer.send_bytes(BEGINNINGS[case])
        peer.read_to_end()


def test_client_properties_are_charged_before_login(node: RunningNode) -> None:
    with Peer(*node.address("amqp")) as peer:
        peer.log_in(password="wrong", properties={"x": [False] * 1900})
        node.wait_until(lambda node: [one.charged_bytes > 75_000 for one in node.hub.connections] == [True])
        connections = node.call(lambda node: list(node.hub.connections))
        peer.read_to_end()
    node.wait_until(lambda node: not node.hub.connections and node.hub.broker.ledger.connections_bytes == 0)
    assert [one.client_properties for one in connections if isinstance(one, session.AmqpSession)] == [{}]


def test_a_handshake_may_take_ten_seconds() -> None:
    assert amqp_connection.HANDSHAKE_S == 10.0


def test_a_large_body_that_is_only_announced_costs_nothing(tmp_path: Path) -> None:
    with (
        ServeProcess(tmp_path, store="memory", telesto="off", thorbang="off") as node,
        contextlib.ExitStack() as all_,
    ):
        process = psutil.Process(node.pid)
        peers = [all_.enter_context(Peer(*node.address("amqp"))).open() for _ in range(20)]
        before = process.memory_info().rss
        for peer in peers:
            peer.send(spec.Basic.Publish(routing_key="queue"))
            peer.send_bytes(content(b"", size=128 * 1024 * 1024))
            # The last frame of the header has been read when another channel's request behind it is answered.
            peer.send(spec.Channel.Open(), 2)
            peer.expect(spec.Channel.OpenOk, 2)
        assert process.memory_info().rss - before < 20 * 1024 * 1024


def test_a_body_above_the_limit_is_refused_before_it_is_sent(node: RunningNode) -> None:
    with Peer(*node.address("amqp")) as peer:
        peer.open()
        peer.send(spec.Basic.Publish(routing_key="queue"))
        peer.send_bytes(content(b"", size=MAX_MESSAGE_BYTES + 1))
        text = f"message size {MAX_MESSAGE_BYTES + 1} is larger than configured max size {MAX_MESSAGE_BYTES}"
        peer.expect_channel_close(406, f"PRECONDITION_FAILED - {text}", spec.Basic.Publish)
        peer.open_channel(2)
