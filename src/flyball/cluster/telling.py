"""What the manager is told: what has changed since it was told last, out of what the node knows of the domain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flyball.cluster.decisions import SessionReport
from flyball.cluster.domain import ClusterOptions, Role
from flyball.cluster.manager import Manager
from flyball.cluster.overview import Overview, key_of
from flyball.cluster.placement import QueueLoad
from flyball.store.registry import NodeRecord


class Teller:
    """Keeps one manager informed."""

    def __init__(self, manager: Manager, overview: Overview) -> None:
        self._manager = manager
        self._overview = overview
        self._epochs: dict[int, int] = {}
        """Of the nodes that the manager knows, by id."""
        self._leaving: set[int] = set()
        self._members: dict[int, str] = {}
        self._fixed: set[int] = set()
        self._unwanted: set[int] = set()
        """Members that the manager knows somebody wants removed."""
        self._options: dict[str, Mapping[str, Any]] = {}
        self.unready: set[str] = set()
        """Clustered queues whose members are just being made: the manager does not hear of them yet."""

    def tell_all(self, now_s: float) -> None:
        """Tell everything that the manager does not know yet."""
        self._tell_clusters(now_s)
        self._tell_nodes(now_s)
        self._tell_members(now_s)
        self._tell_reports(now_s)

    def knows_node(self, node_id: int) -> bool:
        return node_id in self._epochs

    def knows_cluster(self, key: str) -> bool:
        return key in self._options

    def tell_death(self, node: NodeRecord, now_s: float) -> None:
        """Tell that a node is dead, with all that it served."""
        self._tell_clusters(now_s)
        ordinary: list[QueueLoad] = []
        for queue in self._overview.left_behind(node.id):
            if queue.member and key_of(queue) in self._options:
                # A leader who has just begun may not have told of the members of the dead.
                self._tell_member(queue.id, key_of(queue), node.id, now_s)
            elif queue.durable and not queue.exclusive:
                ordinary.append(QueueLoad(queue.id, node.id))
        self._epochs.pop(node.id, None)
        self._leaving.discard(node.id)
        self._manager.node_gone(node.id, now_s, ordinary)

    # Inside

    def _tell_clusters(self, now_s: float) -> None:
        defined = {
            key: value
            for key, value in self._overview.clusters.items()
            if key not in self.unready and not value.get("deleted")
        }
        for key, value in defined.items():
            if self._options.get(key) != value["options"]:
                self._options[key] = value["options"]
                self._manager.set_cluster(key, ClusterOptions.from_dict(value["options"]), now_s)
        for key in [key for key in self._options if key not in defined]:
            del self._options[key]
            self._manager.drop_cluster(key)
            for queue_id in [queue_id for queue_id, cluster in self._members.items() if cluster == key]:
                del self._members[queue_id]

    def _tell_nodes(self, now_s: float) -> None:
        for node in self._overview.up:
            origin = self._overview.origin(node.name)
            self._epochs[node.id] = node.epoch
            self._manager.node_up(
                node.id,
                now_s,
                epoch=node.epoch,
                capacity=self._overview.capacity_of(node.id),
                provisioned_for=origin.get("cluster"),
                provisioner=origin.get("provisioner") or "",
                request=origin.get("request"),
            )
            if origin.get("leaving") and node.id not in self._leaving:
                self._leaving.add(node.id)
                self._manager.node_leaves(node.id, now_s)

    def _tell_members(self, now_s: float) -> None:
        present: set[int] = set()
        for key in self._options:
            for queue, owner in self._overview.members(key):
                if owner in self._epochs:
                    present.add(queue.id)
                    self._tell_member(queue.id, key, owner, now_s)
        for queue_id in [queue_id for queue_id in self._members if queue_id not in present]:
            self._fixed.discard(queue_id)
            self._unwanted.discard(queue_id)
            self._manager.member_removed(self._members.pop(queue_id), queue_id, now_s)

    def _tell_member(self, queue_id: int, key: str, owner: int, now_s: float) -> None:
        value = self._overview.clusters[key]
        is_fixed, is_unwanted = self._overview.is_fixed(key, owner), queue_id in value.get("leaving", ())
        if queue_id not in self._members or is_fixed != (queue_id in self._fixed):
            self._members[queue_id] = key
            is_marked = queue_id in value.get("marked", ())
            self._manager.member_added(key, queue_id, owner, now_s, is_marked=is_marked, is_fixed=is_fixed)
        if is_unwanted and queue_id not in self._unwanted:
            self._manager.mark(key, queue_id, now_s)
        (self._fixed.add if is_fixed else self._fixed.discard)(queue_id)
        (self._unwanted.add if is_unwanted else self._unwanted.discard)(queue_id)

    def _tell_reports(self, now_s: float) -> None:
        sessions: dict[int, list[SessionReport]] = {queue_id: [] for queue_id in self._members}
        live = self._overview.live
        for node in live:
            for session_id, role, queue_id, rate_per_s in node.report.get("sessions", ()):
                if queue_id in sessions:
                    report = SessionReport(session_id, Role(role), rate_per_s, entry=node.id)
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
