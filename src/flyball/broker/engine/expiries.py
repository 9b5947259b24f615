"""The schedule of message expiries.

It contains each message in memory, but only the first absent message of a queue to expire: the absent ones may not
fit into memory, and messages expire at the head of a queue, where they have to be read first.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

# Minimum number of stale entries of a heap to be swept.
_FEW = 64

# expires_us, queue id, message id; the message id 0 stands for the absent messages of the queue.
Expiry = tuple[int, int, int]


class Expiries:
    """A heap of expiries with lazy deletion."""

    __slots__ = ("_absent", "_heap", "_present")

    def __init__(self) -> None:
        # Includes stale entries, which are in neither of the dicts.
        self._heap: list[Expiry] = []
        self._present: dict[int, Expiry] = {}
        self._absent: dict[int, int] = {}

    @property
    def next_us(self) -> int | None:
        """The earliest expiry, which may be stale; None if the schedule is empty."""
        return self._heap[0][0] if self._heap else None

    def expect(self, expires_us: int, queue_id: int, message_id: int) -> None:
        """Schedule a message in memory."""
        expiry = self._present[message_id] = (expires_us, queue_id, message_id)
        heappush(self._heap, expiry)
        self.sweep()

    def expect_absent(self, queue_id: int, expires_us: int) -> None:
        """Schedule an absent message of a queue."""
        expected_us = self._absent.get(queue_id)
        if expected_us is None or expires_us < expected_us:
            self._absent[queue_id] = expires_us
            heappush(self._heap, (expires_us, queue_id, 0))

    def expects_absent(self, queue_id: int) -> bool:
        return queue_id in self._absent

    def forget(self, message_id: int) -> None:
        """Drop a message that was removed or evicted."""
        self._present.pop(message_id, None)

    def forget_absent(self, queue_id: int) -> None:
        """Drop the absent messages of a deleted queue."""
        self._absent.pop(queue_id, None)

    def take_due(self, now_us: int) -> tuple[int, int] | None:
        """Pop the next due expiry: queue id and message id, 0 for absent messages; None if none is due."""
        while self._heap and self._heap[0][0] <= now_us:
            expires_us, queue_id, message_id = heappop(self._heap)
            if message_id != 0:
                if self._present.pop(message_id, None) is not None:
                    return queue_id, message_id
            elif self._absent.get(queue_id) == expires_us:
                del self._absent[queue_id]
                return queue_id, 0
        return None

    def sweep(self) -> None:
        """Drop stale entries if they are the majority: most messages are removed or evicted before they expire."""
        if len(self._heap) > _FEW + 2 * (len(self._present) + len(self._absent)):
            absent = [(expires_us, queue_id, 0) for queue_id, expires_us in self._absent.items()]
            self._heap = [*self._present.values(), *absent]
            heapify(self._heap)
