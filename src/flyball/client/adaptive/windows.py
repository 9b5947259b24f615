"""How brokers let the prefetch window of a running consumer change.

See docs/guides/adaptive-consumers.md. Each class implements one way, without control logic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from pamqp import commands

from flyball.client.adaptive.session import Session


class BrokerWindow(ABC):
    """The prefetch window of a session."""

    # Whether the broker supports fractions.
    is_fractional: ClassVar[bool] = False
    # Whether it can change many times per second without a penalty.
    is_quick: ClassVar[bool] = True

    def __init__(self, session: Session) -> None:
        self._session = session

    @abstractmethod
    async def begin(self, window: float) -> None:
        """Subscribe with an initial window."""

    @abstractmethod
    async def change(self, window: float) -> bool:
        """Change the window; messages beyond a smaller window stay unacked, and none are delivered until there is
        room.

        Return False if this session cannot change its window: a new one is needed.
        """


class ConsumerWindow(BrokerWindow):
    """Flyball: consuming again with another `x-prefetch` changes the window. 0 closes it."""

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
    """RabbitMQ's classic queues: `basic.qos` with `global` changes the window of the channel and its consumers.

    0 would mean unlimited, so a closed window is one message whose ack is held back.
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
    """RabbitMQ's quorum queues: only a new subscription gets a new window, which does not count earlier deliveries.

    So the old deliveries are settled first, and the new subscription uses a new channel: messages that a quorum queue
    sends to a consumer being cancelled are stuck on its channel. Deliveries stop meanwhile.
    """

    is_quick = False

    async def begin(self, window: float) -> None:
        await self._session.ask(self._session.channel.basic_qos(prefetch_count=max(1, round(window))))
        await self._session.consume()

    async def change(self, window: float) -> bool:
        return False
