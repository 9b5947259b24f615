"""Data of a live view: the node's event stream and its list of queues, with reconnects.

Keeps a bounded history; does no drawing.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

from flyball.backoff import Backoff, Retries
from flyball.client.http import AWAY, Line, Place, Refused, path_of, reason_of

KEPT_SAMPLES = 120
# More than fit on a screen.
SHOWN_QUEUES = 50
QUEUES_EVERY_S = 2.0
MANY_QUEUES = 1000
# Sorting needs a pass over all queues of the node.
MANY_QUEUES_EVERY_S = 5.0
# Time limit of the node's answer.
ANSWER_S = 5.0
LONGEST_ANSWER_BYTES = 2**20
FORBIDDEN = (401, 403)
CONNECTING = "connecting"
MONITORS = {"monitoring", "administrator"}

_RETRIES = Backoff(first_s=1.0, max_s=5.0)

Sample = dict[str, Any]


class Sort(enum.Enum):
    """Sort orders of the queues."""

    RATE = "rate"
    BACKLOG = "backlog"
    NAME = "name"

    @property
    def next(self) -> Sort:
        """The next sort order, cyclically."""
        all_of_them = list(Sort)
        return all_of_them[(all_of_them.index(self) + 1) % len(all_of_them)]

    @property
    def query(self) -> dict[str, str]:
        """The query parameters for it."""
        match self:
            case Sort.RATE:
                return {"sort": "message_stats.publish_details.rate", "sort_reverse": "true"}
            case Sort.BACKLOG:
                return {"sort": "messages", "sort_reverse": "true"}
            case Sort.NAME:
                return {"sort": "name"}


@dataclass(slots=True)
class Seen:
    """Present knowledge of a node."""

    address: str
    sort: Sort = Sort.RATE
    # Oldest first. Samples before the connection have rates and gauges only.
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=KEPT_SAMPLES))
    queues: list[dict[str, Any]] = field(default_factory=list)
    queue_count: int = 0
    # Why there is no data; None while connected.
    problem: str | None = CONNECTING

    @property
    def last(self) -> Sample:
        """The latest sample; empty if there is none."""
        return self.samples[-1] if self.samples else {}

    def document(self) -> dict[str, Any]:
        """Return the present state as JSON."""
        return {**self.last, "queues": self.queues, "queue_count": self.queue_count}


class Feed:
    """Follows a node. `on_news` is called after each change."""

    def __init__(self, place: Place, seen: Seen, on_news: Callable[[], None]) -> None:
        self._place = place
        self._seen = seen
        self._on_news = on_news
        self._wants_queues = asyncio.Event()

    def sort_by(self, sort: Sort) -> None:
        """Change the sort order of the queues."""
        self._seen.sort = sort
        self._wants_queues.set()

    async def run(self) -> None:
        """Run until cancelled; report a lost node and reconnect. Raises Refused."""
        retries = Retries(_RETRIES)
        while True:
            received = 0
            try:
                async for _ in self.samples():
                    received += 1
                self._note_problem("the node has stopped")
            except Refused as error:
                if error.status in FORBIDDEN:
                    raise
                self._note_problem(str(error))
            except AWAY as error:
                self._note_problem(reason_of(error))
            if received:
                retries.reset()
            await asyncio.sleep(retries.next_delay_s())

    async def samples(self) -> AsyncGenerator[Sample, None]:
        """Yield samples as they arrive, and keep their data. Raises one of AWAY when the node is lost."""
        asking, listening = self._line(), Line(self._place)
        try:
            async with asyncio.timeout(ANSWER_S):
                topics = "overview,loops" if await self._may_see_loops(asking) else "overview"
                await self._ask_for_queues(asking)
            events = listening.events(f"/api/flyball/stream?topics={topics}&history=1")
            async with contextlib.aclosing(events) as following:
                asked_s = time.monotonic()
                while True:
                    try:
                        async with asyncio.timeout(ANSWER_S):
                            sample = await anext(following)
                    except StopAsyncIteration:
                        return
                    self._note(sample)
                    if self._wants_queues.is_set() or time.monotonic() - asked_s >= self._pause_s:
                        self._wants_queues.clear()
                        asked_s = time.monotonic()
                        async with asyncio.timeout(ANSWER_S):
                            await self._ask_for_queues(asking)
                    self._on_news()
                    yield sample
        finally:
            asking.close()
            listening.close()

    async def look_once(self) -> None:
        """Take one sample and the queues with rates. Raises one of AWAY."""
        async with contextlib.aclosing(self.samples()) as samples:
            if await anext(samples, None) is None:
                raise EOFError("the node has stopped")
        line = self._line()
        with contextlib.closing(line):
            # A second query: rates are differences to the first one.
            async with asyncio.timeout(ANSWER_S):
                await self._ask_for_queues(line)

    @property
    def _pause_s(self) -> float:
        return QUEUES_EVERY_S if self._seen.queue_count <= MANY_QUEUES else MANY_QUEUES_EVERY_S

    def _line(self) -> Line:
        return Line(self._place, longest_answer_bytes=LONGEST_ANSWER_BYTES)

    async def _may_see_loops(self, line: Line) -> bool:
        tags = (await line.get("/api/whoami"))["tags"]
        return bool(MONITORS & set(tags.split(",") if isinstance(tags, str) else tags))

    async def _ask_for_queues(self, line: Line) -> None:
        columns = "name,vhost,messages_ready,messages_unacknowledged,consumers,message_stats"
        path = path_of("queues", page=1, page_size=SHOWN_QUEUES, columns=columns, **self._seen.sort.query)
        page = await line.get(path)
        self._seen.queues = [_queue(queue) for queue in page["items"]]
        self._seen.queue_count = page["total_count"]

    def _note(self, sample: Sample) -> None:
        seen = self._seen
        history = sample.pop("history", [])
        newest_at = seen.last.get("at", 0.0)
        seen.samples.extend(one for one in history if newest_at < one["at"] < sample["at"])
        seen.samples.append(sample)
        seen.problem = None

    def _note_problem(self, problem: str) -> None:
        self._seen.problem = problem
        self._on_news()


def _queue(document: dict[str, Any]) -> dict[str, Any]:
    stats = document.get("message_stats", {})

    def rate(*names: str) -> float:
        return float(sum(stats.get(f"{name}_details", {}).get("rate", 0.0) for name in names))

    return {
        "vhost": document["vhost"],
        "name": document["name"],
        "ready": document.get("messages_ready", 0),
        "unacked": document.get("messages_unacknowledged", 0),
        "consumers": document.get("consumers", 0),
        "rates": {"publish": rate("publish"), "deliver": rate("deliver_get"), "ack": rate("ack")},
    }
