"""What the manager is told: what has changed since it was told last, out of what the node knows of the domain."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from flyball.broker.cluster.decisions import SessionReport
from flyball.broker.cluster.manager import Manager
from flyball.broker.cluster.overview import Overview, is_lasting, key_of
from flyball.broker.cluster.placement import QueueLoad
from flyball.broker.cluster.session_reports import SessionReports


class Observer:
    """Keeps one manager informed."""

    def __init__(
        self, manager: Manager, overview: Overview, session_reports: SessionReports, unready: Collection[str]
    ) -> None:
        """`unready` clustered queues are not told of yet."""
        self._manager = manager
        self._overview = overview
        self._session_reports = session_reports
        self._epochs: dict[int, int] = {}
        """Of the nodes that the manager knows, by id."""
        self._leaving: set[int] = set()
        self._members: dict[int, str] = {}
        self._fixed: set[int] = set()
        self._going: set[int] = set()
        """Members that the manager knows somebody wants removed."""
        self.options: dict[str, Mapping[str, Any]] = {}
        """Of the clustered queues that the manager knows, by their keys."""
        self._unwanted: dict[str, frozenset[int]] = {}
        """Nodes that get no members of a clustered queue, by its key."""
        self._unready = unready

    def observe_all(self, now_s: float) -> None:
        """Tell everything that the manager does not know yet."""
        self._tell_clusters(now_s)
        self._tell_nodes(now_s)
        self._tell_members(now_s)
        self._tell_reports(now_s)

    def knows_node(self, node_id: int) -> bool:
        return node_id in self._epochs

    def knows_cluster(self, key: str) -> bool:
        return key in self.options

    def tell_death(self, node_id: int, now_s: float) -> None:
        """Tell that a node is dead, with all that it served."""
        self._tell_clusters(now_s)
        ordinary: list[QueueLoad] = []
        for queue in self._overview.left_behind(node_id):
            if queue.member and key_of(queue) in self.options:
                # A leader who has just begun may not have told of the members of the dead.
                self._tell_member(queue.id, key_of(queue), node_id, now_s)
            elif is_lasting(queue):
                ordinary.append(QueueLoad(queue.id, node_id))
        self._epochs.pop(node_id, None)
        self._leaving.discard(node_id)
        self._manager.node_gone(node_id, now_s, ordinary)

    # Inside

    def _tell_clusters(self, now_s: float) -> None:
        defined = {
            key: value
            for key, value in self._overview.clusters.items()
            if key not in self._unready and not value.get("deleted")
        }
        for key, value in defined.items():
            unwanted = self._overview.unwanted(key)
            if self.options.get(key) != value["options"] or self._unwanted[key] != unwanted:
                self.options[key], self._unwanted[key] = value["options"], unwanted
                self._manager.set_cluster(key, self._overview.options(key), now_s, unwanted=unwanted)
        for key in [key for key in self.options if key not in defined]:
            del self.options[key], self._unwanted[key]
            self._manager.drop_cluster(key)
            for queue_id in [queue_id for queue_id, cluster in self._members.items() if cluster == key]:
                self._forget_member(queue_id)

    def _tell_nodes(self, now_s: float) -> None:
        for node in self._overview.up:
            origin = self._overview.origin(node.name)
            self._epochs[node.id] = node.epoch
            self._manager.node_up(
                node.id,
                now_s,
                epoch=node.epoch,
                capacity=self._overview.capacity_of(node.id),
                provisioned_for=origin.get("cluster") or None,
                request=origin.get("request"),
            )
            if origin.get("leaving") and node.id not in self._leaving:
                self._leaving.add(node.id)
                self._manager.node_leaves(node.id, now_s)

    def _tell_members(self, now_s: float) -> None:
        present: set[int] = set()
        for key in self.options:
            for queue, owner in self._overview.members(key):
                if owner in self._epochs:
                    present.add(queue.id)
                    self._tell_member(queue.id, key, owner, now_s)
        for queue_id in [queue_id for queue_id in self._members if queue_id not in present]:
            self._manager.member_removed(self._members[queue_id], queue_id, now_s)
            self._forget_member(queue_id)

    def _forget_member(self, queue_id: int) -> None:
        del self._members[queue_id]
        self._fixed.discard(queue_id)
        self._going.discard(queue_id)

    def _tell_member(self, queue_id: int, key: str, owner: int, now_s: float) -> None:
        value = self._overview.clusters[key]
        is_fixed, is_going = self._overview.is_fixed(key, owner), queue_id in value.get("leaving", ())
        if queue_id not in self._members or is_fixed != (queue_id in self._fixed):
            self._members[queue_id] = key
            is_marked = queue_id in value.get("marked", ())
            self._manager.member_added(key, queue_id, owner, now_s, is_marked=is_marked, is_fixed=is_fixed)
        if is_going and queue_id not in self._going:
            self._manager.mark(key, queue_id, now_s)
        (self._fixed.add if is_fixed else self._fixed.discard)(queue_id)
        (self._going.add if is_going else self._going.discard)(queue_id)

    def _tell_reports(self, now_s: float) -> None:
        sessions: dict[int, list[SessionReport]] = {queue_id: [] for queue_id in self._members}
        live = self._overview.live
        for node in live:
            for queue_id, report in self._session_reports.sessions(node):
                if queue_id in sessions:
                    sessions[queue_id].append(report)
        for node in live:
            for text, told in node.report.get("members", {}).items():
                queue_id = int(text)
                if queue_id in self._members:
                    self._manager.report(
                        queue_id,
                        now_s,
                        ready=told["ready"],
                        unacked=told["unacked"],
                        idle=told["idle"],
                        sessions=sessions[queue_id],
                        epoch=node.epoch,
                    )
