"""ThorBangMQ's text protocol: what was recorded from the original, and how numbers and lists are read."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.broker.wire.thorbang import (
    BAD_REQUEST,
    MSG0,
    OK,
    AnswerDecoder,
    CreateClient,
    CreateQueue,
    Hello,
    Malformed,
    Peek,
    Pop,
    RemoveClient,
    RemoveQueue,
    Request,
    RequestDecoder,
    Send,
    encode_fail,
    encode_id,
    encode_message,
    parse_request,
)
from flyball.errors import ProtocolError
from flyball.model import MAX_COPIES

MAX_REQUEST_BYTES = 2_000_000
VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "thorbangmq-vectors.json").read_text(encoding="utf-8")
)


def bytes_of(exchange: dict[str, Any]) -> bytes:
    if "segments_hex" in exchange:
        return b"".join(bytes.fromhex(segment) for segment in exchange["segments_hex"])
    if "segments" in exchange:
        return "".join(exchange["segments"]).encode()
    request: str = exchange["request"]
    return request.encode()


def decode(data: bytes, sizes: list[int] | None = None) -> list[Request]:
    """Return the requests of `data`, fed in pieces of the given sizes and the rest at once."""
    decoder = RequestDecoder(MAX_REQUEST_BYTES)
    requests: list[Request] = []
    at = 0
    for size in [*(sizes or []), len(data)]:
        decoder.feed(data[at : at + size])
        at += size
        while (request := decoder.next_request()) is not None:
            requests.append(request)
    return requests


def is_malformed(request: Request) -> bool:
    return isinstance(request, Malformed) or (isinstance(request, Send) and request.malformed_after)


def test_recorded_requests_are_malformed_only_where_bad_request() -> None:
    for exchange in VECTORS:
        data = bytes_of(exchange)
        requests = decode(data)
        assert len(requests) == data.count(0), exchange["name"]
        answers = exchange["response"].split("\0")[:-1]
        if len(requests) == len(answers):
            for request, answer in zip(requests, answers, strict=True):
                assert is_malformed(request) == (answer == "BAD REQUEST"), exchange["name"]


def encode_request(request: Request) -> bytes:
    """Return the request as the original's client writes it."""
    match request:
        case Hello():
            text = "HELLO"
        case Send(receiver, sender, queue_ids, _, priority, context, content):
            queues = ";".join(map(str, queue_ids))
            text = f"MSG,{receiver},{sender},{queues},{priority},{context},{content.decode()}"
        case Peek(receiver, queue_id, None, by_time):
            text = f"PEEKQ,{receiver},{queue_id},{by_time:d}"
        case Peek(receiver, queue_id, sender, by_time):
            text = f"PEEKS,{receiver},{queue_id},{sender},{by_time:d}"
        case Pop(receiver, queue_id, None, by_time):
            text = f"POPQ,{receiver},{queue_id},{by_time:d}"
        case Pop(receiver, queue_id, sender, by_time):
            text = f"POPS,{receiver},{queue_id},{sender},{by_time:d}"
        case CreateQueue(name):
            text = f"CREATEQUEUE,{name}"
        case RemoveQueue(queue_id):
            text = f"REMOVEQUEUE,{queue_id}"
        case CreateClient(name):
            text = f"CREATECLIENT,{name}"
        case RemoveClient(client_id):
            text = f"REMOVECLIENT,{client_id}"
        case _:
            raise AssertionError(request)
    return text.encode() + b"\0"


def test_recorded_traffic_of_the_original_runner_encodes_to_the_same_bytes() -> None:
    exchanges = [exchange for exchange in VECTORS if exchange["session"].startswith("W")]
    assert exchanges
    for exchange in exchanges:
        data = bytes_of(exchange)
        assert b"".join(encode_request(request) for request in decode(data)) == data


def test_recorded_answers_encode_to_the_same_bytes() -> None:
    for exchange in VECTORS:
        decoder = AnswerDecoder()
        decoder.feed(exchange["response"].encode())
        while (answer := decoder.next_answer()) is not None:
            assert encode_answer(answer) == answer + b"\0"


def encode_answer(answer: bytes) -> bytes:
    """Take an answer apart and put it together again."""
    constants = {b"OK": OK, b"MSG0": MSG0, b"BAD REQUEST": BAD_REQUEST}
    if answer in constants:
        return constants[answer]
    if answer.startswith(b"MSG,"):
        _, sender, context, message_id, content = answer.split(b",", 4)
        return encode_message(int(sender), int(context), int(message_id), content)
    if answer.startswith(b"FAIL "):
        _, kind, id = answer.decode().split(" ")
        return encode_fail(kind, int(id))
    return encode_id(int(answer))


def test_requests_do_not_depend_on_how_the_bytes_arrive() -> None:
    randomness = random.Random(9)
    short = b"".join(data for data in map(bytes_of, VECTORS) if len(data) < 500)
    whole = decode(short)
    assert decode(short, [1] * len(short)) == whole
    everything = b"".join(map(bytes_of, VECTORS))
    whole = decode(everything)
    for _ in range(10):
        assert decode(everything, [randomness.choice((0, 1, 2, 30, 5000)) for _ in range(500)]) == whole


def test_several_feeds_may_precede_the_first_request() -> None:
    decoder = RequestDecoder(100)
    for piece in (b"HEL", b"LO\0CREATE", b"QUEUE,q\0", b"POPQ,1"):
        decoder.feed(piece)
    assert decoder.next_request() == Hello()
    decoder.feed(b",2,1")
    assert decoder.next_request() == CreateQueue("q")
    assert decoder.next_request() is None
    decoder.feed(b"\0")
    assert decoder.next_request() == Pop(1, 2, None, True)
    assert decoder.next_request() is None


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("HELLO", Hello()),
        ("HELLO,", Hello()),
        ("HELLO,x,y", Hello()),
        ("MSG,2,1,1,5,7,hi, all", Send(2, 1, [1], False, 5, 7, b"hi, all")),
        ("MSG,-1,1,1;2;1,-5,0,", Send(-1, 1, [1, 2, 1], False, -5, 0, b"")),
        ("PEEKQ,2,1,1", Peek(2, 1, None, True)),
        ("PEEKS,2,1,3,0", Peek(2, 1, 3, False)),
        ("POPQ,2,1,+1", Pop(2, 1, None, True)),
        ("POPQ,2,1,01", Pop(2, 1, None, True)),
        ("POPQ,2,1,2", Pop(2, 1, None, False)),
        ("POPS,2,1,3,-1", Pop(2, 1, 3, False)),
        ("CREATEQUEUE,", CreateQueue("")),
        ("CREATEQUEUE,a,b", CreateQueue("a,b")),
        ("REMOVEQUEUE,-7", RemoveQueue(-7)),
        ("CREATECLIENT,é\n", CreateClient("é\n")),
        ("REMOVECLIENT,007", RemoveClient(7)),
        ("REMOVECLIENT,1,2", Malformed()),
        ("REMOVECLIENT,1\n", Malformed()),
        ("CREATEQUEUE", Malformed()),
        ("HELLO ", Malformed()),
        ("Hello", Malformed()),
        ("", Malformed()),
        (",", Malformed()),
        ("MSG,2,1,1,5,7", Malformed()),
        ("POPQ,2,1,1,1", Malformed()),
    ],
)
def test_a_request_is_read_as_the_protocol_says(text: str, request_: Request) -> None:
    assert parse_request(text) == request_


@pytest.mark.parametrize(
    ("queues", "queue_ids", "malformed_after"),
    [
        ("1", [1], False),
        ("1;2;", [1, 2], False),
        ("1;;;", [1], False),
        (";", [], False),
        (";;", [], False),
        ("1;x;2", [1], True),
        ("1;;2", [1], True),
        ("1;2; ", [1, 2], True),
        ("1;9223372036854775808", [1], True),
        ("+1;-2;٣", [1, -2, 3], False),
    ],
)
def test_a_queue_list_is_good_up_to_its_first_malformed_part(
    queues: str, queue_ids: list[int], malformed_after: bool
) -> None:
    assert parse_request(f"MSG,2,1,{queues},5,7,c") == Send(2, 1, queue_ids, malformed_after, 5, 7, b"c")


@pytest.mark.parametrize("queues", ["", ";1", "x", "x;1", " 1", "1,2;"])
def test_a_queue_list_that_starts_malformed_stores_nothing(queues: str) -> None:
    assert parse_request(f"MSG,2,1,{queues},5,7,c") == Malformed()


@pytest.mark.parametrize("bad", ["MSG,x,1,1,5,7,c", "MSG,2,x,1,5,7,c", "MSG,2,1,1,x,7,c", "MSG,2,1,1,5,x,c"])
def test_the_other_numbers_are_checked_before_the_queues(bad: str) -> None:
    assert parse_request(bad) == Malformed()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-0", 0),
        ("+5", 5),
        ("9223372036854775807", (1 << 63) - 1),
        ("-9223372036854775808", -(1 << 63)),
        ("0" * 10_000 + "12", 12),
        ("-" + "0" * 10_000, 0),
        ("٠٠١٢", 12),
        ("1２", 12),
        ("-９２２３３７２０３６８５４７７５８０８", -(1 << 63)),
    ],
)
def test_long_numbers_are_decimal_digits_of_any_script_with_a_sign(text: str, value: int) -> None:
    assert parse_request(f"REMOVEQUEUE,{text}") == RemoveQueue(value)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "+", "-", "+-1", "--1", "1 ", " 1", "1_000", "0x10", "1.0", "1e3", "²", "½", "一", "1\n", "\t1"),
        *("9223372036854775808", "-9223372036854775809", "9" * 10_000, "10000000000000000000"),
    ],
)
def test_nothing_else_is_a_number(text: str) -> None:
    assert parse_request(f"REMOVEQUEUE,{text}") == Malformed()


@pytest.mark.parametrize("priority", [-(1 << 31), (1 << 31) - 1, 999_999_999, 1_000_000_000])
def test_priorities_have_32_bits(priority: int) -> None:
    assert parse_request(f"MSG,2,1,1,{priority},7,c") == Send(2, 1, [1], False, priority, 7, b"c")


@pytest.mark.parametrize("number", [-(1 << 31) - 1, 1 << 31, 9_999_999_999])
def test_a_priority_or_flag_beyond_32_bits_is_malformed(number: int) -> None:
    assert parse_request(f"MSG,2,1,1,{number},7,c") == Malformed()
    assert parse_request(f"POPQ,2,1,{number}") == Malformed()


def test_what_is_no_utf8_becomes_the_replacement_character() -> None:
    (request,) = decode(b"MSG,2,1,1,1,0,\xff\xfe\xc3\0")
    assert isinstance(request, Send)
    assert request.content == "\ufffd\ufffd\ufffd".encode()
    # Seen of the original: the two bytes of a character cut off are one piece, the third another.
    requests = decode(b"CREATEQUEUE,\xe2\x82\0CREATEQUEUE,\xac\0")
    assert requests == [CreateQueue("\ufffd"), CreateQueue("\ufffd")]


def test_request_above_the_limit_is_a_protocol_error() -> None:
    decoder = RequestDecoder(20)
    name = b"x" * 8
    decoder.feed(b"CREATEQUEUE," + name)
    assert decoder.next_request() is None
    decoder.feed(b"\0")
    assert decoder.next_request() == CreateQueue("x" * 8)
    decoder.feed(b"CREATEQUEUE," + name + b"x")
    for _ in range(2):
        with pytest.raises(ProtocolError):
            decoder.next_request()
    decoder.feed(b"\0HELLO\0")
    with pytest.raises(ProtocolError):
        decoder.next_request()


def test_a_request_above_the_limit_is_a_protocol_error_even_if_it_comes_whole() -> None:
    decoder = RequestDecoder(20)
    decoder.feed(b"HELLO\0CREATEQUEUE," + b"x" * 9 + b"\0HELLO\0")
    assert decoder.next_request() == Hello()
    for _ in range(2):
        with pytest.raises(ProtocolError):
            decoder.next_request()


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=100))
def test_random_bytes_are_one_request_for_each_nul(data: bytes) -> None:
    assert len(decode(data)) == data.count(0)


COMMANDS = [
    "HELLO",
    "MSG",
    "PEEKQ",
    "PEEKS",
    "POPQ",
    "POPS",
    "CREATEQUEUE",
    "REMOVEQUEUE",
    "CREATECLIENT",
    "REMOVECLIENT",
]


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(COMMANDS), st.lists(st.text("0123456789+-;, _x٣", max_size=6), max_size=8))
def test_random_arguments_are_a_request_or_malformed(command: str, arguments: list[str]) -> None:
    data = ",".join([command, *arguments]).encode() + b"\0"
    assert len(decode(data)) == 1
    assert decode(data, [1] * len(data)) == decode(data)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=4),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=50),
)
def test_a_send_survives_the_way_over_the_wire(
    number: int, queue_ids: list[int], priority: int, content: str
) -> None:
    send = Send(number, -1 - number, queue_ids, False, priority, number, content.encode())
    assert decode(encode_request(send)) == [send]


def test_a_changed_byte_is_a_request_or_malformed() -> None:
    randomness = random.Random(2)
    data = b"".join(
        encode_request(request) for request in decode(b"MSG,2,1,1;2,5,7,hi\0POPS,2,1,3,0\0REMOVEQUEUE,4\0")
    )
    for _ in range(2000):
        changed = bytearray(data)
        changed[randomness.randrange(len(data))] = randomness.randrange(256)
        assert len(decode(bytes(changed))) == changed.count(0)


def test_a_long_request_fed_in_small_pieces_is_searched_once() -> None:
    # A decoder that searches from the start each time looks at some 10^11 bytes here.
    data = b"MSG,2,1,1,5,7," + b"x" * 1_000_000 + b"\0"
    (request,) = decode(data, [5] * 200_000)
    assert isinstance(request, Send)
    assert len(request.content) == 1_000_000


def test_answers_are_the_text_of_the_protocol() -> None:
    assert (OK, MSG0, BAD_REQUEST) == (b"OK\0", b"MSG0\0", b"BAD REQUEST\0")
    assert encode_message(1, 7, 12, b"hi, all") == b"MSG,1,7,12,hi, all\0"
    assert encode_fail("QUEUE", 99) == b"FAIL QUEUE 99\0"
    assert encode_fail("UNKNOWN", -1) == b"FAIL UNKNOWN -1\0"
    assert encode_id(4) == b"4\0"


def test_answers_do_not_depend_on_how_the_bytes_arrive() -> None:
    decoder = AnswerDecoder()
    answers: list[bytes] = []
    for byte in b"OK\0MSG,1,7,12,hi\0\0MSG0\0":
        decoder.feed(bytes([byte]))
        while (answer := decoder.next_answer()) is not None:
            answers.append(answer)
    assert answers == [b"OK", b"MSG,1,7,12,hi", b"", b"MSG0"]


def test_of_a_list_that_is_too_long_one_queue_more_than_allowed_is_read() -> None:
    for tail in ("10", "none", "10;none;10", "10" + ";10" * 1_000_000):
        request = parse_request(f"MSG,1,1,{'10;' * (MAX_COPIES + 1)}{tail},1,0,text")
        assert isinstance(request, Send)
        assert request.queue_ids == [10] * (MAX_COPIES + 1)
    request = parse_request(f"MSG,1,1,{'10;' * MAX_COPIES};;,1,0,text")
    assert isinstance(request, Send)
    assert (len(request.queue_ids), request.malformed_after) == (MAX_COPIES, False)
