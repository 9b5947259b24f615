"""Live samples of a node as server-sent events: one per second, made once for all listeners.

A listener buffers one event. A slow reader misses events; one that does not read at all is disconnected.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from flyball.broker.engine.access import Access
from flyball.broker.engine.queue import QueueState
from flyball.broker.management.api.answers import Refused, mapped
from flyball.broker.management.api.context import ApiContext, Call, Right, Routes, has_right
from flyball.broker.management.domain_nodes import DomainNodes
from flyball.broker.management.flyball_api.admission import Admissions
from flyball.broker.management.flyball_api.domain import tree_of
from flyball.broker.management.inspection import COUNTS, alarms
from flyball.broker.management.middleware import cut
from flyball.broker.management.node_sampler import Sampler, failures_logged
from flyball.broker.management.slices import next_slice
from flyball.broker.management.totals import GAUGES, Totals
from flyball.broker.node.node import Node
from flyball.errors import FlyballError, InvalidArgument, NotPermitted
from flyball.model import User
from flyball.trace.schema import Kind

log = logging.getLogger(__name__)

# A listener that has not read for this long is disconnected.
STALL_S = 10.0
MAX_STREAMS = 100
# Concurrent streams per user, so that one user cannot use up all.
MAX_OF_A_USER = 20
MAX_TOPICS = 64
# Minimum interval between updates of the domain's state.
DOMAIN_S = 2.0
# Minimum interval between requests to other nodes.
ASK_S = 0.9

OVERVIEW, LOOPS, ADMISSION, DOMAIN, QUEUE = "overview", "loops", "admission", "domain", "queue:"
FOR_MONITORS = (LOOPS, ADMISSION, DOMAIN)
# Fields for users who may not see the whole node.
FOR_ALL = ("at", "node")
TOPICS = "overview, loops, admission, domain, queue:VHOST/NAME"

# Rates, and the counters that they sum.
RATES: Mapping[str, Sequence[str]] = {
    "publish": ("published",),
    "confirm": ("confirmed",),
    "deliver": ("delivered", "delivered_no_ack"),
    "ack": ("acknowledged",),
    "get": ("got", "got_no_ack"),
    "redeliver": ("redelivered",),
    "return": ("unroutable_returned",),
    "commits": ("store_commits",),
    "read_bytes": ("read_bytes",),
    "written_bytes": ("written_bytes",),
}

QUEUE_RATES: Mapping[str, Sequence[str]] = {
    "publish": ("published",),
    "deliver": ("delivered", "delivered_no_ack", "got", "got_no_ack"),
    "ack": ("acknowledged",),
}

LATENCIES = {"publish": Kind.PUT, "get": Kind.TAKE}


def routes(context: ApiContext, admissions: Admissions) -> Routes:
    """Return the route of the stream. Listeners get each sample until the node stops."""
    routes = Routes()
    feed = Feed(context.node, context.sampler, context.domain_nodes, admissions)
    context.sampler.on_sample.append(feed.wake)
    context.on_stop.append(feed.close)
    about = {"topics": f"comma-separated: {TOPICS}", "history": "1: include past samples in the first event"}

    @routes.get("/flyball/stream", query=about)
    async def stream(call: Call) -> Response:
        """Stream live samples of the node as server-sent events, one per second."""
        topics = topics_of(call.request.query_params.get("topics", OVERVIEW))
        check_topics(call.access, call.user, topics)
        wants_history = call.request.query_params.get("history") == "1"
        is_known = functools.partial(call.context.login.still_knows, call.request, call.user)
        listener = StreamListener(call.user, topics, wants_history, is_known)
        return EventStream(feed, feed.listen(listener))

    return routes


# Topics


def topics_of(text: str) -> tuple[str, ...]:
    """Parse the requested topics. Raises InvalidArgument."""
    topics = tuple(dict.fromkeys(topic for topic in text.split(",") if topic))
    if len(topics) > MAX_TOPICS:
        raise InvalidArgument(f"too many topics: at most {MAX_TOPICS}")
    for topic in topics:
        if topic not in (OVERVIEW, *FOR_MONITORS) and not (topic.startswith(QUEUE) and "/" in topic):
            raise InvalidArgument(f"unknown topic {topic!r}: use {TOPICS}")
    return topics


def queue_of(topic: str) -> tuple[str, str]:
    """Return vhost and name of a queue topic; both are percent-encoded in it."""
    text = topic.removeprefix(QUEUE)
    # An unencoded vhost "/" results in two slashes.
    vhost, _, name = ("/", "", text[2:]) if text.startswith("//") else text.partition("/")
    return unquote(vhost), unquote(name)


def check_topics(access: Access, user: User, topics: Iterable[str]) -> None:
    """Raise NotPermitted if the user may not receive one of the topics."""
    if has_right(user, Right.MONITORING):
        return
    if not has_right(user, Right.MANAGEMENT):
        raise NotPermitted(f"user '{user.name}' lacks the tag {Right.MANAGEMENT}")
    for topic in topics:
        if topic in FOR_MONITORS:
            raise NotPermitted(f"user '{user.name}' lacks the tag {Right.MONITORING}, which topic {topic} requires")
        if topic.startswith(QUEUE) and not access.may_enter(user.name, queue_of(topic)[0]):
            raise NotPermitted(f"user '{user.name}' has no permission in vhost '{queue_of(topic)[0]}'")


class StreamListener:
    """A listener with room for one event, the newest."""

    def __init__(
        self,
        user: User,
        topics: tuple[str, ...],
        wants_history: bool = False,
        is_known: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_known` returns whether the user is still logged in."""
        # As of the last check.
        self.user = user
        self.is_known = is_known
        self.topics = topics
        self.wants_history = wants_history
        self.is_new = True
        self._events: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._is_over = False

    @property
    def sees_node(self) -> bool:
        """Whether it may see the whole node: other users see their queues only."""
        return has_right(self.user, Right.MONITORING)

    def offer(self, event: bytes | None) -> None:
        """Offer an event; it replaces one that was not taken in time."""
        if not self._events.empty():
            self._events.get_nowait()
        self._events.put_nowait(event)

    def end(self) -> None:
        """End the stream."""
        self._is_over = True
        self.offer(None)

    async def take(self) -> bytes | None:
        """Return the next event; None at the end."""
        return None if self._is_over else await self._events.get()


class Latest:
    """The latest response to an expensive request, refreshed only on demand."""

    def __init__(self, node: Node, ask: Callable[[], Awaitable[Any]], min_s: float) -> None:
        self._node = node
        self._ask = ask
        self._min_s = min_s
        self._asked_s = -min_s
        self._is_asking = False
        self.answer: Any = None
        # Number of answers so far.
        self.number = 0

    def get(self) -> Any:
        """Return the latest answer, and start a refresh."""
        now_s = time.monotonic()
        if not self._is_asking and now_s - self._asked_s >= self._min_s:
            self._is_asking = True
            self._asked_s = now_s
            self._node.hub.spawn(self._refresh())
        return self.answer

    async def _refresh(self) -> None:
        with failures_logged("refreshing stream data"):
            try:
                self.answer = await self._ask()
                self.number += 1
            except FlyballError as error:
                log.debug("asking other nodes failed: %s", error)
            finally:
                self._is_asking = False


class Feed:
    """Makes the samples and offers them to all listeners."""

    def __init__(self, node: Node, sampler: Sampler, domain_nodes: DomainNodes, admissions: Admissions) -> None:
        self._node = node
        self._sampler = sampler
        self._domain_nodes = domain_nodes
        self._admissions = admissions
        self._listeners: set[StreamListener] = set()
        self._is_making = False
        # Answers of other nodes, by topic.
        self._elsewhere: dict[str, Latest] = {}
        self._domain = Latest(node, self._tree, DOMAIN_S)
        self._domain_reports = 0
        domain_nodes.provide("queue_brief", self._queue_here)
        domain_nodes.provide("loops_brief", self._loops_here)

    # Listeners

    def listen(self, listener: StreamListener) -> StreamListener:
        """Add a listener. Raises Refused if there are too many."""
        name = listener.user.name
        if len(self._listeners) >= MAX_STREAMS:
            raise Refused(503, f"{MAX_STREAMS} streams are already open: close one")
        if sum(other.user.name == name for other in self._listeners) >= MAX_OF_A_USER:
            raise Refused(429, f"user '{name}' already has {MAX_OF_A_USER} open streams: close one")
        self._listeners.add(listener)
        return listener

    def leave(self, listener: StreamListener) -> None:
        self._listeners.discard(listener)
        if not self._listeners:
            self._elsewhere.clear()

    @property
    def count(self) -> int:
        """Number of listeners."""
        return len(self._listeners)

    def close(self) -> None:
        """End all streams: the node is stopping."""
        for listener in self._listeners:
            listener.end()

    # Samples

    def wake(self) -> None:
        """Start sending a new sample if there are listeners, unless one is being sent."""
        if self._listeners and not self._is_making:
            self._is_making = True
            self._node.hub.spawn(self._send_all())

    async def _send_all(self) -> None:
        try:
            with failures_logged("making a stream sample"):
                await self.send_all()
        finally:
            self._is_making = False

    async def send_all(self) -> None:
        """Make a sample, each topic once, and offer it to all listeners."""
        access = self._node.hub.authority.access
        self._dismiss_those_without_right(access)
        # A listener added during this call gets the next sample: this one may lack its topics.
        listeners = list(self._listeners)
        wanted = {topic for listener in listeners for topic in listener.topics}
        self._forget_elsewhere(wanted)
        # Read once: an answer that arrives meanwhile goes into the next sample.
        is_domain_new, self._domain_reports = self._domain_reports != self._domain.number, self._domain.number
        parts = {DOMAIN: _json(self._domain.get())} if DOMAIN in wanted else {}
        for topic in wanted - {OVERVIEW, DOMAIN}:
            parts[topic] = _json(await self._about(topic))
            await next_slice()
        whole = self._overview()
        heads = {True: _json(whole)[:-1], False: _json({name: whole[name] for name in FOR_ALL})[:-1]}
        for listener in listeners:
            body = _body(heads[listener.sees_node], listener, parts, with_domain=is_domain_new or listener.is_new)
            if listener.is_new and listener.wants_history and listener.sees_node:
                body += f',"history":{await self._history()}'
            listener.is_new = False
            listener.offer(f"event: sample\ndata: {body}}}\n\n".encode())

    def _dismiss_those_without_right(self, access: Access) -> None:
        """End the streams of users who were deleted, logged out, or lost a right."""
        for listener in list(self._listeners):
            user = access.current(listener.user)
            try:
                if user is None or not listener.is_known():
                    raise NotPermitted(f"user '{listener.user.name}' is no longer logged in")
                check_topics(access, user, listener.topics)
                listener.user = user
            except NotPermitted as error:
                log.info("closed a stream: %s", error)
                listener.end()
                self.leave(listener)

    def _overview(self) -> dict[str, Any]:
        sampler, latest = self._sampler, self._sampler.latest
        gauges = {name: getattr(latest, name) for name in GAUGES}
        return {
            "at": latest.at_s,
            "node": self._node.hub.peering.name,
            "rates": {name: round(sum(map(sampler.rate, counters)), 3) for name, counters in RATES.items()},
            "gauges": {
                **gauges,
                "memory_bytes": self._node.resources.memory_bytes,
                "cpu_ratio": round(sampler.cpu_ratio, 4),
            },
            "latency_ms": {name: _rounded(sampler.latency_ms(kind)) for name, kind in LATENCIES.items()},
            "alarms": alarms(self._node),
        }

    async def _about(self, topic: str) -> Any:
        if topic == LOOPS:
            return [*await self._loops_here(), *self._reports_elsewhere(topic, "loops_brief", {})]
        if topic == ADMISSION:
            return [*await self._admissions.list(), *self._reports_elsewhere(topic, "admissions", {})]
        vhost, name = queue_of(topic)
        here = await self._queue_here(vhost, name)
        there: list[dict[str, Any]] = []
        if self._node.hub.directory.find(vhost, name) is not None:
            there = self._reports_elsewhere(topic, "queue_brief", {"vhost": vhost, "name": name})
        return together([*here, *there])

    def _reports_elsewhere(self, topic: str, what: str, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the other nodes' latest answers for a topic."""
        if not self._node.membership.others:
            return []

        async def ask() -> list[dict[str, Any]]:
            answers = await self._domain_nodes.ask_others(what, arguments)
            return [each for answer in answers.values() for each in answer]

        latest = self._elsewhere.get(topic)
        if latest is None:
            latest = self._elsewhere[topic] = Latest(self._node, ask, ASK_S)
        found: list[dict[str, Any]] = latest.get() or []
        return found

    def _forget_elsewhere(self, wanted: set[str]) -> None:
        for topic in self._elsewhere.keys() - wanted:
            del self._elsewhere[topic]

    async def _tree(self) -> Any:
        return await tree_of(self._node)

    # Answers for other nodes

    async def _loops_here(self) -> list[dict[str, Any]]:
        now = time.time()
        return await mapped(self._node.hub.loops.all(), lambda loop: loop.brief(now))

    async def _queue_here(self, vhost: str, name: str) -> list[dict[str, Any]]:
        """Return the state of a queue; empty if it is not served here."""
        state: QueueState | None = self._node.hub.broker.engine.find_queue(name, vhost)
        if state is None:
            return []
        counters = {rate: sum(COUNTS[name](state) for name in names) for rate, names in QUEUE_RATES.items()}
        rates = self._sampler.rates_of("stream", state.queue.id, counters)
        return [
            {
                "vhost": vhost,
                "name": name,
                **{name: COUNTS[name](state) for name in ("ready", "unacked", "consumers")},
                "rates": {rate: round(value, 3) for rate, value in rates.items()},
            }
        ]

    async def _history(self) -> str:
        """Return the recent samples, without topics, as JSON."""
        history = list(self._sampler.history)
        texts = await mapped(range(1, len(history)), lambda place: _json(past_sample(history, place)))
        return f"[{','.join(texts)}]"


def past_sample(history: Sequence[Totals], place: int) -> dict[str, Any]:
    """Return a sample of the history, without fields that are not kept; rates are over five seconds."""
    now, before = history[place], history[max(0, place - 5)]
    passed_s = max(now.at_s - before.at_s, 1e-9)

    def rate(counters: Sequence[str]) -> float:
        grown: int = sum(getattr(now, name) - getattr(before, name) for name in counters)
        return round(grown / passed_s, 3)

    return {
        "at": now.at_s,
        "rates": {name: rate(counters) for name, counters in RATES.items()},
        "gauges": {name: getattr(now, name) for name in GAUGES},
    }


def together(members: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the merged state of a queue's members; None if there are none."""
    if not members:
        return None
    first = members[0]
    return {
        **first,
        **{name: sum(member[name] for member in members) for name in ("ready", "unacked", "consumers")},
        "rates": {name: round(sum(member["rates"][name] for member in members), 3) for name in first["rates"]},
    }


def _body(head: str, listener: StreamListener, parts: Mapping[str, str], *, with_domain: bool) -> str:
    """Return the document for a listener, without the final brace."""
    texts = [head]
    for topic in (LOOPS, ADMISSION, DOMAIN):
        if topic in listener.topics and (topic != DOMAIN or (with_domain and parts[topic] != "null")):
            texts.append(f'"{topic}":{parts[topic]}')
    queues = [
        f"{_json(topic.removeprefix(QUEUE))}:{parts[topic]}" for topic in listener.topics if topic.startswith(QUEUE)
    ]
    if queues:
        texts.append(f'"queue":{{{",".join(queues)}}}')
    return ",".join(texts)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _rounded(numbers: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in numbers.items()}


class EventStream(StreamingResponse):
    """Sends events until the client disconnects, the stream ends, or the client does not read."""

    def __init__(self, feed: Feed, listener: StreamListener) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(_events(listener), 200, headers, "text/event-stream; charset=utf-8")
        self._feed = feed
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(STALL_S):
                await send(message)

        name = self._listener.user.name
        try:
            await super().__call__(scope, receive, send_in_time)
        except TimeoutError:
            log.warning("disconnected a stream of user '%s': not read for %g s", name, STALL_S)
            cut(scope)
        finally:
            self._feed.leave(self._listener)


async def _events(listener: StreamListener) -> AsyncIterator[bytes]:
    # Browsers report the connection as open with the first byte.
    yield b": flyball\n\n"
    while (event := await listener.take()) is not None:
        yield event
