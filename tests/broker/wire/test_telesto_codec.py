"""Telesto's frames: those recorded from the original, and invalid ones."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.broker.wire.telesto import (
    Error,
    FrameTooLarge,
    GetMessages,
    GetQueuesResponse,
    Packet,
    PacketDecoder,
    Ping,
    PutMessage,
    ReadMessageResponse,
    Success,
    WireMessage,
    encode,
    encode_error,
    encode_read_message_response,
    encode_success,
)
from flyball.errors import ProtocolError
from flyball.model import Queue

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "telesto-vectors.json").read_text(encoding="utf-8")
)
# The original hangs on these for the frame's sake; on the others of S15, S17 and S18 for its own.
BROKEN_IN_S15 = ("h0", "h1", "h2", "h3", "h4", "h5", "h6", "h7")


def is_broken(step: dict[str, Any]) -> bool:
    """Whether the step's frame, not the original's buffers, is at fault."""
    return (step["session"] == "S14" and step["outcome"] == "closed") or (
        step["session"] == "S15" and step["conn"] in BROKEN_IN_S15 and "then ping" not in step["name"]
    )


GOOD_REQUESTS = [bytes.fromhex(step["request_hex"]) for step in VECTORS if not is_broken(step)]
BROKEN_REQUESTS = [(step["name"], bytes.fromhex(step["request_hex"])) for step in VECTORS if is_broken(step)]
RESPONSES = [bytes.fromhex(step["response_hex"]) for step in VECTORS if step["response_hex"]]
# Bytes that are not UTF-8 do not survive the round trip.
LOSSY = {step["request_hex"] for step in VECTORS if "not UTF-8" in step["name"]}


def decode(data: bytes, *, from_server: bool = False, sizes: list[int] | None = None) -> list[Packet]:
    """Return the packets of `data`, fed in pieces of the given sizes and the rest at once."""
    decoder = PacketDecoder(from_server)
    packets: list[Packet] = []
    at = 0
    for size in [*(sizes or []), len(data)]:
        decoder.feed(data[at : at + size])
        at += size
        while (packet := decoder.next_packet()) is not None:
            packets.append(packet)
    return packets


def survives(data: bytes, *, from_server: bool = False) -> bool:
    """Whether `data` decodes; anything but a ProtocolError fails the test."""
    try:
        decode(data, from_server=from_server)
    except ProtocolError:
        return False
    return True


def frame(method: int, payload: bytes) -> bytes:
    return struct.pack(">hBi", len(payload) + 5, method, 1) + payload


def test_recorded_connections_decode_and_encode_to_the_same_bytes() -> None:
    # Whole connections: some steps of S16 end in the middle of a frame.
    streams: dict[tuple[str, str], bytes] = {}
    for step in VECTORS:
        if not is_broken(step) and step["request_hex"] not in LOSSY:
            key = (step["session"], step["conn"])
            streams[key] = streams.get(key, b"") + bytes.fromhex(step["request_hex"])
    for stream in streams.values():
        assert b"".join(encode_as_received(packet) for packet in decode(stream)) == stream


def encode_as_received(packet: Packet) -> bytes:
    """Like encode, but also for the one recorded frame that is larger than the original can take."""
    try:
        return encode(packet)
    except FrameTooLarge:
        return struct.pack(">hBi", len(packet.payload()) + 5, packet.METHOD, packet.packet_id) + packet.payload()


def test_recorded_responses_decode_and_encode_to_the_same_bytes() -> None:
    for response in RESPONSES:
        packets = decode(response, from_server=True)
        assert packets
        assert b"".join(encode(packet) for packet in packets) == response


@pytest.mark.parametrize(("name", "request_bytes"), BROKEN_REQUESTS, ids=[name for name, _ in BROKEN_REQUESTS])
def test_what_closes_or_hangs_the_original_is_a_protocol_error(name: str, request_bytes: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(request_bytes)


def test_packets_do_not_depend_on_how_the_bytes_arrive() -> None:
    randomness = random.Random(17)
    short = b"".join(request for request in GOOD_REQUESTS if len(request) < 300)
    whole = decode(short)
    assert decode(short, sizes=[1] * len(short)) == whole
    everything = b"".join(GOOD_REQUESTS)
    whole = decode(everything)
    for _ in range(10):
        sizes = [randomness.choice((0, 1, 2, 7, 50, 4096, 40000)) for _ in range(300)]
        assert decode(everything, sizes=sizes) == whole


def test_several_feeds_may_precede_the_first_packet() -> None:
    decoder = PacketDecoder()
    for number in range(5):
        decoder.feed(encode(Ping(number)))
    decoder.feed(encode(Ping(5))[:3])
    assert [decoder.next_packet() for _ in range(6)] == [*[Ping(number) for number in range(5)], None]
    decoder.feed(encode(Ping(5))[3:])
    assert decoder.next_packet() == Ping(5)
    assert decoder.next_packet() is None


def test_fewer_than_seven_bytes_wait_whatever_they_are() -> None:
    decoder = PacketDecoder()
    decoder.feed(b"\xff\xff\xff\xff\xff\xff")
    assert decoder.next_packet() is None
    decoder.feed(b"\xff")
    with pytest.raises(ProtocolError):
        decoder.next_packet()


def test_a_broken_stream_stays_broken() -> None:
    decoder = PacketDecoder()
    decoder.feed(encode(Ping(1)) + frame(0x04, b"") + encode(Ping(2)))
    assert decoder.next_packet() == Ping(1)
    for _ in range(3):
        with pytest.raises(ProtocolError):
            decoder.next_packet()
    decoder.feed(encode(Ping(3)))
    with pytest.raises(ProtocolError):
        decoder.next_packet()


def test_every_prefix_of_a_recorded_frame_waits_for_the_rest() -> None:
    for request in [request for request in GOOD_REQUESTS if len(request) < 60][:60]:
        whole = decode(request)
        for size in range(len(request)):
            packets = decode(request[:size])
            assert packets == whole[: len(packets)]
            assert len(packets) < len(whole)


def test_a_changed_byte_decodes_or_is_a_protocol_error() -> None:
    randomness = random.Random(4)
    session = sorted({request for request in GOOD_REQUESTS + RESPONSES if len(request) < 100})
    for original in randomness.sample(session, 120):
        for at in range(len(original)):
            changed = bytearray(original)
            changed[at] ^= 1 << randomness.randrange(8)
            survives(bytes(changed))
            survives(bytes(changed), from_server=True)
            changed[at] = randomness.choice((0x00, 0x7F, 0x80, 0xFF))
            survives(bytes(changed))


def test_a_changed_length_that_cuts_or_extends_a_frame_is_a_protocol_error() -> None:
    for request in [request for request in GOOD_REQUESTS if len(request) < 200][:100]:
        if len(decode(request)) != 1:
            continue
        length = struct.unpack_from(">h", request)[0]
        for other in (length - 1, length + 1):
            with pytest.raises(ProtocolError):
                decode(struct.pack(">h", other) + request[2:] + b"\0")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_random_bytes_decode_or_are_a_protocol_error(data: bytes, from_server: bool) -> None:
    survives(data, from_server=from_server)


@settings(max_examples=600, deadline=None)
@given(st.integers(0, 0x7F), st.binary(max_size=120), st.booleans())
def test_random_payloads_decode_or_are_a_protocol_error(method: int, payload: bytes, from_server: bool) -> None:
    survives(frame(method, payload), from_server=from_server)


HUGE_COUNTS = [-(1 << 31), -1, 1 << 24, (1 << 31) - 1]


@pytest.mark.parametrize("count", HUGE_COUNTS)
@pytest.mark.parametrize("method", [0x2A, 0x2C, 0x2E])
def test_an_impossible_count_is_refused_before_anything_is_allocated(method: int, count: int) -> None:
    data = frame(method, struct.pack(">i", count) + bytes(1000))
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decode(data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("code", [-128, -1, 14, 31, 40, 127])
def test_an_unknown_error_type_is_refused_from_a_client_and_taken_from_a_server(code: int) -> None:
    error = Error(1, code, "x")
    assert decode(encode(error), from_server=True) == [error]
    with pytest.raises(ProtocolError):
        decode(encode(error))


def text_as_read(content: bytes) -> str:
    payload = struct.pack(">iiiiibqh", 0, 1, 0, 0, 0, 0, 0, len(content)) + content + bytes(4)
    (packet,) = decode(frame(PutMessage.METHOD, payload))
    assert isinstance(packet, PutMessage)
    return packet.message.text


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\xff\xfeA", "\ufffd\ufffdA"),
        (b"\xff\xfe\xc3", "\ufffd\ufffd\ufffd"),
        # As the original's decoder has it: the beginning of a character that is cut off is one piece.
        (b"\xe2\x82", "\ufffd"),
        (b"\xac", "\ufffd"),
        (b"\xe2\x82A", "\ufffdA"),
        (b"\xc0\x80", "\ufffd\ufffd"),
        (b"a\0b", "a\0b"),
    ],
)
def test_what_is_no_utf8_becomes_the_replacement_character(content: bytes, text: str) -> None:
    assert text_as_read(content) == text


def message_of(text: str) -> WireMessage:
    return WireMessage(1, 2, 3, 4, 5, -6, 7, text)


def test_the_largest_frame_has_32766_bytes_and_the_next_is_refused() -> None:
    largest = ReadMessageResponse(1, message_of("x" * (32766 - 38)))
    assert len(encode(largest)) == 32766
    assert decode(encode(largest), from_server=True) == [largest]
    with pytest.raises(FrameTooLarge):
        encode(ReadMessageResponse(1, message_of("x" * (32767 - 38))))
    with pytest.raises(FrameTooLarge):
        encode(GetQueuesResponse(1, [Queue(n, "x" * 250) for n in range(130)]))


def test_frames_are_received_up_to_the_limit_of_their_length_field() -> None:
    data = frame(0x21, struct.pack(">h", 32760) + b"z" * 32760)
    assert len(data) == 32769
    assert len(decode(data)) == 1


def test_a_string_above_32767_bytes_is_refused() -> None:
    with pytest.raises(FrameTooLarge):
        encode(Error(1, 0, "x" * 32768))
    with pytest.raises(FrameTooLarge):
        encode(ReadMessageResponse(1, message_of("é" * 16384)))


@settings(max_examples=50, deadline=None)
@given(st.integers(-(1 << 31), (1 << 31) - 1), st.text(st.characters(codec="utf-8"), max_size=50))
def test_direct_encoders_write_what_encode_writes(packet_id: int, text: str) -> None:
    assert encode_success(packet_id) == encode(Success(packet_id))
    assert encode_error(packet_id, 7, text) == encode(Error(packet_id, 7, text))
    message = message_of(text)
    response = encode_read_message_response(packet_id, 1, 2, 3, 4, 5, -6, 7, text.encode())
    assert response == encode(ReadMessageResponse(packet_id, message))


def test_direct_encoders_refuse_what_does_not_fit() -> None:
    largest = b"x" * (32766 - 38)
    assert len(encode_read_message_response(1, 1, 1, 1, 1, 1, 1, 1, largest)) == 32766
    with pytest.raises(FrameTooLarge):
        encode_read_message_response(1, 1, 1, 1, 1, 1, 1, 1, largest + b"x")
    assert len(encode_error(1, 0, "x" * 32756)) == 32766
    with pytest.raises(FrameTooLarge):
        encode_error(1, 0, "x" * 32757)


def test_ping_is_the_example_of_the_protocol_document() -> None:
    assert encode(Ping(42)) == bytes.fromhex("0005010000002a")
    assert decode(bytes.fromhex("00092d0000001600000001")) == [GetMessages(22, 1)]


def test_a_long_pipeline_fed_in_small_pieces_is_decoded_in_linear_time() -> None:
    # A quadratic decoder copies some 10^10 bytes here and runs into the time limit.
    count = 40_000
    data = encode_success(1) * count
    assert len(decode(data)) == count
    assert len(decode(data, sizes=[3] * (len(data) // 3))) == count
