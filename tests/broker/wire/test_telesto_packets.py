"""Every packet of Telesto's protocol and of its extension survives the way over the wire."""

from __future__ import annotations

import dataclasses
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.broker.wire import telesto as t
from flyball.broker.wire.telesto._generated.packets import PLAIN_PACKETS
from flyball.broker.wire.telesto.clustering import CLUSTERING_PACKETS
from flyball.broker.wire.telesto.extension import EXTENSION_PACKETS
from flyball.errors import ProtocolError
from flyball.model import Queue

bytes_ = st.integers(-128, 127)
ints = st.integers(-(1 << 31), (1 << 31) - 1)
longs = st.integers(-(1 << 63), (1 << 63) - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=40)
blobs = st.binary(max_size=60)
doubles = st.floats(allow_nan=False)
messages = st.builds(t.WireMessage, ints, ints, ints, ints, ints, bytes_, longs, texts)
queues = st.builds(Queue, ints, texts)
clients = st.builds(t.WireClient, ints, bytes_, texts)
selectors = st.builds(t.WireSelector, st.booleans(), st.none() | ints, st.none() | longs, st.integers(0, 255))
drafts = st.builds(t.WireDraft, blobs, ints, longs, ints, st.booleans(), ints, blobs)
records = st.builds(
    t.Record, longs, ints, ints, ints, longs, ints, longs, st.booleans(), st.booleans(), ints, blobs, blobs
)
some_ints = st.lists(ints, max_size=5)
some_longs = st.lists(longs, max_size=5)

PACKETS: dict[type[t.Packet], st.SearchStrategy[t.Packet]] = {
    t.Ping: st.builds(t.Ping, ints),
    t.Pong: st.builds(t.Pong, ints),
    t.Success: st.builds(t.Success, ints),
    t.Error: st.builds(t.Error, ints, st.integers(0, 13), texts),
    t.RegisterClient: st.builds(t.RegisterClient, ints, texts, bytes_),
    t.RegisterClientResponse: st.builds(t.RegisterClientResponse, ints, ints),
    t.IdentifyClient: st.builds(t.IdentifyClient, ints, ints),
    t.IdentifyClientResponse: st.builds(t.IdentifyClientResponse, ints, bytes_, texts),
    t.DeleteClient: st.builds(t.DeleteClient, ints),
    t.CreateQueue: st.builds(t.CreateQueue, ints, texts),
    t.CreateQueueResponse: st.builds(t.CreateQueueResponse, ints, ints),
    t.DeleteQueue: st.builds(t.DeleteQueue, ints, ints),
    t.GetQueueId: st.builds(t.GetQueueId, ints, texts),
    t.GetQueueIdResponse: st.builds(t.GetQueueIdResponse, ints, ints),
    t.GetQueueName: st.builds(t.GetQueueName, ints, ints),
    t.GetQueueNameResponse: st.builds(t.GetQueueNameResponse, ints, texts),
    t.GetQueues: st.builds(t.GetQueues, ints),
    t.GetQueuesResponse: st.builds(t.GetQueuesResponse, ints, st.lists(queues, max_size=4)),
    t.GetActiveQueues: st.builds(t.GetActiveQueues, ints),
    t.GetActiveQueuesResponse: st.builds(t.GetActiveQueuesResponse, ints, st.lists(queues, max_size=4)),
    t.GetMessages: st.builds(t.GetMessages, ints, ints),
    t.GetMessagesResponse: st.builds(t.GetMessagesResponse, ints, st.lists(messages, max_size=4)),
    t.PutMessage: st.builds(t.PutMessage, ints, messages, some_ints),
    t.ReadMessage: st.builds(t.ReadMessage, ints, ints, ints, bytes_),
    t.ReadMessageResponse: st.builds(t.ReadMessageResponse, ints, messages),
    t.ReadResponse: st.builds(t.ReadResponse, ints, ints, ints),
    t.ComplexTest: st.builds(
        t.ComplexTest,
        ints,
        bytes_,
        st.booleans(),
        st.integers(-(1 << 15), (1 << 15) - 1),
        ints,
        longs,
        st.floats(allow_nan=False, width=32),
        doubles,
        texts,
    ),
    t.MessageTest: st.builds(t.MessageTest, ints, messages),
    t.QueueTest: st.builds(t.QueueTest, ints, queues),
    t.Welcome: st.builds(t.Welcome, ints, bytes_, ints, texts),
    t.Join: st.builds(t.Join, ints, texts, bytes_),
    t.Joined: st.builds(t.Joined, ints, ints, bytes_),
    t.Put: st.builds(t.Put, ints, some_ints, st.lists(drafts, max_size=4)),
    t.PutDone: st.builds(t.PutDone, ints, some_longs),
    t.Take: st.builds(t.Take, ints, ints, selectors, ints, ints),
    t.Messages: st.builds(t.Messages, ints, st.lists(records, max_size=4)),
    t.Peek: st.builds(t.Peek, ints, ints, selectors),
    t.ListMessages: st.builds(t.ListMessages, ints, ints, longs, ints),
    t.Consume: st.builds(t.Consume, ints, ints, selectors, doubles),
    t.Consuming: st.builds(t.Consuming, ints, ints),
    t.Deliver: st.builds(t.Deliver, ints, ints, records),
    t.Prefetch: st.builds(t.Prefetch, ints, ints, doubles),
    t.Cancel: st.builds(t.Cancel, ints, ints),
    t.Settle: st.builds(t.Settle, ints, ints, bytes_, some_longs),
    t.Purge: st.builds(t.Purge, ints, ints),
    t.Count: st.builds(t.Count, ints, longs),
    t.Status: st.builds(t.Status, ints),
    t.StatusReport: st.builds(t.StatusReport, ints, blobs),
    t.ListClients: st.builds(t.ListClients, ints),
    t.Clients: st.builds(t.Clients, ints, st.lists(clients, max_size=4)),
    t.RemoveClient: st.builds(t.RemoveClient, ints, ints),
    t.ConsumerEnded: st.builds(t.ConsumerEnded, ints, ints),
    t.Manage: st.builds(t.Manage, ints, blobs),
    t.Managed: st.builds(t.Managed, ints, blobs),
    t.ListIds: st.builds(t.ListIds, ints, ints, longs, ints),
    t.MessageIds: st.builds(t.MessageIds, ints, some_longs),
    t.Remove: st.builds(t.Remove, ints, ints, longs, ints),
    t.Place: st.builds(t.Place, ints, bytes_, texts, texts, texts, texts, texts),
    t.Placed: st.builds(t.Placed, ints, texts, texts, ints, texts),
    t.PlaceLater: st.builds(t.PlaceLater, ints, ints, texts),
    t.Arrive: st.builds(t.Arrive, ints, texts),
    t.Leave: st.builds(t.Leave, ints, texts),
    t.MoveRequested: st.builds(t.MoveRequested, ints, texts, texts, texts, ints, ints),
    t.Publish: st.builds(t.Publish, ints, texts, texts, st.lists(drafts, max_size=4)),
    t.Subscribe: st.builds(t.Subscribe, ints, texts, texts, texts),
    t.Subscribed: st.builds(t.Subscribed, ints, ints),
    t.Forwarded: st.builds(t.Forwarded, ints),
}

any_packet = st.one_of(list(PACKETS.values()))
any_plain_packet = st.one_of([PACKETS[kind] for kind in PLAIN_PACKETS])


def decode_wide(data: bytes) -> list[t.Packet]:
    decoder = t.PacketDecoder()
    decoder.widen(1 << 20)
    decoder.feed(data)
    packets: list[t.Packet] = []
    while (packet := decoder.next_packet()) is not None:
        packets.append(packet)
    return packets


def test_every_packet_is_tested_here_and_has_a_method_id_of_its_own() -> None:
    known = PLAIN_PACKETS + EXTENSION_PACKETS + CLUSTERING_PACKETS
    assert set(known) == set(PACKETS)
    assert len({packet.METHOD for packet in known}) == len(known)


def test_packets_have_no_room_for_mistyped_fields() -> None:
    packet: object = t.Success(1)
    with pytest.raises(AttributeError):
        setattr(packet, "pakcet_id", 2)  # noqa: B010
    for kind in PACKETS:
        assert not hasattr(kind, "__dict__") or "__dict__" not in kind.__dict__
        assert dataclasses.fields(kind)[0].name == "packet_id"


@pytest.mark.parametrize("kind", list(PACKETS), ids=lambda kind: kind.__name__)
def test_a_packet_survives_the_way_over_the_wire(kind: type[t.Packet]) -> None:
    @settings(max_examples=15, deadline=None)
    @given(PACKETS[kind])
    def check(packet: t.Packet) -> None:
        assert decode_wide(t.encode_wide(packet)) == [packet]
        if kind in PLAIN_PACKETS or kind is t.Welcome:
            decoder = t.PacketDecoder(from_server=True)
            decoder.feed(t.encode(packet))
            assert decoder.next_packet() == packet
            assert decoder.next_packet() is None

    check()


@settings(max_examples=150, deadline=None)
@given(st.lists(any_packet, max_size=6), st.lists(st.integers(0, 60), max_size=30))
def test_packets_come_out_in_order_however_they_are_cut(packets: list[t.Packet], sizes: list[int]) -> None:
    data = b"".join(t.encode_wide(packet) for packet in packets)
    decoder = t.PacketDecoder()
    decoder.widen(1 << 20)
    seen: list[t.Packet] = []
    at = 0
    for size in [*sizes, len(data)]:
        decoder.feed(data[at : at + size])
        at += size
        while (packet := decoder.next_packet()) is not None:
            seen.append(packet)
    assert seen == packets


@settings(max_examples=150, deadline=None)
@given(any_packet, st.data())
def test_a_frame_cut_or_padded_behind_its_length_is_a_protocol_error(packet: t.Packet, data: st.DataObject) -> None:
    payload = packet.payload()
    size = data.draw(st.integers(0, len(payload) + 3))
    wrong = (payload + bytes(3))[:size]
    if size == len(payload):
        return
    frame = struct.pack(">IBi", len(wrong) + 5, packet.METHOD, packet.packet_id) + wrong
    # More frames follow, so that a reader which does not keep to its own frame finds bytes to read.
    with pytest.raises(ProtocolError):
        decode_wide(frame + bytes(64))


@settings(max_examples=200, deadline=None)
@given(any_packet, st.data())
def test_a_changed_byte_in_a_wide_frame_decodes_or_is_a_protocol_error(packet: t.Packet, data: st.DataObject) -> None:
    changed = bytearray(t.encode_wide(packet))
    at = data.draw(st.integers(0, len(changed) - 1))
    changed[at] = data.draw(st.integers(0, 255))
    try:
        decode_wide(bytes(changed))
    except ProtocolError:
        return


@settings(max_examples=50, deadline=None)
@given(ints, records)
def test_encode_deliver_writes_what_encode_wide_writes(consumer_id: int, record: t.Record) -> None:
    assert t.encode_deliver(consumer_id, record) == t.encode_wide(t.Deliver(0, consumer_id, record))


def test_a_boolean_is_true_only_if_it_is_one() -> None:
    for byte, value in ((0, False), (1, True), (2, False), (255, False)):
        payload = struct.pack(">bBhiqfdh", 1, byte, 2, 3, 4, 0.5, 0.25, 0)
        packet = t.ComplexTest.parse(1, payload, 0, len(payload))
        assert packet.boolean is value


def test_a_selector_without_its_flag_ignores_the_filter() -> None:
    payload = struct.pack(">iBiqB", 9, 0, 5, 6, 2)
    assert t.Peek.parse(1, payload, 0, len(payload)).selector == t.WireSelector(False, None, None, 2)
    payload = struct.pack(">iBiqB", 9, 7, 5, 6, 3)
    assert t.Peek.parse(1, payload, 0, len(payload)).selector == t.WireSelector(True, 5, 6, 3)


def test_layouts_of_the_extension_are_those_of_its_document() -> None:
    assert int.from_bytes(b"\xb9\xb3\xa6\xbe", signed=True) == t.EXTENSION_CLIENT_ID
    assert t.encode(t.Welcome(1, 1, 65536, "f")).hex() == "000d40000000010100010000000166"
    assert len(t.WireDraft(b"").pack()) == 29
    assert len(t.WireDraft(b"bb", properties=b"ppp").pack()) == 29 + 3 + 2
    assert len(t.WireSelector().pack()) == 14
    settle = t.Settle(2, 3, t.Outcome.DROP, [7])
    assert t.encode_wide(settle).hex() == "000000164e00000002" + "00000003" + "03" + "00000001" + "0000000000000007"
