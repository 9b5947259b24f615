"""When a publisher gets the confirm of a durable message."""

from __future__ import annotations

from pika import spec

from tests.broker.protocols.amqp.compatibility.peer import Peer
from tests.nodes import Gate, RunningNode

PERSISTENT = spec.BasicProperties(delivery_mode=2)


def opened(node: RunningNode) -> Peer:
    return Peer(*node.address("amqp")).open()


def test_a_confirm_follows_the_commit(gate: Gate, memory_node: RunningNode) -> None:
    with opened(memory_node) as peer:
        peer.ask(spec.Queue.Declare(queue="q", durable=True), spec.Queue.DeclareOk)
        peer.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
        gate.close(memory_node)
        peer.publish(b"body", routing_key="q", properties=PERSISTENT)
        # What is asked later is answered earlier: the message waits for the store, and the question does not.
        peer.ask(spec.Basic.Qos(), spec.Basic.QosOk)
        gate.open(memory_node)
        assert peer.expect(spec.Basic.Ack).delivery_tag == 1


def test_message_acked_before_its_write_is_confirmed_and_never_written(gate: Gate, memory_node: RunningNode) -> None:
    with opened(memory_node) as publisher, opened(memory_node) as consumer:
        publisher.ask(spec.Queue.Declare(queue="q", durable=True), spec.Queue.DeclareOk)
        publisher.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
        consumer.ask(spec.Basic.Consume(queue="q"), spec.Basic.ConsumeOk)
        gate.close(memory_node)
        # The first one is on its way to the store, which hangs; the second one gathers behind it.
        for body in (b"first", b"second"):
            publisher.publish(body, routing_key="q", properties=PERSISTENT)
            consumer.expect_content(spec.Basic.Deliver)
        memory_node.wait_until(lambda node: node.hub.broker.journal.pending_count == 2)
        consumer.send(spec.Basic.Ack(delivery_tag=2))
        assert publisher.expect(spec.Basic.Ack).delivery_tag == 2
        gate.open(memory_node)
        assert publisher.expect(spec.Basic.Ack).delivery_tag == 1
        assert memory_node.call(lambda node: node.hub.broker.journal.rows_appended) == 1


def test_unwritten_message_is_confirmed_with_its_dead_letter(gate: Gate, memory_node: RunningNode) -> None:
    with opened(memory_node) as peer:
        peer.ask(spec.Queue.Declare(queue="dead", durable=True), spec.Queue.DeclareOk)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-message-ttl": 0}
        peer.ask(spec.Queue.Declare(queue="q", durable=True, arguments=arguments), spec.Queue.DeclareOk)
        peer.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
        gate.close(memory_node)
        peer.publish(b"body", routing_key="q", properties=PERSISTENT)
        peer.send(spec.Basic.Get(queue="dead"))
        assert peer.expect_content(spec.Basic.GetOk).body == b"body"
        gate.open(memory_node)
        assert peer.expect(spec.Basic.Ack).delivery_tag == 1


def test_confirms_come_together_where_they_can(gate: Gate, memory_node: RunningNode) -> None:
    with opened(memory_node) as peer:
        peer.ask(spec.Queue.Declare(queue="q", durable=True), spec.Queue.DeclareOk)
        peer.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
        # With a long limit no batch is closed for its age, however slowly they come.
        gate.close(memory_node, time_limit_s=1000.0)
        for _ in range(50):
            peer.publish(b"body", routing_key="q", properties=PERSISTENT)
        memory_node.wait_until(lambda node: node.hub.broker.journal.pending_count == 50)
        gate.open(memory_node)
        confirmed = 0
        answers = 0
        while confirmed < 50:
            ack = peer.expect(spec.Basic.Ack)
            assert ack.multiple or ack.delivery_tag == confirmed + 1
            confirmed = ack.delivery_tag
            answers += 1
        assert answers <= 3
