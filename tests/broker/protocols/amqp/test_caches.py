"""A connection's memory of the messages that it has published is bounded in bytes, for all its channels."""

from __future__ import annotations

import sys
from collections.abc import Callable

from pika import spec

from flyball.broker.node.node import Node
from flyball.broker.protocols.amqp import AmqpSession
from flyball.broker.protocols.amqp.caches import CACHE_BYTES
from tests.broker.protocols.amqp.compatibility.peer import Peer
from tests.nodes import RunningNode


def of_session(function: Callable[[AmqpSession], int]) -> Callable[[Node], int]:
    def find(node: Node) -> int:
        (session,) = [found for found in node.hub.connections if isinstance(found, AmqpSession)]
        return function(session)

    return find


def remembered_bytes(session: AmqpSession) -> int:
    """Return what is really remembered, without the objects around it."""
    keys = sum(map(sys.getsizeof, [*session.essentials.entries, *session.routes.entries]))
    return keys + sum(sys.getsizeof(route.targets) for route in session.routes.entries.values())


def test_distinct_properties_are_remembered_up_to_a_limit_in_bytes(memory_node: RunningNode) -> None:
    with Peer(*memory_node.address("amqp")).open(channels=2) as peer:
        for number in range(1200):
            properties = spec.BasicProperties(headers={"h": f"{number}" * 500}, delivery_mode=2)
            peer.publish(b"x", routing_key="nowhere", properties=properties, channel=1 + number % 2)
        large = spec.BasicProperties(headers={"h": "x" * 60_000})
        peer.publish(b"x", routing_key="nowhere", properties=large)
        peer.ask(spec.Basic.Qos(), spec.Basic.QosOk)
        assert memory_node.call(of_session(remembered_bytes)) <= CACHE_BYTES
        assert memory_node.call(of_session(lambda session: max(map(len, session.essentials.entries)))) < 60_000
        assert memory_node.call(of_session(lambda session: len(session.essentials.entries))) > 10


def test_routes_to_many_queues_are_remembered_up_to_a_limit_in_bytes(memory_node: RunningNode) -> None:
    with Peer(*memory_node.address("amqp")).open() as peer:
        for number in range(300):
            peer.ask(spec.Queue.Declare(queue=f"q{number}", exclusive=True), spec.Queue.DeclareOk)
            peer.ask(spec.Queue.Bind(queue=f"q{number}", exchange="amq.fanout", routing_key=""), spec.Queue.BindOk)
        for number in range(500):
            peer.publish(b"x", exchange="amq.fanout", routing_key=f"{number}" * 50)
        peer.ask(spec.Basic.Qos(), spec.Basic.QosOk)
        assert memory_node.call(of_session(remembered_bytes)) <= CACHE_BYTES
        assert memory_node.call(of_session(lambda session: len(session.routes.entries))) > 10
