"""The order of a client's puts to queues of other nodes: none overtakes another while a queue changes its owner.

A put waits while an earlier one to the same queue does, or went another way and is not answered: that one may come
back. Knows neither packets nor connections.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Protocol

Way = object
"""Where puts are sent: the same object for the same connection."""


class OrderedPut(Protocol):
    """A put that takes its place among others."""

    number: int
    """Its place: that of an earlier one is lower."""
    queue_ids: list[int]
    is_resting: bool
    """Whether it waits for a time, not only for others."""

    def go(self) -> None:
        """Try again: either it goes or it waits."""
        ...


class _Line:
    """The puts to one queue that are not answered."""

    __slots__ = ("is_moving", "sent", "waiting", "was_refused", "way")

    def __init__(self) -> None:
        self.way: Way = None
        self.sent = 0
        """How many are on that way."""
        self.was_refused = False
        """Whether one has come back from there: those behind it will, too."""
        self.waiting: dict[int, OrderedPut] = {}
        self.is_moving = False

    def bars(self, put: OrderedPut, way: Way) -> bool:
        if self.waiting and min(self.waiting) < put.number:
            return True
        return self.sent > 0 and (self.way is not way or self.was_refused)


class Lines:
    """The lines of all queues that a client has unanswered puts to."""

    def __init__(self) -> None:
        self._lines: dict[int, _Line] = {}
        self._numbers = itertools.count(1)

    def next_number(self) -> int:
        return next(self._numbers)

    def has_any(self, queue_ids: Iterable[int]) -> bool:
        """Whether a put to these queues has to line up, also if they are here by now."""
        return bool(self._lines) and any(queue_id in self._lines for queue_id in queue_ids)

    def join(self, puts: Sequence[OrderedPut]) -> None:
        """Let puts go as soon as those before them allow. All have their places before the first of them goes."""
        for put in puts:
            self.wait(put)
        for put in puts:
            self.move_on(put.queue_ids)

    def may_go(self, put: OrderedPut, way: Way) -> bool:
        """Whether the put may go that way now; else it waits, and `go` is called when that has changed."""
        if any(line.bars(put, way) for line in self._lines_of(put)):
            self.wait(put)
            return False
        return True

    def wait(self, put: OrderedPut) -> None:
        """Let the put wait in its place."""
        for line in self._lines_of(put):
            line.waiting[put.number] = put

    def step_out(self, put: OrderedPut) -> None:
        """The put waits no more, whether it goes or is given up."""
        for line in self._lines_of(put):
            line.waiting.pop(put.number, None)

    def set_out(self, put: OrderedPut, way: Way) -> bool:
        """Note that the put goes that way; return whether it is the first since others were refused there."""
        lines = self._lines_of(put)
        is_new_start = any(line.was_refused for line in lines)
        for line in lines:
            line.way, line.was_refused = way, False
            line.sent += 1
        return is_new_start

    def arrive(self, put: OrderedPut, *, is_refused: bool) -> None:
        """A put that had set out has its answer, or will never get it."""
        for line in self._lines_of(put):
            line.sent -= 1
            line.was_refused = line.was_refused or is_refused

    def move_on(self, queue_ids: Iterable[int]) -> None:
        """Let those go that waited, one after the other, up to the first that still has to."""
        for queue_id in queue_ids:
            line = self._lines.get(queue_id)
            if line is None or line.is_moving:
                continue
            line.is_moving = True
            while line.waiting:
                first = line.waiting[min(line.waiting)]
                if first.is_resting:
                    break
                first.go()
                # If it has fallen into parts, one of them has its place now.
                if line.waiting.get(first.number) is first:
                    break
            line.is_moving = False
            if not line.waiting and not line.sent:
                self._lines.pop(queue_id, None)

    def _lines_of(self, put: OrderedPut) -> list[_Line]:
        return [self._lines.setdefault(queue_id, _Line()) for queue_id in dict.fromkeys(put.queue_ids)]
