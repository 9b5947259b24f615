"""Lets clustered queues grow and shrink: which nodes get members, which members go, which nodes are started.

Whether it is time is for `provisioning` to say.
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
        """Add what is needed for the load and `extra`. A node that is started for it may have the name of another."""
        while (step := cluster.provisioning.next_growth(cluster.table, now, extra)) is not None:
            if isinstance(step, TakeBack):
                self.unmark(cluster, step.member, now, step.reason)
            elif not self._extend(cluster, now, step.reason, replaces):
                return

    def unmark(self, cluster: KnownCluster, member: Member, now: float, reason: str) -> None:
        """Let a member take clients again."""
        self._state.decide(now, Unmark(cluster=cluster.key, member=member.id, node=member.node, reason=reason))

    def keep(self, cluster: KnownCluster, member: Member, now: float) -> None:
        """A person wants the member: whatever was to become of it is void."""
        self._state.set_leaving(member, False)
        if member.is_marked:
            self.unmark(cluster, member, now, "somebody wants it")

    def _extend(self, cluster: KnownCluster, now: float, reason: str, replaces: int | None = None) -> bool:
        """Add a member on a node that is there, or have one started. False if neither can be."""
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
        """Have a member made on a node."""
        self._state.decide(now, AddMember(cluster=cluster.key, node=node.id, reason=reason))

    def replace(self, cluster: KnownCluster, node: int, count: int, now: float) -> None:
        """Restore what there was. Whether it is still needed is for the shrinking to say, with its dwell time."""
        if cluster.table.usable_count + len(cluster.provisioning.coming) >= count:
            return
        reason = f"node {node}, which was started for it, is gone"
        marked = cluster.provisioning.fullest_marked(cluster.table)
        if marked is not None:
            self.unmark(cluster, marked, now, reason)
        elif len(cluster.table.members) + len(cluster.provisioning.coming) < cluster.options.max_members:
            self._extend(cluster, now, reason, replaces=node)

    # Shrinking

    def shrink(self, cluster: KnownCluster, now: float) -> None:
        """Mark what is not needed any more, and remove what is marked and empty."""
        for member in [member for member in cluster.table.members.values() if member.is_leaving]:
            self.retire(cluster, member, now, "it is to be removed, and others are there now")
        provisioned = frozenset(node.id for node in self._state.nodes.values() if node.provisioned_for)
        found = cluster.provisioning.next_mark(cluster.table, now, provisioned)
        if found is not None:
            self._mark(cluster, *found, now)
        for member, reason in cluster.provisioning.removable(cluster.table, now):
            decision = RemoveMember(cluster=cluster.key, member=member.id, node=member.node, reason=reason)
            self._state.decide(now, decision)

    def retire(self, cluster: KnownCluster, member: Member, now: float, reason: str) -> None:
        """Mark a member that is to go, but only once another one can take its clients."""
        self._state.set_leaving(member, True)
        if member.is_marked:
            return
        if cluster.table.usable_count == member.is_usable and not self._make_way(cluster, member, now):
            return
        self._mark(cluster, member, reason, now)
        self.grow(cluster, now)

    def _make_way(self, cluster: KnownCluster, member: Member, now: float) -> bool:
        """See to it that another one takes clients, and return whether it does so already."""
        marked = cluster.provisioning.fullest_marked(cluster.table)
        if marked is not None:
            self.unmark(cluster, marked, now, f"member {member.id} is to go")
            return True
        if not cluster.provisioning.coming:
            self._extend(cluster, now, f"member {member.id}, the only one, is to go")
        return False

    def _mark(self, cluster: KnownCluster, member: Member, reason: str, now: float) -> None:
        self._state.decide(now, Mark(cluster=cluster.key, member=member.id, node=member.node, reason=reason))

    def release(self, node: KnownNode, now: float) -> None:
        """Have a node stopped that was started for a clustered queue and has had no member for a dwell time."""
        if not node.provisioned_for or node.is_released or self._state.members_on(node.id):
            return
        if any(node.id in cluster.provisioning.coming for cluster in self._state.clusters.values()):
            return
        owner = self._state.clusters.get(node.provisioned_for)
        if self._state.unused_s(node, now) >= (0.0 if owner is None else owner.options.dwell_s):
            reason = "it was started for this and is not needed any more"
            self._state.decide(now, Release(cluster=node.provisioned_for, node=node.id, reason=reason))
