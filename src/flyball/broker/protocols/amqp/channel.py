"""One channel: what each of AMQP's methods does there. Which errors end what is decided in `replies`.

A method is carried out at once; its answer goes out when what it changed is in the store, and the connection
takes no further methods until then, so that answers keep the order of their questions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from flyball.broker.core.handles import Counts, Got, QueueHandle
from flyball.broker.core.pending import Answer
from flyball.broker.core.topology import check_queue_name
from flyball.broker.engine.access import Action
from flyball.broker.engine.traits import check_declaration, described
from flyball.broker.protocols.amqp.consuming import (
    UNLIMITED,
    AmqpConsumer,
    Deliveries,
    Lease,
    Settling,
    consumer_arguments,
    new_queue_name,
    new_tag,
    selector_in,
)
from flyball.broker.protocols.amqp.context import REPLY_TO
from flyball.broker.protocols.amqp.placed import PLACEMENT, PlacedSession, consume_placement, end_placed
from flyball.broker.protocols.amqp.publishing import Publisher
from flyball.broker.protocols.amqp.replies import refusal, reply_of
from flyball.broker.protocols.amqp.transactions import Commit
from flyball.broker.wire import amqp
from flyball.broker.wire.amqp import Method, ReplyCode
from flyball.broker.wire.link import Settlement
from flyball.errors import FlyballError, InvalidArgument, QueueNotFound, ReservedName
from flyball.model import Binding, Destination, Exchange, Queue

if TYPE_CHECKING:
    from flyball.broker.protocols.amqp.session import AmqpSession


T = TypeVar("T")

# What one transaction may publish, with a copy for each queue, and settle: its commit is one batch, made in one turn
# of the loop, and 50,000 steps take a third of a second. A rejected message may be dead-lettered, which takes ten
# times as long.
MAX_TRANSACTION_STEPS = 50_000
REJECTION_STEPS = 10


class Channel:
    """A channel of a connection, from its opening to its end."""

    __slots__ = (
        "commit",
        "deliveries",
        "is_closing",
        "last_queue",
        "number",
        "placed",
        "publisher",
        "reply_name",
        "reply_tag",
        "session",
        "settling",
        "settling_steps",
    )

    def __init__(self, session: AmqpSession, number: int) -> None:
        self.session = session
        self.number = number
        self.publisher = Publisher(self)
        self.deliveries = Deliveries(self)
        self.last_queue: str | None = None
        """The name of the queue that was declared last: the one that an empty name stands for."""
        self.reply_name: str | None = None
        """Where direct replies to this channel go."""
        self.reply_tag = ""
        self.placed: dict[str, PlacedSession] = {}
        """The sessions of clustered queues that it serves, by consumer tag."""
        self.settling: list[Settling] | None = None
        """What the transaction that is under way has settled, until its commit."""
        self.settling_steps = 0
        self.commit: Commit | None = None
        """The one that is under way."""
        self.is_closing = False
        """Whether it has failed and waits for the peer to notice: what comes meanwhile is ignored."""

    def handle(self, method: Method) -> None:
        """Carry out a method. Raises a FlyballError that ends the channel or the connection."""
        handler = HANDLERS.get(type(method))
        if handler is None:
            raise refusal(ReplyCode.COMMAND_INVALID, "unimplemented method")
        handler(self, method)

    @property
    def uncommitted_acks(self) -> int:
        """How many deliveries are acked in the transaction that is under way."""
        return sum([len(leases) for settlement, leases in self.settling or () if settlement is Settlement.ACK])

    def settle_with_commit(self, settlement: Settlement, leases: dict[int, Lease]) -> None:
        """Note what the transaction settles. Raises AmqpError, and so ends the channel, if that becomes too much."""
        assert self.settling is not None
        self.settling.append((settlement, leases))
        self.settling_steps += len(leases) * (REJECTION_STEPS if settlement is Settlement.REJECT else 1)
        self.check_transaction()

    def check_transaction(self) -> None:
        """Raise AmqpError if the transaction has become larger than one may be."""
        if self.settling_steps + self.publisher.transaction_copies > MAX_TRANSACTION_STEPS:
            raise refusal(
                ReplyCode.PRECONDITION_FAILED,
                f"a transaction may publish and settle {MAX_TRANSACTION_STEPS} messages in all queues:"
                " commit earlier",
            )

    def roll_back(self) -> None:
        """Let what the transaction has settled be unacked again."""
        self.settling_steps = 0
        settling, self.settling = self.settling or (), []
        # All at once: each time what is unacked is sorted, and a transaction may have a hundred thousand acks.
        self.deliveries.put_back({tag: lease for _, leases in settling for tag, lease in leases.items()})

    def end(self) -> None:
        """Let go of what the channel holds."""
        session = self.session
        if self.settling:
            self.roll_back()
        if self.reply_name is not None:
            session.context.replies.pop(self.reply_name, None)
            self.reply_name = None
        for tag in list(self.placed):
            end_placed(self, tag, orderly=False)
        self.publisher.end()
        if self.commit is not None:
            self.commit.abandon()
        session.context.queues.peering.forget(self)
        if self.settling is not None:
            self.settling.clear()
        for consumer in self.deliveries.end():
            self.consumer_gone(consumer)

    def consumer_gone(self, consumer: AmqpConsumer) -> None:
        """A consumer has been cancelled: its queue may go with it."""
        if consumer.engine_consumer is not None:
            self.session.context.topology.consumer_gone(consumer.engine_consumer.queue_id, consumer)

    def has_consumer(self, tag: str) -> bool:
        """Whether there is a consumer of that tag, also one of what is no queue."""
        is_of_replies = self.reply_name is not None and tag == self.reply_tag
        return tag in self.deliveries.consumers or tag in self.placed or is_of_replies

    # Names

    def queue_name(self, name: str) -> str:
        """Return the name, or that of the queue declared last for an empty one."""
        if name:
            return _stripped(name)
        if self.last_queue is None:
            raise refusal(ReplyCode.NOT_FOUND, "no previously declared queue")
        return self.last_queue

    def find_queue(
        self, method: Method, name: str, act: Callable[[QueueHandle | None], None], declared: Queue | None = None
    ) -> None:
        """Act on the queue of a name. Peers may just have made one that is not known: they are asked first.

        If it is to be `declared`, its name is claimed for this node.
        """
        session, queues = self.session, self.session.context.queues
        found = queues.find(session.vhost, name, session.homes)
        if found is not None or not queues.peering.is_clustered:
            act(found)
        else:
            ids = (method.CLASS_ID, method.METHOD_ID)
            session.wait_for(self.number, ids, self._look_for(name, act, declared))

    async def _look_for(
        self, name: str, act: Callable[[QueueHandle | None], None], declared: Queue | None
    ) -> Callable[[], None]:
        session, queues = self.session, self.session.context.queues
        if declared is not None:
            # What would be refused claims no name.
            check_declaration(declared)
        await queues.peering.catch_up()
        if declared is not None and queues.locate(session.vhost, name, session.homes) is None:
            await queues.peering.settle_name(session.vhost, name)

        def go_on() -> None:
            # A name that was claimed goes with its queue, which is made even if nobody waits for that any more.
            if declared is not None or not self.is_closing:
                act(queues.find(session.vhost, name, session.homes))
            if session.is_gone:
                session.context.topology.delete_owned(session)

        return go_on

    def use_queue(self, method: Method, name: str, act: Callable[[QueueHandle], None]) -> None:
        """Act on the queue of a name, which this connection may use. Raises QueueNotFound, QueueLocked."""

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

    def change(
        self, method: Method, answer: Callable[[], Method], operation: Callable[[Callable[..., None]], object]
    ) -> None:
        """Change what all nodes use: it is answered when it is in the store and the others know it.

        Whoever has the answer may go to another node and find it so there.
        """
        hub = self.session.hub

        async def follow(done: Callable[..., None]) -> None:
            await hub.peering.followed()
            done()

        def begin(done: Callable[..., None]) -> None:
            is_new = False

            def stored(error: FlyballError | None = None) -> None:
                # What is done at once has changed nothing that others use.
                if error is not None or not is_new or not self.session.broker.is_clustered:
                    done(error)
                else:
                    hub.spawn(follow(done), self.session)

            operation(stored)
            is_new = True

        self.carry_out(method, answer, begin)

    def ask(self, method: Method, operation: Callable[[Answer[T]], object], answer: Callable[[T], Method]) -> None:
        """Do something that is answered with its result."""
        results: list[T] = []

        def begin(done: Callable[..., None]) -> None:
            def answered(result: T, error: FlyballError | None) -> None:
                results.append(result)
                done(error)

            operation(answered)

        self.carry_out(method, lambda: answer(results[0]), begin)

    def carry_out(
        self, method: Method, answer: Callable[[], Method], operation: Callable[[Callable[..., None]], object]
    ) -> None:
        """Do something that is answered when it is in the store.

        `operation` gets what to call then, or with an error. Until it is called the connection takes no more.
        """
        session = self.session
        is_done = False
        is_held = False

        def done(error: FlyballError | None = None) -> None:
            nonlocal is_done
            is_done = True
            if error is not None:
                if not (self.is_closing or session.is_gone):
                    session.fail(self.number, reply_of(error, method.CLASS_ID, method.METHOD_ID))
            elif not self.is_closing and not getattr(method, "no_wait", False):
                session.send(answer().encode())
            session.answered()
            if is_held:
                session.in_flight -= 1
                session.release()

        session.is_answering = True
        try:
            operation(done)
        except FlyballError:
            session.answered()
            raise
        if not is_done:
            is_held = True
            session.in_flight += 1
            session.hold()


def _stripped(name: str) -> str:
    """Return a name without line breaks, as RabbitMQ takes it."""
    return name.replace("\r", "").replace("\n", "") if "\n" in name or "\r" in name else name


# Exchanges


def exchange_declare(channel: Channel, method: amqp.ExchangeDeclare) -> None:
    session = channel.session
    name = _stripped(method.exchange)
    topology = session.context.topology
    answer = amqp.ExchangeDeclareOk(channel.number)
    if method.passive:
        if not name:
            raise ReservedName("operation not permitted on the default exchange")
        topology.router(session.vhost).get(name)
        channel.reply(answer, unless=method.no_wait)
        return
    session.check(Action.CONFIGURE, name, f"exchange '{name or 'amq.default'}'")
    exchange = Exchange(
        name,
        method.type,
        session.vhost,
        method.durable,
        method.auto_delete,
        method.internal,
        method.arguments,
    )
    alternate = method.arguments.get("alternate-exchange")
    if isinstance(alternate, str) and topology.router(session.vhost).find(name) is None:
        session.check(Action.READ, name, f"exchange '{name}'")
        session.check(Action.WRITE, alternate, f"exchange '{alternate}'")
    channel.change(method, lambda: answer, lambda done: topology.declare_exchange(exchange, done))


def exchange_delete(channel: Channel, method: amqp.ExchangeDelete) -> None:
    session = channel.session
    name = _stripped(method.exchange)
    if not name:
        raise ReservedName("operation not permitted on the default exchange")
    session.check(Action.CONFIGURE, name, f"exchange '{name}'")
    topology = session.context.topology
    channel.change(
        method,
        lambda: amqp.ExchangeDeleteOk(channel.number),
        lambda done: topology.delete_exchange(session.vhost, name, done, if_unused=method.if_unused),
    )


def exchange_bind(channel: Channel, method: amqp.ExchangeBind) -> None:
    binding = _exchange_binding(channel, method)
    topology = channel.session.context.topology
    channel.change(method, lambda: amqp.ExchangeBindOk(channel.number), lambda done: topology.bind(binding, done))


def exchange_unbind(channel: Channel, method: amqp.ExchangeUnbind) -> None:
    binding = _exchange_binding(channel, method)
    topology = channel.session.context.topology
    channel.change(method, lambda: amqp.ExchangeUnbindOk(channel.number), lambda done: topology.unbind(binding, done))


def _exchange_binding(channel: Channel, method: amqp.ExchangeBind | amqp.ExchangeUnbind) -> Binding:
    session = channel.session
    source, destination = _stripped(method.source), _stripped(method.destination)
    if not source or not destination:
        raise ReservedName("operation not permitted on the default exchange")
    session.check(Action.WRITE, destination, f"exchange '{destination}'")
    session.check(Action.READ, source, f"exchange '{source}'")
    return Binding(source, destination, Destination.EXCHANGE, method.routing_key, method.arguments, session.vhost)


# Queues


def queue_declare(channel: Channel, method: amqp.QueueDeclare) -> None:
    session = channel.session
    name = _stripped(method.queue)
    if name.startswith(REPLY_TO):
        _declare_reply_queue(channel, method, name)
    elif method.passive:
        channel.use_queue(method, name, lambda queue: _declare_known(channel, method, queue, queue.use))
    elif name:
        session.check(Action.CONFIGURE, name, f"queue '{name}'")
        check_queue_name(name)
        _declare(channel, method, declared_queue(session.vhost, name, method))
    else:
        if method.arguments.get("x-queue-type") == "quorum":
            raise InvalidArgument("Cannot declare a server-named queue for type rabbit_quorum_queue")
        name = new_queue_name()
        session.check(Action.CONFIGURE, name, f"queue '{name}'")
        declared = declared_queue(session.vhost, name, method)
        _check_dead_letter_exchange(channel, declared)
        # No other node has that name: it need not be claimed.
        _declare_new(channel, method, declared)


def _declare(channel: Channel, method: amqp.QueueDeclare, declared: Queue) -> None:
    """Declare a queue, wherever it is; a new one on this node."""
    session = channel.session
    if session.context.queues.locate(session.vhost, declared.name, session.homes) is None:
        _check_dead_letter_exchange(channel, declared)

    def act(queue: QueueHandle | None) -> None:
        if queue is None:
            _declare_new(channel, method, declared)
        else:
            _declare_known(channel, method, queue, partial(queue.declare, declared, session))

    channel.find_queue(method, declared.name, act, declared)


def _check_dead_letter_exchange(channel: Channel, declared: Queue) -> None:
    """Raise NotPermitted unless the user may read the queue and write to its dead-letter exchange."""
    exchange = declared.arguments.get("x-dead-letter-exchange")
    if isinstance(exchange, str):
        channel.session.check(Action.READ, declared.name, f"queue '{declared.name}'")
        channel.session.check(Action.WRITE, exchange, f"exchange '{exchange or 'amq.default'}'")


def _declare_new(channel: Channel, method: amqp.QueueDeclare, declared: Queue) -> None:
    session = channel.session
    topology = session.context.topology
    channel.change(
        method,
        lambda: amqp.QueueDeclareOk(channel.number, declared.name, 0, 0),
        lambda done: topology.declare_queue(declared, session, done),
    )
    channel.last_queue = declared.name


def _declare_known(
    channel: Channel, method: amqp.QueueDeclare, queue: QueueHandle, declare: Callable[[Answer[Counts]], None]
) -> None:
    def answer(counts: Counts) -> Method:
        channel.last_queue = queue.queue.name
        return amqp.QueueDeclareOk(channel.number, queue.queue.name, counts.ready, counts.consumers)

    channel.ask(method, declare, answer)


def declared_queue(vhost: str, name: str, method: amqp.QueueDeclare) -> Queue:
    """Return a queue as it is declared. One that ends with its connection is never durable, whatever is asked for."""
    is_durable = method.durable and not method.exclusive
    return Queue(0, name, vhost, is_durable, method.exclusive, method.auto_delete, method.arguments)


def _declare_reply_queue(channel: Channel, method: amqp.QueueDeclare, name: str) -> None:
    """Direct replies go to something that looks like a queue while its consumer is there."""
    if name != REPLY_TO and not channel.session.context.has_reply_queue(name):
        raise QueueNotFound(name, channel.session.vhost)
    channel.reply(amqp.QueueDeclareOk(channel.number, name, 0, 1), unless=method.no_wait)


def queue_bind(channel: Channel, method: amqp.QueueBind) -> None:
    session = channel.session
    binding = _queue_binding(channel, method)
    topology = session.context.topology
    topology.router(session.vhost).get(binding.source)

    def bind(queue: QueueHandle) -> None:
        channel.change(method, lambda: amqp.QueueBindOk(channel.number), lambda done: topology.bind(binding, done))

    channel.use_queue(method, binding.destination, bind)


def queue_unbind(channel: Channel, method: amqp.QueueUnbind) -> None:
    binding = _queue_binding(channel, method)
    topology = channel.session.context.topology

    def unbind(queue: QueueHandle | None = None) -> None:
        channel.change(
            method, lambda: amqp.QueueUnbindOk(channel.number), lambda done: topology.unbind(binding, done)
        )

    if topology.router(binding.vhost).has_binding(binding):
        channel.use_queue(method, binding.destination, unbind)
    else:
        # What is not bound is no error, whosever queue it is.
        unbind()


def _queue_binding(channel: Channel, method: amqp.QueueBind | amqp.QueueUnbind) -> Binding:
    session = channel.session
    queue_name = channel.queue_name(method.queue)
    exchange = _stripped(method.exchange)
    # Without a queue's name there is no routing key either: the queue's name stands for both.
    routing_key = queue_name if not method.queue and not method.routing_key else method.routing_key
    if not exchange:
        raise ReservedName("operation not permitted on the default exchange")
    session.check(Action.WRITE, queue_name, f"queue '{queue_name}'")
    session.check(Action.READ, exchange, f"exchange '{exchange}'")
    return Binding(exchange, queue_name, Destination.QUEUE, routing_key, method.arguments, session.vhost)


def queue_purge(channel: Channel, method: amqp.QueuePurge) -> None:
    name = channel.queue_name(method.queue)
    channel.session.check(Action.READ, name, f"queue '{name}'")

    def purge(queue: QueueHandle) -> None:
        channel.ask(method, queue.purge, lambda count: amqp.QueuePurgeOk(channel.number, count))

    channel.use_queue(method, name, purge)


def queue_delete(channel: Channel, method: amqp.QueueDelete) -> None:
    name = channel.queue_name(method.queue)
    channel.session.check(Action.CONFIGURE, name, f"queue '{name}'")

    def delete(queue: QueueHandle | None) -> None:
        if queue is None:
            channel.reply(amqp.QueueDeleteOk(channel.number, 0), unless=method.no_wait)
        else:
            _delete(channel, method, queue)

    channel.find_queue(method, name, delete)


def _delete(channel: Channel, method: amqp.QueueDelete, queue: QueueHandle) -> None:
    queue.check_access(channel.session)
    if queue.traits.is_quorum and (method.if_unused or method.if_empty):
        flag = "if-unused" if method.if_unused else "if-empty"
        raise refusal(
            ReplyCode.NOT_IMPLEMENTED,
            f"cannot delete {described(queue.queue.name, queue.queue.vhost)}. queue.delete operations with {flag}"
            " flag set are not supported by quorum queues",
        )
    deleted = 0

    def begin(done: Callable[..., None]) -> None:
        def answered(count: int, error: FlyballError | None) -> None:
            nonlocal deleted
            deleted = count
            # While another node was asked for it somebody else may have deleted it.
            done(None if isinstance(error, QueueNotFound) else error)

        queue.delete(answered, if_unused=method.if_unused, if_empty=method.if_empty)

    channel.change(method, lambda: amqp.QueueDeleteOk(channel.number, deleted), begin)


# Consuming


def basic_qos(channel: Channel, method: amqp.BasicQos) -> None:
    if method.prefetch_size:
        raise refusal(ReplyCode.NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})")
    if method.global_:
        channel.deliveries.set_shared_prefetch(method.prefetch_count)
    else:
        channel.deliveries.set_prefetch(method.prefetch_count or UNLIMITED)
    channel.reply(amqp.BasicQosOk(channel.number))


def basic_consume(channel: Channel, method: amqp.BasicConsume) -> None:
    session = channel.session
    tag = method.consumer_tag or new_tag()
    if _changes_window(channel, method, tag):
        return
    if channel.has_consumer(tag):
        raise refusal(ReplyCode.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
    if method.queue == PLACEMENT:
        consume_placement(channel, method, tag)
        return
    if method.queue == REPLY_TO:
        _consume_replies(channel, method, tag)
        return
    name = channel.queue_name(method.queue)
    session.check(Action.READ, name, f"queue '{name}'")
    channel.use_queue(method, name, lambda queue: _consume(channel, method, tag, queue))


def _consume(channel: Channel, method: amqp.BasicConsume, tag: str, queue: QueueHandle) -> None:
    what = described(queue.queue.name, queue.queue.vhost)
    deliveries = channel.deliveries
    priority, prefetch = consumer_arguments(method.arguments, what)
    selector = selector_in(method.arguments, what)
    is_quorum = queue.traits.is_quorum
    if is_quorum and deliveries.window.limit:
        raise refusal(ReplyCode.NOT_IMPLEMENTED, f"{what} does not support global qos")
    consumer = AmqpConsumer(
        channel,
        tag,
        queue.queue,
        no_ack=method.no_ack,
        prefetch=deliveries.prefetch if prefetch is None else prefetch,
        priority=priority,
        exclusive=method.exclusive,
        counts_deliveries=is_quorum or method.arguments.get("x-delivery-count") is True,
        selector=selector,
        arguments=method.arguments,
    )
    channel.carry_out(
        method, lambda: amqp.BasicConsumeOk(channel.number, tag), lambda done: queue.consume(consumer, done)
    )


def _changes_window(channel: Channel, method: amqp.BasicConsume, tag: str) -> bool:
    """Give a running consumer another window, if it is asked for again with one; tell whether it was.

    RabbitMQ refuses the tag of a running consumer. `basic.qos`, which changes windows, has no place for a fraction.
    """
    consumer = channel.deliveries.consumers.get(tag)
    if consumer is None or consumer.no_ack or method.no_ack:
        return False
    name = channel.queue_name(method.queue)
    _, prefetch = consumer_arguments(method.arguments, described(name, channel.session.vhost))
    if prefetch is None or consumer.queue_name != name:
        return False
    channel.reply(amqp.BasicConsumeOk(channel.number, tag), unless=method.no_wait)
    channel.deliveries.set_consumer_prefetch(consumer, prefetch)
    return True


def _consume_replies(channel: Channel, method: amqp.BasicConsume, tag: str) -> None:
    """Begin to receive direct replies."""
    if not method.no_ack:
        raise refusal(ReplyCode.PRECONDITION_FAILED, "reply consumer cannot acknowledge")
    if channel.reply_name is not None:
        raise refusal(ReplyCode.PRECONDITION_FAILED, "reply consumer already set")
    channel.reply_tag = tag
    channel.reply_name = channel.session.context.new_reply_name(channel)
    channel.reply(amqp.BasicConsumeOk(channel.number, tag), unless=method.no_wait)


def basic_cancel(channel: Channel, method: amqp.BasicCancel) -> None:
    if channel.reply_name is not None and method.consumer_tag == channel.reply_tag:
        channel.session.context.replies.pop(channel.reply_name, None)
        channel.reply_name = None
    end_placed(channel, method.consumer_tag, orderly=True)
    consumer = channel.deliveries.cancel(method.consumer_tag)
    channel.reply(amqp.BasicCancelOk(channel.number, method.consumer_tag), unless=method.no_wait)
    if consumer is not None:
        channel.consumer_gone(consumer)


def basic_get(channel: Channel, method: amqp.BasicGet) -> None:
    name = channel.queue_name(method.queue)
    channel.session.check(Action.READ, name, f"queue '{name}'")
    channel.use_queue(method, name, lambda queue: _get(channel, method, queue))


def _get(channel: Channel, method: amqp.BasicGet, queue: QueueHandle) -> None:
    session = channel.session
    session.check_held_back()
    is_done = False
    is_held = False

    def found(got: Got, error: FlyballError | None) -> None:
        nonlocal is_done
        is_done = True
        if channel.is_closing or session.is_gone:
            if got.message is not None:
                session.broker.bring_back(got.message)
        elif error is not None:
            session.fail(channel.number, reply_of(error, method.CLASS_ID, method.METHOD_ID))
        elif got.message is None:
            session.send(amqp.BasicGetEmpty(channel.number).encode())
        else:
            is_counted = queue.traits.is_quorum
            channel.deliveries.hand_over(
                queue.queue.name, got.ready, got.message, counted=is_counted, no_ack=method.no_ack
            )
        if is_held:
            session.in_flight -= 1
            session.release()

    queue.get(found, no_ack=method.no_ack)
    if not is_done:
        is_held = True
        session.in_flight += 1
        session.hold()


# Settling


def basic_ack(channel: Channel, method: amqp.BasicAck) -> None:
    deliveries = channel.deliveries
    if channel.settling is None:
        deliveries.acknowledge(method.delivery_tag, method.multiple)
    else:
        channel.settle_with_commit(Settlement.ACK, deliveries.take(method.delivery_tag, method.multiple))


def basic_nack(channel: Channel, method: amqp.BasicNack) -> None:
    _reject(channel, method.delivery_tag, method.multiple, method.requeue)


def basic_reject(channel: Channel, method: amqp.BasicReject) -> None:
    _reject(channel, method.delivery_tag, False, method.requeue)


def _reject(channel: Channel, tag: int, multiple: bool, requeue: bool) -> None:
    deliveries = channel.deliveries
    if channel.settling is None:
        deliveries.reject(tag, multiple, requeue)
    else:
        settlement = Settlement.REQUEUE if requeue else Settlement.REJECT
        channel.settle_with_commit(settlement, deliveries.take(tag, multiple))


def basic_recover(channel: Channel, method: amqp.BasicRecover) -> None:
    _recover(channel, method.requeue)
    channel.reply(amqp.BasicRecoverOk(channel.number))


def basic_recover_async(channel: Channel, method: amqp.BasicRecoverAsync) -> None:
    _recover(channel, method.requeue)


def _recover(channel: Channel, requeue: bool) -> None:
    if not requeue:
        raise refusal(ReplyCode.NOT_IMPLEMENTED, "requeue=false")
    channel.deliveries.recover()


# Confirms and transactions


def confirm_select(channel: Channel, method: amqp.ConfirmSelect) -> None:
    if channel.settling is not None:
        raise refusal(ReplyCode.PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
    channel.publisher.is_confirming = True
    channel.reply(amqp.ConfirmSelectOk(channel.number), unless=method.no_wait)


def tx_select(channel: Channel, method: amqp.TxSelect) -> None:
    if channel.publisher.is_confirming:
        raise refusal(ReplyCode.PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    if channel.settling is None:
        channel.settling = []
        channel.publisher.transaction = []
    channel.reply(amqp.TxSelectOk(channel.number))


def tx_commit(channel: Channel, method: amqp.TxCommit) -> None:
    if channel.settling is None:
        raise refusal(ReplyCode.PRECONDITION_FAILED, "channel is not transactional")
    channel.settling_steps = 0
    channel.carry_out(method, lambda: amqp.TxCommitOk(channel.number), Commit(channel).begin)


def tx_rollback(channel: Channel, method: amqp.TxRollback) -> None:
    if channel.settling is None:
        raise refusal(ReplyCode.PRECONDITION_FAILED, "channel is not transactional")
    channel.publisher.drop_transaction()
    channel.roll_back()
    channel.reply(amqp.TxRollbackOk(channel.number))


# The channel itself


def channel_flow(channel: Channel, method: amqp.ChannelFlow) -> None:
    if not method.active:
        raise refusal(ReplyCode.NOT_IMPLEMENTED, "active=false")
    channel.reply(amqp.ChannelFlowOk(channel.number, True))


def access_request(channel: Channel, method: amqp.AccessRequest) -> None:
    channel.reply(amqp.AccessRequestOk(channel.number, 1))


Handler = Callable[[Channel, Any], None]

HANDLERS: Mapping[type[Method], Handler] = {
    amqp.ExchangeDeclare: exchange_declare,
    amqp.ExchangeDelete: exchange_delete,
    amqp.ExchangeBind: exchange_bind,
    amqp.ExchangeUnbind: exchange_unbind,
    amqp.QueueDeclare: queue_declare,
    amqp.QueueBind: queue_bind,
    amqp.QueueUnbind: queue_unbind,
    amqp.QueuePurge: queue_purge,
    amqp.QueueDelete: queue_delete,
    amqp.BasicQos: basic_qos,
    amqp.BasicConsume: basic_consume,
    amqp.BasicCancel: basic_cancel,
    amqp.BasicGet: basic_get,
    amqp.BasicAck: basic_ack,
    amqp.BasicNack: basic_nack,
    amqp.BasicReject: basic_reject,
    amqp.BasicRecover: basic_recover,
    amqp.BasicRecoverAsync: basic_recover_async,
    amqp.ConfirmSelect: confirm_select,
    amqp.TxSelect: tx_select,
    amqp.TxCommit: tx_commit,
    amqp.TxRollback: tx_rollback,
    amqp.ChannelFlow: channel_flow,
    amqp.AccessRequest: access_request,
}
