"""Actuators of an adaptive consumer: prefetch in whole messages, in fractions, or the rate at which handlers start.

The user creates an actuator and binds it to one consumer. Decisions are made by control laws.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from time import monotonic

from flyball.client.adaptive.goals import Goal, Rate
from flyball.client.adaptive.handler_pool import HandlerPool
from flyball.client.adaptive.subscription import Subscription
from flyball.control.limits import Limits
from flyball.errors import ControlError

HIGHEST_WINDOW = 1000
# The limit of AMQP's field.
MOST_PREFETCH = 65_535
# Minimum interval between changes on brokers that know whole windows only.
SLOT_S = 0.1
# Where a change needs a new subscription, smaller relative changes are skipped.
DEAR_RATIO = 0.1
# Default window of a pacer, in seconds of handling.
HELD_S = 0.5
LEAST_PACER_WINDOW = 16


class ConsumerActuator(ABC):
    """Applies control actions to a consumer."""

    lowest_window = 1.0

    def __init__(self) -> None:
        self._subscription: Subscription | None = None

    def bind(self, subscription: Subscription, pool: HandlerPool) -> None:
        """Bind to this consumer. Raises ControlError if it is bound to another one."""
        if self._subscription is not None:
            raise ControlError("this actuator is bound to another consumer: create one for each")
        self._subscription = subscription
        self._pool = pool

    def default_limits(self, goal: Goal) -> Limits:
        return Limits(self.lowest_window, HIGHEST_WINDOW)

    def check_limits(self, limits: Limits) -> None:
        """Raise ControlError if it cannot act within these limits."""
        if limits.lowest < self.lowest_window or limits.highest > MOST_PREFETCH:
            raise ControlError(
                f"invalid window limits: use values between {self.lowest_window:g} and {MOST_PREFETCH},"
                f" not {limits.lowest:g} and {limits.highest:g}"
            )

    def default_start(self, goal: Goal) -> float:
        return 1.0

    def window_at(self, action: float, goal: Goal) -> float:
        """Return the initial window."""
        return max(1.0, float(round(action)))

    def is_binding(self) -> bool:
        """Return whether it has limited the consumer since the last call, as far as it knows."""
        return True

    @abstractmethod
    async def apply(self, action: float) -> float:
        """Apply an action; return what was applied."""

    async def run(self) -> None:  # noqa: B027  # most have nothing to do
        """Do periodic work between samples, until cancelled."""

    async def _set_whole(self, action: float) -> float:
        """Set the window to a whole number, unless the change is small and expensive; return the window."""
        subscription = self._bound
        window = max(1.0, float(round(action)))
        if not subscription.is_quick and abs(window - subscription.window) <= DEAR_RATIO * subscription.window:
            return subscription.window
        await subscription.set_window(window)
        return window

    @property
    def _bound(self) -> Subscription:
        assert self._subscription is not None, "the actuator is not bound to a consumer"
        return self._subscription


class Window(ConsumerActuator):
    """The prefetch window in whole messages."""

    async def apply(self, action: float) -> float:
        return await self._set_whole(action)


class FractionalWindow(ConsumerActuator):
    """The prefetch window in fractions: 2.3 is 2 for seven tenths of the time and 3 for the rest.

    On Flyball the broker does this, every 10 ms. On other brokers the client alternates between the neighbours, at
    most every 100 ms and evenly spread; below 1, acks are held back for part of the time. Where a change needs a new
    subscription (RabbitMQ's quorum queues) the window is rounded.
    """

    lowest_window = 0.1

    def __init__(self) -> None:
        super().__init__()
        self._action = 1.0
        self._carry = 0.0
        self._changed = asyncio.Event()

    def window_at(self, action: float, goal: Goal) -> float:
        self._action = action
        return max(1.0, math.floor(action))

    async def apply(self, action: float) -> float:
        subscription = self._bound
        if subscription.is_fractional or subscription.session is None:
            self._action = round(action, 3)
            await subscription.set_window(self._action)
        elif not subscription.is_quick:
            self._action = await self._set_whole(action)
        else:
            self._action = action
        self._changed.set()
        return self._action

    async def run(self) -> None:
        """Alternate between the neighbouring windows, where the broker does not."""
        clock = asyncio.get_running_loop().time
        await self._changed.wait()
        next_s = clock()
        while True:
            if self._hops:
                await self._bound.set_window(self._next_slot())
            next_s = max(next_s + SLOT_S, clock())
            await asyncio.sleep(next_s - clock())

    @property
    def _hops(self) -> bool:
        subscription = self._bound
        return subscription.session is not None and subscription.is_quick and not subscription.is_fractional

    def _next_slot(self) -> float:
        """Return the window of the next slot; slots with the larger one are spread evenly."""
        whole = math.floor(self._action)
        self._carry += self._action - whole
        # Slightly less than 1, since tenths do not add up exactly.
        if self._carry > 1 - 1e-9:
            self._carry = max(0.0, self._carry - 1.0)
            return whole + 1.0
        return float(whole)


class Pacer(ConsumerActuator):
    """Limits the rate at which handlers start. The window only bounds the prefetched messages."""

    def __init__(self, window: int | None = None) -> None:
        """`window` is the prefetch; None prefetches half a second's worth at the goal."""
        super().__init__()
        if window is not None and not (isinstance(window, int) and 1 <= window <= MOST_PREFETCH):
            raise ControlError(f"invalid pacer window {window!r}: use an integer from 1 to {MOST_PREFETCH}")
        self._window = window
        self._held = float(LEAST_PACER_WINDOW if window is None else window)

    def default_limits(self, goal: Goal) -> Limits:
        # The action is the rate itself unless something else is slower, so there is little to correct.
        rate = self._rate_of(goal)
        return Limits(rate / 10, rate * 2)

    def check_limits(self, limits: Limits) -> None:
        if limits.lowest <= 0:
            raise ControlError(f"invalid pacer limit {limits.lowest:g}: use more than 0 messages/s")

    def default_start(self, goal: Goal) -> float:
        return self._rate_of(goal)

    def window_at(self, action: float, goal: Goal) -> float:
        self.hold_for(goal)
        return self._held

    def hold_for(self, goal: Goal) -> None:
        """Adapt the prefetch to this goal, from the next action on."""
        if self._window is None:
            held = math.ceil(self._rate_of(goal) * HELD_S)
            self._held = float(min(MOST_PREFETCH, max(LEAST_PACER_WINDOW, held)))

    def is_binding(self) -> bool:
        pace = self._pool.pace
        return pace is None or pace.was_used(monotonic())

    async def apply(self, action: float) -> float:
        self._pool.set_pace(action)
        await self._set_whole(self._held)
        return action

    def _rate_of(self, goal: Goal) -> float:
        if not isinstance(goal, Rate):
            raise ControlError("a pacer needs a Rate goal: use Window or FractionalWindow for other goals")
        return goal.per_s
