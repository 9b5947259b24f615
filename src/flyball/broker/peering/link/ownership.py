"""Requests of other nodes about local queues: counts, purges, deletions. Messages have frames of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from flyball.broker.core.handles import LocalQueue
from flyball.broker.core.pending import result
from flyball.broker.core.queue_report import queue_report
from flyball.broker.core.topology import Topology

# Operations on a queue that are sent as requests, by command. The arguments are those of the handle.
OPERATIONS: Mapping[str, Callable[..., None]] = {
    "queue.counts": LocalQueue.use,
    "queue.purge": LocalQueue.purge,
    "queue.ids": LocalQueue.list_ids,
    "queue.remove_oldest": LocalQueue.remove_oldest,
    "queue.delete": LocalQueue.delete,
    "queue.delete_empty": LocalQueue.delete_empty,
}


class Ownership:
    """Executes requests about queues of this node. Raises QueueNotFound for queues that it does not serve."""

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
        """Return reports of all queues of this node, or of those in `queue_ids` that it serves."""
        if queue_ids is None:
            return [queue_report(state) for state in self._engine.queues]
        found = [self._engine.find_queue_by_id(queue_id) for queue_id in queue_ids if queue_id > 0]
        return [queue_report(state) for state in found if state is not None]

    async def active(self, reader: int) -> list[tuple[int, int]]:
        """Return the ids of the queues with messages visible to the reader, and the number of those."""
        return [(queue.id, count) for queue, count in self._engine.active_queues(reader)]

    async def is_sender(self, client_id: int) -> bool:
        """Whether a message sent by the client is stored in a queue of this node."""
        return self._engine.is_sender(client_id)
