"""AMQP methods that declare, bind, purge and delete exchanges and queues."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from flyball.broker.core.handles import QueueCounts, QueueHandle
from flyball.broker.core.pending import Answer, Done
from flyball.broker.core.topology import check_queue_name
from flyball.broker.engine.access import Action
from flyball.broker.engine.traits import described
from flyball.broker.protocols.amqp.arguments import new_queue_name
from flyball.broker.protocols.amqp.channel import Channel, stripped
from flyball.broker.protocols.amqp.direct_replies import REPLY_TO
from flyball.broker.protocols.amqp.replies import refusal
from flyball.broker.wire import amqp
from flyball.broker.wire.amqp import Command, Method, ReplyCode
from flyball.errors import FlyballError, InvalidArgument, QueueNotFound, ReservedName
from flyball.model import Binding, Destination, Exchange, Queue

# Exchanges


def exchange_declare(channel: Channel, method: amqp.ExchangeDeclare) -> None:
    session = channel.session
    name = stripped(method.exchange)
    router = channel.topology.router(session.vhost)
    answer = amqp.ExchangeDeclareOk(channel.number)
    if method.passive:
        _check_not_default(name)
        router.get(name)
        channel.reply(answer, unless=method.no_wait)
        return
    session.check(Action.CONFIGURE, name, f"exchange '{name or 'amq.default'}'")
    exchange = Exchange(
        name, method.type, session.vhost, method.durable, method.auto_delete, method.internal, method.arguments
    )
    alternate = method.arguments.get("alternate-exchange")
    if isinstance(alternate, str) and router.find(name) is None:
        session.check(Action.READ, name, f"exchange '{name}'")
        session.check(Action.WRITE, alternate, f"exchange '{alternate}'")
    channel.change(method, lambda: answer, partial(channel.topology.declare_exchange, exchange))


def exchange_delete(channel: Channel, method: amqp.ExchangeDelete) -> None:
    session = channel.session
    name = stripped(method.exchange)
    _check_not_default(name)
    session.check(Action.CONFIGURE, name, f"exchange '{name}'")
    channel.change(
        method,
        lambda: amqp.ExchangeDeleteOk(channel.number),
        lambda done: channel.topology.delete_exchange(session.vhost, name, done, if_unused=method.if_unused),
    )


def exchange_bind(channel: Channel, method: amqp.ExchangeBind) -> None:
    binding = _exchange_binding(channel, method)
    channel.change(method, lambda: amqp.ExchangeBindOk(channel.number), partial(channel.topology.bind, binding))


def exchange_unbind(channel: Channel, method: amqp.ExchangeUnbind) -> None:
    binding = _exchange_binding(channel, method)
    channel.change(method, lambda: amqp.ExchangeUnbindOk(channel.number), partial(channel.topology.unbind, binding))


def _exchange_binding(channel: Channel, method: amqp.ExchangeBind | amqp.ExchangeUnbind) -> Binding:
    session = channel.session
    source, destination = stripped(method.source), stripped(method.destination)
    _check_not_default(source)
    _check_not_default(destination)
    session.check(Action.WRITE, destination, f"exchange '{destination}'")
    session.check(Action.READ, source, f"exchange '{source}'")
    return Binding(source, destination, Destination.EXCHANGE, method.routing_key, method.arguments, session.vhost)


def _check_not_default(exchange: str) -> None:
    if not exchange:
        raise ReservedName("operation not permitted on the default exchange")


# Queues


def queue_declare(channel: Channel, method: amqp.QueueDeclare) -> None:
    session = channel.session
    name = stripped(method.queue)
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
        # A generated name is unique: no need to claim it.
        _declare_new(channel, method, declared)


def _declare(channel: Channel, method: amqp.QueueDeclare, declared: Queue) -> None:
    """Declare a queue on any node; create a new one on this node."""
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
    channel.change(
        method,
        lambda: amqp.QueueDeclareOk(channel.number, declared.name, 0, 0),
        partial(channel.topology.declare_queue, declared, channel.session),
    )
    channel.last_queue = declared.name


def _declare_known(
    channel: Channel, method: amqp.QueueDeclare, queue: QueueHandle, declare: Callable[[Answer[QueueCounts]], None]
) -> None:
    def answer(counts: QueueCounts) -> Method:
        channel.last_queue = queue.queue.name
        return amqp.QueueDeclareOk(channel.number, queue.queue.name, counts.ready, counts.consumers)

    channel.ask(method, declare, answer)


def declared_queue(vhost: str, name: str, method: amqp.QueueDeclare) -> Queue:
    """Return the queue of a declare method. An exclusive queue is never durable, even if declared so."""
    is_durable = method.durable and not method.exclusive
    return Queue(0, name, vhost, is_durable, method.exclusive, method.auto_delete, method.arguments)


def _declare_reply_queue(channel: Channel, method: amqp.QueueDeclare, name: str) -> None:
    """Reply to a declare of the direct-reply pseudo-queue, which exists as long as its consumer."""
    if name != REPLY_TO and not channel.session.context.replies.has(name):
        raise QueueNotFound(name, channel.session.vhost)
    channel.reply(amqp.QueueDeclareOk(channel.number, name, 0, 1), unless=method.no_wait)


def queue_bind(channel: Channel, method: amqp.QueueBind) -> None:
    binding = _queue_binding(channel, method)
    channel.topology.router(binding.vhost).get(binding.source)

    def bind(queue: QueueHandle) -> None:
        channel.change(method, lambda: amqp.QueueBindOk(channel.number), partial(channel.topology.bind, binding))

    channel.use_queue(method, binding.destination, bind)


def queue_unbind(channel: Channel, method: amqp.QueueUnbind) -> None:
    binding = _queue_binding(channel, method)

    def unbind(queue: QueueHandle | None = None) -> None:
        channel.change(method, lambda: amqp.QueueUnbindOk(channel.number), partial(channel.topology.unbind, binding))

    if channel.topology.router(binding.vhost).has_binding(binding):
        channel.use_queue(method, binding.destination, unbind)
    else:
        # Removing a missing binding is not an error, even for an exclusive queue of another connection.
        unbind()


def _queue_binding(channel: Channel, method: amqp.QueueBind | amqp.QueueUnbind) -> Binding:
    session = channel.session
    queue_name = channel.queue_name(method.queue)
    exchange = stripped(method.exchange)
    # If both queue name and routing key are empty, the name of the last declared queue is used for both.
    routing_key = queue_name if not method.queue and not method.routing_key else method.routing_key
    _check_not_default(exchange)
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

    def begin(done: Done) -> None:
        def answered(count: int, error: FlyballError | None) -> None:
            nonlocal deleted
            deleted = count
            # Another client may have deleted it while the request was sent to its node.
            done(None if isinstance(error, QueueNotFound) else error)

        queue.delete(answered, if_unused=method.if_unused, if_empty=method.if_empty)

    channel.change(method, lambda: amqp.QueueDeleteOk(channel.number, deleted), begin)


DECLARATIONS: Mapping[type[Command], Callable[[Channel, Any], None]] = {
    amqp.ExchangeDeclare: exchange_declare,
    amqp.ExchangeDelete: exchange_delete,
    amqp.ExchangeBind: exchange_bind,
    amqp.ExchangeUnbind: exchange_unbind,
    amqp.QueueDeclare: queue_declare,
    amqp.QueueBind: queue_bind,
    amqp.QueueUnbind: queue_unbind,
    amqp.QueuePurge: queue_purge,
    amqp.QueueDelete: queue_delete,
}
