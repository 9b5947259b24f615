"""AMQP methods about messages, and the table of all methods of a channel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flyball.broker.core.handles import Got, QueueHandle
from flyball.broker.core.pending import Done
from flyball.broker.engine.access import Action
from flyball.broker.engine.traits import described
from flyball.broker.protocols.amqp.arguments import consumer_arguments, new_tag, selector_in
from flyball.broker.protocols.amqp.channel import Channel
from flyball.broker.protocols.amqp.consumers import UNLIMITED, AmqpConsumer
from flyball.broker.protocols.amqp.declarations import DECLARATIONS
from flyball.broker.protocols.amqp.direct_replies import REPLY_TO
from flyball.broker.protocols.amqp.placement import MAX_SESSIONS, PLACEMENT, PlacedSession, session_id_in
from flyball.broker.protocols.amqp.replies import refusal
from flyball.broker.protocols.amqp.transactions import Transaction
from flyball.broker.wire import amqp
from flyball.broker.wire.amqp import Command, ReplyCode
from flyball.broker.wire.link import Settlement
from flyball.errors import FlyballError, InvalidArgument

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
        _consume_placement(channel, method, tag)
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
        deliveries,
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
    """Change the prefetch window of a running consumer on a repeated basic.consume; return whether this is one.

    RabbitMQ refuses the tag of a running consumer. `basic.qos`, which also changes windows, cannot carry a fraction.
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
    """Start receiving direct replies."""
    if not method.no_ack:
        raise refusal(ReplyCode.PRECONDITION_FAILED, "reply consumer cannot acknowledge")
    if channel.reply_name is not None:
        raise refusal(ReplyCode.PRECONDITION_FAILED, "reply consumer already set")
    channel.begin_replies(tag)
    channel.reply(amqp.BasicConsumeOk(channel.number, tag), unless=method.no_wait)


def _consume_placement(channel: Channel, method: amqp.BasicConsume, tag: str) -> None:
    """Register the session of a placed client."""
    if not method.no_ack:
        raise refusal(ReplyCode.PRECONDITION_FAILED, "placement consumer cannot acknowledge")
    session_id = session_id_in(method.arguments)
    if channel.session.placed_sessions >= MAX_SESSIONS:
        raise InvalidArgument(f"a connection may serve {MAX_SESSIONS} sessions of clustered queues")
    placed = channel.placed[tag] = PlacedSession(channel.deliveries, tag, session_id)
    channel.session.hub.placement.arrived(session_id, placed)
    channel.reply(amqp.BasicConsumeOk(channel.number, tag), unless=method.no_wait)


def basic_cancel(channel: Channel, method: amqp.BasicCancel) -> None:
    tag = method.consumer_tag
    if tag == channel.reply_tag:
        channel.end_replies()
    if tag in channel.placed:
        channel.placed.pop(tag).end(orderly=True)
    consumer = channel.deliveries.cancel(tag)
    channel.reply(amqp.BasicCancelOk(channel.number, tag), unless=method.no_wait)
    if consumer is not None:
        channel.consumer_gone(consumer)


def basic_get(channel: Channel, method: amqp.BasicGet) -> None:
    name = channel.queue_name(method.queue)
    channel.session.check(Action.READ, name, f"queue '{name}'")
    channel.use_queue(method, name, lambda queue: _get(channel, method, queue))


def _get(channel: Channel, method: amqp.BasicGet, queue: QueueHandle) -> None:
    session = channel.session
    session.check_held_back()
    taken = Got()

    def begin(done: Done) -> None:
        def found(got: Got, error: FlyballError | None) -> None:
            nonlocal taken
            taken = got
            done(error)

        queue.get(found, no_ack=method.no_ack)

    def finish() -> None:
        message = taken.message
        if message is None:
            session.send(amqp.BasicGetEmpty(channel.number).encode())
        elif channel.is_over:
            session.broker.requeue_undelivered(message)
        else:
            is_counted = queue.traits.is_quorum
            channel.deliveries.hand_over(
                queue.queue.name, taken.ready, message, counted=is_counted, no_ack=method.no_ack
            )

    channel.perform((method.CLASS_ID, method.METHOD_ID), begin, finish)


# Acks


def basic_ack(channel: Channel, method: amqp.BasicAck) -> None:
    if channel.transaction is None:
        channel.deliveries.acknowledge(method.delivery_tag, method.multiple)
    else:
        channel.settle_later(channel.transaction, Settlement.ACK, method.delivery_tag, method.multiple)


def basic_nack(channel: Channel, method: amqp.BasicNack) -> None:
    _reject(channel, method.delivery_tag, method.multiple, method.requeue)


def basic_reject(channel: Channel, method: amqp.BasicReject) -> None:
    _reject(channel, method.delivery_tag, False, method.requeue)


def _reject(channel: Channel, tag: int, multiple: bool, requeue: bool) -> None:
    if channel.transaction is None:
        channel.deliveries.reject(tag, multiple, requeue)
    else:
        settlement = Settlement.REQUEUE if requeue else Settlement.REJECT
        channel.settle_later(channel.transaction, settlement, tag, multiple)


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
    if channel.transaction is not None:
        raise refusal(ReplyCode.PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
    channel.publisher.is_confirming = True
    channel.reply(amqp.ConfirmSelectOk(channel.number), unless=method.no_wait)


def tx_select(channel: Channel, method: amqp.TxSelect) -> None:
    if channel.publisher.is_confirming:
        raise refusal(ReplyCode.PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    channel.begin_transaction()
    channel.reply(amqp.TxSelectOk(channel.number))


def tx_commit(channel: Channel, method: amqp.TxCommit) -> None:
    transaction = _transaction_of(channel)
    channel.carry_out(method, lambda: amqp.TxCommitOk(channel.number), lambda done: channel.commit(transaction, done))


def tx_rollback(channel: Channel, method: amqp.TxRollback) -> None:
    channel.roll_back(_transaction_of(channel))
    channel.reply(amqp.TxRollbackOk(channel.number))


def _transaction_of(channel: Channel) -> Transaction:
    if channel.transaction is None:
        raise refusal(ReplyCode.PRECONDITION_FAILED, "channel is not transactional")
    return channel.transaction


# The channel itself


def channel_flow(channel: Channel, method: amqp.ChannelFlow) -> None:
    if not method.active:
        raise refusal(ReplyCode.NOT_IMPLEMENTED, "active=false")
    channel.reply(amqp.ChannelFlowOk(channel.number, True))


def access_request(channel: Channel, method: amqp.AccessRequest) -> None:
    channel.reply(amqp.AccessRequestOk(channel.number, 1))


Handler = Callable[[Channel, Any], None]

ON_CHANNEL: Mapping[type[Command], Handler] = {
    **DECLARATIONS,
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
