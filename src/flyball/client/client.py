"""The asynchronous client of a Flyball node."""

from __future__ import annotations

import asyncio
import json
import math
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from flyball.backoff import Backoff
from flyball.broker.wire import amqp
from flyball.broker.wire.amqp import Method, Value
from flyball.client.address import NodeAddress
from flyball.client.amqp import Connection
from flyball.client.consumer import Consumer, queue_named
from flyball.client.errors import ConnectionFailed, ConnectionLost, InvalidValue, error_of_api
from flyball.client.gets import consume_ready, consume_until, get_messages
from flyball.client.http import AWAY, Line, Place, Refused, path_of, reason_of
from flyball.client.link import Link
from flyball.client.messages import (
    Content,
    Draft,
    ReceivedMessage,
    batches,
    content_of,
    listed,
    selection,
    with_copies,
)
from flyball.client.requests import Requests
from flyball.client.topics import ALL, Topic, subscribe
from flyball.client.values import MAX_LONG, check_int, check_name, check_seconds
from flyball.errors import InvalidName, QueueNotFound
from flyball.model import Order

DEFAULT_ADDRESS = "127.0.0.1:5672"
DEFAULT_TIME_LIMIT_S = 30.0
DEFAULT_SILENCE_LIMIT_S = 20.0

# Maximum messages per call.
MAX_TAKEN = 10_000
# Maximum ids per call.
MAX_IDS = 100_000

_LONGEST_ANSWER_BYTES = 64 * 2**20

M = TypeVar("M", bound=Method)


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue as described by the node."""

    name: str
    # Ready messages.
    messages: int
    consumers: int


# A queue: its name, or a Queue returned by this client.
QueueRef = str | Queue


class Client:
    """A client of one node, used with `async with Client.connect(...) as client`.

    Calls may run concurrently. Every call has a time limit (`time_limit_s`) and raises RequestTimeout beyond it.
    After a lost connection the client reconnects; calls meanwhile wait for it, within their limits. A pending call is
    repeated if it only reads, and raises ConnectionLost otherwise: its outcome is unknown.
    """

    def __init__(self, link: Link, http: Place | None) -> None:
        self._link = link
        self._http = http
        self._line: Line | None = None
        self._asking = asyncio.Lock()
        self._requests: Requests | None = None
        self._opening_requests = asyncio.Lock()

    @classmethod
    def connect(
        cls,
        address: str = DEFAULT_ADDRESS,
        *,
        user: str | None = None,
        password: str | None = None,
        vhost: str | None = None,
        http_url: str | None = None,
        tls: ssl.SSLContext | None = None,
        time_limit_s: float = DEFAULT_TIME_LIMIT_S,
        silence_limit_s: float = DEFAULT_SILENCE_LIMIT_S,
        backoff: Backoff | None = None,
    ) -> Self:
        """Return a client that connects when it is entered or opened.

        The address is `host:port` or `amqp://user:password@host:port/vhost`, with `amqps` for TLS; the default user
        is guest. Operations that AMQP lacks use the node's HTTP API, at the address that the node announces or at
        `http_url`, as the same user unless that URL names another. A connection that is silent for `silence_limit_s`
        is closed.
        """
        node = NodeAddress.parse(address, user=user, password=password, vhost=vhost, tls=tls)
        try:
            http = None if http_url is None else Place(http_url, (node.user, node.password.encode()))
        except ValueError as error:
            raise InvalidValue(f"http_url: {error}") from None
        link = Link(
            node,
            time_limit_s=check_seconds("time_limit_s", time_limit_s, math.inf, above=0),
            silence_limit_s=check_seconds("silence_limit_s", silence_limit_s, math.inf, above=0),
            backoff=backoff or Backoff(),
        )
        return cls(link, http)

    # Lifecycle

    async def open(self) -> None:
        """Connect. Raises ConnectionFailed, and NotPermitted or CommandRefused if access is refused."""
        await self._link.open()

    async def close(self) -> None:
        """Disconnect. Unacked messages of consumers are requeued. May be called twice."""
        await self._link.close()
        if self._line is not None:
            self._line.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def vhost(self) -> str:
        """The vhost in use."""
        return self._link.address.vhost

    async def ping(self, *, time_limit_s: float | None = None) -> float:
        """Return the round-trip time to the node, in seconds."""
        async with self._link.time_limit("ping", time_limit_s):
            # Not the loop's time: uvloop's has a resolution of a millisecond.
            started = time.perf_counter()
            await self._ask(lambda number: amqp.BasicQos(number, 0, 0, False), amqp.BasicQosOk, repeatable=True)
            return time.perf_counter() - started

    async def http_place(self, *, time_limit_s: float | None = None) -> Place:
        """Return the address and credentials of the node's HTTP API, for operations without a method here."""
        async with self._link.time_limit("http_place", time_limit_s):
            return await self._place()

    async def status(self, *, time_limit_s: float | None = None) -> dict[str, Any]:
        """Return the state of the node and its queues. Requires the tag monitoring."""
        found: dict[str, Any] = await self._api("GET", path_of("flyball", "status"), "status", time_limit_s)
        return found

    # Queues

    async def create_queue(
        self, name: str, *, arguments: dict[str, Any] | None = None, time_limit_s: float | None = None
    ) -> Queue:
        """Create a durable queue unless it exists. Raises CommandRefused if it exists with other `arguments`."""
        declare = partial(_declaration, check_name(name), arguments or {}, False)
        async with self._link.time_limit("create_queue", time_limit_s):
            return _queue_of(await self._ask(declare, amqp.QueueDeclareOk, repeatable=True))

    async def delete_queue(self, queue: QueueRef, *, time_limit_s: float | None = None) -> int:
        """Delete a queue and its messages; return the number of ready ones. The queue need not exist."""
        name = _name_of(queue)
        async with self._link.time_limit("delete_queue", time_limit_s):
            answer = await self._ask(
                lambda number: amqp.QueueDelete(number, name, False, False, False),
                amqp.QueueDeleteOk,
                repeatable=True,
            )
        return answer.message_count

    async def get_queue(self, queue: QueueRef, *, time_limit_s: float | None = None) -> Queue:
        """Return a queue with its current counts. Raises QueueNotFound."""
        async with self._link.time_limit("get_queue", time_limit_s):
            return await self._get_queue(_name_of(queue))

    async def get_queues(self, *, time_limit_s: float | None = None) -> list[Queue]:
        """Return all queues of the vhost. Requires the tag management."""
        path = path_of("queues", self._link.address.vhost, columns="name,messages_ready,consumers")
        found = await self._api("GET", path, "get_queues", time_limit_s)
        return [Queue(queue["name"], queue.get("messages_ready", 0), queue.get("consumers", 0)) for queue in found]

    async def purge(self, queue: QueueRef, *, time_limit_s: float | None = None) -> int:
        """Delete all ready messages; return their number. Raises QueueNotFound."""
        name = _name_of(queue)
        async with self._link.time_limit("purge", time_limit_s):
            answer = await self._ask(lambda number: amqp.QueuePurge(number, name, False), amqp.QueuePurgeOk)
        return answer.message_count

    # Put

    async def put(
        self,
        queue: QueueRef,
        body: bytes | str,
        *,
        receiver: int | None = None,
        context: int | None = None,
        priority: int = 0,
        ttl_s: float | None = None,
        persistent: bool = True,
        properties: bytes = b"",
        sender: int | None = None,
        time_limit_s: float | None = None,
    ) -> None:
        """Put a message into a queue; on return it is committed. The parameters are those of a Draft.

        Raises QueueNotFound, MessageRefused if the queue is full, and ConnectionLost: then the outcome is unknown.
        """
        draft = Draft(body, receiver, context, priority, ttl_s, persistent, properties, sender)
        async with self._link.time_limit("put", time_limit_s):
            await self._publish(_name_of(queue), [content_of(draft)])

    async def put_many(
        self, queue: QueueRef, drafts: Iterable[Draft | bytes | str], *, time_limit_s: float | None = None
    ) -> int:
        """Put many messages, in order; on return all are committed. Return their number.

        They are published in batches of 1000 or one megabyte. If one fails, earlier ones are stored. The time limit
        applies to each batch. `drafts` may be a generator: at most one batch of it is in memory.
        """
        name, count = _name_of(queue), 0
        for batch in batches(drafts):
            async with self._link.time_limit("put_many", time_limit_s):
                await self._publish(name, batch)
            count += len(batch)
        return count

    async def put_to_queues(
        self,
        queues: Sequence[QueueRef],
        body: bytes | str,
        *,
        receiver: int | None = None,
        context: int | None = None,
        priority: int = 0,
        ttl_s: float | None = None,
        persistent: bool = True,
        properties: bytes = b"",
        sender: int | None = None,
        time_limit_s: float | None = None,
    ) -> None:
        """Put a message into each of the queues, in one transaction. Raises QueueNotFound if one does not exist."""
        names = [_name_of(queue) for queue in queues]
        if not names:
            raise InvalidValue("no queue given: use at least one")
        draft = Draft(body, receiver, context, priority, ttl_s, persistent, properties, sender)
        content = with_copies(content_of(draft), names[1:])
        async with self._link.time_limit("put_to_queues", time_limit_s):
            for name in names:
                await self._get_queue(name)
            await self._publish(names[0], [content])

    async def _publish(self, queue: str, contents: list[Content]) -> None:
        await self._link.run(lambda connection: connection.publish(("put", queue), queue, contents))

    # Requests and responses

    async def send_request_response(
        self,
        queue: QueueRef,
        body: bytes | str,
        *,
        context: int | None = None,
        priority: int = 0,
        properties: bytes = b"",
        time_limit_s: float | None = None,
    ) -> ReceivedMessage:
        """Put a request into a queue and return the response (RPC).

        The consumer answers with `reply`. Raises QueueNotFound, ConnectionLost, and RequestTimeout without a
        response: then the request is removed, unless it was already delivered.
        """
        limit_s = self._link.limit_s(time_limit_s)
        ttl_s = None if math.isinf(limit_s) else limit_s
        draft = Draft(body, None, context, priority, ttl_s, False, properties)
        name = _name_of(queue)

        async def ask(connection: Connection) -> ReceivedMessage:
            async with self._opening_requests:
                if self._requests is None or self._requests.is_over:
                    self._requests = await Requests.on(connection)
            return await self._requests.ask(name, draft)

        async with self._link.time_limit("send_request_response", limit_s):
            return await self._link.run(ask)

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes | str,
        *,
        properties: bytes = b"",
        time_limit_s: float | None = None,
    ) -> None:
        """Answer a request. A response that is no longer awaited is dropped."""
        if request.reply_to is None:
            raise InvalidValue("the message is not a request: it has no reply_to")
        reply_to = request.reply_to
        draft = Draft(body, None, request.context, request.priority, None, False, properties)
        content = content_of(draft, correlation_id=request.correlation_id)

        async with self._link.time_limit("reply", time_limit_s):
            try:
                await self._link.run(lambda connection: connection.publish("replies", reply_to, [content]))
            except QueueNotFound:
                # A direct reply is returned even if it was delivered.
                return

    # Take

    async def take(
        self,
        queue: QueueRef,
        *,
        order: Order | None = None,
        context: int | None = None,
        sender: int | None = None,
        receiver: int | None = None,
        wait_s: float = 0.0,
        time_limit_s: float | None = None,
    ) -> ReceivedMessage | None:
        """Remove and return a message; None if none is ready or arrives within `wait_s`.

        Without a selection it is the first one of the queue. `order` selects which comes first; the other parameters
        filter by context, sender, or receiver (including messages without one). It does not poll. `wait_s` is added
        to the time limit. With a filter and no wait, a message that the node must read from its store, or that is on
        another node, may be missed: use a short `wait_s`.

        The message is requeued if the call is cancelled, or the connection is lost before the ack.
        """
        found = await self.take_many(
            queue,
            1,
            order=order,
            context=context,
            sender=sender,
            receiver=receiver,
            wait_s=wait_s,
            time_limit_s=time_limit_s,
        )
        return found[0] if found else None

    async def take_many(
        self,
        queue: QueueRef,
        most: int,
        *,
        order: Order | None = None,
        context: int | None = None,
        sender: int | None = None,
        receiver: int | None = None,
        wait_s: float = 0.0,
        time_limit_s: float | None = None,
    ) -> list[ReceivedMessage]:
        """Remove and return up to `most` messages (at most 10000); otherwise like `take`.

        Waits for the first message only.
        """
        name = _name_of(queue)
        wanted = selection(order, context, sender, receiver)
        check_int("most", most, 1, MAX_TAKEN)
        give_up_at = asyncio.get_running_loop().time() + check_seconds("wait_s", wait_s, math.inf)
        found: list[ReceivedMessage] = []
        async with self._link.time_limit("take", time_limit_s, more_s=wait_s):
            if not wanted and most > 1:
                found = await self._link.run(
                    lambda connection: consume_ready(self._link, connection, name, most), repeatable=True
                )
            if not wanted and not found:
                # Messages from the store or another node are missed by this call.
                found = await self._link.run(lambda connection: get_messages(connection, name, most), repeatable=True)
            if found or not (wanted or wait_s):
                return found
            return await self._link.run(
                lambda connection: consume_until(self._link, connection, name, most, wanted, give_up_at),
                repeatable=True,
            )

    # Browse

    async def peek(
        self,
        queue: QueueRef,
        *,
        order: Order | None = None,
        context: int | None = None,
        sender: int | None = None,
        receiver: int | None = None,
        time_limit_s: float | None = None,
    ) -> ReceivedMessage | None:
        """Return the message that `take` would return, without removing it. Raises QueueNotFound."""
        name = _name_of(queue)
        path = self._messages_path(name, "first", **selection(order, context, sender, receiver))
        found = await self._api("GET", path, "peek", time_limit_s, name)
        return None if found is None else listed(found)

    async def read_messages(
        self, queue: QueueRef, *, most: int | None = None, after_id: int = 0, time_limit_s: float | None = None
    ) -> list[ReceivedMessage]:
        """Return the ready messages with ids above `after_id`, oldest first, without removing them.

        All of them, or the first `most`. For a long queue use `iterate_messages`. The time limit applies to each
        page.
        """
        return [
            message
            async for message in self.iterate_messages(queue, most=most, after_id=after_id, time_limit_s=time_limit_s)
        ]

    async def iterate_messages(
        self, queue: QueueRef, *, most: int | None = None, after_id: int = 0, time_limit_s: float | None = None
    ) -> AsyncIterator[ReceivedMessage]:
        """Yield the messages of a queue like `read_messages`, page by page."""
        name = _name_of(queue)
        query: dict[str, int] = {"after": check_int("after_id", after_id, 0, MAX_LONG)}
        if most is not None:
            query["limit"] = check_int("most", most, 0, MAX_LONG)
        line = Line(await self._place())
        rest = b""
        try:
            chunks = line.chunks(self._messages_path(name, **query), "application/x-ndjson")
            while True:
                async with self._link.time_limit("read_messages", time_limit_s):
                    try:
                        chunk = await anext(chunks, b"")
                    except AWAY as error:
                        raise self._failed(error, name) from error
                if not chunk:
                    break
                *lines, rest = (rest + chunk).split(b"\n")
                for text in lines:
                    yield listed(json.loads(text))
        finally:
            line.close()

    async def list_ids(
        self, queue: QueueRef, *, after_id: int = 0, most: int = MAX_IDS, time_limit_s: float | None = None
    ) -> list[int]:
        """Return the ids of the messages that `read_messages` would return, at most 100000.

        Ids are ascending. All messages up to the last id are committed: reading them again returns the same, unless
        they were removed or have expired.
        """
        name = _name_of(queue)
        query = {
            "after": check_int("after_id", after_id, 0, MAX_LONG),
            "limit": check_int("most", most, 1, MAX_IDS),
        }
        found = await self._api("GET", self._messages_path(name, "ids", **query), "list_ids", time_limit_s, name)
        ids: list[int] = found["ids"]
        return ids

    async def remove_messages(self, queue: QueueRef, *, up_to_id: int, time_limit_s: float | None = None) -> int:
        """Delete all ready messages up to an id; return their number.

        On return the deletion is durable.
        """
        name = _name_of(queue)
        path = self._messages_path(name, up_to=check_int("up_to_id", up_to_id, 0, MAX_LONG))
        removed: int = (await self._api("DELETE", path, "remove_messages", time_limit_s, name))["removed"]
        return removed

    def consume(
        self,
        queue: QueueRef,
        *,
        prefetch: float = 10,
        order: Order | None = None,
        context: int | None = None,
        sender: int | None = None,
        receiver: int | None = None,
    ) -> Consumer:
        """Return a consumer: `async with client.consume(queue) as consumer: async for delivery in consumer: ...`.

        At most `prefetch` messages are unacked; a fraction holds on average, 0 pauses deliveries. The selection is
        that of `take`.
        """
        return Consumer(
            self._link, queue_named(_name_of(queue)), selection(order, context, sender, receiver), prefetch
        )

    # Topics

    def topic(self, name: str) -> Topic:
        """Return a topic to publish to: `await client.topic("news").publish("it rains")`."""
        return Topic(self._link, check_name(name))

    def subscribe(
        self, topic: str, *, durable: str | None = None, pattern: str = ALL, prefetch: float = 10
    ) -> Consumer:
        """Return a consumer of messages published to a topic, or to one below it, whose key matches the pattern.

        A `durable` subscription receives everything published since it was created, also while it had no consumer;
        its consumers share the messages. A new pattern is added to its earlier ones. Without `durable` the consumer
        receives what is published while it is open and connected. Opening it raises TopicNotFound.
        """
        subscription = "" if durable is None else check_name(durable)
        check_name(f"{topic}/{subscription}")
        if subscription.startswith("~"):
            raise InvalidName("the name of a durable subscription must not begin with ~")
        find_queue = partial(subscribe, topic=check_name(topic), subscription=subscription, pattern=pattern)
        return Consumer(self._link, find_queue, {}, prefetch)

    async def create_topic(self, name: str, *, parent: str | None = None, time_limit_s: float | None = None) -> None:
        """Create a topic unless it exists. Messages published to it also reach subscribers of the parent."""
        document = {} if parent is None else {"parent": check_name(parent)}
        await self._api("PUT", self._topic_path(name), "create_topic", time_limit_s, parent or name, document)

    async def delete_topic(self, name: str, *, time_limit_s: float | None = None) -> None:
        """Delete a topic. Raises CommandRefused while it has children or durable subscriptions."""
        await self._api("DELETE", self._topic_path(name), "delete_topic", time_limit_s, name)

    async def unsubscribe(self, topic: str, durable: str, *, time_limit_s: float | None = None) -> None:
        """Delete a durable subscription with its messages. Raises CommandRefused while it has a consumer."""
        path = self._topic_path(topic, "subscriptions", check_name(durable))
        await self._api("DELETE", path, "unsubscribe", time_limit_s, topic)

    # Internals

    async def _ask(self, method: Callable[[int], Method], kind: type[M], *, repeatable: bool = False) -> M:
        """Send a method, built for a channel number, and return its answer."""

        async def ask(connection: Connection) -> M:
            channel = await connection.channel_for("requests")
            return await channel.call(method(channel.number), kind)

        return await self._link.run(ask, repeatable=repeatable)

    async def _get_queue(self, name: str) -> Queue:
        return _queue_of(await self._ask(partial(_declaration, name, {}, True), amqp.QueueDeclareOk, repeatable=True))

    async def _place(self) -> Place:
        """Return the address of the node's HTTP API."""
        if self._http is None:
            connection = await self._link.connected()
            port = connection.server_properties.get("flyball_http_port")
            self._http = self._link.address.http_place(port if isinstance(port, int) else None)
        return self._http

    async def _api(
        self,
        method: str,
        path: str,
        operation: str,
        time_limit_s: float | None,
        subject: str = "",
        document: object = None,
    ) -> Any:
        """Send a request to the HTTP API and return its document. A lost connection is reopened once."""
        async with self._link.time_limit(operation, time_limit_s), self._asking:
            place = await self._place()
            if self._line is None:
                self._line = Line(place, longest_answer_bytes=_LONGEST_ANSWER_BYTES)
            try:
                return (await self._line.ask(method, path, document)).document
            except AWAY as error:
                raise self._failed(error, subject) from error

    def _failed(self, error: BaseException, subject: str) -> Exception:
        if isinstance(error, Refused):
            return error_of_api(error, subject)
        where = "the HTTP API" if self._http is None else self._http.shown
        if isinstance(error, ConnectionRefusedError):
            return ConnectionFailed(where, reason_of(error))
        return ConnectionLost("a request", f"{where}: {reason_of(error)}")

    def _messages_path(self, queue: str, *parts: str, **query: object) -> str:
        return path_of("flyball", "queues", self._link.address.vhost, queue, "messages", *parts, **query)

    def _topic_path(self, topic: str, *parts: str) -> str:
        return path_of("flyball", "topics", self._link.address.vhost, check_name(topic), *parts)


def _declaration(name: str, arguments: dict[str, Value], is_passive: bool, number: int) -> Method:
    return amqp.QueueDeclare(number, name, is_passive, True, False, False, False, arguments)


def _queue_of(answer: amqp.QueueDeclareOk) -> Queue:
    return Queue(answer.queue, answer.message_count, answer.consumer_count)


def _name_of(queue: QueueRef) -> str:
    return queue.name if isinstance(queue, Queue) else check_name(queue)
