"""Whatever is asked of a window, in whatever order: no more messages are out than it allows, and no fewer."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import aiormq
import pytest
from aio_pika import IncomingMessage
from aiormq.abc import DeliveredMessage
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flyball.client.adaptive import session
from flyball.client.adaptive.session import Delivery, Session, SessionLost
from flyball.client.adaptive.subscription import Subscription
from flyball.client.adaptive.windows import NewSubscription
from tests.broker.protocols.amqp.compatibility.brokers import Broker
from tests.client.adaptive.work import drain, fill, until

MESSAGES = 60
# Windows, and how many messages are acknowledged after each.
steps = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 4)), min_size=1, max_size=8)


class Spy:
    """Consumes without handling, and looks at every arrival whether there was room for it."""

    def __init__(self, url: str, queue_name: str, window: int) -> None:
        self.allowed = window
        self.arrived: list[int] = []
        self.complaints: list[str] = []
        self.subscription = Subscription(url, queue_name, self._receive, self._settle, lambda _: None, window)
        self.settled = 0

    @property
    def session(self) -> Session:
        session = self.subscription.session
        assert session is not None
        return session

    @property
    def out(self) -> int:
        session = self.subscription.session
        return 0 if session is None else len(session.unsettled)

    def _receive(self, delivery: Delivery) -> None:
        self.arrived.append(int(delivery.message.body))
        out = len(delivery.session.unsettled)
        if out > self.allowed:
            self.complaints.append(f"{out} are out, {self.allowed} are allowed")

    def _settle(self, delivery: Delivery) -> None:
        self.settled += 1

    async def settle(self) -> None:
        """Let the broker deliver what it wants to."""
        for _ in range(3):
            await self.session.count_ready()
        # What came before the last answer is received in tasks of the library.
        for _ in range(3):
            await asyncio.sleep(0)

    async def acknowledge(self, count: int) -> None:
        session = self.subscription.session
        for delivery in list(session.unsettled.values())[:count] if session is not None else ():
            await delivery.session.acknowledge(delivery)

    async def change(self, window: int) -> None:
        """Change the window; where it can only shrink when there is room, make room."""
        self.allowed = max(window, self.allowed)
        changing = asyncio.ensure_future(self.subscription.set_window(window))
        while not self.subscription.is_quick and not changing.done():
            # What is out must be dealt with before there can be a new subscription.
            await self.acknowledge(self.out)
            await asyncio.wait([changing], timeout=0.01)
        await changing
        self.allowed = window


@pytest.mark.parametrize("quorum", [False, True])
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps)
def test_no_more_is_out_than_the_window_allows_and_no_less_if_it_is_wanted(
    broker: Broker, quorum: bool, steps: list[tuple[int, int]]
) -> None:
    async def follow() -> None:
        queue_name = f"test-{secrets.token_hex(6)}"
        await fill(broker.url(), queue_name, MESSAGES, quorum=quorum)
        spy = Spy(broker.url(), queue_name, window=1)
        await spy.subscription.open()
        for window, acknowledged in steps:
            await spy.settle()
            await spy.change(window)
            await spy.settle()
            assert spy.out >= window or not spy.subscription.is_quick, "there is room that is not used"
            await spy.acknowledge(acknowledged)
        await spy.settle()
        assert spy.complaints == []
        assert len(set(spy.arrived)) == len(spy.arrived), "nothing came twice"
        assert not spy.subscription.is_quick or spy.arrived == sorted(spy.arrived)
        await spy.subscription.close()
        assert len(await drain(broker.url(), queue_name)) == MESSAGES - spy.settled

    asyncio.run(follow())


async def test_a_window_of_none_holds_acknowledgements_back_until_it_opens(broker: Broker, name: str) -> None:
    await fill(broker.url(), name, 10)
    spy = Spy(broker.url(), name, window=1)
    await spy.subscription.open()
    await spy.settle()
    await spy.subscription.set_window(0)
    for _ in range(3):
        await spy.acknowledge(1)
        await spy.settle()
    assert spy.arrived == [0]
    await spy.subscription.set_window(1)
    await spy.settle()
    assert spy.arrived == [0, 1]
    await spy.subscription.end()
    await spy.subscription.close()
    assert len(await drain(broker.url(), name)) == 9


async def test_what_is_held_back_is_acknowledged_at_the_end(broker: Broker, name: str) -> None:
    await fill(broker.url(), name, 3)
    spy = Spy(broker.url(), name, window=1)
    await spy.subscription.open()
    await spy.settle()
    await spy.subscription.set_window(0)
    await spy.acknowledge(1)
    await spy.subscription.end()
    await spy.subscription.close()
    assert await drain(broker.url(), name) == ["1", "2"]


async def test_a_request_whose_caller_is_cancelled_leaves_the_channel_as_it_is(broker: Broker, name: str) -> None:
    await fill(broker.url(), name, 10)
    spy = Spy(broker.url(), name, window=1)
    await spy.subscription.open()
    spy.allowed = 3
    changing = asyncio.ensure_future(spy.subscription.set_window(3))
    await asyncio.sleep(0)
    changing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await changing
    await spy.settle()
    await spy.subscription.set_window(2)
    await spy.acknowledge(3)
    await spy.settle()
    assert spy.subscription.sessions == 1
    assert spy.complaints == []
    await spy.subscription.close()
    await drain(broker.url(), name)


async def test_a_window_that_is_set_while_the_channel_opens_holds_when_it_is_open(
    broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(broker.url(), name, 10)
    spy = Spy(broker.url(), name, window=2)
    consume = Session.consume

    async def consume_and_change(session: Session, arguments: dict[str, Any] | None = None) -> None:
        await consume(session, arguments)
        spy.allowed = 5
        await spy.subscription.set_window(5)

    monkeypatch.setattr(Session, "consume", consume_and_change)
    await spy.subscription.open()
    await spy.settle()
    assert (spy.out, spy.complaints) == (5, [])
    await spy.subscription.close()
    await drain(broker.url(), name)


async def test_a_new_subscription_that_fails_is_a_loss_and_is_tried_again(
    broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the last channel of a connection is taken."""
    await fill(broker.url(), name, 20)
    spy = Spy(broker.url(), name, window=2)
    monkeypatch.setattr(Subscription, "_window_of", lambda self, session, connection: NewSubscription(session))
    await spy.subscription.open()
    keeping = asyncio.ensure_future(spy.subscription.keep())
    begin = NewSubscription.begin
    refused: list[float] = []

    async def refuse_once(window: NewSubscription, size: float) -> None:
        if not refused:
            refused.append(size)
            raise SessionLost
        await begin(window, size)

    monkeypatch.setattr(NewSubscription, "begin", refuse_once)
    await spy.change(3)
    await until(lambda: spy.subscription.sessions == 2)
    await until(lambda: spy.out == 3)
    assert refused == [3]
    keeping.cancel()
    await asyncio.wait([keeping])
    await spy.subscription.close()
    await drain(broker.url(), name)


async def test_a_message_that_cannot_be_read_is_rejected_and_keeps_no_place(
    broker: Broker, name: str, channel: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(delivered: DeliveredMessage) -> IncomingMessage:
        if delivered.body == b"odd":
            # As aio-pika does for a delivery mode that does not exist, which both brokers refuse.
            raise ValueError("7 is not a valid DeliveryMode")
        return IncomingMessage(delivered)

    monkeypatch.setattr(session, "IncomingMessage", read)
    await fill(broker.url(), name, 0)
    channel.basic_publish("", name, b"odd")
    await fill(broker.url(), name, 2)
    spy = Spy(broker.url(), name, window=1)
    await spy.subscription.open()
    await until(lambda: spy.arrived == [0])
    assert "rejected a malformed message" in caplog.text
    await spy.subscription.close()
    assert [text.rstrip("*") for text in await drain(broker.url(), name)] == ["0", "1"]


async def test_library_errors_of_an_ending_channel_count_as_a_loss(broker: Broker, name: str) -> None:
    """It refuses requests a few steps before the channel counts as closed."""
    await fill(broker.url(), name, 1)
    spy = Spy(broker.url(), name, window=1)
    await spy.subscription.open()

    async def refused() -> None:
        raise aiormq.exceptions.ChannelInvalidStateError

    with pytest.raises(SessionLost):
        await spy.session.ask(refused())
    await spy.subscription.close()
    await drain(broker.url(), name)
