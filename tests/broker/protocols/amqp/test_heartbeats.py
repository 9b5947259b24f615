"""Heartbeats of a node, whose timer a test turns by hand."""

from __future__ import annotations

from pika import spec

from flyball.broker.node.node import Node
from flyball.broker.protocols.amqp import AmqpSession
from tests.broker.protocols.amqp.compatibility.peer import HEARTBEAT, Peer
from tests.nodes import RunningNode

LONG_S = 6000


def sessions(node: Node) -> list[AmqpSession]:
    return [connection for connection in node.hub.connections if isinstance(connection, AmqpSession)]


def beat(node: Node) -> None:
    """Let half an interval pass for all connections."""
    for session in sessions(node):
        session._beat()


def test_idle_connection_gets_a_heartbeat_every_half_interval(memory_node: RunningNode) -> None:
    with Peer(*memory_node.address("amqp")).open(heartbeat=LONG_S) as peer:
        memory_node.call(beat)
        for _ in range(3):
            # Within four halves something must be received from the peer.
            peer.send_frame(HEARTBEAT, 0, b"")
            memory_node.wait_until(lambda node: any(each._has_received for each in sessions(node)))
            memory_node.call(beat)
            assert peer.read_frame().kind == HEARTBEAT


def test_heartbeat_is_left_out_after_other_traffic(memory_node: RunningNode) -> None:
    with Peer(*memory_node.address("amqp")).open(heartbeat=LONG_S) as peer:
        memory_node.call(beat)
        peer.ask(spec.Basic.Qos(), spec.Basic.QosOk)
        memory_node.call(beat)
        peer.ask(spec.Basic.Qos(), spec.Basic.QosOk)
