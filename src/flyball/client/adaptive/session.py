"""One life of a channel with its subscription: from its opening until it is closed or lost.

Settles each delivery once, and only as long as the channel lives: what was delivered before goes back to its queue
with the channel, and an acknowledgement for it would be an error on any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, TypeVar

import aiormq
from aio_pika import IncomingMessage
from aiormq.abc import DeliveredMessage
from pamqp import commands

T = TypeVar("T")

log = logging.getLogger(__name__)

# What the library raises on a channel that ends or has ended. It tells so before `is_closed` does.
LOSSES = (aiormq.exceptions.AMQPError, aiormq.exceptions.ChannelInvalidStateError, ConnectionError)

# A broker that does not answer is not waited for any longer when something ends.
ANSWER_LIMIT_S = 5.0


class Delivery:
    """A delivered message. It can be settled on the channel that it came by, and nowhere else."""

    __slots__ = ("arrived_s", "message", "session", "tag")

    def __init__(self, session: Session, message: IncomingMessage, tag: int, arrived_s: float) -> None:
        self.session = session
        self.message = message
        self.tag = tag
        self.arrived_s = arrived_s


class SessionLost(Exception):
    """The channel, or its connection, ended before it had answered; the cause says why."""


class Session:
    """A channel that consumes one queue. Its window, and how that changes, is a BrokerWindow's business."""

    def __init__(
        self,
        channel: aiormq.Channel,
        queue_name: str,
        receive: Callable[[Delivery], None],
        settled: Callable[[Delivery], None],
    ) -> None:
        """`receive` is called with what arrives, `settled` with what was settled while the channel lived."""
        self.channel = channel
        self.queue_name = queue_name
        self.tag = f"flyball-{secrets.token_hex(8)}"
        # By delivery tag, the oldest first.
        self.unsettled: dict[int, Delivery] = {}
        self.is_lost = asyncio.Event()
        # Set whenever something was settled; for those who wait for that.
        self.released = asyncio.Event()
        self._receive = receive
        self._settled = settled
        self._held: list[Delivery] | None = None
        channel.closing.add_done_callback(self._on_closed)
        # The broker ends a subscription when its queue is deleted: the same as a lost channel, for who consumes.
        channel.on_consumer_cancel_callbacks.add(self._on_cancelled)

    async def ask(self, request: Coroutine[Any, Any, T]) -> T:
        """Send a request and return its answer. A caller that is cancelled leaves it under way. Raises SessionLost.

        The library closes a channel whose request is given up, and every unsettled message would come twice.
        """
        try:
            return await asyncio.shield(request)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Nobody has cancelled us: it was the request, with its channel.
            raise SessionLost from error
        except Exception as error:
            # The library raises whatever ended the connection, of any type.
            if self.channel.is_closed or isinstance(error, LOSSES):
                raise SessionLost from error
            raise

    async def consume(self, arguments: dict[str, Any] | None = None) -> None:
        """Subscribe."""
        await self.ask(
            self.channel.basic_consume(self.queue_name, self._on_delivery, consumer_tag=self.tag, arguments=arguments)
        )

    async def cancel(self) -> None:
        """End the subscription; what was delivered may still be settled."""
        await self.ask(self.channel.basic_cancel(self.tag))

    async def count_ready(self) -> int:
        """Return how many messages wait in the queue."""
        answer = await self.ask(self.channel.queue_declare(self.queue_name, passive=True))
        return answer.message_count or 0

    # Settling

    async def acknowledge(self, delivery: Delivery) -> None:
        """Settle a delivery for good, at once or as soon as nothing is held back any more."""
        if self._held is not None:
            self._held.append(delivery)
        else:
            await self._settle(delivery, None)

    async def reject(self, delivery: Delivery, *, requeue: bool) -> None:
        """Return a delivery to its queue, or have the broker give it up."""
        await self._settle(delivery, requeue)

    def hold(self) -> None:
        """Hold acknowledgements back: the window stays full."""
        if self._held is None:
            self._held = []

    async def release(self) -> None:
        """Send the acknowledgements that were held back, and hold no more."""
        held, self._held = self._held, None
        for delivery in held or ():
            await self._settle(delivery, None)

    async def close(self) -> None:
        """Close the channel: what is not settled goes back to the queue, to its old place."""
        if not self.channel.is_closed:
            with contextlib.suppress(SessionLost, TimeoutError):
                async with asyncio.timeout(ANSWER_LIMIT_S):
                    await self.ask(self.channel.close())

    # Inside

    async def _settle(self, delivery: Delivery, requeue: bool | None) -> None:
        if self.unsettled.pop(delivery.tag, None) is None or self.is_lost.is_set():
            return
        # A handler may have settled it already.
        if not delivery.message.processed:
            try:
                if requeue is None:
                    await self._send(self.channel.basic_ack(delivery.tag, wait=False))
                else:
                    await self._send(self.channel.basic_reject(delivery.tag, requeue=requeue, wait=False))
            except (*LOSSES, SessionLost):
                # The channel is gone: it comes again, on another one.
                return
        self._settled(delivery)
        self.released.set()

    async def _send(self, frame: Coroutine[Any, Any, None]) -> None:
        """Send something that has no answer. Raises SessionLost."""
        if not self.channel.write_queue.full():
            await frame
            return
        # Whoever waits for room in the library's queue waits for ever if the connection ends meanwhile.
        sending, losing = asyncio.ensure_future(frame), asyncio.ensure_future(self.is_lost.wait())
        try:
            await asyncio.wait([sending, losing], return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise SessionLost
            sending.result()
        finally:
            sending.cancel()
            losing.cancel()

    async def _on_delivery(self, delivered: DeliveredMessage) -> None:
        frame = delivered.delivery
        assert isinstance(frame, commands.Basic.Deliver)
        tag = frame.delivery_tag or 0
        try:
            message = IncomingMessage(delivered)
        except ValueError:
            # As a delivery mode that does not exist. Nobody could settle it, and its place would be lost.
            log.exception("a message of queue %r cannot be read, and is rejected", self.queue_name)
            await self._send(self.channel.basic_reject(tag, requeue=False, wait=False))
            return
        delivery = Delivery(self, message, tag, monotonic())
        self.unsettled[tag] = delivery
        self._receive(delivery)

    def _on_closed(self, closing: asyncio.Future[Any]) -> None:
        if not closing.cancelled():
            closing.exception()
        self.is_lost.set()
        self.released.set()

    def _on_cancelled(self, frame: commands.Basic.Cancel) -> None:
        if frame.consumer_tag == self.tag:
            self.is_lost.set()
            self.released.set()
