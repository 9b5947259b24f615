"""Keeps a queue subscribed: connects, and reconnects when the connection is lost.

Each channel is a Session. The requested window applies to the next one as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable

import aio_pika
import aiormq
from aio_pika.abc import AbstractConnection, AbstractRobustConnection
from aiormq.abc import AbstractConnection as AmqpConnection

from flyball.backoff import Backoff, Retries
from flyball.client.adaptive.session import ANSWER_LIMIT_S, Delivery, Session, SessionLost
from flyball.client.adaptive.windows import BrokerWindow, ChannelWindow, ConsumerWindow, NewSubscription
from flyball.errors import ControlError

log = logging.getLogger(__name__)

BACKOFF = Backoff()
CONNECT_LIMIT_S = 20.0


class Subscription:
    """Consumes a queue over its own connection, or a channel of a given connection."""

    def __init__(
        self,
        source: str | AbstractConnection,
        queue_name: str,
        receive: Callable[[Delivery], None],
        settled: Callable[[Delivery], None],
        lost: Callable[[Session], None],
        window: float,
    ) -> None:
        self._source = source
        self._queue_name = queue_name
        self._receive = receive
        self._settled = settled
        self._lost = lost
        self._connection: AbstractConnection | None = None
        self._session: Session | None = None
        self._window: BrokerWindow | None = None
        self._changing = asyncio.Lock()
        self._wanted = window
        self._applied: float | None = None
        self._is_ending = False
        self._global_is_refused = False
        # Connections so far.
        self.sessions = 0

    # Properties

    @property
    def session(self) -> Session | None:
        """The live channel, if any."""
        return None if self._session is None or self._session.is_lost.is_set() else self._session

    @property
    def window(self) -> float:
        """The latest requested window."""
        return self._wanted

    @property
    def is_fractional(self) -> bool:
        """Whether the broker supports fractional windows."""
        return self._window is not None and self._window.is_fractional

    @property
    def is_quick(self) -> bool:
        """Whether the window can change many times per second."""
        return self._window is None or self._window.is_quick

    # Operations

    async def open(self) -> None:
        """Connect and subscribe. Raises ControlError if that fails."""
        try:
            await self._establish()
        except _Failed as failure:
            raise ControlError(str(failure)) from failure.__cause__
        except BaseException:
            await self._discard()
            raise

    async def keep(self) -> None:
        """Reopen the channel whenever it is lost, until cancelled."""
        while self._session is not None:
            session = self._session
            await session.is_lost.wait()
            async with self._changing:
                # A window change may have replaced it.
                if self._session is not session:
                    continue
            if self._is_ending:
                return
            log.warning("connection lost for queue %r; its unacked messages will be redelivered", self._queue_name)
            self._lost(session)
            await self._discard()
            await self._establish_again()
            log.warning("resumed consuming queue %r", self._queue_name)

    async def set_window(self, window: float) -> None:
        """Change the window; on return it is in effect, or will be on the next channel."""
        self._wanted = window
        # Cancelling the caller must not interrupt a change halfway.
        await asyncio.shield(self._change())

    async def count_ready(self) -> int | None:
        """Return the number of ready messages; None if that is unknown at present."""
        session = self.session
        if session is None:
            return None
        try:
            return await session.count_ready()
        except SessionLost:
            return None

    async def end(self) -> None:
        """Stop deliveries; earlier ones can still be settled. Acks are no longer held back."""
        self._is_ending = True
        if self._session is not None:
            # Wake waiters for settlements: they need not wait any longer.
            self._session.released.set()
        with contextlib.suppress(SessionLost, TimeoutError):
            async with asyncio.timeout(ANSWER_LIMIT_S), self._changing:
                if self.session is not None:
                    await self.session.cancel()
        if self.session is not None:
            await self.session.release()

    async def close(self) -> None:
        """Close the channel, and the connection if it is its own. Unsettled deliveries are requeued."""
        self._is_ending = True
        await self._discard()

    # Internals

    async def _change(self) -> None:
        async with self._changing:
            session, broker_window, window = self.session, self._window, self._wanted
            if session is None or broker_window is None or self._is_ending or window == self._applied:
                return
            with contextlib.suppress(SessionLost):
                if not await broker_window.change(window):
                    await self._replace(session, window)
                self._applied = window

    async def _replace(self, session: Session, window: float) -> None:
        """Continue on a new channel once all deliveries of the old one are settled."""
        await session.cancel()
        while session.unsettled and not (session.is_lost.is_set() or self._is_ending):
            session.released.clear()
            await session.released.wait()
        if session.is_lost.is_set() or self._is_ending:
            return
        try:
            await session.ask(self._begin(session.channel.connection, window))
        finally:
            # If opening the new one fails, this counts as a loss, and is retried.
            await session.close()

    async def _begin(self, amqp: AmqpConnection, wanted: float) -> None:
        """Open a channel and subscribe. Raises SessionLost, and ConnectionError if no channel can be opened."""
        try:
            channel = await amqp.channel(publisher_confirms=False)
        except (aiormq.exceptions.AMQPError, OSError, RuntimeError):
            raise
        except Exception as error:
            # The library raises the exception that ended the connection, of any type, even plain Exception.
            if amqp.is_closed:
                raise ConnectionError(_text_of(error)) from error
            raise
        assert isinstance(channel, aiormq.Channel)
        session = Session(channel, self._queue_name, self._receive, self._settled)
        window = self._window_of(session, amqp)
        try:
            await session.count_ready()
            await window.begin(wanted)
        except BaseException:
            # A channel left open would hoard messages without handlers.
            await session.close()
            self._lost(session)
            raise
        self._session, self._window, self._applied = session, window, wanted

    async def _establish_again(self, attempts: int | None = None) -> None:
        retries = Retries(BACKOFF)
        while True:
            await asyncio.sleep(retries.next_delay_s())
            try:
                await self._establish()
                return
            except _Failed as failure:
                if retries.attempts == attempts:
                    raise
                if retries.attempts == 1:
                    log.warning("%s; retrying", failure)

    async def _establish(self) -> None:
        try:
            await self._try_to_establish()
        except _GlobalRefused:
            log.info(
                "queue %r does not support channel prefetch; changing the window by resubscribing", self._queue_name
            )
            self._global_is_refused = True
            # The refusal closed the connection. A robust connection needs time to restore itself.
            await self._establish_again(attempts=1 if isinstance(self._source, str) else 8)

    async def _try_to_establish(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                await self._begin(await self._connect(), self._wanted)
        except SessionLost as lost:
            await self._discard()
            cause = lost.__cause__
            if re.search("global[ _]qos", str(cause)) and not self._global_is_refused:
                raise _GlobalRefused from cause
            raise _Failed(f"cannot consume queue {self._queue_name!r} of {self._place}: {_text_of(cause)}") from cause
        except (aiormq.exceptions.AMQPError, OSError, RuntimeError, ValueError) as error:
            await self._discard()
            raise _Failed(f"no connection to {self._place}: {_text_of(error)}") from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The connection was cancelled, because its owner closed it, not this task.
            await self._discard()
            raise _Failed(f"no connection to {self._place}: it was closed") from error
        self.sessions += 1
        # The window may have been changed meanwhile.
        await self.set_window(self._wanted)

    def _window_of(self, session: Session, connection: AmqpConnection) -> BrokerWindow:
        if "flyball_version" in connection.server_properties:
            return ConsumerWindow(session)
        return NewSubscription(session) if self._global_is_refused else ChannelWindow(session)

    async def _connect(self) -> AmqpConnection:
        connection: AbstractConnection
        if isinstance(self._source, str):
            # Not connect_robust: it would resubscribe with an outdated window.
            connection = self._connection = await aio_pika.connect(self._source)
        else:
            connection = self._source
            self._require_that_it_restores_itself(connection)
            await connection.ready()
        if connection.transport is None or connection.transport.connection.is_closed:
            raise ConnectionError("connection closed")
        return connection.transport.connection

    def _require_that_it_restores_itself(self, source: AbstractConnection) -> None:
        if isinstance(source, AbstractRobustConnection):
            if source.is_closed or source.close_called:
                raise ControlError(f"the connection to {self._place} was closed: stop its consumers first")
        elif source.transport is None or source.transport.connection.is_closed:
            raise ControlError(
                f"the connection to {self._place} is lost and does not reconnect by itself:"
                " use its address, or aio_pika.connect_robust"
            )

    async def _discard(self) -> None:
        session, self._session = self._session, None
        self._window = self._applied = None
        if session is not None:
            await session.close()
        connection, self._connection = self._connection, None
        if connection is not None:
            # A TimeoutError is an OSError as well.
            with contextlib.suppress(aiormq.exceptions.AMQPError, OSError, RuntimeError):
                async with asyncio.timeout(ANSWER_LIMIT_S):
                    await connection.close()

    @property
    def _place(self) -> str:
        # Without credentials.
        return str(self._source) if not isinstance(self._source, str) else self._source.rpartition("@")[2]


def _text_of(error: BaseException | None) -> str:
    # asyncio puts the number of a system error into its text.
    return re.sub(r"\[errno -?\d+\] ?", "", str(error), flags=re.IGNORECASE) or type(error).__name__


class _Failed(Exception):
    """Opening failed."""


class _GlobalRefused(Exception):
    """The queue refuses channel prefetch."""
