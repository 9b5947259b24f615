"""Where new clients and queues without an owner go."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import hypothesis.strategies as st
import numpy as np
import pytest
from bench.placement import least_potential, simulate
from hypothesis import given, settings

from flyball.broker.cluster.load_table import LoadTable, Member, MemberSession
from flyball.broker.cluster.options import ClusterOptions, Role
from flyball.broker.cluster.placement import NodeLoad, QueueLoad, assign, elect
from flyball.errors import ClusterError
from tests.broker.cluster.snapshots import potential

PRODUCER, CONSUMER = Role.PRODUCER, Role.CONSUMER


def table_of(*capacities: float, **options: object) -> LoadTable:
    table = LoadTable(ClusterOptions.from_dict(options))
    for number, capacity in enumerate(capacities, 1):
        table.add(Member(number, number, capacity))
    return table


def place(table: LoadTable, role: Role, count: int = 1) -> list[int]:
    """Let `count` clients join, and return the members they were sent to."""
    chosen = []
    for _ in range(count):
        member = elect(table, role)
        assert member is not None
        name = f"{role}{table.count(role)}"
        table.put(MemberSession(name, role, member, table.options.weight(role)))
        chosen.append(member.id)
    return chosen


def test_clients_of_each_role_are_shared_evenly() -> None:
    table = table_of(100, 100, 100)
    place(table, PRODUCER, 9)
    place(table, CONSUMER, 6)
    assert table.counts[:, :3].tolist() == [[3, 3, 3], [2, 2, 2]]
    assert potential(table) == 0


def test_a_member_of_twice_the_capacity_gets_twice_the_clients() -> None:
    table = table_of(100, 200)
    place(table, PRODUCER, 30)
    assert table.counts[0, :2].tolist() == [10, 20]


def test_between_equals_the_one_that_bears_less_of_the_other_role_is_elected() -> None:
    table = table_of(100, 100)
    place(table, CONSUMER)
    assert place(table, PRODUCER) == [2]


def test_member_with_room_is_preferred_to_a_full_one_without_the_role() -> None:
    table = table_of(10, 10, consumer_weight=5)
    table.put(MemberSession("a", CONSUMER, table.members[1], 10.0))
    table.put(MemberSession("b", PRODUCER, table.members[2], 1.0))
    assert place(table, PRODUCER) == [2]


def test_the_plain_rule_of_the_seed_looks_at_the_role_only() -> None:
    table = table_of(10, 10, consumer_weight=5, policy="plain")
    table.put(MemberSession("a", CONSUMER, table.members[1], 10.0))
    table.put(MemberSession("b", PRODUCER, table.members[2], 1.0))
    assert place(table, PRODUCER) == [1]


def test_where_nobody_has_room_the_potential_decides() -> None:
    table = table_of(1, 1)
    assert sorted(place(table, PRODUCER, 6)) == [1, 1, 1, 2, 2, 2]


def test_nobody_is_sent_to_a_marked_member_or_to_one_whose_node_is_gone() -> None:
    table = table_of(10, 10, 10)
    table.set_state(table.members[1], is_marked=True)
    table.set_state(table.members[2], is_served=False)
    assert set(place(table, PRODUCER, 20)) == {3}
    table.set_state(table.members[3], is_marked=True)
    assert elect(table, PRODUCER) is None


def test_unreachable_node_is_avoided_unless_it_is_the_only_one() -> None:
    table = table_of(10, 10)
    place(table, PRODUCER)
    member = elect(table, PRODUCER, avoid=2)
    assert member is not None
    assert member.node == 1
    table.remove(table.members[1])
    assert elect(table, PRODUCER, avoid=2) is table.members[2]


def test_loads_count_and_not_heads() -> None:
    table = table_of(100, 100)
    table.put(MemberSession("busy", PRODUCER, table.members[1], 30.0))
    assert place(table, PRODUCER, 5) == [2] * 5


@settings(max_examples=200, deadline=None)
@given(
    capacities=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    policy=st.sampled_from(["potential", "plain"]),
    clients=st.lists(st.sampled_from(list(Role)), max_size=120),
)
def test_after_joins_only_shares_differ_by_at_most_one_client_of_the_smallest(
    capacities: list[int], policy: str, clients: list[Role]
) -> None:
    """I11, as long as there is room; by the rule of the Selfware report if all are equal."""
    if policy == "plain":
        capacities = [capacities[0]] * len(capacities)
    table = table_of(*(float(capacity) for capacity in capacities), policy=policy, theta_up=1000, theta_hold=1000)
    for role in clients:
        place(table, role)
    for row in (0, 1):
        shares = table.loads[row, : len(capacities)] / np.array(capacities)
        assert shares.max() - shares.min() <= 1 / min(capacities) + 1e-9


@settings(max_examples=100, deadline=None)
@given(capacities=st.lists(st.integers(1, 40), min_size=1, max_size=6), clients=st.integers(0, 60))
def test_joins_only_end_at_the_least_potential_there_is(capacities: list[int], clients: int) -> None:
    table = table_of(*(float(capacity) for capacity in capacities), theta_up=1000, theta_hold=1000)
    place(table, PRODUCER, clients)
    least = least_potential(clients, 1.0, np.array(capacities, dtype=float))
    assert potential(table) == pytest.approx(least, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(
    loads=st.lists(st.tuples(st.floats(0, 50), st.floats(0, 50), st.floats(0.5, 20)), min_size=1, max_size=8),
    role=st.sampled_from(list(Role)),
)
def test_whoever_is_elected_raises_the_potential_least_of_those_with_room(
    loads: list[tuple[float, float, float]], role: Role
) -> None:
    table = table_of(*(capacity for _, _, capacity in loads))
    for member, (producers, consumers, _) in zip(table.members.values(), loads, strict=True):
        table.put(MemberSession(f"p{member.id}", PRODUCER, member, producers))
        table.put(MemberSession(f"c{member.id}", CONSUMER, member, consumers))

    def raised(member: Member) -> float:
        session = MemberSession("new", role, member, 1.0)
        before = potential(table)
        table.put(session)
        after = potential(table)
        table.drop(session)
        return after - before

    elected = elect(table, role)
    assert elected is not None
    with_room = [member for member in table.members.values() if table.load_of(member) + 1 <= member.capacity]
    least = min(raised(member) for member in with_room or table.members.values())
    assert raised(elected) == pytest.approx(least, abs=1e-4)


def test_an_election_among_a_thousand_takes_microseconds() -> None:
    table = table_of(*([100.0] * 1000))
    place(table, PRODUCER, 2000)
    # What it takes of the processor, which does not depend on what else the machine has to do.
    begun = time.thread_time()
    for _ in range(200):
        elect(table, PRODUCER)
    # Some five: the bound leaves room for a machine that is slow.
    assert (time.thread_time() - begun) / 200 < 500e-6


def test_sums_do_not_drift_however_often_somebody_comes_and_goes() -> None:
    table = table_of(10, 10, producer_weight=0.1)
    for number in range(2000):
        session = MemberSession(str(number), PRODUCER, table.members[1 + number % 2], 0.1 + number * 1e-7)
        table.put(session)
        table.drop(session)
    assert table.load == pytest.approx(0.0, abs=1e-9)
    assert table.loads.sum() == 0.0


def test_a_place_that_became_free_is_used_again() -> None:
    table = table_of(*([10.0] * 9))
    table.put(MemberSession("a", PRODUCER, table.members[5], 1.0))
    table.remove(table.members[5])
    table.add(Member(77, 77, 10.0))
    assert table.load_of(table.members[77]) == 0.0
    assert table.usable_capacity == 90.0


# Ordinary queues


def test_queues_of_a_dead_node_are_spread_by_load_and_capacity() -> None:
    queues = [QueueLoad(number, load=10.0) for number in range(6)]
    owners = assign(queues, [NodeLoad(1), NodeLoad(2, capacity=2.0)])
    assert sorted(owners.values()) == [1, 1, 2, 2, 2, 2]
    assert set(assign(queues[:1], [NodeLoad(1, load=50.0), NodeLoad(2)]).values()) == {2}


def test_idle_queues_are_spread_as_well() -> None:
    owners = assign([QueueLoad(number) for number in range(10)], [NodeLoad(1), NodeLoad(2)])
    assert sorted(owners.values()) == [1] * 5 + [2] * 5


def test_without_a_node_there_is_nobody_to_serve_queues() -> None:
    with pytest.raises(ClusterError, match="start one"):
        assign([QueueLoad(1)], [])
    assert assign([], []) == {}


@settings(max_examples=60, deadline=None)
@given(loads=st.lists(st.floats(0.1, 10), min_size=1, max_size=7), nodes=st.integers(1, 3))
def test_no_node_is_more_than_a_third_fuller_than_need_be(loads: list[float], nodes: int) -> None:
    def fullest(owners: Sequence[int]) -> float:
        return max(
            sum(load for load, owner in zip(loads, owners, strict=True) if owner == node) for node in range(nodes)
        )

    queues = [QueueLoad(number, load=load) for number, load in enumerate(loads)]
    owners = assign(queues, [NodeLoad(node) for node in range(nodes)])
    best = min(fullest(every) for every in itertools.product(range(nodes), repeat=len(loads)))
    assert fullest([owners[queue.queue] for queue in queues]) <= 4 / 3 * best + 1e-9


def test_a_large_domain_in_small() -> None:
    result = simulate(nodes=30, clients=3000)
    joined, churned, halved, settled = result.phases
    assert joined.potential == pytest.approx(joined.potential_at_best)
    assert joined.fullest - joined.emptiest < 0.1
    assert churned.moves > 0
    assert settled.potential < halved.potential
    assert settled.fullest - settled.emptiest < 0.1
    assert result.to_dict()["nodes"] == 30
