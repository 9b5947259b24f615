"""The consuming side of a channel: consumers, deliveries, acks and requeues."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from flyball.broker.core.memory import CONSUMER_BYTES, page_out
from flyball.broker.core.presentation import present, with_delivery_count
from flyball.broker.engine.consumer import SLOW_PEER, Consumer, SharedWindow
from flyball.broker.protocols.amqp.channel_state import ChannelState
from flyball.broker.protocols.amqp.replies import refusal
from flyball.broker.protocols.amqp.transactions import Lease
from flyball.broker.wire.amqp import BasicCancel, ReplyCode, delivery_prefix, encode_delivery, encode_get_ok
from flyball.broker.wire.link import Settlement
from flyball.model import MESSAGE_OVERHEAD_BYTES, Message, Queue, Selector, size_of

UNLIMITED = float("inf")

# Replaces a delivery that was requeued, which the peer may still ack.
_VOID: Lease = (None, Message(0, 0, b"", persistent=False))


def is_void(lease: Lease) -> bool:
    """Whether an ack has no effect because the message was requeued."""
    return lease is _VOID


@dataclass(slots=True, eq=False)
class AmqpConsumer:
    """A consumer with its tag; the owner of a consumer of the engine.

    It can move to another queue, or with its queue to another node. Then it has a new engine consumer, and earlier
    deliveries are acked with the old one.
    """

    deliveries: Deliveries
    tag: str
    # The queue that it consumes; may be remote.
    queue: Queue
    no_ack: bool
    prefetch: float
    priority: int
    exclusive: bool
    counts_deliveries: bool
    # Filters messages; None for all messages in queue order.
    selector: Selector | None
    arguments: Mapping[str, Any]
    # Whether consume-ok was sent.
    has_begun: bool = False
    # Whether it is moving to another queue or node; it receives no messages in this state.
    is_changing: bool = False
    engine_consumer: Consumer | None = None
    size_bytes: int = 0
    _prefix: bytes = b""

    def __post_init__(self) -> None:
        self.size_bytes = CONSUMER_BYTES + size_of(self.arguments)
        self._prefix = delivery_prefix(self.tag)

    @property
    def queue_name(self) -> str:
        return self.queue.name

    @property
    def window(self) -> SharedWindow:
        return self.deliveries.window

    @property
    def is_over(self) -> bool:
        """Whether it was cancelled, or its channel closed."""
        if self.deliveries.channel.is_closing:
            return True
        return self.has_begun and self.deliveries.consumers.get(self.tag) is not self

    @property
    def is_attached(self) -> bool:
        """Whether a queue delivers to it."""
        return self.engine_consumer is not None and not self.engine_consumer.is_cancelled

    def started(self, consumer: Consumer, queue: Queue) -> None:
        """Deliver to it from this engine consumer from now on."""
        self.engine_consumer = consumer
        self.queue = queue
        self.has_begun = True
        self.deliveries.started(self, consumer)

    def deliver(self, consumer: Consumer, message: Message) -> None:
        """Send a message; with no_ack it is acked at once."""
        deliveries = self.deliveries
        tag = deliveries.last_tag = deliveries.last_tag + 1
        origin, properties = message.origin, message.properties
        if not origin:
            origin, properties = present(message, self.queue.name)
        redelivered = message.delivery_count > 0 or message.recovered
        if redelivered:
            deliveries.redelivered += 1
            if self.counts_deliveries and message.delivery_count:
                properties = with_delivery_count(properties, message.delivery_count)
        session = deliveries.session
        session.note_delivery(message)
        session.send_delivery(
            encode_delivery(
                deliveries.channel.number,
                self._prefix,
                tag,
                redelivered,
                origin,
                properties,
                message.body,
                session.frame_max,
            )
        )
        if self.no_ack:
            session.broker.settle(message)
        else:
            deliveries.unacked[tag] = (consumer, message)

    def queue_deleted(self, consumer: Consumer) -> None:
        """Send basic.cancel, if the peer supports it."""
        self.ended()

    def ended(self) -> None:
        """Remove the consumer, and send basic.cancel if the peer supports it."""
        self.deliveries.forget(self.tag)
        session, channel = self.deliveries.session, self.deliveries.channel
        if session.understands("consumer_cancel_notify") and not channel.is_closing:
            session.send_after_answer(BasicCancel(channel.number, self.tag, True).encode())

    def crash(self, error: BaseException) -> None:
        self.deliveries.session.crash(error)

    def queue_moved(self, consumer: Consumer) -> None:
        """Attach to the queue on its new node."""
        if consumer is self.engine_consumer and not self.is_changing:
            self.is_changing = True
            self.deliveries.session.hub.spawn(self._follow())

    async def _follow(self) -> None:
        session = self.deliveries.session
        try:
            await session.context.queues.follow(self, session.homes)
        finally:
            self.is_changing = False

    async def move(self, queue: Queue, time_limit_s: float = 5.0) -> bool:
        """Continue on another queue, transparently for the client. Return False if that is not possible.

        Deliveries from the old queue stop. Messages that are not acked in time are requeued there as redelivered; a
        later ack has no effect.
        """
        old = self.engine_consumer
        if old is None or self.is_changing or self.is_over:
            return False
        self.is_changing = True
        self._leave(old)
        await self.deliveries.settled(old, time_limit_s)
        self.queue = queue
        await self._follow()
        return not self.is_over

    def _leave(self, old: Consumer) -> None:
        session = self.deliveries.session
        session.broker.cancel(old)
        state = session.broker.engine.find_queue_by_id(old.queue_id)
        if state is not None and state.original is None and not state.queue.auto_delete:
            session.context.topology.consumer_gone(old.queue_id, self)


class Deliveries:
    """The consumers and unacked deliveries of a channel."""

    __slots__ = (
        "_checks",
        "acknowledged",
        "broker",
        "channel",
        "consumers",
        "last_tag",
        "leaving",
        "prefetch",
        "redelivered",
        "session",
        "unacked",
        "window",
    )

    def __init__(self, channel: ChannelState) -> None:
        self.channel = channel
        self.session = channel.session
        self.broker = channel.session.broker
        self.consumers: dict[str, AmqpConsumer] = {}
        # By delivery tag, in delivery order.
        self.unacked: dict[int, Lease] = {}
        self.last_tag = 0
        # Redelivered messages so far.
        self.redelivered = 0
        self.acknowledged = 0
        # Prefetch window of new consumers.
        self.prefetch: float = UNLIMITED
        self.window = SharedWindow()
        # Callbacks by engine consumer id, called when no unacked delivery is left.
        self.leaving: dict[int, Callable[[], None]] = {}
        # Times of the checks for overdue acks, with the last delivery tag at each.
        self._checks: deque[tuple[float, int]] = deque()

    def is_overdue(self, now_s: float, limit_s: float) -> bool:
        """Whether a delivery has been unacked for longer than the limit, to the precision of the checks."""
        if not self.unacked:
            self._checks.clear()
            return False
        oldest = next(iter(self.unacked))
        self._checks.append((now_s, self.last_tag))
        while self._checks[0][1] < oldest:
            self._checks.popleft()
        return now_s - self._checks[0][0] >= limit_s

    # Consumers

    def started(self, consumer: AmqpConsumer, engine_consumer: Consumer) -> None:
        """Deliver to the consumer from this engine consumer from now on."""
        self._share_window(consumer)
        if consumer.tag not in self.consumers:
            # Charge at once: thousands may start before the channels are measured.
            self.session.channels_bytes += consumer.size_bytes
        self.consumers[consumer.tag] = consumer
        engine_consumer.paused_for = (
            SLOW_PEER if self.session.are_deliveries_paused or self.session.is_held_back else 0
        )

    def _share_window(self, consumer: AmqpConsumer) -> None:
        """Make a no_ack consumer wait while the shared window is full, as RabbitMQ does.

        Its deliveries do not use the window. Without a limit no window is set, which saves the check per message.
        """
        if consumer.no_ack and consumer.engine_consumer is not None:
            consumer.engine_consumer.shared = self.window if self.window.limit else None

    def forget(self, tag: str) -> AmqpConsumer | None:
        """Remove a consumer from the channel."""
        consumer = self.consumers.pop(tag, None)
        if consumer is not None:
            self.session.channels_bytes -= consumer.size_bytes
        return consumer

    def cancel(self, tag: str) -> AmqpConsumer | None:
        """Stop deliveries to a consumer; earlier ones can still be acked."""
        consumer = self.forget(tag)
        if consumer is not None and consumer.engine_consumer is not None:
            self.broker.cancel(consumer.engine_consumer)
        return consumer

    def set_prefetch(self, prefetch: float) -> None:
        """Change the prefetch window of all consumers, including running ones."""
        self.prefetch = prefetch
        for consumer in list(self.consumers.values()):
            if consumer.engine_consumer is not None and not consumer.no_ack:
                consumer.prefetch = prefetch
                self.broker.set_prefetch(consumer.engine_consumer, prefetch)

    def set_consumer_prefetch(self, consumer: AmqpConsumer, prefetch: float) -> None:
        """Change the prefetch window of one consumer."""
        consumer.prefetch = prefetch
        if consumer.engine_consumer is not None:
            self.broker.set_prefetch(consumer.engine_consumer, prefetch)

    def set_shared_prefetch(self, limit: int) -> None:
        """Change the window shared by all consumers of the channel."""
        self.window.limit = limit
        for consumer in self.consumers.values():
            self._share_window(consumer)
        for consumer in list(self.consumers.values()):
            if consumer.engine_consumer is not None and not consumer.no_ack:
                self.broker.shared_window_changed(consumer.engine_consumer, consumer.prefetch)
        self._feed_all()

    def pause(self) -> None:
        """Stop deliveries: the peer does not read."""
        for consumer in self.consumers.values():
            if consumer.engine_consumer is not None:
                self.broker.pause(consumer.engine_consumer)

    def resume(self) -> None:
        for consumer in list(self.consumers.values()):
            if consumer.engine_consumer is not None:
                self.broker.resume(consumer.engine_consumer)

    # Memory

    @property
    def unacked_bytes(self) -> int:
        """Bytes of unacked messages that are in memory."""
        bodies = 0
        for consumer in self.consumers.values():
            if consumer.engine_consumer is not None:
                bodies += consumer.engine_consumer.leased_bytes
        count = len(self.unacked) + sum([len(leases) for _, leases in self.channel.settling])
        return bodies + MESSAGE_OVERHEAD_BYTES * count

    def page_out(self, wanted_bytes: int) -> int:
        """Page out the bodies of stored unacked messages; return the number of bytes freed."""
        # Deliveries acked in a transaction stay unacked until its commit.
        acked = [reversed(leases.values()) for _, leases in reversed(self.channel.settling)]
        unacked = chain(reversed(self.unacked.values()), *acked)
        return page_out(self.broker.engine, unacked, wanted_bytes)

    # basic.get

    def hand_over(self, queue_name: str, ready: int, message: Message, *, counted: bool, no_ack: bool) -> None:
        """Reply to a basic.get with a message, with its delivery count if `counted`."""
        self.last_tag += 1
        origin, properties = message.origin, message.properties
        if not origin:
            origin, properties = present(message, queue_name)
        if message.redelivered:
            self.redelivered += 1
        if counted:
            properties = with_delivery_count(properties, message.delivery_count)
        self.session.note_delivery(message)
        self.session.send(
            encode_get_ok(
                self.channel.number,
                self.last_tag,
                message.redelivered,
                ready,
                origin,
                properties,
                message.body,
                self.session.frame_max,
            )
        )
        if no_ack:
            self.broker.settle(message)
        else:
            self.unacked[self.last_tag] = (None, message)

    # Messages outside queues

    def push(self, prefix: bytes, origin: bytes, properties: bytes, body: bytes) -> None:
        """Send a message that was not in a queue to a no_ack consumer; `prefix` is its `delivery_prefix`."""
        self.last_tag += 1
        session = self.session
        session.send_delivery(
            encode_delivery(
                self.channel.number, prefix, self.last_tag, False, origin, properties, body, session.frame_max
            )
        )

    # Acks

    def acknowledge(self, tag: int, multiple: bool) -> None:
        """Ack a delivery, or all up to it."""
        if not multiple:
            lease = self.unacked.pop(tag, None)
            if lease is None:
                raise _unknown(tag)
            consumer, message = lease
            self.acknowledged += 1
            if consumer is not None:
                consumer.release(message.id)
            if not self.broker.settle(message, True) or lease is _VOID:
                self._note_void()
            if consumer is None:
                return
            if self.window.limit:
                self._feed_all()
            else:
                self.broker.feed(consumer)
            if self.leaving:
                self._report_leaving([lease])
            return
        leases = self._take(tag, multiple)
        self.acknowledged += len(leases)
        self._release(leases)
        for lease in leases:
            if not self.broker.settle(lease[1], True) or lease is _VOID:
                self._note_void()
        self._feed(leases)

    def reject(self, tag: int, multiple: bool, requeue: bool) -> None:
        """Reject a delivery, or all up to it: requeue or dead-letter them."""
        self._reject(self._take(tag, multiple), requeue)

    def _reject(self, leases: Sequence[Lease], requeue: bool) -> None:
        self._release(leases)
        messages = [message for _, message in leases]
        if requeue:
            self.broker.requeue(messages)
        else:
            self.broker.dead_lettering.dead_letter_all(messages, "rejected")
        self._feed(leases)

    # Transactions

    def take(self, tag: int, multiple: bool) -> dict[int, Lease]:
        """Remove and return a delivery, or all up to it, to be acked at the commit of a transaction.

        Until then they count in the windows of their consumers, as in RabbitMQ.
        """
        return {each: self.unacked.pop(each) for each in self._tags(tag, multiple)}

    def put_back(self, leases: Mapping[int, Lease]) -> None:
        """Make deliveries unacked again, at their original positions."""
        self.unacked = dict(sorted([*self.unacked.items(), *leases.items()]))

    def settle_committed(self, settlement: Settlement, leases: Sequence[Lease]) -> None:
        """Apply the acks of a transaction. A message that is not written yet is written before it is removed."""
        if settlement is not Settlement.ACK:
            self._reject(leases, settlement is Settlement.REQUEUE)
            return
        self.acknowledged += len(leases)
        self._release(leases)
        for _, message in leases:
            self.broker.settle_written(message, True)
        self._feed(leases)

    def _note_void(self) -> None:
        self.session.context.queues.peering.settled_in_vain()

    async def settled(self, engine_consumer: Consumer, time_limit_s: float) -> None:
        """Wait until an engine consumer has no unacked delivery; at the time limit, requeue its deliveries."""
        if not engine_consumer.leases:
            return
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.leaving[engine_consumer.id] = lambda: None if settled.done() else settled.set_result(None)
        try:
            async with asyncio.timeout(time_limit_s):
                await settled
        except TimeoutError:
            self.void(engine_consumer)
        finally:
            self.leaving.pop(engine_consumer.id, None)

    def void(self, engine_consumer: Consumer) -> None:
        """Requeue the deliveries of an engine consumer. The peer may still ack them, without effect."""
        tags = [tag for tag, (holder, _) in self.unacked.items() if holder is engine_consumer]
        leases = [self.unacked[tag] for tag in tags]
        for tag in tags:
            self.unacked[tag] = _VOID
        for _, settled in self.channel.settling:
            for tag, (holder, message) in settled.items():
                if holder is engine_consumer:
                    leases.append((holder, message))
                    settled[tag] = _VOID
        self._release(leases)
        self.broker.requeue([message for _, message in leases])

    def recover(self) -> None:
        """Requeue all unacked deliveries."""
        leases = self._take(0, True)
        self._release(leases)
        self.broker.requeue([message for _, message in leases])
        self._feed(leases)

    def end(self) -> list[AmqpConsumer]:
        """Cancel and return all consumers, and requeue all unacked deliveries."""
        ended = list(self.consumers.values())
        try:
            for consumer in ended:
                self.cancel(consumer.tag)
        finally:
            # Even after an error no message may stay unacked without an owner.
            self.recover()
        return ended

    # Internals

    def _take(self, tag: int, multiple: bool) -> list[Lease]:
        """Remove and return a lease, or all up to it: see `_tags`."""
        return [self.unacked.pop(each) for each in self._tags(tag, multiple)]

    def _tags(self, tag: int, multiple: bool) -> list[int]:
        """Return an unacked tag, or with `multiple` all up to it; 0 with `multiple` means all."""
        if multiple and tag == 0:
            return list(self.unacked)
        if tag not in self.unacked:
            raise _unknown(tag)
        if not multiple:
            return [tag]
        tags: list[int] = []
        for earlier in self.unacked:
            if earlier > tag:
                break
            tags.append(earlier)
        return tags

    def _release(self, leases: Iterable[Lease]) -> None:
        for consumer, message in leases:
            if consumer is not None:
                consumer.release(message.id)

    def _report_leaving(self, leases: Sequence[Lease]) -> None:
        for consumer, _ in leases:
            if consumer is not None and not consumer.leases and consumer.id in self.leaving:
                self.leaving.pop(consumer.id)()

    def _feed(self, leases: Sequence[Lease]) -> None:
        if self.leaving:
            self._report_leaving(leases)
        if self.window.limit:
            self._feed_all()
            return
        for consumer in {id(consumer): consumer for consumer, _ in leases}.values():
            if consumer is not None:
                self.broker.feed(consumer)

    def _feed_all(self) -> None:
        """Fill the shared window, least recently served consumers first.

        Otherwise the first consumer would use all of the window while its queue has messages, and starve the others.
        """
        for consumer in self._in_turn():
            if not self.window.has_room:
                return
            if consumer.engine_consumer is None:
                continue
            before = self.last_tag
            self.broker.feed(consumer.engine_consumer)
            if self.last_tag != before and self.consumers.get(consumer.tag) is consumer:
                # Move it to the end of the dictionary, which is in the order of turns.
                self.consumers[consumer.tag] = self.consumers.pop(consumer.tag)

    def _in_turn(self) -> list[AmqpConsumer]:
        """Return all consumers in the order of their turns; within a queue, higher priorities first."""
        consumers = list(self.consumers.values())
        if not any(consumer.priority for consumer in consumers):
            return consumers
        by_queue: dict[int, list[AmqpConsumer]] = {}
        for consumer in consumers:
            by_queue.setdefault(consumer.queue.id, []).append(consumer)
        for same in by_queue.values():
            same.sort(key=_descending_priority)
        return [consumer for same in by_queue.values() for consumer in same]


def _descending_priority(consumer: AmqpConsumer) -> int:
    return -consumer.priority


def _unknown(tag: int) -> Exception:
    return refusal(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {tag}")
