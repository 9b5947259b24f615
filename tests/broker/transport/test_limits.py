"""Limits hold for the protocols without users, too, and for all channels of a node."""

from __future__ import annotations

from collections.abc import Callable

from pika import spec

from flyball.broker.wire import telesto as wire
from flyball.broker.wire.telesto import ErrorCode
from tests.broker.peers import TelestoPeer, telesto, thorbang
from tests.broker.protocols.amqp.compatibility.peer import Peer as AmqpPeer
from tests.nodes import RunningNode


def limit(node: RunningNode, name: str, value: int) -> None:
    node.run(lambda node: node.hub.authority.set_vhost_limits("/", {name: value}))


def test_connections_of_all_protocols_count_in_their_vhost(memory_node: RunningNode) -> None:
    limit(memory_node, "max-connections", 3)
    first = thorbang(memory_node)
    assert first.ask("HELLO") == ["OK"]
    telesto(memory_node)
    with AmqpPeer(*memory_node.address("amqp")) as amqp:
        amqp.open()
        assert thorbang(memory_node).is_closed_by_node()
        plain = TelestoPeer(memory_node.connect("telesto"))
        assert plain.refusal(wire.RegisterClient(1, "late", 1)) == ErrorCode.INTERNAL_ERROR
        first.close()
        memory_node.wait_until(lambda node: node.hub.connection_limits._in_vhost["/"] == 2)
        plain.register("late")


def test_queues_of_all_protocols_count_in_their_vhost(memory_node: RunningNode) -> None:
    limit(memory_node, "max-queues", 2)
    plain = telesto(memory_node)
    plain.create_queue("one")
    assert thorbang(memory_node).ask("CREATEQUEUE,two", "CREATEQUEUE,three") == ["2", "FAIL UNKNOWN -1"]
    assert plain.refusal(wire.CreateQueue(1, "three")) == ErrorCode.INTERNAL_ERROR
    assert plain.refusal(wire.CreateQueue(1, "one")) == ErrorCode.QUEUE_NAME_NOT_UNIQUE
    plain.get(wire.Success, wire.DeleteQueue(2, 2))
    plain.create_queue("three")


def test_channels_of_a_node_are_limited(start_memory_node: Callable[..., RunningNode]) -> None:
    node = start_memory_node(max_channels=3)
    with AmqpPeer(*node.address("amqp")) as first, AmqpPeer(*node.address("amqp")) as second:
        first.open(channels=2)
        second.open(channels=1)
        second.send(spec.Channel.Open(), 2)
        reason = "number of channels opened on node '"
        second.expect_connection_close(530, f"NOT_ALLOWED - {reason}")
    node.wait_until(lambda node: node.hub.connection_limits.channels == 0)
    assert node.call(
        lambda node: not node.hub.connection_limits._channels and not node.hub.connection_limits._of_user
    )
