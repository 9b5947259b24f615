"""What AMQP's clients of this node do with queues of other nodes, and how consumers change over between them.

Which node serves a queue and how it is reached is not known here: `remote` knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from flyball.broker.core.directory import RemoteQueue
from flyball.broker.core.pending import Marking
from flyball.broker.core.presentation import present
from flyball.broker.core.topology import Headers, check_queue_name
from flyball.broker.engine.access import Action
from flyball.broker.engine.consumer import Consumer
from flyball.broker.engine.queue import WorkingQueue
from flyball.broker.engine.traits import check_alike, check_declaration, described
from flyball.broker.peering.link.peers import Settled
from flyball.broker.peering.remote import PutDone, Remotes
from flyball.broker.protocols.amqp.consuming import (
    AmqpConsumer,
    Lease,
    consumer_arguments,
    is_void,
    new_tag,
    selector_in,
)
from flyball.broker.protocols.amqp.context import REPLY_TO, AmqpContext
from flyball.broker.protocols.amqp.placed import PLACEMENT
from flyball.broker.protocols.amqp.replies import refusal
from flyball.broker.transport.connection import Hub
from flyball.broker.wire import amqp, link
from flyball.broker.wire.amqp import Method, Publish, ReplyCode
from flyball.broker.wire.link import Outcome
from flyball.errors import (
    ConsumerRefused,
    FlyballError,
    PeerLost,
    QueueLocked,
    QueueNotFound,
    StoreError,
)
from flyball.model import Message, Queue

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

    def __init__(self, context: AmqpContext, remotes: Remotes, hub: Hub) -> None:
        self.remotes = remotes
        self.is_in_company: Callable[[], bool] = lambda: True
        """Whether there are other nodes."""
        self._context = context
        self._topology = context.topology
        self._engine = context.topology.engine
        self._broker = context.topology.broker
        self._directory = remotes.directory
        self._hub = hub
        context.dead_letters.afar = self

    @property
    def node_id(self) -> int:
        return self.remotes.peers.node_id

    # Names

    def find(self, session: AmqpSession, name: str) -> Found | None:
        """Return what a name means for a connection: where it was sent to, else this node's queue, else any."""
        if session.homes:
            home = session.homes.get((session.vhost, name))
            if home is not None:
                working = self._engine.find_working(home)
                found = self._directory.get(home) if working is None else working
                if found is not None:
                    return found
        working = self._engine.find_queue(name, session.vhost)
        return self._directory.find(session.vhost, name) if working is None else working

    def has_queue(self, session: AmqpSession, name: str) -> bool:
        """Whether another node has a queue of that name. Raises QueueLocked if it is not to be used."""
        found = self.find(session, name)
        if not isinstance(found, RemoteQueue):
            return False
        _check_lock(found.queue)
        return True

    def route(
        self, session: AmqpSession, exchange: str, routing_keys: Sequence[str], headers: Headers
    ) -> tuple[Sequence[WorkingQueue], Sequence[RemoteQueue]]:
        """Return the queues here and elsewhere that get a message. Raises ExchangeNotFound."""
        here: list[WorkingQueue] = []
        elsewhere: list[RemoteQueue] = []
        for name in self._names(session.vhost, exchange, routing_keys, headers):
            found = self.find(session, name)
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

    # Methods

    def takes_over(self, channel: Channel, method: Method) -> bool:
        """Carry out a method that names a queue which is not this node's. False if it is the node's own matter."""
        handler = _HANDLERS.get(type(method))
        if handler is None or not self.is_in_company():
            return False
        name: str = method.queue  # type: ignore[attr-defined]
        if name or (channel.last_queue and not isinstance(method, amqp.QueueDeclare)):
            name = channel.queue_name(name)
        if not name or name == PLACEMENT or name.startswith(REPLY_TO):
            return False
        found = self.find(channel.session, name)
        if isinstance(found, WorkingQueue):
            return False
        if found is None:
            channel.session.wait_for(channel.number, _ids(method), self._look_again(channel, method, name))
            return True
        return handler(self, channel, method, found)

    async def _look_again(self, channel: Channel, method: Method, name: str) -> Act:
        """Another node may just have made the queue: ask, and then carry the method out for good."""
        if isinstance(method, amqp.QueueDeclare) and not method.passive:
            self._check_declaration(channel, method, name)
        await self.remotes.catch_up()
        if isinstance(method, amqp.QueueDeclare) and not method.passive and self.find(channel.session, name) is None:
            await self.remotes.settle_name(channel.session.vhost, name)

        def act() -> None:
            if channel.is_closing and not isinstance(method, amqp.QueueDeclare):
                return
            handler = _HANDLERS[type(method)]
            found = self.find(channel.session, name)
            if not isinstance(found, RemoteQueue) or not handler(self, channel, method, found):
                channel.handle_here(method)
            if channel.session.is_gone:
                # Nobody would ever let go of what is its own. The name that was claimed goes with the queue.
                self._topology.delete_owned(channel.session)

        return act

    def _check_declaration(self, channel: Channel, method: amqp.QueueDeclare, name: str) -> None:
        """Refuse what this node would refuse, before a name is claimed for it."""
        session = channel.session
        session.check(Action.CONFIGURE, name, f"queue '{name}'")
        check_queue_name(name)
        check_declaration(_declared(session.vhost, method, name))

    def declare(self, channel: Channel, method: amqp.QueueDeclare, remote: RemoteQueue) -> bool:
        session = channel.session
        name = remote.queue.name
        if not method.passive:
            session.check(Action.CONFIGURE, name, f"queue '{name}'")
            check_queue_name(name)
        _check_lock(remote.queue)
        if not method.passive:
            if method.exclusive:
                raise QueueLocked(name, session.vhost)
            check_alike(remote.queue, _declared(session.vhost, method, name))

        async def attempt(target: Found) -> Act:
            if isinstance(target, WorkingQueue):
                return partial(channel.handle_here, method)
            ready, consumers = await self.remotes.counts(target.queue.id)

            def act() -> None:
                channel.last_queue = name
                channel.reply(amqp.QueueDeclareOk(channel.number, name, ready, consumers), unless=method.no_wait)

            return act

        session.wait_for(channel.number, _ids(method), self._at_owner(remote.queue, attempt))
        return True

    def bind(self, channel: Channel, method: amqp.QueueBind, remote: RemoteQueue) -> bool:
        """A binding is every node's own matter, once it is known that there is such a queue."""
        return False

    def purge(self, channel: Channel, method: amqp.QueuePurge, remote: RemoteQueue) -> bool:
        session = channel.session
        session.check(Action.READ, remote.queue.name, f"queue '{remote.queue.name}'")
        _check_lock(remote.queue)

        async def attempt(target: Found) -> Act:
            if isinstance(target, WorkingQueue):
                return partial(channel.handle_here, method)
            count = await self.remotes.purge(target.queue.id)
            return lambda: channel.reply(amqp.QueuePurgeOk(channel.number, count), unless=method.no_wait)

        session.wait_for(channel.number, _ids(method), self._at_owner(remote.queue, attempt))
        return True

    def delete(self, channel: Channel, method: amqp.QueueDelete, remote: RemoteQueue) -> bool:
        session = channel.session
        queue = remote.queue
        session.check(Action.CONFIGURE, queue.name, f"queue '{queue.name}'")
        _check_lock(queue)
        if self._topology.traits_of(queue).is_quorum and (method.if_unused or method.if_empty):
            flag = "if-unused" if method.if_unused else "if-empty"
            raise refusal(
                ReplyCode.NOT_IMPLEMENTED,
                f"cannot delete {described(queue.name, queue.vhost)}. queue.delete operations with {flag} flag set"
                " are not supported by quorum queues",
            )

        async def attempt(target: Found) -> Act:
            if isinstance(target, WorkingQueue):
                return partial(channel.handle_here, method)
            count = await self.remotes.delete(queue.id, if_unused=method.if_unused, if_empty=method.if_empty)
            await self.remotes.catch_up()
            await self._hub.company.followed()
            return lambda: channel.reply(amqp.QueueDeleteOk(channel.number, count), unless=method.no_wait)

        async def work() -> Act:
            try:
                return await self._at_owner(queue, attempt)
            except QueueNotFound:
                return lambda: channel.reply(amqp.QueueDeleteOk(channel.number, 0), unless=method.no_wait)

        session.wait_for(channel.number, _ids(method), work())
        return True

    # Consuming

    def consume(self, channel: Channel, method: amqp.BasicConsume, remote: RemoteQueue) -> bool:
        session = channel.session
        queue = remote.queue
        tag = method.consumer_tag or new_tag()
        if channel.has_consumer(tag):
            # To change a window or to be refused.
            return False
        session.check(Action.READ, queue.name, f"queue '{queue.name}'")
        _check_lock(queue)
        priority, prefetch = consumer_arguments(method.arguments, described(queue.name, queue.vhost))
        selector = selector_in(method.arguments, described(queue.name, queue.vhost))
        is_quorum = self._topology.traits_of(queue).is_quorum
        if is_quorum and channel.deliveries.window.limit:
            raise refusal(
                ReplyCode.NOT_IMPLEMENTED, f"{described(queue.name, queue.vhost)} does not support global qos"
            )
        consumer = AmqpConsumer(
            channel,
            tag,
            queue,
            no_ack=method.no_ack,
            prefetch=channel.deliveries.prefetch if prefetch is None else prefetch,
            priority=priority,
            exclusive=method.exclusive,
            counts_deliveries=is_quorum or method.arguments.get("x-delivery-count") is True,
            selector=selector,
            arguments=method.arguments,
        )

        def begun() -> None:
            channel.reply(amqp.BasicConsumeOk(channel.number, tag), unless=method.no_wait)

        async def work() -> Act:
            await self._at_owner(queue, lambda target: self._attach(consumer, target, begun, is_new=True))
            return _nothing

        session.wait_for(channel.number, _ids(method), work())
        return True

    async def _at_owner(self, queue: Queue, attempt: Callable[[Found], Awaitable[T]]) -> T:
        """Try something with a queue wherever it is served, until that succeeds or it was lost for too long."""
        deadline_s = asyncio.get_running_loop().time() + PATIENCE_S
        backoff_s = BROKEN_LINK_S
        while True:
            working = self._engine.find_working(queue.id)
            target = self._directory.get(queue.id) if working is None else working
            if target is None:
                raise QueueNotFound(queue.name, queue.vhost)
            try:
                return await attempt(target)
            except QueueNotFound as error:
                if isinstance(target, WorkingQueue) or asyncio.get_running_loop().time() >= deadline_s:
                    raise QueueNotFound(queue.name, queue.vhost) from error
                await self.remotes.until_known(target)
            except PeerLost as error:
                if asyncio.get_running_loop().time() >= deadline_s:
                    raise
                await self._until_worth_it(error.node_id, backoff_s)
                backoff_s = min(2 * backoff_s, RETRY_S)

    async def _attach(
        self, consumer: AmqpConsumer, target: Found, begun: Callable[[], None], *, is_new: bool = False
    ) -> None:
        """Let a consumer be sent what a queue has, here or elsewhere. Raises what its owner says."""
        deliveries = consumer.channel.deliveries

        def is_over() -> bool:
            """Its client has gone, or has cancelled it, while others were asked."""
            return consumer.channel.is_closing or not (is_new or consumer.is_running)

        if isinstance(target, WorkingQueue):
            if is_over():
                return
            self._topology.check_consumer(target, exclusive=consumer.exclusive)
            deliveries.attach(consumer, target, begun)
            self._topology.consumer_added(target, consumer, exclusive=consumer.exclusive)
            return
        done: asyncio.Future[FlyballError | None] = asyncio.get_running_loop().create_future()

        def started(engine_consumer: Consumer) -> None:
            if is_over():
                self._broker.cancel(engine_consumer)
            else:
                deliveries.is_afar = True
                deliveries.started(consumer, engine_consumer, target.queue)
                begun()
            if not done.done():
                done.set_result(None)

        def failed(error: FlyballError) -> None:
            if not done.done():
                done.set_result(error)

        self.remotes.attach(
            target,
            consumer,
            prefetch=consumer.prefetch,
            priority=consumer.priority,
            exclusive=consumer.exclusive,
            keeps_none=consumer.no_ack,
            shared=None if consumer.no_ack else deliveries.window,
            begun=started,
            failed=failed,
            selector=consumer.selector,
            prepare=partial(_present, target.queue.name),
        )
        error = await done
        if error is not None:
            raise error

    def get(self, channel: Channel, method: amqp.BasicGet, remote: RemoteQueue) -> bool:
        session = channel.session
        queue = remote.queue
        session.check(Action.READ, queue.name, f"queue '{queue.name}'")
        _check_lock(queue)
        session.check_held_back()
        is_quorum = self._topology.traits_of(queue).is_quorum

        async def attempt(target: Found) -> Act:
            if isinstance(target, WorkingQueue):
                return partial(channel.handle_here, method)
            message, ready = await self._get(target)

            def act() -> None:
                if message is None:
                    session.send(amqp.BasicGetEmpty(channel.number).encode())
                elif channel.is_closing or session.is_gone:
                    self._broker.give_back([message])
                else:
                    channel.deliveries.is_afar = True
                    channel.deliveries.hand_over(queue.name, ready, message, counted=is_quorum, no_ack=method.no_ack)

            return act

        session.wait_for(channel.number, _ids(method), self._at_owner(queue, attempt))
        return True

    async def _get(self, remote: RemoteQueue) -> tuple[Message | None, int]:
        answer: asyncio.Future[tuple[Message | None, int, FlyballError | None]]
        answer = asyncio.get_running_loop().create_future()

        def found(message: Message | None, ready: int, error: FlyballError | None) -> None:
            if not answer.done():
                answer.set_result((message, ready, error))
            elif message is not None:
                self._broker.give_back([message])

        self.remotes.get(remote, found, partial(_present, remote.queue.name))
        message, ready, error = await answer
        if error is not None:
            raise error
        return message, ready

    # Changing over

    def follow(self, consumer: AmqpConsumer) -> None:
        """Let a consumer whose queue is not where it was go on wherever it is now."""
        if not consumer.is_changing:
            consumer.is_changing = True
            self._hub.spawn(self._follow(consumer))

    async def _follow(self, consumer: AmqpConsumer) -> None:
        """Attach a consumer again, if need be as often as its queue moves meanwhile."""
        has_looked = False
        backoff_s = BROKEN_LINK_S
        while consumer.is_running:
            try:
                target = self._home_of(consumer)
                if target is None:
                    if has_looked:
                        consumer.ended()
                        break
                    has_looked = True
                    await self.remotes.catch_up()
                    continue
                await self._attach(consumer, target, _nothing)
                # It may have been lost again before this task had its turn.
                if consumer.engine_consumer is not None and not consumer.engine_consumer.is_cancelled:
                    break
            except ConsumerRefused:
                consumer.ended()
            except PeerLost as error:
                await self._until_worth_it(error.node_id, backoff_s)
                backoff_s = min(2 * backoff_s, RETRY_S)
            except (QueueNotFound, StoreError):
                await self.remotes.news(RETRY_S)
            has_looked = False
        consumer.is_changing = False

    async def _until_worth_it(self, node_id: int, backoff_s: float) -> None:
        """Wait before a node that was lost is asked again; only for `backoff_s` if just the link broke."""
        await self.remotes.news(backoff_s if self.remotes.peers.can_reach(node_id) else RETRY_S)

    def _home_of(self, consumer: AmqpConsumer) -> Found | None:
        """Return the queue of a consumer wherever it is now; of a clustered one, another member if that is gone."""
        queue = consumer.queue
        working = self._engine.find_working(queue.id)
        found = self._directory.get(queue.id) if working is None else working
        if found is None and queue.member:
            return self.find(consumer.channel.session, queue.name)
        return found

    async def move(self, consumer: AmqpConsumer, target: Found, time_limit_s: float = 5.0) -> bool:
        """Let a consumer go on with another queue, without its client noticing. False if it cannot.

        It gets nothing more from the old one. What it has not settled within the time goes back there, as
        redelivered, and may be settled without an effect.
        """
        old = consumer.engine_consumer
        if old is None or consumer.is_changing or not consumer.is_running:
            return False
        consumer.is_changing = True
        deliveries = consumer.channel.deliveries
        self._leave(consumer, old)
        if old.leases:
            settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            deliveries.leaving[old.id] = lambda: None if settled.done() else settled.set_result(None)
            try:
                async with asyncio.timeout(time_limit_s):
                    await settled
            except TimeoutError:
                deliveries.void(old)
            finally:
                deliveries.leaving.pop(old.id, None)
        consumer.queue = target.queue
        await self._follow(consumer)
        return consumer.is_running

    def _leave(self, consumer: AmqpConsumer, old: Consumer) -> None:
        self._broker.cancel(old)
        working = self._engine.find_working(old.queue_id)
        if working is not None and working.original is None and not working.queue.auto_delete:
            self._topology.consumer_gone(old.queue_id, consumer)

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
        if not self.is_in_company():
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


Handler = Callable[[Afar, "Channel", Any, RemoteQueue], bool]

_HANDLERS: Mapping[type[Method], Handler] = {
    amqp.QueueDeclare: Afar.declare,
    amqp.QueueBind: Afar.bind,
    amqp.QueuePurge: Afar.purge,
    amqp.QueueDelete: Afar.delete,
    amqp.BasicConsume: Afar.consume,
    amqp.BasicGet: Afar.get,
}


def _ids(method: Method) -> tuple[int, int]:
    return method.CLASS_ID, method.METHOD_ID


def _nothing() -> None:
    """There is nothing left to do or to tell."""


def _nobody_asks(token: int, outcome: int) -> None:
    """A publisher without confirms does not want to know."""


def _charged(session: AmqpSession, size_bytes: int, done: PutDone) -> PutDone:
    """Charge a message to its publisher until it is answered, or dropped since the publisher has gone."""
    session.forwarding_bytes += size_bytes

    def answered(token: int, outcome: int) -> None:
        session.forwarding_bytes -= size_bytes
        done(token, outcome)

    return answered


def _check_lock(queue: Queue) -> None:
    """An exclusive queue is that of a connection of its own node."""
    if queue.exclusive:
        raise QueueLocked(queue.name, queue.vhost)


def _declared(vhost: str, method: amqp.QueueDeclare, name: str) -> Queue:
    is_durable = method.durable and not method.exclusive
    return Queue(0, name, vhost, is_durable, method.exclusive, method.auto_delete, method.arguments)


def _present(queue_name: str, message: Message) -> None:
    """Show a message of another protocol as AMQP shows it, while it is known whether it is persistent."""
    message.origin, message.properties = present(message, queue_name)
