"""Every packet of Telesto's protocol survives the way over the wire."""

from __future__ import annotations

import dataclasses
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.broker.wire import telesto as t
from flyball.broker.wire.telesto._generated.packets import PACKETS as KNOWN
from flyball.errors import ProtocolError
from flyball.model import Queue

bytes_ = st.integers(-128, 127)
ints = st.integers(-(1 << 31), (1 << 31) - 1)
longs = st.integers(-(1 << 63), (1 << 63) - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=40)
messages = st.builds(t.WireMessage, ints, ints, ints, ints, ints, bytes_, longs, texts)
queues = st.builds(Queue, ints, texts)
some_ints = st.lists(ints, max_size=5)

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
        st.floats(allow_nan=False),
        texts,
    ),
    t.MessageTest: st.builds(t.MessageTest, ints, messages),
    t.QueueTest: st.builds(t.QueueTest, ints, queues),
}

any_packet = st.one_of(list(PACKETS.values()))


def decode(data: bytes) -> list[t.Packet]:
    decoder = t.PacketDecoder()
    decoder.feed(data)
    packets: list[t.Packet] = []
    while (packet := decoder.next_packet()) is not None:
        packets.append(packet)
    return packets


def test_every_packet_is_tested_here_and_has_a_method_id_of_its_own() -> None:
    assert set(KNOWN) == set(PACKETS)
    assert len({packet.METHOD for packet in KNOWN}) == len(KNOWN)


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
        assert decode(t.encode(packet)) == [packet]
        decoder = t.PacketDecoder(from_server=True)
        decoder.feed(t.encode(packet))
        assert decoder.next_packet() == packet
        assert decoder.next_packet() is None

    check()


@settings(max_examples=150, deadline=None)
@given(st.lists(any_packet, max_size=6), st.lists(st.integers(0, 60), max_size=30))
def test_packets_come_out_in_order_however_they_are_cut(packets: list[t.Packet], sizes: list[int]) -> None:
    data = b"".join(t.encode(packet) for packet in packets)
    decoder = t.PacketDecoder()
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
    frame = struct.pack(">hBi", len(wrong) + 5, packet.METHOD, packet.packet_id) + wrong
    # More frames follow, so that a reader which does not keep to its own frame finds bytes to read.
    with pytest.raises(ProtocolError):
        decode(frame + bytes(64))


@settings(max_examples=200, deadline=None)
@given(any_packet, st.data())
def test_a_changed_byte_in_a_frame_decodes_or_is_a_protocol_error(packet: t.Packet, data: st.DataObject) -> None:
    changed = bytearray(t.encode(packet))
    at = data.draw(st.integers(0, len(changed) - 1))
    changed[at] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(changed))
    except ProtocolError:
        return


def test_a_boolean_is_true_only_if_it_is_one() -> None:
    for byte, value in ((0, False), (1, True), (2, False), (255, False)):
        payload = struct.pack(">bBhiqfdh", 1, byte, 2, 3, 4, 0.5, 0.25, 0)
        packet = t.ComplexTest.parse(1, payload, 0, len(payload))
        assert packet.boolean is value
