"""Telesto's protocol beyond the recorded sessions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flyball.broker.core import broker
from flyball.broker.wire import telesto as wire
from flyball.broker.wire.telesto import ErrorCode, ReadMode, WireMessage
from tests.broker.peers import TelestoPeer, amqp, telesto, thorbang
from tests.nodes import Gate, RunningNode


def test_pipelined_requests_are_answered_as_they_finish_with_their_packet_ids(
    gate: Gate, memory_node: RunningNode
) -> None:
    peer = telesto(memory_node)
    queue_id = peer.create_queue()
    gate.close(memory_node)
    message = WireMessage(0, queue_id, 0, 0, 0, 0, 0, "text")
    peer.send(wire.PutMessage(-5, message, []), wire.Ping(0), wire.GetQueueName(2**31 - 1, 99))
    assert peer.receive() == wire.Pong(0)
    assert peer.receive().packet_id == 2**31 - 1
    gate.open(memory_node)
    assert peer.receive() == wire.Success(-5)


def test_requests_right_behind_a_registration_belong_to_that_client(start_node: Callable[..., RunningNode]) -> None:
    peer = TelestoPeer(start_node().connect("telesto"))
    message = WireMessage(0, 1, 0, 1, 0, 0, 0, "to myself")
    peer.send(
        wire.RegisterClient(1, "client", 1),
        wire.CreateQueue(2, "queue"),
        wire.PutMessage(3, message, []),
        wire.ReadMessage(4, 1, 1, ReadMode.PRIORITY),
        wire.RegisterClient(5, "another", 1),
    )
    answers = {packet.packet_id: packet for packet in (peer.receive() for _ in range(5))}
    assert answers[1] == wire.RegisterClientResponse(1, 1)
    assert answers[2] == wire.CreateQueueResponse(2, 1)
    assert answers[3] == wire.Success(3)
    read, refused = answers[4], answers[5]
    assert isinstance(read, wire.ReadMessageResponse)
    assert (read.message.text, read.message.sender_id) == ("to myself", 1)
    assert isinstance(refused, wire.Error)
    assert refused.code == ErrorCode.UNEXPECTED_PACKET


def test_a_refused_registration_lets_the_next_one_behind_it_try(memory_node: RunningNode) -> None:
    telesto(memory_node, "taken")
    peer = TelestoPeer(memory_node.connect("telesto"))
    peer.send(wire.RegisterClient(1, "taken", 1), wire.RegisterClient(2, "free", 1), wire.GetQueues(3))
    first, second, third = (peer.receive() for _ in range(3))
    assert isinstance(first, wire.Error)
    assert first.code == ErrorCode.CLIENT_NAME_NOT_UNIQUE
    assert isinstance(second, wire.RegisterClientResponse)
    assert isinstance(third, wire.Error)
    assert third.code == ErrorCode.NO_QUEUES_EXISTING


def test_get_messages_shows_the_messages_of_every_receiver_and_leaves_them(
    start_node: Callable[..., RunningNode],
) -> None:
    peer = telesto(start_node())
    queue_id = peer.create_queue()
    assert peer.refusal(wire.GetMessages(1, queue_id)) == ErrorCode.NO_MESSAGES_IN_QUEUE
    for receiver, text in ((0, "for anyone"), (peer.client_id, "for me"), (77, "for another")):
        peer.put_text(queue_id, text, receiver=receiver)
    for _ in range(2):
        listed = peer.get(wire.GetMessagesResponse, wire.GetMessages(2, queue_id)).messages
        assert [(m.receiver_id, m.text) for m in listed] == [(0, "for anyone"), (1, "for me"), (77, "for another")]
        assert all(m.queue_id == queue_id and m.sender_id == 1 and m.arrived_ms > 0 for m in listed)
    assert peer.refusal(wire.GetMessages(3, 99)) == ErrorCode.NO_MESSAGES_IN_QUEUE


def test_text_too_long_for_a_missing_queue_says_that_the_queue_is_missing(memory_node: RunningNode) -> None:
    peer = telesto(memory_node)
    queue_id = peer.create_queue()
    for text, target, code in (
        ("x" * 2001, 99, ErrorCode.QUEUE_NOT_EXISTING),
        ("x" * 2001, queue_id, ErrorCode.INTERNAL_ERROR),
        ("x" * 2001 + "\0", queue_id, ErrorCode.INTERNAL_ERROR),
        ("\0", 99, ErrorCode.INTERNAL_ERROR),
    ):
        answer = peer.put_text(target, text)
        assert isinstance(answer, wire.Error)
        assert answer.code == code
    peer.put_text(queue_id, "last")
    answer = peer.get(wire.ReadMessageResponse, wire.ReadMessage(peer.next_id(), queue_id, 0, wire.ReadMode.TIME))
    assert answer.message.message_id == 2, "only a text too long for a queue that exists has drawn an id"


def test_get_messages_that_do_not_fit_into_a_frame_are_an_internal_error(memory_node: RunningNode) -> None:
    peer = telesto(memory_node)
    queue_id = peer.create_queue()
    for _ in range(17):
        peer.put_text(queue_id, "x" * 2000)
    assert peer.refusal(wire.GetMessages(1, queue_id)) == ErrorCode.INTERNAL_ERROR
    assert peer.read_text(queue_id) == "x" * 2000
    peer.read_text(queue_id)
    assert len(peer.get(wire.GetMessagesResponse, wire.GetMessages(2, queue_id)).messages) == 15


def test_a_put_to_several_queues_skips_those_that_are_missing_and_says_so(memory_node: RunningNode) -> None:
    peer = telesto(memory_node)
    first, second = peer.create_queue("first"), peer.create_queue("second")
    answer = peer.put_text(first, "text", 99, second, second)
    assert isinstance(answer, wire.Error)
    assert answer.code == ErrorCode.QUEUE_NOT_EXISTING
    assert [peer.read_text(first), peer.read_text(first)] == ["text", None]
    assert [peer.read_text(second), peer.read_text(second), peer.read_text(second)] == ["text", "text", None]


def test_a_read_only_client_may_do_everything_but_put(memory_node: RunningNode) -> None:
    peer = telesto(memory_node, "reader", mode=2)
    queue_id = peer.create_queue()
    refused = peer.put_text(queue_id, "text")
    assert isinstance(refused, wire.Error)
    assert refused.code == ErrorCode.CLIENT_MODE_PERMISSION_VIOLATION
    telesto(memory_node, "writer").put_text(queue_id, "text")
    assert peer.read_text(queue_id) == "text"
    again = TelestoPeer(memory_node.connect("telesto"))
    identified = again.get(wire.IdentifyClientResponse, wire.IdentifyClient(1, peer.client_id))
    assert (identified.mode, identified.client_name) == (2, "reader")
    assert isinstance(again.put_text(queue_id, "text"), wire.Error)


@pytest.mark.parametrize(("setting", "first"), [("newest", "b"), ("oldest", "a")])
def test_reading_by_time_begins_where_the_setting_says(
    start_memory_node: Callable[..., RunningNode], setting: str, first: str
) -> None:
    peer = telesto(start_memory_node(telesto_time_order=setting))
    queue_id = peer.create_queue()
    peer.put_text(queue_id, "a", priority=5)
    peer.put_text(queue_id, "b", priority=3)
    assert peer.read_text(queue_id, ReadMode.TIME) == first
    peer.put_text(queue_id, "c", priority=9)
    assert peer.read_text(queue_id, ReadMode.PRIORITY) == "c"


def test_a_long_name_full_of_control_characters_is_quoted_in_part(memory_node: RunningNode) -> None:
    peer = telesto(memory_node)
    assert peer.refusal(wire.GetQueueId(1, "\x01" * 32_000)) == ErrorCode.QUEUE_NOT_EXISTING
    assert peer.ask(wire.Ping(2)) == wire.Pong(2)


def test_a_message_too_long_for_a_plain_frame_stays_in_the_queue(memory_node: RunningNode) -> None:
    peer = telesto(memory_node)
    queue_id = peer.create_queue()
    writer = thorbang(memory_node)
    client_id = writer.ask("CREATECLIENT,writer")[0]
    text = "x" * 40_000
    assert writer.ask(f"MSG,-1,{client_id},{queue_id},1,0,{text}") == ["OK"]
    assert peer.refusal(wire.ReadMessage(1, queue_id, 0, ReadMode.TIME)) == ErrorCode.INTERNAL_ERROR
    assert writer.ask(f"POPQ,1,{queue_id},1") == [f"MSG,{client_id},0,1,{text}"]


def test_binary_body_reaches_telesto_with_replacement_characters(memory_node: RunningNode) -> None:
    peer = telesto(memory_node)
    queue_id = peer.create_queue()
    amqp(memory_node).put("queue", b"a\xff\0b")
    listed = peer.get(wire.GetMessagesResponse, wire.GetMessages(1, queue_id)).messages
    assert [message.text for message in listed] == ["a\ufffd\0b"]
    assert peer.read_text(queue_id) == "a\ufffd\0b"


def test_a_deleted_clients_connection_goes_on_under_its_old_id(memory_node: RunningNode) -> None:
    peer = telesto(memory_node)
    queue_id = peer.create_queue()
    assert peer.ask(wire.DeleteClient(1)) == wire.Success(1)
    assert peer.refusal(wire.DeleteClient(2)) == ErrorCode.CLIENT_NOT_EXISTING
    assert peer.put_text(queue_id, "text") == wire.Success(3)
    assert telesto(memory_node).client_id == 2


def test_a_queue_deleted_with_its_messages_comes_back_empty(start_node: Callable[..., RunningNode]) -> None:
    peer = telesto(start_node())
    queue_id = peer.create_queue()
    peer.put_text(queue_id, "text")
    assert peer.ask(wire.DeleteQueue(10, queue_id)) == wire.Success(10)
    assert peer.refusal(wire.GetQueueName(11, queue_id)) == ErrorCode.QUEUE_NOT_EXISTING
    again = peer.create_queue()
    assert again > queue_id
    assert peer.read_text(again) is None


REQUESTS: list[tuple[Callable[[int], wire.Packet], ErrorCode]] = [
    (lambda queue_id: put(queue_id), ErrorCode.QUEUE_NOT_EXISTING),
    (lambda queue_id: wire.ReadMessage(2, queue_id, 0, ReadMode.TIME), ErrorCode.NO_MESSAGES_RETRIEVED),
    (lambda queue_id: wire.ReadResponse(3, queue_id, 1), ErrorCode.NO_MESSAGES_RETRIEVED),
    (lambda queue_id: wire.GetMessages(4, queue_id), ErrorCode.NO_MESSAGES_IN_QUEUE),
    (lambda queue_id: wire.GetQueueName(5, queue_id), ErrorCode.QUEUE_NOT_EXISTING),
    (lambda queue_id: wire.DeleteQueue(6, queue_id), ErrorCode.QUEUE_NOT_EXISTING),
]


def put(queue_id: int, *more_queues: int) -> wire.PutMessage:
    return wire.PutMessage(1, WireMessage(0, queue_id, 0, 0, 0, 0, 0, "text"), list(more_queues))


def contents(node: RunningNode) -> list[tuple[str, int]]:
    return node.call(lambda node: [(w.queue.name, len(w)) for w in node.hub.broker.engine.queues])


def test_queues_of_other_virtual_hosts_are_out_of_reach(memory_node: RunningNode) -> None:
    closed = memory_node.call(lambda node: node.hub.broker.engine.create_queue("closed", vhost="other"))
    peer = telesto(memory_node)
    for request, code in REQUESTS:
        assert peer.refusal(request(closed.id)) == code
    assert peer.refusal(wire.GetQueues(7)) == ErrorCode.NO_QUEUES_EXISTING
    assert contents(memory_node) == [("closed", 0)]


def test_what_stands_for_a_queue_of_another_node_is_out_of_reach(memory_node: RunningNode) -> None:
    shadow = memory_node.call(lambda node: node.hub.broker.engine.create_proxy_queue("q", "/", object()))  # type: ignore[arg-type]
    assert shadow.queue.id < 0
    peer = telesto(memory_node)
    for request, code in REQUESTS:
        assert peer.refusal(request(shadow.queue.id)) == code


def test_what_needs_an_identity_is_refused_without_one(memory_node: RunningNode) -> None:
    queue_id = telesto(memory_node).create_queue()
    peer = telesto(memory_node, name=None)
    for packet in (
        *[request(queue_id) for request, _ in REQUESTS],
        wire.CreateQueue(7, "another"),
        wire.GetQueues(8),
        wire.GetActiveQueues(9),
        wire.DeleteClient(10),
        wire.Success(11),
    ):
        assert peer.refusal(packet) == ErrorCode.UNEXPECTED_PACKET
    assert peer.ask(wire.Ping(12)) == wire.Pong(12)
    assert contents(memory_node) == [("queue", 0)]


def test_a_put_of_too_many_copies_stores_nothing(memory_node: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "MAX_COPIES", 10)
    peer = telesto(memory_node)
    queue_id = peer.create_queue()
    assert peer.refusal(put(queue_id, *[queue_id] * 10)) == ErrorCode.INTERNAL_ERROR
    assert contents(memory_node) == [("queue", 0)]
    assert isinstance(peer.ask(put(queue_id, *[queue_id] * 9)), wire.Success)


def test_requests_fail_in_time_without_an_answer_of_the_store(
    gate: Gate, start_memory_node: Callable[..., RunningNode]
) -> None:
    # A read of the newest would take the message that is put, and neither would need the store.
    node = start_memory_node(telesto_time_order="oldest")
    peer = telesto(node)
    queue_id = peer.create_queue()
    peer.put_text(queue_id, "kept")
    gate.close(node, time_limit_s=0.2)
    peer.send(put(queue_id), wire.ReadMessage(2, queue_id, 0, ReadMode.TIME), wire.CreateQueue(3, "another"))
    answers = [peer.receive() for _ in range(3)]
    assert {(answer.packet_id, getattr(answer, "code", None)) for answer in answers} == {
        (number, ErrorCode.INTERNAL_ERROR) for number in (1, 2, 3)
    }
    gate.open(node)
    assert [peer.read_text(queue_id), peer.read_text(queue_id)] == ["kept", None]


def test_a_queue_deleted_while_its_creation_is_under_way_does_not_harm_the_node(
    gate: Gate, memory_node: RunningNode
) -> None:
    peer = telesto(memory_node)
    gate.close(memory_node, time_limit_s=0.2)
    peer.send(wire.CreateQueue(1, "name"), wire.DeleteQueue(2, 1))
    assert isinstance(peer.receive(), wire.Error)
    assert isinstance(peer.receive(), wire.Error)
    gate.open(memory_node)
    assert peer.create_queue("name") == 2
    assert [queue.id for queue in peer.get(wire.GetQueuesResponse, wire.GetQueues(3)).queues] == [2]
