"""What other nodes may ask about the queues of this one: counts, purges, deletions. Messages have frames."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from flyball.broker.core.handles import LocalQueue
from flyball.broker.core.pending import result
from flyball.broker.core.queue_report import queue_report
from flyball.broker.core.topology import Topology

# The operations on one queue that are requests, by the name of the command. The arguments are those of the handle.
OPERATIONS: Mapping[str, Callable[..., None]] = {
    "queue.counts": LocalQueue.use,
    "queue.purge": LocalQueue.purge,
    "queue.ids": LocalQueue.list_ids,
    "queue.remove_oldest": LocalQueue.remove_oldest,
    "queue.delete": LocalQueue.delete,
    "queue.delete_empty": LocalQueue.delete_empty,
}


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
            "client.is_sender": self.is_sender,
            **{command: partial(self._carry_out, operation) for command, operation in OPERATIONS.items()},
        }

    async def _carry_out(self, operation: Callable[..., None], queue_id: int, **arguments: Any) -> Any:
        queue = LocalQueue(self._topology, self._engine.queue(queue_id))
        return await result(lambda done: operation(queue, done=done, **arguments))

    async def list_queues(self, queue_ids: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """Return what all queues of this node hold, or those of these ids that are its."""
        if queue_ids is None:
            return [queue_report(state) for state in self._engine.queues]
        found = [self._engine.find_queue_by_id(queue_id) for queue_id in queue_ids if queue_id > 0]
        return [queue_report(state) for state in found if state is not None]

    async def active(self, reader: int) -> list[tuple[int, int]]:
        """Return the ids of the queues with messages that the reader may see, and how many."""
        return [(queue.id, count) for queue, count in self._engine.active_queues(reader)]

    async def is_sender(self, client_id: int) -> bool:
        """Whether a message of the client's is stored in a queue of this node."""
        return self._engine.is_sender(client_id)
