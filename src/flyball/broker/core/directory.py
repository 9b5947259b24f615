"""The queues that other nodes of the domain serve: who has which, kept up to date from what the nodes tell."""

from __future__ import annotations

from collections.abc import Iterable

from flyball.broker.engine.version import Version
from flyball.events import Event
from flyball.model import PlacedQueue, Queue


class RemoteQueue:
    """A queue that another node serves."""

    __slots__ = ("owner", "queue")

    def __init__(self, queue: Queue, owner: int) -> None:
        self.queue = queue
        # The id of the node; it may be dead, until another one has taken over.
        self.owner = owner

    @property
    def is_stored(self) -> bool:
        """Whether its persistent messages survive its node."""
        return self.queue.durable and not self.queue.exclusive


class Directory:
    """All queues of other nodes, by id and by name."""

    def __init__(self, queues: Iterable[PlacedQueue] = (), version: Version | None = None) -> None:
        self._by_id: dict[int, RemoteQueue] = {}
        self._by_name: dict[tuple[str, str], dict[int, RemoteQueue]] = {}
        # How many names there are, by virtual host.
        self._counts: dict[str, int] = {}
        # Advances whenever a name may mean another queue than before.
        self.version = version or Version()
        # Called with the id of each queue that is put or removed.
        self.changed = Event[[int]]()
        for placed in queues:
            self.put(placed.queue, placed.owner)

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def name_count(self) -> int:
        """How many queues there are if those of the same name, members of a clustered one, are one."""
        return len(self._by_name)

    def count_in(self, vhost: str) -> int:
        """How many names of queues of that virtual host other nodes serve."""
        return self._counts.get(vhost, 0)

    def all(self) -> list[RemoteQueue]:
        return list(self._by_id.values())

    @property
    def queues(self) -> list[Queue]:
        return [remote.queue for remote in self._by_id.values()]

    def get(self, queue_id: int) -> RemoteQueue | None:
        return self._by_id.get(queue_id)

    def find(self, vhost: str, name: str) -> RemoteQueue | None:
        """Return the queue of that name: of a clustered one, the member that came first."""
        named = self._by_name.get((vhost, name))
        return next(iter(named.values())) if named else None

    def members(self, vhost: str, name: str) -> list[RemoteQueue]:
        """Return all queues of that name: several, if it is that of a clustered one."""
        return list(self._by_name.get((vhost, name), {}).values())

    def of_node(self, node_id: int) -> list[RemoteQueue]:
        return [remote for remote in self._by_id.values() if remote.owner == node_id]

    def put(self, queue: Queue, owner: int) -> RemoteQueue:
        """Note that a node serves the queue from now on."""
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
        """Forget a queue: it is gone, or this node serves it now."""
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
