"""The document of a request is read whole, or refused with the reason, and a long one blocks no other client."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message

from flyball.broker.core import memory
from flyball.broker.core.memory import Ledger
from flyball.broker.management.api import bodies
from flyball.broker.management.api.answers import Refused
from flyball.broker.management.api.bodies import SHORT_BYTES, Bodies, document_in
from flyball.errors import InvalidArgument
from tests.broker.engine.messages import an_engine

MAX_BYTES = 32 * 1024 * 1024
PADDING = b" " * SHORT_BYTES


def bodies_of_a_node() -> Bodies:
    return Bodies(Ledger(an_engine()[0], 2**30))


def request_with(*chunks: bytes) -> Request:
    messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    messages[-1]["more_body"] = False
    coming = iter(messages)

    async def receive() -> Message:
        return next(coming)

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


async def read(content: bytes, most_beside_texts: int = MAX_BYTES) -> dict[str, Any]:
    return await document_in(await bodies_of_a_node().read(request_with(content), MAX_BYTES), most_beside_texts)


def document_of(content: bytes, most_beside_texts: int = MAX_BYTES) -> dict[str, Any]:
    return asyncio.run(read(content, most_beside_texts))


@pytest.mark.parametrize("padding", [b"", PADDING], ids=["short", "long"])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"name": ', "not valid JSON in UTF-8"),
        (b'{"name": "\xff"}', "not valid JSON in UTF-8"),
        (b'{"name": "\\ud83d"}', "not valid JSON in UTF-8"),
        (b'{"name": "\\uDE00"}', "not valid JSON in UTF-8"),
        (b'{"name": "\\\\ud83d\\ude00"}', "not valid JSON in UTF-8"),
        (b'{"name": "\\ud83d\\ud83d\\ude00"}', "not valid JSON in UTF-8"),
        (b'{"name": "\\', "not valid JSON in UTF-8"),
        (b"[" * 100_000, "not valid JSON in UTF-8"),
        (b"[]", "not a JSON object"),
    ],
    ids=["cut", "not UTF-8", "first half", "second half", "no first half", "two first", "cut text", "deep", "list"],
)
def test_what_is_no_document_is_refused_whatever_its_length(content: bytes, reason: str, padding: bytes) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        document_of(padding + content)


@pytest.mark.parametrize("padding", [b"", PADDING], ids=["short", "long"])
def test_whole_characters_are_taken_as_they_are_spelled(padding: bytes) -> None:
    content = '\ufeff{"name": "\\ud83d\\ude00 ü \\\\ud83d"}'.encode() + padding
    assert document_of(content) == {"name": "😀 ü \\ud83d"}


def test_others_have_their_turns_while_a_long_document_is_parsed() -> None:
    content = b'{"queues": [' + b'{"name": "q"}, ' * 500_000 + b"{}]}"

    async def longest_wait_ratio() -> float:
        # Process time: time in which other processes have the processor does not count as waiting.
        began_s = last_s = time.process_time()
        waits_s = []
        parsing = asyncio.ensure_future(read(content))
        while not parsing.done():
            await asyncio.sleep(0)
            now_s = time.process_time()
            waits_s.append(now_s - last_s)
            last_s = now_s
        assert len((await parsing)["queues"]) == 500_001
        return max(waits_s) / (last_s - began_s)

    # A node collects garbage more seldom than the process of the tests.
    gc.disable()
    try:
        assert asyncio.run(longest_wait_ratio()) < 0.5
    finally:
        gc.enable()


def test_a_document_is_refused_for_its_parts_and_not_for_its_texts() -> None:
    most = 2 * SHORT_BYTES
    payload = '{"a": [1, "\\"two\\\\"]},' * most
    content = json.dumps({"payload": payload, "properties": {}}).encode()
    assert document_of(content, most)["payload"] == payload
    for rich in (b'{"x": [' + b"{}," * most + b"{}]}", b'{"x": "' + payload[:40].encode() + b'"' + b" " * most):
        with pytest.raises(Refused, match="without its strings") as refused:
            document_of(rich, most)
        assert refused.value.status == 413


def test_a_body_that_is_too_long_is_refused_before_it_is_kept() -> None:
    async def scenario() -> None:
        with pytest.raises(Refused, match="exceeds 10 bytes") as refused:
            await bodies_of_a_node().read(request_with(b"12345", b"67890", b"1", b"is not read"), 10)
        assert refused.value.status == 413

    asyncio.run(scenario())


def test_all_bodies_that_are_under_way_have_one_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "HTTP_BYTES", 10)

    async def scenario() -> None:
        held = bodies_of_a_node()
        first, second, third = request_with(b"12345"), request_with(b"12345", b"6"), request_with(b"12345")
        assert await held.read(first, 100) == b"12345"
        with pytest.raises(Refused, match="in progress") as refused:
            await held.read(second, 100)
        assert refused.value.status == 503
        held.let_go(second)
        assert await held.read(third, 100) == b"12345"
        for request in (first, second, third):
            held.let_go(request)
        assert not held.are_too_many

    asyncio.run(scenario())


def test_bodies_are_charged_to_the_ledger_and_bounded_by_its_limit() -> None:
    async def scenario() -> None:
        ledger = Ledger(an_engine()[0], 40)
        held = Bodies(ledger)
        with pytest.raises(Refused, match="exceeds 10 bytes: raise --memory-bytes") as refused:
            await held.read(request_with(b"12345", b"678901"), 100)
        assert refused.value.status == 413
        assert (ledger.http_bytes, ledger.level_bytes, ledger.total_bytes) == (11, 11, 11)

    asyncio.run(scenario())


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "READ_S", 0.0)

    async def never() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("it is never set")

    async def scenario() -> None:
        with pytest.raises(Refused, match="not received") as refused:
            await bodies_of_a_node().read(Request({"type": "http", "method": "POST", "headers": []}, never), 10)
        assert refused.value.status == 408

    asyncio.run(scenario())
