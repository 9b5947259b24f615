"""Proxy queues: local stand-ins for remote queues in the engine, so that their messages are handled like local ones.

A proxy queue holds the unsettled messages that were delivered over a link. `remote` finds the queues.
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
from flyball.broker.peering.link.contents import message_of
from flyball.broker.peering.link.outgoing import Link
from flyball.broker.wire import link as wire
from flyball.broker.wire.link import Ending, Settlement
from flyball.errors import ClusterError
from flyball.model import Message, Selector

UNLIMITED = float("inf")

# Size of a proxy queue's ready messages above which, while its client does not read, the owner is asked to pause.
PROXY_QUEUE_BYTES = 4 * 1024 * 1024

# Interval of checks whether a paused owner can resume.
PAUSE_S = 0.02


def window_of(subscriber: Subscriber, prefetch: float) -> float:
    """Return the maximum number of unacked messages of a subscriber at the owner of its queue."""
    shared = None if subscriber.no_ack else subscriber.window
    return min(prefetch, shared.limit) if shared is not None and shared.limit else prefetch


class _ProxyQueue:
    """A local queue for messages received over a link. Settlements are sent back over that link."""

    __slots__ = ("_broker", "_last_id", "_link", "_number", "queue_state")

    def __init__(self, broker: Broker, link: Link, number: int, name: str = "", vhost: str = "") -> None:
        """`number` is the consumer's number on the link, or 0 for messages fetched one by one."""
        self._broker = broker
        self._link = link
        self._number = number
        self._last_id = 0
        self.queue_state = broker.engine.create_proxy_queue(name, vhost, self)

    def _arrived(self, frame: wire.Deliver, queue_name: str) -> Message:
        """Return a message received from the other node as a transient message of the proxy queue."""
        self._last_id += 1
        message = message_of(frame, self._last_id, self.queue_state.queue.id)
        # The owner of the queue handles expiry.
        message.expires_us = None
        if not message.origin:
            # A message of another protocol. Presented before `persistent`, a part of its properties, is cleared.
            message.origin, message.properties = present(message, queue_name)
        message.persistent = False
        message.receipt = (self._acknowledged, frame.message_id)
        return message

    def _acknowledged(self, message_id: int, is_refused: bool) -> None:
        self._settle(message_id, Settlement.ACK)

    def requeue(self, message: Message) -> None:
        if message.receipt is not None:
            self._settle(message.receipt[1], Settlement.REQUEUE)

    def dead_letter(self, message: Message) -> None:
        if message.receipt is not None:
            self._settle(message.receipt[1], Settlement.REJECT)

    def _settle(self, message_id: int, settlement: Settlement) -> None:
        self._link.settle(self._number, settlement, message_id)

    def cancel(self) -> None:
        """Cancel the proxy queue's consumer, if it has one."""

    def set_prefetch(self, prefetch: float) -> None:
        """Change the prefetch of the proxy queue's consumer, if it has one."""

    def drop(self) -> None:
        """Delete the proxy queue: no more deliveries or settlements follow."""
        if self._broker.engine.has_queue(self.queue_state.queue.id):
            unacked = list(self.queue_state.unacked.values())
            self._broker.engine.delete_queue(self.queue_state.queue.id)
            drop_bodies(unacked)


class Attachment(_ProxyQueue):
    """A consumer on a remote queue: its proxy queue here, and its number on the link.

    When the link or the owner is lost, unsettled messages are void: later settlements have no effect, and the
    messages are redelivered. When the queue is deleted, its messages are deleted with it.
    """

    __slots__ = ("_is_cancelled", "_is_paused", "_is_void", "_remote", "_subscriber", "consumer")

    def __init__(self, broker: Broker, link: Link, number: int, remote: RemoteQueue, subscriber: Subscriber) -> None:
        super().__init__(broker, link, number, remote.queue.name, remote.queue.vhost)
        self._remote = remote
        self._subscriber = subscriber
        self._is_cancelled = False
        self._is_paused = False
        self._is_void = False
        self.consumer: Consumer | None = None

    def begin(self, done: Done) -> None:
        """Add the consumer to the proxy queue, after the owner accepted it."""
        subscriber = self._subscriber

        def started(consumer: Consumer) -> None:
            self.consumer = consumer
            if subscriber.is_over:
                self._broker.cancel(consumer)
            else:
                subscriber.started(consumer, self._remote.queue)
            done(None)

        self._broker.consume(
            self.queue_state.queue.id,
            Selector(),
            UNLIMITED,
            subscriber,
            started,
            no_ack=subscriber.no_ack,
            shared=None if subscriber.no_ack else subscriber.window,
        )

    # From the owner

    def delivered(self, frame: wire.Deliver) -> None:
        try:
            self._accept(frame)
        except Exception as error:
            # The message was not accepted: return it, and close only the client that it was delivered to.
            self._link.settle(self._number, Settlement.RETURN, frame.message_id)
            self._subscriber.crash(error)

    def _accept(self, frame: wire.Deliver) -> None:
        if self._is_cancelled:
            self._link.settle(self._number, Settlement.RETURN, frame.message_id)
            return
        state = self.queue_state
        self._broker.accept(state, self._arrived(frame, state.queue.name))
        if not self._is_paused and len(state) and state.ready_bytes > PROXY_QUEUE_BYTES:
            self._is_paused = True
            self._link.send(wire.encode_pause(self._number))
            self._look_later()

    def _look_later(self) -> None:
        asyncio.get_running_loop().call_later(PAUSE_S, self._look)

    def _look(self) -> None:
        """Resume the owner when few messages are left. Polled, since there is no event when a client reads."""
        if self._is_void or self._is_cancelled:
            return
        if self.queue_state.ready_bytes < PROXY_QUEUE_BYTES // 2:
            self._is_paused = False
            self._link.send(wire.encode_resume(self._number))
        else:
            self._look_later()

    def cancelled(self, ending: Ending) -> None:
        if ending is Ending.ASKED:
            return
        if ending is Ending.FAILED and not self._is_cancelled:
            # Treated like an error of this node: attaching again would only repeat the error.
            self._is_cancelled = True
            self._subscriber.crash(ClusterError(f"internal error on node {self._remote.owner}; see its log"))
        self._end(is_deleted=ending is Ending.DELETED)

    def lost(self) -> None:
        self._end(is_deleted=False)

    def _end(self, *, is_deleted: bool) -> None:
        self._is_void = True
        if is_deleted:
            # Deleted messages are not redelivered: an ack succeeds, as it does for a deleted local queue.
            for message in self.queue_state.unacked.values():
                message.receipt = None
        self.drop()
        if self._is_cancelled or self.consumer is None:
            return
        self._is_cancelled = True
        if is_deleted:
            self._subscriber.queue_deleted(self.consumer)
        else:
            self._subscriber.queue_moved(self.consumer)

    # From the consumer

    def _acknowledged(self, message_id: int, is_refused: bool) -> None:
        if self._is_void:
            self._link.settled_in_vain()
        else:
            self._link.settle(self._number, Settlement.ACK, message_id)
            self._drop_if_done()

    def _settle(self, message_id: int, settlement: Settlement) -> None:
        if not self._is_void:
            self._link.settle(self._number, settlement, message_id)
            self._drop_if_done()

    def _drop_if_done(self) -> None:
        if self._is_cancelled and not self.queue_state.unacked:
            self.drop()

    def set_prefetch(self, prefetch: float) -> None:
        if not (self._is_void or self._is_cancelled):
            self._link.send(wire.encode_window(self._number, window_of(self._subscriber, prefetch)))

    def cancel(self) -> None:
        """Cancel the consumer at the owner; ready messages of the proxy queue are returned as not delivered."""
        if self._is_void or self._is_cancelled:
            return
        self._is_cancelled = True
        self._link.send(wire.encode_cancel(self._number))
        waiting, _ = self._broker.engine.purge(self.queue_state.queue.id)
        for message in waiting:
            if message.receipt is not None:
                self._link.settle(self._number, Settlement.RETURN, message.receipt[1])
        self._drop_if_done()


class Singles(_ProxyQueue):
    """The unsettled messages fetched one by one over a link, in one proxy queue."""

    __slots__ = ()

    def __init__(self, broker: Broker, link: Link) -> None:
        super().__init__(broker, link, 0)

    def take_in(self, found: wire.Deliver, queue_name: str) -> Message:
        message = self._arrived(found, queue_name)
        self._broker.engine.hold(self.queue_state, message)
        return message
