"""Request bodies: read within limits of size and time, and parsed so that messaging continues.

Memory held by responses until they are sent counts against the same limit.
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

# Documents up to this size are parsed inline, in less than a millisecond; larger ones in a thread.
SHORT_BYTES = 64 * 1024

# Time limit for receiving a body.
READ_S = 60.0

# Maximum concurrent responses that read messages from queues.
MAX_CONCURRENT_READS = 2

# How long a started response waits for memory, and how often it checks.
ROOM_S = 30.0
LOOK_S = 0.05

_IN_TEXT = re.compile(rb'(?:[^"\\]{1,1000}|\\.){0,100}', re.DOTALL)
# Both scan a piece per call: a regular expression holds the GIL while it runs.
_WHOLE_CHARACTERS = re.compile(
    r"(?:[^\\]{1,1000}"
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|\\(?!u[dD][89a-fA-F]).){0,100}",
    re.DOTALL,
)


class Bodies:
    """Request bodies and responses in progress, charged to the node's memory ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        # Held while messages are read from a queue: reading needs more memory than the result.
        self.reading = asyncio.Semaphore(MAX_CONCURRENT_READS)

    async def read(self, request: Request, max_bytes: int) -> bytearray:
        """Return the body of a request. It is charged until `let_go`, even if this raises Refused."""
        content = bytearray()
        try:
            async with asyncio.timeout(READ_S):
                async for chunk in request.stream():
                    content += chunk
                    request.state.body_bytes = len(content)
                    self.take(len(chunk))
                    if len(content) > max_bytes:
                        raise too_large(f"request body exceeds {max_bytes} bytes")
                    if len(content) > self._ledger.http_limit_bytes:
                        limit_bytes = self._ledger.http_limit_bytes
                        raise too_large(f"request body exceeds {limit_bytes} bytes: raise --memory-bytes to allow it")
                    self.check()
        except TimeoutError:
            raise Refused(408, f"request body not received within {READ_S:g} s") from None
        return content

    @property
    def are_too_many(self) -> bool:
        """Whether requests and responses in progress exceed the limit."""
        return self._ledger.http_bytes > self._ledger.http_limit_bytes

    def check(self) -> None:
        """Raise Refused if the limit is exceeded."""
        if self.are_too_many:
            raise Refused(503, "too many large requests in progress: retry in a few seconds")

    async def room(self) -> None:
        """Wait until there is room. Raises Refused at the time limit."""
        give_up_s = asyncio.get_running_loop().time() + ROOM_S
        while self.are_too_many:
            if asyncio.get_running_loop().time() > give_up_s:
                self.check()
            await asyncio.sleep(LOOK_S)

    def hold(self, response: Response, size_bytes: int) -> None:
        """Charge a response's memory until it is sent or dropped."""
        self.take(size_bytes)
        weakref.finalize(response, self.forget, size_bytes)

    def take(self, size_bytes: int) -> None:
        """Charge bytes until `forget`."""
        self._ledger.http_bytes += size_bytes

    def forget(self, size_bytes: int) -> None:
        """Release charged bytes."""
        self._ledger.http_bytes -= size_bytes

    def let_go(self, request: Request) -> None:
        """Release the body of a completed request."""
        self.forget(getattr(request.state, "body_bytes", 0))
        request.state.body_bytes = 0


def too_large(reason: str) -> Refused:
    return Refused(413, reason)


async def document_in(content: bytearray, max_without_texts: int) -> dict[str, Any]:
    """Return a body's JSON object; empty without a body. Raises InvalidArgument."""
    if not content:
        return {}
    try:
        if len(content) <= SHORT_BYTES:
            found = _parsed(content, max_without_texts)
        else:
            found = await asyncio.to_thread(_parsed, content, max_without_texts)
    except (ValueError, RecursionError):
        raise InvalidArgument("request body is not valid JSON in UTF-8") from None
    if not isinstance(found, dict):
        raise InvalidArgument("request body is not a JSON object")
    return found


def _parsed(content: bytearray, max_without_texts: int) -> Any:
    """Parse a document. Raises ValueError or RecursionError for invalid JSON, Refused for too many elements."""
    if len(content) > max_without_texts and _without_texts(content) > max_without_texts:
        # The three bytes of "{}," become an object of thirty times the size.
        raise too_large(f"request body exceeds {max_without_texts} bytes without its strings")
    text = content.decode("utf-8-sig")
    if "\\ud" in text or "\\uD" in text:
        _check_characters(text)
    # The parser holds the GIL except in Python callbacks: the hook adds one per object.
    return json.loads(text, object_hook=_same)


def _without_texts(content: bytearray) -> int:
    """Return the size of a document without its strings."""
    found = at = 0
    while True:
        begin = content.find(b'"', at)
        if begin < 0:
            return found + len(content) - at
        found += begin - at
        at = begin + 1
        while at < len(content) and content[at] != ord('"'):
            match = _IN_TEXT.match(content, at)
            # Only a single backslash may be left.
            at = len(content) if match is None or match.end() == at else match.end()
        at += 1


def _check_characters(text: str) -> None:
    """Raise ValueError for an escaped lone surrogate, which JSON allows and UTF-8 cannot encode."""
    at = 0
    while at < len(text):
        match = _WHOLE_CHARACTERS.match(text, at)
        if match is None or match.end() == at:
            raise ValueError("lone surrogate")
        at = match.end()


def _same(value: dict[str, Any]) -> dict[str, Any]:
    return value
