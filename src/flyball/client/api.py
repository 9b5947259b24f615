"""Blocking client of a node's HTTP API, without asyncio: for the command line, scripts and tests.

The resources are described in docs/reference/http-api.md.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

from flyball.client.http import AWAY, Answer, Line, Place, Refused, path_of, reason_of
from flyball.client.owner import find_token
from flyball.errors import FlyballError
from flyball.model import OWNER

DEFAULT_URL = "http://127.0.0.1:15672"
# Time limit of an answer.
TIME_LIMIT_S = 30.0
# Size of a list of half a million queues, with the fields that the command line uses.
LONGEST_ANSWER_BYTES = 64 * 2**20


class NoAnswer(FlyballError):
    """The node is unreachable or has not answered: the operation may or may not have been done."""

    def __init__(self, place: Place, reason: str) -> None:
        super().__init__(f"no answer from {place.shown}: {reason}")


class Api:
    """Blocking HTTP API client. Path segments are separate arguments and may contain any character.

    Every request raises Refused for an error response, and NoAnswer.
    """

    def __init__(self, place: Place, *, time_limit_s: float = TIME_LIMIT_S) -> None:
        self.place = place
        self.time_limit_s = time_limit_s
        self._line = Line(place, longest_answer_bytes=LONGEST_ANSWER_BYTES)
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._line.close()
        self._runner.close()

    def get(self, *parts: str, **query: object) -> Any:
        """Return the document at a path below /api."""
        return self.ask("GET", path_of(*parts, **query)).document

    def put(self, *parts: str, document: Any = None) -> Answer:
        return self.ask("PUT", path_of(*parts), document)

    def post(self, *parts: str, document: Any = None, time_limit_s: float | None = None) -> Any:
        """Return the response document."""
        return self.ask("POST", path_of(*parts), document, time_limit_s).document

    def delete(self, *parts: str, **query: object) -> Answer:
        return self.ask("DELETE", path_of(*parts, **query))

    def ask(self, method: str, path: str, document: Any = None, time_limit_s: float | None = None) -> Answer:
        """Send a request."""
        limit_s = self.time_limit_s if time_limit_s is None else time_limit_s
        try:
            return self._runner.run(self._ask(method, path, document, limit_s))
        except Refused:
            raise
        except AWAY as error:
            raise NoAnswer(self.place, reason_of(error)) from error

    async def _ask(self, method: str, path: str, document: Any, limit_s: float) -> Answer:
        async with asyncio.timeout(limit_s):
            return await self._line.ask(method, path, document)


def place_at(url: str = DEFAULT_URL) -> Place:
    """Return the address and credentials of a node.

    Credentials from the URL; otherwise the owner token of a local node, if it is readable, or guest. Raises
    ValueError.
    """
    place = Place(url)
    if place.has_user or not place.is_loopback:
        return place
    token = find_token()
    return place if token is None else Place(url, (OWNER, token))
