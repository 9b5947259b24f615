"""Which sessions and queues move, and that it comes to an end."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from flyball.broker.cluster.decisions import HandOver, Move
from flyball.broker.cluster.load_table import LoadTable, Member, MemberSession
from flyball.broker.cluster.options import ClusterOptions, Role
from flyball.broker.cluster.placement import NodeLoad, QueueLoad
from flyball.broker.cluster.rebalancing import best_move, drains, rebalance_owners
from flyball.errors import ClusterError
from tests.broker.cluster.snapshots import potential, snapshot_of
from tests.broker.cluster.world import ORDERS, World

PRODUCER, CONSUMER = Role.PRODUCER, Role.CONSUMER


def table_with(counts: list[int], capacity: float = 10.0, **options: object) -> LoadTable:
    """Members of one capacity with these numbers of producers."""
    table = LoadTable(ClusterOptions.from_dict({"capacity": capacity, **options}))
    for number, count in enumerate(counts, 1):
        member = Member(number, number, capacity)
        table.add(member)
        for session in range(count):
            table.put(MemberSession(f"{number}.{session}", PRODUCER, member, 1.0))
    return table


def test_a_session_moves_from_the_fullest_to_the_emptiest() -> None:
    table = table_with([2, 6, 4])
    move = best_move(table, 0.0)
    assert move is not None
    assert (move.session.member.id, move.to.id) == (2, 1)
    assert "member 2 has 6" in move.reason


def test_the_gain_is_by_how_much_the_potential_falls() -> None:
    table = table_with([2, 6, 4])
    move = best_move(table, 0.0)
    assert move is not None
    before = potential(table)
    table.move(move.session, move.to)
    assert before - potential(table) == pytest.approx(move.gain)


def test_a_difference_of_one_client_moves_nobody() -> None:
    assert best_move(table_with([3, 4]), 0.0) is None


def test_a_move_that_costs_more_than_it_gains_is_not_made() -> None:
    assert best_move(table_with([2, 4], move_cost=1.4), 0.0) is not None
    assert best_move(table_with([2, 4], move_cost=1.6), 0.0) is None


def test_of_sessions_with_different_loads_the_one_that_evens_out_best_moves() -> None:
    table = table_with([0, 0], capacity=100.0)
    for name, load in (("small", 5.0), ("half", 50.0), ("other", 45.0)):
        table.put(MemberSession(name, PRODUCER, table.members[1], load))
    move = best_move(table, 0.0)
    assert move is not None
    # A session of load l gains 2l - l²/50 here: 9.5, 50 and 49.5.
    assert move.session.id == "half"


@pytest.mark.parametrize("change", [{"due": 99.0}, {"moved_at": 80.0}])
def test_whoever_has_not_arrived_or_has_just_moved_stays(change: dict[str, object]) -> None:
    table = table_with([6, 0], cool_down_s=30.0)
    for session in table.members[1].sessions.values():
        for name, value in change.items():
            setattr(session, name, value)
    assert best_move(table, 100.0) is None


def test_nobody_moves_to_a_member_that_is_full_of_the_other_role() -> None:
    table = table_with([6, 0])
    table.put(MemberSession("heavy", CONSUMER, table.members[2], 9.5))
    table.put(MemberSession("heavier", CONSUMER, table.members[1], 1.0))
    move = best_move(table, 0.0)
    assert move is None or move.session.role is CONSUMER


def test_among_members_that_are_all_overloaded_moves_still_even_out() -> None:
    assert best_move(table_with([30, 20]), 0.0) is not None


def test_sessions_leave_a_marked_member_for_the_emptiest_ones() -> None:
    table = table_with([3, 3, 1])
    table.set_state(table.members[1], is_marked=True)
    targets = []
    for move in drains(table, 0.0, 10):
        table.move(move.session, move.to)
        targets.append(move.to.id)
    assert targets == [3, 3, 2]


@settings(max_examples=150, deadline=None)
@given(
    capacities=st.lists(st.floats(5, 50), min_size=1, max_size=6),
    sessions=st.lists(st.tuples(st.integers(0, 5), st.sampled_from(list(Role)), st.floats(0.01, 8)), max_size=60),
    marked=st.sets(st.integers(0, 5), max_size=3),
    epsilon=st.sampled_from([0.0, 0.5]),
    move_cost=st.sampled_from([0.0, 1.0]),
)
def test_while_loads_stay_every_move_lowers_the_potential_and_moves_end(
    capacities: list[float],
    sessions: list[tuple[int, Role, float]],
    marked: set[int],
    epsilon: float,
    move_cost: float,
) -> None:
    """I9: no more moves than the potential can pay for."""
    table = LoadTable(ClusterOptions(capacity=10.0, epsilon=epsilon, move_cost=move_cost, cool_down_s=0.0))
    members = [Member(number, number, capacity) for number, capacity in enumerate(capacities)]
    for member in members:
        table.add(member)
    for number, (place, role, load) in enumerate(sessions):
        table.put(MemberSession(str(number), role, members[place % len(members)], load))
    for number in marked:
        if number < len(members) - 1:
            table.set_state(members[number], is_marked=True)
    for move in drains(table, 0.0, 1000):
        assert move.session.member.is_marked
        table.move(move.session, move.to)
    assert all(not member.sessions for member in members if member.is_marked)

    last = potential(table)
    least_gain = (epsilon + move_cost) * table.options.potential_unit
    most = last / least_gain if least_gain else 10_000
    moved = 0
    while (best := best_move(table, 0.0)) is not None:
        table.move(best.session, best.to)
        moved += 1
        assert potential(table) <= last - least_gain + 1e-9
        assert potential(table) < last
        last = potential(table)
        assert moved <= most


def test_no_more_sessions_move_in_a_period_than_allowed() -> None:
    world = World(ClusterOptions(capacity=100.0, most_moves=3, period_s=5.0, dwell_s=1000.0)).with_nodes(1.0)
    for _ in range(30):
        world.join(PRODUCER)
    world.add_member(world.start_node())
    for _ in range(5):
        world.tick()
    assert world.count(Move) == 3
    world.tick()
    assert world.count(Move) == 6


def test_a_new_member_gets_clients_of_both_roles_by_moves() -> None:
    world = World(ClusterOptions(capacity=100.0, dwell_s=1000.0)).with_nodes(1.0)
    for _ in range(10):
        world.join(PRODUCER)
        world.join(CONSUMER)
    world.add_member(world.start_node())
    for _ in range(10):
        world.tick()
    shares = [(m["producers"], m["consumers"]) for m in snapshot_of(world.manager, ORDERS, world.now)["members"]]
    assert shares == [(5, 5), (5, 5)]


def test_session_that_did_not_move_has_a_cool_down() -> None:
    options = ClusterOptions(capacity=100.0, dwell_s=1000.0, period_s=1.0, cool_down_s=50.0, most_moves=100)
    world = World(options, moves_succeed=False).with_nodes(1.0)
    for _ in range(10):
        world.join(PRODUCER)
    world.add_member(world.start_node())
    for _ in range(40):
        world.tick()
    members = snapshot_of(world.manager, ORDERS, world.now)["members"]
    assert [member["producers"] for member in members] == [10, 0]
    assert 0 < world.count(Move) <= 10


# The ratio of producers and consumers


def hand_overs(world: World) -> list[str]:
    return [decision.to for _, decision in world.done if isinstance(decision, HandOver)]


def test_backlog_over_the_dwell_time_is_reported_once() -> None:
    world = World(ClusterOptions(dwell_s=10.0, surplus=100)).with_nodes(1.0)
    world.join(CONSUMER)
    (member,) = world.members.values()
    for _ in range(50):
        member.ready += 50
        world.report()
        world.tick()
    assert hand_overs(world) == ["admission"]
    reason = world.done[-1][1].reason
    assert "more is produced than consumed" in reason


def test_when_nobody_consumes_consumers_are_asked_for() -> None:
    world = World(ClusterOptions(dwell_s=10.0, surplus=100)).with_nodes(1.0)
    (member,) = world.members.values()
    for _ in range(15):
        member.ready += 50
        world.report()
        world.tick()
    assert hand_overs(world) == ["consumers"]


def test_a_backlog_that_comes_and_goes_is_nobodys_business() -> None:
    world = World(ClusterOptions(dwell_s=10.0, surplus=100)).with_nodes(1.0)
    world.join(CONSUMER)
    (member,) = world.members.values()
    for number in range(60):
        member.ready = 5000 if number % 7 < 3 else 0
        world.report()
        world.tick()
    assert hand_overs(world) == []


def test_when_all_consumers_wait_all_the_time_there_are_too_many() -> None:
    world = World(ClusterOptions(dwell_s=10.0)).with_nodes(1.0)
    world.join(CONSUMER)
    (member,) = world.members
    for _ in range(15):
        world.manager.report(member, world.now, ready=0, unacked=0, idle=1)
        world.tick()
    assert hand_overs(world) == ["none"]


# Ordinary queues


def test_queues_move_from_the_fullest_node_to_the_emptiest_until_they_are_even() -> None:
    queues = [QueueLoad(number, owner=1, load=10.0) for number in range(6)]
    moves = rebalance_owners(queues, [NodeLoad(1), NodeLoad(2), NodeLoad(3)])
    assert sorted(move.to_node for move in moves) == [2, 2, 3, 3]
    assert all(move.from_node == 1 and "of the average" in move.reason for move in moves)


def test_what_is_even_stays() -> None:
    queues = [QueueLoad(number, owner=1 + number % 2, load=5.0) for number in range(7)]
    assert rebalance_owners(queues, [NodeLoad(1), NodeLoad(2)]) == []


def test_queues_of_a_node_that_is_not_among_them_go_first() -> None:
    moves = rebalance_owners(
        [QueueLoad(1, owner=9, load=1.0), QueueLoad(2, owner=1, load=1.0)], [NodeLoad(1), NodeLoad(2)]
    )
    assert [(move.queue, move.to_node) for move in moves] == [(1, 2)]


def test_owners_cannot_be_found_without_nodes() -> None:
    with pytest.raises(ClusterError, match="start one"):
        rebalance_owners([], [])


@settings(max_examples=100, deadline=None)
@given(
    queues=st.lists(st.tuples(st.integers(1, 5), st.floats(0, 20)), max_size=40),
    capacities=st.lists(st.floats(0.5, 4), min_size=1, max_size=5),
)
def test_each_change_of_owners_lowers_the_sum_of_squares(
    queues: list[tuple[int, float]], capacities: list[float]
) -> None:
    loads = [QueueLoad(number, owner=owner, load=load) for number, (owner, load) in enumerate(queues)]
    nodes = [NodeLoad(number, capacity) for number, capacity in enumerate(capacities, 1)]
    owner = {queue.queue: queue.owner for queue in loads}

    def unevenness() -> float:
        return sum(
            sum(queue.counted for queue in loads if owner[queue.queue] == node.node) ** 2 / node.capacity
            for node in nodes
        )

    homeless = sum(queue.owner > len(nodes) for queue in loads)
    for number, move in enumerate(rebalance_owners(loads, nodes)):
        before = unevenness()
        owner[move.queue] = move.to_node
        assert number < homeless or unevenness() < before
    assert all(node <= len(nodes) for node in owner.values())
