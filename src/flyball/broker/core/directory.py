"""The directory of remote queues and the nodes that serve them, updated from the changes of other nodes."""

from __future__ import annotations

from collections.abc import Iterable

from flyball.broker.engine.version import Version
from flyball.events import Event
from flyball.model import PlacedQueue, Queue


class RemoteQueue:
    """A queue served by another node."""

    __slots__ = ("owner", "queue")

    def __init__(self, queue: Queue, owner: int) -> None:
        self.queue = queue
        # The id of the node. It may be dead until another node has taken the queue over.
        self.owner = owner

    @property
    def is_stored(self) -> bool:
        """Whether its persistent messages survive its node."""
        return self.queue.durable and not self.queue.exclusive


class Directory:
    """All remote queues, by id and by name."""

    def __init__(self, queues: Iterable[PlacedQueue] = (), version: Version | None = None) -> None:
        self._by_id: dict[int, RemoteQueue] = {}
        self._by_name: dict[tuple[str, str], dict[int, RemoteQueue]] = {}
        # Number of queue names by virtual host.
        self._counts: dict[str, int] = {}
        # Advances whenever a name may refer to another queue.
        self.version = version or Version()
        # Fires with the id of each queue that is put or removed.
        self.changed = Event[[int]]()
        for placed in queues:
            self.put(placed.queue, placed.owner)

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def name_count(self) -> int:
        """Number of queues; members of a clustered queue, which share its name, count as one."""
        return len(self._by_name)

    def count_in(self, vhost: str) -> int:
        """Number of queue names in the virtual host."""
        return self._counts.get(vhost, 0)

    def all(self) -> list[RemoteQueue]:
        return list(self._by_id.values())

    @property
    def queues(self) -> list[Queue]:
        return [remote.queue for remote in self._by_id.values()]

    def get(self, queue_id: int) -> RemoteQueue | None:
        return self._by_id.get(queue_id)

    def find(self, vhost: str, name: str) -> RemoteQueue | None:
        """Return the queue with the name; of a clustered queue, the first member."""
        named = self._by_name.get((vhost, name))
        return next(iter(named.values())) if named else None

    def members(self, vhost: str, name: str) -> list[RemoteQueue]:
        """Return all queues with the name: several if it is a clustered queue."""
        return list(self._by_name.get((vhost, name), {}).values())

    def of_node(self, node_id: int) -> list[RemoteQueue]:
        return [remote for remote in self._by_id.values() if remote.owner == node_id]

    def put(self, queue: Queue, owner: int) -> RemoteQueue:
        """Record that a node serves the queue."""
        self.version.advance()
        remote = self._by_id.get(queue.id)
        if remote is None:
            remote = self._by_id[queue.id] = RemoteQueue(queue, owner)
            named = self._by_name.setdefault((queue.vhost, queue.name), {})
            if not named:
                self._counts[queue.vhost] = self._counts.get(queue.vhost, 0) + 1
            named[queue.id] = remote
        else:
            remote.owner = owner
        self.changed(queue.id)
        return remote

    def remove(self, queue_id: int) -> RemoteQueue | None:
        """Remove a queue that was deleted, or that this node serves now."""
        remote = self._by_id.pop(queue_id, None)
        if remote is not None:
            self.version.advance()
            place = (remote.queue.vhost, remote.queue.name)
            named = self._by_name[place]
            del named[queue_id]
            if not named:
                del self._by_name[place]
                self._counts[remote.queue.vhost] -= 1
            self.changed(queue_id)
        return remote
