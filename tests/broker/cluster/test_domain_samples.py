"""The loops of the manager leave samples in the trace."""

from __future__ import annotations

import json

import pytest

from flyball.broker.cluster.domain_samples import MAX_GAP, DomainSamples, potential
from flyball.broker.cluster.options import ClusterOptions, Role
from flyball.control.loop import Sample
from tests.broker.cluster.world import ORDERS, World


class Recorded:
    """A domain of two members whose samples are noted."""

    def __init__(self, options: ClusterOptions) -> None:
        self.world = World(options).with_nodes(1.0, 1.0)
        self.samples: list[Sample] = []
        self._writer = DomainSamples(self.samples.append)

    def second(self) -> None:
        self.world.tick()
        self._writer.note("domain.orders", self.world.manager.clusters[ORDERS], self.world.now)
        self._writer.end_sample()

    def of(self, loop: str) -> list[Sample]:
        return [sample for sample in self.samples if sample.loop == loop]


def test_provisioning_records_load_members_and_thresholds() -> None:
    recorded = Recorded(ClusterOptions(capacity=4.0, max_members=5, min_members=2))
    recorded.second()
    recorded.world.join(Role.PRODUCER)
    recorded.world.join(Role.CONSUMER)
    recorded.second()
    first, second = recorded.of("domain.orders")
    assert (first.measurement, first.action) == (0.0, 2.0)
    assert second.measurement == pytest.approx(0.25)
    assert (first.setpoint, first.mode, second.sequence - first.sequence) == (1.0, "active", 1)
    assert (first.tuning.lowest, first.tuning.highest) == (2.0, 5.0)
    assert json.loads(first.tuning.gains)["theta_down"] == 0.75


def test_samples_without_news_are_left_out_for_a_minute() -> None:
    recorded = Recorded(ClusterOptions(min_members=2))
    for _ in range(2 * MAX_GAP + 1):
        recorded.second()
    assert [sample.sequence for sample in recorded.of("domain.orders")] == [0, MAX_GAP, 2 * MAX_GAP]


def test_rebalancing_records_imbalance_and_moves() -> None:
    recorded = Recorded(ClusterOptions(min_members=2, epsilon=0.1, move_cost=0.1, cool_down_s=0.0, period_s=1.0))
    for _ in range(8):
        recorded.world.join(Role.PRODUCER)
    recorded.second()
    balanced = recorded.of("domain.orders.balance")[-1]
    assert balanced.measurement == pytest.approx(0.0)
    table = recorded.world.manager.clusters[ORDERS].table
    member = next(iter(table.members.values()))
    for session in list(member.sessions.values()):
        recorded.world.leave(session.id)
    assert potential(table) > 0
    recorded.second()
    recorded.second()
    moves = sum(sample.action for sample in recorded.of("domain.orders.balance"))
    assert moves == table.moves > 0


def test_without_members_there_is_nothing_to_record() -> None:
    samples: list[Sample] = []
    world = World(ClusterOptions())
    DomainSamples(samples.append).note("domain.orders", world.manager.clusters[ORDERS], 0.0)
    assert samples == []
