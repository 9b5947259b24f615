"""How the API answers: JSON, long lists in slices so that messages go on meanwhile, and errors in RabbitMQ's words.

Knows nothing of what is answered.
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

# So many items of a list are made in one turn of the loop: about a millisecond.
SLICE = 20

# So many, where little is done with each: a turn of the loop costs as much as a dozen of them.
QUICK_SLICE = 250

HEADERS = {
    "cache-control": "no-cache",
    "vary": "accept, accept-encoding, origin",
    # What somebody has named or published is shown as JSON, whatever a browser takes it for.
    "x-content-type-options": "nosniff",
}
MEDIA_TYPE = "application/json"

ADVICE: Mapping[type[errors.FlyballError], str] = {
    errors.QueueNotFound: "See GET /api/queues.",
    errors.ExchangeNotFound: "See GET /api/exchanges.",
    errors.VhostNotFound: "See GET /api/vhosts.",
    errors.UserNotFound: "See GET /api/users.",
    errors.PolicyNotFound: "See GET /api/policies.",
    errors.NotPermitted: "Log in as another user, or have its tags or permissions changed.",
    errors.ClusterError: "Ask again in some seconds; see GET /api/nodes.",
    errors.StoreError: "Ask again in some seconds; see the node's log.",
}
ADVICE_ELSE = "See GET /api/openapi.json for what can be asked."


class Refused(errors.RequestError):
    """A request that is answered with a status of its own, and the word for it unless there is a better one."""

    def __init__(self, status: int, reason: str, *, word: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.word = word or WORD_OF[status]


def not_found(reason: str) -> Refused:
    """Return the error that says that something is not there."""
    return Refused(404, reason)


def answer(value: Any, status: int = 200) -> Response:
    """Answer with a document that is short."""
    return Response(json_text(value), status, HEADERS, MEDIA_TYPE)


def done(status: int = 204) -> Response:
    """Answer that it is done: 201 if something is there that was not."""
    return Response(None, status, HEADERS)


def problem(error: errors.FlyballError, *, is_console: bool = False) -> Response:
    """Answer with what is wrong. To the web console 401 means to log in again, so it hears 403 of missing rights."""
    if isinstance(error, Refused):
        status, word = error.status, error.word
    else:
        status = _first(STATUS_OF, error, 500)
        word = WORD_OF[status]
    if isinstance(error, errors.NotPermitted) and not is_console:
        # As RabbitMQ does it.
        status = 401
    # Who looks at the console reads no interface: it has advice of its own.
    advice = _first(ADVICE, error, "" if is_console else ADVICE_ELSE)
    cause = error.__cause__ if isinstance(error, Refused) and error.__cause__ is not None else error
    document = {"error": word, "reason": str(error), "advice": advice, "kind": type(cause).__name__}
    return answer(document, status)


def _first(table: Mapping[type[errors.FlyballError], T], error: errors.FlyballError, default: T) -> T:
    kinds = (kind for kind in type(error).__mro__ if kind in table)
    kind = next(kinds, None)
    return default if kind is None else table[kind]


def json_text(value: Any) -> str:
    """Return the value as JSON that can be sent: clients may have put anything into names, keys and arguments."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=plain, allow_nan=False)
        if not text.isascii():
            text.encode()
    except ValueError:
        # A number that is none, or octets that are no text: JSON has neither.
        text = json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"))
    return text


async def in_slices(items: Sequence[T], size: int = SLICE) -> AsyncIterator[Sequence[T]]:
    """Give out the items some at a time; between them others have their turn."""
    for begin in range(0, len(items), size):
        if begin:
            await next_slice()
        yield items[begin : begin + size]


async def mapped(items: Sequence[T], function: Callable[[T], Any], size: int = SLICE) -> list[Any]:
    """Return what the function makes of each item, made in slices."""
    found: list[Any] = []
    async for some in in_slices(items, size):
        found += map(function, some)
    return found


def stream(items: Sequence[T], document: Callable[[T], Any], around: tuple[str, str] = ("", "")) -> StreamingResponse:
    """Answer with the list of the documents of the items, between two texts. They are made while it is sent.

    Status 200 is on its way by then, so an item of which no document can be made is left out, and logged.
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
    """Return the text of an item's document, an empty one if that cannot be made."""
    try:
        return json_text(document(item))
    except Exception:
        log.exception("left %.200r out of a list: it cannot be shown", item)
        return ""


async def whole(texts: AsyncIterator[str], headers: Mapping[str, str], media_type: str = MEDIA_TYPE) -> Response:
    """Answer with all of the texts, or with an error: nothing is sent before all of them are made.

    For what is of no use in parts, such as a backup.
    """
    content = bytearray()
    async for text in texts:
        content += text.encode()
    return Response(bytes(content), 200, headers, media_type)


def fields_of(names: Iterable[str]) -> dict[str, Any]:
    """Return wanted fields as a tree: those after a dot are fields of what is before it."""
    tree: dict[str, Any] = {}
    for name in names:
        place = tree
        for part in name.split("."):
            place = place.setdefault(part, {})
    return tree


def only(document: Any, fields: Mapping[str, Any]) -> Any:
    """Return of a document, or of each in a list, the wanted fields; all if none is named."""
    if not fields:
        return document
    if isinstance(document, Mapping):
        return {name: only(document[name], inner) for name, inner in fields.items() if name in document}
    if isinstance(document, list | tuple):
        return [only(item, fields) for item in document]
    return document


def moment(unix_s: float) -> str:
    """Return a time as RabbitMQ writes it."""
    return datetime.datetime.fromtimestamp(unix_s, datetime.UTC).isoformat(timespec="milliseconds")
