"""A connection that is lost in the middle of a loop: the consumer goes on, and all messages are handled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import aio_pika
import pytest

from flyball.client.adaptive import AdaptiveConsumer, Fast, FractionalWindow, Rate, Window
from flyball.client.adaptive.actuators import ConsumerActuator
from flyball.errors import ControlError
from tests.amqp.brokers import Broker
from tests.client.adaptive.relay import Relay
from tests.client.adaptive.work import Samples, Work, drain, fill
from tests.nodes import RunningNode


@pytest.mark.parametrize("actuator", [Window, FractionalWindow])
async def test_the_loop_goes_on_over_cut_connections_and_no_message_is_lost(
    broker: Broker, name: str, actuator: type[ConsumerActuator]
) -> None:
    await fill(broker.url(), name, 400)
    work = Work()
    samples = Samples()
    async with Relay(broker.host, broker.port) as relay:
        consumer = AdaptiveConsumer(
            relay.url, name, work, Rate(1e5), actuator=actuator(), start=5, sample_time_s=0.05, record=samples.record
        )
        async with consumer:
            for cut in range(1, 4):
                await work.until_done(60 * cut)
                relay.cut()
            await work.until(lambda: len(set(work.done)) == 400)
            seen = len(samples.all)
            await samples.until(lambda: len(samples.all) > seen + 2)
    assert set(work.done) == set(range(400))
    assert consumer.state.sessions == 4
    assert await drain(broker.url(), name) == []


async def test_what_handlers_of_a_lost_channel_have_done_is_dropped_quietly_and_comes_again(
    broker: Broker, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(broker.url(), name, 6)
    work = Work(is_open=False)
    async with Relay(broker.host, broker.port) as relay:
        with caplog.at_level(logging.INFO, "flyball"):
            async with AdaptiveConsumer(relay.url, name, work, Fast(), concurrency=4, start=6) as consumer:
                await work.until_begun(4)
                relay.cut()
                await _until_sessions(consumer, 2)
                work.gate.set()
                await work.until_done(10)
                state = consumer.state
    assert sorted(work.done) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 5]
    assert (state.sessions, state.failed) == (2, 0)
    said = [record.levelname for record in caplog.records if record.name.startswith("flyball")]
    assert said == ["WARNING", "WARNING"], "lost, and there again"
    assert await drain(broker.url(), name) == []


async def _until_sessions(consumer: AdaptiveConsumer, count: int) -> None:
    # Nothing tells a test when the consumer is there again.
    while consumer.state.sessions < count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_a_window_that_was_set_while_the_connection_was_away_holds_when_it_is_back(
    broker: Broker, name: str
) -> None:
    await fill(broker.url(), name, 20)
    work = Work(is_open=False)
    acting = Window()
    async with Relay(broker.host, broker.port) as relay:
        consumer = AdaptiveConsumer(
            relay.url, name, work, Rate(1), actuator=acting, start=2, sample_time_s=60, stop_limit_s=0
        )
        async with consumer:
            await work.until_begun(2)
            relay.cut()
            await acting.apply(5)
            await _until_sessions(consumer, 2)
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
        await _until_sessions(consumer, 2)
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
        while consumer.state.is_connected:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert set(await drain(broker.url(), name)) <= {"0*", "1*", "2*"}, "what was acknowledged too late to be heard"


async def test_a_connection_that_does_not_come_back_by_itself_ends_the_consumer(broker: Broker, name: str) -> None:
    await fill(broker.url(), name, 1)
    work = Work()
    async with Relay(broker.host, broker.port) as relay:
        connection = await aio_pika.connect(relay.url)
        consumer = AdaptiveConsumer(connection, name, work, Rate(1000))
        running = asyncio.ensure_future(consumer.run())
        await work.until_done(1)
        relay.cut()
        with pytest.raises(ControlError, match="does not come back by itself"):
            await running
        await connection.close()
    await drain(broker.url(), name)


def test_a_node_that_is_stopped_and_started_again_is_consumed_on(
    start_node: Callable[..., RunningNode], new_database: Callable[[], str]
) -> None:
    store = new_database()
    node = start_node(store=store)
    address = node.address("amqp")
    url = f"amqp://guest:guest@{address}/"

    async def consume() -> Work:
        await fill(url, "orders", 200)
        work = Work()
        async with AdaptiveConsumer(url, "orders", work, Rate(1e5), actuator=Window(), sample_time_s=0.05):
            await work.until_done(50)
            await asyncio.to_thread(node.stop)
            await asyncio.to_thread(start_node, store=store, amqp=str(address))
            await work.until(lambda: len(set(work.done)) == 200)
        assert await drain(url, "orders") == []
        return work

    work = asyncio.run(consume())
    assert set(work.done) == set(range(200))
