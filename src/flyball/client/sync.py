"""The synchronous client: the asynchronous one, run on an event loop in a thread of its own.

Names, arguments, results and errors are the same; what they promise is said there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

from flyball.client import client as asynchronous
from flyball.client import consumer as consuming
from flyball.client.backoff import Backoff
from flyball.client.client import (
    DEFAULT_ADDRESS,
    DEFAULT_MAX_PENDING,
    DEFAULT_TIME_LIMIT_S,
    MOST_IDS,
    ClientRef,
    QueueRef,
)
from flyball.client.messages import Draft, ReceivedMessage
from flyball.client.portal import Portal
from flyball.model import Client as KnownClient
from flyball.model import ClientMode, Order, Queue
from flyball.wire.telesto import Outcome


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

    # The rest, word for word

    def ping(self, *, time_limit_s: float | None = None) -> float:
        """Return the time of a round trip to the server, in seconds."""
        return self._portal.call(self._client.ping(time_limit_s=time_limit_s))

    def status(self, *, time_limit_s: float | None = None) -> dict[str, Any]:
        """Return what the node tells about itself and its queues."""
        return self._portal.call(self._client.status(time_limit_s=time_limit_s))

    def manage(self, command: str, /, *, time_limit_s: float | None = None, **arguments: Any) -> Any:
        """Have the node carry out a command of its administration, such as `user.list`; return what came of it.

        Raises NotLocal if the node runs on another machine, and CommandRefused.
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
