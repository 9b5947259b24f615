"""Publishers are slowed by what is scarce, and no other clients are."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import pytest
from pika import spec

from flyball.broker.core.broker import Broker
from flyball.broker.core.flow import NO_MEMORY, NO_STORE, Flow
from flyball.broker.core.memory import Ledger
from flyball.broker.management.flyball_api.status import status_of
from flyball.broker.node.node import Node
from flyball.broker.protocols.amqp.session import CREDIT_BYTES, LONG_READ_BYTES, AmqpSession
from flyball.broker.store.interface import Batch
from flyball.broker.store.memory import MemoryStore
from tests.broker.protocols.amqp.compatibility.peer import BODY as BODY_FRAME
from tests.broker.protocols.amqp.compatibility.peer import HEADER, Peer, frame, method_frame
from tests.control.clock import run_leaping
from tests.nodes import Gate, RunningNode

SETPOINT_BYTES = 256 * 1024
BODY = b"x" * 500
COST_BYTES = 200 + len(BODY)
PERSISTENT = spec.BasicProperties(delivery_mode=2)
TRANSIENT = spec.BasicProperties(delivery_mode=1)


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyball.broker.core.flow.CONGESTED_BYTES", SETPOINT_BYTES)


@pytest.fixture
def connect() -> Iterator[Callable[[RunningNode], Peer]]:
    """Open a connection with channel 1."""
    with ExitStack() as peers:

        def open_peer(node: RunningNode) -> Peer:
            host, port = node.address("amqp")
            return peers.enter_context(Peer(host, port)).open()

        yield open_peer


def declare(peer: Peer, queue_name: str) -> None:
    peer.ask(spec.Queue.Declare(queue=queue_name, durable=True), spec.Queue.DeclareOk)


def ready(node: Node, queue_name: str) -> int:
    return next(len(state) for state in node.hub.broker.engine.queues if state.queue.name == queue_name)


def flow_report(node: Node) -> dict[str, Any]:
    report: dict[str, Any] = status_of(node.hub)["flow"]
    return report


def is_standing(node: Node) -> bool:
    report = flow_report(node)
    return bool(report["waiting_connections"]) and report["commit_queue"]["rate_bytes_per_s"] == 0


@contextmanager
def flooding(peer: Peer, queue_name: str, count: int, properties: Any = PERSISTENT) -> Iterator[None]:
    """Publish `count` messages meanwhile, as fast as the node takes them; on leaving all of them are sent."""

    def publish() -> None:
        for _ in range(count):
            peer.publish(BODY, routing_key=queue_name, properties=properties)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        thread.join()


# The store


def test_hanging_store_blocks_publishers_without_loss(
    gate: Gate, memory_node: RunningNode, connect: Callable[[RunningNode], Peer]
) -> None:
    publisher = connect(memory_node)
    declare(publisher, "flood")
    gate.close(memory_node)
    with flooding(publisher, "flood", 10_000):
        assert publisher.expect(spec.Connection.Blocked, 0).reason == NO_STORE
        report = memory_node.call(flow_report)
        assert report["blocked_connections"] == 1
        assert report["commit_queue"]["fill_ratio"] < 2.1
        assert report["commit_queue"]["setpoint_bytes"] == SETPOINT_BYTES
        gate.open(memory_node)
        publisher.expect(spec.Connection.Unblocked, 0)
    memory_node.wait_until(lambda node: ready(node, "flood") == 10_000)
    memory_node.wait_until(lambda node: not flow_report(node)["under_pressure"])
    assert memory_node.call(flow_report)["blocked_connections"] == 0


def test_new_publisher_is_blocked_with_its_first_message(
    gate: Gate, memory_node: RunningNode, connect: Callable[[RunningNode], Peer]
) -> None:
    publisher, late = connect(memory_node), connect(memory_node)
    declare(publisher, "flood")
    gate.close(memory_node)
    with flooding(publisher, "flood", 2_000):
        publisher.expect(spec.Connection.Blocked, 0)
        late.ask(spec.Basic.Qos(prefetch_count=1), spec.Basic.QosOk)
        late.publish(BODY, routing_key="flood")
        assert late.expect(spec.Connection.Blocked, 0).reason == NO_STORE
        gate.open(memory_node)
        publisher.expect(spec.Connection.Unblocked, 0)
        late.expect(spec.Connection.Unblocked, 0)


def test_a_client_that_does_not_know_blocking_is_only_slowed(gate: Gate, memory_node: RunningNode) -> None:
    host, port = memory_node.address("amqp")
    with Peer(host, port) as publisher:
        publisher.open(properties={})
        declare(publisher, "flood")
        gate.close(memory_node)
        with flooding(publisher, "flood", 2_000):
            memory_node.wait_until(lambda node: flow_report(node)["blocked_connections"] == 1)
            gate.open(memory_node)
        publisher.ask(spec.Basic.Qos(prefetch_count=1), spec.Basic.QosOk)


def test_consumers_continue_while_publishers_are_paused(
    gate: Gate, memory_node: RunningNode, connect: Callable[[RunningNode], Peer]
) -> None:
    publisher, consumer = connect(memory_node), connect(memory_node)
    declare(publisher, "flood")
    declare(consumer, "work")
    # It has published too: what counts is that it does not now.
    for number in range(100):
        consumer.publish(b"%d" % number, routing_key="work", properties=PERSISTENT)
    consumer.ask(spec.Basic.Qos(prefetch_count=5), spec.Basic.QosOk)
    gate.close(memory_node)
    with flooding(publisher, "flood", 2_000):
        memory_node.wait_until(is_standing)
        consumer.ask(spec.Basic.Consume(queue="work", consumer_tag="c"), spec.Basic.ConsumeOk)
        for number in range(100):
            delivery = consumer.expect_content(spec.Basic.Deliver)
            assert delivery.body == b"%d" % number
            consumer.send(spec.Basic.Ack(delivery.method.delivery_tag))
        assert memory_node.call(is_standing)
        gate.open(memory_node)


def test_a_client_can_connect_and_consume_while_publishers_stand(
    gate: Gate, memory_node: RunningNode, connect: Callable[[RunningNode], Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flyball.broker.core.broker.CONGESTED_BYTES", SETPOINT_BYTES // 2)
    publisher = connect(memory_node)
    declare(publisher, "flood")
    gate.close(memory_node)
    with flooding(publisher, "flood", 2_000):
        memory_node.wait_until(is_standing)
        assert memory_node.call(lambda node: node.hub.broker.is_congested)
        consumer = connect(memory_node)
        consumer.ask(spec.Basic.Consume(queue="flood", consumer_tag="c"), spec.Basic.ConsumeOk)
        assert consumer.expect_content(spec.Basic.Deliver).body == BODY
        gate.open(memory_node)


def test_commit_queue_stays_near_its_setpoint_with_a_slow_store(
    start_memory_node: Callable[..., RunningNode],
    connect: Callable[[RunningNode], Peer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit = MemoryStore.commit

    async def commit_slowly(store: MemoryStore, batch: Batch, *, again: bool = False) -> None:
        # Publishers on a machine many times slower than this one still fill it faster than that.
        await asyncio.sleep(0.002 + len(batch.appended) * COST_BYTES / 5e5)
        await commit(store, batch, again=again)

    monkeypatch.setattr(MemoryStore, "commit", commit_slowly)
    node = start_memory_node()
    first, second = connect(node), connect(node)
    declare(first, "first")
    declare(second, "second")
    fills: list[float] = []

    def is_done(node: Node) -> bool:
        fills.append(node.hub.broker.journal.pending_bytes / SETPOINT_BYTES)
        return ready(node, "first") + ready(node, "second") == 2_000

    with flooding(first, "first", 1_000), flooding(second, "second", 1_000):
        node.wait_until(lambda node: flow_report(node)["waiting_connections"] > 0)
        node.wait_until(is_done)
    assert 0.5 < max(fills) < 2.1


def test_without_numbers_for_new_messages_publishers_wait(
    memory_node: RunningNode, connect: Callable[[RunningNode], Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = connect(memory_node)
    declare(publisher, "work")
    monkeypatch.setattr(Broker, "has_message_ids", False)
    publisher.publish(BODY, routing_key="work")
    assert publisher.expect(spec.Connection.Blocked, 0).reason == NO_STORE
    assert memory_node.call(lambda node: ready(node, "work")) == 0
    monkeypatch.setattr(Broker, "has_message_ids", True)
    publisher.expect(spec.Connection.Unblocked, 0)
    memory_node.wait_until(lambda node: ready(node, "work") == 1)


# Memory


def test_unconsumed_transient_messages_block_their_publisher(
    start_memory_node: Callable[..., RunningNode], connect: Callable[[RunningNode], Peer]
) -> None:
    limit_bytes = 2 * 1024 * 1024
    node = start_memory_node(memory_bytes=limit_bytes)
    publisher, consumer = connect(node), connect(node)
    declare(publisher, "flood")
    with flooding(publisher, "flood", 6_000, TRANSIENT):
        assert publisher.expect(spec.Connection.Blocked, 0).reason == NO_MEMORY
        assert node.call(lambda node: node.hub.broker.engine.resident_bytes) < 1.1 * limit_bytes
        consumer.ask(spec.Basic.Consume(queue="flood", consumer_tag="c", no_ack=True), spec.Basic.ConsumeOk)
        for _ in range(6_000):
            consumer.expect_content(spec.Basic.Deliver)
        publisher.expect(spec.Connection.Unblocked, 0)


def test_what_a_blocked_publisher_has_not_acked_is_given_back_when_it_has_gone(
    start_memory_node: Callable[..., RunningNode], connect: Callable[[RunningNode], Peer]
) -> None:
    node = start_memory_node(memory_bytes=2 * 1024 * 1024)
    publisher = connect(node)
    declare(publisher, "work")
    declare(publisher, "flood")
    publisher.publish(BODY, routing_key="work")
    publisher.ask(spec.Basic.Consume(queue="work", consumer_tag="c"), spec.Basic.ConsumeOk)
    publisher.expect_content(spec.Basic.Deliver)
    while not (report := node.call(flow_report))["blocked_connections"]:
        # No more than the node has read, or it would not notice the end.
        if not report["waiting_connections"]:
            publisher.publish(BODY, routing_key="flood", properties=TRANSIENT)
    assert publisher.expect(spec.Connection.Blocked, 0).reason == NO_MEMORY
    publisher.hang_up()
    node.wait_until(lambda node: ready(node, "work") == 1)


# Others


def test_a_flood_is_read_once_in_a_turn_of_the_loop_so_that_others_have_theirs(
    memory_node: RunningNode, connect: Callable[[RunningNode], Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = 0
    counting = threading.Event()
    long_reads: list[int] = []
    feed = AmqpSession.feed

    def note_and_feed(session: AmqpSession, data: bytes) -> None:
        if len(data) >= LONG_READ_BYTES:
            long_reads.append(turn)
        feed(session, data)

    def is_done(node: Node) -> bool:
        nonlocal turn
        turn += 1
        counting.set()
        return ready(node, "flood") == 200

    monkeypatch.setattr(AmqpSession, "feed", note_and_feed)
    publisher = connect(memory_node)
    declare(publisher, "flood")
    method = method_frame(spec.Basic.Publish(exchange="", routing_key="flood"))
    header = frame(HEADER, 1, struct.pack(">HHQ", spec.Basic.INDEX, 0, 100_000) + b"\0\0")
    message = method + header + frame(BODY_FRAME, 1, b"x" * 100_000)

    def send_all_at_once() -> None:
        counting.wait()
        publisher.send_bytes(message * 200)

    with ThreadPoolExecutor() as threads:
        sending = threads.submit(send_all_at_once)
        memory_node.wait_until(is_done)
        sending.result()
    assert long_reads
    assert len(long_reads) == len(set(long_reads))


# Without pressure


def test_while_nothing_is_scarce_no_clock_runs(
    memory_node: RunningNode, connect: Callable[[RunningNode], Peer]
) -> None:
    publisher = connect(memory_node)
    declare(publisher, "work")
    publisher.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
    for _ in range(50):
        publisher.publish(BODY, routing_key="work", properties=PERSISTENT)
        publisher.expect(spec.Basic.Ack)
    report = memory_node.call(flow_report)
    assert not report["under_pressure"]
    assert report["commit_queue"]["rate_bytes_per_s"] is None


# Sharing, with publishers that always have something to send


class DrainingJournal:
    """Drains what it is given at a steady rate."""

    last_commit_bytes = 0
    last_commit_s = 0.0

    def __init__(self, drain_per_s: float) -> None:
        self._drain_per_s = drain_per_s
        self._began = asyncio.get_running_loop().time()
        self.received_bytes = SETPOINT_BYTES

    @property
    def bytes_committed(self) -> int:
        elapsed_s = asyncio.get_running_loop().time() - self._began
        return min(self.received_bytes, int(self._drain_per_s * elapsed_s))

    @property
    def pending_bytes(self) -> int:
        return self.received_bytes - self.bytes_committed


class Residents:
    """The messages in memory."""

    resident_bytes = 0
    resident_limit_bytes: int | None = None
    absent_bytes = 0


class FloodingBroker:
    """The part of a broker that the flow sees."""

    has_message_ids = True
    is_low_on_disk = False

    def __init__(self, drain_per_s: float) -> None:
        self.journal = DrainingJournal(drain_per_s)
        self.engine = Residents()
        self.ledger = Ledger(self.engine, 2**30)


class GreedySession:
    """Publishes whenever it may."""

    def __init__(self, flow: Flow, journal: DrainingJournal, message_bytes: int, enough: asyncio.Event) -> None:
        self._flow = flow
        self._journal = journal
        self._message_bytes = message_bytes
        self._enough = enough
        self.credit = 0
        self.published_bytes = 0

    def go_on(self) -> None:
        while True:
            if self.credit <= 0 and not self._flow.grant(cast(AmqpSession, self), CREDIT_BYTES):
                return
            self.credit -= self._message_bytes
            self.published_bytes += self._message_bytes
            self._journal.received_bytes += self._message_bytes
            if self.published_bytes > 20 * CREDIT_BYTES:
                self._enough.set()


def test_publishers_share_what_may_be_sent_whatever_the_size_of_their_messages() -> None:
    async def publish() -> list[int]:
        broker = FloodingBroker(drain_per_s=2e6)
        flow = Flow(cast(Broker, broker), 2**30)
        enough = asyncio.Event()
        sessions = [GreedySession(flow, broker.journal, size, enough) for size in (210, 700, 5000, CREDIT_BYTES)]
        for session in sessions:
            session.go_on()
        await enough.wait()
        return [session.published_bytes for session in sessions]

    amounts = run_leaping(publish())
    assert max(amounts) - min(amounts) < 3 * CREDIT_BYTES


def test_amqp_and_other_protocols_do_not_starve_each_other() -> None:
    async def publish() -> tuple[int, int]:
        broker = FloodingBroker(drain_per_s=2e6)
        flow = Flow(cast(Broker, broker), 2**30)
        enough = asyncio.Event()
        session = GreedySession(flow, broker.journal, 700, enough)
        session.go_on()
        others_bytes = 0
        async with asyncio.timeout(20):
            while not enough.is_set():
                if broker.journal.pending_bytes <= SETPOINT_BYTES:
                    broker.journal.received_bytes += 700
                    others_bytes += 700
                # As often as a loop turns; this one's clock does not go on by itself.
                await asyncio.sleep(0.0001)
        return session.published_bytes, others_bytes

    published_bytes, others_bytes = run_leaping(publish())
    assert 0.1 < published_bytes / (published_bytes + others_bytes) < 0.9


@pytest.mark.parametrize(("limit_bytes", "level_bytes"), [(None, 1000), (400, 600), (2000, 0)])
def test_memory_that_the_store_can_take_over_is_not_scarce(limit_bytes: int | None, level_bytes: int) -> None:
    async def report() -> dict[str, Any]:
        broker = FloodingBroker(drain_per_s=2e6)
        broker.engine.resident_bytes = 1000
        broker.engine.resident_limit_bytes = limit_bytes
        return Flow(cast(Broker, broker), 10_000).report()

    memory = asyncio.run(report())["memory"]
    assert (memory["level_bytes"], memory["fill_ratio"]) == (level_bytes, level_bytes / 10_000)
