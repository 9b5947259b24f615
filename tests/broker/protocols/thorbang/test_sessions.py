"""ThorBangMQ's protocol beyond the recorded sessions: pipelining, names, and messages that others wrote."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pika import spec

from flyball.broker.node.node import Node
from flyball.broker.wire import telesto as wire
from flyball.model import Draft
from tests.broker.peers import amqp, telesto, thorbang
from tests.nodes import Gate, RunningNode


def test_pipelined_requests_are_answered_in_order(gate: Gate, memory_node: RunningNode) -> None:
    peer = thorbang(memory_node)
    client_id, queue_id = peer.set_up()
    gate.close(memory_node)
    peer.send(f"MSG,{client_id},{client_id},{queue_id},1,0,first", "HELLO", f"PEEKQ,{client_id},99,1", "nonsense")
    memory_node.wait_until(lambda node: in_flight(node) == 4)
    gate.open(memory_node)
    assert [peer.receive() for _ in range(4)] == ["OK", "OK", "MSG0", "BAD REQUEST"]
    assert peer.is_closed_by_node()


@pytest.mark.parametrize("malformed", ["nonsense", "", "PEEKQ,1", "MSG,1,1,1;x,1,0,text", "MSG,1,1,x,1,0,text"])
def test_nothing_after_malformed_request_is_carried_out(memory_node: RunningNode, malformed: str) -> None:
    peer = thorbang(memory_node)
    peer.set_up()
    peer.send("HELLO", malformed, "CREATEQUEUE,after")
    peer.send("CREATEQUEUE,later")
    assert [peer.receive(), peer.receive()] == ["OK", "BAD REQUEST"]
    assert peer.is_closed_by_node()
    assert memory_node.call(lambda node: len(list(node.hub.broker.engine.queues))) == 1


@pytest.mark.parametrize("command", ["CREATEQUEUE", "CREATECLIENT"])
def test_surplus_blanks_of_a_name_are_cut_and_other_surplus_refused(memory_node: RunningNode, command: str) -> None:
    peer = thorbang(memory_node)
    full = "x" * 25
    assert peer.ask(f"{command},{full}  ", f"{command},{full}x", f"{command},{full} x") == [
        "1",
        "FAIL UNKNOWN -1",
        "FAIL UNKNOWN -1",
    ]
    engine = memory_node.node.hub.broker.engine
    names = {state.queue.name for state in engine.queues} | {client.name for client in engine.clients}
    assert names == {full}


def test_queues_of_other_virtual_hosts_are_out_of_reach(memory_node: RunningNode) -> None:
    closed = memory_node.call(lambda node: node.hub.broker.engine.create_queue("closed", vhost="other"))
    memory_node.call(lambda node: node.hub.broker.put(Draft(b"secret"), [closed.id], lambda *_: None))
    peer = thorbang(memory_node)
    (client_id,) = peer.ask("CREATECLIENT,client")
    missing, others = (
        peer.ask(
            f"MSG,{client_id},{client_id},{queue_id},1,0,text",
            f"PEEKQ,{client_id},{queue_id},1",
            f"POPQ,{client_id},{queue_id},1",
            f"REMOVEQUEUE,{queue_id}",
        )
        for queue_id in (99, closed.id)
    )
    assert [answer.replace(str(closed.id), "99") for answer in others] == missing
    assert memory_node.call(lambda node: [len(state) for state in node.hub.broker.engine.queues]) == [1]


def test_hundreds_of_pipelined_messages_come_back_in_order(start_node: Callable[..., RunningNode]) -> None:
    peer = thorbang(start_node())
    client_id, queue_id = peer.set_up()
    count = 700
    sent = [f"MSG,{client_id},{client_id},{queue_id},1,0,number {number}" for number in range(count)]
    assert peer.ask(*sent) == ["OK"] * count
    popped = peer.ask(*[f"POPQ,{client_id},{queue_id},1"] * (count + 1))
    assert [answer.split(",", 4)[4] for answer in popped[:-1]] == [f"number {number}" for number in range(count)]
    assert popped[-1] == "MSG0"


def test_a_message_and_its_pop_in_one_segment_meet(start_node: Callable[..., RunningNode]) -> None:
    peer = thorbang(start_node())
    client_id, queue_id = peer.set_up()
    message, pop = f"MSG,{client_id},{client_id},{queue_id},1,7,text", f"POPQ,{client_id},{queue_id},1"
    assert peer.ask(message, pop, pop) == ["OK", f"MSG,{client_id},7,1,text", "MSG0"]


def test_names_need_not_differ_and_get_distinct_ones_here(memory_node: RunningNode) -> None:
    peer = thorbang(memory_node)
    queue_ids = peer.ask("CREATEQUEUE,name", "CREATEQUEUE,name", "CREATEQUEUE,name", "CREATEQUEUE,name#2")
    client_ids = peer.ask("CREATECLIENT,name", "CREATECLIENT,name")
    assert queue_ids == ["1", "2", "3", "4"]
    assert client_ids == ["1", "2"]
    names = memory_node.call(lambda node: [state.queue.name for state in node.hub.broker.engine.queues])
    assert names == ["name", "name#2", "name#3", "name#2#4"]


def test_a_message_to_several_queues_stops_at_the_first_that_is_missing(memory_node: RunningNode) -> None:
    peer = thorbang(memory_node)
    client_id, _ = peer.set_up()
    peer.ask("CREATEQUEUE,second")
    assert peer.ask(f"MSG,{client_id},{client_id},1;9;2,1,0,text") == ["FAIL QUEUE 9"]
    assert peer.ask(f"POPQ,{client_id},1,1", f"POPQ,{client_id},2,1") == [f"MSG,{client_id},0,1,text", "MSG0"]


def test_a_message_of_a_megabyte_survives(start_node: Callable[..., RunningNode]) -> None:
    peer = thorbang(start_node())
    client_id, queue_id = peer.set_up()
    text = "aé€" * 200_000
    assert peer.ask(f"MSG,{client_id},{client_id},{queue_id},1,0,{text}") == ["OK"]
    assert peer.ask(f"POPQ,{client_id},{queue_id},1") == [f"MSG,{client_id},0,1,{text}"]


def test_what_came_through_thorbang_can_be_read_by_telesto_and_amqp(memory_node: RunningNode) -> None:
    peer = thorbang(memory_node)
    client_id, queue_id = peer.set_up()
    plain, other = telesto(memory_node, "plain"), amqp(memory_node)
    for number in range(3):
        # Beyond the 32 bits of Telesto's context, and without a receiver.
        assert peer.ask(f"MSG,-1,{client_id},{queue_id},1000,{2**40 + 5},text {number}") == ["OK"]
    read = plain.get(wire.ReadMessageResponse, wire.ReadMessage(9, queue_id, client_id, wire.ReadMode.TIME)).message
    assert (read.text, read.sender_id, read.context, read.priority) == ("text 2", client_id, 5, 127)
    content = other.get("queue", no_ack=True)
    assert content is not None
    assert content.body == b"text 0"
    assert content.properties.headers == {
        "x-flyball-sender": client_id,
        "x-flyball-context": 2**40 + 5,
        "x-flyball-priority": 1000,
    }
    assert other.take("queue", most=5) == [b"text 1"]


def test_a_receiver_beyond_32_bits_is_whole(memory_node: RunningNode) -> None:
    peer = thorbang(memory_node)
    client_id, queue_id = peer.set_up()
    receiver = 2**40 + 3
    peer.ask(f"MSG,{receiver},{client_id},{queue_id},1,0,text")
    other = amqp(memory_node)
    content = other.get("queue")
    assert content is not None
    assert content.properties.headers["x-flyball-receiver"] == receiver
    other.send(spec.Basic.Reject(delivery_tag=content.method.delivery_tag, requeue=True))
    other.sync()
    assert telesto(memory_node, "another").read_text(queue_id) is None
    assert peer.ask(f"POPQ,{receiver},{queue_id},1") == [f"MSG,{client_id},0,1,text"]


@pytest.mark.parametrize("request_text", ["POPQ,1,{},1", "PEEKQ,1,{},1"])
def test_a_body_with_a_zero_byte_is_refused_to_thorbang_and_stays(
    memory_node: RunningNode, request_text: str
) -> None:
    peer, other = thorbang(memory_node), amqp(memory_node)
    _, queue_id = peer.set_up()
    other.put("queue", b"\0binary")
    assert peer.ask(request_text.format(queue_id)) == ["FAIL UNKNOWN -1"]
    assert other.take("queue") == [b"\0binary"]


def test_a_queue_with_unacked_messages_is_not_empty(memory_node: RunningNode) -> None:
    peer, writer, reader = thorbang(memory_node), amqp(memory_node), amqp(memory_node)
    _, queue_id = peer.set_up()
    writer.put("queue", b"body")
    reader.consume("queue")
    delivery = reader.next_delivery()
    assert peer.ask(f"REMOVEQUEUE,{queue_id}") == ["FAIL UNKNOWN -1"]
    reader.ack(delivery)
    reader.sync()
    assert peer.ask(f"REMOVEQUEUE,{queue_id}", f"REMOVEQUEUE,{queue_id}") == ["OK", "OK"]


def test_a_sender_of_stored_messages_cannot_be_removed(start_node: Callable[..., RunningNode]) -> None:
    peer = thorbang(start_node())
    client_id, queue_id = peer.set_up()
    peer.ask(f"MSG,{client_id},{client_id},{queue_id},1,0,text")
    pop, remove = f"POPQ,{client_id},{queue_id},1", f"REMOVECLIENT,{client_id}"
    assert peer.ask(remove) == ["FAIL UNKNOWN -1"]
    assert peer.ask(pop) == [f"MSG,{client_id},0,1,text"]
    assert peer.ask(remove, remove) == ["OK", "OK"]


def in_flight(node: Node) -> int:
    return sum(connection.in_flight for connection in node.hub.connections)
