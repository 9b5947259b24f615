"""One channel with its subscription, from open until it is closed or lost.

A delivery is settled once, and only on its own channel: when the channel is lost its deliveries are requeued, and an
ack on another channel would be an error.
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

# Exceptions of the library on a closing or closed channel. They are raised before `is_closed` is set.
LOSSES = (aiormq.exceptions.AMQPError, aiormq.exceptions.ChannelInvalidStateError, ConnectionError)

# Time limit for a broker's answer during shutdown.
ANSWER_LIMIT_S = 5.0


class Delivery:
    """A delivered message. It can only be settled on the channel that delivered it."""

    __slots__ = ("arrived_s", "message", "session", "tag")

    def __init__(self, session: Session, message: IncomingMessage, tag: int, arrived_s: float) -> None:
        self.session = session
        self.message = message
        self.tag = tag
        self.arrived_s = arrived_s


class SessionLost(Exception):
    """The channel or its connection ended before the answer; the cause has the reason."""


class Session:
    """A channel that consumes one queue. How its window changes is up to a BrokerWindow."""

    def __init__(
        self,
        channel: aiormq.Channel,
        queue_name: str,
        receive: Callable[[Delivery], None],
        settled: Callable[[Delivery], None],
    ) -> None:
        """`receive` is called with deliveries, `settled` after each one is settled on the live channel."""
        self.channel = channel
        self.queue_name = queue_name
        self.tag = f"flyball-{secrets.token_hex(8)}"
        # By delivery tag, oldest first.
        self.unsettled: dict[int, Delivery] = {}
        self.is_lost = asyncio.Event()
        # Set after each settlement.
        self.released = asyncio.Event()
        self._receive = receive
        self._settled = settled
        self._held: list[Delivery] | None = None
        channel.closing.add_done_callback(self._on_closed)
        # The broker cancels a consumer whose queue is deleted: handled like a lost channel.
        channel.on_consumer_cancel_callbacks.add(self._on_cancelled)

    async def ask(self, request: Coroutine[Any, Any, T]) -> T:
        """Send a request and return its answer. Cancelling the caller does not cancel the request. Raises
        SessionLost.

        The library closes the channel of a cancelled request, and every unsettled message would be redelivered.
        """
        try:
            return await asyncio.shield(request)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The request was cancelled, with its channel, not the caller.
            raise SessionLost from error
        except Exception as error:
            # The library raises the exception that ended the connection, of any type.
            if self.channel.is_closed or isinstance(error, LOSSES):
                raise SessionLost from error
            raise

    async def consume(self, arguments: dict[str, Any] | None = None) -> None:
        """Subscribe."""
        await self.ask(
            self.channel.basic_consume(self.queue_name, self._on_delivery, consumer_tag=self.tag, arguments=arguments)
        )

    async def cancel(self) -> None:
        """Cancel the subscription; earlier deliveries can still be settled."""
        await self.ask(self.channel.basic_cancel(self.tag))

    async def count_ready(self) -> int:
        """Return the number of ready messages in the queue."""
        answer = await self.ask(self.channel.queue_declare(self.queue_name, passive=True))
        return answer.message_count or 0

    # Settling

    async def acknowledge(self, delivery: Delivery) -> None:
        """Ack a delivery, now or once acks are no longer held back."""
        if self._held is not None:
            self._held.append(delivery)
        else:
            await self._settle(delivery, None)

    async def reject(self, delivery: Delivery, *, requeue: bool) -> None:
        """Requeue or reject a delivery."""
        await self._settle(delivery, requeue)

    def hold(self) -> None:
        """Hold back acks: the window stays full."""
        if self._held is None:
            self._held = []

    async def release(self) -> None:
        """Send the acks that were held back, and stop holding."""
        held, self._held = self._held, None
        for delivery in held or ():
            await self._settle(delivery, None)

    async def close(self) -> None:
        """Close the channel: unsettled deliveries are requeued in their old positions."""
        if not self.channel.is_closed:
            with contextlib.suppress(SessionLost, TimeoutError):
                async with asyncio.timeout(ANSWER_LIMIT_S):
                    await self.ask(self.channel.close())

    # Internals

    async def _settle(self, delivery: Delivery, requeue: bool | None) -> None:
        if self.unsettled.pop(delivery.tag, None) is None or self.is_lost.is_set():
            return
        # A handler may have settled it itself.
        if not delivery.message.processed:
            try:
                if requeue is None:
                    await self._send(self.channel.basic_ack(delivery.tag, wait=False))
                else:
                    await self._send(self.channel.basic_reject(delivery.tag, requeue=requeue, wait=False))
            except (*LOSSES, SessionLost):
                # The channel is lost: the message is redelivered on another one.
                return
        self._settled(delivery)
        self.released.set()

    async def _send(self, frame: Coroutine[Any, Any, None]) -> None:
        """Send a frame without an answer. Raises SessionLost."""
        if not self.channel.write_queue.full():
            await frame
            return
        # A wait for room in the library's queue never ends if the connection is lost meanwhile.
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
            # It could not be settled later, and would occupy the window.
            log.exception("rejected a malformed message of queue %r", self.queue_name)
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
