"""Ids for new messages: a request gets all that it needs, waits for them or is refused; it never stops half-way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from pika import spec

from flyball.broker.core import broker
from flyball.broker.node.node import Node
from flyball.broker.wire import telesto as wire
from flyball.errors import FlyballError, StoreUnavailable
from flyball.model import MAX_COPIES, Draft, Message
from tests.broker.peers import telesto, thorbang
from tests.broker.protocols.amqp.compatibility.peer import Peer
from tests.nodes import RunningNode

PERSISTENT = spec.BasicProperties(delivery_mode=2)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, start_memory_node: Callable[..., RunningNode]) -> RunningNode:
    """One that gets ten ids at a time."""
    monkeypatch.setattr(broker, "ID_BLOCK", 10)
    return start_memory_node()


def leave(count: int) -> Callable[[Node], None]:
    """Give a node `count` ids, and no more until it requests them."""

    def forget(node: Node) -> None:
        engine = node.hub.broker.engine
        engine.renew_message_ids(engine.next_message_id, count)

    return forget


def opened(node: RunningNode) -> Peer:
    return Peer(*node.address("amqp")).open()


def bodies(node: RunningNode, queue: str) -> list[bytes]:
    def found(node: Node) -> list[bytes]:
        state = node.hub.broker.engine.find_queue(queue)
        assert state is not None
        return [message.body for message in state.oldest(0, 1000)]

    return node.call(found)


def test_put_with_more_copies_than_ids_left_changes_nothing(node: RunningNode) -> None:
    def put(node: Node) -> tuple[list[FlyballError | None], int, int]:
        told: list[FlyballError | None] = []

        def done(messages: Sequence[Message], error: FlyballError | None) -> None:
            told.append(error)

        broker = node.hub.broker
        queue_id = node.topology.create_queue("copies", lambda error: None).id
        leave(6)(node)
        pending = broker.journal.pending_count
        broker.put(Draft(b"body"), [queue_id] * 7, done)
        return told, len(broker.engine.queue(queue_id)), broker.journal.pending_count - pending

    [told], ready, pending = node.call(put)
    assert isinstance(told, StoreUnavailable)
    assert (ready, pending) == (0, 0)
    node.wait_until(lambda node: node.hub.broker.engine.message_ids_left >= 7)


def test_thorbang_message_for_too_many_queues_is_refused_before_it_is_stored(memory_node: RunningNode) -> None:
    peer = thorbang(memory_node)
    client_id, queue_id = peer.set_up()
    maximum = ";".join([str(queue_id)] * MAX_COPIES)
    assert peer.ask(f"MSG,{client_id},{client_id},{maximum};{queue_id},1,0,text") == ["FAIL UNKNOWN -1"]
    assert memory_node.call(lambda node: len(node.hub.broker.engine.queue(queue_id))) == 0
    assert peer.ask(f"MSG,{client_id},{client_id},{maximum},1,0,text") == ["OK"]
    assert memory_node.call(lambda node: len(node.hub.broker.engine.queue(queue_id))) == MAX_COPIES


def put(packet_id: int, queue_ids: Sequence[int]) -> wire.PutMessage:
    message = wire.WireMessage(0, queue_ids[0], 0, 0, 0, 1, 0, "text")
    return wire.PutMessage(packet_id, message, list(queue_ids[1:]))


def test_telesto_put_gets_ids_for_all_copies_or_stores_none(node: RunningNode) -> None:
    peer = telesto(node)
    queue_id = node.call(lambda node: node.topology.create_queue("copies", lambda error: None).id)
    node.call(leave(5))
    assert peer.refusal(put(1, [queue_id] * 7)) == wire.ErrorCode.INTERNAL_ERROR
    assert bodies(node, "copies") == []
    node.wait_until(lambda node: node.hub.broker.engine.message_ids_left >= 7)
    assert isinstance(peer.ask(put(2, [queue_id] * 7)), wire.Success)
    assert bodies(node, "copies") == [b"text"] * 7


@pytest.mark.parametrize("ids_left", [0, 3, 24])
def test_fanout_to_more_queues_than_a_block_has_ids_waits_for_them(node: RunningNode, ids_left: int) -> None:
    queues = [f"fan-{number}" for number in range(25)]
    with opened(node) as peer:
        for queue in queues:
            peer.ask(spec.Queue.Declare(queue=queue, durable=True), spec.Queue.DeclareOk)
            peer.ask(spec.Queue.Bind(queue=queue, exchange="amq.fanout", routing_key=""), spec.Queue.BindOk)
        peer.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
        node.call(leave(ids_left))
        for number in range(3):
            peer.publish(b"%d" % number, exchange="amq.fanout", properties=PERSISTENT)
        confirmed = 0
        while confirmed < 3:
            confirmed = peer.expect(spec.Basic.Ack).delivery_tag
    assert {tuple(bodies(node, queue)) for queue in queues} == {(b"0", b"1", b"2")}


def test_transaction_waits_for_ids_for_all_its_messages(node: RunningNode) -> None:
    with opened(node) as peer:
        peer.ask(spec.Queue.Declare(queue="tx", durable=True), spec.Queue.DeclareOk)
        peer.ask(spec.Tx.Select(), spec.Tx.SelectOk)
        for number in range(30):
            peer.publish(b"%d" % number, routing_key="tx", properties=PERSISTENT)
        peer.ask(spec.Basic.Qos(), spec.Basic.QosOk)
        node.call(leave(2))
        peer.ask(spec.Tx.Commit(), spec.Tx.CommitOk)
    assert bodies(node, "tx") == [b"%d" % number for number in range(30)]


def test_dead_letters_wait_for_ids_and_keep_their_order(node: RunningNode) -> None:
    arguments = {"x-dead-letter-exchange": "amq.fanout"}
    with opened(node) as peer:
        peer.ask(spec.Queue.Declare(queue="jobs", durable=True, arguments=arguments), spec.Queue.DeclareOk)
        for queue in ("dead", "copy"):
            peer.ask(spec.Queue.Declare(queue=queue, durable=True), spec.Queue.DeclareOk)
            peer.ask(spec.Queue.Bind(queue=queue, exchange="amq.fanout", routing_key=""), spec.Queue.BindOk)
        for number in range(30):
            peer.publish(b"%d" % number, routing_key="jobs", properties=PERSISTENT)
        peer.ask(spec.Basic.Consume(queue="jobs"), spec.Basic.ConsumeOk)
        for _ in range(30):
            peer.expect_content(spec.Basic.Deliver)
        node.call(leave(5))
        peer.send(spec.Basic.Nack(delivery_tag=30, multiple=True, requeue=False))
        node.wait_until(lambda node: len(ready(node, "copy")) == 30)
    expected = [b"%d" % number for number in range(30)]
    assert (bodies(node, "dead"), bodies(node, "copy")) == (expected, expected)
    assert node.call(lambda node: len(parked(node, "jobs"))) == 0


def ready(node: Node, queue: str) -> list[Message]:
    state = node.hub.broker.engine.find_queue(queue)
    return [] if state is None else state.oldest(0, 1000)


def parked(node: Node, queue: str) -> dict[int, object]:
    state = node.hub.broker.engine.find_queue(queue)
    assert state is not None
    return dict(state.parked)
