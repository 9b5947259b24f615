"""State shared by a channel's publisher and its deliveries, and the wait of a method for its completion."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from flyball.broker.core.pending import Done
from flyball.broker.protocols.amqp.connection import AmqpConnection
from flyball.broker.protocols.amqp.replies import reply_of
from flyball.broker.protocols.amqp.transactions import Settling, Transaction
from flyball.errors import FlyballError

# Class id and method id, for errors.
Ids = tuple[int, int]


class ChannelState:
    """State shared by both sides of a channel."""

    __slots__ = ("is_closing", "number", "reply_name", "session", "transaction")

    def __init__(self, session: AmqpConnection, number: int) -> None:
        self.session = session
        self.number = number
        # Reply name of this channel for direct replies.
        self.reply_name: str | None = None
        # The open transaction of a transactional channel.
        self.transaction: Transaction | None = None
        # Whether an error closed the channel, which waits for close-ok: further methods are ignored.
        self.is_closing = False

    @property
    def is_over(self) -> bool:
        """Whether nothing more may be sent on this channel."""
        return self.is_closing or self.session.is_gone

    @property
    def settling(self) -> Sequence[Settling]:
        """Acks and rejects of the open transaction."""
        return () if self.transaction is None else self.transaction.settling

    def perform(self, ids: Ids, begin: Callable[[Done], object], finish: Callable[[], None]) -> None:
        """Start an operation and call `finish` when it is done; until then the connection executes no more methods.

        `begin` receives the completion callback, which it may call at once. An error passed to it closes the channel
        or connection. `finish` may start another operation, and runs even if the channel has been closed.
        """
        session = self.session
        is_done = False
        is_waiting = False

        def done(error: FlyballError | None = None) -> None:
            nonlocal is_done
            is_done = True
            if is_waiting:
                session.in_flight -= 1
                session.is_held = False
            session.is_answering = False
            if error is None:
                try:
                    finish()
                except FlyballError as raised:
                    error = raised
            if error is not None and not self.is_over:
                session.fail(self.number, reply_of(error, *ids))
            if not session.is_held:
                session.answered()
                if is_waiting:
                    session.release()

        session.is_answering = True
        try:
            begin(done)
        except FlyballError:
            session.answered()
            raise
        if not is_done:
            is_waiting = True
            session.in_flight += 1
            session.hold()

    def wait_for(self, ids: Ids, work: Awaitable[Callable[[], None]]) -> None:
        """Like `perform`, with a coroutine that returns `finish`."""
        session = self.session
        finish: Callable[[], None]

        async def wait(done: Done) -> None:
            nonlocal finish
            try:
                finish = await work
            except FlyballError as error:
                done(error)
            else:
                done(None)

        self.perform(ids, lambda done: session.hub.spawn(wait(done), session), lambda: finish())
