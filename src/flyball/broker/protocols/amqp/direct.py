"""An AMQP client inside the node; its methods are executed and checked like those of other clients.

It has no socket and no login: its creator has authenticated the user.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from typing import TypeVar

from flyball.broker.engine.access import Action
from flyball.broker.engine.counts import Meters
from flyball.broker.protocols.amqp.context import AmqpContext
from flyball.broker.protocols.amqp.session import AmqpSession
from flyball.broker.transport.connection import Hub
from flyball.broker.wire import amqp
from flyball.broker.wire.amqp import AmqpError, Command, Decoder, Method
from flyball.errors import FlyballError, InvalidArgument, NotPermitted, StoreUnavailable
from flyball.model import User

# Timeout of a reply. After it the outcome of the operation is unknown: the store or another node is unavailable.
ANSWER_LIMIT_S = 30.0

CHANNEL = 1

M = TypeVar("M", bound=Method)


class _Pipe(asyncio.Transport):
    """The transport of a direct session: output is decoded at once."""

    def __init__(self, session: _DirectSession, peer: tuple[str, int] | None) -> None:
        super().__init__({"peername": peer})
        self._session = session
        # A stored message is shown even if it exceeds the current size limit for publishing.
        self._decoder = Decoder(0, sys.maxsize, from_server=True)
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._decoder.feed(bytes(data))
        try:
            while (command := self._decoder.next_command()) is not None:
                self._session.answers.put_nowait(command)
        except AmqpError as error:
            self._session.failure = InvalidArgument(f"a message cannot be shown: {error}")
            self.close()

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._session.answers.put_nowait(None)

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        """No-op: all input is from calls, and the session queues it."""

    def resume_reading(self) -> None:
        """No-op; see `pause_reading`."""

    def get_write_buffer_size(self) -> int:
        return 0


class _DirectSession(AmqpSession):
    """The session of a direct client, which is not a connection of the node: not listed, counted or limited."""

    def __init__(self, hub: Hub, context: AmqpContext, user: User, *, is_trusted: bool) -> None:
        super().__init__(hub, context)
        # Separate meters: requests over HTTP must not appear as client channels and traffic.
        self.meters = Meters()
        self._is_trusted = is_trusted
        # Commands from the session; None at its end.
        self.answers: asyncio.Queue[Command | None] = asyncio.Queue()
        # The error that closed it or its channel.
        self.failure: FlyballError | None = None
        self.user = user

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def begin(self, vhost: str) -> None:
        """Skip the handshake and open the vhost. Raises VhostNotFound, NotPermitted."""
        access = self.hub.authority.access
        access.check_vhost(vhost)
        if not self._is_trusted and not access.may_enter(self.user.name, vhost):
            raise NotPermitted(f"access to vhost '{vhost}' refused for user '{self.user.name}'")
        self.data_received(amqp.PROTOCOL_HEADER)
        self.tuned(CHANNEL, self.context.settings.frame_max_bytes, 0)
        self.opened(vhost)
        # Drop the output of the handshake.
        self._out.clear()
        self._out_bytes = 0

    def check(self, action: Action, name: str, what: str) -> None:
        if not self._is_trusted:
            super().check(action, name, what)

    def fail(self, number: int, error: AmqpError) -> None:
        self._note(error)
        super().fail(number, error)

    def _fail_all(self, error: AmqpError) -> None:
        self._note(error)
        super()._fail_all(error)

    def _note(self, error: AmqpError) -> None:
        # A remote peer receives a code and a short text; a direct client the error itself.
        if self.failure is None:
            cause = error.__cause__
            self.failure = cause if isinstance(cause, FlyballError) else InvalidArgument(error.text)


class DirectChannel:
    """One channel of a direct client, used by one task: replies are in the order of requests.

    All methods raise the broker's error, after which the channel is unusable, and StoreUnavailable on a timeout.
    """

    def __init__(self, session: _DirectSession) -> None:
        self._session = session
        self._is_confirming = False

    async def call(self, method: Method, answer: type[M]) -> M:
        """Send a method and return its reply. Raises InvalidArgument for values that AMQP cannot encode."""
        self._send(method)
        found = await self._next()
        assert isinstance(found, answer), f"unexpected answer {found!r} to {method!r}"
        return found

    async def publish(self, exchange: str, routing_key: str, properties: bytes, body: bytes) -> bool:
        """Publish a message and wait until all queues have stored it; return whether any queue accepted it."""
        if not self._is_confirming:
            await self.call(amqp.ConfirmSelect(CHANNEL, False), amqp.ConfirmSelectOk)
            self._is_confirming = True
        content = amqp.encode_content(CHANNEL, properties, body, self._session.frame_max)
        self._send(amqp.BasicPublish(CHANNEL, exchange, routing_key, True, False), content)
        is_routed = True
        while True:
            found = await self._next()
            if isinstance(found, amqp.BasicAck | amqp.BasicNack):
                return is_routed and isinstance(found, amqp.BasicAck)
            is_routed = False

    async def get(self, queue_name: str, *, no_ack: bool) -> amqp.BasicGetOk | None:
        """Return the next message of a queue, or None; unacked messages are requeued on close."""
        self._send(amqp.BasicGet(CHANNEL, queue_name, no_ack))
        found = await self._next()
        return found if isinstance(found, amqp.BasicGetOk) else None

    def reject(self, delivery_tag: int, *, requeue: bool) -> None:
        """Requeue a message, or dead-letter it."""
        self._send(amqp.BasicReject(CHANNEL, delivery_tag, requeue))

    def _send(self, method: Method, content: bytes = b"") -> None:
        try:
            data = method.encode()
        except (ValueError, RecursionError) as error:
            raise InvalidArgument(f"AMQP cannot encode this: {error}") from error
        self._session.data_received(data + content)

    async def _next(self) -> Command:
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                found = await self._session.answers.get()
        except TimeoutError:
            raise StoreUnavailable(
                f"no answer within {ANSWER_LIMIT_S:.0f} s: the operation may or may not have been done"
            ) from None
        if found is None or isinstance(found, amqp.ChannelClose | amqp.ConnectionClose):
            raise self._session.failure or StoreUnavailable(
                "the node is stopping: the operation may not have been done"
            )
        return found


@contextlib.asynccontextmanager
async def direct_channel(
    hub: Hub,
    context: AmqpContext,
    user: User,
    vhost: str,
    *,
    peer: tuple[str, int] | None = None,
    is_trusted: bool = False,
) -> AsyncIterator[DirectChannel]:
    """Open a channel in a vhost for a user; on exit its unacked messages are requeued.

    `peer` is the requester, for the log. The user's permissions do not apply to a trusted channel. Raises
    VhostNotFound, and NotPermitted if the user may not access the vhost.
    """
    session = _DirectSession(hub, context, user, is_trusted=is_trusted)
    session.connection_made(_Pipe(session, peer))
    channel = DirectChannel(session)
    try:
        session.begin(vhost)
        await channel.call(amqp.ChannelOpen(CHANNEL), amqp.ChannelOpenOk)
        yield channel
    finally:
        session.connection_lost(None)
