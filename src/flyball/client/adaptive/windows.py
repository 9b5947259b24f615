"""The ways in which a broker lets the window of a running consumer change.

docs/adaptive-consumer.md has the facts behind them. Each knows one way and no control.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import ClassVar

from pamqp import commands

from flyball.client.adaptive.session import Session

DRAIN_S = 0.1
"""For so long a new subscription waits for what the old one got; what is out then counts against the window."""


class BrokerWindow(ABC):
    """How many messages a session may have unsettled."""

    is_fractional: ClassVar[bool] = False
    """Whether the broker itself understands fractions."""
    is_quick: ClassVar[bool] = True
    """Whether it can change many times a second without a loss."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @abstractmethod
    async def begin(self, window: float) -> None:
        """Subscribe with a window."""

    @abstractmethod
    async def change(self, window: float) -> None:
        """Change it. What is out beyond a smaller window stays out, and nothing comes until there is room."""


class ConsumerWindow(BrokerWindow):
    """Flyball: a consumer that is asked for again with another `x-prefetch` has it at once. 0 is a closed window."""

    is_fractional = True

    async def begin(self, window: float) -> None:
        await self._session.consume({"x-prefetch": float(window)})

    async def change(self, window: float) -> None:
        session = self._session
        again = commands.Basic.Consume(
            queue=session.queue_name, consumer_tag=session.tag, arguments={"x-prefetch": float(window)}
        )
        await session.ask(session.channel.rpc(again))


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

    async def change(self, window: float) -> None:
        await self._set(window)

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

    So the old one is cancelled, what it got is waited for a moment, and what is out still is taken off the window of
    the new one. Nothing is delivered meanwhile.
    """

    is_quick = False

    async def begin(self, window: float) -> None:
        await self._consume(max(1, round(window)))

    async def change(self, window: float) -> None:
        session = self._session
        await session.cancel()
        count = max(1, round(window))
        if await self._is_open_after(count):
            await self._consume(count - len(session.unsettled))

    async def _consume(self, count: int) -> None:
        await self._session.ask(self._session.channel.basic_qos(prefetch_count=count))
        await self._session.consume()

    async def _is_open_after(self, count: int) -> bool:
        """Wait a moment for all that is out, and as long as it takes for room; return whether the channel lives."""
        session = self._session
        clock = asyncio.get_running_loop().time
        end_s = clock() + DRAIN_S
        while session.unsettled and not session.is_lost.is_set():
            left_s = end_s - clock()
            if left_s <= 0 and len(session.unsettled) < count:
                break
            session.released.clear()
            try:
                async with asyncio.timeout(left_s if left_s > 0 else None):
                    await session.released.wait()
            except TimeoutError:
                continue
        return not session.is_lost.is_set()
