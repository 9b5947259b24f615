"""A domain that exists only on paper: it carries out what the manager decides, and checks what may never be done."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from flyball.broker.cluster.decisions import (
    AddMember,
    Decision,
    HandOver,
    Mark,
    MemberPlacement,
    Move,
    Provision,
    Release,
    RemoveMember,
    SessionReport,
    TakeOver,
    Unmark,
)
from flyball.broker.cluster.manager import Manager
from flyball.broker.cluster.names import cluster_key
from flyball.broker.cluster.options import ClusterOptions, Role
from tests.broker.cluster.snapshots import snapshot_of

ORDERS = cluster_key("/", "orders")


@dataclass(slots=True)
class Client:
    """A session as it really is."""

    id: str
    role: Role
    member: int
    # The node that its connection is with.
    entry: int


@dataclass(slots=True)
class MemberQueue:
    """A member as it really is."""

    id: int
    node: int
    ready: int = 0
    unacked: int = 0
    is_marked: bool = False


@dataclass(slots=True)
class World:
    """One clustered queue on some nodes. Decisions take effect at once, but a node takes `start_s` to start."""

    options: ClusterOptions
    start_s: float = 0.0
    moves_succeed: bool = True
    now: float = 0.0
    manager: Manager = field(default_factory=Manager)
    # With their epochs.
    nodes: dict[int, int] = field(default_factory=dict)
    members: dict[int, MemberQueue] = field(default_factory=dict)
    clients: dict[str, Client] = field(default_factory=dict)
    starting: list[tuple[float, Provision]] = field(default_factory=list)
    done: list[tuple[float, Decision]] = field(default_factory=list)
    removed_at: float = -math.inf
    next_id: int = 1000
    next_node: int = 0

    def __post_init__(self) -> None:
        self.manager.set_cluster(ORDERS, self.options, self.now)

    def start_node(self, *, capacity: float = 1.0, provision: Provision | None = None) -> int:
        self.next_node += 1
        node = self.next_node
        self.nodes[node] = 1
        self.manager.node_up(
            node,
            self.now,
            epoch=1,
            capacity=capacity,
            provisioned_for=None if provision is None else provision.cluster,
            request=None if provision is None else provision.request,
        )
        self.execute()
        return node

    def with_nodes(self, *capacities: float) -> World:
        """Start nodes with a member each."""
        for capacity in capacities:
            self.add_member(self.start_node(capacity=capacity))
        return self

    def add_member(self, node: int, *, is_fixed: bool = False) -> int:
        self.next_id += 1
        self.members[self.next_id] = MemberQueue(self.next_id, node)
        self.manager.member_added(ORDERS, self.next_id, node, self.now, is_fixed=is_fixed)
        self.execute()
        return self.next_id

    def crash(self, node: int) -> None:
        """A node dies, and with it all connections to it."""
        del self.nodes[node]
        for client in [client for client in self.clients.values() if client.entry == node]:
            del self.clients[client.id]
            if client.member not in self.members or self.members[client.member].node != node:
                self.manager.leave(client.id, self.now)
        self.manager.node_gone(node, self.now)
        self.execute()

    def restart(self, node: int, epoch: int) -> None:
        """A node that was gone joins again."""
        self.nodes[node] = epoch
        self.manager.node_up(node, self.now, epoch=epoch)
        self.execute()

    def join(self, role: Role, *, entry: int | None = None, session: str | None = None) -> Client | None:
        """A client comes; it is connected with the elected node unless `entry` says otherwise."""
        self.next_id += 1
        answer = self.manager.join(ORDERS, role, self.now, session=session or f"s{self.next_id}")
        self.execute()
        if not isinstance(answer, MemberPlacement):
            return None
        member = self.members[answer.member]
        assert member.node == answer.node
        assert answer.node in self.nodes, "nobody is sent to a dead node"
        assert not member.is_marked, "nobody is sent to a marked member"
        client = Client(answer.session, role, answer.member, answer.node if entry is None else entry)
        self.clients[client.id] = client
        self.arrive(client)
        return client

    def arrive(self, client: Client) -> None:
        is_near = client.entry == self.members[client.member].node
        self.manager.arrived(client.id, self.now, entry=None if is_near else client.entry)

    def leave(self, session: str) -> None:
        del self.clients[session]
        self.manager.leave(session, self.now)
        self.execute()

    def report(self) -> None:
        """All members say what they have."""
        for member in list(self.members.values()):
            if member.node not in self.nodes:
                continue
            sessions = [
                SessionReport(client.id, client.role, entry=client.entry if client.entry != member.node else None)
                for client in self.clients.values()
                if client.member == member.id
            ]
            self.manager.report(
                member.id,
                self.now,
                ready=member.ready,
                unacked=member.unacked,
                sessions=sessions,
                epoch=self.nodes[member.node],
            )
        self.execute()

    def tick(self, passed_s: float = 1.0) -> None:
        self.now += passed_s
        for entry in [entry for entry in self.starting if entry[0] <= self.now]:
            self.starting.remove(entry)
            self.start_node(provision=entry[1])
        self.manager.tick(self.now)
        self.execute()

    def drain(self) -> None:
        """Marked members hand their messages to the others, and what was delivered there is settled."""
        for member in self.members.values():
            if member.is_marked:
                heirs = [other for other in self.members.values() if not other.is_marked]
                if heirs:
                    heirs[0].ready += member.ready
                    member.ready = member.unacked = 0

    def execute(self) -> None:
        while decisions := self.manager.take_decisions():
            self.check_growth(decisions)
            for decision in decisions:
                assert decision.reason
                self.done.append((self.now, decision))
                self._carry_out(decision)

    def check_growth(self, decisions: list[Decision]) -> None:
        """Nothing is added for the load within the dwell time of a removal, unless the overload is grave."""
        growing = [decision for decision in decisions if isinstance(decision, (Provision, AddMember))]
        if growing and growing[0].reason.startswith("the load") and self.now < self.removed_at + self.options.dwell_s:
            load = snapshot_of(self.manager, ORDERS, self.now)["usable_load"]
            assert load is None or load > self.options.theta_hold - 1e-6

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case Provision():
                self.starting.append((self.now + self.start_s, decision))
                if self.start_s == 0:
                    self.starting.pop()
                    self.start_node(provision=decision)
            case AddMember(node=node):
                assert node in self.nodes
                assert all(member.node != node for member in self.members.values()), "a node has one member at most"
                self.add_member(node)
            case Mark(member=member):
                self.members[member].is_marked = True
                assert any(not other.is_marked for other in self.members.values()), "the last one is never marked"
            case Unmark(member=member):
                self.members[member].is_marked = False
            case RemoveMember(member=member):
                self._remove(member)
            case Release(node=node):
                assert all(member.node != node for member in self.members.values())
                self.crash(node)
            case Move():
                self._move(decision)
            case TakeOver():
                self._take_over(decision)
            case HandOver():
                pass
            case _:
                raise AssertionError(decision)

    def _remove(self, member: int) -> None:
        removed = self.members.pop(member)
        assert removed.is_marked
        assert not removed.ready
        assert not removed.unacked
        assert all(client.member != member for client in self.clients.values()), "a removed member has no client"
        assert any(not other.is_marked for other in self.members.values())
        self.removed_at = self.now
        self.manager.member_removed(member, self.now)

    def _move(self, move: Move) -> None:
        target = self.members[move.to_member]
        assert not target.is_marked
        assert target.node in self.nodes
        client = self.clients[move.session]
        if self.moves_succeed or client.member not in self.members:
            if client.entry == self.members.get(client.member, target).node:
                client.entry = target.node
            client.member = move.to_member
            self.arrive(client)
        else:
            self.manager.move_failed(move.session, self.now, "not at a safe point")

    def _take_over(self, decision: TakeOver) -> None:
        for member, heir in decision.merges.items():
            dead = self.members.pop(member)
            self.members[heir].ready += dead.ready + dead.unacked
        for member, node in decision.assignments.items():
            assert node in self.nodes
            queue = self.members[member]
            queue.node, queue.is_marked = node, False
            queue.ready, queue.unacked = queue.ready + queue.unacked, 0

    def count(self, kind: type[Decision]) -> int:
        return sum(isinstance(decision, kind) for _, decision in self.done)

    def times(self, *kinds: type[Decision]) -> list[float]:
        return [at for at, decision in self.done if isinstance(decision, kinds)]
