"""Goals are held, on a clock that leaps and with an ideal broker: how fast the machine is makes no difference."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from flyball.client.adaptive import (
    AdaptiveConsumer,
    AdaptiveOptions,
    Fast,
    FractionalWindow,
    Goal,
    Latency,
    Rate,
    actuators,
    consumer,
    handler_pool,
    sensors,
)
from flyball.client.adaptive.session import Delivery
from tests.client.adaptive.work import Samples
from tests.control.clock import leaping


class IdealSubscription:
    """Has messages without end, and delivers at once as many as the window has room for."""

    is_quick = True
    is_fractional = False
    sessions = 1

    def __init__(
        self,
        source: str,
        queue_name: str,
        receive: Callable[[Delivery], None],
        settled: Callable[[Delivery], None],
        lost: Callable[[Any], None],
        window: float,
    ) -> None:
        self.window = window
        self.unsettled: dict[int, Delivery] = {}
        self._receive = receive
        self._settled = settled
        self._tags = itertools.count(1)
        self._is_open = False

    @property
    def session(self) -> Any:
        return self if self._is_open else None

    async def open(self) -> None:
        self._is_open = True
        self._deliver()

    async def keep(self) -> None:
        await asyncio.Event().wait()

    async def set_window(self, window: float) -> None:
        self.window = window
        self._deliver()

    async def count_ready(self) -> int:
        return 1000

    async def acknowledge(self, delivery: Delivery) -> None:
        del self.unsettled[delivery.tag]
        self._settled(delivery)
        self._deliver()

    async def end(self) -> None:
        self._is_open = False

    async def close(self) -> None:
        self._is_open = False

    def _deliver(self) -> None:
        while self._is_open and len(self.unsettled) < self.window:
            tag = next(self._tags)
            message: Any = f"message {tag}"
            self.unsettled[tag] = Delivery(self, message, tag, asyncio.get_running_loop().time())  # type: ignore[arg-type]
            self._receive(self.unsettled[tag])


@pytest.fixture(autouse=True)
def ideal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "Subscription", IdealSubscription)
    for module in (actuators, consumer, handler_pool, sensors):
        monkeypatch.setattr(module, "monotonic", lambda: asyncio.get_running_loop().time())


def new_consumer(goal: Goal, handling_s: float, samples: Samples, **options: Any) -> AdaptiveConsumer:
    async def handle(message: Any) -> None:
        await asyncio.sleep(handling_s)

    return AdaptiveConsumer(
        "amqp://ideal", "orders", handle, goal, options=AdaptiveOptions(record=samples.record, **options)
    )


@leaping
async def test_a_rate_is_held_by_the_pacer() -> None:
    samples = Samples()
    async with new_consumer(Rate(200), 0.001, samples, sample_time_s=0.5):
        await samples.until(lambda: len(samples.all) >= 4)
    assert samples.all[1:4] == pytest.approx([200] * 3, rel=0.02)


@leaping
async def test_a_rate_is_held_by_a_fractional_window_below_one() -> None:
    """Handlers of 5 ms give 200/s at a window of 1: 60/s is a window of 0.3."""
    samples = Samples()
    async with new_consumer(Rate(60), 0.005, samples, actuator=FractionalWindow(), start=0.5, sample_time_s=0.5):
        await samples.until(lambda: len(samples.all) >= 12)
    assert sum(samples.all[6:12]) / 6 == pytest.approx(60, rel=0.1)
    assert samples.actions[6:] == pytest.approx([0.3] * 6, rel=0.3)


@leaping
async def test_a_latency_is_held_by_the_window() -> None:
    """One handler of 5 ms at a time: 50 ms are ten messages."""
    samples = Samples()
    async with new_consumer(Latency(0.05), 0.005, samples, concurrency=1, sample_time_s=0.4) as consumer:
        await samples.until(lambda: len(samples.all) >= 12)
        assert consumer.state.window == 10
    assert samples.all[8:12] == pytest.approx([0.05] * 4, rel=0.05)


@leaping
async def test_as_fast_as_the_handlers_can_means_that_few_messages_wait() -> None:
    samples = Samples()
    async with new_consumer(Fast(2), 0.01, samples, concurrency=5, sample_time_s=0.2) as consumer:
        await samples.until(lambda: len(samples.all) >= 15)
        assert consumer.state.window == 7
    assert samples.all[8:15] == pytest.approx([2] * 7, abs=0.2)


@leaping
async def test_another_goal_counts_at_once_with_a_pacer() -> None:
    samples = Samples()
    async with new_consumer(Rate(50), 0.001, samples, sample_time_s=0.4) as consumer:
        await samples.until(lambda: len(samples.all) >= 2)
        consumer.set_goal(Rate(300))
        await samples.until(lambda: len(samples.all) >= 4)
    assert samples.all == pytest.approx([50, 50, 300, 300], rel=0.1)
