"""The ways in which a broker lets the window of a running consumer change.

docs/guides/adaptive-consumers.md has the facts behind them. Each knows one way and no control.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from pamqp import commands

from flyball.client.adaptive.session import Session


class BrokerWindow(ABC):
    """How many messages a session may have unsettled."""

    # Whether the broker itself understands fractions.
    is_fractional: ClassVar[bool] = False
    # Whether it can change many times a second without a loss.
    is_quick: ClassVar[bool] = True

    def __init__(self, session: Session) -> None:
        self._session = session

    @abstractmethod
    async def begin(self, window: float) -> None:
        """Subscribe with a window."""

    @abstractmethod
    async def change(self, window: float) -> bool:
        """Change it; what is out beyond a smaller window stays out, and nothing comes until there is room.

        Return False if this session cannot change: another one is needed.
        """


class ConsumerWindow(BrokerWindow):
    """Flyball: a consumer that is asked for again with another `x-prefetch` has it at once. 0 is a closed window."""

    is_fractional = True

    async def begin(self, window: float) -> None:
        await self._session.consume({"x-prefetch": float(window)})

    async def change(self, window: float) -> bool:
        session = self._session
        again = commands.Basic.Consume(
            queue=session.queue_name, consumer_tag=session.tag, arguments={"x-prefetch": float(window)}
        )
        await session.ask(session.channel.rpc(again))
        return True


class ChannelWindow(BrokerWindow):
    """RabbitMQ's classic queues: `basic.qos` with `global` changes the window of a channel, consumers included.

    0 would be no limit there, so a closed window is one message whose acknowledgement is held back.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._count = 0

    async def begin(self, window: float) -> None:
        await self._set(window)
        await self._session.consume()

    async def change(self, window: float) -> bool:
        await self._set(window)
        return True

    async def _set(self, window: float) -> None:
        count = max(1, round(window))
        if round(window) == 0:
            self._session.hold()
        else:
            await self._session.release()
        if count != self._count:
            await self._session.ask(self._session.channel.basic_qos(prefetch_count=count, global_=True))
            self._count = count


class NewSubscription(BrokerWindow):
    """RabbitMQ's quorum queues: only a new subscription has a new window, and it does not count what is out.

    So what the old one got is waited for, and the new one has a channel of its own: what a quorum queue sends to a
    subscription while that is cancelled is stuck on its channel. Nothing is delivered meanwhile.
    """

    is_quick = False

    async def begin(self, window: float) -> None:
        await self._session.ask(self._session.channel.basic_qos(prefetch_count=max(1, round(window))))
        await self._session.consume()

    async def change(self, window: float) -> bool:
        return False
