"""Chooses nodes for new members, members to remove, and nodes to start and stop.

When to grow or shrink is decided in `provisioning`.
"""

from __future__ import annotations

from flyball.broker.cluster.decisions import AddMember, Mark, Provision, Release, RemoveMember, Unmark
from flyball.broker.cluster.load_table import Member
from flyball.broker.cluster.provisioning import TakeBack
from flyball.broker.cluster.state import DomainState, KnownCluster, KnownNode


class Scaling:
    """Adds and removes members and nodes."""

    def __init__(self, state: DomainState) -> None:
        self._state = state

    # Growing

    def grow(self, cluster: KnownCluster, now: float, extra: float = 0.0, *, replaces: int | None = None) -> None:
        """Add the capacity that the load and `extra` need. A node started for it may take the name of `replaces`."""
        while (step := cluster.provisioning.next_growth(cluster.table, now, extra)) is not None:
            if isinstance(step, TakeBack):
                self.unmark(cluster, step.member, now, step.reason)
            elif not self._extend(cluster, now, step.reason, replaces):
                return

    def unmark(self, cluster: KnownCluster, member: Member, now: float, reason: str) -> None:
        """Let a member accept clients again."""
        self._state.decide(now, Unmark(cluster=cluster.key, member=member.id, node=member.node, reason=reason))

    def keep(self, cluster: KnownCluster, member: Member, now: float) -> None:
        """An operator wants the member: cancel any pending removal."""
        self._state.set_leaving(member, False)
        if member.is_marked:
            self.unmark(cluster, member, now, "an operator requested it")

    def _extend(self, cluster: KnownCluster, now: float, reason: str, replaces: int | None = None) -> bool:
        """Add a member on an existing node, or request a node. Return False if neither is possible."""
        free = self.free_nodes(cluster)
        if free:
            self.add_member(cluster, min(free, key=self._state.fullness), now, reason)
            return True
        provisioner = cluster.options.provisioner
        if not provisioner:
            cluster.provisioning.look_again(now)
            return False
        request = self._state.new_name()
        decision = Provision(
            cluster=cluster.key, request=request, provisioner=provisioner, replaces=replaces, reason=reason
        )
        self._state.decide(now, decision)
        return True

    def free_nodes(self, cluster: KnownCluster) -> list[KnownNode]:
        """Return the nodes that could get a member."""
        taken = {member.node for member in cluster.table.members.values()}
        return [
            node
            for node in self._state.nodes.values()
            if node.id not in taken
            and node.id not in cluster.unwanted
            and not node.is_leaving
            and not node.is_released
            and node.id not in cluster.provisioning.coming
        ]

    def add_member(self, cluster: KnownCluster, node: KnownNode, now: float, reason: str) -> None:
        """Create a member on a node."""
        self._state.decide(now, AddMember(cluster=cluster.key, node=node.id, reason=reason))

    def replace(self, cluster: KnownCluster, node: int, count: int, now: float) -> None:
        """Restore the number of members. Shrinking decides after its dwell time whether they are still needed."""
        if cluster.table.usable_count + len(cluster.provisioning.coming) >= count:
            return
        reason = f"node {node}, which was started for this, is dead"
        marked = cluster.provisioning.fullest_marked(cluster.table)
        if marked is not None:
            self.unmark(cluster, marked, now, reason)
        elif len(cluster.table.members) + len(cluster.provisioning.coming) < cluster.options.max_members:
            self._extend(cluster, now, reason, replaces=node)

    # Shrinking

    def shrink(self, cluster: KnownCluster, now: float) -> None:
        """Mark members that are not needed, and remove marked ones that are empty."""
        for member in [member for member in cluster.table.members.values() if member.is_leaving]:
            self.retire(cluster, member, now, "its removal was requested, and other members take clients now")
        provisioned = frozenset(node.id for node in self._state.nodes.values() if node.provisioned_for)
        found = cluster.provisioning.next_mark(cluster.table, now, provisioned)
        if found is not None:
            self._mark(cluster, *found, now)
        for member, reason in cluster.provisioning.removable(cluster.table, now):
            decision = RemoveMember(cluster=cluster.key, member=member.id, node=member.node, reason=reason)
            self._state.decide(now, decision)

    def retire(self, cluster: KnownCluster, member: Member, now: float, reason: str) -> None:
        """Mark a member to remove, once another one can accept its clients."""
        self._state.set_leaving(member, True)
        if member.is_marked:
            return
        if cluster.table.usable_count == member.is_usable and not self._make_way(cluster, member, now):
            return
        self._mark(cluster, member, reason, now)
        self.grow(cluster, now)

    def _make_way(self, cluster: KnownCluster, member: Member, now: float) -> bool:
        """Make sure that another member accepts clients; return whether one does already."""
        marked = cluster.provisioning.fullest_marked(cluster.table)
        if marked is not None:
            self.unmark(cluster, marked, now, f"member {member.id} is being removed")
            return True
        if not cluster.provisioning.coming:
            self._extend(cluster, now, f"member {member.id}, the only one, is being removed")
        return False

    def _mark(self, cluster: KnownCluster, member: Member, reason: str, now: float) -> None:
        self._state.decide(now, Mark(cluster=cluster.key, member=member.id, node=member.node, reason=reason))

    def release(self, node: KnownNode, now: float) -> None:
        """Stop a node that was started for a clustered queue and has had no member for a dwell time."""
        if not node.provisioned_for or node.is_released or self._state.members_on(node.id):
            return
        if any(node.id in cluster.provisioning.coming for cluster in self._state.clusters.values()):
            return
        owner = self._state.clusters.get(node.provisioned_for)
        if self._state.unused_s(node, now) >= (0.0 if owner is None else owner.options.dwell_s):
            reason = "it was started for this and is no longer needed"
            self._state.decide(now, Release(cluster=node.provisioned_for, node=node.id, reason=reason))
