"""Shadows: what stands in the local engine for a queue of another node, so that its messages are like local ones.

They hold what was delivered over a link and is not settled. How a queue is found is the business of `remote`.
"""

from __future__ import annotations

import asyncio

from flyball.broker.core.broker import Broker
from flyball.broker.core.directory import RemoteQueue
from flyball.broker.core.handles import Subscriber
from flyball.broker.core.pending import Done
from flyball.broker.core.presentation import present
from flyball.broker.core.queue_lifecycle import drop_bodies
from flyball.broker.engine.consumer import Consumer
from flyball.broker.engine.queue import WorkingQueue
from flyball.broker.peering.link.contents import message_of
from flyball.broker.peering.link.peers import Link
from flyball.broker.wire import link as wire
from flyball.broker.wire.link import Ending, Settlement
from flyball.errors import ClusterError
from flyball.model import Message, Selector

UNLIMITED = float("inf")

SHADOW_BYTES = 4 * 1024 * 1024
"""When so much waits in a shadow because its client does not read, the owner is asked to pause."""

PAUSE_S = 0.02
"""So often it is looked whether an owner that was asked to pause may go on."""


class Attachment:
    """One consumer on a queue of another node: its shadow here, its number there.

    When the link, the owner or the queue is lost, all that was not settled is void: what is decided about it later
    reaches nobody.
    """

    __slots__ = (
        "_broker",
        "_exclusive",
        "_is_cancelled",
        "_is_paused",
        "_is_void",
        "_last_id",
        "_link",
        "_subscriber",
        "consumer",
        "number",
        "prefetch",
        "remote",
        "working",
    )

    def __init__(
        self,
        broker: Broker,
        link: Link,
        remote: RemoteQueue,
        subscriber: Subscriber,
        prefetch: float,
    ) -> None:
        self._broker = broker
        self._link = link
        self._subscriber = subscriber
        self._is_cancelled = False
        self._is_paused = False
        self._is_void = False
        self._last_id = 0
        self.remote = remote
        self.prefetch = prefetch
        self.number = 0
        self.working: WorkingQueue | None = None
        self.consumer: Consumer | None = None

    @property
    def window(self) -> float:
        """How many messages the owner may have out here."""
        shared = 0 if self._subscriber.no_ack else self._subscriber.window.limit
        return min(self.prefetch, shared) if shared else self.prefetch

    def begin(self, done: Done) -> None:
        """The owner has agreed: what it sends goes into a shadow."""
        subscriber = self._subscriber
        queue = self.remote.queue
        self.working = self._broker.engine.create_shadow(queue.name, queue.vhost, self)

        def started(consumer: Consumer) -> None:
            self.consumer = consumer
            if subscriber.is_over:
                self._broker.cancel(consumer)
            else:
                subscriber.started(consumer, queue)
            done(None)

        self._broker.consume(
            self.working.queue.id,
            Selector(),
            UNLIMITED,
            subscriber,
            started,
            keeps_none=subscriber.no_ack,
            shared=None if subscriber.no_ack else subscriber.window,
        )

    # From the owner

    def delivered(self, frame: wire.Deliver) -> None:
        try:
            self._accept(frame)
        except Exception as error:
            # Nothing here has the message: it goes back, and only the client ends that it was for.
            self._link.settle(self.number, Settlement.RETURN, frame.message_id)
            self._subscriber.crash(error)

    def _accept(self, frame: wire.Deliver) -> None:
        working = self.working
        if self._is_cancelled or working is None:
            self._link.settle(self.number, Settlement.RETURN, frame.message_id)
            return
        self._last_id += 1
        message = _arrived(frame, self._last_id, working, working.queue.name)
        message.receipt = (self._acknowledged, frame.message_id)
        self._broker.accept(working, message)
        if not self._is_paused and len(working) and working.ready_bytes > SHADOW_BYTES:
            self._is_paused = True
            self._link.send(wire.encode_pause(self.number))
            self._look_later()

    def _look_later(self) -> None:
        asyncio.get_running_loop().call_later(PAUSE_S, self._look)

    def _look(self) -> None:
        """Let the owner go on if little waits any more. Nothing tells when a client has read."""
        if self._is_void or self._is_cancelled or self.working is None:
            return
        if self.working.ready_bytes < SHADOW_BYTES // 2:
            self._is_paused = False
            self._link.send(wire.encode_resume(self.number))
        else:
            self._look_later()

    def cancelled(self, ending: Ending) -> None:
        if ending is Ending.ASKED:
            return
        if ending is Ending.FAILED and not self._is_cancelled:
            # As if the defect were this node's: to ask for the messages again would only repeat it.
            self._is_cancelled = True
            self._subscriber.crash(ClusterError(f"node {self.remote.owner} cannot serve a consumer"))
        self._end(is_deleted=ending is Ending.DELETED)

    def lost(self) -> None:
        self._end(is_deleted=False)

    def _end(self, *, is_deleted: bool) -> None:
        working, consumer = self.working, self.consumer
        self._is_void = True
        if working is None or consumer is None:
            return
        self._drop()
        if self._is_cancelled:
            return
        self._is_cancelled = True
        if is_deleted:
            self._subscriber.queue_deleted(consumer)
        else:
            self._subscriber.queue_moved(consumer)

    # From the consumer

    def _acknowledged(self, message_id: int, is_refused: bool) -> None:
        if self._is_void:
            self._link.settled_in_vain()
        else:
            self._link.settle(self.number, Settlement.ACK, message_id)
            self._end_if_done()

    def give_back(self, message: Message) -> None:
        self._settle(message, Settlement.REQUEUE)

    def bury(self, message: Message) -> None:
        self._settle(message, Settlement.REJECT)

    def _settle(self, message: Message, settlement: Settlement) -> None:
        if not self._is_void and message.receipt is not None:
            self._link.settle(self.number, settlement, message.receipt[1])
            self._end_if_done()

    def _end_if_done(self) -> None:
        working = self.working
        if working is not None and self._is_cancelled and not working.out:
            self._drop()

    def set_prefetch(self, prefetch: float) -> None:
        self.prefetch = prefetch
        if not (self._is_void or self._is_cancelled):
            self._link.send(wire.encode_window(self.number, self.window))

    def cancel(self) -> None:
        """Ask for no more; what waits in the shadow goes back as if it had never come."""
        if self._is_void or self._is_cancelled:
            return
        self._is_cancelled = True
        self._link.send(wire.encode_cancel(self.number))
        if self.working is not None:
            waiting, _ = self._broker.engine.purge(self.working.queue.id)
            for message in waiting:
                if message.receipt is not None:
                    self._link.settle(self.number, Settlement.RETURN, message.receipt[1])
        self._end_if_done()

    def _drop(self) -> None:
        if self.working is not None and self._broker.engine.has_queue(self.working.queue.id):
            unacked = list(self.working.out.values())
            self._broker.engine.delete_queue(self.working.queue.id)
            drop_bodies(unacked)


class Singles:
    """The messages that were asked for one by one over a link, and are not settled: all in one shadow."""

    __slots__ = ("_last_id", "_link", "working")

    def __init__(self, broker: Broker, link: Link) -> None:
        self._link = link
        self._last_id = 0
        self.working = broker.engine.create_shadow("", "", self)

    def take_in(self, broker: Broker, found: wire.Deliver, queue_name: str) -> Message:
        self._last_id += 1
        message = _arrived(found, self._last_id, self.working, queue_name)
        message.receipt = (self._acknowledged, found.message_id)
        broker.engine.hold(self.working, message)
        return message

    def _acknowledged(self, message_id: int, is_refused: bool) -> None:
        self._link.settle(0, Settlement.ACK, message_id)

    def give_back(self, message: Message) -> None:
        self._settle(message, Settlement.REQUEUE)

    def bury(self, message: Message) -> None:
        self._settle(message, Settlement.REJECT)

    def _settle(self, message: Message, settlement: Settlement) -> None:
        if message.receipt is not None:
            self._link.settle(0, settlement, message.receipt[1])

    def cancel(self) -> None:
        """It has no consumer."""

    def set_prefetch(self, prefetch: float) -> None:
        """It has no consumer."""


def _arrived(frame: wire.Deliver, message_id: int, shadow: WorkingQueue, queue_name: str) -> Message:
    """Return what came from another node as a message of a shadow, which no store keeps."""
    message = message_of(frame, message_id, shadow.queue.id)
    # Its owner sees to it that it expires.
    message.expires_us = None
    if not message.origin:
        # A message of another protocol, while it is known whether it is persistent.
        message.origin, message.properties = present(message, queue_name)
    message.persistent = False
    return message
