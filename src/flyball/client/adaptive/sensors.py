"""The measurement for each goal, once per sample, and whether the actuator limited it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from time import monotonic

from flyball.client.adaptive.goals import Fast, Goal, Latency
from flyball.client.adaptive.meter import Meter
from flyball.client.adaptive.subscription import Subscription
from flyball.control.loop import Measurement

# Shorter intervals yield no measurement.
LEAST_S = 0.02


class MeterSensor(ABC):
    """Reads the meter. Without a channel, or with an empty queue, a larger action has no effect."""

    def __init__(self, meter: Meter, subscription: Subscription, is_binding: Callable[[], bool]) -> None:
        """`is_binding` returns whether the actuator has limited the consumer since the last call."""
        self._meter = meter
        self._subscription = subscription
        self._is_binding = is_binding
        self._read_s = 0.0

    def restart(self) -> None:
        """Start a new interval."""
        now_s = monotonic()
        self._since(max(LEAST_S, now_s - self._read_s), now_s)
        self._read_s = now_s

    async def read(self) -> Measurement:
        """Return the measurement since the last reading or restart.

        NaN if there was nothing to measure, or too little time: the next reading then covers both intervals.
        """
        now_s = monotonic()
        elapsed_s = now_s - self._read_s
        value = math.nan
        if elapsed_s >= LEAST_S:
            value = self._since(elapsed_s, now_s)
            self._read_s = now_s
        is_binding = self._is_binding()
        ready = await self._subscription.count_ready()
        return Measurement(value, can_rise=is_binding and bool(ready))

    @abstractmethod
    def _since(self, elapsed_s: float, now_s: float) -> float:
        """Return the value since the last reading."""


class RateSensor(MeterSensor):
    """Messages per second that handlers started."""

    _started = 0

    def _since(self, elapsed_s: float, now_s: float) -> float:
        started, self._started = self._meter.started - self._started, self._meter.started
        return started / elapsed_s


class LatencySensor(MeterSensor):
    """Mean seconds from arrival to settlement; the age of the oldest message if none was settled.

    NaN if there was no message.
    """

    _settled = 0
    _latency_s = 0.0

    def _since(self, elapsed_s: float, now_s: float) -> float:
        meter = self._meter
        settled, self._settled = meter.settled - self._settled, meter.settled
        latency_s, self._latency_s = meter.latency_s - self._latency_s, meter.latency_s
        if settled:
            return latency_s / settled
        session = self._subscription.session
        oldest = next(iter(session.unsettled.values()), None) if session is not None else None
        return now_s - oldest.arrived_s if oldest is not None else math.nan


class WaitingSensor(MeterSensor):
    """Mean of waiting messages minus idle handlers.

    A negative value counts idle handlers, so that the loop rises as fast as it falls.
    """

    _waiting_area = 0.0
    _running_area = 0.0

    def __init__(
        self,
        meter: Meter,
        subscription: Subscription,
        is_binding: Callable[[], bool],
        concurrency: int | None,
    ) -> None:
        super().__init__(meter, subscription, is_binding)
        self._concurrency = concurrency

    def _since(self, elapsed_s: float, now_s: float) -> float:
        meter = self._meter
        meter.advance(now_s)
        waiting = (meter.waiting_area - self._waiting_area) / elapsed_s
        running = (meter.running_area - self._running_area) / elapsed_s
        self._waiting_area, self._running_area = meter.waiting_area, meter.running_area
        return waiting if self._concurrency is None else waiting - (self._concurrency - running)


def sensor_for(
    goal: Goal,
    meter: Meter,
    subscription: Subscription,
    is_binding: Callable[[], bool],
    concurrency: int | None,
) -> MeterSensor:
    """Return the sensor for the goal."""
    if isinstance(goal, Fast):
        return WaitingSensor(meter, subscription, is_binding, concurrency)
    kind = LatencySensor if isinstance(goal, Latency) else RateSensor
    return kind(meter, subscription, is_binding)
