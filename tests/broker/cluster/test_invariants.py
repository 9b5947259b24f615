"""The invariants of a domain, I1 to I16, and which test is about which.

Paths are below tests/broker. "Simulation" is cluster/test_simulation.py, whole nodes under faults, thousands of
seeds with `python -m bench.simulation`; "chaos" is cluster/test_chaos.py, real processes, minutes with `python -m
bench.chaos`. Both judge the answers that clients got with flyball.lab.history. "Engine" is
engine/test_engine_against_a_naive_model.py. What is not named is in this file.

I1  a confirmed message is never lost: simulation, chaos; of one node node/test_recovery.py,
    protocols/amqp/test_recovery.py; in a transfer store/test_domain_conformance.py
    (test_messages_moved_back_and_forth_are_not_lost_or_duplicated)
I2  an unacked message is held by exactly one live session or is ready: engine (every_message_is_in_its_one_place);
    simulation (`_check_holders`, `_check_owners`)
I3  no ack is accepted from an old epoch: store/test_domain_conformance.py,
    store/test_postgres_registry.py, peering/link/test_moving.py; simulation (`_check_owners`); here the
    manager's part (hear_from_an_old_epoch)
I4  order per producer and member, but for what comes again or is handed over: engine (check_found,
    check_deliveries); simulation, for ordinary queues and for members; chaos for ordinary queues only
I5  one unmarked member on a node that is there: somebody_takes_clients; simulation at its end
I6  no client is sent to a marked or dead member: `World.join`, `World._move`; simulation (`wrong_moves`, and at its
    end that no client is at a dead one)
I7  a removed member was empty: `World._remove`; simulation, for stored messages (`WatchedDomain`)
I8  the usable load stays below θ_up or more is coming: the_load_can_be_borne_or_more_is_coming; simulation at its
    end (`can_bear_its_load`)
I9  between changes of the load the potential falls with every move, and moves end: rest, and test_rebalancing.py
    (test_while_loads_stay_every_move_lowers_the_potential_and_moves_end); simulation only that in peace no client
    moves twice within the cool-down (`wrong_moves`)
I10 a client that leaves and comes back does not add what was removed: test_provisioning.py
    (test_one_client_coming_and_going_grows_the_queue_only_once); and no load does within
    the dwell time unless it is grave: `World.check_growth`
I11 after joins only, shares differ by at most one client of the smallest: test_placement.py
    (test_after_joins_only_shares_differ_by_at_most_one_client_of_the_smallest)
I12 the counts agree with what is there: the_books_agree_with_what_is_there; simulation at its end, that no client is
    counted twice
I13 outstanding deliveries stay within the window: engine (check_deliveries); simulation (`_check_holders`)
I14 no more is admitted than flowed in and one request: tests/admission/test_gate.py
    (test_requests_wait_only_for_budget_and_never_exceed_it)
I15 odds of being blocked are as costs: tests/admission/schedulers/test_dps.py
I16 controllers emit numbers within their limits: tests/control/test_controller.py
    (test_the_action_is_always_a_number_within_the_limits), tests/admission/test_budget.py
    (test_the_budget_stays_between_its_bounds_whatever_happens)
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from flyball.broker.cluster.decisions import Move, SessionReport
from flyball.broker.cluster.options import ClusterOptions, Role
from flyball.errors import ClusterError
from tests.broker.cluster.snapshots import snapshot_of
from tests.broker.cluster.world import ORDERS, Client, World

ROLES = st.sampled_from(list(Role))
CHOICE = st.integers(0, 1_000_000)


class Governing(RuleBasedStateMachine):
    """Whatever happens to a domain, in whatever order."""

    clients: Bundle[str] = Bundle("clients")

    @initialize(
        capacity=st.sampled_from([1.0, 2.0, 5.0, 10.0]),
        weights=st.sampled_from([(1.0, 1.0), (2.0, 1.0), (0.5, 1.5)]),
        nodes=st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=1, max_size=4),
        dwell_s=st.sampled_from([0.0, 5.0, 30.0]),
        provisioner=st.sampled_from(["", "local"]),
        start_s=st.sampled_from([0.0, 3.0]),
        min_members=st.integers(1, 2),
        moves_succeed=st.booleans(),
    )
    def begin(
        self,
        capacity: float,
        weights: tuple[float, float],
        nodes: list[float],
        dwell_s: float,
        provisioner: str,
        start_s: float,
        min_members: int,
        moves_succeed: bool,
    ) -> None:
        options = ClusterOptions(
            capacity=capacity,
            producer_weight=weights[0],
            consumer_weight=weights[1],
            dwell_s=dwell_s,
            provisioner=provisioner,
            min_members=min_members,
            max_members=6,
            cool_down_s=4.0,
            start_s=10.0,
        )
        self.world = World(options, start_s=start_s, moves_succeed=moves_succeed)
        self.world.with_nodes(*nodes)
        self.epochs: dict[int, int] = {}
        self.dead: list[int] = []
        self.unwanted: set[int] = set()
        self.has_ticked = False

    @rule(target=clients, role=ROLES, choice=CHOICE, is_relayed=st.booleans())
    def join(self, role: Role, choice: int, is_relayed: bool) -> Any:
        self.has_ticked = False
        nodes = sorted(self.world.nodes)
        entry = nodes[choice % len(nodes)] if is_relayed and nodes else None
        client = self.world.join(role, entry=entry)
        return multiple() if client is None else client.id

    @rule(client=clients)
    def leave(self, client: str) -> None:
        if client in self.world.clients:
            self.world.leave(client)

    @rule(choice=CHOICE)
    def crash(self, choice: int) -> None:
        self.has_ticked = False
        nodes = sorted(self.world.nodes)
        if nodes:
            node = nodes[choice % len(nodes)]
            self.epochs[node] = self.world.nodes[node]
            self.dead.append(node)
            self.world.crash(node)

    @rule(choice=CHOICE)
    def restart(self, choice: int) -> None:
        if self.dead:
            self.has_ticked = False
            node = self.dead.pop(choice % len(self.dead))
            self.world.restart(node, self.epochs[node] + 2)

    @rule(choice=CHOICE)
    def mark(self, choice: int) -> None:
        self.has_ticked = False
        members = sorted(self.world.members)
        if members:
            try:
                member = self.world.members[members[choice % len(members)]]
                self.unwanted.add(member.node)
                self.world.manager.set_cluster(ORDERS, self.world.options, self.world.now, unwanted=self.unwanted)
                self.world.manager.mark(ORDERS, member.id, self.world.now)
            except ClusterError:
                return
            self.world.execute()

    @rule(choice=CHOICE)
    def leave_in_good_order(self, choice: int) -> None:
        self.has_ticked = False
        nodes = sorted(self.world.nodes)
        if nodes:
            node = nodes[choice % len(nodes)]
            self.unwanted.add(node)
            self.world.manager.node_leaves(node, self.world.now)
            self.world.execute()

    @rule(choice=CHOICE, ready=st.integers(0, 3), unacked=st.integers(0, 3))
    def fill(self, choice: int, ready: int, unacked: int) -> None:
        members = sorted(self.world.members)
        if members:
            member = self.world.members[members[choice % len(members)]]
            member.ready, member.unacked = ready, unacked
            self.world.report()

    @rule()
    def drain(self) -> None:
        self.world.drain()
        self.world.report()

    @rule(passed_s=st.sampled_from([0.5, 1.0, 5.0, 40.0]))
    def tick(self, passed_s: float) -> None:
        self.world.report()
        self.world.tick(passed_s)
        # What is taken over or taken in by this tick may need a further one to be grown for.
        self.world.tick(0.0)
        self.has_ticked = True

    @rule(choice=CHOICE, role=ROLES)
    def hear_from_an_old_epoch(self, choice: int, role: Role) -> None:
        """I3, the manager's part."""
        members = sorted(self.world.members)
        if not members:
            return
        member = self.world.members[members[choice % len(members)]]
        before = snapshot_of(self.world.manager, ORDERS, self.world.now)
        reports = [SessionReport("from the dead", role)]
        self.world.manager.report(
            member.id,
            self.world.now,
            ready=99,
            unacked=99,
            sessions=reports,
            epoch=self.world.nodes.get(member.node, 0) - 1,
        )
        assert snapshot_of(self.world.manager, ORDERS, self.world.now) == before

    @invariant()
    def the_books_agree_with_what_is_there(self) -> None:
        """I12."""
        if not hasattr(self, "world"):
            return
        snapshot = snapshot_of(self.world.manager, ORDERS, self.world.now)
        for role in Role:
            real = [client for client in self._placed() if client.role is role]
            assert snapshot[f"{role}s"] == len(real) == sum(member[f"{role}s"] for member in snapshot["members"])
        assert {member["member"] for member in snapshot["members"]} == set(self.world.members)
        for member in snapshot["members"]:
            here = [client for client in self.world.clients.values() if client.member == member["member"]]
            assert member["producers"] + member["consumers"] == len(here)
            assert member["is_marked"] == self.world.members[member["member"]].is_marked

    @invariant()
    def somebody_takes_clients(self) -> None:
        """I5: at least one unmarked member, if any node can serve one; else it is on its way."""
        if not hasattr(self, "world") or not self.has_ticked:
            return
        world = self.world
        usable = [member for member in world.members.values() if not member.is_marked and member.node in world.nodes]
        assert usable or not set(world.nodes) - self.unwanted or self._is_coming()

    @invariant()
    def the_load_can_be_borne_or_more_is_coming(self) -> None:
        """I8."""
        if not hasattr(self, "world") or not self.has_ticked:
            return
        world, options = self.world, self.world.options
        snapshot = snapshot_of(world.manager, ORDERS, world.now)
        if snapshot["usable_load"] is not None and snapshot["usable_load"] <= options.theta_up + 1e-6:
            return
        staying = sum(not member["is_leaving"] for member in snapshot["members"])
        is_held = snapshot["held_for_s"] is not None and snapshot["usable_load"] <= options.theta_hold + 1e-6
        can_grow = (options.provisioner or self._free_nodes()) and not snapshot["retry_in_s"]
        assert self._is_coming() or is_held or staying >= options.max_members or not can_grow

    def _is_coming(self) -> bool:
        return bool(snapshot_of(self.world.manager, ORDERS, self.world.now)["coming"] or self.world.starting)

    def _free_nodes(self) -> list[int]:
        taken = {member.node for member in self.world.members.values()}
        return [node for node in self.world.nodes if node not in taken | self.unwanted]

    @rule()
    def rest(self) -> None:
        """I9: while nothing changes, moves are few, each lowers what is to be lowered, and then there is peace."""
        world = self.world
        options = world.options
        # A client that lost its member gets another one first.
        world.tick(0.0)
        last = self._to_be_lowered()
        on_marked = sum(world.members[client.member].is_marked for client in self._placed())
        gain = (options.epsilon + options.move_cost) * options.potential_unit
        most = on_marked + (last[1] + on_marked * 4 * options.potential_unit * options.capacity) / gain
        moved = 0
        for _ in range(60):
            before = len(world.done)
            world.manager.tick(world.now)
            world.execute()
            if any(not isinstance(decision, Move) for _, decision in world.done[before:]):
                return
            moved += len(world.done) - before
            if world.moves_succeed:
                now = self._to_be_lowered()
                assert now[0] <= last[0] + 1e-9
                assert now[0] < last[0] - 1e-9 or now[1] <= last[1] + 1e-9
                last = now
            world.now += 1.0
        assert not world.moves_succeed or moved <= most

    def _placed(self) -> list[Client]:
        return [client for client in self.world.clients.values() if client.member in self.world.members]

    def _to_be_lowered(self) -> tuple[float, float]:
        snapshot = snapshot_of(self.world.manager, ORDERS, self.world.now)
        marked = sum(member["load"] * member["capacity"] for member in snapshot["members"] if member["is_marked"])
        return marked, snapshot["potential"]


TestGoverning = Governing.TestCase
TestGoverning.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
