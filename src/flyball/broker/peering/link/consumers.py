"""The consumers of another node on local queues, and its unacked messages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from flyball.broker.core.handles import LocalQueue
from flyball.broker.core.memory import page_out
from flyball.broker.core.topology import Topology
from flyball.broker.engine.consumer import SLOW_PEER, Consumer
from flyball.broker.wire import link as wire
from flyball.broker.wire.link import Ending, Settlement
from flyball.errors import FlyballError, ProtocolError
from flyball.faults import Faults
from flyball.model import Message, Queue

# Delay before an auto-delete queue is deleted after its consumers' link broke: their clients have not cancelled them,
# and may attach again.
RETURN_S = 10.0

# The place of faults in frames.
PLACE = "frame of another node"


class Outlet(Protocol):
    """Sends frames to the other node."""

    def send(self, data: bytes) -> None: ...

    def send_delivery(self, data: bytes) -> None:
        """Send a message. It may call `Consumers.stop`."""
        ...


class _Consumer:
    """One consumer: the subscriber of a local queue."""

    __slots__ = (
        "_consumers",
        "_outlet",
        "engine_consumer",
        "exclusive",
        "is_held_back",
        "number",
        "prefetch",
        "priority",
        "queue",
        "selector",
    )

    no_ack = False
    window = None
    is_over = False

    def __init__(self, consumers: Consumers, outlet: Outlet, queue: Queue, frame: wire.Consume) -> None:
        self._consumers = consumers
        self._outlet = outlet
        self.number = frame.number
        self.queue = queue
        self.prefetch = frame.prefetch
        self.priority = frame.priority
        self.exclusive = frame.exclusive
        self.selector = frame.selector
        self.engine_consumer: Consumer
        # Whether the other node requested a pause.
        self.is_held_back = False

    @property
    def is_attached(self) -> bool:
        return self._consumers.has(self)

    def started(self, consumer: Consumer, queue: Queue) -> None:
        self.engine_consumer = consumer
        self._consumers.started(self)

    def ended(self) -> None:
        """Do nothing: the other node looks for another queue."""

    def deliver(self, consumer: Consumer, message: Message) -> None:
        self._outlet.send_delivery(wire.encode_deliver(self.number, message))

    def queue_deleted(self, consumer: Consumer) -> None:
        self._consumers.ended(self, Ending.DELETED)

    def queue_moved(self, consumer: Consumer) -> None:
        """Report that the queue has moved: the other node looks up its owner."""
        self._consumers.ended(self, Ending.MOVED)

    def crash(self, error: BaseException) -> None:
        self._consumers.crashed(self, error)


class Consumers:
    """All consumers of one link opened by another node."""

    def __init__(self, outlet: Outlet, topology: Topology) -> None:
        self._outlet = outlet
        self._topology = topology
        self._broker = topology.broker
        self._faults = topology.broker.faults
        self._consumers: dict[int, _Consumer] = {}
        # Consumers that ended because their queues moved to another node.
        self._moved: set[int] = set()
        # Messages fetched with Get and not settled.
        self._held: dict[int, Message] = {}
        self._is_stopped = False

    def __len__(self) -> int:
        return len(self._consumers)

    def hold(self, message: Message) -> None:
        """Record a message that the other node fetched with Get."""
        self._held[message.id] = message

    def end(self) -> None:
        """Requeue the other node's unacked messages, which it can no longer settle."""
        consumers, self._consumers = self._consumers, {}
        held, self._held = list(self._held.values()), {}
        for owner in consumers.values():
            held += self._cancelled(owner.engine_consumer)
        # Requeued in one call, so that they are in order before another consumer receives one of them.
        guard(self._faults, self._broker.requeue, held)
        gone = partial(self._topology.consumer_gone, may_return_s=RETURN_S)
        for owner in consumers.values():
            guard(self._faults, gone, owner.engine_consumer.queue_id, owner)

    def _cancelled(self, consumer: Consumer) -> list[Message]:
        """Cancel a consumer and end its leases; return its unacked messages."""
        guard(self._faults, self._broker.cancel, consumer)
        held = list(consumer.leases.values())
        for message in held:
            consumer.release(message.id)
        return held

    def page_out(self, wanted_bytes: int) -> int:
        """Page out bodies of unacked messages; return the number of bytes freed."""
        engine = self._broker.engine
        freed = page_out(engine, [(None, message) for message in reversed(self._held.values())], wanted_bytes)
        for owner in self._consumers.values():
            if freed >= wanted_bytes:
                break
            consumer = owner.engine_consumer
            leased = ((consumer, message) for message in reversed(consumer.leases.values()))
            freed += page_out(engine, leased, wanted_bytes - freed)
        return freed

    # One consumer

    def start(self, frame: wire.Consume) -> None:
        """Start a consumer and confirm that. Raises ConsumerRefused, QueueNotFound."""
        if frame.number == 0 or frame.number in self._consumers:
            # In `Settle`, 0 stands for messages fetched with `Get`. A consumer whose number was reused would never
            # end.
            raise ProtocolError(f"{frame.number} is not a valid number of a new consumer")
        queue = LocalQueue(self._topology, self._broker.engine.queue(frame.queue_id))
        queue.consume(_Consumer(self, self._outlet, queue.queue, frame), _ignore)

    def started(self, owner: _Consumer) -> None:
        owner.engine_consumer.paused_for = SLOW_PEER if self._is_stopped else 0
        self._consumers[owner.number] = owner
        self._outlet.send(wire.encode_consuming(owner.number))

    def has(self, owner: _Consumer) -> bool:
        return self._consumers.get(owner.number) is owner

    def set_window(self, frame: wire.Window) -> None:
        owner = self._running(frame.consumer)
        if owner is not None:
            self._broker.set_prefetch(owner.engine_consumer, frame.prefetch)

    def pause(self, frame: wire.Pause) -> None:
        owner = self._running(frame.consumer)
        if owner is not None:
            owner.is_held_back = True
            self._broker.pause(owner.engine_consumer)

    def resume(self, frame: wire.Resume) -> None:
        owner = self._running(frame.consumer)
        if owner is not None:
            owner.is_held_back = False
            if not self._is_stopped:
                self._broker.resume(owner.engine_consumer)

    def cancel(self, frame: wire.Cancel) -> None:
        """Stop deliveries to a consumer; the other node may still settle its unacked messages."""
        owner = self._running(frame.consumer)
        if owner is not None:
            consumer = owner.engine_consumer
            self._broker.cancel(consumer)
            self._outlet.send(wire.encode_cancelled(frame.consumer, Ending.ASKED))
            self._topology.consumer_gone(consumer.queue_id, owner)
            self._forget_if_done(owner)

    def _running(self, number: int) -> _Consumer | None:
        owner = self._consumers.get(number)
        return None if owner is None or owner.engine_consumer.is_cancelled else owner

    def _forget_if_done(self, owner: _Consumer) -> None:
        if not owner.engine_consumer.leases:
            self._consumers.pop(owner.number, None)

    def ended(self, owner: _Consumer, ending: Ending) -> None:
        """Report that a consumer ended because its queue was deleted or moved."""
        if self._consumers.pop(owner.number, None) is owner:
            self._outlet.send(wire.encode_cancelled(owner.number, ending))
            if ending is Ending.MOVED:
                self._moved.add(owner.number)

    def crashed(self, owner: _Consumer, error: BaseException) -> None:
        """End a consumer after an unexpected error, and requeue its messages. The link stays open."""
        self._faults.note("consumer of another node", error, quiet=True)
        if self.has(owner):
            self.fail(owner.number)

    def fail(self, number: int) -> bool:
        """End a consumer because of an internal error; return whether it exists."""
        owner = self._consumers.pop(number, None)
        if owner is None:
            return False
        consumer = owner.engine_consumer
        self._outlet.send(wire.encode_cancelled(number, Ending.FAILED))
        guard(self._faults, self._broker.requeue, self._cancelled(consumer))
        guard(self._faults, self._topology.consumer_gone, consumer.queue_id, owner)
        return True

    # All consumers

    def stop(self) -> None:
        """Pause all consumers: the other node does not read."""
        if not self._is_stopped:
            self._is_stopped = True
            for owner in self._consumers.values():
                self._broker.pause(owner.engine_consumer)

    def go_on(self) -> None:
        if self._is_stopped:
            self._is_stopped = False
            for number in list(self._consumers):
                owner = self._running(number)
                if owner is not None and not owner.is_held_back:
                    self._broker.resume(owner.engine_consumer)

    # Settling

    def settle(self, frame: wire.Settle) -> None:
        if frame.consumer == 0:
            found = [self._held.pop(message_id, None) for message_id in frame.message_ids]
            self._settle_all([message for message in found if message is not None], frame.settlement)
            return
        owner = self._consumers.get(frame.consumer)
        if owner is None:
            if frame.consumer in self._moved and frame.settlement == Settlement.ACK:
                self._report_lost_ack()
            return
        consumer = owner.engine_consumer
        leases = consumer.leases
        messages: list[Message] = []
        for message_id in frame.message_ids:
            message = leases.get(message_id)
            if message is not None:
                consumer.release(message_id)
                messages.append(message)
        self._settle_all(messages, frame.settlement)
        if consumer.is_cancelled:
            self._forget_if_done(owner)
        else:
            self._broker.feed(consumer)

    def _settle_all(self, messages: list[Message], settlement: int) -> None:
        if settlement == Settlement.REQUEUE:
            self._broker.requeue(messages)
            return
        settle: Callable[[Message], object] = self._broker.requeue_undelivered
        if settlement == Settlement.ACK:
            settle = self._ack
        elif settlement == Settlement.REJECT:
            settle = self._reject
        for message in messages:
            try:
                settle(message)
            except Exception as error:
                self._faults.note(PLACE, error, quiet=True)
                # Its lease has ended, but it was not settled.
                guard(self._faults, self._broker.requeue, [message])
                if settlement == Settlement.ACK:
                    self._report_lost_ack()

    def _ack(self, message: Message) -> None:
        if not self._broker.settle(message, True) and self._topology.directory.get(message.queue_id) is not None:
            self._report_lost_ack()

    def _reject(self, message: Message) -> None:
        state = self._broker.engine.find_queue_by_id(message.queue_id)
        if state is not None:
            self._broker.dead_lettering.dead_letter(state, message, "rejected")

    def _report_lost_ack(self) -> None:
        """Report an ack without effect: the queue has moved, and its new owner redelivers the message."""
        self._outlet.send(wire.encode_cancelled(0, Ending.MOVED))


def guard(faults: Faults, callback: Callable[..., object], *arguments: object) -> None:
    """Run a callback for one of many clients: its error is recorded and does not close the link."""
    try:
        callback(*arguments)
    except Exception as error:
        faults.note(PLACE, error, quiet=True)


def _ignore(error: FlyballError | None) -> None:
    """Do nothing: the consumer was confirmed when it started."""
