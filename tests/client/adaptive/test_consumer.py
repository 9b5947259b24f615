"""The adaptive consumer against both brokers: goals are reached, and no message is lost or doubled on the way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from pathlib import Path
from typing import Any

import aio_pika
import pyarrow.parquet as pq
import pytest
import uvloop
from aio_pika import IncomingMessage
from yarl import URL

from flyball.client.adaptive import (
    AdaptiveConsumer,
    AdaptiveOptions,
    Fast,
    FractionalWindow,
    Goal,
    Latency,
    Pacer,
    Rate,
    Window,
    subscription,
)
from flyball.client.adaptive.actuators import ConsumerActuator
from flyball.client.adaptive.handler_pool import Handler
from flyball.control.design import lambda_pi
from flyball.control.documents import Design
from flyball.control.laws import Multiplicative, ProportionalIntegral
from flyball.control.limits import Limits
from flyball.control.loop import Sample
from flyball.control.model_free import certify_model_free
from flyball.control.plant import Plant
from flyball.control.verification import certify
from flyball.errors import ControlError
from tests.broker.protocols.amqp.compatibility.brokers import Broker
from tests.client.adaptive.work import Samples, Work, drain, fill, until

SAMPLE_S = 0.1


async def test_every_message_is_handled_and_acknowledged_once(broker: Broker, name: str) -> None:
    await fill(broker.url(), name, 300)
    work = Work()
    async with AdaptiveConsumer(
        broker.url(), name, work, Fast(), options=AdaptiveOptions(concurrency=3, sample_time_s=SAMPLE_S)
    ) as consumer:
        await work.until_done(300)
    assert work.done == list(range(300)), "in order, as they are handled by nobody who waits"
    assert (consumer.state.settled, consumer.state.failed, consumer.state.is_connected) == (300, 0, False)
    assert await drain(broker.url(), name) == []


@pytest.mark.parametrize("actuator", [Window, FractionalWindow, Pacer])
async def test_windows_that_change_all_the_time_lose_and_double_nothing(
    broker: Broker, name: str, actuator: type[ConsumerActuator]
) -> None:
    await fill(broker.url(), name, 600)
    work = Work()
    acting = actuator()
    consumer = AdaptiveConsumer(
        broker.url(), name, work, Rate(2000), options=AdaptiveOptions(actuator=acting, sample_time_s=SAMPLE_S)
    )
    async with consumer:
        for number, action in enumerate([3, 1.5, 40, 0.7, 2.25, 700, 1, 12] * 3):
            await work.until_done(20 * number)
            await acting.apply(action)
        await acting.apply(1000)
        await work.until_done(600)
    assert sorted(work.done) == list(range(600))
    assert consumer.state.settled == 600
    assert await drain(broker.url(), name) == []


async def test_a_quorum_queue_is_consumed_with_new_subscriptions(broker: Broker, name: str) -> None:
    await fill(broker.url(), name, 300, quorum=True)
    work = Work()
    acting = Window()
    consumer = AdaptiveConsumer(
        broker.url(), name, work, Rate(1e6), options=AdaptiveOptions(actuator=acting, sample_time_s=60)
    )
    async with consumer:
        for number, action in enumerate([3, 1, 40, 2, 25, 1, 7]):
            await work.until_done(20 * number)
            assert await acting.apply(action) == action
        await acting.apply(100)
        await work.until_done(300)
    assert sorted(work.done) == list(range(300))
    assert consumer.state.sessions == 1
    assert await drain(broker.url(), name) == []


async def test_a_connection_that_is_given_is_used_and_left_open(broker: Broker, name: str) -> None:
    await fill(broker.url(), name, 10)
    work = Work()
    async with await aio_pika.connect_robust(broker.url()) as connection:
        async with AdaptiveConsumer(connection, name, work, Rate(1000)):
            await work.until_done(10)
        channel = await connection.channel()
        await channel.declare_queue(name, passive=True)
        await channel.close()
    assert await drain(broker.url(), name) == []


# Goals: here that they are reached with real brokers, however slow those are; how well they are held is in
# test_goals_held.py


class Again(Exception):
    """The message goes back to its queue, which so never gets empty."""


def takes(handling_s: float) -> Handler:
    async def handle(message: IncomingMessage) -> None:
        await asyncio.sleep(handling_s)
        raise Again

    return handle


async def test_a_rate_is_reached_with_the_pacer(broker: Broker, name: str) -> None:
    await fill(broker.url(), name, 100)
    samples = Samples()
    async with AdaptiveConsumer(
        broker.url(), name, takes(0), Rate(50), options=AdaptiveOptions(sample_time_s=0.5, record=samples.record)
    ) as consumer:
        await samples.until(lambda: samples.last(3) == pytest.approx(50, rel=0.1))
        assert consumer.state.pace_per_s is not None
    await drain(broker.url(), name)


async def test_a_rate_is_reached_with_a_fractional_window_below_one(broker: Broker, name: str) -> None:
    """Handlers of 20 ms give less than 50/s at a window of 1: 15/s is a window of about 0.3."""
    await fill(broker.url(), name, 600)
    samples = Samples()

    async def handle(message: IncomingMessage) -> None:
        await asyncio.sleep(0.02)

    async with AdaptiveConsumer(
        broker.url(),
        name,
        handle,
        Rate(15),
        options=AdaptiveOptions(actuator=FractionalWindow(), start=2, sample_time_s=0.5, record=samples.record),
    ):
        await samples.until(lambda: samples.last(4) == pytest.approx(15, rel=0.3) and samples.actions[-1] < 1)
    await drain(broker.url(), name)


async def test_a_latency_is_reached_with_the_window(broker: Broker, name: str) -> None:
    """One handler of 20 ms at a time: 200 ms are about ten messages."""
    await fill(broker.url(), name, 100)
    samples = Samples()
    async with AdaptiveConsumer(
        broker.url(),
        name,
        takes(0.02),
        Latency(0.2),
        options=AdaptiveOptions(concurrency=1, sample_time_s=0.4, record=samples.record),
    ):
        await samples.until(lambda: samples.last(4) == pytest.approx(0.2, rel=0.3))
    await drain(broker.url(), name)


async def test_as_fast_as_the_handlers_can_means_that_few_messages_wait(broker: Broker, name: str) -> None:
    await fill(broker.url(), name, 100)
    samples = Samples()
    async with AdaptiveConsumer(
        broker.url(),
        name,
        takes(0.05),
        Fast(2),
        options=AdaptiveOptions(concurrency=5, sample_time_s=0.2, record=samples.record),
    ) as consumer:
        await samples.until(lambda: samples.last(5) == pytest.approx(2, abs=1))
        assert consumer.state.window > 5, "more than the handlers are busy with"
    await drain(broker.url(), name)


async def test_an_empty_queue_winds_nothing_up(broker: Broker, name: str) -> None:
    await fill(broker.url(), name, 0)
    samples = Samples()
    async with AdaptiveConsumer(
        broker.url(),
        name,
        Work(),
        Rate(400),
        options=AdaptiveOptions(actuator=Window(), sample_time_s=0.05, record=samples.record),
    ) as consumer:
        await samples.until(lambda: len(samples.all) >= 10)
        assert consumer.state.window == 1
    await drain(broker.url(), name)


async def test_another_goal_counts_at_once_with_a_pacer(broker: Broker, name: str) -> None:
    await fill(broker.url(), name, 100)
    samples = Samples()
    async with AdaptiveConsumer(
        broker.url(), name, takes(0), Rate(20), options=AdaptiveOptions(sample_time_s=0.4, record=samples.record)
    ) as consumer:
        await samples.until(lambda: len(samples.all) >= 2)
        consumer.set_goal(Rate(80))
        assert consumer.state.pace_per_s == 80
        await samples.until(lambda: samples.last(2) == pytest.approx(80, rel=0.15))
        assert consumer.state.window == 40, "half a second at the goal"
        with pytest.raises(ControlError, match="create another consumer for another kind"):
            consumer.set_goal(Fast())
    await drain(broker.url(), name)


async def test_in_shadow_mode_it_computes_and_does_not_act(broker: Broker, name: str) -> None:
    await fill(broker.url(), name, 300)
    samples = Samples()
    work = Work(is_open=False)
    async with AdaptiveConsumer(
        broker.url(),
        name,
        work,
        Rate(400),
        options=AdaptiveOptions(
            actuator=Window(), start=2, sample_time_s=0.05, record=samples.record, is_shadow=True, stop_limit_s=0
        ),
    ) as consumer:
        await work.until_begun(2)
        await samples.until(lambda: len(samples.all) >= 5)
        assert (consumer.state.window, len(work.begun)) == (2, 2)
    assert samples.actions[-1] > 2
    await drain(broker.url(), name)


def _rows_in(folder: Path) -> list[dict[str, Any]]:
    [path] = folder.glob("samples-consumer-*.parquet")
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


async def test_traces_have_each_sample_and_how_the_loop_was_tuned(broker: Broker, name: str, tmp_path: Path) -> None:
    await fill(broker.url(), name, 300)
    samples = Samples()
    work = Work(is_open=False)
    law = ProportionalIntegral(kp=0.01, ki=0.02)
    async with AdaptiveConsumer(
        broker.url(),
        name,
        work,
        Rate(400),
        options=AdaptiveOptions(
            actuator=Window(),
            law=law,
            limits=Limits(1, 20),
            start=2,
            sample_time_s=0.05,
            record=samples.record,
            is_shadow=True,
            stop_limit_s=0,
            traces=tmp_path,
            model_version="3",
        ),
    ):
        await samples.until(lambda: len(samples.all) >= 5)
    await drain(broker.url(), name)
    rows = _rows_in(tmp_path)
    assert [row["action"] for row in rows] == samples.actions
    assert {(row["loop"], row["mode"], row["model_version"]) for row in rows} == {(name, "shadow", "3")}
    assert {(row["lowest"], row["highest"]) for row in rows} == {(1.0, 20.0)}
    assert {row["gains"] for row in rows} == {'{"ki":0.02,"kind":"pi","kp":0.01}'}


# The end


async def test_stopping_lets_handlers_finish_and_returns_the_rest_in_order(broker: Broker, name: str) -> None:
    await fill(broker.url(), name, 10)
    work = Work(is_open=False)
    consumer = AdaptiveConsumer(
        broker.url(),
        name,
        work,
        Fast(),
        options=AdaptiveOptions(concurrency=2, limits=Limits(6, 6), sample_time_s=SAMPLE_S),
    )
    await consumer.start()
    await work.until_begun(2)
    stopping = asyncio.ensure_future(consumer.stop())
    await consumer._stopping.wait()
    work.gate.set()
    await stopping
    assert work.done == [0, 1]
    assert [text.rstrip("*") for text in await drain(broker.url(), name)] == [str(number) for number in range(2, 10)]


async def test_cancelling_it_is_stopping_it(broker: Broker, name: str) -> None:
    """As Ctrl-C does: asyncio.run cancels what it runs."""
    await fill(broker.url(), name, 5)
    work = Work(is_open=False)
    consumer = AdaptiveConsumer(
        broker.url(), name, work, Fast(), options=AdaptiveOptions(concurrency=1, start=3, sample_time_s=SAMPLE_S)
    )
    running = asyncio.ensure_future(consumer.run())
    await work.until_begun(1)
    running.cancel()
    await consumer._stopping.wait()
    work.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert work.done == [0]
    assert [text.rstrip("*") for text in await drain(broker.url(), name)] == ["1", "2", "3", "4"]


async def test_slow_handler_is_cancelled_and_its_message_requeued(broker: Broker, name: str) -> None:
    await fill(broker.url(), name, 2)
    work = Work(is_open=False)
    consumer = AdaptiveConsumer(
        broker.url(), name, work, Fast(), options=AdaptiveOptions(concurrency=1, stop_limit_s=0.05)
    )
    async with consumer:
        await work.until_begun(1)
    assert (work.done, await drain(broker.url(), name)) == ([], ["0*", "1"])


async def test_it_may_be_stopped_twice_and_before_it_was_started(broker: Broker, name: str) -> None:
    await fill(broker.url(), name, 1)
    consumer = AdaptiveConsumer(broker.url(), name, Work(), Rate(10))
    await consumer.stop()
    work = Work()
    consumer = AdaptiveConsumer(broker.url(), name, work, Rate(10))
    await consumer.start()
    await consumer.start()
    await work.until_done(1)
    await consumer.stop()
    await consumer.stop()
    assert await drain(broker.url(), name) == []


async def test_it_may_be_started_twice_at_once(broker: Broker, name: str) -> None:
    await fill(broker.url(), name, 1)
    consumer = AdaptiveConsumer(broker.url(), name, Work(), Rate(10))
    await asyncio.gather(consumer.start(), consumer.start())
    assert consumer.state.sessions == 1
    await consumer.stop()
    await drain(broker.url(), name)


async def test_it_may_be_stopped_while_it_starts_and_does_not_start_any_more(broker: Broker, name: str) -> None:
    await fill(broker.url(), name, 3)
    work = Work()
    consumer = AdaptiveConsumer(broker.url(), name, work, Rate(10))
    starting = asyncio.ensure_future(consumer.start())
    await asyncio.sleep(0)
    await consumer.stop()
    assert not consumer.state.is_connected
    await starting
    await consumer.run()
    assert work.begun == []
    assert len(await drain(broker.url(), name)) == 3


async def test_a_handler_may_stop_its_consumer(broker: Broker, name: str) -> None:
    await fill(broker.url(), name, 2)

    async def handle(message: IncomingMessage) -> None:
        await consumer.stop()

    consumer = AdaptiveConsumer(
        broker.url(), name, handle, Fast(), options=AdaptiveOptions(concurrency=1, limits=Limits(2, 2))
    )
    await consumer.run()
    assert [text.rstrip("*") for text in await drain(broker.url(), name)] == ["1"]


async def test_handler_that_swallows_cancellation_does_not_delay_the_stop(broker: Broker, name: str) -> None:
    await fill(broker.url(), name, 2)
    work = Work(is_open=False)

    async def handle(message: IncomingMessage) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await work(message)

    async with AdaptiveConsumer(
        broker.url(), name, handle, Fast(), options=AdaptiveOptions(concurrency=1, stop_limit_s=0)
    ):
        await work.until_begun(1)
    assert await drain(broker.url(), name) == ["1"], "it has returned, so its message is done"


async def test_what_ends_a_loop_is_told_and_handlers_finish(
    broker: Broker, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(broker.url(), name, 3)
    work = Work(is_open=False)

    def record(sample: Sample) -> None:
        raise KeyError("the disk is full")

    consumer = AdaptiveConsumer(
        broker.url(),
        name,
        work,
        Fast(),
        options=AdaptiveOptions(concurrency=2, limits=Limits(2, 2), record=record, sample_time_s=SAMPLE_S),
    )
    running = asyncio.ensure_future(consumer.run())
    await work.until_begun(2)
    await until(lambda: "stopped consuming queue" in caplog.text)
    work.gate.set()
    with pytest.raises(KeyError, match="the disk is full"):
        await running
    assert work.done == [0, 1]
    assert await drain(broker.url(), name) == ["2"]


# Handlers that fail


async def test_a_message_whose_handler_fails_goes_back_to_the_queue(
    broker: Broker, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(broker.url(), name, 3)
    tried: list[str] = []
    done = asyncio.Event()

    async def handle(message: IncomingMessage) -> None:
        tried.append(message.body.decode() + ("*" if message.redelivered else ""))
        if not message.redelivered:
            raise ValueError("not yet")
        if len(tried) == 6:
            done.set()

    with caplog.at_level(logging.WARNING, "flyball"):
        async with AdaptiveConsumer(broker.url(), name, handle, Rate(1000)) as consumer:
            await done.wait()
    assert sorted(tried) == ["0", "0*", "1", "1*", "2", "2*"]
    assert (consumer.state.failed, consumer.state.handled) == (3, 3)
    assert len([record for record in caplog.records if "handler failed" in record.message]) == 1
    assert await drain(broker.url(), name) == []


async def test_a_message_whose_handler_fails_is_rejected_if_that_is_wanted(broker: Broker, name: str) -> None:
    await fill(broker.url(), name, 3)
    tried: list[int] = []
    done = asyncio.Event()

    async def handle(message: IncomingMessage) -> None:
        tried.append(int(message.body))
        if len(tried) == 3:
            done.set()
        raise asyncio.CancelledError if len(tried) == 2 else KeyError("no such thing")

    async with AdaptiveConsumer(
        broker.url(), name, handle, Rate(1000), options=AdaptiveOptions(on_error="reject")
    ) as consumer:
        await done.wait()
    assert (tried, consumer.state.failed) == ([0, 1, 2], 3)
    assert await drain(broker.url(), name) == []


async def test_what_a_handler_has_acknowledged_itself_is_not_acknowledged_again(broker: Broker, name: str) -> None:
    await fill(broker.url(), name, 3)
    work = Work()

    async def handle(message: IncomingMessage) -> None:
        await message.ack()
        await work(message)

    async with AdaptiveConsumer(broker.url(), name, handle, Rate(1000)) as consumer:
        await work.until_done(3)
        assert consumer.state.sessions == 1
    assert await drain(broker.url(), name) == []


# What does not fit


async def handler(message: IncomingMessage) -> None: ...


def not_async(message: IncomingMessage) -> None: ...


def design(sample_time_s: float = 1.0, smoothing_share: float | None = None) -> Design:
    plant = Plant(0.2, 60.0, sample_time_s=sample_time_s)
    law = lambda_pi(plant)
    certificate = certify(law, plant, smoothing_share=smoothing_share)
    return Design("orders", law, Limits(1, 50), sample_time_s, 400.0, smoothing_share, plant, certificate)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"source": 5672}, "invalid source"),
        ({"queue_name": ""}, "invalid queue name ''"),
        ({"handler": not_async}, "`async def` that takes a message"),
        ({"handler": None}, "`async def` that takes a message"),
        ({"goal": 400}, "invalid goal 400"),
        ({"concurrency": 0}, "invalid concurrency 0: use an integer of at least 1"),
        ({"on_error": "ignore"}, 'invalid on_error \'ignore\': use "requeue" or "reject"'),
        ({"source": URL("amqp://guest:secret@nowhere")}, "invalid source of type URL: use an address"),
        ({"sample_time_s": 0}, "a sample time is a number of seconds above 0"),
        ({"goal": Latency(2), "sample_time_s": 1}, "use a sample_time_s of 2 or more"),
        ({"design": design(2.0), "sample_time_s": 1}, "its certificate is for a sample time of 2.0 s, not 1 s"),
        ({"sample_time_s": -1}, "a sample time is a number of seconds above 0"),
        ({"limits": Limits(0, 10), "actuator": Window()}, "between 1 and 65535, not 0 and 10"),
        ({"limits": Limits(0, 10)}, "invalid pacer limit"),
        ({"goal": Fast(), "actuator": Pacer()}, "a pacer needs a Rate goal"),
        ({"goal": Fast(), "law": Multiplicative(0.4)}, "has no certificate"),
        ({"law": Multiplicative(1.5)}, "gain margin"),
        ({"law": ProportionalIntegral(1.0, 1.0)}, "the pi law has no certificate"),
        ({"stop_limit_s": -1}, "invalid stop_limit_s -1: use seconds, at least 0"),
    ],
)
def test_what_does_not_fit_is_refused_with_one_line(change: dict[str, Any], complaint: str) -> None:
    given: dict[str, Any] = {"source": "amqp://nowhere", "queue_name": "queue", "handler": handler, "goal": Rate(1)}
    given.update((name, change[name]) for name in given.keys() & change)
    options = {name: value for name, value in change.items() if name not in given}
    with pytest.raises(ControlError) as refused:
        AdaptiveConsumer(**given, options=AdaptiveOptions(**options))
    assert complaint in str(refused.value)


@pytest.mark.parametrize("make", [lambda: Rate(0), lambda: Rate(float("nan")), lambda: Latency(-1), lambda: Fast(0)])
def test_a_goal_that_makes_no_sense_is_refused(make: Any) -> None:
    with pytest.raises(ControlError, match="above 0"):
        make()


def test_a_law_that_needs_no_model_needs_no_certificate() -> None:
    AdaptiveConsumer("amqp://nowhere", "queue", handler, Rate(1), options=AdaptiveOptions(law=Multiplicative(0.3)))


def test_a_design_brings_law_limits_sample_time_and_certificate() -> None:
    law = Multiplicative(0.5)
    design = Design("orders", law, Limits(2, 50), 0.25, certificate=certify_model_free(law))
    consumer = AdaptiveConsumer(
        "amqp://nowhere", "queue", handler, Rate(1), options=AdaptiveOptions(actuator=Window(), design=design)
    )
    loop = consumer._loop
    assert (loop.controller.law, loop.controller.limits, loop.sample_time_s) == (law, Limits(2, 50), 0.25)
    assert consumer.state.window == 2
    with pytest.raises(ControlError, match="design excludes law and certificate"):
        AdaptiveConsumer("amqp://nowhere", "queue", handler, Rate(1), options=AdaptiveOptions(law=law, design=design))


def test_a_law_of_ones_own_may_run_without_a_certificate_if_that_is_known() -> None:
    AdaptiveConsumer(
        "amqp://nowhere",
        "queue",
        handler,
        Rate(1),
        options=AdaptiveOptions(law=ProportionalIntegral(0.1, 0.1), allow_uncertified=True),
    )


@pytest.mark.parametrize("smoothing_share", [None, 0.6])
def test_a_design_brings_its_law_its_limits_its_sample_time_and_its_filter(smoothing_share: float | None) -> None:
    given = design(0.5, smoothing_share)
    consumer = AdaptiveConsumer("amqp://nowhere", "queue", handler, Rate(400), options=AdaptiveOptions(design=given))
    loop = consumer._loop
    assert (loop.controller.law, loop.controller.limits, loop.sample_time_s) == (given.law, given.limits, 0.5)
    assert loop.controller.smoothing_share == smoothing_share
    assert isinstance(consumer._actuator, FractionalWindow), "a design is made for a window"


def test_a_latency_has_a_sample_time_of_at_least_itself() -> None:
    """A law that learns of the effect of its actions samples later swings."""
    consumer = AdaptiveConsumer("amqp://nowhere", "queue", handler, Latency(5))
    assert consumer._loop.sample_time_s == 5
    consumer.set_goal(Latency(4))
    with pytest.raises(ControlError, match="sample time 5 s is too short for a latency goal of 6 s"):
        consumer.set_goal(Latency(6))
    assert consumer.goal == Latency(4)


async def test_a_broker_that_says_nothing_is_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "CONNECT_LIMIT_S", 0.05)
    listening = socket.create_server(("127.0.0.1", 0))
    with listening, pytest.raises(ControlError, match=r"no connection to .*: TimeoutError"):
        await AdaptiveConsumer(f"amqp://127.0.0.1:{listening.getsockname()[1]}/", "q", handler, Rate(1)).start()


async def test_an_actuator_belongs_to_one_consumer() -> None:
    actuator = Window()
    AdaptiveConsumer("amqp://nowhere", "queue", handler, Fast(), options=AdaptiveOptions(actuator=actuator))
    with pytest.raises(ControlError, match="create one for each"):
        AdaptiveConsumer("amqp://nowhere", "queue", handler, Fast(), options=AdaptiveOptions(actuator=actuator))


async def test_a_queue_that_is_not_there_is_told_at_the_start(broker: Broker, name: str) -> None:
    with pytest.raises(ControlError, match=f"cannot consume queue '{name}' of .*: .*no queue"):
        await AdaptiveConsumer(broker.url(), name, handler, Rate(1)).start()


async def test_a_broker_that_is_not_there_is_told_at_the_start() -> None:
    with pytest.raises(ControlError, match=r"no connection to 127\.0\.0\.1:1/: "):
        await AdaptiveConsumer("amqp://guest:secret@127.0.0.1:1/", "queue", handler, Rate(1)).start()


def test_it_runs_on_uvloop_as_well(broker: Broker, name: str) -> None:
    async def consume(goal: Goal) -> list[str]:
        await fill(broker.url(), name, 100)
        work = Work()
        async with AdaptiveConsumer(broker.url(), name, work, goal, options=AdaptiveOptions(sample_time_s=SAMPLE_S)):
            await work.until_done(100)
        assert work.done == list(range(100))
        return await drain(broker.url(), name)

    assert uvloop.run(consume(Rate(2000))) == []
    assert uvloop.run(consume(Fast())) == []
