"""Measurements, on a clock that the test moves."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest

from flyball.client.adaptive import Fast, Goal, Latency, Rate, sensors
from flyball.client.adaptive.meter import Meter
from flyball.client.adaptive.sensors import MeterSensor, sensor_for
from flyball.client.adaptive.subscription import Subscription


class NoQueue:
    """A subscription without a channel."""

    session = None

    async def count_ready(self) -> None:
        return None


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(sensors, "monotonic", clock)
    return clock


def sensor_of(goal: Goal, meter: Meter) -> MeterSensor:
    return sensor_for(goal, meter, cast(Subscription, NoQueue()), lambda: True, concurrency=2)


async def value(sensor: MeterSensor) -> Any:
    return (await sensor.read()).value


async def test_a_rate_over_no_time_is_no_number_and_nothing_is_lost_of_it(clock: Clock) -> None:
    meter = Meter()
    sensor = sensor_of(Rate(1), meter)
    await value(sensor)
    clock.now_s += 0.001
    meter.started += 5
    assert math.isnan(await value(sensor))
    clock.now_s += 0.499
    meter.started += 45
    assert await value(sensor) == pytest.approx(100)


async def test_samples_that_are_too_short_are_measured_together(clock: Clock) -> None:
    meter = Meter()
    sensor = sensor_of(Rate(1), meter)
    await value(sensor)
    values = []
    for _ in range(4):
        clock.now_s += 0.0101
        meter.started += 1
        values.append(await value(sensor))
    assert [round(rate) for rate in values if not math.isnan(rate)] == [99, 99]


async def test_a_restart_forgets_what_was_before(clock: Clock) -> None:
    meter = Meter()
    sensor = sensor_of(Rate(1), meter)
    await value(sensor)
    clock.now_s += 1
    meter.started += 1000
    sensor.restart()
    clock.now_s += 1
    meter.started += 10
    assert await value(sensor) == pytest.approx(10)


async def test_without_messages_there_is_no_latency(clock: Clock) -> None:
    meter = Meter()
    sensor = sensor_of(Latency(1), meter)
    await value(sensor)
    clock.now_s += 1
    meter.settle(0.2)
    meter.settle(0.4)
    assert await value(sensor) == pytest.approx(0.3)
    clock.now_s += 1
    assert math.isnan(await value(sensor))


async def test_handlers_that_wait_count_against_messages_that_wait(clock: Clock) -> None:
    meter = Meter()
    sensor = sensor_of(Fast(), meter)
    await value(sensor)
    meter.advance(clock.now_s)
    meter.arrive(clock.now_s)
    meter.begin(clock.now_s)
    clock.now_s += 1
    assert await value(sensor) == pytest.approx(-1)
    for _ in range(4):
        meter.arrive(clock.now_s)
    meter.begin(clock.now_s)
    clock.now_s += 1
    assert await value(sensor) == pytest.approx(3)
