"""Telesto's clients at one node use the queues of another: everything works as if they were there."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flyball.broker.node.node import Node
from flyball.broker.protocols import telesto as requests
from flyball.broker.protocols.requests import MAX_IN_FLIGHT
from flyball.broker.wire import telesto as wire
from flyball.broker.wire.telesto import ErrorCode, ReadMode, WireMessage
from flyball.model import Queue
from tests.broker.domains import Pair, two_nodes
from tests.broker.peers import TelestoPeer, amqp, telesto


class Clients:
    """The same client at the first node and at the second, and another one there; the queue is the first's."""

    def __init__(self, nodes: Pair) -> None:
        self.nodes = nodes
        self.near = telesto(nodes[0], "alice")
        self.client_id = self.near.client_id
        self.queue_id = self.near.create_queue("orders")
        self.bob = telesto(nodes[1], "bob")
        self.far = TelestoPeer(nodes[1].connect("telesto"))
        # The second node may learn of the new client a little later.
        nodes[1].wait_until(lambda node: node.hub.broker.engine.has_client(self.client_id))
        self.far.get(wire.IdentifyClientResponse, wire.IdentifyClient(1, self.client_id))

    def length(self) -> int:
        """Return how many messages are in the queue."""
        return self.nodes[0].call(lambda node: len(node.hub.broker.engine.queue(self.queue_id)))


@pytest.fixture
def clients(tmp_path: Path, new_database: Callable[[], str]) -> Iterator[Clients]:
    with two_nodes(tmp_path, new_database, thorbang="off") as nodes:
        yield Clients(nodes)


def message_for(queue_id: int, text: str = "text", context: int = 0, receiver: int = 0) -> WireMessage:
    return WireMessage(0, queue_id, 0, receiver, context, 5, 0, text)


def queues_of(peer: TelestoPeer) -> list[Queue]:
    return list(peer.get(wire.GetQueuesResponse, wire.GetQueues(peer.next_id())).queues)


def test_queues_of_other_nodes_are_found_and_listed_and_their_names_are_taken(clients: Clients) -> None:
    near, far, queue_id = clients.near, clients.far, clients.queue_id
    assert far.get(wire.GetQueueIdResponse, wire.GetQueueId(2, "orders")).queue_id == queue_id
    assert far.get(wire.GetQueueNameResponse, wire.GetQueueName(3, queue_id)).queue_name == "orders"
    mine = far.create_queue("mine")
    assert [(queue.id, queue.name) for queue in queues_of(far)] == [(queue_id, "orders"), (mine, "mine")]
    assert far.refusal(wire.CreateQueue(4, "orders")) == ErrorCode.QUEUE_NAME_NOT_UNIQUE
    assert far.refusal(wire.GetQueueId(5, "nowhere")) == ErrorCode.QUEUE_NOT_EXISTING
    assert far.refusal(wire.GetQueueName(6, 999_999)) == ErrorCode.QUEUE_NOT_EXISTING
    far.get(wire.Success, wire.DeleteQueue(7, queue_id))
    assert far.refusal(wire.GetQueueName(8, queue_id)) == ErrorCode.QUEUE_NOT_EXISTING
    assert near.refusal(wire.GetQueueName(9, queue_id)) == ErrorCode.QUEUE_NOT_EXISTING
    far.create_queue("orders")


def test_what_the_other_node_has_made_just_now_is_known(clients: Clients) -> None:
    for number in range(5):
        queue_id = clients.near.create_queue(f"q{number}")
        assert isinstance(clients.far.put_text(queue_id, "text"), wire.Success)
        name = f"r{number}"
        assert (
            clients.near.create_queue(name)
            == clients.far.get(wire.GetQueueIdResponse, wire.GetQueueId(1, name)).queue_id
        )


def test_messages_are_put_listed_and_read_at_another_node(clients: Clients) -> None:
    far, queue_id = clients.far, clients.queue_id
    assert isinstance(far.ask(wire.PutMessage(2, message_for(queue_id, "hello"), [])), wire.Success)
    [listed] = far.get(wire.GetMessagesResponse, wire.GetMessages(3, queue_id)).messages
    assert listed.text == "hello"
    found = far.get(wire.ReadMessageResponse, wire.ReadMessage(4, queue_id, 0, ReadMode.PRIORITY)).message
    assert (found.text, found.sender_id, found.priority) == ("hello", clients.client_id, 5)
    assert far.refusal(wire.ReadMessage(5, queue_id, 0, ReadMode.PRIORITY)) == ErrorCode.NO_MESSAGES_RETRIEVED
    assert far.refusal(wire.GetMessages(6, queue_id)) == ErrorCode.NO_MESSAGES_IN_QUEUE


def test_put_into_queues_of_several_nodes_reports_missing_ones(clients: Clients) -> None:
    far, there = clients.far, clients.queue_id
    here = far.create_queue("mine")
    assert isinstance(far.put_text(here, "both", there), wire.Success)
    refused = far.put_text(there, "again", 999_999, here)
    assert isinstance(refused, wire.Error)
    assert refused.code == ErrorCode.QUEUE_NOT_EXISTING
    for queue_id in (here, there):
        assert [far.read_text(queue_id) for _ in range(3)] == ["again", "both", None]


def test_requests_and_responses_may_meet_at_a_third_node(clients: Clients) -> None:
    near, bob, queue_id = clients.near, clients.bob, clients.queue_id
    near.ask(wire.PutMessage(2, message_for(queue_id, "question", context=7, receiver=bob.client_id), []))
    assert clients.far.read_text(queue_id) is None
    question = bob.get(wire.ReadMessageResponse, wire.ReadMessage(2, queue_id, 0, ReadMode.TIME)).message
    answer = message_for(queue_id, "answer", context=question.context, receiver=question.sender_id)
    bob.get(wire.Success, wire.PutMessage(3, answer, []))
    found = clients.far.get(wire.ReadMessageResponse, wire.ReadResponse(3, queue_id, 7)).message
    assert (found.text, found.sender_id) == ("answer", bob.client_id)


def test_all_that_a_client_asks_for_before_it_closes_its_side_is_done_elsewhere(clients: Clients) -> None:
    count = 2 * MAX_IN_FLIGHT + 1
    clients.far.send(*[wire.PutMessage(n, message_for(clients.queue_id), []) for n in range(count)])
    clients.far.socket.shutdown(socket.SHUT_WR)
    assert all(isinstance(clients.far.receive(), wire.Success) for _ in range(count))
    assert clients.far.is_closed_by_node()
    assert clients.length() == count


def test_message_too_long_for_a_frame_stays_in_its_remote_queue(clients: Clients) -> None:
    amqp(clients.nodes[0]).put("orders", b"x" * 40_000)
    read = wire.ReadMessage(2, clients.queue_id, 0, ReadMode.PRIORITY)
    assert clients.far.refusal(read) == ErrorCode.INTERNAL_ERROR
    assert clients.length() == 1


def test_queues_of_all_nodes_with_messages_for_the_client_are_active(clients: Clients) -> None:
    near, bob, orders = clients.near, clients.bob, clients.queue_id
    mine = bob.create_queue("mine")
    near.create_queue("empty")
    assert bob.refusal(wire.GetActiveQueues(2)) == ErrorCode.NO_ACTIVE_QUEUES_EXISTING
    near.put_text(orders, "not for it", receiver=near.client_id)
    assert bob.refusal(wire.GetActiveQueues(3)) == ErrorCode.NO_ACTIVE_QUEUES_EXISTING
    near.put_text(orders, "for all")
    near.put_text(orders, "again")
    bob.put_text(mine, "for it", receiver=bob.client_id)
    found = bob.get(wire.GetActiveQueuesResponse, wire.GetActiveQueues(4)).queues
    assert [queue.id for queue in found] == [orders, orders, mine]


def test_while_the_owner_is_gone_requests_are_refused_in_time(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "ACTIVE_LIMIT_S", 0.2)
    far, queue_id = clients.far, clients.queue_id
    mine = far.create_queue("mine")
    far.put_text(mine, "text")
    clients.nodes[1].call(lambda node: setattr(node.remotes, "_wait_s", 0.2))
    clients.nodes[1].call(lambda node: setattr(node.remotes.puts, "wait_s", 0.2))
    clients.nodes[0].stop()
    for packet in (
        wire.PutMessage(1, message_for(queue_id), []),
        wire.ReadMessage(2, queue_id, 0, ReadMode.TIME),
        wire.ReadResponse(3, queue_id, 7),
        wire.GetMessages(4, queue_id),
        wire.DeleteQueue(5, queue_id),
    ):
        assert far.refusal(packet) == ErrorCode.INTERNAL_ERROR
    # A node that does not answer is left out.
    assert [queue.id for queue in far.get(wire.GetActiveQueuesResponse, wire.GetActiveQueues(6)).queues] == [mine]


def test_queue_that_is_heard_of_late_is_reached_in_its_virtual_host_only(clients: Clients) -> None:
    def create(node: Node) -> tuple[Queue, int]:
        return node.hub.broker.engine.create_queue("closed", vhost="other"), node.membership.node_id

    near, far = clients.nodes
    queue, owner = near.call(create)

    async def hear_of_it() -> None:
        far.node.hub.directory.put(queue, owner)

    far.call(lambda node: setattr(node.hub.peering, "catch_up", hear_of_it))
    for packet, code in (
        (wire.PutMessage(1, message_for(queue.id), []), ErrorCode.QUEUE_NOT_EXISTING),
        (wire.ReadMessage(2, queue.id, 0, ReadMode.TIME), ErrorCode.NO_MESSAGES_RETRIEVED),
        (wire.ReadResponse(3, queue.id, 7), ErrorCode.NO_MESSAGES_RETRIEVED),
        (wire.GetMessages(4, queue.id), ErrorCode.NO_MESSAGES_IN_QUEUE),
        (wire.GetQueueName(5, queue.id), ErrorCode.QUEUE_NOT_EXISTING),
        (wire.DeleteQueue(6, queue.id), ErrorCode.QUEUE_NOT_EXISTING),
    ):
        far.call(lambda node: node.hub.directory.remove(queue.id))
        assert clients.far.refusal(packet) == code
    assert near.call(lambda node: node.hub.broker.engine.has_queue(queue.id))
