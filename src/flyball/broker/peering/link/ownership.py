"""What other nodes may ask about the queues of this one: counts, purges, deletions. Messages have frames."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from flyball.broker.core.handles import LocalQueue
from flyball.broker.core.pending import outcome, result
from flyball.broker.core.queue_report import queue_report
from flyball.broker.core.topology import Topology


class Ownership:
    """Answers requests about queues that this node serves. Those about one raise QueueNotFound if it does not."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._engine = topology.engine

    @property
    def commands(self) -> dict[str, Callable[..., Awaitable[Any]]]:
        return {
            "queue.active": self.active,
            "queue.list": self.list_queues,
            "queue.counts": self.counts,
            "queue.purge": self.purge,
            "queue.ids": self.list_ids,
            "queue.remove_oldest": self.remove_oldest,
            "queue.delete": self.delete,
            "queue.delete_empty": self.delete_empty,
            "client.is_sender": self.is_sender,
        }

    def _queue(self, queue_id: int) -> LocalQueue:
        return LocalQueue(self._topology, self._engine.queue(queue_id))

    async def counts(self, queue_id: int) -> tuple[int, int]:
        """Return how many messages are ready and how many consumers there are; the queue expires later."""
        return await result(self._queue(queue_id).use)

    async def purge(self, queue_id: int) -> int:
        """Remove all ready messages and return how many there were."""
        return await result(self._queue(queue_id).purge)

    async def list_ids(self, queue_id: int, after_id: int, limit: int) -> list[int]:
        """Return the ids of ready messages with a larger id, oldest first, when all of these are durable."""
        return await result(partial(self._queue(queue_id).list_ids, after_id, limit))

    async def remove_oldest(self, queue_id: int, up_to_id: int, limit: int) -> int:
        """Remove the oldest messages up to an id, so many at the most, and return how many there were."""
        return await result(partial(self._queue(queue_id).remove_oldest, up_to_id, limit))

    async def delete(self, queue_id: int, if_unused: bool, if_empty: bool) -> int:
        """Delete the queue and return how many messages were ready."""
        return await result(partial(self._queue(queue_id).delete, if_unused=if_unused, if_empty=if_empty))

    async def delete_empty(self, queue_id: int) -> None:
        """Delete the queue if it holds no message, not even a leased one."""
        await outcome(self._queue(queue_id).delete_empty)

    async def list_queues(self, queue_ids: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """Tell what all queues of this node hold, or those of these ids that are its."""
        if queue_ids is None:
            return [queue_report(working) for working in self._engine.queues]
        found = [self._engine.find_working(queue_id) for queue_id in queue_ids if queue_id > 0]
        return [queue_report(working) for working in found if working is not None]

    async def active(self, reader: int) -> list[tuple[int, int]]:
        """Return the ids of the queues with messages that the reader may see, and how many."""
        return [(queue.id, count) for queue, count in self._engine.active_queues(reader)]

    async def is_sender(self, client_id: int) -> bool:
        """Whether a message of the client's is stored in a queue of this node."""
        return self._engine.is_sender(client_id)
