"""Several nodes, their database, network and clients in a simulation: whatever the seed breaks, promises are kept.

Thousands of seeds: `python -m bench.simulation`.
"""

from __future__ import annotations

from collections import Counter

import pytest

from flyball.broker.cluster.decisions import Mark, Move, Record, Unmark
from flyball.broker.cluster.options import ClusterOptions, Role
from flyball.lab.history import Kind
from tests.broker.cluster.simulation.features import GROUPS, features_of
from tests.broker.cluster.simulation.judging import can_bear_its_load, wrong_moves
from tests.broker.cluster.simulation.world import DENSE, simulate

SEEDS = range(24)
DENSE_SEEDS = range(3)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_doubled_or_reordered_whatever_breaks(seed: int) -> None:
    outcome = simulate(seed)
    assert outcome.is_good, f"{outcome}\nlook closer with: python -m bench.simulation --seed {seed} --verbose"


@pytest.mark.parametrize("seed", DENSE_SEEDS)
def test_nothing_is_lost_while_more_than_one_fault_happens_every_second(seed: int) -> None:
    outcome = simulate(seed, DENSE)
    assert outcome.inflicted > 120
    look = f"python -m bench.simulation --seed {seed} --dense --verbose"
    assert outcome.is_good, f"{outcome}\nlook closer with: {look}"


def test_a_few_seeds_in_a_row_have_queues_of_every_feature() -> None:
    queues = {feature.queue for seed in range(len(GROUPS)) for feature in features_of(seed, 1)}
    assert queues == {feature.queue for features in GROUPS.values() for feature in features}


def test_the_same_seed_does_the_same_again_to_the_byte() -> None:
    first, second = simulate(7), simulate(7)
    assert first.operations == second.operations
    assert (first.digest, first.events) == (second.digest, second.events)
    assert simulate(8).digest != first.digest


def test_members_are_seen_to_keep_the_order_and_to_hand_messages_over() -> None:
    outcome = simulate(3)
    counts = Counter(operation.kind for operation in outcome.operations)
    in_order = [
        operation
        for operation in outcome.operations
        if operation.kind is Kind.DELIVERED and "member" in operation.queue and operation.is_redelivered is False
    ]
    assert counts[Kind.HANDED_OVER] > 10
    assert len(in_order) > counts[Kind.DELIVERED] / 10


def moved(at_s: float, to_member: int, reason: str = "it is too full") -> Record:
    move = Move(
        cluster="c", session="s", role=Role.PRODUCER, from_member=9, to_member=to_member, to_node=1, reason=reason
    )
    return Record(at_s, move)


def test_a_move_to_a_marked_member_or_within_the_cool_down_is_found() -> None:
    options = ClusterOptions(cool_down_s=5.0)
    marked = Record(1.0, Mark(cluster="c", member=2, node=1, reason=""))
    unmarked = Record(3.0, Unmark(cluster="c", member=2, node=1, reason=""))
    assert list(wrong_moves([marked, unmarked, moved(4.0, 2), moved(10.0, 3)], options, 0.0)) == []
    assert list(wrong_moves([moved(1.0, 2), moved(2.0, 3)], options, calm_s=3.0)) == []
    [to_marked] = wrong_moves([marked, moved(2.0, 2)], options, 0.0)
    [too_early] = wrong_moves([moved(1.0, 2), moved(2.0, 3)], options, 0.0)
    assert (to_marked[:2], too_early[:2]) == ("I6", "I9")


def test_a_load_that_nobody_can_bear_is_found_unless_something_is_done_about_it() -> None:
    options = ClusterOptions(max_members=2)
    members = [{"is_leaving": False}]
    overloaded = {"usable_load": 1.2, "held_for_s": None, "retry_in_s": 0.0, "coming": 0, "members": members}
    assert not can_bear_its_load(overloaded, options, free=[7])
    assert can_bear_its_load(overloaded, options, free=[])
    for excuse in ({"usable_load": 0.9}, {"held_for_s": 3.0}, {"coming": 1}, {"members": members * 2}):
        assert can_bear_its_load({**overloaded, **excuse}, options, free=[7])
