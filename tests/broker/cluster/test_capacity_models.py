"""Capacity models of the registry and the options of clustered queues."""

from __future__ import annotations

import gc
import math
from typing import Any

import pytest

from flyball.broker.cluster.capacity_models import CapacityModels
from flyball.broker.cluster.manager import Manager
from flyball.broker.cluster.names import cluster_key
from flyball.broker.cluster.options import ClusterOptions, Role
from flyball.broker.cluster.provisioning_loops import ProvisioningLoops
from flyball.broker.core.loops import Loops
from flyball.broker.models.history import Cause, History, State, Version
from flyball.broker.models.scopes import DOMAIN, Scope
from tests.broker.models import documents

ORDERS = cluster_key("/", "orders")
QUEUE = Scope.queue("/", "orders")
CAUSE = Cause(1.0, "guest")
DECLARED = ClusterOptions(capacity=50.0, dwell_s=7.0)


class Registry:
    """The part of the registry that consumers read."""

    def __init__(self) -> None:
        self.histories: dict[Scope, History] = {}

    def publish(self, scope: Scope, producer: float, state: State = State.IN_FORCE) -> None:
        before = self.histories.get(scope, History("capacity", str(scope)))
        draft = documents.draft(document=documents.capacity(producer))
        self.histories[scope] = before.publish(draft, state, CAUSE)[0]

    def in_force(self, kind: str, *scopes: Scope) -> Version | None:
        return self._first(State.IN_FORCE, scopes)

    def in_shadow(self, kind: str, *scopes: Scope) -> Version | None:
        return self._first(State.SHADOW, scopes)

    def _first(self, state: State, scopes: tuple[Scope, ...]) -> Version | None:
        versions = (self.histories[scope].in_state(state) for scope in scopes if scope in self.histories)
        return next((version for version in versions if version is not None), None)


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def models(registry: Registry) -> CapacityModels:
    # The registry is read by two methods only.
    found: Any = registry
    return CapacityModels(found)


def numbers(options: ClusterOptions) -> tuple[float, float, float]:
    return options.capacity, options.producer_weight, options.consumer_weight


def test_model_of_the_queue_counts_more_than_its_definition(registry: Registry, models: CapacityModels) -> None:
    stored = {"capacity": 50.0, "dwell_s": 7.0}
    assert models.in_force(ORDERS, DECLARED, stored) is DECLARED
    registry.publish(QUEUE, 0.1)
    found = models.in_force(ORDERS, DECLARED, stored)
    assert (numbers(found), found.dwell_s) == ((1.0, 0.1, 0.02), 7.0)
    assert models.in_force(ORDERS, DECLARED, stored) is found
    registry.publish(QUEUE, 0.2)
    assert numbers(models.in_force(ORDERS, DECLARED, stored)) == (1.0, 0.2, 0.02)
    registry.histories[QUEUE] = registry.histories[QUEUE].roll_back(CAUSE).roll_back(CAUSE)
    assert models.in_force(ORDERS, DECLARED, stored) is DECLARED


def test_model_of_the_domain_fills_in_what_is_not_declared(registry: Registry, models: CapacityModels) -> None:
    registry.publish(DOMAIN, 0.1)
    assert numbers(models.in_force(ORDERS, ClusterOptions(), {})) == (1.0, 0.1, 0.02)
    assert models.in_force(ORDERS, DECLARED, {"capacity": 50.0}) is DECLARED
    registry.publish(QUEUE, 0.3)
    assert numbers(models.in_force(ORDERS, ClusterOptions(), {})) == (1.0, 0.3, 0.02)


def test_measured_loads_have_no_model(registry: Registry, models: CapacityModels) -> None:
    registry.publish(QUEUE, 0.1)
    measured = ClusterOptions(loads="measured")
    assert models.in_force(ORDERS, measured, {"loads": "measured"}) is measured


def test_document_of_a_deleted_model_is_not_kept(registry: Registry, models: CapacityModels) -> None:
    registry.publish(QUEUE, 0.1)
    assert models.in_force(ORDERS, DECLARED, {}) is not DECLARED
    document = registry.histories.pop(QUEUE).versions[0].document
    assert [one for one in gc.get_objects() if isinstance(one, Version) and one.document is document] == []


def test_model_in_shadow_is_recorded_and_changes_nothing(registry: Registry, models: CapacityModels) -> None:
    registry.publish(QUEUE, 0.1)
    registry.publish(QUEUE, 0.4, State.SHADOW)
    options = models.in_force(ORDERS, DECLARED, {})
    trial = models.in_shadow(ORDERS, DECLARED, {})
    assert trial is not None
    assert (options.producer_weight, trial.version, trial.options.producer_weight) == (0.1, 2, 0.4)
    manager, loops = Manager(), Loops()
    manager.set_cluster(ORDERS, options, 0.0)
    manager.node_up(1, 0.0)
    manager.member_added(ORDERS, 11, 1, 0.0)
    shown = ProvisioningLoops(loops)
    shown.show(manager, {ORDERS: trial})
    for number in range(6):
        manager.join(ORDERS, Role.PRODUCER, 0.0, session=f"p{number}")
    loops.tick(1.0)
    last = loops.get("domain.orders.shadow").document("n", 1.0)["last"]
    # Six producers of 0.4 on one member of 1, which would be three.
    assert (loops.get("domain.orders.shadow").is_shadow, last["action"]) == (True, 3.0)
    assert math.isclose(last["measurement"], 2.4)
    present = loops.get("domain.orders").document("n", 1.0)["last"]
    assert math.isclose(present["measurement"], 0.6)
    shown.show(manager)
    assert loops.find("domain.orders.shadow") is None
    shown.show(manager, {ORDERS: trial})
    shown.hide_all()
    assert loops.all() == []


def test_enormous_weights_in_shadow_do_not_end_the_sampling_of_loops(
    registry: Registry, models: CapacityModels
) -> None:
    registry.publish(QUEUE, 1.5e308, State.SHADOW)
    trial = models.in_shadow(ORDERS, DECLARED, {})
    assert trial is not None
    manager, loops = Manager(), Loops()
    manager.set_cluster(ORDERS, DECLARED, 0.0)
    manager.node_up(1, 0.0)
    manager.member_added(ORDERS, 11, 1, 0.0)
    for number in range(2):
        manager.join(ORDERS, Role.PRODUCER, 0.0, session=f"p{number}")
    ProvisioningLoops(loops).show(manager, {ORDERS: trial})
    loops.tick(1.0)
    last = loops.get("domain.orders.shadow").document("n", 1.0)["last"]
    assert last["action"] == DECLARED.max_members
