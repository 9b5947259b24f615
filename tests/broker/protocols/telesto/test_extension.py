"""Flyball's extension of Telesto's protocol: batches, waiting, consumers and administration."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Callable

import pytest

from flyball.broker.core.broker import Broker
from flyball.broker.engine.consumer import Consumer
from flyball.broker.node.node import Node
from flyball.broker.wire import telesto as wire
from flyball.broker.wire.telesto import ErrorCode, Outcome, WireDraft, WireMessage, WireSelector
from tests.broker.peers import TelestoPeer, telesto, thorbang, wide
from tests.nodes import Gate, RunningNode

LONG_MS = 600_000


# Put


def test_a_batch_gets_an_id_for_each_draft_and_queue(start_node: Callable[..., RunningNode]) -> None:
    peer = wide(start_node())
    first, second = peer.create_queue("first"), peer.create_queue("second")
    drafts = [WireDraft(b"a"), WireDraft(b"b", priority=7, context=2**40, properties=b"p")]
    done = peer.get(wire.PutDone, wire.Put(9, [first, second], drafts))
    assert done.message_ids == [1, 2, 3, 4]
    records = peer.list(second)
    assert [(record.message_id, record.body) for record in records] == [(2, b"a"), (4, b"b")]
    assert (records[1].priority, records[1].context, records[1].properties) == (7, 2**40, b"p")


def test_a_put_that_names_a_missing_queue_stores_nothing(memory_node: RunningNode) -> None:
    peer = wide(memory_node)
    queue_id = peer.create_queue()
    refused = peer.refusal(wire.Put(1, [queue_id, 99], [WireDraft(b"a")]))
    assert refused == ErrorCode.QUEUE_NOT_EXISTING
    assert peer.list(queue_id) == []


def test_nobody_reaches_into_what_stands_for_a_queue_of_another_node(memory_node: RunningNode) -> None:
    shadow = memory_node.call(lambda node: node.hub.broker.engine.create_shadow("q", "/", object()))  # type: ignore[arg-type]
    peer = wide(memory_node)
    assert shadow.queue.id < 0
    for packet in (
        wire.Put(1, [shadow.queue.id], [WireDraft(b"a")]),
        wire.Take(2, shadow.queue.id, WireSelector(), 1, 0),
        wire.Purge(3, shadow.queue.id),
    ):
        assert peer.refusal(packet) == ErrorCode.QUEUE_NOT_EXISTING


def test_a_put_with_one_draft_too_large_stores_nothing(start_memory_node: Callable[..., RunningNode]) -> None:
    peer = wide(start_memory_node(max_message_bytes="1000"))
    queue_id = peer.create_queue()
    drafts = [WireDraft(b"a"), WireDraft(b"x" * 600, properties=b"x" * 401)]
    assert peer.refusal(wire.Put(1, [queue_id], drafts)) == ErrorCode.LIMIT_EXCEEDED
    assert peer.list(queue_id) == []


def test_a_put_of_too_many_copies_is_refused(memory_node: RunningNode) -> None:
    peer = wide(memory_node)
    queue_id = peer.create_queue()
    put = wire.Put(1, [queue_id] * 11_000, [WireDraft(b"")] * 10)
    assert peer.refusal(put) == ErrorCode.LIMIT_EXCEEDED


def test_whatever_fits_into_a_put_fits_into_the_answers(start_memory_node: Callable[..., RunningNode]) -> None:
    node = start_memory_node(telesto_frame_max_bytes="10000")
    peer = wide(node)
    queue_id = peer.create_queue()
    assert peer.refusal(wire.Put(1, [queue_id], [WireDraft(b"x" * 9940)])) == ErrorCode.LIMIT_EXCEEDED
    largest = b"x" * (10_000 - 128)
    for _ in range(3):
        peer.put(queue_id, largest)
    assert peer.take(queue_id) == [largest]
    assert peer.take(queue_id, wait_ms=LONG_MS) == [largest]
    peer.consume(queue_id)
    assert peer.next_delivery().record.body == largest


def test_a_message_of_another_protocol_that_fits_into_no_frame_stays_and_ends_the_consumer(
    start_memory_node: Callable[..., RunningNode],
) -> None:
    node = start_memory_node(telesto_frame_max_bytes="10000")
    peer = wide(node)
    queue_id = peer.create_queue()
    client_id = thorbang(node).ask("CREATECLIENT,other")[0]
    assert thorbang(node).ask(f"MSG,-1,{client_id},{queue_id},1,0,{'x' * 9950}") == ["OK"]
    consumer_id = peer.consume(queue_id)
    assert peer.refusal(wire.Take(1, queue_id, WireSelector(), 1, 0)) == ErrorCode.LIMIT_EXCEEDED
    assert peer.ended_consumers == [consumer_id]


def test_a_read_only_client_may_not_put(memory_node: RunningNode) -> None:
    peer = wide(memory_node, "reader", mode=2)
    queue_id = peer.create_queue()
    refused = peer.refusal(wire.Put(1, [queue_id], [WireDraft(b"a")]))
    assert refused == ErrorCode.CLIENT_MODE_PERMISSION_VIOLATION


def test_a_message_past_its_time_is_gone(start_node: Callable[..., RunningNode]) -> None:
    node = start_node()
    peer = wide(node)
    queue_id = peer.create_queue()
    peer.put(queue_id, b"short", ttl_ms=1)
    peer.put(queue_id, b"long", ttl_ms=LONG_MS)
    peer.put(queue_id, b"for ever", ttl_ms=0)
    node.wait_until(lambda node: ready(node, queue_id) == 2)
    node.wait_until(lambda node: not node.hub.broker.engine.queue(queue_id).out)
    assert peer.take(queue_id, most=10) == [b"long", b"for ever"]


def test_a_message_past_its_time_is_not_read_before_it_is_removed_either(
    memory_node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = wide(memory_node)
    queue_id = peer.create_queue()
    peer.put(queue_id, b"short", b"shorter", ttl_ms=50_000)
    broker = memory_node.node.hub.broker
    now_us = broker.now_us()
    monkeypatch.setattr(broker, "now_us", lambda: now_us + 60_000_000)
    assert peer.peek(queue_id) == []
    assert peer.take(queue_id) == []


# Take, peek and list


def test_take_returns_messages_in_their_order_whether_they_are_stored_or_not(
    start_node: Callable[..., RunningNode],
) -> None:
    peer = wide(start_node())
    queue_id = peer.create_queue()
    for number in range(6):
        peer.put(queue_id, b"%d" % number, persistent=number % 2 == 0)
    assert peer.take(queue_id, most=4) == [b"0", b"1", b"2", b"3"]
    assert peer.take(queue_id, most=4, wait_ms=LONG_MS) == [b"4", b"5"]


def test_take_by_priority_and_from_one_sender(memory_node: RunningNode) -> None:
    one, two = wide(memory_node, "one"), wide(memory_node, "two")
    queue_id = one.create_queue()
    one.put(queue_id, b"low", priority=1)
    two.put(queue_id, b"other", priority=9)
    one.put(queue_id, b"high", priority=5)
    selector = WireSelector(sender=one.client_id, order=3)
    assert two.take(queue_id, most=5, selector=selector) == [b"high", b"low"]
    assert two.take(queue_id, most=5) == [b"other"]


def test_peek_shows_the_first_message_and_leaves_it(memory_node: RunningNode) -> None:
    peer = wide(memory_node)
    queue_id = peer.create_queue()
    assert peer.peek(queue_id) == []
    peer.put(queue_id, b"a", b"b")
    assert [peer.peek(queue_id), peer.peek(queue_id)] == [[b"a"], [b"a"]]
    assert peer.take(queue_id, most=3) == [b"a", b"b"]


def test_a_take_that_fills_the_frame_leaves_the_rest(start_memory_node: Callable[..., RunningNode]) -> None:
    peer = wide(start_memory_node(telesto_frame_max_bytes="10000"))
    queue_id = peer.create_queue()
    for _ in range(5):
        peer.put(queue_id, b"x" * 3000)
    assert [len(peer.take(queue_id, most=10)) for _ in range(3)] == [3, 2, 0]


def test_active_queues_are_listed_once_in_wide_frames(memory_node: RunningNode) -> None:
    peer = wide(memory_node)
    first, _, third = (peer.create_queue(name) for name in ("first", "second", "third"))
    peer.put(first, b"a", b"b")
    peer.put(third, b"c")
    active = peer.get(wire.GetActiveQueuesResponse, wire.GetActiveQueues(1)).queues
    assert [queue.id for queue in active] == [first, third]


def test_a_list_goes_on_page_by_page(start_node: Callable[..., RunningNode]) -> None:
    peer = wide(start_node())
    queue_id = peer.create_queue()
    peer.put(queue_id, *[b"%d" % number for number in range(25)])
    listed: list[bytes] = []
    after_id = 0
    while page := peer.list(queue_id, after_id, most=10):
        assert len(page) <= 10
        listed += [record.body for record in page]
        after_id = page[-1].message_id
    assert listed == [b"%d" % number for number in range(25)]


def test_a_list_is_shorter_where_the_frame_is_full(start_memory_node: Callable[..., RunningNode]) -> None:
    peer = wide(start_memory_node(telesto_frame_max_bytes="10000"))
    queue_id = peer.create_queue()
    for _ in range(5):
        peer.put(queue_id, b"x" * 3000)
    page = peer.list(queue_id)
    assert len(page) == 3
    assert len(peer.list(queue_id, page[-1].message_id)) == 2


# Waiting


def test_a_take_that_waits_is_woken_by_a_put(start_node: Callable[..., RunningNode]) -> None:
    node = start_node()
    reader, writer = wide(node, "reader"), wide(node, "writer")
    queue_id = reader.create_queue()
    for most in (1, 5):
        reader.send(wire.Take(most, queue_id, WireSelector(), most, LONG_MS))
        node.wait_until(lambda node: waiting(node, queue_id) == 1)
        writer.put(queue_id, b"body")
        answer = reader.receive()
        assert isinstance(answer, wire.Messages)
        assert [record.body for record in answer.records] == [b"body"]
    assert writer.list(queue_id) == []


def test_a_take_that_waits_is_woken_by_a_put_of_another_protocol(memory_node: RunningNode) -> None:
    reader = wide(memory_node, "reader")
    queue_id = reader.create_queue()
    plain, text = telesto(memory_node, "plain"), thorbang(memory_node)

    def wait() -> None:
        reader.send(wire.Take(1, queue_id, WireSelector(), 1, LONG_MS))
        memory_node.wait_until(lambda node: waiting(node, queue_id) == 1)

    wait()
    plain.put_text(queue_id, "by Telesto")
    assert [record.body for record in received_messages(reader)] == [b"by Telesto"]
    wait()
    text.ask(f"MSG,{reader.client_id},{plain.client_id},{queue_id},1,0,by ThorBang")
    assert [record.body for record in received_messages(reader)] == [b"by ThorBang"]


def test_a_take_that_waits_in_vain_is_answered_empty_when_its_time_is_up(memory_node: RunningNode) -> None:
    peer = wide(memory_node)
    queue_id = peer.create_queue()
    assert peer.take(queue_id, wait_ms=30) == []
    assert peer.take(queue_id, most=3, wait_ms=30) == []
    assert memory_node.call(lambda node: waiting(node, queue_id)) == 0


def test_several_who_wait_get_one_message_each_in_turn(memory_node: RunningNode) -> None:
    peer, writer = wide(memory_node, "peer"), wide(memory_node, "writer")
    queue_id = peer.create_queue()
    peer.send(*[wire.Take(number, queue_id, WireSelector(), 1, LONG_MS) for number in (1, 2, 3)])
    memory_node.wait_until(lambda node: waiting(node, queue_id) == 3)
    writer.put(queue_id, b"a", b"b")
    answers = [peer.receive(), peer.receive()]
    assert [answer.packet_id for answer in answers] == [1, 2]
    assert memory_node.call(lambda node: waiting(node, queue_id)) == 1


def test_a_connection_that_ends_while_it_waits_takes_nothing(start_node: Callable[..., RunningNode]) -> None:
    node = start_node()
    reader, writer = wide(node, "reader"), wide(node, "writer")
    queue_id = reader.create_queue()
    reader.send(
        wire.Take(1, queue_id, WireSelector(), 1, LONG_MS), wire.Take(2, queue_id, WireSelector(), 9, LONG_MS)
    )
    node.wait_until(lambda node: waiting(node, queue_id) == 2)
    reader.close()
    node.wait_until(lambda node: waiting(node, queue_id) == 0)
    writer.put(queue_id, b"body")
    assert writer.take(queue_id) == [b"body"]


def test_a_take_that_waits_ends_when_its_queue_is_deleted(memory_node: RunningNode) -> None:
    reader, other = wide(memory_node, "reader"), wide(memory_node, "other")
    queue_id = reader.create_queue()
    reader.send(wire.Take(1, queue_id, WireSelector(), 1, LONG_MS))
    memory_node.wait_until(lambda node: waiting(node, queue_id) == 1)
    other.ask(wire.DeleteQueue(1, queue_id))
    answer = reader.receive()
    assert isinstance(answer, wire.Error)
    assert answer.code == ErrorCode.QUEUE_NOT_EXISTING
    assert memory_node.call(in_flight) == 0


def test_a_take_that_waits_is_answered_when_the_node_stops(start_memory_node: Callable[..., RunningNode]) -> None:
    node = start_memory_node()
    peer = TelestoPeer(node.connect("telesto"))
    node.disown(peer.socket)
    peer.widen()
    peer.join()
    queue_id = peer.create_queue()
    peer.send(wire.Take(7, queue_id, WireSelector(), 1, LONG_MS))
    node.wait_until(lambda node: waiting(node, queue_id) == 1)
    node.stop()
    assert peer.receive() == wire.Messages(7, [])
    assert peer.is_closed_by_node()
    peer.close()


# Consumers


def test_a_consumer_holds_as_many_messages_as_its_prefetch(start_node: Callable[..., RunningNode]) -> None:
    node = start_node()
    peer = wide(node)
    queue_id = peer.create_queue()
    peer.put(queue_id, *[b"%d" % number for number in range(5)])
    consumer_id = peer.consume(queue_id, prefetch=2)
    first, second = peer.next_delivery(), peer.next_delivery()
    assert (first.record.body, second.record.body) == (b"0", b"1")
    assert (first.packet_id, first.consumer_id, first.record.delivery_count) == (0, consumer_id, 0)
    assert node.call(lambda node: ready(node, queue_id)) == 3
    assert isinstance(peer.settle(consumer_id, Outcome.ACKNOWLEDGE, first.record.message_id), wire.Success)
    assert peer.next_delivery().record.body == b"2"
    assert peer.get(wire.Success, wire.Prefetch(1, consumer_id, 3.0))
    assert peer.next_delivery().record.body == b"3"


def test_a_requeued_message_comes_back_to_its_old_place(memory_node: RunningNode) -> None:
    peer = wide(memory_node)
    queue_id = peer.create_queue()
    peer.put(queue_id, b"a", b"b", b"c")
    consumer_id = peer.consume(queue_id, prefetch=2)
    a, b = peer.next_delivery().record, peer.next_delivery().record
    peer.get(wire.Success, wire.Prefetch(1, consumer_id, 0.0))
    peer.settle(consumer_id, Outcome.REQUEUE, b.message_id, a.message_id)
    assert [record.body for record in peer.list(queue_id)] == [b"a", b"b", b"c"]
    peer.get(wire.Success, wire.Prefetch(2, consumer_id, 1.0))
    again = peer.next_delivery().record
    assert (again.body, again.redelivered, again.delivery_count) == (b"a", True, 1)


def test_a_dropped_message_is_gone(start_node: Callable[..., RunningNode]) -> None:
    node = start_node()
    peer = wide(node)
    queue_id = peer.create_queue()
    peer.put(queue_id, b"a", b"b")
    consumer_id = peer.consume(queue_id, prefetch=1)
    peer.settle(consumer_id, Outcome.DROP, peer.next_delivery().record.message_id)
    assert peer.next_delivery().record.body == b"b"
    assert node.call(lambda node: len(node.hub.broker.engine.queue(queue_id).out)) == 1


def test_a_cancelled_consumer_may_settle_what_it_holds_and_gets_nothing_more(memory_node: RunningNode) -> None:
    peer = wide(memory_node)
    queue_id = peer.create_queue()
    peer.put(queue_id, b"a", b"b")
    consumer_id = peer.consume(queue_id, prefetch=1)
    a = peer.next_delivery().record
    assert peer.get(wire.Success, wire.Cancel(1, consumer_id))
    assert isinstance(peer.settle(consumer_id, Outcome.ACKNOWLEDGE, a.message_id), wire.Success)
    assert peer.take(queue_id, most=5) == [b"b"]
    assert peer.deliveries == []
    assert peer.refusal(wire.Cancel(2, consumer_id)) == ErrorCode.CONSUMER_NOT_EXISTING


def test_the_end_of_a_session_returns_what_it_held_to_its_old_place(start_node: Callable[..., RunningNode]) -> None:
    node = start_node()
    holder, other = wide(node, "holder"), wide(node, "other")
    queue_id = holder.create_queue()
    other.put(queue_id, *[b"%d" % number for number in range(6)])
    holder.consume(queue_id, prefetch=3)
    for _ in range(3):
        holder.next_delivery()
    assert [record.body for record in other.list(queue_id)] == [b"3", b"4", b"5"]
    holder.close()
    node.wait_until(lambda node: ready(node, queue_id) == 6)
    records = other.list(queue_id)
    assert [record.body for record in records] == [b"%d" % number for number in range(6)]
    assert [record.delivery_count for record in records] == [1, 1, 1, 0, 0, 0]


def test_what_one_consumer_held_goes_to_the_next_when_its_session_ends(memory_node: RunningNode) -> None:
    first, second = wide(memory_node, "first"), wide(memory_node, "second")
    queue_id = first.create_queue()
    first.put(queue_id, b"a", b"b")
    first.consume(queue_id)
    first.next_delivery()
    first.next_delivery()
    second.consume(queue_id)
    first.close()
    assert [second.next_delivery().record.body for _ in range(2)] == [b"a", b"b"]


def test_requeued_messages_that_were_paged_out_come_again_whole(start_node: Callable[..., RunningNode]) -> None:
    node = start_node(resident_bytes="128KiB")
    peer = wide(node)
    queue_id = peer.create_queue()
    bodies = [b"%06d" % number * 8000 for number in range(10)]
    peer.put(queue_id, *bodies)
    consumer_id = peer.consume(queue_id, prefetch=10)
    held = [peer.next_delivery().record.message_id for _ in bodies]

    def all_are_paged(node: Node) -> bool:
        engine = node.hub.broker.engine
        engine.page_out_unacked(10**9)
        return all(message.is_paged for message in engine.queue(queue_id).out.values())

    node.wait_until(all_are_paged)
    peer.settle(consumer_id, Outcome.REQUEUE, *held)
    again = [peer.next_delivery().record for _ in bodies]
    assert [(record.body, record.redelivered) for record in again] == [(body, True) for body in bodies]


def test_a_consumer_is_told_when_its_queue_is_deleted(start_node: Callable[..., RunningNode]) -> None:
    node = start_node()
    peer, other = wide(node, "peer"), wide(node, "other")
    queue_id = peer.create_queue()
    peer.put(queue_id, b"a", b"b")
    consumer_id = peer.consume(queue_id, prefetch=1)
    message_id = peer.next_delivery().record.message_id
    other.get(wire.Success, wire.DeleteQueue(1, queue_id))
    settle = wire.Settle(2, consumer_id, Outcome.ACKNOWLEDGE, [message_id])
    assert peer.refusal(settle) == ErrorCode.CONSUMER_NOT_EXISTING
    assert peer.ended_consumers == [consumer_id]


def test_deliveries_keep_their_order_when_a_put_follows_in_the_same_segment(memory_node: RunningNode) -> None:
    peer = wide(memory_node)
    queue_id = peer.create_queue()
    peer.put(queue_id, b"a", b"b")
    peer.send(
        wire.Consume(1, queue_id, WireSelector(), 10.0),
        wire.Put(2, [queue_id], [WireDraft(b"c", persistent=False)]),
    )
    consuming = peer.receive()
    assert isinstance(consuming, wire.Consuming)
    assert peer.deliveries == []
    assert [peer.next_delivery().record.body for _ in range(3)] == [b"a", b"b", b"c"]


def test_a_fractional_prefetch_is_held_on_average(memory_node: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = wide(memory_node)
    queue_id = peer.create_queue()
    broker = memory_node.node.hub.broker
    now_us = broker.now_us() // 10_000_000 * 10_000_000
    monkeypatch.setattr(broker, "now_us", lambda: now_us)
    consumer_id = peer.consume(queue_id, prefetch=2.3)

    def window_after(slots: int) -> int:
        consumer = memory_node.node.hub.broker.engine.queue(queue_id).consumers[consumer_id]
        return consumer.credit.window(now_us + slots * 10_000)

    windows = [window_after(slots) for slots in range(1000)]
    assert set(windows) == {2, 3}
    assert math.isclose(sum(windows) / len(windows), 2.3)
    assert all(2.2 <= sum(windows[start : start + 100]) / 100 <= 2.4 for start in range(0, 900, 50))


def test_a_fraction_alone_delivers_from_time_to_time(memory_node: RunningNode) -> None:
    peer = wide(memory_node)
    queue_id = peer.create_queue()
    peer.put(queue_id, *[b"%d" % number for number in range(4)])
    consumer_id = peer.consume(queue_id, prefetch=0.5)
    for number in range(4):
        delivery = peer.next_delivery()
        assert delivery.record.body == b"%d" % number
        peer.settle(consumer_id, Outcome.ACKNOWLEDGE, delivery.record.message_id)


def test_a_connection_may_not_have_any_number_of_consumers(
    memory_node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flyball.broker.protocols.telesto.extension.MOST_CONSUMERS", 2)
    peer = wide(memory_node)
    queue_id = peer.create_queue()
    consumer_id = peer.consume(queue_id)
    peer.consume(queue_id)
    request = wire.Consume(9, queue_id, WireSelector(), 1.0)
    assert peer.refusal(request) == ErrorCode.LIMIT_EXCEEDED
    peer.get(wire.Success, wire.Cancel(1, consumer_id))
    assert peer.get(wire.Consuming, request)


# Error codes


@pytest.mark.parametrize(
    ("packet", "code"),
    [
        (wire.Take(1, 99, WireSelector(), 1, 0), ErrorCode.QUEUE_NOT_EXISTING),
        (wire.Take(1, 1, WireSelector(), 0, 0), ErrorCode.LIMIT_EXCEEDED),
        (wire.Take(1, 1, WireSelector(), 10_001, 0), ErrorCode.LIMIT_EXCEEDED),
        (wire.Take(1, 1, WireSelector(order=4), 1, 0), ErrorCode.INTERNAL_ERROR),
        (wire.Peek(1, 99, WireSelector()), ErrorCode.QUEUE_NOT_EXISTING),
        (wire.ListMessages(1, 99, 0, 1), ErrorCode.QUEUE_NOT_EXISTING),
        (wire.ListMessages(1, 1, 0, -1), ErrorCode.LIMIT_EXCEEDED),
        (wire.ListIds(1, 99, 0, 1), ErrorCode.QUEUE_NOT_EXISTING),
        (wire.ListIds(1, 1, 0, 100_001), ErrorCode.LIMIT_EXCEEDED),
        (wire.Remove(1, 99, 1, 1), ErrorCode.QUEUE_NOT_EXISTING),
        (wire.Remove(1, 1, 1, 10_001), ErrorCode.LIMIT_EXCEEDED),
        (wire.Consume(1, 99, WireSelector(), 1.0), ErrorCode.QUEUE_NOT_EXISTING),
        (wire.Consume(1, 1, WireSelector(), -1.0), ErrorCode.LIMIT_EXCEEDED),
        (wire.Consume(1, 1, WireSelector(), math.nan), ErrorCode.LIMIT_EXCEEDED),
        (wire.Prefetch(1, 99, 1.0), ErrorCode.CONSUMER_NOT_EXISTING),
        (wire.Cancel(1, 99), ErrorCode.CONSUMER_NOT_EXISTING),
        (wire.Settle(1, 99, Outcome.ACKNOWLEDGE, [1]), ErrorCode.CONSUMER_NOT_EXISTING),
        (wire.Purge(1, 99), ErrorCode.QUEUE_NOT_EXISTING),
        (wire.RemoveClient(1, 99), ErrorCode.CLIENT_NOT_EXISTING),
        (wire.Join(1, "again", 1), ErrorCode.UNEXPECTED_PACKET),
        (wire.CreateQueue(1, "queue"), ErrorCode.QUEUE_NAME_NOT_UNIQUE),
        (wire.Success(1), ErrorCode.UNEXPECTED_PACKET),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_code(
    memory_node: RunningNode, packet: wire.Packet, code: ErrorCode
) -> None:
    peer = wide(memory_node)
    assert peer.create_queue() == 1
    assert peer.refusal(packet) == code
    assert peer.ask(wire.Ping(2)) == wire.Pong(2)


def test_settling_what_is_not_leased_settles_nothing(memory_node: RunningNode) -> None:
    peer = wide(memory_node)
    queue_id = peer.create_queue()
    peer.put(queue_id, b"a")
    consumer_id = peer.consume(queue_id)
    message_id = peer.next_delivery().record.message_id
    for outcome in Outcome:
        settle = wire.Settle(1, consumer_id, outcome, [message_id, message_id + 1])
        assert peer.refusal(settle) == ErrorCode.LEASE_NOT_EXISTING
    assert peer.refusal(wire.Settle(1, consumer_id, 9, [message_id])) == ErrorCode.INTERNAL_ERROR
    assert isinstance(peer.settle(consumer_id, Outcome.ACKNOWLEDGE, message_id), wire.Success)


def test_what_needs_an_identity_is_refused_without_one(memory_node: RunningNode) -> None:
    peer = wide(memory_node, name=None)
    queue_id = peer.create_queue()
    for packet in (
        wire.Put(1, [queue_id], [WireDraft(b"a")]),
        wire.Take(1, queue_id, WireSelector(), 1, 0),
        wire.ListMessages(1, queue_id, 0, 1),
        wire.ListIds(1, queue_id, 0, 1),
        wire.Remove(1, queue_id, 1, 1),
        wire.PutMessage(1, WireMessage(0, queue_id, 0, 0, 0, 0, 0, "text"), []),
    ):
        assert peer.refusal(packet) == ErrorCode.UNEXPECTED_PACKET


# Joining and administration


def test_joining_twice_under_one_name_is_the_same_client(start_node: Callable[..., RunningNode]) -> None:
    node = start_node()
    first, second = wide(node, "name"), wide(node, "name", mode=2)
    assert first.client_id == second.client_id
    queue_id = second.create_queue()
    assert second.put(queue_id, b"the mode of the first one holds")


def test_requests_right_behind_a_join_belong_to_that_client(start_node: Callable[..., RunningNode]) -> None:
    peer = wide(start_node(), name=None)
    queue_id = peer.create_queue()
    peer.send(wire.Join(1, "client", 1), wire.Put(2, [queue_id], [WireDraft(b"a")]))
    assert [type(peer.receive()), type(peer.receive())] == [wire.Joined, wire.PutDone]


def test_a_purge_tells_how_many_went_and_leaves_what_is_leased(start_node: Callable[..., RunningNode]) -> None:
    peer = wide(start_node())
    queue_id = peer.create_queue()
    peer.put(queue_id, b"a", b"b", b"c")
    consumer_id = peer.consume(queue_id, prefetch=1)
    delivery = peer.next_delivery()
    assert peer.get(wire.Count, wire.Purge(1, queue_id)).count == 2
    peer.get(wire.Success, wire.Cancel(2, consumer_id))
    peer.settle(consumer_id, Outcome.REQUEUE, delivery.record.message_id)
    assert peer.take(queue_id, most=5) == [b"a"]


def test_ids_are_told_in_order_and_from_where_one_asks(start_node: Callable[..., RunningNode]) -> None:
    peer = wide(start_node())
    queue_id = peer.create_queue()
    ids = peer.put(queue_id, b"a", b"b", b"c", b"d")
    assert peer.get(wire.MessageIds, wire.ListIds(1, queue_id, 0, 100)).message_ids == ids
    assert peer.get(wire.MessageIds, wire.ListIds(2, queue_id, ids[0], 2)).message_ids == ids[1:3]
    assert peer.get(wire.MessageIds, wire.ListIds(3, queue_id, ids[-1], 2)).message_ids == []


def test_consumer_of_a_client_that_says_no_more_ends_before_its_requests_are_answered(
    gate: Gate, memory_node: RunningNode
) -> None:
    peer = wide(memory_node)
    queue_id = peer.create_queue()
    peer.put(queue_id, b"tea")
    peer.consume(queue_id)
    assert peer.next_delivery().record.body == b"tea"
    gate.close(memory_node)
    peer.send(wire.Put(7, [queue_id], [WireDraft(b"milk")]))
    peer.socket.shutdown(socket.SHUT_WR)

    def bodies(node: Node) -> list[bytes]:
        return [message.body for message in node.hub.broker.engine.queue(queue_id).oldest(0, 10)]

    memory_node.wait_until(lambda node: bodies(node) == [b"tea", b"milk"])
    gate.open(memory_node)
    while not isinstance(peer.receive(), wire.PutDone):
        pass


def test_ids_are_not_told_before_the_messages_are_committed(gate: Gate, memory_node: RunningNode) -> None:
    peer = wide(memory_node)
    queue_id = peer.create_queue()
    gate.close(memory_node)
    peer.send(wire.Put(1, [queue_id], [WireDraft(b"a")]), wire.ListIds(2, queue_id, 0, 10), wire.Ping(3))
    assert peer.receive() == wire.Pong(3)
    gate.open(memory_node)
    put, listed = peer.receive(), peer.receive()
    assert isinstance(put, wire.PutDone)
    assert listed == wire.MessageIds(2, put.message_ids)


def test_a_removal_goes_up_to_an_id_and_leaves_what_is_leased(start_node: Callable[..., RunningNode]) -> None:
    peer = wide(start_node())
    queue_id = peer.create_queue()
    ids = peer.put(queue_id, b"a", b"b", b"c", b"d", b"e")
    consumer_id = peer.consume(queue_id, prefetch=1)
    delivery = peer.next_delivery()
    peer.get(wire.Success, wire.Cancel(1, consumer_id))
    assert peer.get(wire.Count, wire.Remove(2, queue_id, ids[3], 2)).count == 2
    assert peer.get(wire.Count, wire.Remove(3, queue_id, ids[3], 2)).count == 1
    assert peer.get(wire.Count, wire.Remove(4, queue_id, ids[3], 2)).count == 0
    peer.settle(consumer_id, Outcome.REQUEUE, delivery.record.message_id)
    assert peer.take(queue_id, most=5) == [b"a", b"e"]


def test_a_removal_reaches_messages_that_only_the_store_has_and_outlives_the_node(
    start_node: Callable[..., RunningNode], new_database: Callable[[], str]
) -> None:
    store = new_database()
    node = start_node(store=store)
    peer = wide(node)
    queue_id = peer.create_queue()
    ids = peer.put(queue_id, *[b"%d" % number for number in range(3000)])
    for last, left in ((2499, 500), (2998, 1)):
        node.stop()
        node = start_node(store=store)
        peer = wide(node)
        removed = [peer.get(wire.Count, wire.Remove(1, queue_id, ids[last], 2000)).count for _ in range(2)]
        assert sum(removed) == len(ids[: last + 1]) - (0 if last == 2499 else 2500)
        assert len(peer.list(queue_id)) == left


def test_a_removal_that_the_store_does_not_answer_fails_in_time_and_leaves_the_messages(
    gate: Gate, start_memory_node: Callable[..., RunningNode]
) -> None:
    node = start_memory_node()
    peer = wide(node)
    queue_id = peer.create_queue()
    (message_id,) = peer.put(queue_id, b"kept")
    gate.close(node, time_limit_s=0.2)
    assert peer.refusal(wire.Remove(1, queue_id, message_id, 1)) == ErrorCode.STORE_UNAVAILABLE
    gate.open(node)
    assert peer.take(queue_id) == [b"kept"]


def test_status_and_clients_tell_what_is_there(memory_node: RunningNode) -> None:
    peer = wide(memory_node, "name")
    queue_id = peer.create_queue()
    peer.put(queue_id, b"a", b"b")
    peer.consume(queue_id, prefetch=1)
    tool = wide(memory_node, name=None)
    report = json.loads(tool.get(wire.StatusReport, wire.Status(1)).report)
    assert report["connections"] == 2
    assert report["store"]["kind"] == "MemoryStore"
    (queue,) = report["queues"]
    expected = {"id": queue_id, "name": "queue", "ready": 1, "leased": 1, "parked": 0, "in_memory": 1, "consumers": 1}
    assert queue == expected
    clients = tool.get(wire.Clients, wire.ListClients(2)).clients
    assert [(client.client_id, client.mode, client.name) for client in clients] == [(1, 1, "name")]
    assert tool.get(wire.Success, wire.RemoveClient(3, 1))
    assert tool.get(wire.Clients, wire.ListClients(4)).clients == []


# The store away


def test_a_request_that_the_store_does_not_answer_fails_in_time_and_leaves_things_as_they_were(
    gate: Gate, start_memory_node: Callable[..., RunningNode]
) -> None:
    node = start_memory_node()
    peer = wide(node)
    queue_id = peer.create_queue()
    peer.put(queue_id, b"kept")
    gate.close(node, time_limit_s=0.2)
    peer.send(
        wire.Put(1, [queue_id], [WireDraft(b"refused")]),
        wire.Take(2, queue_id, WireSelector(), 1, 0),
        wire.CreateQueue(3, "another"),
    )
    answers = [peer.receive() for _ in range(3)]
    assert {(answer.packet_id, getattr(answer, "code", None)) for answer in answers} == {
        (1, ErrorCode.STORE_UNAVAILABLE),
        (2, ErrorCode.STORE_UNAVAILABLE),
        (3, ErrorCode.STORE_UNAVAILABLE),
    }
    gate.open(node)
    assert peer.take(queue_id, most=5) == [b"kept"]


def test_a_queue_deleted_while_its_creation_is_under_way_does_not_harm_the_node(
    gate: Gate, start_memory_node: Callable[..., RunningNode]
) -> None:
    node = start_memory_node()
    peer = wide(node)
    gate.close(node, time_limit_s=0.2)
    peer.send(wire.CreateQueue(1, "name"), wire.DeleteQueue(2, 1))
    assert isinstance(peer.receive(), wire.Error)
    assert isinstance(peer.receive(), wire.Error)
    gate.open(node)
    assert peer.create_queue("name") == 2
    assert [queue.id for queue in peer.get(wire.GetQueuesResponse, wire.GetQueues(3)).queues] == [2]


def received_messages(peer: TelestoPeer) -> list[wire.Record]:
    answer = peer.receive()
    assert isinstance(answer, wire.Messages), answer
    return answer.records


def waiting(node: Node, queue_id: int) -> int:
    engine = node.hub.broker.engine
    return len(engine.queue(queue_id).consumers) if engine.has_queue(queue_id) else 0


def ready(node: Node, queue_id: int) -> int:
    return len(node.hub.broker.engine.queue(queue_id))


def in_flight(node: Node) -> int:
    return sum(connection.in_flight for connection in node.hub.connections)


def test_what_a_connection_held_goes_back_though_the_end_of_a_consumer_meets_a_defect(
    memory_node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = wide(memory_node)
    queue_id = peer.create_queue()
    peer.put(queue_id, b"1", b"2", b"3")
    for _ in range(3):
        peer.consume(queue_id, 1.0)
        peer.next_delivery()
    end, failed = Broker.end, list[int]()

    def fail_once(self: Broker, consumer: Consumer) -> None:
        if not failed:
            failed.append(consumer.id)
            raise ZeroDivisionError("a defect")
        end(self, consumer)

    monkeypatch.setattr(Broker, "end", fail_once)
    peer.close()
    memory_node.wait_until(lambda node: len(node.hub.broker.engine.queue(queue_id)) == 2)
    assert len(failed) == 1
