"""The synchronous client: the asynchronous one, run on an event loop in a thread of its own.

Names, arguments, results and errors are the same. Written by scripts/generate-sync-client: do not edit.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, Self, overload

from flyball.backoff import Backoff
from flyball.client import client as _client
from flyball.client import consumer as _consumer
from flyball.client import factory as _factory
from flyball.client import topics as _topics
from flyball.client.client import (
    DEFAULT_ADDRESS,
    DEFAULT_SILENCE_LIMIT_S,
    DEFAULT_TIME_LIMIT_S,
    MAX_IDS,
    Queue,
    QueueRef,
)
from flyball.client.consumer import Outcome
from flyball.client.http import Place
from flyball.client.loop_thread import LoopThread
from flyball.client.messages import Draft, ReceivedMessage
from flyball.client.topics import ALL
from flyball.model import Order


class Delivery:
    """A delivered message, to be settled once: by `ack`, `requeue` or `drop`.

    Raises LeaseLost if its connection is lost or its consumer closed: the message is then requeued and delivered
    again. AMQP does not confirm acks: if the node crashes right after one, the message may be delivered again.
    """

    def __init__(self, inner: _consumer.Delivery, loop_thread: LoopThread) -> None:
        self._inner = inner
        self._loop_thread = loop_thread

    @property
    def message(self) -> ReceivedMessage:
        return self._inner.message

    def ack(self, *, time_limit_s: float | None = None) -> None:
        """Ack: remove the message."""
        self._loop_thread.call(self._inner.ack(time_limit_s=time_limit_s))

    def requeue(self, *, time_limit_s: float | None = None) -> None:
        """Requeue the message at its old position."""
        self._loop_thread.call(self._inner.requeue(time_limit_s=time_limit_s))

    def drop(self, *, time_limit_s: float | None = None) -> None:
        """Reject the message: remove or dead-letter it."""
        self._loop_thread.call(self._inner.drop(time_limit_s=time_limit_s))


class Consumer:
    """Deliveries of one queue, as an iterator inside an `async with` block.

    After a lost connection it subscribes again when the next delivery is requested. At the end of the block unsettled
    messages are requeued. Several tasks may share a consumer.
    """

    def __init__(self, inner: _consumer.Consumer, loop_thread: LoopThread) -> None:
        self._inner = inner
        self._loop_thread = loop_thread

    @property
    def prefetch(self) -> float:
        """The maximum number of unsettled messages."""
        return self._inner.prefetch

    def __enter__(self) -> Self:
        self._loop_thread.call(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop consuming and requeue unsettled messages. May be called twice."""
        self._loop_thread.call(self._inner.close())

    def stop(self) -> None:
        """Stop deliveries, and requeue those not returned by `next` yet; earlier ones can still be settled.

        From now on `next` returns None. May be called twice.
        """
        self._loop_thread.call(self._inner.stop())

    def wait_settled(self) -> None:
        """Wait until all returned deliveries are settled, or can no longer be."""
        self._loop_thread.call(self._inner.wait_settled())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        delivery = self.next()
        if delivery is None:
            raise StopIteration
        return delivery

    def next(self, wait_s: float | None = None) -> Delivery | None:
        """Return the next delivery; None if none arrives within `wait_s`, or when the consumer is closed.

        Cancellation-safe. Raises QueueNotFound when the queue is deleted.
        """
        found = self._loop_thread.call(self._inner.next(wait_s))
        return None if found is None else Delivery(found, self._loop_thread)

    def set_prefetch(self, prefetch: float, *, time_limit_s: float | None = None) -> None:
        """Change the maximum number of unsettled messages; a fraction holds on average."""
        self._loop_thread.call(self._inner.set_prefetch(prefetch, time_limit_s=time_limit_s))

    def settle(self, deliveries: Iterable[Delivery], outcome: Outcome, *, time_limit_s: float | None = None) -> None:
        """Settle several deliveries of this consumer together. Raises LeaseLost, and settles none, if one is lost."""
        self._loop_thread.call(
            self._inner.settle([each._inner for each in deliveries], outcome, time_limit_s=time_limit_s)
        )


class Topic:
    """A topic: messages published to it reach its subscribers and those of its ancestors."""

    def __init__(self, inner: _topics.Topic, loop_thread: LoopThread) -> None:
        self._inner = inner
        self._loop_thread = loop_thread

    @property
    def name(self) -> str:
        return self._inner.name

    def publish(
        self,
        body: bytes | str,
        *,
        key: str = "",
        context: int | None = None,
        priority: int = 0,
        ttl_s: float | None = None,
        persistent: bool = True,
        properties: bytes = b"",
        time_limit_s: float | None = None,
    ) -> bool:
        """Publish a message; on return it is committed for every subscriber. Return whether there is one.

        Subscribers match patterns against the `key`: words separated by dots. Raises TopicNotFound.
        """
        return self._loop_thread.call(
            self._inner.publish(
                body,
                key=key,
                context=context,
                priority=priority,
                ttl_s=ttl_s,
                persistent=persistent,
                properties=properties,
                time_limit_s=time_limit_s,
            )
        )


class Client:
    """A client of one node, used with `with Client.connect(...) as client`.

    Calls may run concurrently. Every call has a time limit (`time_limit_s`) and raises RequestTimeout beyond it.
    After a lost connection the client reconnects; calls meanwhile wait for it, within their limits. A pending call is
    repeated if it only reads, and raises ConnectionLost otherwise: its outcome is unknown.
    """

    def __init__(self, inner: _client.Client, loop_thread: LoopThread) -> None:
        self._inner = inner
        self._loop_thread = loop_thread

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
        return cls(
            _client.Client.connect(
                address,
                user=user,
                password=password,
                vhost=vhost,
                http_url=http_url,
                tls=tls,
                time_limit_s=time_limit_s,
                silence_limit_s=silence_limit_s,
                backoff=backoff,
            ),
            LoopThread(),
        )

    def open(self) -> None:
        """Connect. Raises ConnectionFailed, and NotPermitted or CommandRefused if access is refused."""
        self._loop_thread.start()
        try:
            self._loop_thread.call(self._inner.open())
        except BaseException:
            self._loop_thread.stop()
            raise

    def close(self) -> None:
        """Disconnect. Unacked messages of consumers are requeued. May be called twice."""
        if not self._loop_thread.is_running:
            return
        try:
            self._loop_thread.call(self._inner.close())
        finally:
            self._loop_thread.stop()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def vhost(self) -> str:
        """The vhost in use."""
        return self._inner.vhost

    def ping(self, *, time_limit_s: float | None = None) -> float:
        """Return the round-trip time to the node, in seconds."""
        return self._loop_thread.call(self._inner.ping(time_limit_s=time_limit_s))

    def http_place(self, *, time_limit_s: float | None = None) -> Place:
        """Return the address and credentials of the node's HTTP API, for operations without a method here."""
        return self._loop_thread.call(self._inner.http_place(time_limit_s=time_limit_s))

    def status(self, *, time_limit_s: float | None = None) -> dict[str, Any]:
        """Return the state of the node and its queues. Requires the tag monitoring."""
        return self._loop_thread.call(self._inner.status(time_limit_s=time_limit_s))

    def create_queue(
        self, name: str, *, arguments: dict[str, Any] | None = None, time_limit_s: float | None = None
    ) -> Queue:
        """Create a durable queue unless it exists. Raises CommandRefused if it exists with other `arguments`."""
        return self._loop_thread.call(self._inner.create_queue(name, arguments=arguments, time_limit_s=time_limit_s))

    def delete_queue(self, queue: QueueRef, *, time_limit_s: float | None = None) -> int:
        """Delete a queue and its messages; return the number of ready ones. The queue need not exist."""
        return self._loop_thread.call(self._inner.delete_queue(queue, time_limit_s=time_limit_s))

    def get_queue(self, queue: QueueRef, *, time_limit_s: float | None = None) -> Queue:
        """Return a queue with its current counts. Raises QueueNotFound."""
        return self._loop_thread.call(self._inner.get_queue(queue, time_limit_s=time_limit_s))

    def get_queues(self, *, time_limit_s: float | None = None) -> list[Queue]:
        """Return all queues of the vhost. Requires the tag management."""
        return self._loop_thread.call(self._inner.get_queues(time_limit_s=time_limit_s))

    def purge(self, queue: QueueRef, *, time_limit_s: float | None = None) -> int:
        """Delete all ready messages; return their number. Raises QueueNotFound."""
        return self._loop_thread.call(self._inner.purge(queue, time_limit_s=time_limit_s))

    def put(
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
        self._loop_thread.call(
            self._inner.put(
                queue,
                body,
                receiver=receiver,
                context=context,
                priority=priority,
                ttl_s=ttl_s,
                persistent=persistent,
                properties=properties,
                sender=sender,
                time_limit_s=time_limit_s,
            )
        )

    def put_many(
        self, queue: QueueRef, drafts: Iterable[Draft | bytes | str], *, time_limit_s: float | None = None
    ) -> int:
        """Put many messages, in order; on return all are committed. Return their number.

        They are published in batches of 1000 or one megabyte. If one fails, earlier ones are stored. The time limit
        applies to each batch. `drafts` may be a generator: at most one batch of it is in memory.
        """
        return self._loop_thread.call(self._inner.put_many(queue, drafts, time_limit_s=time_limit_s))

    def put_to_queues(
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
        self._loop_thread.call(
            self._inner.put_to_queues(
                queues,
                body,
                receiver=receiver,
                context=context,
                priority=priority,
                ttl_s=ttl_s,
                persistent=persistent,
                properties=properties,
                sender=sender,
                time_limit_s=time_limit_s,
            )
        )

    def send_request_response(
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
        return self._loop_thread.call(
            self._inner.send_request_response(
                queue, body, context=context, priority=priority, properties=properties, time_limit_s=time_limit_s
            )
        )

    def reply(
        self,
        request: ReceivedMessage,
        body: bytes | str,
        *,
        properties: bytes = b"",
        time_limit_s: float | None = None,
    ) -> None:
        """Answer a request. A response that is no longer awaited is dropped."""
        self._loop_thread.call(self._inner.reply(request, body, properties=properties, time_limit_s=time_limit_s))

    def take(
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
        return self._loop_thread.call(
            self._inner.take(
                queue,
                order=order,
                context=context,
                sender=sender,
                receiver=receiver,
                wait_s=wait_s,
                time_limit_s=time_limit_s,
            )
        )

    def take_many(
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
        return self._loop_thread.call(
            self._inner.take_many(
                queue,
                most,
                order=order,
                context=context,
                sender=sender,
                receiver=receiver,
                wait_s=wait_s,
                time_limit_s=time_limit_s,
            )
        )

    def peek(
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
        return self._loop_thread.call(
            self._inner.peek(
                queue, order=order, context=context, sender=sender, receiver=receiver, time_limit_s=time_limit_s
            )
        )

    def read_messages(
        self, queue: QueueRef, *, most: int | None = None, after_id: int = 0, time_limit_s: float | None = None
    ) -> list[ReceivedMessage]:
        """Return the ready messages with ids above `after_id`, oldest first, without removing them.

        All of them, or the first `most`. For a long queue use `iterate_messages`. The time limit applies to each
        page.
        """
        return self._loop_thread.call(
            self._inner.read_messages(queue, most=most, after_id=after_id, time_limit_s=time_limit_s)
        )

    def iterate_messages(
        self, queue: QueueRef, *, most: int | None = None, after_id: int = 0, time_limit_s: float | None = None
    ) -> Iterator[ReceivedMessage]:
        """Yield the messages of a queue like `read_messages`, page by page."""
        found = self._inner.iterate_messages(queue, most=most, after_id=after_id, time_limit_s=time_limit_s)
        try:
            while True:
                try:
                    item: ReceivedMessage = self._loop_thread.call(anext(found))  # type: ignore[arg-type]
                except StopAsyncIteration:
                    return
                yield item
        finally:
            self._loop_thread.call(found.aclose())  # type: ignore[attr-defined]

    def list_ids(
        self, queue: QueueRef, *, after_id: int = 0, most: int = MAX_IDS, time_limit_s: float | None = None
    ) -> list[int]:
        """Return the ids of the messages that `read_messages` would return, at most 100000.

        Ids are ascending. All messages up to the last id are committed: reading them again returns the same, unless
        they were removed or have expired.
        """
        return self._loop_thread.call(
            self._inner.list_ids(queue, after_id=after_id, most=most, time_limit_s=time_limit_s)
        )

    def remove_messages(self, queue: QueueRef, *, up_to_id: int, time_limit_s: float | None = None) -> int:
        """Delete all ready messages up to an id; return their number.

        On return the deletion is durable.
        """
        return self._loop_thread.call(
            self._inner.remove_messages(queue, up_to_id=up_to_id, time_limit_s=time_limit_s)
        )

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
        """Return a consumer: `with client.consume(queue) as consumer: for delivery in consumer: ...`.

        At most `prefetch` messages are unacked; a fraction holds on average, 0 pauses deliveries. The selection is
        that of `take`.
        """
        return Consumer(
            self._inner.consume(
                queue, prefetch=prefetch, order=order, context=context, sender=sender, receiver=receiver
            ),
            self._loop_thread,
        )

    def topic(self, name: str) -> Topic:
        """Return a topic to publish to: `client.topic("news").publish("it rains")`."""
        return Topic(self._inner.topic(name), self._loop_thread)

    def subscribe(
        self, topic: str, *, durable: str | None = None, pattern: str = ALL, prefetch: float = 10
    ) -> Consumer:
        """Return a consumer of messages published to a topic, or to one below it, whose key matches the pattern.

        A `durable` subscription receives everything published since it was created, also while it had no consumer;
        its consumers share the messages. A new pattern is added to its earlier ones. Without `durable` the consumer
        receives what is published while it is open and connected. Opening it raises TopicNotFound.
        """
        return Consumer(
            self._inner.subscribe(topic, durable=durable, pattern=pattern, prefetch=prefetch), self._loop_thread
        )

    def create_topic(self, name: str, *, parent: str | None = None, time_limit_s: float | None = None) -> None:
        """Create a topic unless it exists. Messages published to it also reach subscribers of the parent."""
        self._loop_thread.call(self._inner.create_topic(name, parent=parent, time_limit_s=time_limit_s))

    def delete_topic(self, name: str, *, time_limit_s: float | None = None) -> None:
        """Delete a topic. Raises CommandRefused while it has children or durable subscriptions."""
        self._loop_thread.call(self._inner.delete_topic(name, time_limit_s=time_limit_s))

    def unsubscribe(self, topic: str, durable: str, *, time_limit_s: float | None = None) -> None:
        """Delete a durable subscription with its messages. Raises CommandRefused while it has a consumer."""
        self._loop_thread.call(self._inner.unsubscribe(topic, durable, time_limit_s=time_limit_s))


class QueueProducer:
    """Sends messages to a queue. Created by ConnectionFactory.connect("producer", ...); tasks may share it."""

    def __init__(self, inner: _factory.QueueProducer, loop_thread: LoopThread) -> None:
        self._inner = inner
        self._loop_thread = loop_thread

    def close(self) -> None:
        """Close the session and report it to the leader. Unacked messages are requeued. May be called twice."""
        if not self._loop_thread.is_running:
            return
        try:
            self._loop_thread.call(self._inner.close())
        finally:
            self._loop_thread.stop()

    def __enter__(self) -> Self:
        self._loop_thread.call(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def queue_name(self) -> str:
        return self._inner.queue_name

    @property
    def node(self) -> str:
        """The name of the node that serves it, if known; empty while it has no place."""
        return self._inner.node

    @property
    def address(self) -> str:
        """The address of the node that serves it; empty while it has no place."""
        return self._inner.address

    @property
    def session_id(self) -> str:
        """Its id at the leader; empty without one."""
        return self._inner.session_id

    @property
    def moves(self) -> int:
        """How often it has moved on request."""
        return self._inner.moves

    def send(
        self,
        body: bytes | str,
        *,
        context: int | None = None,
        priority: int = 0,
        ttl_s: float | None = None,
        persistent: bool = True,
        properties: bytes = b"",
        time_limit_s: float | None = None,
    ) -> None:
        """Send a message; on return it is committed.

        If its node is lost before the confirm, the message is sent again through another one, and may be duplicated.
        """
        self._loop_thread.call(
            self._inner.send(
                body,
                context=context,
                priority=priority,
                ttl_s=ttl_s,
                persistent=persistent,
                properties=properties,
                time_limit_s=time_limit_s,
            )
        )

    def send_many(self, drafts: Iterable[Draft | bytes | str], *, time_limit_s: float | None = None) -> int:
        """Send many messages, in order, and return their number. They are published in batches of up to 1000.

        If one fails, earlier ones are stored. The time limit applies to each batch.
        """
        return self._loop_thread.call(self._inner.send_many(drafts, time_limit_s=time_limit_s))


class QueueConsumer:
    """Receives messages of a queue, as an iterator. Created by ConnectionFactory.connect("consumer",
    ...).

    Each delivery must be settled. When the consumer is asked to move, it pauses until its deliveries are settled;
    those not settled in time are requeued, and settling them raises LeaseLost. Tasks may share it.
    """

    def __init__(self, inner: _factory.QueueConsumer, loop_thread: LoopThread) -> None:
        self._inner = inner
        self._loop_thread = loop_thread

    def close(self) -> None:
        """Close the session and report it to the leader. Unacked messages are requeued. May be called twice."""
        if not self._loop_thread.is_running:
            return
        try:
            self._loop_thread.call(self._inner.close())
        finally:
            self._loop_thread.stop()

    def __enter__(self) -> Self:
        self._loop_thread.call(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def queue_name(self) -> str:
        return self._inner.queue_name

    @property
    def node(self) -> str:
        """The name of the node that serves it, if known; empty while it has no place."""
        return self._inner.node

    @property
    def address(self) -> str:
        """The address of the node that serves it; empty while it has no place."""
        return self._inner.address

    @property
    def session_id(self) -> str:
        """Its id at the leader; empty without one."""
        return self._inner.session_id

    @property
    def moves(self) -> int:
        """How often it has moved on request."""
        return self._inner.moves

    @property
    def prefetch(self) -> float:
        """The maximum number of unsettled messages."""
        return self._inner.prefetch

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        delivery = self.receive()
        if delivery is None:
            raise StopIteration
        return delivery

    def receive(self, wait_s: float | None = None) -> Delivery | None:
        """Return the next delivery; None if none arrives within `wait_s`, or when the consumer is closed.

        Cancellation-safe. Raises QueueNotFound when the queue is deleted.
        """
        found = self._loop_thread.call(self._inner.receive(wait_s))
        return None if found is None else Delivery(found, self._loop_thread)

    def settle(self, deliveries: Iterable[Delivery], outcome: Outcome, *, time_limit_s: float | None = None) -> None:
        """Settle several deliveries in one request: all or none. They must come from one node."""
        self._loop_thread.call(
            self._inner.settle([each._inner for each in deliveries], outcome, time_limit_s=time_limit_s)
        )

    def set_prefetch(self, prefetch: float) -> None:
        """Change the maximum number of unsettled messages; a fraction holds on average."""
        self._loop_thread.call(self._inner.set_prefetch(prefetch))


class ConnectionFactory:
    """Creates producers and consumers of queues, each on the node chosen by the domain.

    It asks the addresses in turn until one answers, and connects to the node that the leader chose. With
    `clustered=False` it stays with the first address that answers.
    """

    def __init__(
        self,
        *addresses: str,
        user: str | None = None,
        password: str | None = None,
        vhost: str | None = None,
        clustered: bool = True,
        resend: bool = True,
        time_limit_s: float = DEFAULT_TIME_LIMIT_S,
        silence_limit_s: float = DEFAULT_SILENCE_LIMIT_S,
        backoff: Backoff | None = None,
    ) -> None:
        """Does not connect yet.

        Addresses are those of Client.connect. A connection that is silent for `silence_limit_s` is closed. A message
        whose confirm was lost with its node is sent again, so it may be duplicated; with `resend=False`
        ConnectionLost is raised instead.
        """
        self._inner = _factory.ConnectionFactory(
            *addresses,
            user=user,
            password=password,
            vhost=vhost,
            clustered=clustered,
            resend=resend,
            time_limit_s=time_limit_s,
            silence_limit_s=silence_limit_s,
            backoff=backoff,
        )

    @overload
    def connect(self, role: Literal["producer"], queue: str) -> QueueProducer: ...

    @overload
    def connect(self, role: Literal["consumer"], queue: str, *, prefetch: float = 10) -> QueueConsumer: ...

    def connect(self, role: str, queue: str, *, prefetch: float = 10) -> QueueProducer | QueueConsumer:
        """Return a producer or consumer of a queue, connected to the chosen node.

        Raises ConnectionFailed if no node answers, QueueNotFound, and RequestTimeout without a place in time.
        """
        loop_thread = LoopThread()
        loop_thread.start()
        try:
            made = loop_thread.call(self._inner._connect(role, queue, prefetch=prefetch))
        except BaseException:
            loop_thread.stop()
            raise
        if isinstance(made, _factory.QueueProducer):
            return QueueProducer(made, loop_thread)
        return QueueConsumer(made, loop_thread)
