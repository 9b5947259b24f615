"""Features for consumers beyond RabbitMQ's, and moments that a comparison cannot bring about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from decimal import Decimal
from typing import Any

import pika
import pytest
from pika import spec

from flyball.broker.node.node import Node
from flyball.broker.protocols.amqp import placement
from flyball.model import Selector
from tests.broker.held_reads import HeldReads
from tests.broker.protocols.amqp.compatibility.peer import Peer
from tests.broker.protocols.amqp.compatibility.queues import (
    Consumer,
    channel_closed,
    count,
    declare_dead_letters,
    get,
    publish,
    take_all,
)
from tests.nodes import RunningNode

OpenChannel = Callable[..., Any]
StartNode = Callable[..., RunningNode]

BODY = b"x" * 200_000
# Together 200 MB.
BODIES = 1000


@pytest.fixture
def channel(memory_node: RunningNode, open_channel: OpenChannel) -> Any:
    return open_channel(memory_node)


@pytest.fixture
def new_peer() -> Iterator[Callable[[RunningNode], Peer]]:
    """Connect a peer with an open channel, which reads only on demand."""
    with ExitStack() as peers:
        yield lambda node: peers.enter_context(Peer(*node.address("amqp"))).open()


# Arguments


def test_large_consumer_arguments_are_refused(
    memory_node: RunningNode, new_peer: Callable[[RunningNode], Peer]
) -> None:
    peer = new_peer(memory_node)
    peer.ask(spec.Queue.Declare(queue="queue"), spec.Queue.DeclareOk)
    # On the wire 4 bytes each.
    arguments = {"x-list": [False] * 10_000}
    peer.send(spec.Basic.Consume(queue="queue", arguments=arguments))
    text = peer.expect(spec.Channel.Close).reply_text
    assert text.startswith("PRECONDITION_FAILED - arguments of ")
    assert text.endswith("exceed the limit of 16384 for a consumer of queue 'queue' in vhost '/'")


def test_consumer_arguments_are_charged_at_once(
    memory_node: RunningNode, new_peer: Callable[[RunningNode], Peer]
) -> None:
    peer = new_peer(memory_node)
    peer.ask(spec.Queue.Declare(queue="queue"), spec.Queue.DeclareOk)
    held = memory_node.call(lambda node: [connection.held_bytes() for connection in node.hub.connections])
    arguments = {"x-text": "x" * 15_000}
    for _ in range(10):
        peer.send(spec.Basic.Consume(queue="queue", arguments=arguments, nowait=True))
    peer.ask(spec.Basic.Qos(), spec.Basic.QosOk)

    def grown_bytes(node: Node) -> list[int]:
        return [connection.held_bytes() - held[0] for connection in node.hub.connections]

    assert 150_000 < memory_node.call(grown_bytes)[0] < 200_000

    def measured_bytes(node: Node) -> list[int]:
        node.hub.tick(0.0)
        return grown_bytes(node)

    assert 150_000 < memory_node.call(measured_bytes)[0] < 200_000


def test_cancelled_consumers_are_charged_no_longer(
    memory_node: RunningNode, new_peer: Callable[[RunningNode], Peer]
) -> None:
    peer = new_peer(memory_node)
    peer.ask(spec.Queue.Declare(queue="queue"), spec.Queue.DeclareOk)
    held = memory_node.call(lambda node: [connection.held_bytes() for connection in node.hub.connections])
    arguments = {"x-text": "x" * 15_000}
    for _ in range(20):
        peer.send(spec.Basic.Consume(queue="queue", consumer_tag="tag", arguments=arguments, nowait=True))
        peer.ask(spec.Basic.Cancel(consumer_tag="tag"), spec.Basic.CancelOk)
    grown = memory_node.call(lambda node: [connection.held_bytes() - held[0] for connection in node.hub.connections])
    assert grown[0] < 15_000


# The window of a consumer


def test_a_consumer_may_have_a_window_of_its_own(channel: Any) -> None:
    channel.queue_declare("queue")
    publish(channel, "queue", *"012345")
    channel.basic_qos(prefetch_count=4)
    narrow = Consumer(channel, "queue", arguments={"x-prefetch": 1})
    wide = Consumer(channel, "queue")
    assert (narrow.settle(), wide.settle()) == (["0"], ["1", "2", "3", "4"])


def test_a_window_of_zero_lets_nothing_through_until_it_is_opened(channel: Any) -> None:
    channel.queue_declare("queue")
    publish(channel, "queue", *"01")
    consumer = Consumer(channel, "queue", arguments={"x-prefetch": 0})
    assert consumer.settle() == []
    channel.basic_qos(prefetch_count=1)
    assert consumer.wait_for(1) == ["0"]


def test_a_fraction_of_a_window_opens_and_closes_in_turn(memory_node: RunningNode, open_channel: OpenChannel) -> None:
    slot = stopped_clock(memory_node)
    channel = open_channel(memory_node)
    channel.queue_declare("queue")
    publish(channel, "queue", *"0123456789")
    consumer = Consumer(channel, "queue", arguments={"x-prefetch": Decimal("0.25")})
    got: list[int] = []
    acknowledged = 0
    for number in range(8):
        slot(number)
        for delivery in consumer.deliveries[acknowledged:]:
            channel.basic_ack(delivery.tag)
        acknowledged = len(consumer.deliveries)
        memory_node.call(lambda node: node.hub.broker._tick())
        got.append(len(consumer.settle()))
    # In every fourth slot there is room for one.
    assert got == [0, 0, 0, 1, 1, 1, 1, 2]


def stopped_clock(node: RunningNode) -> Callable[[int], None]:
    """Stop the node's clock; return what sets it to a slot of fractional windows."""

    def set_to(slot: int) -> None:
        def stop(node: Node) -> None:
            node.hub.broker.now_us = lambda: slot * 10_000

        node.call(stop)

    set_to(0)
    return set_to


@pytest.mark.parametrize("prefetch", [-1, 65_536, "many", True, Decimal("-0.5"), Decimal("70000.5")])
def test_a_window_that_makes_no_sense_is_refused(channel: Any, prefetch: object) -> None:
    channel.queue_declare("queue")
    text = "invalid arg 'x-prefetch' for queue 'queue' in vhost '/': expected a number from 0 to 65535"
    with channel_closed(406, f"PRECONDITION_FAILED - {text}"):
        Consumer(channel, "queue", arguments={"x-prefetch": prefetch})


# Which messages a consumer asks for


def publish_addressed(channel: Any, queue: str) -> None:
    """Publish five messages; their bodies name the sender (s), the receiver (r) and the context (c)."""
    for body, headers in (
        ("s7", {"x-flyball-sender": 7}),
        ("r8", {"x-flyball-receiver": 8}),
        ("c9", {"x-flyball-context": 9}),
        ("s7c9", {"x-flyball-sender": 7, "x-flyball-context": 9}),
        ("none", {"x-other": 1}),
    ):
        publish(channel, queue, body, headers=headers)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"x-sender": 7}, ["s7", "s7c9"]),
        ({"x-context": 9}, ["c9", "s7c9"]),
        ({"x-context": 9, "x-sender": 7}, ["s7c9"]),
        ({"x-receiver": 8}, ["s7", "r8", "c9", "s7c9", "none"]),
        ({"x-receiver": 5}, ["s7", "c9", "s7c9", "none"]),
        ({"x-order": "newest"}, ["none", "s7c9", "c9", "r8", "s7"]),
        ({"x-order": "newest", "x-sender": 7}, ["s7c9", "s7"]),
        ({}, ["s7", "r8", "c9", "s7c9", "none"]),
    ],
)
def test_consumer_gets_the_messages_that_it_selects(
    channel: Any, arguments: dict[str, Any], expected: list[str]
) -> None:
    channel.queue_declare("queue")
    publish_addressed(channel, "queue")
    assert Consumer(channel, "queue", arguments=arguments).settle() == expected


def test_waiting_consumer_gets_only_what_it_selects(channel: Any) -> None:
    channel.queue_declare("queue")
    consumer = Consumer(channel, "queue", arguments={"x-context": 9}, auto_ack=True)
    publish_addressed(channel, "queue")
    assert consumer.wait_for(2) == ["c9", "s7c9"]
    assert count(channel, "queue") == 3


def test_consumer_may_ask_for_the_highest_priority_first(channel: Any) -> None:
    channel.queue_declare("queue")
    for priority in (1, 200, None, 9):
        publish(channel, "queue", str(priority), priority=priority)
    assert Consumer(channel, "queue", arguments={"x-order": "priority"}).settle() == ["200", "9", "1", "None"]


def test_messages_keep_what_selects_them_over_a_restart(
    start_node: StartNode, new_database: Callable[[], str], open_channel: OpenChannel
) -> None:
    store = new_database()
    first = start_node(store=store)
    before = open_channel(first)
    before.queue_declare("queue", durable=True)
    for context in (8, 9):
        headers = {"x-flyball-context": context, "x-flyball-sender": 7}
        publish(before, "queue", str(context), delivery_mode=2, headers=headers)
    first.stop()
    after = open_channel(start_node(store=store))
    assert Consumer(after, "queue", arguments={"x-context": 9, "x-sender": 7}).wait_for(1) == ["9*"]


def test_dead_letter_keeps_what_selects_it(channel: Any) -> None:
    exchange, dead = declare_dead_letters(channel)
    channel.queue_declare("queue", arguments={"x-dead-letter-exchange": exchange})
    publish_addressed(channel, "queue")
    consumer = Consumer(channel, "queue")
    consumer.wait_for(5)
    channel.basic_nack(consumer.last.tag, multiple=True, requeue=False)
    assert sorted(Consumer(channel, dead, arguments={"x-context": 9}).wait_for(2)) == ["c9", "s7c9"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x-order": "random"}, "arg 'x-order' for %s: expected one of oldest, newest, priority"),
        ({"x-order": {"a": 1}}, "arg 'x-order' for %s: expected one of oldest, newest, priority"),
        ({"x-order": [1]}, "arg 'x-order' for %s: expected one of oldest, newest, priority"),
        ({"x-sender": 0}, "arg 'x-sender' for %s: expected an integer from 1 to 2147483647"),
        ({"x-receiver": 2**31}, "arg 'x-receiver' for %s: expected an integer from 1 to 2147483647"),
        ({"x-receiver": True}, "arg 'x-receiver' for %s: expected an integer from 1 to 2147483647"),
        ({"x-context": "9"}, f"arg 'x-context' for %s: expected an integer from {-(2**63)} to {2**63 - 1}"),
    ],
)
def test_selection_that_makes_no_sense_is_refused(channel: Any, arguments: dict[str, Any], text: str) -> None:
    channel.queue_declare("queue")
    with channel_closed(406, "PRECONDITION_FAILED - invalid " + text % "queue 'queue' in vhost '/'"):
        Consumer(channel, "queue", arguments=arguments)


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"x-flyball-sender": -1}, "header 'x-flyball-sender': expected an integer from 1 to 2147483647"),
        ({"x-flyball-receiver": "8"}, "header 'x-flyball-receiver': expected an integer from 1 to 2147483647"),
        (
            {"x-flyball-context": True},
            f"header 'x-flyball-context': expected an integer from {-(2**63)} to {2**63 - 1}",
        ),
    ],
)
def test_header_that_cannot_select_is_refused(channel: Any, headers: dict[str, Any], text: str) -> None:
    channel.queue_declare("queue")
    channel.confirm_delivery()
    with channel_closed(406, f"PRECONDITION_FAILED - invalid {text}"):
        channel.basic_publish("", "queue", b"", pika.BasicProperties(headers=headers))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"auto_ack": False, "arguments": {"x-session": "s"}}, "placement consumer cannot acknowledge"),
        (
            {"auto_ack": True},
            "invalid arg 'x-session' for queue 'amq.flyball.placement': expected the id of a session",
        ),
    ],
)
def test_placed_client_says_its_session(channel: Any, options: dict[str, Any], text: str) -> None:
    with channel_closed(406, f"PRECONDITION_FAILED - {text}"):
        Consumer(channel, "amq.flyball.placement", **options)


def test_connection_serves_few_placed_clients(channel: Any) -> None:
    arguments = {"x-session": "s" * placement.MAX_SESSION_ID_BYTES}
    channels = [channel, *[channel.connection.channel() for _ in range(placement.MAX_SESSIONS)]]
    for each in channels[:-1]:
        Consumer(each, "amq.flyball.placement", auto_ack=True, arguments=arguments)
    text = f"a connection may serve {placement.MAX_SESSIONS} sessions of clustered queues"
    with channel_closed(406, f"PRECONDITION_FAILED - {text}"):
        Consumer(channels[-1], "amq.flyball.placement", auto_ack=True, arguments=arguments)


def disconnect_all(node: Node) -> None:
    for connection in node.hub.connections:
        connection.disconnect()


def test_placed_client_comes_and_leaves(memory_node: RunningNode, open_channel: OpenChannel) -> None:
    log: list[str] = []

    def note(node: Node) -> None:
        placement = node.hub.placement
        placement.arrived = lambda session_id, connection: log.append(f"{session_id} came")  # type: ignore[method-assign]
        placement.left = lambda session_id, connection, *, orderly: log.append(  # type: ignore[method-assign]
            f"{session_id} {'left' if orderly else 'is gone'}"
        )

    memory_node.call(note)
    channel = open_channel(memory_node)
    clients = [
        Consumer(channel, "amq.flyball.placement", auto_ack=True, arguments={"x-session": name})
        for name in ("a", "b")
    ]
    clients[0].cancel()
    memory_node.call(disconnect_all)
    memory_node.wait_until(lambda node: len(log) == 4)
    assert log == ["a came", "b came", "a left", "b is gone"]


# Another window


def test_another_window_counts_at_once_for_consumers_that_run(channel: Any) -> None:
    channel.queue_declare("queue")
    publish(channel, "queue", *"012345")
    channel.basic_qos(prefetch_count=1)
    consumer = Consumer(channel, "queue")
    assert consumer.wait_for(1) == ["0"]
    channel.basic_qos(prefetch_count=3)
    assert consumer.wait_for(3) == ["0", "1", "2"]
    channel.basic_qos(prefetch_count=2)
    channel.basic_ack(consumer.deliveries[0].tag)
    assert consumer.settle() == ["0", "1", "2"]
    channel.basic_ack(consumer.deliveries[1].tag)
    assert consumer.wait_for(4) == ["0", "1", "2", "3"]
    channel.basic_qos(prefetch_count=0)
    assert consumer.wait_for(6) == ["0", "1", "2", "3", "4", "5"]


def consume_again(queue: str, tag: str = "mine", **options: Any) -> Any:
    return spec.Basic.Consume(queue=queue, consumer_tag=tag, **options)


@pytest.fixture
def peer(memory_node: RunningNode, channel: Any, new_peer: Callable[[RunningNode], Peer]) -> Peer:
    """A peer with the consumer "mine" of "queue", which has got the first of its six messages."""
    channel.queue_declare("queue")
    channel.queue_declare("other")
    publish(channel, "queue", *"012345")
    peer = new_peer(memory_node)
    peer.ask(consume_again("queue", arguments={"x-prefetch": 1}), spec.Basic.ConsumeOk)
    assert peer.expect_content(spec.Basic.Deliver).body == b"0"
    return peer


def test_a_consumer_that_is_asked_for_again_with_another_window_has_it_at_once(channel: Any, peer: Peer) -> None:
    assert peer.ask(consume_again("queue", arguments={"x-prefetch": 3}), spec.Basic.ConsumeOk).consumer_tag == "mine"
    assert [peer.expect_content(spec.Basic.Deliver).body for _ in range(2)] == [b"1", b"2"]
    assert count(channel, "queue") == 3, "it is the same consumer, with what it held before"
    peer.ask(consume_again("queue", arguments={"x-prefetch": 0}), spec.Basic.ConsumeOk)
    peer.send(spec.Basic.Ack(delivery_tag=3, multiple=True))
    peer.ask(spec.Queue.Declare(queue="queue", passive=True), spec.Queue.DeclareOk)
    assert count(channel, "queue") == 3
    assert channel.queue_declare("queue", passive=True).method.consumer_count == 1


def test_a_running_consumer_can_be_given_a_fraction_of_a_window(
    memory_node: RunningNode, channel: Any, peer: Peer
) -> None:
    slot = stopped_clock(memory_node)
    peer.ask(consume_again("queue", arguments={"x-prefetch": Decimal("1.25")}), spec.Basic.ConsumeOk)
    got: list[int] = []
    for number in range(4):
        slot(number)
        memory_node.call(lambda node: node.hub.broker._tick())
        got.append(6 - count(channel, "queue"))
    # In every fourth slot there is room for one more.
    assert got == [1, 1, 1, 2]


def test_without_an_answer_asked_for_the_window_changes_too(peer: Peer) -> None:
    peer.send(consume_again("queue", arguments={"x-prefetch": 2}, nowait=True))
    assert peer.expect_content(spec.Basic.Deliver).body == b"1"


@pytest.mark.parametrize(
    ("queue", "options"),
    [
        ("queue", {}),
        ("other", {"arguments": {"x-prefetch": 2}}),
        ("queue", {"arguments": {"x-prefetch": 2}, "no_ack": True}),
    ],
)
def test_a_tag_in_use_is_refused_to_a_consumer_of_another_kind(
    peer: Peer, queue: str, options: dict[str, Any]
) -> None:
    peer.send(consume_again(queue, **options))
    peer.expect_connection_close(530, "NOT_ALLOWED - attempt to reuse consumer tag 'mine'", spec.Basic.Consume)


# Consumers that do not read


def test_a_peer_that_does_not_read_is_sent_a_little_and_may_still_publish(
    start_memory_node: StartNode, new_peer: Callable[[RunningNode], Peer], open_channel: OpenChannel
) -> None:
    node = start_memory_node()
    channel = open_channel(node)
    channel.queue_declare("large")
    channel.queue_declare("small")
    for _ in range(BODIES):
        channel.basic_publish("", "large", BODY)
    while count(channel, "large") < BODIES:
        pass
    peer = new_peer(node)
    peer.send(spec.Basic.Consume(queue="large", consumer_tag="tag", no_ack=False))
    peer.publish(b"0", routing_key="small")
    assert take_when_there(channel, "small") == "0"
    node.wait_until(are_deliveries_paused)
    # What is not in the node's memory as frames is in the kernel's: the rest has not left the queue.
    assert count(channel, "large") > BODIES * 9 // 10
    assert node.call(unsent_bytes) < 2_000_000
    peer.publish(b"1", routing_key="small")
    assert take_when_there(channel, "small") == "1"
    # When it reads, everything comes.
    peer.expect(spec.Basic.ConsumeOk)
    tags = [peer.expect_content(spec.Basic.Deliver).method.delivery_tag for _ in range(BODIES)]
    assert tags == list(range(1, BODIES + 1))


def take_when_there(channel: Any, queue: str) -> str:
    while True:
        delivery = get(channel, queue, auto_ack=True)
        if delivery is not None:
            return delivery.text


def are_deliveries_paused(node: Node) -> bool:
    return any(getattr(connection, "are_deliveries_paused", False) for connection in node.hub.connections)


def unsent_bytes(node: Node) -> int:
    return max(
        connection._out_bytes + connection._transport.get_write_buffer_size()
        for connection in node.hub.connections
        if connection._transport is not None
    )


def test_a_peer_that_does_not_read_leaves_the_messages_to_others(
    memory_node: RunningNode, new_peer: Callable[[RunningNode], Peer], open_channel: OpenChannel
) -> None:
    channel = open_channel(memory_node)
    channel.queue_declare("queue")
    deaf = new_peer(memory_node)
    deaf.ask(spec.Basic.Consume(queue="queue", consumer_tag="tag", no_ack=True), spec.Basic.ConsumeOk)
    while not memory_node.call(are_deliveries_paused):
        channel.basic_publish("", "queue", BODY)
    publish(channel, "queue", "last")
    consumer = Consumer(channel, "queue", auto_ack=True)
    consumer.wait_for(1)
    while consumer.texts[-1] != "last":
        consumer.wait_for(len(consumer.deliveries) + 1)


# Queues that go while a consumer waits


@pytest.fixture
def recovered(
    start_node: StartNode, new_database: Callable[[], str], open_channel: OpenChannel
) -> Callable[[], RunningNode]:
    """Start a node that finds a queue with messages in its store and nothing of them in memory."""

    def start() -> RunningNode:
        database = new_database()
        first = start_node(store=database)
        channel = open_channel(first)
        channel.queue_declare("queue", durable=True)
        publish(channel, "queue", *"0123", delivery_mode=2)
        first.stop()
        return start_node(store=database)

    return start


def test_a_queue_may_go_while_a_get_waits_for_the_store(
    recovered: Callable[[], RunningNode],
    new_peer: Callable[[RunningNode], Peer],
    open_channel: OpenChannel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = HeldReads(monkeypatch)
    node = recovered()
    peer, channel = new_peer(node), open_channel(node)
    peer.send(spec.Basic.Get(queue="queue"))
    reads.wait()
    channel.queue_delete("queue")
    reads.allow(node)
    peer.expect(spec.Basic.GetEmpty)
    peer.ask(spec.Queue.Declare(queue="queue", durable=True), spec.Queue.DeclareOk)


def test_a_queue_may_go_before_the_store_is_asked(
    recovered: Callable[[], RunningNode], open_channel: OpenChannel
) -> None:
    node = recovered()
    answers: list[object] = []

    def get_and_delete(node: Node) -> None:
        broker = node.hub.broker
        state = broker.engine.find_queue("queue")
        assert state is not None
        broker.take_out(state.queue.id, Selector(), lambda message, error: answers.append((message, error)))
        node.topology.lifecycle.delete(state.queue.id, lambda error: None)

    node.call(get_and_delete)
    node.wait_until(lambda _: bool(answers))
    assert answers == [(None, None)]
    channel = open_channel(node)
    channel.queue_declare("queue")
    publish(channel, "queue", "new")
    assert take_all(channel, "queue") == ["new"]


def test_a_peer_may_go_while_its_get_waits_for_the_store(
    recovered: Callable[[], RunningNode],
    new_peer: Callable[[RunningNode], Peer],
    open_channel: OpenChannel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = HeldReads(monkeypatch)
    node = recovered()
    peer, channel = new_peer(node), open_channel(node)
    connections = len(node.node.hub.connections)
    peer.send(spec.Basic.Get(queue="queue"))
    reads.wait()
    peer.__exit__(None, None, None)
    reads.allow(node)
    node.wait_until(lambda node: len(node.hub.connections) == connections - 1)
    # The first was sent to a peer not known to be gone; all were found in the store, and may have been before.
    assert take_all(channel, "queue") == ["0*", "1*", "2*", "3*"]


def test_messages_of_a_lost_connection_do_not_pass_through_its_other_channels(
    memory_node: RunningNode, open_channel: OpenChannel, new_peer: Callable[[RunningNode], Peer]
) -> None:
    channel = open_channel(memory_node)
    channel.queue_declare("jobs", durable=True, arguments={"x-queue-type": "quorum"})
    peer = new_peer(memory_node)
    for number in range(1, 6):
        if number > 1:
            peer.open_channel(number)
        peer.ask(spec.Basic.Consume(queue="jobs"), spec.Basic.ConsumeOk, channel=number)
    for number in range(10):
        channel.basic_publish("", "jobs", b"%d" % number)
    memory_node.wait_until(lambda node: len(node.hub.broker.engine.find_queue("jobs").unacked) == 10)  # type: ignore[union-attr]
    peer.hang_up()
    memory_node.wait_until(lambda node: len(node.hub.broker.engine.find_queue("jobs")) == 10)  # type: ignore[arg-type]
    found = [channel.basic_get("jobs", auto_ack=True) for _ in range(10)]
    assert [body for _, _, body in found] == [b"%d" % number for number in range(10)]
    assert {properties.headers["x-delivery-count"] for _, properties, _ in found} == {1}


def consume_with_several(node: RunningNode, peers: list[Peer], channel: Any) -> None:
    """Give ten messages of a queue with a delivery limit of 1 to several connections."""
    channel.queue_declare("jobs", durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 1})
    for peer in peers:
        peer.ask(spec.Basic.Consume(queue="jobs"), spec.Basic.ConsumeOk)
    channel.confirm_delivery()
    for number in range(10):
        channel.basic_publish("", "jobs", b"%d" % number, pika.BasicProperties(delivery_mode=2))
    node.wait_until(lambda node: len(node.hub.broker.engine.find_queue("jobs").unacked) == 10)  # type: ignore[union-attr]


def test_messages_of_a_deleted_user_do_not_pass_through_its_other_connections(
    memory_node: RunningNode, open_channel: OpenChannel
) -> None:
    memory_node.administer(lambda authority: authority.add_user("worker", "password", ()))
    memory_node.allow_all("worker", "/")
    channel = open_channel(memory_node)
    with ExitStack() as stack:
        peers = [stack.enter_context(Peer(*memory_node.address("amqp"))) for _ in range(5)]
        for peer in peers:
            peer.open(user="worker", password="password")
        consume_with_several(memory_node, peers, channel)
        memory_node.administer(lambda authority: authority.delete_user("worker"))
        memory_node.wait_until(lambda node: not node.hub.broker.engine.find_queue("jobs").unacked)  # type: ignore[union-attr]
    assert count(channel, "jobs") == 10


def test_node_that_stops_reaches_no_delivery_limit(
    start_node: StartNode, new_database: Callable[[], str], open_channel: OpenChannel
) -> None:
    store = new_database()
    node = start_node(store=store)
    with ExitStack() as stack:
        peers = [stack.enter_context(Peer(*node.address("amqp"))).open() for _ in range(5)]
        consume_with_several(node, peers, open_channel(node))
        node.stop()
    assert count(open_channel(start_node(store=store)), "jobs") == 10
