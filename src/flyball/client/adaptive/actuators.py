"""What an adaptive consumer can turn: its window in whole messages, in fractions, or the pace of its handlers.

An actuator is made by the user and bound to one consumer. It decides nothing; laws do that.
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
# What AMQP has room for.
MOST_PREFETCH = 65_535
# A broker that knows whole windows only is told a new one no more often than this.
SLOT_S = 0.1
# Where a change is a new subscription, windows that differ by less are as good as the same.
DEAR_RATIO = 0.1
# Seconds of handling for which a pacer's window has room, by default.
HELD_S = 0.5
LEAST_PACER_WINDOW = 16


class ConsumerActuator(ABC):
    """Applies actions to a consumer."""

    lowest_window = 1.0

    def __init__(self) -> None:
        self._subscription: Subscription | None = None

    def bind(self, subscription: Subscription, pool: HandlerPool) -> None:
        """Act on this consumer. Raises ControlError if it belongs to another one."""
        if self._subscription is not None:
            raise ControlError("this actuator belongs to another consumer: make one for each")
        self._subscription = subscription
        self._pool = pool

    def default_limits(self, goal: Goal) -> Limits:
        return Limits(self.lowest_window, HIGHEST_WINDOW)

    def check_limits(self, limits: Limits) -> None:
        """Raise ControlError if it cannot act between these."""
        if limits.lowest < self.lowest_window or limits.highest > MOST_PREFETCH:
            raise ControlError(
                f"the limits of a window lie between {self.lowest_window:g} and {MOST_PREFETCH},"
                f" not {limits.lowest:g} and {limits.highest:g}"
            )

    def default_start(self, goal: Goal) -> float:
        return 1.0

    def window_at(self, action: float, goal: Goal) -> float:
        """Return the window with which to begin."""
        return max(1.0, float(round(action)))

    def is_binding(self) -> bool:
        """Tell whether it has held anything back since it was asked last, as far as it can tell."""
        return True

    @abstractmethod
    async def apply(self, action: float) -> float:
        """Take the action; return what could really be done."""

    async def run(self) -> None:  # noqa: B027  # most have nothing to do
        """Do what there is to do between two samples, until cancelled."""

    async def _set_whole(self, action: float) -> float:
        """Set the window to a whole number, unless it is near enough and a change is dear; return it."""
        subscription = self._bound
        window = max(1.0, float(round(action)))
        if not subscription.is_quick and abs(window - subscription.window) <= DEAR_RATIO * subscription.window:
            return subscription.window
        await subscription.set_window(window)
        return window

    @property
    def _bound(self) -> Subscription:
        assert self._subscription is not None, "the actuator is bound to no consumer"
        return self._subscription


class Window(ConsumerActuator):
    """The prefetch window, a whole number of messages."""

    async def apply(self, action: float) -> float:
        return await self._set_whole(action)


class FractionalWindow(ConsumerActuator):
    """The prefetch window with fractions: 2.3 is 2 for seven tenths of the time and 3 for the rest.

    Flyball does that itself, every 10 ms. Other brokers are told to hop, every 100 ms at most and evenly spread;
    below 1 the acknowledgement is held back meanwhile. Where a window can only change with a new subscription
    (quorum queues of RabbitMQ) it is rounded.
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
        """Hop, where the broker does not."""
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
        """Return the window of the next slot; the larger ones are spread evenly."""
        whole = math.floor(self._action)
        self._carry += self._action - whole
        # A little less than 1, since tenths do not add up exactly.
        if self._carry > 1 - 1e-9:
            self._carry = max(0.0, self._carry - 1.0)
            return whole + 1.0
        return float(whole)


class Pacer(ConsumerActuator):
    """The pace at which handlers begin. The window is only a bound on what the consumer holds."""

    def __init__(self, window: int | None = None) -> None:
        """`window` is how many messages may be out; if None, enough for half a second at the goal."""
        super().__init__()
        if window is not None and not (isinstance(window, int) and 1 <= window <= MOST_PREFETCH):
            raise ControlError(f"a pacer's window is a whole number from 1 to {MOST_PREFETCH}, not {window!r}")
        self._window = window
        self._held = float(LEAST_PACER_WINDOW if window is None else window)

    def default_limits(self, goal: Goal) -> Limits:
        # The pace is the rate, until something else is slower: there is little to correct.
        rate = self._rate_of(goal)
        return Limits(rate / 10, rate * 2)

    def check_limits(self, limits: Limits) -> None:
        if limits.lowest <= 0:
            raise ControlError(f"the limits of a pacer are above 0 messages/s, not {limits.lowest:g}")

    def default_start(self, goal: Goal) -> float:
        return self._rate_of(goal)

    def window_at(self, action: float, goal: Goal) -> float:
        self.hold_for(goal)
        return self._held

    def hold_for(self, goal: Goal) -> None:
        """Have enough messages at hand for this goal, from the next action on."""
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
            raise ControlError("a pacer holds a rate: use Window or FractionalWindow for other goals")
        return goal.per_s
