"""However long the commands of one connection take, others have their turn of the loop between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pika import spec

from flyball.broker.core import topology as topology_module
from flyball.broker.core.broker import FEED_AT_ONCE, PURGED_ONE_BY_ONE, Broker
from flyball.broker.core.retention import DROPPED_AT_ONCE
from flyball.broker.engine.queue import Delivery
from flyball.broker.node.node import Node
from flyball.broker.protocols import requests as requests_module
from flyball.broker.protocols.amqp import session as session_module
from flyball.broker.protocols.amqp.session import AmqpSession
from flyball.broker.transport.connection import WRITE_BUFFER_BYTES, Connection
from flyball.model import Policy, Queue
from tests.broker.peers import ThorBangPeer
from tests.broker.protocols.amqp.compatibility.peer import Peer, method_frame
from tests.nodes import ANSWER_LIMIT_S, RunningNode


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    with RunningNode(tmp_path, store="memory") as running:
        yield running


@pytest.fixture
def peer(node: RunningNode) -> Iterator[Peer]:
    with Peer(*node.address("amqp")) as connected:
        connected.open()
        yield connected


def the_session(node: Node) -> AmqpSession:
    (session,) = [connection for connection in node.hub.connections if isinstance(connection, AmqpSession)]
    return session


def consume_often(peer: Peer, count: int) -> None:
    peer.ask(spec.Queue.Declare(queue="orders"), spec.Queue.DeclareOk)
    for number in range(count):
        peer.send(spec.Basic.Consume(queue="orders", consumer_tag=str(number), nowait=True))


def test_commands_that_take_long_are_carried_out_in_turns(
    node: RunningNode, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "TURN_NS", 0, raising=False)
    turns = 0
    go_on = AmqpSession.go_on

    def counted(session: AmqpSession) -> None:
        nonlocal turns
        turns += 1
        go_on(session)

    monkeypatch.setattr(AmqpSession, "go_on", counted)
    consume_often(peer, 3)
    turns = 0
    peer.send_bytes(b"".join([method_frame(spec.Basic.Qos(prefetch_count=number)) for number in range(1, 51)]))
    for _ in range(50):
        peer.expect(spec.Basic.QosOk)
    assert turns >= 49


def test_requests_of_other_protocols_are_carried_out_in_turns(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests_module, "TURN_NS", 0, raising=False)
    turns = 0
    go_on = Connection.go_on

    def counted(connection: Connection) -> None:
        nonlocal turns
        turns += 1
        go_on(connection)

    monkeypatch.setattr(Connection, "go_on", counted)
    peer = ThorBangPeer(node.connect("thorbang"))
    peer.send(*["HELLO"] * 50)
    assert [peer.receive() for _ in range(50)] == ["OK"] * 50
    assert turns >= 49


def test_connection_that_has_used_its_turn_waits_for_one_other(node: RunningNode, peer: Peer) -> None:
    peer.ask(spec.Queue.Declare(queue="orders"), spec.Queue.DeclareOk)

    async def count(running: Node) -> int:
        session = the_session(running)
        turns = 0

        def counted() -> None:
            nonlocal turns
            turns += 1

        session.go_on = counted  # type: ignore[method-assign]
        session.hub.stalled.add(session)
        for _ in range(5):
            session.hub.next_turn(session)
            session.hub.flush()
        await asyncio.sleep(0)
        return turns

    assert node.run(count) == 1


def test_rollback_of_many_acks_sorts_once(node: RunningNode, peer: Peer) -> None:
    count = 10_000
    peer.ask(spec.Queue.Declare(queue="orders"), spec.Queue.DeclareOk)
    for _ in range(count):
        peer.publish(b"", routing_key="orders")
    peer.ask(spec.Tx.Select(), spec.Tx.SelectOk)
    peer.ask(spec.Basic.Consume(queue="orders", consumer_tag="tag"), spec.Basic.ConsumeOk)
    for _ in range(count):
        peer.expect_content(spec.Basic.Deliver)
    peer.send_bytes(b"".join([method_frame(spec.Basic.Ack(tag)) for tag in range(1, count + 1)]))
    began_s = time.monotonic()
    peer.ask(spec.Tx.Rollback(), spec.Tx.RollbackOk)
    assert time.monotonic() - began_s < 2
    assert node.call(lambda running: list(the_session(running).channels[0].deliveries.unacked)) == [
        *range(1, count + 1)
    ]


def test_answers_of_many_gets_are_not_in_memory_together(
    node: RunningNode, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = bytes(100_000)
    most_bytes = 0
    send = AmqpSession.send

    def measured(session: AmqpSession, data: bytes) -> None:
        nonlocal most_bytes
        send(session, data)
        most_bytes = max(most_bytes, session._out_bytes)

    monkeypatch.setattr(AmqpSession, "send", measured)
    peer.ask(spec.Queue.Declare(queue="orders"), spec.Queue.DeclareOk)
    for _ in range(50):
        peer.publish(body, routing_key="orders")
    peer.send_bytes(method_frame(spec.Basic.Get(queue="orders", no_ack=True)) * 50)
    for _ in range(50):
        assert peer.expect_content(spec.Basic.GetOk).body == body
    assert most_bytes < WRITE_BUFFER_BYTES + 2 * len(body)


def test_policies_are_applied_to_many_queues_in_turns(
    node: RunningNode, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topology_module, "POLICIES_S", 0.0, raising=False)
    for number in range(50):
        peer.ask(spec.Queue.Declare(queue=str(number)), spec.Queue.DeclareOk)

    async def apply(running: Node) -> int:
        authority, queues = running.hub.authority, running.hub.broker.engine.queues
        authority.policies.set(Policy("limit", ".*", {"max-length": 5}))
        authority.policies_changed("/")
        turns = 0
        async with asyncio.timeout(ANSWER_LIMIT_S):
            while not all(state.traits.max_length == 5 for state in queues):
                await asyncio.sleep(0)
                turns += 1
        return turns

    assert node.run(apply) >= 49


def test_queue_that_may_hold_less_drops_messages_in_turns(node: RunningNode, peer: Peer) -> None:
    peer.ask(spec.Queue.Declare(queue="orders"), spec.Queue.DeclareOk)
    count = 3 * DROPPED_AT_ONCE
    for _ in range(count):
        peer.publish(b"", routing_key="orders")
    peer.ask(spec.Queue.Declare(queue="orders", passive=True), spec.Queue.DeclareOk)

    async def apply(running: Node) -> list[int]:
        authority, state = running.hub.authority, running.hub.broker.engine.find_queue("orders")
        assert state is not None
        authority.policies.set(Policy("limit", ".*", {"max-length": 5}))
        authority.policies_changed("/")
        lengths = [len(state)]
        async with asyncio.timeout(ANSWER_LIMIT_S):
            while len(state) > 5:
                await asyncio.sleep(0)
                lengths.append(len(state))
        return lengths

    lengths = node.run(apply)
    assert (lengths[0], lengths[-1]) == (count - DROPPED_AT_ONCE, 5)


def test_queue_that_is_dropping_messages_drops_no_more_with_each_that_comes(node: RunningNode, peer: Peer) -> None:
    peer.ask(spec.Queue.Declare(queue="orders"), spec.Queue.DeclareOk)
    for _ in range(5 * DROPPED_AT_ONCE):
        peer.publish(b"", routing_key="orders")
    peer.ask(spec.Queue.Declare(queue="orders", passive=True), spec.Queue.DeclareOk)

    async def apply(running: Node) -> list[int]:
        broker = running.hub.broker
        state = broker.engine.find_queue("orders")
        assert state is not None
        running.hub.authority.policies.set(Policy("limit", ".*", {"max-length": 5}))
        running.hub.authority.policies_changed("/")
        for _ in range(10):
            broker.retention.enforce_limits(state)
        lengths = [len(state)]
        # From now on the queue refuses new messages instead, and what it has stays.
        running.hub.authority.policies.set(Policy("limit", ".*", {"max-length": 5, "overflow": "reject-publish"}))
        running.hub.authority.policies_changed("/")
        for _ in range(10):
            await asyncio.sleep(0)
        return [*lengths, len(state)]

    assert node.run(apply) == [4 * DROPPED_AT_ONCE] * 2


def test_purge_of_many_stored_messages_leaves_them_to_the_store(node: RunningNode, peer: Peer) -> None:
    count = PURGED_ONE_BY_ONE + 2
    persistent = spec.BasicProperties(delivery_mode=2)
    peer.ask(spec.Queue.Declare(queue="orders", durable=True), spec.Queue.DeclareOk)
    peer.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
    for number in range(count):
        peer.publish(b"%d" % number, routing_key="orders", properties=persistent)
    confirmed = 0
    while confirmed < count:
        confirmed = peer.expect(spec.Basic.Ack).delivery_tag
    # Unacked messages are not purged, and later ones are not either.
    peer.send(spec.Basic.Get(queue="orders"))
    held = peer.expect_content(spec.Basic.GetOk)
    removed = node.call(lambda running: running.hub.broker.journal.rows_removed)
    peer.send(spec.Queue.Purge(queue="orders"))
    peer.publish(b"later", routing_key="orders", properties=persistent)
    assert peer.expect(spec.Queue.PurgeOk).message_count == count - 1
    assert peer.expect(spec.Basic.Ack).delivery_tag == count + 1
    assert node.call(lambda running: running.hub.broker.journal.rows_removed) == removed

    async def stored(running: Node) -> list[bytes]:
        (state,) = running.topology.engine.queues
        page = await running.hub.broker.store.page(state.queue.id, 0, 10, 10**6)
        return [message.body for message in page]

    assert node.run(stored) == [b"0", b"later"]
    peer.send(spec.Basic.Nack(delivery_tag=held.method.delivery_tag, requeue=True))
    for expected in (b"0", b"later"):
        peer.send(spec.Basic.Get(queue="orders", no_ack=True))
        assert peer.expect_content(spec.Basic.GetOk).body == expected


def test_requeued_messages_are_delivered_again_in_turns(
    node: RunningNode, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 3 * FEED_AT_ONCE + 1
    peer.ask(spec.Queue.Declare(queue="orders"), spec.Queue.DeclareOk)
    for number in range(count):
        peer.publish(b"%d" % number, routing_key="orders")
    peer.ask(spec.Basic.Consume(queue="orders"), spec.Basic.ConsumeOk)
    for _ in range(count):
        peer.expect_content(spec.Basic.Deliver)
    sizes: list[int] = []
    dispatch = Broker._dispatch

    def measured(broker: Broker, deliveries: Sequence[Delivery]) -> None:
        sizes.append(len(deliveries))
        dispatch(broker, deliveries)

    monkeypatch.setattr(Broker, "_dispatch", measured)
    peer.send(spec.Basic.RecoverAsync(requeue=True))
    again = [peer.expect_content(spec.Basic.Deliver).body for _ in range(count)]
    assert again == [b"%d" % number for number in range(count)]
    assert max(sizes) == FEED_AT_ONCE


def test_exclusive_queues_of_a_connection_that_is_gone_are_deleted_in_turns(
    node: RunningNode, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topology_module, "DELETIONS_S", 0.0, raising=False)
    for number in range(50):
        peer.ask(spec.Queue.Declare(queue=str(number), exclusive=True), spec.Queue.DeclareOk)

    async def leave(running: Node) -> int:
        topology, engine = running.topology, running.hub.broker.engine
        topology.delete_owned(the_session(running))
        # Its name is free at once.
        topology.declare_queue(Queue(0, "49", exclusive=True, durable=False), "another", lambda error: None)
        turns = 0
        async with asyncio.timeout(ANSWER_LIMIT_S):
            while len(engine.queues) > 1:
                await asyncio.sleep(0)
                turns += 1
        assert [state.queue.name for state in engine.queues] == ["49"]
        return turns

    assert node.run(leave) >= 47
