"""AMQP's frames: commands do not depend on how bytes arrive, limits hold, and damage is an error of the peer."""

from __future__ import annotations

import contextlib
import random
import struct
import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.broker.wire.amqp import (
    HEARTBEAT,
    NO_PROPERTIES,
    PROTOCOL_HEADER,
    AmqpError,
    BasicAck,
    BasicDeliver,
    BasicGet,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    BasicReturn,
    ChannelOpen,
    Command,
    ConnectionCloseOk,
    Decoder,
    Heartbeat,
    Oversized,
    Properties,
    ProtocolHeader,
    Publish,
    QueueDeclare,
    ReplyCode,
    delivery_prefix,
    encode_ack,
    encode_content,
    encode_delivery,
    encode_get_ok,
    encode_nack,
    encode_return,
    read_origin,
    write_origin,
)

FRAME_MAX = 4096
MAX_BODY = 100_000
PERSISTENT = bytes.fromhex("1000 02")


def decode(
    data: bytes,
    *,
    sizes: list[int] | None = None,
    from_server: bool = False,
    frame_max: int = FRAME_MAX,
    max_body_bytes: int = MAX_BODY,
) -> list[Command]:
    """Return the commands of `data`, fed in pieces of the given sizes and the rest at once."""
    decoder = Decoder(frame_max, max_body_bytes, from_server)
    commands: list[Command] = []
    at = 0
    for size in [*(sizes or []), len(data)]:
        decoder.feed(data[at : at + size])
        at += size
        while (command := decoder.next_command()) is not None:
            commands.append(command)
    return commands


def started(frame_max: int = FRAME_MAX, max_body_bytes: int = MAX_BODY) -> Decoder:
    """Return a decoder behind the protocol header."""
    decoder = Decoder(frame_max, max_body_bytes)
    decoder.feed(PROTOCOL_HEADER)
    assert decoder.next_command() == ProtocolHeader(PROTOCOL_HEADER)
    return decoder


def commands_of(data: bytes) -> list[Command]:
    """Return the commands of what a client sends behind its protocol header."""
    return decode(PROTOCOL_HEADER + data)[1:]


def feed_each(decoder: Decoder, pieces: Iterable[bytes]) -> None:
    """Feed the pieces and take the commands after each."""
    for piece in pieces:
        decoder.feed(piece)
        while decoder.next_command() is not None:
            pass


def error_of(data: bytes, decoder: Decoder | None = None) -> AmqpError:
    """Return the error that `data` ends in; it has to come again when asked again."""
    decoder = decoder or started()
    with pytest.raises(AmqpError) as caught:
        feed_each(decoder, [data])
    with pytest.raises(AmqpError) as again:
        decoder.next_command()
    assert (again.value.code, again.value.text) == (caught.value.code, caught.value.text)
    return caught.value


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def header(channel: int, size: int, properties: bytes = PERSISTENT, class_id: int = 60, weight: int = 0) -> bytes:
    return frame(2, channel, struct.pack(">HHQ", class_id, weight, size) + properties)


def method_of(channel: int, routing_key: str = "q") -> bytes:
    """Return the method frame of a publish to the default exchange."""
    return BasicPublish(channel, "", routing_key, False, False).encode()


def publish(
    body: bytes, channel: int = 1, routing_key: str = "q", properties: bytes = PERSISTENT, frame_max: int = FRAME_MAX
) -> bytes:
    return method_of(channel, routing_key) + encode_content(channel, properties, body, frame_max)


def published(body: bytes, channel: int = 1, routing_key: str = "q", properties: bytes = PERSISTENT) -> Publish:
    return Publish(channel, write_origin("", routing_key), False, False, properties, body)


def test_a_publish_lies_on_the_wire_as_the_specification_has_it() -> None:
    data = bytes.fromhex(
        "01 0001 0000000d 003c 0028 0000 01 78 03 6b6579 01 ce"
        "02 0001 0000000f 003c 0000 0000000000000002 1000 02 ce"
        "03 0001 00000002 6869 ce"
    )
    expected = Publish(1, b"\x01x\x03key", True, False, PERSISTENT, b"hi")
    assert commands_of(data) == [expected]
    assert commands_of(data * 3) == [expected] * 3
    assert decode(PROTOCOL_HEADER + data, sizes=[1] * 100)[1:] == [expected]
    assert read_origin(expected.origin) == ("x", "key")


def test_a_delivery_lies_on_the_wire_as_the_specification_has_it() -> None:
    data = encode_delivery(1, delivery_prefix("c"), 5, True, b"\x01x\x03key", PERSISTENT, b"hi", 4096)
    assert data == bytes.fromhex(
        "01 0001 00000015 003c 003c 01 63 0000000000000005 01 01 78 03 6b6579 ce"
        "02 0001 0000000f 003c 0000 0000000000000002 1000 02 ce"
        "03 0001 00000002 6869 ce"
    )


def test_the_first_eight_octets_are_a_protocol_header_whatever_they_are() -> None:
    assert decode(PROTOCOL_HEADER) == [ProtocolHeader(PROTOCOL_HEADER)]
    assert decode(b"GET / HT", sizes=[1] * 8) == [ProtocolHeader(b"GET / HT")]
    assert decode(PROTOCOL_HEADER[:7]) == []


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[Command]]:
    """Bytes of a client and the commands that they mean."""
    data = PROTOCOL_HEADER
    commands: list[Command] = [ProtocolHeader(PROTOCOL_HEADER)]
    for _ in range(draw(st.integers(1, 12))):
        channel = draw(st.integers(1, 3))
        choice = draw(st.integers(0, 6))
        if choice == 0:
            data += HEARTBEAT
            commands.append(Heartbeat(0))
        elif choice == 1:
            ack = BasicAck(channel, draw(st.integers(0, 1 << 40)), draw(st.booleans()))
            data += ack.encode()
            commands.append(ack)
        elif choice == 2:
            declare = QueueDeclare(
                channel, draw(st.text("abc", max_size=5)), True, True, False, False, False, {"x": 1}
            )
            data += declare.encode()
            commands.append(declare)
        else:
            body = b"x" * draw(st.sampled_from([0, 1, 5, 256, 4088, 4089, 9000]))
            properties = draw(st.sampled_from([NO_PROPERTIES, PERSISTENT, Properties(message_id="m").encode()]))
            key = draw(st.sampled_from(["q", "r"]))
            # Also in body frames that are smaller than they could be.
            frame_max = draw(st.sampled_from([4096, 1000]))
            data += publish(body, channel, key, properties, frame_max)
            commands.append(published(body, channel, key, properties))
    return data, commands


@settings(max_examples=200, deadline=None)
@given(streams(), st.data())
def test_commands_do_not_depend_on_how_the_bytes_arrive(
    stream: tuple[bytes, list[Command]], data: st.DataObject
) -> None:
    octets, commands = stream
    assert decode(octets) == commands
    assert decode(octets, sizes=[1] * len(octets)) == commands
    assert decode(octets, sizes=data.draw(st.lists(st.integers(0, 700), max_size=60))) == commands


def test_several_feeds_may_precede_the_first_command() -> None:
    decoder = Decoder(FRAME_MAX, MAX_BODY)
    decoder.feed(PROTOCOL_HEADER)
    for _ in range(3):
        decoder.feed(publish(b"body"))
    decoder.feed(publish(b"last")[:30])
    assert decoder.next_command() == ProtocolHeader(PROTOCOL_HEADER)
    assert [decoder.next_command() for _ in range(4)] == [*[published(b"body")] * 3, None]
    decoder.feed(publish(b"last")[30:])
    assert decoder.next_command() == published(b"last")


def test_contents_of_several_channels_may_interleave() -> None:
    bodies = {channel: bytes([channel]) * (channel * 1500) for channel in (1, 2, 3)}
    frames = {
        channel: [
            method_of(channel),
            header(channel, len(body)),
            *[frame(3, channel, body[at : at + 700]) for at in range(0, len(body), 700)],
        ]
        for channel, body in bodies.items()
    }
    randomness = random.Random(5)
    for _ in range(20):
        waiting = {channel: list(pieces) for channel, pieces in frames.items()}
        stream = b""
        order = []
        while waiting:
            channel = randomness.choice(list(waiting))
            stream += waiting[channel].pop(0)
            if not waiting[channel]:
                del waiting[channel]
                order.append(channel)
        expected = [published(bodies[channel], channel) for channel in order]
        assert commands_of(stream) == expected
        assert decode(PROTOCOL_HEADER + stream, sizes=[333] * 100)[1:] == expected


def test_other_channels_and_heartbeats_may_come_between_the_frames_of_a_content() -> None:
    data = method_of(1) + encode_ack(2, 9, False) + header(1, 2) + HEARTBEAT + frame(3, 1, b"ab")
    assert commands_of(data) == [BasicAck(2, 9, False), Heartbeat(0), published(b"ab")]


def test_empty_body_frames_add_nothing() -> None:
    data = (
        method_of(1) + header(1, 2) + frame(3, 1, b"") * 5 + frame(3, 1, b"a") + frame(3, 1, b"") + frame(3, 1, b"b")
    )
    assert commands_of(data) == [published(b"ab")]


def test_an_empty_body_has_no_frame() -> None:
    assert commands_of(method_of(1) + header(1, 0) + HEARTBEAT) == [published(b""), Heartbeat(0)]
    error = error_of(method_of(1) + header(1, 0) + frame(3, 1, b""))
    assert error.code == ReplyCode.UNEXPECTED_FRAME


def test_publishes_that_repeat_share_their_origin_and_properties() -> None:
    first, second, third = commands_of(publish(b"a") + publish(b"bb") + publish(b"cc"))
    assert isinstance(first, Publish)
    assert isinstance(second, Publish)
    assert isinstance(third, Publish)
    assert first.origin is second.origin is third.origin
    assert first.properties is second.properties is third.properties
    assert [first.body, second.body, third.body] == [b"a", b"bb", b"cc"]


def test_a_publish_that_almost_repeats_the_last_is_read_for_itself() -> None:
    # All have the same lengths, and differ in one place each.
    variants = [
        published(b"body", 1, "q"),
        published(b"body", 2, "q"),
        published(b"body", 1, "r"),
        published(b"body", 1, "q", bytes.fromhex("1000 01")),
        published(b"bodx", 1, "q"),
        published(b"bod", 1, "q"),
        Publish(1, write_origin("", "q"), True, False, PERSISTENT, b"body"),
        Publish(1, write_origin("", "q"), False, True, PERSISTENT, b"body"),
    ]
    randomness = random.Random(3)
    expected = [randomness.choice(variants) for _ in range(400)]
    data = b""
    for each in expected:
        exchange, key = read_origin(each.origin)
        data += BasicPublish(each.channel, exchange, key, each.mandatory, each.immediate).encode()
        data += encode_content(each.channel, each.properties, each.body, FRAME_MAX)
    assert commands_of(data) == expected


@pytest.mark.parametrize(
    ("data", "code", "ids"),
    [
        (header(1, 5), ReplyCode.UNEXPECTED_FRAME, (0, 0)),
        (frame(3, 1, b"x"), ReplyCode.UNEXPECTED_FRAME, (0, 0)),
        (frame(3, 0, b"x"), ReplyCode.UNEXPECTED_FRAME, (0, 0)),
        (header(0, 5), ReplyCode.UNEXPECTED_FRAME, (0, 0)),
        (method_of(1) + frame(3, 1, b"x"), ReplyCode.UNEXPECTED_FRAME, (60, 40)),
        (method_of(1) + method_of(1), ReplyCode.UNEXPECTED_FRAME, (60, 40)),
        (method_of(1) + ChannelOpen(1).encode(), ReplyCode.UNEXPECTED_FRAME, (60, 40)),
        (method_of(1) + header(1, 2, class_id=50), ReplyCode.UNEXPECTED_FRAME, (60, 40)),
        (method_of(1) + header(1, 2, weight=1), ReplyCode.UNEXPECTED_FRAME, (60, 40)),
        (method_of(1) + header(1, 2) + header(1, 2), ReplyCode.UNEXPECTED_FRAME, (60, 40)),
        (method_of(1) + header(1, 2) + encode_ack(1, 1, False), ReplyCode.UNEXPECTED_FRAME, (60, 40)),
        (method_of(1) + header(1, 2) + frame(3, 1, b"abc"), ReplyCode.FRAME_ERROR, (60, 40)),
        (method_of(1) + header(1, 2) + frame(3, 1, b"a") + frame(3, 1, b"bc"), ReplyCode.FRAME_ERROR, (60, 40)),
        (frame(8, 1, b""), ReplyCode.UNEXPECTED_FRAME, (0, 0)),
        (frame(8, 0, b"x"), ReplyCode.FRAME_ERROR, (0, 0)),
        (frame(4, 1, b"x"), ReplyCode.FRAME_ERROR, (0, 0)),
        (frame(1, 1, b"\0\x3c\0"), ReplyCode.FRAME_ERROR, (0, 0)),
        (method_of(1) + frame(2, 1, b"\0\x3c"), ReplyCode.FRAME_ERROR, (0, 0)),
        (frame(1, 1, b"\0\x3c\0\x4f"), ReplyCode.NOT_IMPLEMENTED, (60, 79)),
        (frame(1, 1, b"\0\x46\0\x0a"), ReplyCode.NOT_IMPLEMENTED, (70, 10)),
        (BasicDeliver(1, "c", 1, False, "", "q").encode(), ReplyCode.COMMAND_INVALID, (60, 60)),
        (ConnectionCloseOk(1).encode(), ReplyCode.COMMAND_INVALID, (10, 51)),
        (publish(b"body", 0), ReplyCode.UNEXPECTED_FRAME, (0, 0)),
        (frame(1, 1, b"\0\x3c\0\x50\0"), ReplyCode.FRAME_ERROR, (60, 80)),
        (frame(1, 1, b"\0\x3c\0\x28\0\0\x01x\x09key\0"), ReplyCode.FRAME_ERROR, (60, 40)),
        (frame(1, 1, b"\0\x3c\0\x28\0\0\x01x\x02key\0"), ReplyCode.FRAME_ERROR, (60, 40)),
        (publish(b"body")[:-1] + b"\xcd", ReplyCode.FRAME_ERROR, (0, 0)),
        (publish(b"body") * 3 + publish(b"body")[:-1] + b"\xcd", ReplyCode.FRAME_ERROR, (0, 0)),
        (encode_ack(1, 1, False)[:-1] + b"\xcf", ReplyCode.FRAME_ERROR, (0, 0)),
    ],
)
def test_broken_rules_are_errors_with_rabbitmqs_codes(data: bytes, code: ReplyCode, ids: tuple[int, int]) -> None:
    error = error_of(data)
    assert (error.code, (error.class_id, error.method_id)) == (code, ids)
    with pytest.raises(AmqpError) as caught:
        feed_each(started(), [bytes((octet,)) for octet in data])
    assert caught.value.code == code


def test_a_malformed_publish_in_front_of_its_content_is_refused() -> None:
    content = encode_content(1, PERSISTENT, b"body", FRAME_MAX)
    for fields in (b"\x01x\x09key\0", b"\x01x\x02key\0", b"\xffx\x03key\0", b"\x01x\x03key", b"", b"\0"):
        error = error_of(publish(b"body") + frame(1, 1, b"\0\x3c\0\x28\0\0" + fields) + content)
        assert error.code == ReplyCode.FRAME_ERROR


def test_a_frame_above_frame_max_is_refused_by_its_header() -> None:
    decoder = started(4096)
    error = error_of(struct.pack(">BHI", 1, 1, 4097), decoder)
    assert error.code == ReplyCode.FRAME_ERROR


def test_a_frame_may_exceed_frame_max_by_what_surrounds_its_payload() -> None:
    decoder = started(4096)
    decoder.feed(publish(b"x" * 4096, frame_max=0))
    assert decoder.next_command() == published(b"x" * 4096)
    assert error_of(publish(b"x" * 4097, frame_max=0), decoder).code == ReplyCode.FRAME_ERROR


def test_frame_max_can_be_raised_after_tuning() -> None:
    decoder = started(4096)
    decoder.frame_max = 131072
    decoder.feed(publish(b"x" * 50_000, frame_max=131072))
    assert decoder.next_command() == published(b"x" * 50_000)


def test_without_frame_max_a_frame_may_have_any_size() -> None:
    decoder = started(0)
    decoder.feed(publish(b"x" * 90_000, frame_max=0) * 2)
    assert [decoder.next_command() for _ in range(2)] == [published(b"x" * 90_000)] * 2


def test_a_body_above_the_limit_is_told_once_and_skipped() -> None:
    data = publish(b"x" * (MAX_BODY + 1)) + publish(b"after")
    expected = [Oversized(1, MAX_BODY + 1), published(b"after")]
    assert commands_of(data) == expected
    assert decode(PROTOCOL_HEADER + data, sizes=[1000] * 50)[1:] == expected
    assert commands_of(publish(b"x" * MAX_BODY)) == [published(b"x" * MAX_BODY)]
    small = publish(b"x" * 11) + publish(b"x" * 10)
    assert decode(PROTOCOL_HEADER + small, max_body_bytes=10)[1:] == [Oversized(1, 11), published(b"x" * 10)]


def test_a_skipped_body_may_be_broken_off() -> None:
    begun = method_of(1) + header(1, MAX_BODY + 1) + frame(3, 1, b"begun")
    expected = [Oversized(1, MAX_BODY + 1), published(b"after")]
    assert commands_of(begun + publish(b"after")) == expected


def test_a_skipped_body_is_not_kept() -> None:
    size = 20_000_000
    decoder = started(131072)
    decoder.frame_max = 131072
    decoder.feed(method_of(1) + header(1, size))
    assert decoder.next_command() == Oversized(1, size)
    piece = frame(3, 1, bytes(100_000))
    tracemalloc.start()
    try:
        for _ in range(size // 100_000):
            decoder.feed(piece)
            assert decoder.next_command() is None
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    decoder.feed(publish(b"after"))
    assert decoder.next_command() == published(b"after")


def test_an_announced_size_takes_no_memory() -> None:
    decoder = started(max_body_bytes=1 << 40)
    tracemalloc.start()
    try:
        decoder.feed(method_of(1) + header(1, 1 << 39) + frame(3, 1, b"x"))
        assert decoder.next_command() is None
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_body_of_tiny_frames_takes_no_more_memory_than_a_few_times_its_size() -> None:
    decoder = started()
    decoder.feed(method_of(1) + header(1, 60_000))
    assert decoder.next_command() is None
    tiny = frame(3, 1, b"ab") * 100
    tracemalloc.start()
    try:
        for _ in range(299):
            decoder.feed(tiny)
            assert decoder.next_command() is None
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
    decoder.feed(tiny)
    assert decoder.next_command() == published(b"ab" * 30_000)


def test_no_more_contents_than_channel_max_are_under_way_at_once() -> None:
    decoder = started()
    decoder.channel_max = 3
    error = error_of(b"".join(method_of(channel) for channel in range(1, 5)), decoder)
    assert error.code == ReplyCode.NOT_ALLOWED
    decoder = started()
    decoder.channel_max = 3
    decoder.feed(b"".join(publish(b"body", channel) for channel in range(1, 9)))
    assert [decoder.next_command() for _ in range(8)] == [published(b"body", channel) for channel in range(1, 9)]


@pytest.mark.parametrize("size", [0, 1, 100, 4088, 4089, 8176, 8177, 50_000])
def test_server_frames_are_read_as_written_within_frame_max(size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    origin = write_origin("x", "key")
    properties = Properties(content_type="text/plain", headers=b"\0\0\0\0").encode()
    deliver = encode_delivery(7, delivery_prefix("tag"), 1 << 40, True, origin, properties, body, FRAME_MAX)
    got = encode_get_ok(7, 3, False, 11, origin, properties, body, FRAME_MAX)
    returned = encode_return(7, 312, "NO_ROUTE", origin, properties, body, FRAME_MAX)
    expected: list[Command] = [
        BasicDeliver(7, "tag", 1 << 40, True, "x", "key", properties, body),
        BasicGetOk(7, 3, False, "x", "key", 11, properties, body),
        BasicReturn(7, 312, "NO_ROUTE", "x", "key", properties, body),
        BasicAck(7, 5, True),
        BasicNack(7, 6, False, False),
        Heartbeat(0),
    ]
    data = deliver + got + returned + encode_ack(7, 5, True) + encode_nack(7, 6, False) + HEARTBEAT
    assert decode(data, from_server=True) == expected
    assert decode(data, sizes=[1] * 500 + [777] * 100, from_server=True) == expected
    sizes = frame_sizes(data)
    assert max(sizes) <= FRAME_MAX
    # As few frames as possible: a method, a header and the bodies for three, and three more.
    assert len(sizes) == 3 * (2 + -(-size // (FRAME_MAX - 8))) + 3
    if size:
        whole = encode_delivery(7, delivery_prefix("tag"), 1, True, origin, properties, body, 0)
        assert len(frame_sizes(whole)) == 3


def test_deliveries_are_read_alike_whatever_came_before() -> None:
    expected: list[Command] = []
    pieces = []
    for tag, (consumer, exchange, key, properties) in enumerate(
        [
            ("one", "", "queue", PERSISTENT),
            ("one", "", "queue", PERSISTENT),
            ("two", "", "queue", PERSISTENT),
            ("two", "x", "queue", b"\0\0"),
            ("two", "x", "other", b"\0\0"),
            ("one", "", "queue", PERSISTENT),
        ]
    ):
        body = b"body %d" % tag
        expected.append(BasicDeliver(3, consumer, tag, tag % 2 == 1, exchange, key, properties, body))
        prefix, origin = delivery_prefix(consumer), write_origin(exchange, key)
        pieces.append(encode_delivery(3, prefix, tag, tag % 2 == 1, origin, properties, body, FRAME_MAX))
    data = b"".join(pieces)
    assert decode(data, from_server=True) == expected
    assert decode(data, sizes=[1] * len(data), from_server=True) == expected


DELIVERIES = b"".join(
    encode_delivery(1, delivery_prefix("tag"), number, False, write_origin("x", "key"), PERSISTENT, b"abc", FRAME_MAX)
    for number in range(2)
)


@given(st.lists(st.tuples(st.integers(0, len(DELIVERIES) - 1), st.integers(0, 255)), min_size=1, max_size=3))
def test_damaged_deliveries_are_read_alike_however_the_bytes_arrive(damage: list[tuple[int, int]]) -> None:
    data = bytearray(DELIVERIES)
    for place, value in damage:
        data[place] = value
    found: list[list[Command] | ReplyCode] = []
    for sizes in ([], [1] * len(data)):
        try:
            found.append(decode(bytes(data), sizes=sizes, from_server=True))
        except AmqpError as error:
            found.append(error.code)
    assert found[0] == found[1]


def frame_sizes(data: bytes) -> list[int]:
    sizes = []
    at = 0
    while at < len(data):
        sizes.append(int.from_bytes(data[at + 3 : at + 7]) + 8)
        at += sizes[-1]
    assert at == len(data)
    return sizes


def test_a_client_does_not_take_what_only_clients_send() -> None:
    for data in (publish(b"body"), BasicGet(1, "q", False).encode()):
        with pytest.raises(AmqpError) as caught:
            decode(data, from_server=True)
        assert caught.value.code == ReplyCode.COMMAND_INVALID


@pytest.mark.parametrize("origin", [b"", b"\0", b"\0\x01", b"\x02a\0", b"\0\0\0"])
def test_an_origin_is_exactly_two_short_strings(origin: bytes) -> None:
    with pytest.raises(AmqpError):
        read_origin(origin)
    assert read_origin(write_origin("è", "é")) == ("è", "é")


def test_the_session_hears_of_methods_that_are_not_for_channel_0() -> None:
    assert commands_of(encode_ack(0, 1, False)) == [BasicAck(0, 1, False)]


SESSION = b"".join(
    [
        QueueDeclare(1, "q", False, True, False, False, False, {"x-max-length": 5, "t": {"a": [1, "b"]}}).encode(),
        publish(b"body"),
        publish(b"body"),
        publish(b"other", properties=Properties(headers=b"\0\0\0\0", user_id="u").encode()),
        publish(b"x" * 200, 2, frame_max=108),
        encode_ack(1, 77, True),
        HEARTBEAT,
        publish(b""),
    ]
)


@settings(max_examples=800, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(SESSION) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_damage_is_accepted_or_an_amqp_error_however_the_bytes_arrive(damage: list[tuple[int, int]]) -> None:
    damaged = bytearray(SESSION)
    for at, octet in damage:
        damaged[at] = octet
    outcomes = []
    for sizes in ([], [1] * len(damaged), [50] * 20):
        decoder = started()
        commands: list[object] = []
        at = 0
        try:
            for size in [*sizes, len(damaged)]:
                decoder.feed(bytes(damaged[at : at + size]))
                at += size
                while (command := decoder.next_command()) is not None:
                    commands.append(command)
        except AmqpError as error:
            commands.append((error.code, error.text, error.class_id, error.method_id))
        outcomes.append(commands)
    assert outcomes[0] == outcomes[1] == outcomes[2]


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 9), st.integers(0, 2), st.binary(max_size=60))
def test_random_frames_are_accepted_or_an_amqp_error(kind: int, channel: int, payload: bytes) -> None:
    with contextlib.suppress(AmqpError):
        feed_each(started(), [frame(kind, channel, payload)])


def test_octets_are_copied_a_few_times_however_small_the_pieces() -> None:
    # A decoder that copies what it holds at every feed would copy 10^11 octets here and run into the time limit.
    size = 1_000_000
    data = method_of(1) + header(1, size) + frame(3, 1, bytes(size))
    decoder = started(frame_max=0, max_body_bytes=size)
    for at in range(0, len(data), 3):
        assert decoder.next_command() is None
        decoder.feed(data[at : at + 3])
    assert decoder.next_command() == published(bytes(size))


def test_a_long_pipeline_is_decoded_in_linear_time() -> None:
    count = 30_000
    assert len(commands_of(publish(b"body") * count)) == count
    assert len(decode(PROTOCOL_HEADER + encode_ack(1, 1, False) * 5000, sizes=[1] * 105_000)) == 5001


# What is kept of contents that are not complete


def unfinished(channel: int, body: bytes = b"x" * 1000, size: int = 50_000) -> bytes:
    """Return a publish with a part of its body."""
    publish = BasicPublish(channel, "", "queue", False, False).encode()
    return publish + header(channel, size) + frame(3, channel, body)


def test_frame_of_a_channel_before_open_is_an_error_and_not_kept() -> None:
    for data in (unfinished(1), frame(3, 7, b"x" * 1000)):
        decoder = started()
        decoder.is_connection_only = True
        error = error_of(data, decoder)
        assert error.code is ReplyCode.UNEXPECTED_FRAME
        assert decoder.content_bytes == 0


def test_content_of_a_channel_that_is_not_open_is_refused_at_its_method() -> None:
    decoder = started()
    decoder.open_channels = {2}
    feed_each(decoder, [unfinished(2)])
    assert decoder.content_bytes == len(PERSISTENT) + 1000
    error = error_of(unfinished(3), decoder)
    assert (error.code, error.text) == (ReplyCode.CHANNEL_ERROR, "expected 'channel.open'")
    assert (error.class_id, error.method_id) == (BasicPublish.CLASS_ID, BasicPublish.METHOD_ID)


def test_contents_are_dropped_frame_by_frame_while_discarding() -> None:
    decoder = started()
    decoder.open_channels = ()
    decoder.is_discarding = True
    decoder.feed(unfinished(1) + frame(3, 1, b"x" * 3000) + ConnectionCloseOk(0).encode())
    assert decoder.next_command() == ConnectionCloseOk(0)
    assert decoder.next_command() is None
    assert decoder.buffered_bytes == 0


def test_buffered_bytes_count_frames_and_contents_until_they_are_complete() -> None:
    decoder = started()
    data = unfinished(1, size=3000) + frame(3, 1, b"y" * 2000)
    decoder.feed(data[:-1])
    assert decoder.next_command() is None
    assert len(PERSISTENT) + 1000 + 2000 <= decoder.buffered_bytes <= len(data)
    decoder.feed(data[-1:])
    assert isinstance(decoder.next_command(), Publish)
    assert decoder.content_bytes == 0
    assert decoder.next_command() is None
    assert decoder.buffered_bytes == 0
    decoder.feed(unfinished(1))
    decoder.next_command()
    decoder.clear()
    assert decoder.buffered_bytes == 0
