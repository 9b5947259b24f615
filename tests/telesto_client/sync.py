"""The synchronous client: the asynchronous one, run on an event loop in a thread of its own.

Names, arguments, results and errors are the same; what they promise is said there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, overload

from flyball.backoff import Backoff
from flyball.broker.wire.telesto import Outcome
from flyball.client.portal import Portal
from flyball.model import Client as KnownClient
from flyball.model import ClientMode, Order, Queue
from tests.telesto_client import client as asynchronous
from tests.telesto_client import consumer as consuming
from tests.telesto_client import factory as placing
from tests.telesto_client import topics
from tests.telesto_client.client import (
    DEFAULT_ADDRESS,
    DEFAULT_MAX_PENDING,
    DEFAULT_TIME_LIMIT_S,
    MOST_IDS,
    ClientRef,
    QueueRef,
)
from tests.telesto_client.messages import Draft, ReceivedMessage


class Delivery:
    """One hand-over of a message, to be settled once: by `ack`, `requeue` or `drop`."""

    __slots__ = ("_delivery", "_portal", "message")

    def __init__(self, portal: Portal, delivery: consuming.Delivery) -> None:
        self._portal = portal
        self._delivery = delivery
        self.message = delivery.message

    def ack(self, *, time_limit_s: float | None = None) -> None:
        """The message is dealt with: remove it. On return that is committed."""
        self._portal.call(self._delivery.ack(time_limit_s=time_limit_s))

    def requeue(self, *, time_limit_s: float | None = None) -> None:
        """Put the message back to its old place, for whoever comes next."""
        self._portal.call(self._delivery.requeue(time_limit_s=time_limit_s))

    def drop(self, *, time_limit_s: float | None = None) -> None:
        """The message cannot be dealt with: remove it."""
        self._portal.call(self._delivery.drop(time_limit_s=time_limit_s))


class Consumer:
    """Deliveries of one queue, as an iterator inside a `with` block."""

    def __init__(self, portal: Portal, consumer: consuming.Consumer) -> None:
        self._portal = portal
        self._consumer = consumer

    @property
    def prefetch(self) -> float:
        """How many messages may be unsettled at a time."""
        return self._consumer.prefetch

    def __enter__(self) -> Self:
        self._portal.call(self._consumer.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop consuming and give back what is not settled. May be called twice."""
        self._portal.call(self._consumer.close())

    def stop(self) -> None:
        """Be sent no more, and give back what nobody has seen yet; what was handed out can still be settled."""
        self._portal.call(self._consumer.stop())

    def wait_settled(self) -> None:
        """Wait until all that was handed out is settled, and that is answered, or cannot be any more."""
        self._portal.call(self._consumer.wait_settled())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        delivery = self.next()
        if delivery is None:
            raise StopIteration
        return delivery

    def next(self, wait_s: float | None = None) -> Delivery | None:
        """Return the next delivery; None if none comes within `wait_s`, or when the consumer is closed."""
        delivery = self._portal.call(self._consumer.next(wait_s))
        return None if delivery is None else Delivery(self._portal, delivery)

    def set_prefetch(self, prefetch: float, *, time_limit_s: float | None = None) -> None:
        """Change how many messages may be unsettled at a time; a fraction holds on average."""
        self._portal.call(self._consumer.set_prefetch(prefetch, time_limit_s=time_limit_s))

    def settle(self, deliveries: Iterable[Delivery], outcome: Outcome, *, time_limit_s: float | None = None) -> None:
        """Settle several deliveries of this consumer in one request: all or none."""
        inner = [delivery._delivery for delivery in deliveries]
        self._portal.call(self._consumer.settle(inner, outcome, time_limit_s=time_limit_s))


class Topic:
    """Where messages are published for all who have subscribed, also to the topic's ancestors."""

    def __init__(self, portal: Portal, topic: topics.Topic) -> None:
        self._portal = portal
        self._topic = topic

    @property
    def name(self) -> str:
        return self._topic.name

    def publish(
        self,
        body: bytes | str,
        *,
        key: str = "",
        context: int | None = None,
        priority: int = 0,
        ttl_s: float | None = None,
        persistent: bool = True,
        time_limit_s: float | None = None,
    ) -> int:
        """Publish a message; on return it is committed for every subscriber. Return how many there are."""
        return self._portal.call(
            self._topic.publish(
                body,
                key=key,
                context=context,
                priority=priority,
                ttl_s=ttl_s,
                persistent=persistent,
                time_limit_s=time_limit_s,
            )
        )


class Client:
    """A client of one server, used inside `with Client.connect(...) as client`.

    Threads may share it. An interruption (Ctrl-C) cancels the call under way.
    """

    def __init__(self, client: asynchronous.Client) -> None:
        self._client = client
        self._portal = Portal()

    @classmethod
    def connect(
        cls,
        address: str = DEFAULT_ADDRESS,
        *,
        name: str | None = None,
        client_id: int | None = None,
        mode: ClientMode = ClientMode.FULL,
        existing_ok: bool = True,
        extension: bool = True,
        time_limit_s: float = DEFAULT_TIME_LIMIT_S,
        max_pending: int = DEFAULT_MAX_PENDING,
        backoff: Backoff | None = None,
        token_file: str | Path | None = None,
    ) -> Self:
        """Return a client that connects when it is entered or opened."""
        return cls(
            asynchronous.Client.connect(
                address,
                name=name,
                client_id=client_id,
                mode=mode,
                existing_ok=existing_ok,
                extension=extension,
                time_limit_s=time_limit_s,
                max_pending=max_pending,
                backoff=backoff,
                token_file=token_file,
            )
        )

    # Life

    def open(self) -> None:
        """Connect. Raises ConnectionFailed if the server cannot be reached, or what it says against the identity."""
        self._portal.start()
        try:
            self._portal.call(self._client.open())
        except Exception:
            self._portal.stop()
            raise
        except BaseException:
            # Interrupted: it may be open all the same.
            self.close()
            raise

    def close(self) -> None:
        """Disconnect. What consumers hold goes back to its place. May be called twice."""
        if self._portal.is_running:
            try:
                self._portal.call(self._client.close())
            finally:
                self._portal.stop()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def id(self) -> int | None:
        """The id under which the server knows this client; None without an identity."""
        return self._client.id

    @property
    def name(self) -> str | None:
        return self._client.name

    @property
    def mode(self) -> ClientMode | None:
        """What this client may do. An existing client keeps the mode it was registered with."""
        return self._client.mode

    @property
    def has_extension(self) -> bool:
        """Whether the server speaks Flyball's extension of the protocol."""
        return self._client.has_extension

    def consume(
        self,
        queue: QueueRef,
        *,
        prefetch: float = 10,
        order: Order | None = None,
        sender: ClientRef | None = None,
        context: int | None = None,
        only_addressed: bool = False,
    ) -> Consumer:
        """Return a consumer: `with client.consume(queue) as consumer: for delivery in consumer: ...`."""
        consumer = self._client.consume(
            queue, prefetch=prefetch, order=order, sender=sender, context=context, only_addressed=only_addressed
        )
        return Consumer(self._portal, consumer)

    def iterate_messages(
        self, queue: QueueRef, *, page: int = 1000, time_limit_s: float | None = None
    ) -> Iterator[ReceivedMessage]:
        """Yield the messages of a queue like `read_messages`, a page at a time."""
        messages = self._client.iterate_messages(queue, page=page, time_limit_s=time_limit_s)
        while (message := self._portal.call(anext(messages, None))) is not None:
            yield message

    def topic(self, name: str) -> Topic:
        """Return a topic to publish to: `client.topic("news").publish("it rains")`."""
        return Topic(self._portal, self._client.topic(name))

    def subscribe(
        self, topic: str, *, durable: str | None = None, pattern: str = topics.ALL, prefetch: float = 10
    ) -> Consumer:
        """Return a consumer of what is published to a topic, or to one below it, with a key that fits the pattern."""
        consumer = self._client.subscribe(topic, durable=durable, pattern=pattern, prefetch=prefetch)
        return Consumer(self._portal, consumer)

    # The rest, word for word

    def create_topic(self, name: str, *, parent: str | None = None, time_limit_s: float | None = None) -> None:
        """Create a topic, or see that it is there. What is published to it also reaches subscribers of the parent."""
        self._portal.call(self._client.create_topic(name, parent=parent, time_limit_s=time_limit_s))

    def delete_topic(self, name: str, *, time_limit_s: float | None = None) -> None:
        """Delete a topic. Raises CommandRefused while it has children or durable subscriptions."""
        self._portal.call(self._client.delete_topic(name, time_limit_s=time_limit_s))

    def unsubscribe(self, topic: str, durable: str, *, time_limit_s: float | None = None) -> None:
        """End a durable subscription, with the messages that wait. Raises CommandRefused while it has a consumer."""
        self._portal.call(self._client.unsubscribe(topic, durable, time_limit_s=time_limit_s))

    def ping(self, *, time_limit_s: float | None = None) -> float:
        """Return the time of a round trip to the server, in seconds."""
        return self._portal.call(self._client.ping(time_limit_s=time_limit_s))

    def status(self, *, time_limit_s: float | None = None) -> dict[str, Any]:
        """Return what the node tells about itself and its queues."""
        return self._portal.call(self._client.status(time_limit_s=time_limit_s))

    def manage(self, command: str, /, *, time_limit_s: float | None = None, **arguments: Any) -> Any:
        """Have the node carry out a command of its administration, such as `user.list`; return what came of it.

        Raises NotLocal if the node runs on another machine, NotOwner without its token, and CommandRefused.
        """
        return self._portal.call(self._client.manage(command, time_limit_s=time_limit_s, **arguments))

    def create_queue(self, name: str, *, time_limit_s: float | None = None) -> Queue:
        """Create a queue. Raises QueueNameTaken."""
        return self._portal.call(self._client.create_queue(name, time_limit_s=time_limit_s))

    def delete_queue(self, queue: QueueRef, *, time_limit_s: float | None = None) -> None:
        """Delete a queue and its messages. Raises QueueNotFound."""
        return self._portal.call(self._client.delete_queue(queue, time_limit_s=time_limit_s))

    def get_queue_by_name(self, name: str, *, time_limit_s: float | None = None) -> Queue:
        """Return the queue of that name. Raises QueueNotFound."""
        return self._portal.call(self._client.get_queue_by_name(name, time_limit_s=time_limit_s))

    def get_queue_by_id(self, queue_id: int, *, time_limit_s: float | None = None) -> Queue:
        """Return the queue of that id. Raises QueueNotFound."""
        return self._portal.call(self._client.get_queue_by_id(queue_id, time_limit_s=time_limit_s))

    def get_queues(self, *, time_limit_s: float | None = None) -> list[Queue]:
        """Return all queues."""
        return self._portal.call(self._client.get_queues(time_limit_s=time_limit_s))

    def get_active_queues(self, *, time_limit_s: float | None = None) -> list[Queue]:
        """Return the queues that hold messages which this client may read."""
        return self._portal.call(self._client.get_active_queues(time_limit_s=time_limit_s))

    def purge(self, queue: QueueRef, *, time_limit_s: float | None = None) -> int:
        """Remove all messages that nobody has leased; return how many there were."""
        return self._portal.call(self._client.purge(queue, time_limit_s=time_limit_s))

    def get_clients(self, *, time_limit_s: float | None = None) -> list[KnownClient]:
        """Return all clients that the server knows."""
        return self._portal.call(self._client.get_clients(time_limit_s=time_limit_s))

    def remove_client(self, client: ClientRef | str, *, time_limit_s: float | None = None) -> None:
        """Make the server forget a client; its messages stay. Raises ClientNotFound."""
        return self._portal.call(self._client.remove_client(client, time_limit_s=time_limit_s))

    def put(
        self,
        queue: QueueRef,
        body: bytes | str,
        *,
        receiver: ClientRef | None = None,
        context: int | None = None,
        priority: int = 0,
        ttl_s: float | None = None,
        persistent: bool = True,
        properties: bytes = b"",
        time_limit_s: float | None = None,
    ) -> int | None:
        """Put a message into a queue; on return it is committed. Return its id, None from a plain server."""
        return self._portal.call(
            self._client.put(
                queue,
                body,
                receiver=receiver,
                context=context,
                priority=priority,
                ttl_s=ttl_s,
                persistent=persistent,
                properties=properties,
                time_limit_s=time_limit_s,
            )
        )

    def put_to_queues(
        self,
        queues: Iterable[QueueRef],
        body: bytes | str,
        *,
        receiver: ClientRef | None = None,
        context: int | None = None,
        priority: int = 0,
        ttl_s: float | None = None,
        persistent: bool = True,
        properties: bytes = b"",
        time_limit_s: float | None = None,
    ) -> list[int]:
        """Put a message into several queues; return its ids there, none from a plain server."""
        return self._portal.call(
            self._client.put_to_queues(
                queues,
                body,
                receiver=receiver,
                context=context,
                priority=priority,
                ttl_s=ttl_s,
                persistent=persistent,
                properties=properties,
                time_limit_s=time_limit_s,
            )
        )

    def put_many(
        self, queue: QueueRef, drafts: Iterable[Draft | bytes | str], *, time_limit_s: float | None = None
    ) -> list[int]:
        """Put many messages into a queue, in that order; return their ids, none from a plain server."""
        return self._portal.call(self._client.put_many(queue, drafts, time_limit_s=time_limit_s))

    def send_request_response(
        self,
        queue: QueueRef,
        body: bytes | str,
        *,
        receiver: ClientRef | None = None,
        priority: int = 0,
        time_limit_s: float | None = None,
    ) -> ReceivedMessage:
        """Put a request into a queue and return the response to it, which comes through the same queue."""
        return self._portal.call(
            self._client.send_request_response(
                queue, body, receiver=receiver, priority=priority, time_limit_s=time_limit_s
            )
        )

    def reply(self, request: ReceivedMessage, body: bytes | str, *, time_limit_s: float | None = None) -> int | None:
        """Answer a request: put a message for its sender into its queue, with its context and priority."""
        return self._portal.call(self._client.reply(request, body, time_limit_s=time_limit_s))

    def take(
        self,
        queue: QueueRef,
        *,
        order: Order | None = None,
        sender: ClientRef | None = None,
        context: int | None = None,
        only_addressed: bool = False,
        wait_s: float = 0.0,
        time_limit_s: float | None = None,
    ) -> ReceivedMessage | None:
        """Remove a message and return it; None if none is there, or comes within `wait_s`."""
        return self._portal.call(
            self._client.take(
                queue,
                order=order,
                sender=sender,
                context=context,
                only_addressed=only_addressed,
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
        sender: ClientRef | None = None,
        context: int | None = None,
        only_addressed: bool = False,
        wait_s: float = 0.0,
        time_limit_s: float | None = None,
    ) -> list[ReceivedMessage]:
        """Remove up to `most` messages (10000 at the most) and return them; like `take` otherwise."""
        return self._portal.call(
            self._client.take_many(
                queue,
                most,
                order=order,
                sender=sender,
                context=context,
                only_addressed=only_addressed,
                wait_s=wait_s,
                time_limit_s=time_limit_s,
            )
        )

    def peek(
        self,
        queue: QueueRef,
        *,
        order: Order | None = None,
        sender: ClientRef | None = None,
        context: int | None = None,
        only_addressed: bool = False,
        time_limit_s: float | None = None,
    ) -> ReceivedMessage | None:
        """Return the message that `take` would remove, without removing it."""
        return self._portal.call(
            self._client.peek(
                queue,
                order=order,
                sender=sender,
                context=context,
                only_addressed=only_addressed,
                time_limit_s=time_limit_s,
            )
        )

    def read_messages(
        self, queue: QueueRef, *, most: int | None = None, time_limit_s: float | None = None
    ) -> list[ReceivedMessage]:
        """Return the messages of a queue, whoever they are addressed to, oldest first, without removing them."""
        return self._portal.call(self._client.read_messages(queue, most=most, time_limit_s=time_limit_s))

    def read_page(
        self, queue: QueueRef, *, after_id: int = 0, most: int = 1000, time_limit_s: float | None = None
    ) -> list[ReceivedMessage]:
        """Return up to `most` messages (10000 at the most) with an id above `after_id`, oldest first."""
        return self._portal.call(
            self._client.read_page(queue, after_id=after_id, most=most, time_limit_s=time_limit_s)
        )

    def list_ids(
        self, queue: QueueRef, *, after_id: int = 0, most: int = MOST_IDS, time_limit_s: float | None = None
    ) -> list[int]:
        """Return the ids of the messages that `read_page` would return, up to 100000 of them."""
        return self._portal.call(
            self._client.list_ids(queue, after_id=after_id, most=most, time_limit_s=time_limit_s)
        )

    def remove_messages(self, queue: QueueRef, *, up_to_id: int, time_limit_s: float | None = None) -> int:
        """Remove all messages up to an id that nobody has leased; return how many there were."""
        return self._portal.call(self._client.remove_messages(queue, up_to_id=up_to_id, time_limit_s=time_limit_s))


class _Placed:
    """What producers and consumers have in common: a session that is served at one node at a time."""

    def __init__(self, portal: Portal, placed: placing.QueueProducer | placing.QueueConsumer) -> None:
        self._portal = portal
        self._placed = placed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave. What a consumer holds goes back to its place, and the manager hears of it. May be called twice."""
        if self._portal.is_running:
            try:
                self._portal.call(self._placed.close())
            finally:
                self._portal.stop()

    @property
    def queue_name(self) -> str:
        return self._placed.queue_name

    @property
    def queue_id(self) -> int | None:
        """The queue where it is served: of a clustered queue, a member. None while it looks for a place."""
        return self._placed.queue_id

    @property
    def node(self) -> str:
        """The name of the node where it is served, as far as it was told; empty while it looks for a place."""
        return self._placed.node

    @property
    def address(self) -> str:
        """The address where it is served; empty while it looks for a place."""
        return self._placed.address

    @property
    def session_id(self) -> str:
        """Under which the manager knows it; empty without one."""
        return self._placed.session_id

    @property
    def moves(self) -> int:
        """How often it has moved to another node because it was asked to."""
        return self._placed.moves


class QueueProducer(_Placed):
    """Sends messages to a queue. Made by ConnectionFactory.connect("producer", ...); threads may share it."""

    def __init__(self, portal: Portal, producer: placing.QueueProducer) -> None:
        super().__init__(portal, producer)
        self._producer = producer

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
    ) -> int:
        """Send a message and return its id; on return it is committed."""
        return self._portal.call(
            self._producer.send(
                body,
                context=context,
                priority=priority,
                ttl_s=ttl_s,
                persistent=persistent,
                properties=properties,
                time_limit_s=time_limit_s,
            )
        )

    def send_many(self, drafts: Iterable[Draft | bytes | str], *, time_limit_s: float | None = None) -> list[int]:
        """Send many messages, in that order, and return their ids. They travel in requests of up to 1000."""
        return self._portal.call(self._producer.send_many(drafts, time_limit_s=time_limit_s))


class QueueConsumer(_Placed):
    """Receives messages of a queue, as an iterator. Made by ConnectionFactory.connect("consumer", ...)."""

    def __init__(self, portal: Portal, consumer: placing.QueueConsumer) -> None:
        super().__init__(portal, consumer)
        self._consumer = consumer

    @property
    def prefetch(self) -> float:
        """How many messages may be unsettled at a time."""
        return self._consumer.prefetch

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        delivery = self.receive()
        if delivery is None:
            raise StopIteration
        return delivery

    def receive(self, wait_s: float | None = None) -> Delivery | None:
        """Return the next delivery; None if none comes within `wait_s`, or when the consumer is closed."""
        delivery = self._portal.call(self._consumer.receive(wait_s))
        return None if delivery is None else Delivery(self._portal, delivery)

    def settle(self, deliveries: Iterable[Delivery], outcome: Outcome, *, time_limit_s: float | None = None) -> None:
        """Settle several deliveries in one request: all or none. They must have come from one node."""
        inner = [delivery._delivery for delivery in deliveries]
        self._portal.call(self._consumer.settle(inner, outcome, time_limit_s=time_limit_s))

    def set_prefetch(self, prefetch: float) -> None:
        """Change how many messages may be unsettled at a time; a fraction holds on average."""
        self._portal.call(self._consumer.set_prefetch(prefetch))


class ConnectionFactory:
    """Makes producers and consumers of queues, each on the node that suits it best."""

    def __init__(
        self,
        *addresses: str,
        name: str,
        vhost: str = "/",
        clustered: bool = True,
        resend: bool = True,
        time_limit_s: float = DEFAULT_TIME_LIMIT_S,
        silence_limit_s: float = placing.DEFAULT_SILENCE_LIMIT_S,
        max_pending: int = DEFAULT_MAX_PENDING,
        backoff: Backoff | None = None,
    ) -> None:
        """Remember where the nodes are; nothing is connected yet."""
        self._factory = placing.ConnectionFactory(
            *addresses,
            name=name,
            vhost=vhost,
            clustered=clustered,
            resend=resend,
            time_limit_s=time_limit_s,
            silence_limit_s=silence_limit_s,
            max_pending=max_pending,
            backoff=backoff,
        )

    @overload
    def connect(self, role: Literal["producer"], queue: str) -> QueueProducer: ...

    @overload
    def connect(self, role: Literal["consumer"], queue: str, *, prefetch: float = 10) -> QueueConsumer: ...

    def connect(
        self, role: Literal["producer", "consumer"], queue: str, *, prefetch: float = 10
    ) -> QueueProducer | QueueConsumer:
        """Return a producer or a consumer of a queue, connected to the node that it was sent to."""
        portal = Portal()
        portal.start()
        try:
            if role == "producer":
                return QueueProducer(portal, portal.call(self._factory.connect(role, queue)))
            return QueueConsumer(portal, portal.call(self._factory.connect(role, queue, prefetch=prefetch)))
        except BaseException:
            portal.stop()
            raise
