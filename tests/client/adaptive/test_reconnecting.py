"""A connection that is lost in the middle of a loop: the consumer goes on, and all messages are handled."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

import aio_pika
import pytest

from flyball.backoff import Backoff
from flyball.client.adaptive import AdaptiveConsumer, AdaptiveOptions, Fast, FractionalWindow, Rate, Window, actuators
from flyball.client.adaptive import session as session_module
from flyball.client.adaptive import subscription as subscription_module
from flyball.client.adaptive.actuators import ConsumerActuator
from flyball.client.adaptive.session import Session
from flyball.control.limits import Limits
from flyball.errors import ControlError
from tests.broker.protocols.amqp.compatibility.brokers import Broker
from tests.client.adaptive.relay import Relay
from tests.client.adaptive.work import Samples, Work, drain, fill, until
from tests.nodes import RunningNode
from tests.ports import kept_port


@pytest.mark.parametrize("actuator", [Window, FractionalWindow])
async def test_the_loop_goes_on_over_cut_connections_and_no_message_is_lost(
    broker: Broker, name: str, actuator: type[ConsumerActuator]
) -> None:
    await fill(broker.url(), name, 400)
    work = Work()
    samples = Samples()
    async with Relay(broker.host, broker.port) as relay:
        consumer = AdaptiveConsumer(
            relay.url,
            name,
            work,
            Rate(1e5),
            options=AdaptiveOptions(actuator=actuator(), start=5, sample_time_s=0.05, record=samples.record),
        )
        async with consumer:
            for cut in range(1, 4):
                await work.until_done(60 * cut)
                relay.cut()
                await until(lambda cut=cut: consumer.state.sessions == 1 + cut)  # type: ignore[misc]
            await work.until(lambda: len(set(work.done)) == 400)
            seen = len(samples.all)
            await samples.until(lambda: len(samples.all) > seen + 2)
    assert set(work.done) == set(range(400))
    assert consumer.state.sessions == 4
    assert await drain(broker.url(), name) == []


async def test_acks_for_a_lost_channel_are_dropped_and_redelivered(
    broker: Broker, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(broker.url(), name, 6)
    work = Work(is_open=False)
    async with Relay(broker.host, broker.port) as relay:
        with caplog.at_level(logging.INFO, "flyball"):
            async with AdaptiveConsumer(
                relay.url, name, work, Fast(), options=AdaptiveOptions(concurrency=4, start=6)
            ) as consumer:
                await work.until_begun(4)
                relay.cut()
                await until(lambda: consumer.state.sessions == 2)
                work.gate.set()
                await work.until_done(10)
                state = consumer.state
    assert sorted(work.done) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 5]
    assert (state.sessions, state.failed) == (2, 0)
    said = [record.levelname for record in caplog.records if record.name.startswith("flyball")]
    assert said == ["WARNING", "WARNING"], "lost, and there again"
    assert await drain(broker.url(), name) == []


async def test_window_set_while_disconnected_applies_after_reconnecting(broker: Broker, name: str) -> None:
    await fill(broker.url(), name, 20)
    work = Work(is_open=False)
    acting = Window()
    async with Relay(broker.host, broker.port) as relay:
        consumer = AdaptiveConsumer(
            relay.url,
            name,
            work,
            Rate(1),
            options=AdaptiveOptions(actuator=acting, start=2, sample_time_s=60, stop_limit_s=0),
        )
        async with consumer:
            await work.until_begun(2)
            relay.cut()
            await acting.apply(5)
            await until(lambda: consumer.state.sessions == 2)
            await work.until_begun(7)
            assert consumer.state.unsettled == 5
    assert len(await drain(broker.url(), name)) == 20


async def test_a_queue_that_is_deleted_and_made_again_is_consumed_again(broker: Broker, name: str) -> None:
    await fill(broker.url(), name, 3)
    work = Work()
    async with AdaptiveConsumer(broker.url(), name, work, Rate(1000)) as consumer:
        await work.until_done(3)
        await drain(broker.url(), name)
        await fill(broker.url(), name, 3, first=3)
        await work.until_done(6)
        await until(lambda: consumer.state.sessions == 2)
    assert work.done == [0, 1, 2, 3, 4, 5]
    assert await drain(broker.url(), name) == []


async def test_it_can_be_stopped_while_there_is_no_broker(broker: Broker, name: str) -> None:
    await fill(broker.url(), name, 3)
    work = Work()
    async with (
        Relay(broker.host, broker.port) as relay,
        AdaptiveConsumer(relay.url, name, work, Rate(1000)) as consumer,
    ):
        await work.until_done(3)
        relay.close()
        await until(lambda: not consumer.state.is_connected)
    assert set(await drain(broker.url(), name)) <= {"0*", "1*", "2*"}, "what was acknowledged too late to be heard"


async def test_it_can_be_stopped_while_the_broker_does_not_answer(
    broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "ANSWER_LIMIT_S", 0.05)
    monkeypatch.setattr(subscription_module, "ANSWER_LIMIT_S", 0.05)
    await fill(broker.url(), name, 1)
    work = Work()
    async with Relay(broker.host, broker.port) as relay:
        async with AdaptiveConsumer(relay.url, name, work, Rate(1000)):
            await work.until_done(1)
            relay.freeze()
        relay.thaw()
        # The library lets its tasks end when the connection does.
        relay.cut()
    assert set(await drain(broker.url(), name)) <= {"0*"}, "its acknowledgement was in progress"


@pytest.mark.parametrize("budgets", [[1, 8, 50, 300], list(range(380, 740, 12))])
async def test_a_connection_that_is_cut_at_any_place_of_its_opening_is_tried_again(
    broker: Broker, name: str, budgets: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_module, "BACKOFF", Backoff(0.001, 0.001))
    await fill(broker.url(), name, 3)
    work = Work()
    async with Relay(broker.host, broker.port) as relay:
        for budget in budgets[::6]:
            relay.budgets = [budget]
            starting = AdaptiveConsumer(relay.url, name, work, Rate(1000))
            with contextlib.suppress(ControlError):
                await starting.start()
            await starting.stop()
        async with AdaptiveConsumer(
            relay.url, name, work, Rate(1000), options=AdaptiveOptions(sample_time_s=0.05)
        ) as consumer:
            whole, relay.budgets = relay.whole, budgets.copy()
            relay.cut()
            # Actions over a connection that is about to be cut may be lost.
            await until(lambda: relay.whole > whole and consumer.state.is_connected)
            await fill(broker.url(), name, 3, first=10)
            await work.until(lambda: {10, 11, 12} <= set(work.done))
    assert await drain(broker.url(), name) == []


async def test_a_start_that_failed_may_be_tried_again_and_is_as_good_as_the_first(broker: Broker, name: str) -> None:
    work = Work(is_open=False)
    acting = Window()
    async with Relay(broker.host, broker.port) as relay:
        consumer = AdaptiveConsumer(
            relay.url, name, work, Rate(1), options=AdaptiveOptions(actuator=acting, sample_time_s=60, stop_limit_s=0)
        )
        with pytest.raises(ControlError, match="no queue"):
            await consumer.start()
        await fill(broker.url(), name, 5)
        async with consumer:
            await work.until_begun(1)
            await acting.apply(3)
            await work.until_begun(3)
            relay.cut()
            await until(lambda: consumer.state.sessions == 2)
    await drain(broker.url(), name)


async def test_workers_survive_a_connection_that_accepts_no_acks(broker: Broker, name: str) -> None:
    """The library's queue has room for ten, and is not emptied when its connection is over."""
    await fill(broker.url(), name, 30)
    work = Work(is_open=False)
    async with Relay(broker.host, broker.port) as relay:
        consumer = AdaptiveConsumer(
            relay.url,
            name,
            work,
            Fast(),
            options=AdaptiveOptions(concurrency=30, limits=Limits(30, 30), stop_limit_s=0),
        )
        async with consumer:
            await work.until_begun(30)
            session = consumer._subscription.session
            assert session is not None
            relay.cut()
            # Between this and the end of the channel there are some steps.
            await asyncio.wait([session.channel.connection._writer_task])  # type: ignore[attr-defined]
            work.gate.set()
            await work.until_done(30)
            work.gate.clear()
            await work.until_begun(60)
            assert consumer.state.running == 30
    assert len(await drain(broker.url(), name)) == 30


async def test_fraction_set_while_disconnected_applies_after_reconnecting(
    flyball_node: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers do not hop while it is unknown whether the broker does."""
    monkeypatch.setattr(actuators, "SLOT_S", 0.001)
    await fill(flyball_node.url(), name, 3)
    work = Work()
    acting = FractionalWindow()
    async with Relay(flyball_node.host, flyball_node.port) as relay:
        consumer = AdaptiveConsumer(
            relay.url,
            name,
            work,
            Rate(1),
            options=AdaptiveOptions(actuator=acting, start=0.5, sample_time_s=60, limits=Limits(0.1, 9)),
        )
        async with consumer:
            await work.until_done(3)
            relay.cut()
            await until(lambda: not consumer.state.is_connected)
            await acting.apply(0.2)
            await until(lambda: consumer.state.is_connected)
            assert consumer.state.window == 0.2
    await drain(flyball_node.url(), name)


async def test_a_queue_with_global_in_its_name_keeps_its_quick_window(
    broker: Broker, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue_name = f"global-{name}"
    await fill(broker.url(), queue_name, 1)
    work = Work()
    async with AdaptiveConsumer(broker.url(), queue_name, work, Rate(1000)) as consumer:
        await work.until_done(1)
        await drain(broker.url(), queue_name)
        await until(lambda: "retrying" in caplog.text)
        await fill(broker.url(), queue_name, 1)
        await work.until_done(2)
        assert consumer._subscription.is_quick
    await drain(broker.url(), queue_name)


# Connections that are given


async def test_a_robust_connection_that_is_lost_is_used_again_by_all_its_consumers(
    broker: Broker, name: str, new_name: Callable[[], str]
) -> None:
    names = [name, new_name()]
    works = [Work(), Work()]
    for queue_name in names:
        await fill(broker.url(), queue_name, 20)
    async with (
        Relay(broker.host, broker.port) as relay,
        await aio_pika.connect_robust(relay.url, reconnect_interval=0.1) as connection,
        AdaptiveConsumer(connection, names[0], works[0], Rate(1000)),
        AdaptiveConsumer(connection, names[1], works[1], Rate(1000)),
    ):
        for work in works:
            await work.until_done(20)
        relay.cut()
        for queue_name, work in zip(names, works, strict=True):
            await fill(broker.url(), queue_name, 20, first=20)
            await work.until(lambda done=work.done: set(range(20, 40)) <= set(done))  # type: ignore[misc]
    for queue_name in names:
        assert await drain(broker.url(), queue_name) == []


async def test_a_robust_connection_that_its_owner_closes_ends_the_consumer(broker: Broker, name: str) -> None:
    await fill(broker.url(), name, 1)
    work = Work()
    connection = await aio_pika.connect_robust(broker.url())
    running = asyncio.ensure_future(AdaptiveConsumer(connection, name, work, Rate(1000)).run())
    await work.until_done(1)
    await connection.close()
    with pytest.raises(ControlError, match="was closed: stop its consumers first"):
        await running
    await drain(broker.url(), name)


async def test_an_opening_that_is_cancelled_leaves_no_subscription_behind(
    broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(broker.url(), name, 3)
    consume = Session.consume
    is_reached = asyncio.Event()

    async def consume_and_hang(session: Session, arguments: dict[str, Any] | None = None) -> None:
        await consume(session, arguments)
        is_reached.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Session, "consume", consume_and_hang)
    async with await aio_pika.connect_robust(broker.url()) as connection:
        starting = asyncio.ensure_future(AdaptiveConsumer(connection, name, Work(), Rate(1000)).start())
        await is_reached.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert len(await drain(broker.url(), name)) == 3


async def test_a_connection_that_does_not_come_back_by_itself_ends_the_consumer(broker: Broker, name: str) -> None:
    await fill(broker.url(), name, 1)
    work = Work()
    async with Relay(broker.host, broker.port) as relay:
        connection = await aio_pika.connect(relay.url)
        consumer = AdaptiveConsumer(connection, name, work, Rate(1000))
        running = asyncio.ensure_future(consumer.run())
        await work.until_done(1)
        relay.cut()
        with pytest.raises(ControlError, match="does not reconnect by itself"):
            await running
        await connection.close()
    await drain(broker.url(), name)


def test_a_node_that_is_stopped_and_started_again_is_consumed_on(
    start_node: Callable[..., RunningNode], new_database: Callable[[], str]
) -> None:
    store = new_database()

    async def consume(address: str) -> Work:
        url = f"amqp://guest:guest@{address}/"
        node = start_node(store=store, amqp=address)
        await fill(url, "orders", 200)
        work = Work()
        async with AdaptiveConsumer(
            url, "orders", work, Rate(1e5), options=AdaptiveOptions(actuator=Window(), sample_time_s=0.05)
        ):
            await work.until_done(50)
            await asyncio.to_thread(node.stop)
            await asyncio.to_thread(start_node, store=store, amqp=address)
            await work.until(lambda: len(set(work.done)) == 200)
        assert await drain(url, "orders") == []
        return work

    with kept_port() as port:
        work = asyncio.run(consume(f"127.0.0.1:{port}"))
    assert set(work.done) == set(range(200))
