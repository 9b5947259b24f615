"""When messages expire: which queue is to be looked at next, and why.

Of messages in memory each is known; of those that are only in the store, the first of each queue: they may be many
more than memory has room for, and messages expire at the head, where they are read first anyway.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

# With fewer entries it is not worth sweeping out the stale ones.
_FEW = 64

# expires_us, queue id, message id; the id 0 stands for the messages of the queue that are not in memory.
Expiry = tuple[int, int, int]


class Expiries:
    """The times to live that are still running."""

    __slots__ = ("_absent", "_heap", "_present")

    def __init__(self) -> None:
        # What was in one of the others once.
        self._heap: list[Expiry] = []
        self._present: dict[int, Expiry] = {}
        self._absent: dict[int, int] = {}

    @property
    def next_us(self) -> int | None:
        """When something may expire next; None if nothing is to expire."""
        return self._heap[0][0] if self._heap else None

    def expect(self, expires_us: int, queue_id: int, message_id: int) -> None:
        """Expect a message in memory."""
        expiry = self._present[message_id] = (expires_us, queue_id, message_id)
        heappush(self._heap, expiry)
        self.sweep()

    def expect_absent(self, queue_id: int, expires_us: int) -> None:
        """Expect a message of a queue that is only in the store."""
        expected_us = self._absent.get(queue_id)
        if expected_us is None or expires_us < expected_us:
            self._absent[queue_id] = expires_us
            heappush(self._heap, (expires_us, queue_id, 0))

    def expects_absent(self, queue_id: int) -> bool:
        return queue_id in self._absent

    def forget(self, message_id: int) -> None:
        """A message is gone, or no longer in memory."""
        self._present.pop(message_id, None)

    def forget_absent(self, queue_id: int) -> None:
        """A queue is gone."""
        self._absent.pop(queue_id, None)

    def take_due(self, now_us: int) -> tuple[int, int] | None:
        """Return and forget the next queue and message whose time is up, the message 0 for absent ones; or None."""
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
        """Forget what has become stale: most messages are gone, or left to the store, before their time is up."""
        if len(self._heap) > _FEW + 2 * (len(self._present) + len(self._absent)):
            absent = [(expires_us, queue_id, 0) for queue_id, expires_us in self._absent.items()]
            self._heap = [*self._present.values(), *absent]
            heapify(self._heap)
