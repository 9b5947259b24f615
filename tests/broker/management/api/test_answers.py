"""Errors are answered with a status, a word, a reason and advice."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from decimal import Decimal

import pytest
from starlette.responses import StreamingResponse

from flyball import errors
from flyball.broker.management.api.answers import Refused, json_text, problem, stream, whole
from flyball.broker.transport.http import STATUS_OF


@pytest.mark.parametrize(
    ("error", "status", "word"),
    [
        (errors.QueueNotFound("orders", "/"), 404, "Object Not Found"),
        (errors.LoopNotFound("orders"), 404, "Object Not Found"),
        (errors.NotSwitchable("orders", "it protects the node"), 409, "conflict"),
        (errors.TooManyLoops(5), 429, "too_many_requests"),
        (errors.NotAdmitted("too many wait", 1.0), 503, "unavailable"),
        (errors.ClusterError("no member has room"), 503, "unavailable"),
        (errors.ControlError("no model"), 500, "internal_error"),
        (Refused(400, "page 7 is none", word="page_out_of_range"), 400, "page_out_of_range"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_has_its_status_and_word(error: errors.FlyballError, status: int, word: str) -> None:
    answer = problem(error)
    told = json.loads(bytes(answer.body))
    assert (answer.status_code, told["error"], told["reason"]) == (status, word, str(error))
    assert told["advice"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"k": "\u00e9"}, '{"k":"\u00e9"}'),
        ({"k": "a\udcff"}, '{"k":"a\ufffd"}'),
        ({"a\udcff": 1}, '{"a\ufffd":1}'),
        ({"k": [math.nan, -math.inf, 1.5]}, '{"k":["nan","-inf",1.5]}'),
        ({"k": b"\xff", "d": Decimal("1.5")}, '{"k":"\ufffd","d":1.5}'),
    ],
)
def test_json_can_always_be_sent_and_parsed(value: object, text: str) -> None:
    assert json_text(value) == text
    json.loads(json_text(value).encode())


def test_item_that_cannot_be_shown_does_not_cut_its_list_off(caplog: pytest.LogCaptureFixture) -> None:
    def document(item: int) -> dict[str, float]:
        return {"n": 1 / item}

    async def sent(items: list[int]) -> bytes:
        response = stream(items, document, ('{"items":', "}"))
        assert isinstance(response, StreamingResponse)
        return "".join([str(part) async for part in response.body_iterator]).encode()

    for items in ([0], [], [0, 1], [1, 0, 2], [0] * 50 + [2] + [0] * 50):
        told = json.loads(asyncio.run(sent(items)))
        assert told == {"items": [{"n": 1 / item} for item in items if item]}
    assert len(caplog.records) == 103
    assert "left out of a list: cannot encode 0" in caplog.text


def test_whole_answer_is_an_error_or_complete() -> None:
    async def texts(ends: bool) -> AsyncIterator[str]:
        yield "{"
        if not ends:
            raise KeyError("queue")
        yield "}"

    answer = asyncio.run(whole(texts(True), {}))
    assert (answer.status_code, answer.body, answer.headers["content-length"]) == (200, b"{}", "2")
    with pytest.raises(KeyError):
        asyncio.run(whole(texts(False), {}))


def test_missing_right_is_401_but_403_for_the_console() -> None:
    error = errors.NotPermitted("you may not")
    assert [problem(error, is_console=is_console).status_code for is_console in (False, True)] == [401, 403]
    assert STATUS_OF[errors.NotPermitted] == 403
