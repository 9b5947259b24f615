"""A transaction makes its operations durable together, and confirms them after that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pika import spec

from flyball.broker.node.node import Node
from flyball.broker.protocols.amqp import AmqpSession
from flyball.broker.protocols.amqp import transactions as transactions_module
from tests.broker.protocols.amqp.compatibility.peer import Content, Peer
from tests.nodes import Gate, RunningNode

PERSISTENT = spec.BasicProperties(delivery_mode=2)


def opened(node: RunningNode) -> Peer:
    return Peer(*node.address("amqp")).open()


def declare(peer: Peer, *queues: str) -> None:
    for queue in queues:
        peer.ask(spec.Queue.Declare(queue=queue, durable=True), spec.Queue.DeclareOk)


def is_committing(node: Node) -> bool:
    """Whether a connection waits for what it has to answer."""
    return any(connection.in_flight for connection in node.hub.connections)


def deliver_unwritten(publisher: Peer, consumer: Peer) -> Content:
    """Let a message be delivered whose insert waits behind another one, which the closed gate holds up."""
    for body in (b"first", b"second"):
        publisher.publish(body, routing_key="requests", properties=PERSISTENT)
        content = consumer.expect_content(spec.Basic.Deliver)
    return content


def test_tx_ack_never_cancels_unwritten_insert(gate: Gate, memory_node: RunningNode) -> None:
    with opened(memory_node) as publisher, opened(memory_node) as consumer:
        declare(publisher, "requests", "replies")
        publisher.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
        consumer.ask(spec.Tx.Select(), spec.Tx.SelectOk)
        consumer.ask(spec.Basic.Consume(queue="requests"), spec.Basic.ConsumeOk)
        gate.close(memory_node)
        request = deliver_unwritten(publisher, consumer)
        consumer.publish(b"reply", routing_key="replies", properties=PERSISTENT)
        consumer.send(spec.Basic.Ack(delivery_tag=request.method.delivery_tag))
        consumer.send(spec.Tx.Commit())
        memory_node.wait_until(is_committing)
        # Nothing is durable yet: the next answer is this one, and no confirm.
        publisher.ask(spec.Basic.Qos(), spec.Basic.QosOk)
        gate.open(memory_node)
        confirmed = 0
        while confirmed < 2:
            confirmed = publisher.expect(spec.Basic.Ack).delivery_tag
        consumer.expect(spec.Tx.CommitOk)
        assert memory_node.call(lambda node: node.hub.broker.journal.rows_appended) == 3


@pytest.mark.parametrize("arguments", [{}, {"x-dead-letter-exchange": "missing"}])
def test_tx_reject_never_cancels_unwritten_insert(
    gate: Gate, memory_node: RunningNode, arguments: dict[str, str]
) -> None:
    with opened(memory_node) as publisher, opened(memory_node) as consumer:
        declare(publisher, "replies")
        publisher.ask(spec.Queue.Declare(queue="requests", durable=True, arguments=arguments), spec.Queue.DeclareOk)
        publisher.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
        consumer.ask(spec.Tx.Select(), spec.Tx.SelectOk)
        consumer.ask(spec.Basic.Consume(queue="requests"), spec.Basic.ConsumeOk)
        gate.close(memory_node)
        request = deliver_unwritten(publisher, consumer)
        consumer.publish(b"reply", routing_key="replies", properties=PERSISTENT)
        consumer.send(spec.Basic.Reject(delivery_tag=request.method.delivery_tag, requeue=False))
        consumer.send(spec.Tx.Commit())
        memory_node.wait_until(is_committing)
        # Nothing is durable yet: the next answer is this one, and no confirm.
        publisher.ask(spec.Basic.Qos(), spec.Basic.QosOk)
        gate.open(memory_node)
        confirmed = 0
        while confirmed < 2:
            confirmed = publisher.expect(spec.Basic.Ack).delivery_tag
        consumer.expect(spec.Tx.CommitOk)
        assert memory_node.call(lambda node: node.hub.broker.journal.rows_appended) == 3


def test_transaction_larger_than_a_batch_is_written_in_one(gate: Gate, memory_node: RunningNode) -> None:
    with opened(memory_node) as peer:
        declare(peer, "requests", "replies")
        peer.ask(spec.Tx.Select(), spec.Tx.SelectOk)
        peer.publish(b"request", routing_key="requests", properties=PERSISTENT)
        peer.ask(spec.Tx.Commit(), spec.Tx.CommitOk)
        peer.send(spec.Basic.Get(queue="requests"))
        request = peer.expect_content(spec.Basic.GetOk)
        for _ in range(30):
            peer.publish(bytes(100_000), routing_key="replies", properties=PERSISTENT)
        peer.send(spec.Basic.Ack(delivery_tag=request.method.delivery_tag))
        commits = memory_node.call(lambda node: node.hub.broker.journal.commits)
        peer.ask(spec.Tx.Commit(), spec.Tx.CommitOk)
        assert memory_node.call(lambda node: node.hub.broker.journal.commits) == commits + 1


def test_memory_of_deliveries_acked_but_not_committed_is_counted_and_freed(memory_node: RunningNode) -> None:
    def unacked_bytes(node: Node) -> int:
        return sum(session.unacked_bytes for session in node.hub.connections if isinstance(session, AmqpSession))

    def page_out(node: Node) -> int:
        sessions = [session for session in node.hub.connections if isinstance(session, AmqpSession)]
        return sum(channel.deliveries.page_out(10**9) for session in sessions for channel in session.channels)

    with opened(memory_node) as peer:
        declare(peer, "requests")
        peer.ask(spec.Tx.Select(), spec.Tx.SelectOk)
        for _ in range(3):
            peer.publish(bytes(10_000), routing_key="requests", properties=PERSISTENT)
        peer.ask(spec.Tx.Commit(), spec.Tx.CommitOk)
        peer.ask(spec.Basic.Consume(queue="requests"), spec.Basic.ConsumeOk)
        for _ in range(3):
            peer.expect_content(spec.Basic.Deliver)
        held = memory_node.call(unacked_bytes)
        peer.send(spec.Basic.Ack(delivery_tag=0, multiple=True))
        peer.ask(spec.Basic.Qos(), spec.Basic.QosOk)
        assert memory_node.call(unacked_bytes) == held > 30_000
        assert memory_node.call(page_out) >= 30_000
        peer.ask(spec.Tx.Commit(), spec.Tx.CommitOk)
        assert memory_node.call(unacked_bytes) == 0


def test_transaction_is_charged_for_every_copy_that_its_commit_makes(
    start_memory_node: Callable[..., RunningNode],
) -> None:
    node = start_memory_node(memory_bytes=16 * 1024 * 1024)
    with opened(node) as peer:
        for number in range(500):
            peer.ask(spec.Queue.Declare(queue=str(number)), spec.Queue.DeclareOk)
            peer.ask(spec.Queue.Bind(queue=str(number), exchange="amq.fanout"), spec.Queue.BindOk)
        peer.ask(spec.Tx.Select(), spec.Tx.SelectOk)
        for _ in range(30):
            peer.publish(b"", "amq.fanout")
        peer.send(spec.Tx.Commit())
        peer.expect_connection_close(506, "RESOURCE_ERROR")


def test_transaction_that_would_keep_the_loop_for_long_is_refused(
    memory_node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions_module, "MAX_TRANSACTION_STEPS", 10)
    too_large = "PRECONDITION_FAILED - a transaction may publish and settle 10 messages in all queues: commit earlier"
    with opened(memory_node) as peer:
        declare(peer, "copies", "requests")
        for queue in ("copies", "requests"):
            peer.ask(spec.Queue.Bind(queue=queue, exchange="amq.fanout", routing_key=""), spec.Queue.BindOk)
        peer.ask(spec.Tx.Select(), spec.Tx.SelectOk)
        for _ in range(2):
            # The largest allowed: what was committed no longer counts.
            for _ in range(5):
                peer.publish(b"", exchange="amq.fanout")
            peer.ask(spec.Tx.Commit(), spec.Tx.CommitOk)
        for _ in range(6):
            peer.publish(b"", exchange="amq.fanout")
        assert peer.expect(spec.Channel.Close).reply_text == too_large
        peer.send(spec.Channel.CloseOk())
        # Nothing that it has settled is lost.
        peer.ask(spec.Channel.Open(), spec.Channel.OpenOk)
        peer.ask(spec.Tx.Select(), spec.Tx.SelectOk)
        for settle in (
            spec.Basic.Ack(delivery_tag=0, multiple=True),
            spec.Basic.Nack(delivery_tag=2, multiple=True, requeue=False),
        ):
            peer.publish(b"", routing_key="requests")
            peer.ask(spec.Tx.Commit(), spec.Tx.CommitOk)
            for _ in range(11):
                peer.send(spec.Basic.Get(queue="requests"))
                peer.expect_content(spec.Basic.GetOk)
            peer.send(settle)
            assert peer.expect(spec.Channel.Close).reply_text == too_large
            peer.send(spec.Channel.CloseOk())
            peer.ask(spec.Channel.Open(), spec.Channel.OpenOk)
            ready = peer.ask(spec.Queue.Declare(queue="requests", passive=True), spec.Queue.DeclareOk).message_count
            assert ready in (11, 12)
            peer.ask(spec.Tx.Select(), spec.Tx.SelectOk)
