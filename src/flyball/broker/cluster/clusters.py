"""Creates, changes and deletes the clustered queues of a domain and their members. Runs on the leader.

A definition holds the options, the members marked for removal, those that an operator is removing (leaving), and the
nodes on which an operator placed a member (fixed) or removed one (unwanted). Every node applies it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from flyball.broker.cluster.agent import Agent
from flyball.broker.cluster.names import split_key
from flyball.broker.cluster.options import ClusterOptions
from flyball.broker.cluster.overview import Overview
from flyball.broker.core.pending import outcome
from flyball.broker.store.registry import NodeRecord
from flyball.errors import ClusterError, FlyballError
from flyball.model import Definition


class Clusters:
    """Changes clustered queues. All methods may raise FlyballError."""

    def __init__(self, agent: Agent, overview: Overview) -> None:
        self._agent = agent
        self._overview = overview
        self._definitions = agent.node.definitions
        self._membership = agent.node.membership
        # By marked member: the version of the definitions that contains the mark.
        self._marked_at_version: dict[int, int] = {}
        self._first_version = 0
        # Clustered queues whose first members are being created: the manager does not see them yet.
        self.unready: set[str] = set()

    def begin(self) -> None:
        """Start a term: nodes that have applied the current version know all earlier marks."""
        self._marked_at_version.clear()
        self._first_version = self._membership.version

    async def create(self, key: str, options: ClusterOptions, nodes: Sequence[NodeRecord]) -> None:
        """Define a clustered queue with fixed members on these nodes, or on nodes with room."""
        vhost, name = split_key(key)
        # No await before it is defined: of two concurrent requests for the same name the second is refused here.
        present = self._overview.clusters.get(key)
        if present is not None:
            is_going = bool(present.get("deleted"))
            advice = "is being deleted: retry in a few seconds" if is_going else "already exists"
            raise ClusterError(f"the clustered queue '{name}' in vhost '{vhost}' {advice}")
        if self._overview.has_ordinary(vhost, name):
            raise ClusterError(f"queue '{name}' already exists in vhost '{vhost}': choose another name")
        chosen = nodes or self._least_loaded(options.min_members)
        value = {"vhost": vhost, "name": name, "options": options.to_dict(only_changed=True)}
        fixed = sorted(node.name for node in nodes)
        self.unready.add(key)
        try:
            await self._put(key, {**value, "marked": [], "leaving": [], "fixed": fixed})
            await self._populate(key, chosen)
        finally:
            self.unready.discard(key)

    async def _populate(self, key: str, nodes: Sequence[NodeRecord]) -> None:
        try:
            for node in nodes:
                await self.add_member(key, node.id)
        except FlyballError:
            await self.delete(key)
            raise

    async def change(self, key: str, changes: Mapping[str, Any]) -> None:
        """Change some options of a clustered queue; concurrent changes of other options are kept."""
        value = self._overview.cluster(key)
        # The options must work together. Options stored by another version are kept as they are.
        ClusterOptions.from_dict(
            {**self._overview.declared(key).to_dict(), **changes}, f"clustered queue {value['name']}"
        )
        await self._put(key, {**value, "options": {**value["options"], **changes}})

    async def delete(self, key: str) -> None:
        """Delete a clustered queue with its members and all their messages."""
        # The next leader continues from this mark.
        await self._put(key, {**self._overview.cluster(key), "deleted": True})
        await self.finish_deletion(key)

    async def finish_deletion(self, key: str) -> None:
        for queue, owner in self._overview.members(key):
            node = self._overview.node(owner)
            if node is not None and node.is_live:
                await self._agent.ask(owner, "member.delete", queue_id=queue.id)
                self._marked_at_version.pop(queue.id, None)
        await self._membership.catch_up()
        if not self._overview.members(key):
            await outcome(lambda done: self._definitions.delete("cluster", key, done))

    async def add_member(self, key: str, node_id: int) -> int:
        """Create a member on a node; return its id. Idempotent."""
        value = self._overview.cluster(key)
        queue_id: int = await self._agent.ask(node_id, "member.add", vhost=value["vhost"], name=value["name"])
        await self._membership.catch_up()
        return queue_id

    async def keep_member(self, key: str, queue_id: int, node: NodeRecord) -> None:
        """Fix a member on request of an operator: it stays until an operator removes it."""
        await self._remove_from(key, ("marked", "leaving"), queue_id)
        await self._remove_from(key, ("unwanted",), node.name)
        await self._add_to(key, "fixed", node.name)

    async def drain_member(self, key: str, queue_id: int, node: NodeRecord) -> None:
        """Remove a member on request of an operator; it is marked as soon as another member accepts clients."""
        await self._remove_from(key, ("fixed",), node.name)
        await self._add_to(key, "unwanted", node.name)
        await self._add_to(key, "leaving", queue_id)

    async def forget_node_choices(self, node: NodeRecord) -> None:
        """Remove a departing node from the lists of fixed and unwanted members."""
        for key in list(self._overview.clusters):
            await self._remove_from(key, ("fixed", "unwanted"), node.name)

    async def mark(self, key: str, queue_id: int) -> None:
        """Stop all transfers to a member."""
        # Set before the await: until the change is written no node can know the mark, also for a concurrent check.
        self._marked_at_version[queue_id] = sys.maxsize
        await self._add_to(key, "marked", queue_id)
        await self._membership.catch_up()
        self._marked_at_version[queue_id] = self._membership.version

    async def unmark(self, key: str, queue_id: int) -> None:
        await self._remove_from(key, ("marked",), queue_id)
        self._marked_at_version.pop(queue_id, None)

    async def remove_member(self, key: str, queue_id: int, node_id: int) -> None:
        """Remove a marked member if it is empty and no node can still transfer messages to it."""
        while not self._is_left_alone(queue_id):
            await self._agent.watch_nodes()
        if queue_id not in self._overview.clusters.get(key, {}).get("marked", ()):
            # A client or message arrived meanwhile: the member is needed again.
            return
        if await self._agent.ask(node_id, "member.remove", queue_id=queue_id):
            await self._remove_from(key, ("marked", "leaving"), queue_id)
            self._marked_at_version.pop(queue_id, None)
            await self._membership.catch_up()

    # Internals

    def _is_left_alone(self, queue_id: int) -> bool:
        """Return whether all nodes know that a member is marked and none has a transfer to it in progress."""
        marked_at = self._marked_at_version.get(queue_id, self._first_version)
        return not any(
            node.seen_version < marked_at or queue_id in node.report.get("handing", ())
            for node in self._overview.nodes
            # A node whose lease has expired may still run, and write.
            if not node.is_gone
        )

    async def _add_to(self, key: str, kind: str, entry: int | str) -> None:
        value = self._overview.clusters.get(key)
        if value is not None and entry not in value.get(kind, ()):
            await self._put(key, {**value, kind: [*value.get(kind, ()), entry]})

    async def _remove_from(self, key: str, kinds: Sequence[str], entry: int | str) -> None:
        value = self._overview.clusters.get(key)
        if value is not None and any(entry in value.get(kind, ()) for kind in kinds):
            without = {kind: [kept for kept in value.get(kind, ()) if kept != entry] for kind in kinds}
            await self._put(key, {**value, **without})

    async def _put(self, key: str, value: Mapping[str, Any]) -> None:
        await outcome(lambda done: self._definitions.put(Definition("cluster", key, value), done))

    def _least_loaded(self, count: int) -> list[NodeRecord]:
        """Return the nodes that serve the fewest queues for their capacity."""
        served: dict[int, int] = {}
        for _, owner in self._overview.queues():
            served[owner] = served.get(owner, 0) + 1

        def fullness(node: NodeRecord) -> tuple[float, int]:
            return served.get(node.id, 0) / self._overview.capacity_of(node.id), node.id

        return sorted(self._overview.staying, key=fullness)[:count]
