"""An AMQP client inside the node: what it asks for is done, checked and refused as for any other client.

It has no socket and no password: whoever opens it has made sure who the user is. What it asks for, and for whom, is
not known here.
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

# What is not answered by then may or may not be done: the store, or another node, is away.
ANSWER_LIMIT_S = 30.0

CHANNEL = 1

M = TypeVar("M", bound=Method)


class _Pipe(asyncio.Transport):
    """Where a session writes to instead of a socket: its commands are read at once."""

    def __init__(self, session: _DirectSession, peer: tuple[str, int] | None) -> None:
        super().__init__({"peername": peer})
        self._session = session
        # What is stored is shown, though it be longer than what may be published by now.
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
        """Nothing comes but what is asked for, and that waits in the session."""

    def resume_reading(self) -> None:
        """See `pause_reading`."""

    def get_write_buffer_size(self) -> int:
        return 0


class _DirectSession(AmqpSession):
    """The session of a client inside. It is none of the node's connections: nobody lists, counts or limits it."""

    def __init__(self, hub: Hub, context: AmqpContext, user: User, *, is_trusted: bool) -> None:
        super().__init__(hub, context)
        # Neither its channel nor its bytes are those of a client: what is asked over HTTP is no churn.
        self.meters = Meters()
        self._is_trusted = is_trusted
        # What the session has sent; None when it is over.
        self.answers: asyncio.Queue[Command | None] = asyncio.Queue()
        # Why it, or its channel, was closed.
        self.failure: FlyballError | None = None
        self.user = user

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def begin(self, vhost: str) -> None:
        """Skip what other clients have to say before they are let in. Raises VhostNotFound, NotPermitted."""
        access = self.hub.authority.access
        access.check_vhost(vhost)
        if not self._is_trusted and not access.may_enter(self.user.name, vhost):
            raise NotPermitted(f"access to vhost '{vhost}' refused for user '{self.user.name}'")
        self.data_received(amqp.PROTOCOL_HEADER)
        self.tuned(CHANNEL, self.context.settings.frame_max_bytes, 0)
        self.opened(vhost)
        # Nobody has to be told what the node is and how to log in.
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
        # A peer is told a code and a short text; this one can have the fact itself.
        if self.failure is None:
            cause = error.__cause__
            self.failure = cause if isinstance(cause, FlyballError) else InvalidArgument(error.text)


class DirectChannel:
    """One channel of a client inside. One task uses it: what is sent and what comes back are in order.

    All of it raises what the node refuses it with, after which nothing more can be done here, and StoreUnavailable
    if there is no answer in time.
    """

    def __init__(self, session: _DirectSession) -> None:
        self._session = session
        self._is_confirming = False

    async def call(self, method: Method, answer: type[M]) -> M:
        """Send a method and return its answer. Raises InvalidArgument for what AMQP cannot say."""
        self._send(method)
        found = await self._next()
        assert isinstance(found, answer), f"{found!r} is no answer to {method!r}"
        return found

    async def publish(self, exchange: str, routing_key: str, properties: bytes, body: bytes) -> bool:
        """Publish a message; return, when all queues have stored it, whether there is one that has taken it."""
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
        """Return the next message of a queue, None if there is none; what is not settled goes back at the end."""
        self._send(amqp.BasicGet(CHANNEL, queue_name, no_ack))
        found = await self._next()
        return found if isinstance(found, amqp.BasicGetOk) else None

    def reject(self, delivery_tag: int, *, requeue: bool) -> None:
        """Send a message back, or let it be dead."""
        self._send(amqp.BasicReject(CHANNEL, delivery_tag, requeue))

    def _send(self, method: Method, content: bytes = b"") -> None:
        try:
            data = method.encode()
        except (ValueError, RecursionError) as error:
            raise InvalidArgument(f"AMQP cannot say this: {error}") from error
        self._session.data_received(data + content)

    async def _next(self) -> Command:
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                found = await self._session.answers.get()
        except TimeoutError:
            raise StoreUnavailable(
                f"no answer within {ANSWER_LIMIT_S:.0f} s: what was asked for may or may not be done"
            ) from None
        if found is None or isinstance(found, amqp.ChannelClose | amqp.ConnectionClose):
            raise self._session.failure or StoreUnavailable("the node stops: what was asked for may not be done")
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
    """Open a channel in a virtual host for a user; what it holds is given back on leaving.

    `peer` is who asked, for the log. A trusted one is not held to the permissions of its user. Raises VhostNotFound,
    and NotPermitted if the user may not enter the virtual host.
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
