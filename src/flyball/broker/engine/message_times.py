"""Wait and service times of a queue's messages: publishing to delivery, and delivery to acknowledgement.

A random sample of a few messages per second is timed; each represents the messages since the previous one. The queue
compares its counters with the number of the next timed message, which is the only overhead of other messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from flyball.model import Message

# Maximum number of timed messages that wait for their acknowledgement. At the maximum no further service times start:
# slow messages are kept, so that they are not underrepresented.
MAX_BEGUN = 64

# The value of a queue's `begun` while none of its messages is timed; shared, never changed.
NOTHING_BEGUN: dict[int, tuple[int, int]] = {}


class TimedQueue(Protocol):
    """The part of a queue's state that chooses the timed messages."""

    delivered: int
    delivered_no_ack: int
    got: int
    got_no_ack: int
    # The values of the counters at which a message is timed; 0 for never.
    timed_delivery: int
    timed_no_ack: int
    timed_get: int
    begun: dict[int, tuple[int, int]]


class MessageTimes:
    """Times messages of one queue, in microseconds. Each time has a weight: the number of messages it represents."""

    __slots__ = ("_every", "_left", "_now_us", "_per_s", "_random", "services", "waits")

    def __init__(self, per_s: int, now_us: Callable[[], int], random: Callable[[], float]) -> None:
        """About `per_s` messages are timed per second. `random` returns numbers from 0 to 1."""
        self._per_s = per_s
        self._now_us = now_us
        self._random = random
        # One message in this number is timed.
        self._every = 1
        # Number of messages to time before the sampling rate is halved.
        self._left = per_s
        # Times and weights of this second.
        self.waits: list[tuple[int, int]] = []
        self.services: list[tuple[int, int]] = []

    def begin_second(self, queue: TimedQueue, delivered: int) -> None:
        """Choose the messages of the next second; `delivered` is the number of deliveries in the last one."""
        self.waits = []
        self.services = []
        self._every = max(1, delivered // self._per_s)
        self._left = 2 * self._per_s
        # Chosen again: after a busy second the next timed message might be an hour away.
        queue.timed_delivery = self._next(queue.delivered)
        queue.timed_no_ack = self._next(queue.delivered_no_ack)
        queue.timed_get = self._next(queue.got + queue.got_no_ack)

    def end(self, queue: TimedQueue) -> None:
        """Time no more messages of the queue."""
        queue.timed_delivery = queue.timed_no_ack = queue.timed_get = 0
        queue.begun = NOTHING_BEGUN

    def delivered(self, queue: TimedQueue, message: Message) -> None:
        """Time a message on its delivery to a consumer that acknowledges."""
        self._begin_service(queue, message, self._note_wait(message))
        queue.timed_delivery = self._next(queue.delivered)

    def delivered_no_ack(self, queue: TimedQueue, message: Message) -> None:
        self._note_wait(message)
        queue.timed_no_ack = self._next(queue.delivered_no_ack)

    def got(self, queue: TimedQueue, message: Message, *, is_gone: bool) -> None:
        """Time a message on its fetch."""
        now_us = self._note_wait(message)
        if not is_gone:
            self._begin_service(queue, message, now_us)
        queue.timed_get = self._next(queue.got + queue.got_no_ack)

    def acknowledged(self, queue: TimedQueue, message_id: int) -> None:
        """Record the service time of a message, if it was timed."""
        found = queue.begun.pop(message_id, None)
        if found is not None and len(self.services) < MAX_BEGUN:
            began_us, weight = found
            self.services.append((max(0, self._now_us() - began_us), weight))

    def _note_wait(self, message: Message) -> int:
        now_us = self._now_us()
        # The wall clock may have been set back, or `arrived_us` may be from another node's clock.
        self.waits.append((max(0, now_us - message.arrived_us), self._every))
        self._left -= 1
        if not self._left:
            self._every *= 2
            self._left = self._per_s
        return now_us

    def _begin_service(self, queue: TimedQueue, message: Message, now_us: int) -> None:
        if queue.begun is NOTHING_BEGUN:
            queue.begun = {}
        if len(queue.begun) < MAX_BEGUN:
            queue.begun[message.id] = (now_us, self._every)

    def _next(self, counted: int) -> int:
        # Randomized: every n-th message might always go to the same one of two consumers.
        return counted + 1 + int(self._random() * (2 * self._every - 1))
