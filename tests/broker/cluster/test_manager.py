"""The manager's view of its clients: expected, reported, measured, moving."""

from __future__ import annotations

import pytest

from flyball.broker.cluster.decisions import (
    AddMember,
    Mark,
    MemberPlacement,
    Provision,
    SessionReport,
    TakeOver,
    Unmark,
    Wait,
)
from flyball.broker.cluster.load_table import IDLE_SHARE
from flyball.broker.cluster.manager import Manager
from flyball.broker.cluster.options import ClusterOptions, Role
from flyball.broker.cluster.placement import QueueLoad
from flyball.broker.cluster.state import EXPECTED_S
from flyball.errors import ClusterError
from tests.broker.cluster.snapshots import member_of, snapshot_of
from tests.broker.cluster.world import ORDERS, World

PRODUCER, CONSUMER = Role.PRODUCER, Role.CONSUMER


def manager_of(members: int = 2, **options: object) -> Manager:
    manager = Manager()
    manager.set_cluster(ORDERS, ClusterOptions.from_dict({"capacity": 100, "dwell_s": 1000, **options}), 0.0)
    for number in range(1, members + 1):
        manager.node_up(number, 0.0, epoch=1)
        manager.member_added(ORDERS, 10 + number, number, 0.0)
    return manager


def counts(manager: Manager, role: Role = PRODUCER) -> list[int]:
    return [member[f"{role}s"] for member in snapshot_of(manager, ORDERS, 0.0)["members"]]


def loads(manager: Manager) -> list[float]:
    return [member["load"] * member["capacity"] for member in snapshot_of(manager, ORDERS, 0.0)["members"]]


def placed(manager: Manager, role: Role, now: float = 0.0, session: str | None = None) -> MemberPlacement:
    answer = manager.join(ORDERS, role, now, session=session)
    assert isinstance(answer, MemberPlacement)
    return answer


def test_a_client_is_told_where_to_go() -> None:
    manager = manager_of()
    answer = placed(manager, PRODUCER, session="s")
    assert (answer.member, answer.node, answer.session) == (11, 1, "s")
    assert member_of(manager, "s") == 11


def test_nobody_can_join_what_is_not_there() -> None:
    with pytest.raises(ClusterError, match="no clustered queue 'orders': create it first"):
        Manager().join(ORDERS, PRODUCER, 0.0)


def test_whoever_was_placed_counts_until_it_should_have_come() -> None:
    manager = manager_of()
    placed(manager, PRODUCER)
    manager.tick(EXPECTED_S - 0.1)
    assert counts(manager) == [1, 0]
    manager.tick(EXPECTED_S)
    assert counts(manager) == [0, 0]


def test_whoever_has_arrived_stays() -> None:
    manager = manager_of()
    placed(manager, PRODUCER, session="s")
    manager.arrived("s", 1.0)
    manager.tick(1000.0)
    assert counts(manager) == [1, 0]


def test_reported_session_takes_the_place_of_an_anonymous_one() -> None:
    manager = manager_of()
    answer = placed(manager, PRODUCER)
    reports = [SessionReport("tcp-1", PRODUCER), SessionReport("tcp-2", CONSUMER)]
    manager.report(answer.member, 1.0, ready=0, unacked=0, sessions=reports)
    assert counts(manager) == [1, 0]
    assert counts(manager, CONSUMER) == [1, 0]


def test_client_placed_twice_counts_once() -> None:
    manager = manager_of()
    first = manager.join(ORDERS, PRODUCER, 0.0, arrives=False)
    assert isinstance(first, MemberPlacement)
    again = manager.join(ORDERS, PRODUCER, 1.0, session=first.session, arrives=False)
    assert isinstance(again, MemberPlacement)
    manager.report(again.member, 2.0, ready=0, unacked=0, sessions=[SessionReport("tcp-1", PRODUCER)])
    assert sum(counts(manager)) == 1


def test_unreported_session_is_dropped_unless_it_is_expected() -> None:
    manager = manager_of()
    placed(manager, PRODUCER, session="old")
    manager.arrived("old", 0.0)
    placed(manager, PRODUCER)
    placed(manager, PRODUCER, session="new")
    assert member_of(manager, "new") == 11
    manager.report(11, 1.0, ready=0, unacked=0, sessions=[])
    assert member_of(manager, "old") is None
    assert member_of(manager, "new") == 11


def test_a_session_that_joins_again_counts_once() -> None:
    manager = manager_of()
    for _ in range(3):
        placed(manager, PRODUCER, session="s")
    assert sum(counts(manager)) == 1


def test_a_session_that_another_member_reports_is_there() -> None:
    manager = manager_of()
    placed(manager, PRODUCER, session="s")
    manager.arrived("s", 0.0)
    manager.report(12, 1.0, ready=0, unacked=0, sessions=[SessionReport("s", PRODUCER)])
    assert counts(manager) == [0, 1]


def test_what_comes_from_an_old_epoch_or_a_dead_node_is_ignored() -> None:
    manager = manager_of()
    ghosts = [SessionReport("ghost", PRODUCER)]
    manager.report(11, 1.0, ready=5, unacked=5, sessions=ghosts, epoch=0)
    assert counts(manager) == [0, 0]
    manager.node_gone(1, 2.0)
    manager.report(11, 3.0, ready=5, unacked=5, sessions=ghosts, epoch=1)
    assert counts(manager) == [0]


def test_moving_session_counts_at_its_destination() -> None:
    manager = manager_of(1)
    for number in range(4):
        placed(manager, PRODUCER, session=f"s{number}")
        manager.arrived(f"s{number}", 0.0)
    manager.node_up(2, 1.0, epoch=1)
    manager.member_added(ORDERS, 12, 2, 1.0)
    manager.tick(2.0)
    assert counts(manager) == [2, 2]
    everybody = [SessionReport(f"s{number}", PRODUCER) for number in range(4)]
    manager.report(11, 3.0, ready=0, unacked=0, sessions=everybody)
    assert counts(manager) == [2, 2]


def test_a_session_that_never_arrives_where_it_was_to_move_is_where_it_was() -> None:
    manager = manager_of(1, period_s=1000)
    for number in range(4):
        placed(manager, PRODUCER, session=f"s{number}")
        manager.arrived(f"s{number}", 0.0)
    manager.node_up(2, 1.0, epoch=1)
    manager.member_added(ORDERS, 12, 2, 1.0)
    manager.tick(2.0)
    assert counts(manager) == [2, 2]
    manager.tick(2.0 + EXPECTED_S)
    assert counts(manager) == [4, 0]


def test_measured_loads_follow_what_sessions_do_and_idle_ones_count_a_little() -> None:
    manager = manager_of(1, loads="measured", producer_weight=10, load_window_s=5)
    for now in range(100):
        reports = [SessionReport("busy", PRODUCER, rate_per_s=50.0), SessionReport("idle", PRODUCER, rate_per_s=0.0)]
        manager.report(11, float(now), ready=0, unacked=0, sessions=reports)
    assert loads(manager)[0] == pytest.approx(50.0 + IDLE_SHARE * 10, rel=1e-3)


def test_a_rate_that_jumps_is_followed_within_the_window() -> None:
    manager = manager_of(1, loads="measured", load_window_s=5)
    manager.report(11, 0.0, ready=0, unacked=0, sessions=[SessionReport("s", PRODUCER, rate_per_s=1.0)])
    manager.report(11, 5.0, ready=0, unacked=0, sessions=[SessionReport("s", PRODUCER, rate_per_s=101.0)])
    assert loads(manager)[0] == pytest.approx(1 + 100 * (1 - 1 / 2.71828), rel=1e-3)


def test_where_nothing_is_measured_weights_count() -> None:
    manager = manager_of(1, loads="measured", producer_weight=3)
    manager.report(11, 9.0, ready=0, unacked=0, sessions=[SessionReport("s", PRODUCER)])
    assert loads(manager) == [3.0]


def test_a_member_can_bear_as_much_as_its_node() -> None:
    manager = manager_of(2)
    manager.node_up(1, 0.0, epoch=1, capacity=3.0)
    manager.member_added(ORDERS, 11, 1, 0.0)
    for _ in range(8):
        placed(manager, PRODUCER)
    assert counts(manager) == [6, 2]


def test_ordinary_queues_of_a_dead_node_are_taken_over_by_the_others() -> None:
    manager = manager_of(3)
    manager.node_gone(1, 1.0, [QueueLoad(70, 1, 5.0), QueueLoad(71, 1, 5.0)])
    (decision,) = [decision for decision in manager.take_decisions() if isinstance(decision, TakeOver)]
    assert sorted(decision.assignments.values()) == [2, 3]
    assert decision.merges == {11: 12}


def test_what_is_told_twice_counts_once() -> None:
    manager = manager_of()
    manager.node_up(1, 5.0, epoch=1)
    manager.member_added(ORDERS, 11, 1, 5.0)
    manager.set_cluster(ORDERS, ClusterOptions(capacity=100.0), 5.0)
    assert snapshot_of(manager, ORDERS, 5.0)["usable_capacity"] == 200.0
    manager.member_removed(11, 6.0)
    manager.member_removed(11, 6.0)
    manager.leave("nobody", 6.0)
    manager.move_failed("nobody", 6.0)
    assert snapshot_of(manager, ORDERS, 6.0)["usable_capacity"] == 100.0


def test_other_options_hold_for_members_and_sessions_that_are_there() -> None:
    manager = manager_of(2)
    placed(manager, PRODUCER)
    manager.set_cluster(ORDERS, ClusterOptions(capacity=50.0, producer_weight=3.0), 1.0)
    assert snapshot_of(manager, ORDERS, 1.0)["usable_capacity"] == 100.0
    assert snapshot_of(manager, ORDERS, 1.0)["load"] == 3.0


def test_quick_restart_of_a_node_drops_its_clients() -> None:
    manager = manager_of(2)
    placed(manager, PRODUCER, session="s")
    manager.arrived("s", 0.0)
    manager.node_up(1, 1.0, epoch=2)
    assert counts(manager) == [0, 0]
    assert snapshot_of(manager, ORDERS, 1.0)["usable_capacity"] == 200.0


def test_a_cluster_that_is_dropped_is_forgotten_with_all_it_had() -> None:
    manager = manager_of()
    placed(manager, PRODUCER, session="s")
    manager.drop_cluster(ORDERS)
    manager.drop_cluster(ORDERS)
    assert member_of(manager, "s") is None
    manager.tick(100.0)
    assert manager.take_decisions() == []


def test_the_history_keeps_the_last_decisions_with_their_reasons() -> None:
    world = World(ClusterOptions(capacity=1.0, provisioner="local"), manager=Manager(history_length=4))
    world.with_nodes(1.0)
    for _ in range(10):
        world.join(PRODUCER)
    history = world.manager.history
    assert len(history) == 4
    assert isinstance(history[-1].decision, AddMember)
    assert "would be" in history[-2].decision.reason


def test_a_second_manager_that_hears_the_same_decides_the_same() -> None:
    """A new leader needs nothing but what nodes and members say."""
    old = World(ClusterOptions(capacity=10.0, dwell_s=0.0)).with_nodes(1.0, 1.0)
    for _ in range(6):
        old.join(PRODUCER)
    old.join(CONSUMER)
    new = World(old.options)
    new.nodes, new.members, new.clients = old.nodes, old.members, old.clients
    for node, epoch in old.nodes.items():
        new.manager.node_up(node, 50.0, epoch=epoch)
    for member in old.members.values():
        new.manager.member_added(ORDERS, member.id, member.node, 50.0, is_marked=member.is_marked)
    new.now = 50.0
    new.report()
    before = snapshot_of(old.manager, ORDERS, 50.0)
    assert snapshot_of(new.manager, ORDERS, 50.0) == before


def test_client_without_room_waits_for_the_next_member() -> None:
    manager = manager_of(1, capacity=1, provisioner="local", wait_s=3.0)
    placed(manager, PRODUCER)
    assert manager.waiting_s(ORDERS, 1.0) == 0
    assert isinstance(manager.join(ORDERS, PRODUCER, 1.0, waited_s=manager.waiting_s(ORDERS, 1.0)), Wait)
    assert isinstance(manager.join(ORDERS, PRODUCER, 3.5, waited_s=manager.waiting_s(ORDERS, 3.5)), Wait)
    assert isinstance(manager.join(ORDERS, PRODUCER, 4.0, waited_s=manager.waiting_s(ORDERS, 4.0)), MemberPlacement)


def test_a_member_that_somebody_wants_is_marked_no_more() -> None:
    manager = manager_of()
    manager.mark(ORDERS, 12, 1.0)
    manager.member_added(ORDERS, 12, 2, 2.0, is_fixed=True)
    assert [type(decision) for decision in manager.take_decisions()] == [Mark, Unmark]
    manager.tick(3.0)
    assert manager.take_decisions() == []


@pytest.mark.parametrize("are_moved", [False, True])
def test_node_started_for_clients_is_replaced_under_its_name(are_moved: bool) -> None:
    manager = Manager()
    manager.set_cluster(ORDERS, ClusterOptions.from_dict({"capacity": 2, "provisioner": "local"}), 0.0)
    for node in (1, 2):
        manager.node_up(node, 0.0, epoch=1, provisioned_for=ORDERS if node == 2 else None)
        manager.member_added(ORDERS, 10 + node, node, 0.0)
    sessions = [SessionReport(f"c{number}", CONSUMER, entry=1) for number in range(3)]
    manager.report(11, 1.0, ready=0, unacked=0, sessions=sessions[are_moved:])
    manager.report(12, 1.0, ready=0, unacked=0, sessions=sessions[:are_moved])
    manager.node_gone(2, 2.0)
    [started] = [decision for decision in manager.take_decisions() if isinstance(decision, Provision)]
    assert started.replaces == 2
