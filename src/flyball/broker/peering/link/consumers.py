"""The consumers of another node on queues of this one, and the messages that it has and has not settled."""

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

# How long an auto-delete queue waits for consumers whose link broke: their clients have not cancelled them.
RETURN_S = 10.0

# Where faults are noted that a frame has met.
PLACE = "frame of another node"


class Outlet(Protocol):
    """Where frames for the other node go."""

    def send(self, data: bytes) -> None: ...

    def send_delivery(self, data: bytes) -> None:
        """Send a message. It may be followed by `Consumers.stop`."""
        ...


class _Consumer:
    """One consumer: the subscriber of a queue here."""

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
        # Whether the other node has asked for a pause.
        self.is_held_back = False

    @property
    def is_attached(self) -> bool:
        return self._consumers.has(self)

    def started(self, consumer: Consumer, queue: Queue) -> None:
        self.engine_consumer = consumer
        self._consumers.started(self)

    def ended(self) -> None:
        """The other node looks where to go on."""

    def deliver(self, consumer: Consumer, message: Message) -> None:
        self._outlet.send_delivery(wire.encode_deliver(self.number, message))

    def queue_deleted(self, consumer: Consumer) -> None:
        self._consumers.ended(self, Ending.DELETED)

    def queue_moved(self, consumer: Consumer) -> None:
        """Another node serves the queue: the one that asked has to look for it."""
        self._consumers.ended(self, Ending.MOVED)

    def crash(self, error: BaseException) -> None:
        self._consumers.crashed(self, error)


class Consumers:
    """All consumers of one link that another node has opened."""

    def __init__(self, outlet: Outlet, topology: Topology) -> None:
        self._outlet = outlet
        self._topology = topology
        self._broker = topology.broker
        self._faults = topology.broker.faults
        self._consumers: dict[int, _Consumer] = {}
        # Those that have ended because another node serves their queues.
        self._moved: set[int] = set()
        # What was asked for with Get and is not settled.
        self._held: dict[int, Message] = {}
        self._is_stopped = False

    def __len__(self) -> int:
        return len(self._consumers)

    def hold(self, message: Message) -> None:
        """The other node gets a message that it has asked for with Get."""
        self._held[message.id] = message

    def end(self) -> None:
        """Requeue what the other node held: it cannot settle it any more."""
        consumers, self._consumers = self._consumers, {}
        held, self._held = list(self._held.values()), {}
        for owner in consumers.values():
            held += self._cancelled(owner.engine_consumer)
        # All at once: they are to be in their order before others get some of them.
        guard(self._faults, self._broker.requeue, held)
        gone = partial(self._topology.consumer_gone, may_return_s=RETURN_S)
        for owner in consumers.values():
            guard(self._faults, gone, owner.engine_consumer.queue_id, owner)

    def _cancelled(self, consumer: Consumer) -> list[Message]:
        """Cancel a consumer and end its leases; return what it held."""
        guard(self._faults, self._broker.cancel, consumer)
        held = list(consumer.leases.values())
        for message in held:
            consumer.release(message.id)
        return held

    def page_out(self, wanted_bytes: int) -> int:
        """Leave bodies of unacked messages to the store; return how much that freed."""
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
        """Let a consumer begin, and answer that it has. Raises ConsumerRefused and QueueNotFound."""
        if frame.number == 0 or frame.number in self._consumers:
            # `Settle` means with 0 what `Get` has found. A consumer that another replaced would never end.
            raise ProtocolError(f"{frame.number} cannot be the number of another consumer")
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
        """Let a consumer get no more; what it holds may still be settled."""
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
        """The queue of a consumer is not here any more."""
        if self._consumers.pop(owner.number, None) is owner:
            self._outlet.send(wire.encode_cancelled(owner.number, ending))
            if ending is Ending.MOVED:
                self._moved.add(owner.number)

    def crashed(self, owner: _Consumer, error: BaseException) -> None:
        """Serving one consumer has failed: it ends, and what it held goes to others. The link goes on."""
        self._faults.note("consumer of another node", error, quiet=True)
        if self.has(owner):
            self.fail(owner.number)

    def fail(self, number: int) -> bool:
        """End a consumer because of a defect; return whether there is one of that number."""
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
        """Take no more messages out of queues for now: the other node does not read."""
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
                self._was_in_vain()
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
                # No consumer has it any more, and nothing was done with it.
                guard(self._faults, self._broker.requeue, [message])
                if settlement == Settlement.ACK:
                    self._was_in_vain()

    def _ack(self, message: Message) -> None:
        if not self._broker.settle(message, True) and self._topology.directory.get(message.queue_id) is not None:
            self._was_in_vain()

    def _reject(self, message: Message) -> None:
        state = self._broker.engine.find_queue_by_id(message.queue_id)
        if state is not None:
            self._broker.dead_lettering.dead_letter(state, message, "rejected")

    def _was_in_vain(self) -> None:
        """An acknowledgement has found nothing: the message comes again, from the node that serves its queue now."""
        self._outlet.send(wire.encode_cancelled(0, Ending.MOVED))


def guard(faults: Faults, callback: Callable[..., object], *arguments: object) -> None:
    """Do what concerns one of many clients: what it raises is noted, and neither they nor the link end."""
    try:
        callback(*arguments)
    except Exception as error:
        faults.note(PLACE, error, quiet=True)


def _ignore(error: FlyballError | None) -> None:
    """The consumer has answered when it started."""
