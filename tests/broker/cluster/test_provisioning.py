"""When a clustered queue grows and shrinks, and how often."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from flyball.broker.cluster.decisions import (
    AddMember,
    Mark,
    MemberPlacement,
    Move,
    Provision,
    Release,
    RemoveMember,
    TakeOver,
    Unmark,
    Wait,
)
from flyball.broker.cluster.options import ClusterOptions, Role
from flyball.errors import ClusterError
from tests.broker.cluster.snapshots import snapshot_of
from tests.broker.cluster.world import ORDERS, World

PRODUCER, CONSUMER = Role.PRODUCER, Role.CONSUMER


def small(**options: object) -> ClusterOptions:
    return ClusterOptions.from_dict({"capacity": 10, "provisioner": "local", "most_moves": 0, **options})


def joined(world: World, count: int, role: Role = PRODUCER) -> list[str]:
    clients = [world.join(role) for _ in range(count)]
    return [client.id for client in clients if client is not None]


def rest(world: World, passed_s: float) -> None:
    for _ in range(math.ceil(passed_s)):
        world.report()
        world.tick()


# Growing


def test_one_client_beyond_the_capacity_adds_a_member() -> None:
    world = World(small()).with_nodes(1.0)
    joined(world, 10)
    assert world.count(Provision) == 0
    joined(world, 1)
    assert world.count(Provision) == 1
    assert len(world.members) == 2


def test_a_node_that_is_there_is_used_before_one_is_started() -> None:
    world = World(small()).with_nodes(1.0)
    free = world.start_node()
    joined(world, 11)
    assert world.count(Provision) == 0
    assert sorted(member.node for member in world.members.values()) == [1, free]


def test_without_a_provisioner_clients_are_placed_although_there_is_no_room() -> None:
    world = World(small(provisioner="")).with_nodes(1.0)
    assert len(joined(world, 30)) == 30
    assert len(world.members) == 1


def test_what_is_on_its_way_counts_so_that_nothing_is_started_twice() -> None:
    world = World(small(), start_s=5.0).with_nodes(1.0)
    joined(world, 20)
    assert world.count(Provision) == 1
    joined(world, 1)
    assert world.count(Provision) == 2


def test_a_client_may_wait_for_a_node_if_it_is_told_to() -> None:
    world = World(small(wait_s=3.0), start_s=5.0).with_nodes(1.0)
    joined(world, 10)
    assert isinstance(world.manager.join(ORDERS, PRODUCER, world.now), Wait)
    assert isinstance(world.manager.join(ORDERS, PRODUCER, world.now, waited_s=3.0), MemberPlacement)


def test_no_more_members_are_made_than_allowed() -> None:
    world = World(small(max_members=2)).with_nodes(1.0)
    joined(world, 100)
    assert len(world.members) == 2


def test_a_cluster_begins_with_its_least_number_of_members() -> None:
    world = World(small(min_members=3))
    assert isinstance(world.manager.join(ORDERS, PRODUCER, world.now), Wait)
    world.tick()
    assert len(world.members) == 3


def test_a_provision_that_fails_is_tried_again_after_a_while() -> None:
    world = World(small(), start_s=1000.0).with_nodes(1.0)
    joined(world, 11)
    request = next(decision for _, decision in world.done if isinstance(decision, Provision)).request
    world.manager.provision_failed(request, world.now, "no machine left")
    world.tick(5.0)
    assert world.count(Provision) == 1
    world.tick(6.0)
    assert world.count(Provision) == 2
    assert any("no machine left" in record.decision.reason for record in world.manager.history)


def test_a_provision_that_nobody_hears_of_again_is_given_up() -> None:
    world = World(small(start_s=20.0), start_s=1000.0).with_nodes(1.0)
    joined(world, 11)
    world.tick(21.0)
    world.tick(11.0)
    assert world.count(Provision) == 2


def test_fullest_marked_member_is_unmarked_before_growing() -> None:
    world = World(small(dwell_s=0.0)).with_nodes(1.0, 1.0, 1.0)
    clients = joined(world, 12)
    world.tick()
    assert world.count(Mark) == 1
    marked = [member for member in world.members.values() if member.is_marked]
    assert len(marked) == 1
    joined(world, 9)
    assert world.count(Unmark) == 1
    assert world.count(Provision) == 0
    assert all(client in world.clients for client in clients)


def test_of_two_marked_members_the_fuller_one_is_taken_back() -> None:
    world = World(small(dwell_s=30.0, theta_down=0.9)).with_nodes(1.0, 1.0, 1.0)
    joined(world, 8)
    for _ in range(70):
        world.tick()
    assert world.count(Mark) == 2
    loads = {
        member["member"]: member["load"]
        for member in snapshot_of(world.manager, ORDERS, world.now)["members"]
        if member["is_marked"]
    }
    assert len(loads) == 2
    joined(world, 3)
    taken_back = [decision.member for _, decision in world.done if isinstance(decision, Unmark)]
    assert loads[taken_back[0]] == max(loads.values())


# Shrinking


def test_a_member_is_marked_only_when_the_load_has_been_low_for_the_dwell_time() -> None:
    world = World(small(dwell_s=30.0)).with_nodes(1.0, 1.0)
    joined(world, 4)
    rest(world, 30)
    assert world.count(Mark) == 0
    rest(world, 2)
    assert world.count(Mark) == 1


def test_a_moment_of_load_begins_the_dwell_time_anew() -> None:
    world = World(small(dwell_s=30.0)).with_nodes(1.0, 1.0)
    rest(world, 20)
    for client in joined(world, 12):
        world.leave(client)
    rest(world, 25)
    assert world.count(Mark) == 0


def test_a_member_is_removed_only_without_clients_and_messages() -> None:
    world = World(small(dwell_s=5.0)).with_nodes(1.0, 1.0)
    clients = joined(world, 2)
    rest(world, 12)
    marked = next(member for member in world.members.values() if member.is_marked)
    marked.ready = 1
    for client in clients:
        world.leave(client)
    rest(world, 20)
    assert world.count(RemoveMember) == 0
    marked.ready, marked.unacked = 0, 1
    rest(world, 20)
    assert world.count(RemoveMember) == 0
    marked.unacked = 0
    rest(world, 2)
    assert world.count(RemoveMember) == 1


def test_a_member_that_never_had_a_client_is_removed_too() -> None:
    world = World(small(dwell_s=5.0)).with_nodes(1.0, 1.0)
    rest(world, 20)
    assert len(world.members) == 1


def test_the_last_member_stays_whatever_happens() -> None:
    world = World(small(dwell_s=0.0)).with_nodes(1.0)
    rest(world, 100)
    assert len(world.members) == 1
    assert world.count(Mark) == 0


def test_members_that_a_person_asked_for_stay() -> None:
    world = World(small(dwell_s=0.0))
    for _ in range(2):
        world.add_member(world.start_node(), is_fixed=True)
    rest(world, 100)
    assert len(world.members) == 2


def test_a_member_with_all_consumers_is_not_taken_from_the_producers() -> None:
    world = World(small(dwell_s=0.0)).with_nodes(1.0, 1.0)
    world.join(PRODUCER)
    world.join(CONSUMER)
    homes = {client.member for client in world.clients.values()}
    assert len(homes) == 2
    rest(world, 20)
    assert world.count(Mark) == 0


def test_sessions_of_a_marked_member_move_away_and_then_it_is_removed() -> None:
    world = World(small(dwell_s=5.0, most_moves=3, cool_down_s=1.0)).with_nodes(1.0, 1.0)
    joined(world, 3)
    joined(world, 3, CONSUMER)
    rest(world, 30)
    assert len(world.members) == 1
    assert len(world.clients) == 6
    assert world.count(Move) == 3


def test_only_a_provisioned_node_is_released_with_its_member() -> None:
    world = World(small(dwell_s=5.0)).with_nodes(1.0)
    for client in joined(world, 11):
        world.leave(client)
    rest(world, 30)
    assert world.count(Release) == 1
    assert list(world.nodes) == [1]


# By hand, and repair


def test_whoever_wants_the_only_member_removed_gets_another_one_first() -> None:
    world = World(small()).with_nodes(1.0)
    clients = joined(world, 3)
    member = next(iter(world.members))
    world.manager.mark(ORDERS, member, world.now)
    world.execute()
    assert not world.members[member].is_marked
    assert len(world.members) == 2
    rest(world, 1)
    assert world.members[member].is_marked
    for client in clients:
        world.leave(client)
    rest(world, 2)
    assert member not in world.members


def test_a_node_that_is_to_stop_loses_its_member_and_gets_none_again() -> None:
    world = World(small(provisioner="")).with_nodes(1.0, 1.0)
    world.manager.node_leaves(1, world.now)
    rest(world, 3)
    assert [member.node for member in world.members.values()] == [2]
    joined(world, 30)
    rest(world, 3)
    assert [member.node for member in world.members.values()] == [2]


def test_to_mark_a_member_that_is_not_there_is_refused() -> None:
    with pytest.raises(ClusterError, match="has no member 7"):
        World(small()).manager.mark(ORDERS, 7, 0.0)


def test_a_provisioned_node_that_dies_is_replaced_even_if_the_load_is_low() -> None:
    world = World(small(dwell_s=1000.0)).with_nodes(1.0)
    for client in joined(world, 11):
        world.leave(client)
    world.crash(2)
    assert world.count(Provision) == 2
    assert len(world.members) == 2


def test_a_node_that_nobody_provisioned_is_not_replaced() -> None:
    world = World(small()).with_nodes(1.0, 1.0)
    world.crash(2)
    assert world.count(Provision) == 0


def test_messages_of_a_dead_member_move_and_its_clients_may_return() -> None:
    world = World(small()).with_nodes(1.0, 1.0)
    joined(world, 6)
    dead = next(member for member in world.members.values() if member.node == 2)
    dead.ready, dead.unacked = 3, 2
    world.crash(2)
    (survivor,) = world.members.values()
    assert survivor.ready == 5
    assert len(world.clients) == 3
    assert snapshot_of(world.manager, ORDERS, world.now)["producers"] == 3


def test_the_last_member_lives_on_at_another_node() -> None:
    world = World(small()).with_nodes(1.0)
    other = world.start_node()
    world.crash(1)
    assert [member.node for member in world.members.values()] == [other]
    assert joined(world, 1)


def test_what_a_dead_node_had_waits_for_a_node() -> None:
    world = World(small(provisioner="")).with_nodes(1.0)
    world.crash(1)
    assert world.count(TakeOver) == 0
    node = world.start_node()
    assert world.count(TakeOver) == 1
    assert [member.node for member in world.members.values()] == [node]


def test_a_session_that_is_connected_elsewhere_survives_its_member() -> None:
    world = World(small()).with_nodes(1.0, 1.0)
    client = world.join(CONSUMER, entry=2)
    assert client is not None
    assert world.members[client.member].node == 1
    world.crash(1)
    assert client.id in world.clients
    assert world.members[client.member].node == 2
    assert snapshot_of(world.manager, ORDERS, world.now)["consumers"] == 1


# How often


@settings(max_examples=40, deadline=None)
@given(
    capacity=st.integers(1, 12),
    weights=st.tuples(st.sampled_from([0.5, 1.0, 3.0]), st.sampled_from([0.5, 1.0, 3.0])),
    others=st.integers(0, 40),
    dwell_s=st.sampled_from([0.0, 4.0]),
)
def test_one_client_coming_and_going_grows_the_queue_only_once(
    capacity: int, weights: tuple[float, float], others: int, dwell_s: float
) -> None:
    """I10: there is always more between the two thresholds than any one session counts."""
    options = small(
        capacity=capacity, producer_weight=weights[0], consumer_weight=weights[1], dwell_s=dwell_s, max_members=200
    )
    world = World(options).with_nodes(1.0)
    for number in range(others):
        world.join(PRODUCER if number % 2 else CONSUMER)
    before = 0
    for number in range(6):
        if number == 1:
            before = world.count(AddMember)
        client = world.join(PRODUCER)
        assert client is not None
        rest(world, 2)
        world.leave(client.id)
        rest(world, 3 * dwell_s + 3)
    assert world.count(AddMember) == before


class LiteralSeed:
    """Algorithms 1 and 2 as they are printed, with queues of capacity 10."""

    def __init__(self) -> None:
        self.queues: list[list[int]] = [[0, 0]]
        self.joins = 0
        self.joins_without_choice = 0

    def join(self) -> list[int]:
        self.joins += 1
        if sum(count for count, _ in self.queues) >= 10 * len(self.queues):
            self.queues.append([0, 0])
        unmarked = [queue for queue in self.queues if not queue[1]]
        self.joins_without_choice += not unmarked
        queue = min(unmarked or self.queues, key=lambda queue: queue[0])
        queue[0] += 1
        return queue

    def leave(self, queue: list[int]) -> None:
        queue[0] -= 1
        if queue[1] and queue[0] == 0 and len(self.queues) > 1:
            self.queues.remove(queue)
        clients, capacity = sum(count for count, _ in self.queues), 10 * len(self.queues)
        if clients < capacity and capacity - clients >= 10:
            for other in self.queues:
                if not other[1]:
                    other[1] = 1
                    return


def walk(target: int, events: int) -> Iterator[tuple[bool, random.Random]]:
    """Yield whether a client joins, so that about `target` clients are there."""
    chance = random.Random(1)
    clients = 0
    for _ in range(events):
        is_join = clients == 0 or chance.random() < 0.5 - 0.02 * (clients - target)
        clients += 1 if is_join else -1
        yield is_join, chance


@pytest.mark.parametrize("target", [20, 25, 30])
def test_the_algorithms_as_printed_end_with_everything_marked(target: int) -> None:
    literal = LiteralSeed()
    held: list[list[int]] = []
    for is_join, chance in walk(target, 40_000):
        if is_join:
            held.append(literal.join())
        else:
            literal.leave(held.pop(chance.randrange(len(held))))
    assert literal.joins - literal.joins_without_choice < 100 < 19_900 < literal.joins_without_choice


@pytest.mark.parametrize(("dwell_s", "most_additions", "most_marks"), [(0.0, 3.5, 8.0), (30.0, 1.0, 1.5)])
@pytest.mark.parametrize("target", [20, 25, 30])
def test_ours_always_has_an_unmarked_member_and_adds_seldom(
    target: int, dwell_s: float, most_additions: float, most_marks: float
) -> None:
    """An event a second, and no client can be moved, as in the Selfware report."""
    world = World(small(dwell_s=dwell_s)).with_nodes(1.0)
    held: list[str] = []
    events = 40_000
    for is_join, chance in walk(target, events):
        if is_join:
            held += joined(world, 1, chance.choice([PRODUCER, CONSUMER]))
            assert any(not member.is_marked for member in world.members.values())
        else:
            world.leave(held.pop(chance.randrange(len(held))))
        for member in list(world.members):
            world.manager.report(member, world.now, ready=0, unacked=0)
        world.tick()
    assert len(held) == len(world.clients)
    assert 1000 * world.count(Provision) / events < most_additions
    assert 1000 * world.count(Mark) / events < most_marks


def bursty(hours: float, period_s: float) -> Iterator[int]:
    """Yield how many clients there are: day and night, and bursts of up to three fifths that come when they like."""
    chance = random.Random(7)
    burst_until, height, next_burst = 0.0, 0.0, 300.0
    for number in range(int(hours * 3600 / period_s)):
        now = number * period_s
        if now >= next_burst:
            height = chance.uniform(0.3, 0.6)
            burst_until = now + chance.expovariate(1 / 90)
            next_burst = now + chance.expovariate(1 / 200)
        calm = 60 - 40 * math.cos(2 * math.pi * now / 86_400) + chance.gauss(0, 1.5)
        yield max(1, round(calm * (1 + (height if now < burst_until else 0))))


@pytest.mark.parametrize(("hours", "theta_hold", "has_reversals"), [(24, 1.25, False), (8, 1.0, True)])
def test_a_day_of_bursts_brings_no_reversal_within_the_dwell_time(
    hours: int, theta_hold: float, has_reversals: bool
) -> None:
    """It would without the time that an addition waits after a removal."""
    period_s, dwell_s = 3.0, 30.0
    options = small(dwell_s=dwell_s, theta_hold=theta_hold, max_members=40, most_moves=10, cool_down_s=5.0)
    world = World(options).with_nodes(1.0)
    held: list[str] = []
    number = 0
    for clients in bursty(hours, period_s):
        while len(held) < clients:
            number += 1
            held += joined(world, 1, PRODUCER if number % 3 == 0 else CONSUMER)
        while len(held) > clients:
            world.leave(held.pop(number * 7919 % len(held)))
        for member in list(world.members):
            world.manager.report(member, world.now, ready=0, unacked=0)
        world.tick(period_s)
    additions, removals = world.times(Provision), world.times(RemoveMember)
    assert len(additions) > 2 * hours
    assert len(removals) > 2 * hours
    changes = sorted([(at, 1) for at in additions] + [(at, -1) for at in removals])
    reversals = [
        (first, second)
        for first, second in itertools.pairwise(changes)
        if first[1] != second[1] and second[0] - first[0] < dwell_s
    ]
    assert bool(reversals) == has_reversals
