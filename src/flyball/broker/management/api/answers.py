"""Responses of the API: JSON, long lists made in slices so that messaging continues, and errors in RabbitMQ's
format.
"""

from __future__ import annotations

import datetime
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from starlette.responses import Response, StreamingResponse

from flyball import errors
from flyball.broker.management.inspection import plain
from flyball.broker.management.slices import next_slice
from flyball.broker.transport.http import STATUS_OF, WORD_OF

T = TypeVar("T")

log = logging.getLogger(__name__)

# Items of a list per turn of the event loop: about a millisecond.
SLICE = 20

# Items per turn where each is cheap: a turn of the loop costs as much as a dozen of them.
QUICK_SLICE = 250

HEADERS = {
    "cache-control": "no-cache",
    "vary": "accept, accept-encoding, origin",
    # Names and payloads come from clients: a browser must treat them as JSON only.
    "x-content-type-options": "nosniff",
}
MEDIA_TYPE = "application/json"

ADVICE: Mapping[type[errors.FlyballError], str] = {
    errors.QueueNotFound: "See GET /api/queues.",
    errors.ExchangeNotFound: "See GET /api/exchanges.",
    errors.VhostNotFound: "See GET /api/vhosts.",
    errors.UserNotFound: "See GET /api/users.",
    errors.PolicyNotFound: "See GET /api/policies.",
    errors.NotPermitted: "Log in as another user, or ask an administrator for the tag or permission.",
    errors.ClusterError: "Retry in a few seconds; see GET /api/nodes.",
    errors.StoreError: "Retry in a few seconds; see the node's log.",
}
ADVICE_ELSE = "See GET /api/openapi.json for all resources."


class Refused(errors.RequestError):
    """An error with its own HTTP status, and an error word if the default one does not fit."""

    def __init__(self, status: int, reason: str, *, word: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.word = word or WORD_OF[status]


def not_found(reason: str) -> Refused:
    """Return a 404 error."""
    return Refused(404, reason)


def answer(value: Any, status: int = 200) -> Response:
    """Return a response with a short document."""
    return Response(json_text(value), status, HEADERS, MEDIA_TYPE)


def done(status: int = 204) -> Response:
    """Return an empty success response; 201 for a created object."""
    return Response(None, status, HEADERS)


def problem(error: errors.FlyballError, *, is_console: bool = False) -> Response:
    """Return an error response. The console gets 403 instead of 401 for missing rights, as 401 makes it ask for a
    login.
    """
    if isinstance(error, Refused):
        status, word = error.status, error.word
    else:
        status = _first(STATUS_OF, error, 500)
        word = WORD_OF[status]
    if isinstance(error, errors.NotPermitted) and not is_console:
        # As RabbitMQ does.
        status = 401
    # Users of the console do not call the API, so they get different advice.
    advice = _first(ADVICE, error, "" if is_console else ADVICE_ELSE)
    cause = error.__cause__ if isinstance(error, Refused) and error.__cause__ is not None else error
    document = {"error": word, "reason": str(error), "advice": advice, "kind": type(cause).__name__}
    return answer(document, status)


def _first(table: Mapping[type[errors.FlyballError], T], error: errors.FlyballError, default: T) -> T:
    kinds = (kind for kind in type(error).__mro__ if kind in table)
    kind = next(kinds, None)
    return default if kind is None else table[kind]


def json_text(value: Any) -> str:
    """Return the value as encodable JSON: names, keys and arguments from clients may contain anything."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=plain, allow_nan=False)
        if not text.isascii():
            text.encode()
    except ValueError:
        # NaN, or bytes that are not text: JSON has neither.
        text = json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"))
    return text


async def in_slices(items: Sequence[T], size: int = SLICE) -> AsyncIterator[Sequence[T]]:
    """Yield the items in slices; other tasks run in between."""
    for begin in range(0, len(items), size):
        if begin:
            await next_slice()
        yield items[begin : begin + size]


async def mapped(items: Sequence[T], function: Callable[[T], Any], size: int = SLICE) -> list[Any]:
    """Return the results of a function for all items, computed in slices."""
    found: list[Any] = []
    async for some in in_slices(items, size):
        found += map(function, some)
    return found


def stream(items: Sequence[T], document: Callable[[T], Any], around: tuple[str, str] = ("", "")) -> StreamingResponse:
    """Stream a list of documents between a prefix and a suffix; the documents are made while it is sent.

    The status is already sent by then, so an item whose document fails is left out and logged.
    """

    async def texts() -> AsyncIterator[str]:
        before = around[0] + "["
        async for some in in_slices(items):
            shown = [text for item in some if (text := text_of(document, item))]
            if shown:
                yield before + ",".join(shown)
                before = ","
        yield ("" if before == "," else before) + "]" + around[1]

    return StreamingResponse(texts(), 200, HEADERS, MEDIA_TYPE)


def text_of(document: Callable[[T], Any], item: T) -> str:
    """Return an item's document as text; empty if it fails."""
    try:
        return json_text(document(item))
    except Exception:
        log.exception("left out of a list: cannot encode %.200r", item)
        return ""


async def whole(texts: AsyncIterator[str], headers: Mapping[str, str], media_type: str = MEDIA_TYPE) -> Response:
    """Return all texts as one response, or an error: nothing is sent before all of them are made.

    For documents that are useless in parts, such as a backup.
    """
    content = bytearray()
    async for text in texts:
        content += text.encode()
    return Response(bytes(content), 200, headers, media_type)


def fields_of(names: Iterable[str]) -> dict[str, Any]:
    """Return the wanted columns as a tree: a dot separates an object from its field."""
    tree: dict[str, Any] = {}
    for name in names:
        place = tree
        for part in name.split("."):
            place = place.setdefault(part, {})
    return tree


def only(document: Any, fields: Mapping[str, Any]) -> Any:
    """Reduce a document, or each document of a list, to the wanted fields; an empty tree keeps all."""
    if not fields:
        return document
    if isinstance(document, Mapping):
        return {name: only(document[name], inner) for name, inner in fields.items() if name in document}
    if isinstance(document, list | tuple):
        return [only(item, fields) for item in document]
    return document


def moment(unix_s: float) -> str:
    """Format a time as RabbitMQ does."""
    return datetime.datetime.fromtimestamp(unix_s, datetime.UTC).isoformat(timespec="milliseconds")
