"""What is measured for each goal, once a sample, and whether the consumer could have had more."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from time import monotonic

from flyball.client.adaptive.goals import Fast, Goal, Latency
from flyball.client.adaptive.meter import Meter
from flyball.client.adaptive.subscription import Subscription
from flyball.control.loop import Measurement

# In less time there is nothing to be measured.
LEAST_S = 0.02


class MeterSensor(ABC):
    """Reads the meter. Without a channel, or with an empty queue, a larger action could raise nothing."""

    def __init__(self, meter: Meter, subscription: Subscription, is_binding: Callable[[], bool]) -> None:
        """`is_binding` tells whether the actuator has held anything back since it was asked last."""
        self._meter = meter
        self._subscription = subscription
        self._is_binding = is_binding
        self._read_s = 0.0

    def restart(self) -> None:
        """Forget what was there since the last reading."""
        now_s = monotonic()
        self._since(max(LEAST_S, now_s - self._read_s), now_s)
        self._read_s = now_s

    async def read(self) -> Measurement:
        """Return what was there since the last reading or restart.

        It is not a number if there was nothing to be measured, or no time for it: then the next reading tells all.
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
    """Messages that handlers began with, in a second."""

    _started = 0

    def _since(self, elapsed_s: float, now_s: float) -> float:
        started, self._started = self._meter.started - self._started, self._meter.started
        return started / elapsed_s


class LatencySensor(MeterSensor):
    """Seconds from arrival to acknowledgement, the mean of what was settled; the age of the oldest if nothing was.

    Not a number if nothing was there at all.
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
    """Messages that wait for a handler, less the handlers that wait for a message: the mean over the time.

    Below 0 it says how many handlers had nothing to do, so that the way up is no longer than the way down.
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
    """Return what measures how far the goal is reached."""
    if isinstance(goal, Fast):
        return WaitingSensor(meter, subscription, is_binding, concurrency)
    kind = LatencySensor if isinstance(goal, Latency) else RateSensor
    return kind(meter, subscription, is_binding)
