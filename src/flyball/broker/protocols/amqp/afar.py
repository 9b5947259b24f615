"""What AMQP's clients of this node do with queues of other nodes, and how consumers change over between them.

Which node serves a queue and how it is reached is not known here: `remote` knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from flyball.broker.core.directory import RemoteQueue
from flyball.broker.core.pending import Marking
from flyball.broker.core.topology import Headers
from flyball.broker.engine.queue import WorkingQueue
from flyball.broker.peering.link.peers import Settled
from flyball.broker.peering.remote import PutDone, Remotes
from flyball.broker.protocols.amqp.consuming import Lease, is_void
from flyball.broker.protocols.amqp.context import REPLY_TO, AmqpContext
from flyball.broker.wire import amqp, link
from flyball.broker.wire.amqp import Publish
from flyball.broker.wire.link import Outcome
from flyball.errors import (
    FlyballError,
)
from flyball.model import Message

if TYPE_CHECKING:
    from flyball.broker.protocols.amqp.channel import Channel
    from flyball.broker.protocols.amqp.publishing import Content, Publisher
    from flyball.broker.protocols.amqp.session import AmqpSession

RETRY_S = 0.5
"""After so long something is tried again whose node could not be reached, if nothing has changed before."""

# A dead letter that another node does not confirm is put again after twice as long each time, up to this.
MAX_BACKOFF_S = 30.0

# After so long a node is asked again whose link broke, and after twice as long each time, up to `RETRY_S`: a request
# that breaks the link whenever it is made must not keep it from others.
BROKEN_LINK_S = 0.02

PATIENCE_S = 15.0
"""For so long a client waits for a queue whose node cannot be reached."""

T = TypeVar("T")

Found = WorkingQueue | RemoteQueue
Act = Callable[[], None]


class _Confirm:
    """Counts who has to say of a message that it is safe: the store here, and other nodes."""

    __slots__ = ("_is_refused", "_left", "_number", "_publisher")

    def __init__(self, publisher: Publisher, number: int, left: int) -> None:
        self._publisher = publisher
        self._number = number
        self._left = left
        self._is_refused = False

    def answered(self, _: int, outcome: int) -> None:
        self._one(outcome in (Outcome.FULL, Outcome.UNKNOWN))

    def stored(self, error: FlyballError | None) -> None:
        self._one(error is not None)

    def refuse(self) -> None:
        self._is_refused = True

    def _one(self, is_refused: bool) -> None:
        self._is_refused |= is_refused
        self._left -= 1
        if self._left == 0:
            self._publisher.confirm_afar(self._number, is_refused=self._is_refused)


class Afar:
    """One for a node that may have company."""

    def __init__(self, context: AmqpContext, remotes: Remotes) -> None:
        self.remotes = remotes
        self._context = context
        self._topology = context.topology
        self._engine = context.topology.engine
        self._broker = context.topology.broker
        self._directory = remotes.directory
        context.dead_letters.afar = self

    @property
    def node_id(self) -> int:
        return self.remotes.peers.node_id

    def route(
        self, session: AmqpSession, exchange: str, routing_keys: Sequence[str], headers: Headers
    ) -> tuple[Sequence[WorkingQueue], Sequence[RemoteQueue]]:
        """Return the queues here and elsewhere that get a message. Raises ExchangeNotFound."""
        here: list[WorkingQueue] = []
        elsewhere: list[RemoteQueue] = []
        for name in self._names(session.vhost, exchange, routing_keys, headers):
            found = self._context.queues.locate(session.vhost, name, session.homes)
            if isinstance(found, WorkingQueue):
                here.append(found)
            elif found is not None:
                elsewhere.append(found)
        return here, elsewhere

    def _names(self, vhost: str, exchange: str, routing_keys: Sequence[str], headers: Headers) -> Sequence[str]:
        router = self._topology.router(vhost)
        if len(routing_keys) == 1:
            return list(router.route(exchange, routing_keys[0], headers))
        return list(router.route_keys(exchange, routing_keys, headers))

    # Publishing

    def publish(self, channel: Channel, content: Content) -> None:
        """Put a message into queues here and elsewhere; it is confirmed when all have it."""
        publisher, sent = channel.publisher, content.on_link()
        session = channel.session
        # While other nodes owe too many answers the message is its publisher's, which takes no further one meanwhile.
        must_wait = self.remotes.must_wait
        if not publisher.is_confirming:
            self._context.intake.put_content(content.targets, sent)
            answered: PutDone = _nobody_asks
        else:
            number = publisher.begin_afar()
            awaits = content.persistent and any(working.is_stored for working in content.targets)
            confirm = _Confirm(publisher, number, 2 if awaits else 1)
            first_id = self._engine.next_message_id
            if self._context.intake.put_content(content.targets, sent) is Outcome.FULL:
                confirm.refuse()
            if awaits:
                self._broker.journal.mark(Marking(confirm.stored, (), first_id, self._engine.next_message_id))
            answered = confirm.answered
        if must_wait:
            answered = _charged(session, sent.size_bytes, answered)
        self.remotes.put(content.elsewhere, sent, answered, 0, owner=channel)
        if self.remotes.must_wait:
            session.hold()
            self.remotes.when_clear(session.release)
        if must_wait:
            session.charge_if_changed()

    def look_before_publishing(self, channel: Channel, publish: Publish) -> bool:
        """Publish a message, which this node would lose, after others had the chance to tell of its queue."""
        if not self._context.queues.peering.is_clustered:
            return False

        async def work() -> Act:
            await self.remotes.catch_up()
            return partial(channel.publisher.publish_again, publish)

        ids = (amqp.BasicPublish.CLASS_ID, amqp.BasicPublish.METHOD_ID)
        channel.session.wait_for(channel.number, ids, work())
        return True

    def settled(self) -> Settled:
        """Return which way acknowledgements went since the last call."""
        return self.remotes.peers.take_settled()

    def settled_in_vain(self) -> None:
        """Something was settled that belongs to others again."""
        self.remotes.peers.settled.is_in_vain = True

    def is_lost(self, lease: Lease) -> bool:
        """Whether a delivered message comes again from another node: to ack it has no effect."""
        message = lease[1]
        working = self._engine.find_working(message.queue_id)
        if is_void(lease) or (working is None and message.queue_id < 0):
            return True
        if working is None:
            # If nobody serves its queue it is deleted, and the message gone.
            return self._directory.get(message.queue_id) is not None
        return message.id not in working.out

    # Dead letters

    def dead_letter_targets(
        self, vhost: str, exchange: str, routing_keys: Sequence[str], headers: Headers
    ) -> list[RemoteQueue]:
        """Return the queues of other nodes that get a dead letter."""
        found: list[RemoteQueue] = []
        for name in self._names(vhost, exchange, routing_keys, headers):
            remote = None
            if self._engine.find_queue(name, vhost) is None:
                remote = self._directory.find(vhost, name)
            if remote is not None:
                found.append(remote)
        return found

    def send_dead_letter(
        self,
        remotes: Sequence[RemoteQueue],
        content: link.Content,
        working: WorkingQueue,
        message: Message,
        reason: str,
    ) -> None:
        """Put a dead letter into queues of other nodes, and remove the dead message when that is done.

        While nobody knows whether it is, it is put again: better twice than never.
        """
        is_out = message.id in working.out
        backoff_s = RETRY_S

        def answered(_: int, outcome: int) -> None:
            nonlocal backoff_s
            if outcome == Outcome.UNKNOWN and is_out and self._engine.has_queue(message.queue_id):
                asyncio.get_running_loop().call_later(backoff_s, put_again)
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
            elif is_out:
                # Queues of this node may have got a copy, whose insert need not be written yet.
                self._broker.settle_written(message)

        def put_again() -> None:
            if message.id not in working.out:
                return
            try:
                self.remotes.put(remotes, content, answered, 0)
            except Exception as error:
                self._broker.dead_lettering.park(working, message, reason, error)

        self.remotes.put(remotes, content, answered, 0)

    # Direct replies

    def node_of_reply(self, name: str) -> int | None:
        """Return the other node whose channel waits for direct replies of that name."""
        node_id = name.removeprefix(REPLY_TO + ".").partition(".")[0]
        if not node_id.isdecimal() or not self.remotes.peers.can_reach(int(node_id)):
            return None
        return int(node_id)

    def reply(self, name: str, origin: bytes, properties: bytes, body: bytes) -> None:
        """Send a direct reply to the node whose channel waits for it."""
        node_id = self.node_of_reply(name)
        if node_id is not None:
            self.remotes.reply(node_id, name, link.Content(body, properties, origin))


def _nobody_asks(token: int, outcome: int) -> None:
    """A publisher without confirms does not want to know."""


def _charged(session: AmqpSession, size_bytes: int, done: PutDone) -> PutDone:
    """Charge a message to its publisher until it is answered, or dropped since the publisher has gone."""
    session.forwarding_bytes += size_bytes

    def answered(token: int, outcome: int) -> None:
        session.forwarding_bytes -= size_bytes
        done(token, outcome)

    return answered
