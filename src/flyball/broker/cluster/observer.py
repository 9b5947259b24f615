"""Keeps the manager up to date: compares its state with this node's view of the domain, and reports changes.

Only the manager has state; nothing is cached here.
"""

from __future__ import annotations

from collections.abc import Collection

from flyball.broker.cluster.decisions import SessionReport
from flyball.broker.cluster.manager import Manager
from flyball.broker.cluster.overview import Overview, is_lasting, key_of
from flyball.broker.cluster.placement import QueueLoad
from flyball.broker.cluster.session_reports import SessionReports


class Observer:
    """Reports changes to one manager."""

    def __init__(
        self, manager: Manager, overview: Overview, session_reports: SessionReports, unready: Collection[str]
    ) -> None:
        """Clustered queues in `unready` are withheld from the manager."""
        self._manager = manager
        self._overview = overview
        self._session_reports = session_reports
        self._unready = unready

    def observe_all(self, now_s: float) -> None:
        """Report everything that the manager does not know yet."""
        self._observe_clusters(now_s)
        self._observe_nodes(now_s)
        self._observe_members(now_s)
        self._observe_reports(now_s)

    def report_death(self, node_id: int, now_s: float) -> None:
        """Report that a node is dead, with the queues that it served."""
        self._observe_clusters(now_s)
        ordinary: list[QueueLoad] = []
        for queue in self._overview.left_behind(node_id):
            if queue.member and key_of(queue) in self._manager.clusters:
                # A leader at the start of its term may not have reported the members of the dead node.
                self._observe_member(queue.id, key_of(queue), node_id, now_s)
            elif is_lasting(queue):
                ordinary.append(QueueLoad(queue.id, node_id))
        self._manager.node_gone(node_id, now_s, ordinary)

    # Internals

    def _observe_clusters(self, now_s: float) -> None:
        defined = [
            key
            for key, value in self._overview.clusters.items()
            if key not in self._unready and not value.get("deleted")
        ]
        for key in defined:
            options, unwanted = self._overview.options(key), self._overview.unwanted(key)
            known = self._manager.clusters.get(key)
            if known is None or known.options != options or known.unwanted != unwanted:
                self._manager.set_cluster(key, options, now_s, unwanted=unwanted)
        for key in [key for key in self._manager.clusters if key not in defined]:
            self._manager.drop_cluster(key)

    def _observe_nodes(self, now_s: float) -> None:
        for node in self._overview.up:
            origin = self._overview.origin(node.name)
            self._manager.node_up(
                node.id,
                now_s,
                epoch=node.epoch,
                capacity=self._overview.capacity_of(node.id),
                provisioned_for=origin.get("cluster") or None,
                request=origin.get("request"),
            )
            if origin.get("leaving") and not self._manager.nodes[node.id].is_leaving:
                self._manager.node_leaves(node.id, now_s)

    def _observe_members(self, now_s: float) -> None:
        present: set[int] = set()
        for key in self._manager.clusters:
            for queue, owner in self._overview.members(key):
                if owner in self._manager.nodes:
                    present.add(queue.id)
                    self._observe_member(queue.id, key, owner, now_s)
        for queue_id in [queue_id for queue_id in self._manager.members if queue_id not in present]:
            self._manager.member_removed(queue_id, now_s)

    def _observe_member(self, queue_id: int, key: str, owner: int, now_s: float) -> None:
        value, is_fixed = self._overview.clusters[key], self._overview.is_fixed(key, owner)
        known = self._manager.members.get(queue_id)
        if known is None or known[1].is_fixed != is_fixed:
            is_marked = queue_id in value.get("marked", ())
            self._manager.member_added(key, queue_id, owner, now_s, is_marked=is_marked, is_fixed=is_fixed)
        if queue_id in value.get("leaving", ()) and not self._manager.members[queue_id][1].is_leaving:
            self._manager.mark(key, queue_id, now_s)

    def _observe_reports(self, now_s: float) -> None:
        sessions: dict[int, list[SessionReport]] = {queue_id: [] for queue_id in self._manager.members}
        live = self._overview.live
        for node in live:
            for queue_id, report in self._session_reports.sessions(node):
                if queue_id in sessions:
                    sessions[queue_id].append(report)
        for node in live:
            for text, reported in node.report.get("members", {}).items():
                if int(text) in sessions:
                    self._manager.report(
                        int(text),
                        now_s,
                        ready=reported["ready"],
                        unacked=reported["unacked"],
                        idle=reported["idle"],
                        sessions=sessions[int(text)],
                        epoch=node.epoch,
                    )
