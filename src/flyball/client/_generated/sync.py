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
    """One hand-over of a message, to be settled once: by `ack`, `requeue` or `drop`.

    Settling raises LeaseLost when the connection that brought it is gone or its consumer closed: then the message
    goes back to its place, and is delivered again. AMQP does not answer a settlement: a node that crashes right after
    it may deliver the message again.
    """

    def __init__(self, inner: _consumer.Delivery, loop_thread: LoopThread) -> None:
        self._inner = inner
        self._loop_thread = loop_thread

    @property
    def message(self) -> ReceivedMessage:
        return self._inner.message

    def ack(self, *, time_limit_s: float | None = None) -> None:
        """The message is dealt with: remove it."""
        self._loop_thread.call(self._inner.ack(time_limit_s=time_limit_s))

    def requeue(self, *, time_limit_s: float | None = None) -> None:
        """Put the message back to its old place, for whoever comes next."""
        self._loop_thread.call(self._inner.requeue(time_limit_s=time_limit_s))

    def drop(self, *, time_limit_s: float | None = None) -> None:
        """The message cannot be dealt with: remove it."""
        self._loop_thread.call(self._inner.drop(time_limit_s=time_limit_s))


class Consumer:
    """Deliveries of one queue, as an iterator inside an `async with` block.

    After a lost connection it subscribes again when the next delivery is asked for. At the end of the block
    whatever is not settled goes back to its place. Several tasks may share a consumer.
    """

    def __init__(self, inner: _consumer.Consumer, loop_thread: LoopThread) -> None:
        self._inner = inner
        self._loop_thread = loop_thread

    @property
    def prefetch(self) -> float:
        """How many messages may be unsettled at a time."""
        return self._inner.prefetch

    def __enter__(self) -> Self:
        self._loop_thread.call(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop consuming and give back what is not settled. May be called twice."""
        self._loop_thread.call(self._inner.close())

    def stop(self) -> None:
        """Be sent no more, and give back what nobody has seen yet; what was handed out can still be settled.

        From now on `next` returns None. May be called twice.
        """
        self._loop_thread.call(self._inner.stop())

    def wait_settled(self) -> None:
        """Wait until all that was handed out is settled, or cannot be any more."""
        self._loop_thread.call(self._inner.wait_settled())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        delivery = self.next()
        if delivery is None:
            raise StopIteration
        return delivery

    def next(self, wait_s: float | None = None) -> Delivery | None:
        """Return the next delivery; None if none comes within `wait_s`, or when the consumer is closed.

        A cancellation loses nothing. Raises QueueNotFound when the queue is deleted.
        """
        found = self._loop_thread.call(self._inner.next(wait_s))
        return None if found is None else Delivery(found, self._loop_thread)

    def set_prefetch(self, prefetch: float, *, time_limit_s: float | None = None) -> None:
        """Change how many messages may be unsettled at a time; a fraction holds on average."""
        self._loop_thread.call(self._inner.set_prefetch(prefetch, time_limit_s=time_limit_s))

    def settle(self, deliveries: Iterable[Delivery], outcome: Outcome, *, time_limit_s: float | None = None) -> None:
        """Settle several deliveries of this consumer together. Raises LeaseLost, and settles none, if one is gone."""
        self._loop_thread.call(
            self._inner.settle([each._inner for each in deliveries], outcome, time_limit_s=time_limit_s)
        )


class Topic:
    """Where messages are published for all who have subscribed, also to the topic's ancestors."""

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

        The `key` is what patterns of subscribers are about: words with dots between them. Raises TopicNotFound.
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
    """A client of one node, used inside `with Client.connect(...) as client`.

    Calls may run concurrently. Every call has a time limit (`time_limit_s`) and raises RequestTimeout beyond it.
    After a lost connection the client reconnects; calls meanwhile wait for it, within their limits. A call that
    was under way is repeated if it only reads, and raises ConnectionLost otherwise: its outcome is unknown.
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

        The address is `host:port` or `amqp://user:password@host:port/vhost`, with `amqps` for TLS; without a user it
        is guest. What AMQP cannot say goes to the node's HTTP API: where the node says it is, or at `http_url`, as
        the same user unless that names another. A node that says nothing for `silence_limit_s` is given up.
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
        """Connect. Raises ConnectionFailed, and NotPermitted or CommandRefused if the node does not let us in."""
        self._loop_thread.start()
        try:
            self._loop_thread.call(self._inner.open())
        except BaseException:
            self._loop_thread.stop()
            raise

    def close(self) -> None:
        """Disconnect. What consumers hold goes back to its place. May be called twice."""
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
        """The virtual host that it uses."""
        return self._inner.vhost

    def ping(self, *, time_limit_s: float | None = None) -> float:
        """Return the time of a round trip to the node, in seconds."""
        return self._loop_thread.call(self._inner.ping(time_limit_s=time_limit_s))

    def http_place(self, *, time_limit_s: float | None = None) -> Place:
        """Return where the node's HTTP API is, and who we are there: for what this client has no method for."""
        return self._loop_thread.call(self._inner.http_place(time_limit_s=time_limit_s))

    def status(self, *, time_limit_s: float | None = None) -> dict[str, Any]:
        """Return what the node tells about itself and its queues. Needs the tag monitoring."""
        return self._loop_thread.call(self._inner.status(time_limit_s=time_limit_s))

    def create_queue(
        self, name: str, *, arguments: dict[str, Any] | None = None, time_limit_s: float | None = None
    ) -> Queue:
        """Create a durable queue, or see that it is there. Raises CommandRefused if it has other `arguments`."""
        return self._loop_thread.call(self._inner.create_queue(name, arguments=arguments, time_limit_s=time_limit_s))

    def delete_queue(self, queue: QueueRef, *, time_limit_s: float | None = None) -> int:
        """Delete a queue and its messages; return how many were ready. It need not exist."""
        return self._loop_thread.call(self._inner.delete_queue(queue, time_limit_s=time_limit_s))

    def get_queue(self, queue: QueueRef, *, time_limit_s: float | None = None) -> Queue:
        """Return a queue with its present counts. Raises QueueNotFound."""
        return self._loop_thread.call(self._inner.get_queue(queue, time_limit_s=time_limit_s))

    def get_queues(self, *, time_limit_s: float | None = None) -> list[Queue]:
        """Return all queues of the virtual host. Needs the tag management."""
        return self._loop_thread.call(self._inner.get_queues(time_limit_s=time_limit_s))

    def purge(self, queue: QueueRef, *, time_limit_s: float | None = None) -> int:
        """Remove all messages that nobody has leased; return how many there were. Raises QueueNotFound."""
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
        """Put a message into a queue; on return it is committed. The fields are those of a Draft.

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
        """Put many messages, in that order; on return all are committed. Return how many there were.

        They are published 1000, or a megabyte, at a time. If one fails, those before it are stored. The time limit is
        for each part. `drafts` may be a generator: no more than a part of it is held at a time.
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
        """Put a message into each of the queues, in one transaction. Raises QueueNotFound if one is missing."""
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
        """Put a request into a queue and return the response to it.

        Whoever takes the request answers with `reply`. Raises QueueNotFound, ConnectionLost, and RequestTimeout if no
        response comes within the time limit: then the request is removed, unless somebody has taken it.
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
        """Answer a request. If nobody waits for the response any more it is dropped."""
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
        """Remove a message and return it; None if none is there, or comes within `wait_s`.

        Without a selection it is the first of the queue. `order` says which comes first; the others select: messages
        of a context, of a sender, or to a receiver or to nobody. Nothing is polled. The time limit is counted beside
        the waiting. With a selection and no wait, a message that the node has to read back from its store, or that is
        on another node, may be missed: give a short `wait_s`.

        A message goes back to its queue if the call is cancelled, or its connection breaks before it is acknowledged.
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
        """Remove up to `most` messages (10000 at the most) and return them; like `take` otherwise.

        Waits for the first only.
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
        """Return the message that `take` would remove, without removing it. Raises QueueNotFound."""
        return self._loop_thread.call(
            self._inner.peek(
                queue, order=order, context=context, sender=sender, receiver=receiver, time_limit_s=time_limit_s
            )
        )

    def read_messages(
        self, queue: QueueRef, *, most: int | None = None, after_id: int = 0, time_limit_s: float | None = None
    ) -> list[ReceivedMessage]:
        """Return the ready messages of a queue with an id above `after_id`, oldest first, without removing them.

        All of them, or the first `most`. For a long queue use `iterate_messages`. The time limit is for each part of
        the answer.
        """
        return self._loop_thread.call(
            self._inner.read_messages(queue, most=most, after_id=after_id, time_limit_s=time_limit_s)
        )

    def iterate_messages(
        self, queue: QueueRef, *, most: int | None = None, after_id: int = 0, time_limit_s: float | None = None
    ) -> Iterator[ReceivedMessage]:
        """Yield the messages of a queue like `read_messages`, as they come."""
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
        """Return the ids of the messages that `read_messages` would return, up to 100000 of them.

        They count up. All messages up to the last of them are committed: whoever reads them again finds the same, as
        long as nobody removes any and none expires.
        """
        return self._loop_thread.call(
            self._inner.list_ids(queue, after_id=after_id, most=most, time_limit_s=time_limit_s)
        )

    def remove_messages(self, queue: QueueRef, *, up_to_id: int, time_limit_s: float | None = None) -> int:
        """Remove all messages up to an id that nobody has leased; return how many there were.

        On return they are gone for good.
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

        Up to `prefetch` messages may be delivered and not settled at a time; a fraction holds on average, 0 stops
        the deliveries. The selection is that of `take`.
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
        """Return a consumer of what is published to a topic, or to one below it, with a key that fits the pattern.

        With the name of a `durable` subscription it gets what was published since that was made, also while nobody
        consumed; several consumers of the name share the messages. Another pattern is added to those that it has.
        Without, it gets what is published while it is open and connected. Opening it raises TopicNotFound.
        """
        return Consumer(
            self._inner.subscribe(topic, durable=durable, pattern=pattern, prefetch=prefetch), self._loop_thread
        )

    def create_topic(self, name: str, *, parent: str | None = None, time_limit_s: float | None = None) -> None:
        """Create a topic, or see that it is there. What is published to it also reaches subscribers of the parent."""
        self._loop_thread.call(self._inner.create_topic(name, parent=parent, time_limit_s=time_limit_s))

    def delete_topic(self, name: str, *, time_limit_s: float | None = None) -> None:
        """Delete a topic. Raises CommandRefused while it has children or durable subscriptions."""
        self._loop_thread.call(self._inner.delete_topic(name, time_limit_s=time_limit_s))

    def unsubscribe(self, topic: str, durable: str, *, time_limit_s: float | None = None) -> None:
        """End a durable subscription, with the messages that wait. Raises CommandRefused while it has a consumer."""
        self._loop_thread.call(self._inner.unsubscribe(topic, durable, time_limit_s=time_limit_s))


class QueueProducer:
    """Sends messages to a queue. Made by ConnectionFactory.connect("producer", ...); tasks may share it."""

    def __init__(self, inner: _factory.QueueProducer, loop_thread: LoopThread) -> None:
        self._inner = inner
        self._loop_thread = loop_thread

    def close(self) -> None:
        """Leave. What a consumer holds goes back to its place, and the manager hears of it. May be called twice."""
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
        """The name of the node where it is served, as far as it was told; empty while it looks for a place."""
        return self._inner.node

    @property
    def address(self) -> str:
        """The address where it is served; empty while it looks for a place."""
        return self._inner.address

    @property
    def session_id(self) -> str:
        """Under which the manager knows it; empty without one."""
        return self._inner.session_id

    @property
    def moves(self) -> int:
        """How often it has moved to another node because it was asked to."""
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

        If its node is lost before it has answered, the message is sent again at another one, and may be there twice.
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
        """Send many messages, in that order, and return how many. They are published up to 1000 at a time.

        If one fails, those before it are stored. The time limit is for each part.
        """
        return self._loop_thread.call(self._inner.send_many(drafts, time_limit_s=time_limit_s))


class QueueConsumer:
    """Receives messages of a queue, as an iterator. Made by ConnectionFactory.connect("consumer", ...).

    Each delivery is to be settled. When the consumer is asked to move it hands out nothing until what it has handed
    out is settled; what is not settled in time goes back, and settling it raises LeaseLost. Tasks may share it.
    """

    def __init__(self, inner: _factory.QueueConsumer, loop_thread: LoopThread) -> None:
        self._inner = inner
        self._loop_thread = loop_thread

    def close(self) -> None:
        """Leave. What a consumer holds goes back to its place, and the manager hears of it. May be called twice."""
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
        """The name of the node where it is served, as far as it was told; empty while it looks for a place."""
        return self._inner.node

    @property
    def address(self) -> str:
        """The address where it is served; empty while it looks for a place."""
        return self._inner.address

    @property
    def session_id(self) -> str:
        """Under which the manager knows it; empty without one."""
        return self._inner.session_id

    @property
    def moves(self) -> int:
        """How often it has moved to another node because it was asked to."""
        return self._inner.moves

    @property
    def prefetch(self) -> float:
        """How many messages may be unsettled at a time."""
        return self._inner.prefetch

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        delivery = self.receive()
        if delivery is None:
            raise StopIteration
        return delivery

    def receive(self, wait_s: float | None = None) -> Delivery | None:
        """Return the next delivery; None if none comes within `wait_s`, or when the consumer is closed.

        A cancellation loses nothing. Raises QueueNotFound when the queue is deleted.
        """
        found = self._loop_thread.call(self._inner.receive(wait_s))
        return None if found is None else Delivery(found, self._loop_thread)

    def settle(self, deliveries: Iterable[Delivery], outcome: Outcome, *, time_limit_s: float | None = None) -> None:
        """Settle several deliveries in one request: all or none. They must have come from one node."""
        self._loop_thread.call(
            self._inner.settle([each._inner for each in deliveries], outcome, time_limit_s=time_limit_s)
        )

    def set_prefetch(self, prefetch: float) -> None:
        """Change how many messages may be unsettled at a time; a fraction holds on average."""
        self._loop_thread.call(self._inner.set_prefetch(prefetch))


class ConnectionFactory:
    """Makes producers and consumers of queues, each on the node that suits it best.

    It asks any of the addresses, the next one if one does not answer, and the producer or consumer goes to the node
    that the manager elects. With `clustered=False` nobody is elected: it stays with the first address that answers.
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
        """Remember where the nodes are; nothing is connected yet.

        Addresses are those of Client.connect. A node that says nothing for `silence_limit_s` is given up. A message
        whose answer was lost with its node is sent again, so it may be there twice; with `resend=False` that is
        ConnectionLost instead.
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
        """Return a producer or a consumer of a queue, connected to the node that it was sent to.

        Raises ConnectionFailed if no node answers, QueueNotFound, and RequestTimeout if there is no place in time.
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
