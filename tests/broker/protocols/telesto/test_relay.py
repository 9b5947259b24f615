"""Telesto clients at one node use the queues of another: everything works as if they were there."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flyball.broker.core import topics
from flyball.broker.core.pending import Done
from flyball.broker.engine.consumer import Consumer
from flyball.broker.engine.queue import WorkingQueue
from flyball.broker.node.node import Node
from flyball.broker.protocols.telesto import plain as plain_requests
from flyball.broker.protocols.telesto import relay
from flyball.broker.protocols.telesto.extension import MAX_REFUSED
from flyball.broker.protocols.telesto.session import TelestoRequest, TelestoSession
from flyball.broker.transport.connection import MAX_IN_FLIGHT
from flyball.broker.wire import telesto as wire
from flyball.broker.wire.telesto import ErrorCode, WireDraft, WireMessage, WireSelector
from flyball.errors import QueueNameTaken, QueueNotFound
from flyball.model import MAX_COPIES, Queue
from tests.broker.domains import Pair, two_nodes
from tests.broker.peers import TelestoPeer, wide
from tests.nodes import RunningNode
from tests.telesto_client import CommandRefused, Outcome, sync


@pytest.fixture
def pair(tmp_path: Path, new_database: Callable[[], str]) -> Iterator[Pair]:
    """Two nodes of one domain."""
    with two_nodes(tmp_path, new_database, thorbang="off", amqp="off") as nodes:
        yield nodes


@pytest.fixture
def clients(pair: Pair) -> Iterator[tuple[sync.Client, sync.Client]]:
    """The same client at both nodes, and the queue `orders` at the first."""
    first, second = (str(node.address("telesto")) for node in pair)
    with sync.Client.connect(first, name="alice") as near, sync.Client.connect(second, name="alice") as far:
        near.create_queue("orders")
        yield near, far


Clients = tuple[sync.Client, sync.Client]


def test_a_client_is_the_same_at_every_node(clients: Clients) -> None:
    near, far = clients
    assert near.id == far.id


def test_queues_of_other_nodes_are_found_and_listed_and_their_names_are_taken(clients: Clients) -> None:
    near, far = clients
    queue = near.get_queue_by_name("orders")
    assert far.get_queue_by_name("orders") == queue
    assert far.get_queue_by_id(queue.id) == queue
    mine = far.create_queue("mine")
    assert far.get_queues() == [queue, mine]
    with pytest.raises(QueueNameTaken):
        far.create_queue("orders")
    with pytest.raises(QueueNotFound):
        far.get_queue_by_name("nowhere")
    far.delete_queue("orders")
    with pytest.raises(QueueNotFound):
        near.get_queue_by_name("orders")
    far.create_queue("orders")


def test_messages_are_put_taken_looked_at_and_removed_at_another_node(clients: Clients) -> None:
    near, far = clients
    first, second, third, fourth = far.put_many("orders", ["one", "two", "three", "four"])
    assert [message.id for message in near.read_messages("orders")] == [first, second, third, fourth]
    found = far.peek("orders")
    assert found is not None
    assert (found.text, found.sender) == ("one", near.id)
    assert far.list_ids("orders") == [first, second, third, fourth]
    assert [message.text for message in far.read_page("orders", after_id=first, most=2)] == ["two", "three"]
    assert far.remove_messages("orders", up_to_id=first) == 1
    taken = far.take("orders", sender=near.id)
    assert taken is not None
    assert taken.text == "two"
    assert far.purge("orders") == 2
    assert far.take("orders", wait_s=0.01) is None


def test_a_put_to_queues_of_several_nodes_tells_the_ids_in_their_order(pair: Pair, clients: Clients) -> None:
    near, far = clients
    here, there = far.create_queue("mine"), near.get_queue_by_name("orders")
    peer = wide(pair[1])
    drafts = [WireDraft(b"a"), WireDraft(b"b")]
    done = peer.get(wire.PutDone, wire.Put(7, [there.id, here.id], drafts))
    a_there, a_here, b_there, b_here = done.message_ids
    assert far.list_ids("mine") == [a_here, b_here]
    assert near.list_ids("orders") == [a_there, b_there]
    assert peer.refusal(wire.Put(8, [there.id, 999_999], drafts)) == ErrorCode.QUEUE_NOT_EXISTING


def test_a_consumer_at_another_node_gets_and_settles_messages(clients: Clients) -> None:
    near, far = clients
    with far.consume("orders", prefetch=2) as consumer:
        near.put_many("orders", ["one", "two", "three", "four"])
        one, two = consumer.next(20), consumer.next(20)
        assert one is not None
        assert two is not None
        assert consumer.next(0) is None
        consumer.set_prefetch(3)
        three = consumer.next(20)
        assert three is not None
        three.requeue()
        again = consumer.next(20)
        assert again is not None
        assert (again.message.text, again.message.redelivered) == ("three", True)
        consumer.settle([one, two], Outcome.ACKNOWLEDGE)
    assert [message.text for message in near.read_messages("orders")] == ["three", "four"]


def orders_of(node: Node) -> WorkingQueue:
    found = node.hub.broker.engine.find_queue("orders")
    assert found is not None
    return found


def send_away(node: RunningNode, consumer_id: int, limit_s: float) -> None:
    """Let a consumer of the one client of a node that consumes look for its queue anew."""

    def begin(node: Node) -> None:
        [session] = [
            session
            for session in node.hub.connections
            if isinstance(session, TelestoSession) and consumer_id in dict(session.consuming())
        ]
        node.hub.spawn(watched(session))

    async def watched(session: TelestoSession) -> None:
        assert await session.send_away(consumer_id, limit_s)

    node.call(begin)


@pytest.mark.parametrize("at", [0, 1])
def test_a_consumer_that_is_sent_away_ends_when_it_has_settled_what_it_holds(
    pair: Pair, clients: Clients, at: int
) -> None:
    near, _ = clients
    near.put_many("orders", ["one", "two"])
    peer = wide(pair[at])
    consumer_id = peer.consume(near.get_queue_by_name("orders").id, prefetch=1)
    one = peer.next_delivery().record
    send_away(pair[at], consumer_id, limit_s=60)
    assert isinstance(peer.settle(consumer_id, Outcome.ACKNOWLEDGE, one.message_id), wire.Success)
    while not peer.ended_consumers:
        peer.ask(wire.Ping(peer.next_id()))
    assert peer.deliveries == []
    [two] = near.read_messages("orders")
    assert (two.text, two.redelivered) == ("two", False)
    pair[0].wait_until(lambda node: not orders_of(node).consumers)


@pytest.mark.parametrize("at", [0, 1])
def test_what_a_consumer_that_is_sent_away_does_not_settle_in_time_goes_back(
    pair: Pair, clients: Clients, at: int
) -> None:
    near, _ = clients
    near.put_many("orders", ["one", "two", "three"])
    peer = wide(pair[at])
    consumer_id = peer.consume(near.get_queue_by_name("orders").id, prefetch=3)
    one, two, _ = (peer.next_delivery().record for _ in range(3))
    peer.settle(consumer_id, Outcome.ACKNOWLEDGE, two.message_id)
    send_away(pair[at], consumer_id, limit_s=0.01)
    while not peer.ended_consumers:
        peer.ask(wire.Ping(peer.next_id()))
    assert peer.refusal(wire.Settle(peer.next_id(), consumer_id, Outcome.ACKNOWLEDGE, [one.message_id])) is not None
    pair[0].wait_until(lambda node: len(orders_of(node)) == 2)
    assert [message.text for message in near.read_messages("orders")] == ["one", "three"]


def test_consumers_here_and_elsewhere_do_not_mix_up(clients: Clients) -> None:
    near, far = clients
    far.create_queue("mine")
    with far.consume("mine") as here, far.consume("orders") as there:
        near.put("orders", "from there")
        far.put("mine", "from here")
        for consumer, text in ((here, "from here"), (there, "from there")):
            delivery = consumer.next(20)
            assert delivery is not None
            assert delivery.message.text == text
            delivery.ack()
    assert far.read_messages("orders") == far.read_messages("mine") == []


def test_when_a_client_goes_what_it_held_elsewhere_goes_back(pair: Pair, clients: Clients) -> None:
    near, _ = clients
    near.put("orders", "one")
    with sync.Client.connect(str(pair[1].address("telesto")), name="bob") as bob:
        consumer = bob.consume("orders")
        consumer.__enter__()
        assert consumer.next(20) is not None
    found = near.take("orders", wait_s=20)
    assert found is not None
    assert found.delivery_count == 1


def test_all_that_a_client_asks_for_before_it_closes_its_side_is_done_elsewhere(pair: Pair, clients: Clients) -> None:
    near, _ = clients
    queue = near.get_queue_by_name("orders")
    peer = wide(pair[1])
    count = 2 * MAX_IN_FLIGHT + 1
    peer.send(*[wire.Put(number, [queue.id], [WireDraft(b"a")]) for number in range(1, count + 1)])
    peer.socket.shutdown(socket.SHUT_WR)
    answers = [peer.receive() for _ in range(count)]
    assert all(isinstance(answer, wire.PutDone) for answer in answers)
    assert peer.is_closed_by_node()
    assert len(near.list_ids("orders")) == count


def test_what_is_asked_for_after_the_last_word_to_another_node_is_not_sent() -> None:
    async def test() -> None:
        received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            received.set_result(await reader.read())
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1") as server:
            upstream = relay.Upstream(cast(Any, None), "{}:{}".format(*server.sockets[0].getsockname()), 0)
            upstream._lose = lambda: None  # type: ignore[method-assign]
            await asyncio.get_running_loop().create_connection(lambda: upstream, *upstream._address)
            upstream._is_ready = True
            upstream.end()
            upstream.end()
            answers: list[Any] = []
            upstream.request(wire.Ping(1), lambda *answer: answers.append(answer))
            assert answers == [(None, False)]
            assert await received == b""

    asyncio.run(test())


def test_stopping_node_ends_its_clients_remote_consumers_at_once(pair: Pair, clients: Clients) -> None:
    near, _ = clients
    queue = near.get_queue_by_name("orders")
    first, _ = near.put_many("orders", ["one", "two"])
    peer = wide(pair[1])
    consumer_id = peer.get(wire.Consuming, wire.Consume(1, queue.id, WireSelector(), 2.0)).consumer_id
    answers: list[Callable[[], None]] = []

    def hold_answers(node: Node) -> None:
        """Commit acks, but answer them only when the test says so, as if the network were cut."""
        acknowledge = node.hub.broker.acknowledge

        def held(consumer: Consumer, message_ids: Sequence[int], done: Done) -> None:
            acknowledge(consumer, message_ids, lambda error: answers.append(partial(done, error)))

        node.hub.broker.acknowledge = held  # type: ignore[method-assign]

    def begin_to_stop(node: Node) -> None:
        for connection in node.hub.connections:
            connection.stop_waiting()

    pair[0].call(hold_answers)
    peer.send(wire.Settle(2, consumer_id, Outcome.ACKNOWLEDGE, [first]))
    pair[0].wait_until(lambda node: bool(answers))
    pair[1].call(begin_to_stop)
    # What the consumer holds is requeued: its client must not handle it from now on.
    found = near.take("orders", wait_s=20)
    assert found is not None
    assert (found.text, found.redelivered) == ("two", True)
    peer.get(wire.Pong, wire.Ping(3))
    assert peer.ended_consumers == [consumer_id]
    pair[0].call(lambda node: [answer() for answer in answers])
    assert peer.receive() == wire.Success(2)


def test_consumer_whose_connection_is_ending_when_it_begins_is_ended() -> None:
    told: list[wire.Packet] = []
    sent: list[bytes] = []
    engine = SimpleNamespace(new_consumer_id=lambda: 7)
    session = SimpleNamespace(
        hub=None,
        broker=SimpleNamespace(engine=engine),
        reply=lambda request, packet: told.append(packet),
        send=sent.append,
    )
    passed_on = relay.Relay(cast(Any, session))
    upstream = relay.Upstream(passed_on, "127.0.0.1:1", 0)
    upstream.end()
    consume, request = wire.Consume(4, 1, WireSelector(), 1.0), TelestoRequest()
    request.packet_id = 4
    passed_on._answer(consume, request, upstream, wire.Consuming(1, 3))
    assert told == [wire.Consuming(4, 7)]
    assert sent == [wire.encode_wide(wire.ConsumerEnded(0, 7))]
    assert list(passed_on.consuming()) == []


def test_requests_and_responses_may_meet_at_a_third_node(pair: Pair, clients: Clients) -> None:
    near, far = clients
    with sync.Client.connect(str(pair[1].address("telesto")), name="bob") as bob:
        near.put("orders", "for bob", receiver=bob.id)
        assert far.take("orders") is None
        found = bob.take("orders", only_addressed=True)
        assert found is not None
        bob.reply(found, "done")
        answer = near.take("orders", only_addressed=True, wait_s=20)
        assert answer is not None
        assert (answer.text, answer.sender) == ("done", bob.id)


def test_plain_clients_use_queues_of_other_nodes(pair: Pair, clients: Clients) -> None:
    queue = clients[0].get_queue_by_name("orders")
    plain = TelestoPeer(pair[1].connect("telesto"))
    client_id = plain.get(wire.RegisterClientResponse, wire.RegisterClient(1, "plain", 1)).client_id
    assert plain.get(wire.GetQueueIdResponse, wire.GetQueueId(2, "orders")).queue_id == queue.id
    message = WireMessage(0, queue.id, 0, 0, 0, 5, 0, "hello")
    assert isinstance(plain.ask(wire.PutMessage(3, message, [])), wire.Success)
    found = plain.get(wire.ReadMessageResponse, wire.ReadMessage(4, queue.id, 0, 1)).message
    assert (found.text, found.sender_id, found.priority) == ("hello", client_id, 5)
    assert plain.refusal(wire.ReadMessage(5, queue.id, 0, 1)) == ErrorCode.NO_MESSAGES_RETRIEVED
    assert plain.refusal(wire.PutMessage(6, message, [999_999])) == ErrorCode.QUEUE_NOT_EXISTING


def test_plain_clients_list_and_delete_queues_of_other_nodes(pair: Pair, clients: Clients) -> None:
    queue = clients[0].get_queue_by_name("orders")
    plain = TelestoPeer(pair[1].connect("telesto"))
    plain.get(wire.RegisterClientResponse, wire.RegisterClient(1, "plain", 1))
    message = WireMessage(0, queue.id, 0, 0, 0, 5, 0, "hello")
    assert isinstance(plain.ask(wire.PutMessage(2, message, [])), wire.Success)
    assert [found.text for found in plain.get(wire.GetMessagesResponse, wire.GetMessages(3, queue.id)).messages] == [
        "hello"
    ]
    assert plain.get(wire.GetQueueNameResponse, wire.GetQueueName(4, queue.id)).queue_name == "orders"
    assert isinstance(plain.ask(wire.DeleteQueue(5, queue.id)), wire.Success)
    assert plain.refusal(wire.GetQueueName(6, queue.id)) == ErrorCode.QUEUE_NOT_EXISTING
    pair[0].wait_until(lambda node: node.hub.broker.engine.find_queue("orders") is None)


def test_message_too_long_for_plain_clients_stays_in_its_remote_queue(pair: Pair, clients: Clients) -> None:
    queue = clients[0].get_queue_by_name("orders")
    clients[0].put("orders", b"x" * 40_000)
    plain = TelestoPeer(pair[1].connect("telesto"))
    plain.get(wire.RegisterClientResponse, wire.RegisterClient(1, "plain", 1))
    assert plain.refusal(wire.ReadMessage(2, queue.id, 0, 1)) == ErrorCode.INTERNAL_ERROR
    assert pair[0].call(lambda node: len(node.hub.broker.engine.queue(queue.id))) == 1


def test_queues_of_all_nodes_with_messages_for_the_client_are_active(pair: Pair, clients: Clients) -> None:
    near, far = clients
    orders, mine = near.get_queue_by_name("orders"), far.create_queue("mine")
    near.create_queue("empty")
    plain = TelestoPeer(pair[1].connect("telesto"))
    client_id = plain.get(wire.RegisterClientResponse, wire.RegisterClient(1, "plain", 1)).client_id
    assert plain.refusal(wire.GetActiveQueues(2)) == ErrorCode.NO_ACTIVE_QUEUES_EXISTING
    near.put("orders", "not for it", receiver=near.id)
    assert plain.refusal(wire.GetActiveQueues(3)) == ErrorCode.NO_ACTIVE_QUEUES_EXISTING
    near.put_many("orders", ["for all", "again"])
    far.put("mine", "for it", receiver=client_id)
    found = plain.get(wire.GetActiveQueuesResponse, wire.GetActiveQueues(4)).queues
    assert [queue.id for queue in found] == [orders.id, orders.id, mine.id]
    assert far.get_active_queues() == [orders]


def test_a_node_that_does_not_answer_is_left_out_of_the_active_queues(
    pair: Pair, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_requests, "ACTIVE_LIMIT_S", 0.2)
    near, far = clients
    mine = far.create_queue("mine")
    near.put("orders", "for all")
    far.put("mine", "for all")
    near.close()
    pair[0].stop()
    assert far.get_active_queues() == [mine]


def test_what_another_node_passes_on_is_not_passed_on_again(pair: Pair, clients: Clients) -> None:
    queue = clients[0].get_queue_by_name("orders")
    peer = wide(pair[1])
    peer.get(wire.Success, wire.Forwarded(1))
    assert peer.refusal(wire.Take(2, queue.id, WireSelector(), 1, 0)) == ErrorCode.QUEUE_NOT_EXISTING


@pytest.mark.parametrize("is_owner", [False, True])
def test_queue_that_is_heard_of_late_is_reached_in_its_virtual_host_only(pair: Pair, is_owner: bool) -> None:
    def create(node: Node) -> tuple[Queue, int]:
        return node.hub.broker.engine.create_queue("closed", vhost="other"), node.membership.node_id

    queue, owner = pair[0].call(create)

    async def hear_of_it() -> None:
        pair[1].node.hub.directory.put(queue, owner)

    pair[1].call(lambda node: setattr(node.hub.peering, "catch_up", hear_of_it))
    peer = TelestoPeer(pair[1].connect("telesto"))
    peer.widen()
    if is_owner:
        peer.prove()
    peer.join("alice")
    packets: list[wire.Packet] = [
        wire.Put(1, [queue.id], [WireDraft(b"text", 0, 0, 0, False)]),
        wire.Peek(2, queue.id, WireSelector()),
        wire.ListIds(3, queue.id, 0, 1),
        wire.Take(4, queue.id, WireSelector(), 1, 0),
        wire.Consume(5, queue.id, WireSelector(), 1.0),
    ]
    for packet in packets:
        pair[1].call(lambda node: node.hub.directory.remove(queue.id))
        answer = peer.ask(packet)
        if is_owner:
            assert not isinstance(answer, wire.Error)
        else:
            assert isinstance(answer, wire.Error)
            assert answer.code == ErrorCode.QUEUE_NOT_EXISTING


def test_request_of_a_client_that_has_gone_is_passed_on_to_nobody(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody has heard of it yet.
    queue, owner = Queue(999_999, "orders"), pair[0].call(lambda node: node.membership.node_id)
    begun: list[str] = []
    monkeypatch.setattr(relay.Upstream, "__init__", lambda self, relay, address, client_id: begun.append(address))
    looking, has_gone, is_over = threading.Event(), threading.Event(), threading.Event()

    async def hear_of_it() -> None:
        looking.set()
        await asyncio.to_thread(has_gone.wait, 20)
        pair[1].node.hub.directory.put(queue, owner)
        # After the request has gone on with what was heard.
        asyncio.get_running_loop().call_soon(asyncio.get_running_loop().call_soon, is_over.set)

    peer = wide(pair[1], "alice")
    pair[1].call(lambda node: setattr(node.hub.peering, "catch_up", hear_of_it))
    peer.send(wire.Consume(1, queue.id, WireSelector(), 10.0))
    assert looking.wait(20)
    # Reset: of a client that only says no more, what is under way is still carried out.
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    pair[1].wait_until(lambda node: not any(isinstance(each, TelestoSession) for each in node.hub.connections))
    has_gone.set()
    assert is_over.wait(20)
    assert begun == []


def test_a_connection_with_too_many_refused_puts_ends(memory_node: RunningNode) -> None:
    peer = wide(memory_node)
    peer.get(wire.Success, wire.Forwarded(1))

    def held(node: Node) -> tuple[int, int]:
        [session] = [found for found in node.hub.connections if isinstance(found, TelestoSession)]
        return len(session.refused), session.held_bytes()

    count, before_bytes = memory_node.call(held)
    assert count == 0
    for first in range(1000, 1000 + MAX_REFUSED, MAX_COPIES):
        packet = wire.Put(2, list(range(first, first + MAX_COPIES)), [WireDraft(b"a")])
        assert peer.refusal(packet) == ErrorCode.QUEUE_NOT_EXISTING
    count, held_bytes = memory_node.call(held)
    assert count == MAX_REFUSED
    assert held_bytes - before_bytes >= 50 * MAX_REFUSED
    peer.send(wire.Put(3, [999], [WireDraft(b"a")]))
    assert peer.is_closed_by_node()


def test_when_the_other_node_stops_consumers_end_and_requests_are_refused_in_time(
    pair: Pair, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, _ = clients
    queue = near.get_queue_by_name("orders")
    peer = wide(pair[1])
    consumer_id = peer.get(wire.Consuming, wire.Consume(1, queue.id, WireSelector(), 1.0)).consumer_id
    monkeypatch.setattr(relay, "GIVE_UP_S", 0.2)
    near.close()
    pair[0].stop()
    while not peer.ended_consumers:
        peer.get(wire.Pong, wire.Ping(2))
    assert peer.ended_consumers == [consumer_id]
    assert peer.refusal(wire.Settle(3, consumer_id, Outcome.REQUEUE, [1])) == ErrorCode.CONSUMER_NOT_EXISTING
    assert peer.refusal(wire.Put(4, [queue.id], [WireDraft(b"a")])) == ErrorCode.STORE_UNAVAILABLE
    assert peer.refusal(wire.Purge(5, queue.id)) == ErrorCode.STORE_UNAVAILABLE


@pytest.mark.parametrize(
    "lose",
    [lambda node, owner: node.peers.lost(owner), lambda node, owner: node.membership.on_lapsed()],
    ids=["dead", "this node had no lease"],
)
def test_consumers_at_a_lost_node_end_although_it_is_connected(
    pair: Pair, clients: Clients, lose: Callable[[Node, int], None]
) -> None:
    near, _ = clients
    queue, owner = near.get_queue_by_name("orders"), pair[0].call(lambda node: node.membership.node_id)
    peer = wide(pair[1])
    consumer_id = peer.get(wire.Consuming, wire.Consume(1, queue.id, WireSelector(), 1.0)).consumer_id
    pair[1].call(lambda node: lose(node, owner))
    peer.get(wire.Pong, wire.Ping(2))
    assert peer.ended_consumers == [consumer_id]


def test_topics_reach_subscribers_at_other_nodes(clients: Clients) -> None:
    near, far = clients
    near.create_topic("news")
    wait_for_topic(far, "news")
    far.create_topic("sport", parent="news")
    with near.subscribe("news", durable="billing") as messages, far.subscribe("news", durable="billing") as shared:
        wait_for_subscription(far, "news")
        assert far.topic("sport").publish("goal", key="today") == 1
        delivery = None
        while delivery is None:
            delivery = messages.next(0.1) or shared.next(0.1)
        assert (delivery.message.text, delivery.message.sender) == ("goal", far.id)
        delivery.ack()


def test_a_subscription_is_answered_when_the_other_nodes_know_it(pair: Pair, clients: Clients) -> None:
    near, _ = clients
    near.create_topic("news")
    asked: list[bool] = []

    async def followed() -> None:
        asked.append(True)

    pair[0].call(lambda node: setattr(node.hub.peering, "followed", followed))
    with near.subscribe("news"):
        assert asked == [True]


def test_subscriptions_at_other_nodes_are_counted_and_ended(clients: Clients) -> None:
    near, far = clients
    near.create_topic("news")
    with near.subscribe("news", durable="billing"), near.subscribe("news"):
        wait_for_topic(far, "news")
        with pytest.raises(CommandRefused, match="in use"):
            far.manage("topic.unsubscribe", name="news", subscription="billing")
    near.topic("news").publish("rain")
    wait_for_subscription(far, "news")
    (found,) = [entry for entry in far.manage("topic.subscriptions", name="news") if entry["subscription"]]
    assert (found["subscription"], found["messages"], found["consumers"]) == ("billing", 1, 0)
    far.manage("topic.unsubscribe", name="news", subscription="billing")
    with pytest.raises(CommandRefused, match="no queue 'news/billing'"):
        far.manage("topic.unsubscribe", name="news", subscription="billing")
    with pytest.raises(QueueNotFound):
        near.get_queue_by_name("news/billing")


def test_subscriptions_whose_node_is_gone_are_listed_without_counts(
    pair: Pair, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "COUNT_LIMIT_S", 0.2)
    near, far = clients
    near.create_topic("news")
    with near.subscribe("news", durable="billing"):
        pass
    wait_for_topic(far, "news")
    wait_for_subscription(far, "news")
    near.close()
    pair[0].stop()
    (found,) = far.manage("topic.subscriptions", name="news")
    assert (found["subscription"], found["messages"], found["consumers"]) == ("billing", None, None)


def wait_for_topic(client: Any, name: str) -> None:
    while not any(topic["name"] == name for topic in client.manage("topic.list")):
        pass


def wait_for_subscription(client: Any, name: str) -> None:
    while not client.manage("topic.subscriptions", name=name):
        pass
