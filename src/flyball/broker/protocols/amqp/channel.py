"""A channel: publishing, consuming, lookup of queues, and order of replies.

A method is executed at once; its reply is sent when its change is durable. Until then the connection executes no
further methods, so that replies keep the order of their requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from flyball.broker.core.handles import QueueHandle
from flyball.broker.core.memory import CHANNEL_BYTES, UNCONFIRMED_BYTES
from flyball.broker.core.pending import Answer, Done
from flyball.broker.core.topology import Topology
from flyball.broker.engine.traits import check_declaration
from flyball.broker.protocols.amqp.channel_state import ChannelState
from flyball.broker.protocols.amqp.commit import Commit
from flyball.broker.protocols.amqp.connection import AmqpConnection
from flyball.broker.protocols.amqp.consumers import AmqpConsumer, Deliveries
from flyball.broker.protocols.amqp.placement import PlacedSession
from flyball.broker.protocols.amqp.publisher import Publisher
from flyball.broker.protocols.amqp.replies import refusal
from flyball.broker.protocols.amqp.transactions import Lease, Transaction
from flyball.broker.wire.amqp import Method, ReplyCode, delivery_prefix
from flyball.broker.wire.link import Settlement
from flyball.errors import FlyballError, QueueNotFound
from flyball.model import Queue

log = logging.getLogger("flyball.server")

T = TypeVar("T")

# Unread bytes above which direct replies to a client are dropped, as if it had disconnected. RabbitMQ would buffer
# all of them. The replier is not throttled, since it serves other clients as well.
MAX_UNREAD_REPLIES_BYTES = 4 * 1024 * 1024


class Channel(ChannelState):
    """A channel of a connection, from open to close."""

    __slots__ = ("_commit", "_has_lost_replies", "deliveries", "last_queue", "placed", "publisher", "reply_tag")

    def __init__(self, session: AmqpConnection, number: int) -> None:
        super().__init__(session, number)
        self.publisher = Publisher(self)
        self.deliveries = Deliveries(self)
        # The last declared queue, which an empty queue name refers to.
        self.last_queue: str | None = None
        self.reply_tag = ""
        # Sessions of clustered queues served by this channel, by consumer tag.
        self.placed: dict[str, PlacedSession] = {}
        # The latest commit.
        self._commit: Commit | None = None
        self._has_lost_replies = False

    @property
    def topology(self) -> Topology:
        return self.session.context.topology

    @property
    def held_bytes(self) -> int:
        """Memory held by consumers and unconfirmed delivery numbers."""
        numbers = self.publisher.unconfirmed + len(self.settling)
        consumers = self.deliveries.consumers.values()
        return CHANNEL_BYTES + sum([consumer.size_bytes for consumer in consumers]) + UNCONFIRMED_BYTES * numbers

    @property
    def uncommitted(self) -> int:
        """Messages published in the open transaction."""
        return 0 if self.transaction is None else len(self.transaction.contents)

    @property
    def uncommitted_acks(self) -> int:
        """Acks in the open transaction."""
        return 0 if self.transaction is None else self.transaction.acks

    def end(self) -> None:
        """Release the resources of the channel."""
        context = self.session.context
        if self.transaction is not None:
            self.roll_back(self.transaction)
        self.end_replies()
        for tag in list(self.placed):
            self.placed.pop(tag).end(orderly=False)
        if self._commit is not None:
            self._commit.abandon()
        context.queues.peering.forget(self)
        for consumer in self.deliveries.end():
            self.consumer_gone(consumer)

    def consumer_gone(self, consumer: AmqpConsumer) -> None:
        """Handle the cancellation of a consumer, which may delete an auto-delete queue."""
        if consumer.engine_consumer is not None:
            self.topology.consumer_gone(consumer.engine_consumer.queue_id, consumer)

    def has_consumer(self, tag: str) -> bool:
        """Whether the tag is in use, also by a pseudo-queue's consumer."""
        is_of_replies = self.reply_name is not None and tag == self.reply_tag
        return tag in self.deliveries.consumers or tag in self.placed or is_of_replies

    # Direct replies

    def begin_replies(self, tag: str) -> None:
        """Start receiving direct replies."""
        self.reply_tag = tag
        self.reply_name = self.session.context.replies.begin(self)

    def end_replies(self) -> None:
        if self.reply_name is not None:
            self.session.context.replies.end(self.reply_name)
            self.reply_name = None

    def receive_reply(self, origin: bytes, properties: bytes, body: bytes) -> None:
        """Send a direct reply to the peer, unless it leaves too many bytes unread."""
        if self.is_closing:
            return
        if self.session.unread_bytes <= MAX_UNREAD_REPLIES_BYTES:
            self.deliveries.push(delivery_prefix(self.reply_tag), origin, properties, body)
        elif not self._has_lost_replies:
            self._has_lost_replies = True
            log.warning("dropping direct replies to %s: peer does not read", self.session.peer)

    # Transactions

    def begin_transaction(self) -> None:
        if self.transaction is None:
            self.transaction = self.publisher.transaction = Transaction(self.session)

    def commit(self, transaction: Transaction, done: Done) -> None:
        """Commit a transaction and start the next one."""
        self._commit = Commit(self, transaction, self.publisher, self.deliveries)
        self._commit.begin(done)

    def roll_back(self, transaction: Transaction) -> None:
        """Discard the messages of the transaction, and make its acked deliveries unacked again."""
        transaction.drop_contents()
        # In one call: each call sorts the unacked deliveries, and a transaction may hold a hundred thousand acks.
        settled: dict[int, Lease] = {}
        for _, leases in transaction.take_settled():
            settled.update(leases)
        if settled:
            self.deliveries.put_back(settled)

    def settle_later(self, transaction: Transaction, settlement: Settlement, tag: int, multiple: bool) -> None:
        """Ack or reject a delivery, or all up to it, at the commit."""
        transaction.settle(settlement, self.deliveries.take(tag, multiple))

    # Names

    def queue_name(self, name: str) -> str:
        """Return the name, or the name of the last declared queue if it is empty."""
        if name:
            return stripped(name)
        if self.last_queue is None:
            raise refusal(ReplyCode.NOT_FOUND, "no previously declared queue")
        return self.last_queue

    def find_queue(
        self, method: Method, name: str, act: Callable[[QueueHandle | None], None], declared: Queue | None = None
    ) -> None:
        """Call `act` with the named queue, or None.

        If the name is unknown, changes of peers are applied first: one may just have created the queue. With
        `declared`, the name is claimed for this node.
        """
        session, queues = self.session, self.session.context.queues
        found = queues.find(session.vhost, name, session.homes)
        if found is not None or not queues.peering.is_clustered:
            act(found)
        else:
            self.wait_for((method.CLASS_ID, method.METHOD_ID), self._look_for(name, act, declared))

    async def _look_for(
        self, name: str, act: Callable[[QueueHandle | None], None], declared: Queue | None
    ) -> Callable[[], None]:
        session, queues = self.session, self.session.context.queues
        if declared is not None:
            # Checked first: a refused declaration must not claim the name.
            check_declaration(declared)
        await queues.peering.catch_up()
        if declared is not None and queues.locate(session.vhost, name, session.homes) is None:
            await queues.peering.settle_name(session.vhost, name)

        def go_on() -> None:
            # A claimed name needs its queue, which is therefore declared even if the channel has been closed.
            if declared is not None or not self.is_closing:
                act(queues.find(session.vhost, name, session.homes))
            if session.is_gone:
                self.topology.delete_owned(session)

        return go_on

    def use_queue(self, method: Method, name: str, act: Callable[[QueueHandle], None]) -> None:
        """Call `act` with the named queue.

        Raises QueueNotFound, or QueueLocked for another connection's exclusive queue.
        """

        def use(queue: QueueHandle | None) -> None:
            if queue is None:
                raise QueueNotFound(name, self.session.vhost)
            queue.check_access(self.session)
            act(queue)

        self.find_queue(method, name, use)

    # Answers

    def reply(self, method: Method, *, unless: bool = False) -> None:
        if not unless:
            self.session.send(method.encode())

    def carry_out(self, method: Method, answer: Callable[[], Method], operation: Callable[[Done], object]) -> None:
        """Run an operation and reply when it is durable; until then the connection executes no further methods."""

        def finish() -> None:
            if not (self.is_closing or getattr(method, "no_wait", False)):
                self.session.send(answer().encode())

        self.perform((method.CLASS_ID, method.METHOD_ID), operation, finish)

    def change(self, method: Method, answer: Callable[[], Method], operation: Callable[[Done], object]) -> None:
        """Change shared topology, and reply when the change is durable and all peers have applied it.

        After the reply a client may use another node, which must know the change.
        """
        session = self.session

        async def follow(done: Done) -> None:
            await session.hub.peering.followed()
            done(None)

        def begin(done: Done) -> None:
            is_new = False

            def stored(error: FlyballError | None) -> None:
                # A change that completed at once did not affect shared state.
                if error is not None or not is_new or not session.broker.is_clustered:
                    done(error)
                else:
                    session.hub.spawn(follow(done), session)

            operation(stored)
            is_new = True

        self.carry_out(method, answer, begin)

    def ask(self, method: Method, operation: Callable[[Answer[T]], object], answer: Callable[[T], Method]) -> None:
        """Run an operation and reply with its result."""
        results: list[T] = []

        def begin(done: Done) -> None:
            def answered(result: T, error: FlyballError | None) -> None:
                results.append(result)
                done(error)

            operation(answered)

        self.carry_out(method, lambda: answer(results[0]), begin)


def stripped(name: str) -> str:
    """Return a name without line breaks, as RabbitMQ does."""
    return name.replace("\r", "").replace("\n", "") if "\n" in name or "\r" in name else name
