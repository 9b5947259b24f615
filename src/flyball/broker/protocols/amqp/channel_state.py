"""A channel as its publishing and its consuming side know it, and how commands wait for what they have begun."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from flyball.broker.core.pending import Done
from flyball.broker.protocols.amqp.connection import AmqpConnection
from flyball.broker.protocols.amqp.replies import reply_of
from flyball.broker.protocols.amqp.transactions import Settling, Transaction
from flyball.errors import FlyballError

# Class and method: what an error is reported for.
Ids = tuple[int, int]


class ChannelState:
    """What both sides of a channel share."""

    __slots__ = ("is_closing", "number", "reply_name", "session", "transaction")

    def __init__(self, session: AmqpConnection, number: int) -> None:
        self.session = session
        self.number = number
        # Where direct replies to this channel go.
        self.reply_name: str | None = None
        # The one that is under way, on a channel that is transactional.
        self.transaction: Transaction | None = None
        # Whether it has failed and waits for the peer to notice: what comes meanwhile is ignored.
        self.is_closing = False

    @property
    def is_over(self) -> bool:
        """Whether the peer hears nothing more here."""
        return self.is_closing or self.session.is_gone

    @property
    def settling(self) -> Sequence[Settling]:
        """What the transaction that is under way has settled."""
        return () if self.transaction is None else self.transaction.settling

    def perform(self, ids: Ids, begin: Callable[[Done], object], finish: Callable[[], None]) -> None:
        """Begin something, and finish when it is done; until then the connection takes no further commands.

        `begin` gets what to call then, maybe at once, or with an error, which ends the channel or the connection.
        What finishes may begin something else, and is called even if the channel is over by then.
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
        """The same with a coroutine, which returns what finishes."""
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
