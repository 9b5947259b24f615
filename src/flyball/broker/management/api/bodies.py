"""The bodies of requests: read within bounds of size and time, and parsed so that messages go on meanwhile.

What answers hold until they are sent counts with them.

Knows nothing of what is asked.
"""

from __future__ import annotations

import asyncio
import json
import re
import weakref
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from flyball.broker.core.memory import Ledger
from flyball.broker.management.api.answers import Refused
from flyball.errors import InvalidArgument

# A document up to this is parsed in less than a millisecond: a longer one in a thread, while messages go on.
SHORT_BYTES = 64 * 1024

# A client has so long to send a body.
READ_S = 60.0

# How many answers read messages from queues at the same moment.
MAX_CONCURRENT_READS = 2

# How long an answer that has begun waits for others to be sent, and how often it looks.
ROOM_S = 30.0
LOOK_S = 0.05

_IN_TEXT = re.compile(rb'(?:[^"\\]{1,1000}|\\.){0,100}', re.DOTALL)
# Both look at a piece at a time: no other thread has its turn while they look.
_WHOLE_CHARACTERS = re.compile(
    r"(?:[^\\]{1,1000}"
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|\\(?!u[dD][89a-fA-F]).){0,100}",
    re.DOTALL,
)


class Bodies:
    """The bodies that are under way, as charged to the node's ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        # Held while messages are read from a queue, which takes more than what is kept of them.
        self.reading = asyncio.Semaphore(MAX_CONCURRENT_READS)

    async def read(self, request: Request, max_bytes: int) -> bytearray:
        """Return the body of a request. It counts until `let_go`, also if this raises Refused."""
        content = bytearray()
        try:
            async with asyncio.timeout(READ_S):
                async for chunk in request.stream():
                    content += chunk
                    request.state.body_bytes = len(content)
                    self.take(len(chunk))
                    if len(content) > max_bytes:
                        raise too_large(f"the request holds more than {max_bytes} bytes")
                    if len(content) > self._ledger.http_limit_bytes:
                        limit_bytes = self._ledger.http_limit_bytes
                        raise too_large(f"the request exceeds {limit_bytes} bytes; raise --memory-bytes to allow it")
                    self.check()
        except TimeoutError:
            raise Refused(408, f"the request has not come within {READ_S:g} s") from None
        return content

    @property
    def are_too_many(self) -> bool:
        """Whether requests and answers under way hold too much."""
        return self._ledger.http_bytes > self._ledger.http_limit_bytes

    def check(self) -> None:
        """Raise Refused if there are too many."""
        if self.are_too_many:
            raise Refused(503, "too much is being asked at once: ask again in some seconds")

    async def room(self) -> None:
        """Return when there are not too many. Raises Refused if that takes too long."""
        give_up_s = asyncio.get_running_loop().time() + ROOM_S
        while self.are_too_many:
            if asyncio.get_running_loop().time() > give_up_s:
                self.check()
            await asyncio.sleep(LOOK_S)

    def hold(self, response: Response, size_bytes: int) -> None:
        """Count what an answer holds until it is sent, or gone without that."""
        self.take(size_bytes)
        weakref.finalize(response, self.forget, size_bytes)

    def take(self, size_bytes: int) -> None:
        """Count what is under way until `forget`."""
        self._ledger.http_bytes += size_bytes

    def forget(self, size_bytes: int) -> None:
        """So much is not under way any more."""
        self._ledger.http_bytes -= size_bytes

    def let_go(self, request: Request) -> None:
        """The request is answered."""
        self.forget(getattr(request.state, "body_bytes", 0))
        request.state.body_bytes = 0


def too_large(reason: str) -> Refused:
    return Refused(413, reason)


async def document_in(content: bytearray, max_without_texts: int) -> dict[str, Any]:
    """Return the JSON object that a body is, an empty one if there is no body. Raises InvalidArgument."""
    if not content:
        return {}
    try:
        if len(content) <= SHORT_BYTES:
            found = _parsed(content, max_without_texts)
        else:
            found = await asyncio.to_thread(_parsed, content, max_without_texts)
    except (ValueError, RecursionError):
        raise InvalidArgument("the request is no JSON in UTF-8") from None
    if not isinstance(found, dict):
        raise InvalidArgument("the request is no JSON object")
    return found


def _parsed(content: bytearray, max_without_texts: int) -> Any:
    """Parse a document. Raises ValueError or RecursionError if it is none, Refused if it has too many parts."""
    if len(content) > max_without_texts and _without_texts(content) > max_without_texts:
        # Of three bytes, as "{},", an object is made that takes thirty times as many.
        raise too_large(f"the request holds more than {max_without_texts} bytes beside its texts")
    text = content.decode("utf-8-sig")
    if "\\ud" in text or "\\uD" in text:
        _check_characters(text)
    # The parser keeps other threads out all the time, but for calls into Python: so there is one with each object.
    return json.loads(text, object_hook=_same)


def _without_texts(content: bytearray) -> int:
    """Return how many bytes of a document stand between its texts."""
    found = at = 0
    while True:
        begin = content.find(b'"', at)
        if begin < 0:
            return found + len(content) - at
        found += begin - at
        at = begin + 1
        while at < len(content) and content[at] != ord('"'):
            match = _IN_TEXT.match(content, at)
            # A single backslash may be all that is left.
            at = len(content) if match is None or match.end() == at else match.end()
        at += 1


def _check_characters(text: str) -> None:
    """Raise ValueError if half a character is spelled somewhere, which JSON can and which nobody could keep."""
    at = 0
    while at < len(text):
        match = _WHOLE_CHARACTERS.match(text, at)
        if match is None or match.end() == at:
            raise ValueError("half a character")
        at = match.end()


def _same(value: dict[str, Any]) -> dict[str, Any]:
    return value
