"""Reads a node's stream as a browser does, and reports loops to a node as a client does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from flyball.control.certificate import Certificate, certificate_summary
from tests.nodes import ANSWER_LIMIT_S

GUEST = ("guest", "guest")

SOUND = certificate_summary(Certificate({"kind": "i"}, "y = 2 u", (0.5 + 0j,), 0.5, 4.0, 3.0))
SHAKY = certificate_summary(Certificate({"kind": "i"}, "y = 2 u", (0.5 + 0j,), 0.5, 1.3, 3.0))

FACTS: dict[str, Any] = {
    "title": "orders",
    "about": "Holds 400 messages a second.",
    "measures": {"what": "messages", "unit": "messages/s"},
    "acts": {"what": "window", "unit": "messages"},
    "law": "i",
    "gains": {"ki": 0.25},
    "limits": {"lowest": 1.0, "highest": 100.0},
    "sample_time_s": 1.0,
    "certificate": SOUND,
    "client": "host-1",
}


def report(at: float, value: float = 390.0, **others: Any) -> dict[str, Any]:
    row = {"at": at, "setpoint": 400.0, "measurement": value, "action": 7.5}
    return {"facts": FACTS, "is_shadow": False, "samples": [row], **others}


class Stream:
    """The samples of a stream, one after the other."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.iter_lines()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for line in self._lines:
            if line.startswith("data: "):
                sample: dict[str, Any] = json.loads(line.removeprefix("data: "))
                yield sample

    def next(self) -> dict[str, Any]:
        return next(iter(self))

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the first sample for which it holds."""
        for sample in self:
            if condition(sample):
                return sample
        raise AssertionError("the stream has ended")


@contextmanager
def streaming(
    base: httpx.URL | str, topics: str = "overview", auth: tuple[str, str] = GUEST, **more: str
) -> Iterator[Stream]:
    """Read a stream; it is closed at the end."""
    with (
        httpx.Client(auth=auth, timeout=ANSWER_LIMIT_S) as client,
        client.stream("GET", f"{str(base).rstrip('/')}/stream", params={"topics": topics, **more}) as response,
    ):
        yield Stream(response)
