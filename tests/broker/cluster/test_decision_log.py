"""The decision log is in words that people understand, and holds only the latest decisions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from flyball.broker.cluster.decision_log import KEPT_DECISIONS, SHOWN_DECISIONS, DecisionLog
from flyball.broker.cluster.decisions import (
    AddMember,
    Decision,
    Failure,
    HandOver,
    Mark,
    Move,
    Provision,
    Record,
    Release,
    RemoveMember,
    TakeOver,
    Unmark,
)
from flyball.broker.cluster.names import cluster_key
from flyball.broker.cluster.options import Role
from flyball.broker.cluster.overview import Overview

ORDERS = cluster_key("/", "orders")
NAMES = {1: "north", 2: "south"}


def decision_log() -> DecisionLog:
    """One for a domain of two nodes, in which the queue 17 is on the second."""
    overview = SimpleNamespace(name_of=lambda node: NAMES.get(node, str(node)), owner_of={17: 2}.get)
    return DecisionLog(cast(Overview, overview), "1.4")


def told(decision: Decision) -> dict[str, Any]:
    kept = decision_log()
    kept.note(Record(5.0, decision))
    [found] = kept.since(0, "1.4")["decisions"]
    return cast(dict[str, Any], found)


@pytest.mark.parametrize(
    ("decision", "target", "what"),
    [
        (
            Provision(cluster=ORDERS, reason="", request="r", provisioner="local"),
            "orders",
            "Start a node with provisioner 'local' for orders",
        ),
        (
            Provision(cluster="", reason="", request="r", provisioner="local", replaces=2),
            "south",
            "Restart node 'south' with provisioner 'local'",
        ),
        (
            Provision(cluster=ORDERS, reason="", request="r", provisioner="local", replaces=2),
            "orders",
            "Start a node with provisioner 'local' for orders, replacing 'south'",
        ),
        (AddMember(cluster=ORDERS, reason="", node=2), "south", "Add a member of orders on 'south'"),
        (
            Mark(cluster=ORDERS, reason="", member=17, node=2),
            "south",
            "Drain the member of orders on 'south': no new clients",
        ),
        (
            Unmark(cluster=ORDERS, reason="", member=17, node=2),
            "south",
            "Keep the member of orders on 'south': it takes clients again",
        ),
        (
            RemoveMember(cluster=ORDERS, reason="", member=17, node=2),
            "south",
            "Remove the member of orders on 'south'",
        ),
        (Release(cluster="", reason="", node=2), "south", "Stop node 'south'"),
        (
            Move(cluster=ORDERS, reason="", session="s", role=Role.PRODUCER, from_member=17, to_member=3, to_node=1),
            "s",
            "Ask a producer of orders to move from 'south' to 'north'",
        ),
        (
            TakeOver(cluster="", reason="", node=2, assignments={5: 1}, merges={17: 3}),
            "south",
            "Move 2 queues of node 'south' to other nodes",
        ),
        (
            HandOver(cluster=ORDERS, reason="", to="consumers"),
            "consumers",
            "Moving clients of orders does not help; responsible: consumers",
        ),
        (
            Failure(cluster=ORDERS, reason=""),
            "orders",
            "A decision for orders failed",
        ),
    ],
    ids=lambda part: type(part).__name__ if isinstance(part, Decision) else "",
)
def test_each_decision_says_what_is_done_to_what(decision: Decision, target: str, what: str) -> None:
    found = told(decision)
    assert (found["kind"], found["target"], found["what"]) == (type(decision).__name__, target, what)


def test_reasons_have_names_instead_of_numbers() -> None:
    reason = "node 2 is gone and member 17, the only one, is being removed"
    found = told(Release(cluster=ORDERS, node=2, reason=reason))
    assert found["reason"] == "node 'south' is gone and the member on 'south', the only one, is being removed"
    assert found["cluster"] == {"vhost": "/", "name": "orders"}
    assert told(Failure(cluster="", reason="member 99 did not come"))["reason"] == (
        "the member on a node that has left did not come"
    )


def test_second_request_returns_new_decisions_unless_the_leader_changed() -> None:
    kept = decision_log()
    kept.begin("north")
    kept.note(Record(5.0, Failure(cluster="", reason="a")))
    first = kept.since(0, "")
    assert [decision["kind"] for decision in first["decisions"]] == ["Lead", "Failure"]
    kept.note(Record(6.0, Failure(cluster="", reason="b")))
    again = kept.since(first["last"], first["term"])
    assert [decision["reason"] for decision in again["decisions"]] == ["b"]
    assert len(kept.since(first["last"], "2.1")["decisions"]) == 3


def test_only_the_last_decisions_are_kept() -> None:
    kept = decision_log()
    for number in range(KEPT_DECISIONS + 10):
        kept.note(Record(0.0, Failure(cluster="", reason=str(number))))
    found = kept.since(0, "")
    assert len(found["decisions"]) == KEPT_DECISIONS
    assert found["last"] == KEPT_DECISIONS + 10
    assert found["decisions"][-1]["reason"] == str(KEPT_DECISIONS + 9)


def test_clustered_queue_shows_its_own_latest_decisions() -> None:
    kept = decision_log()
    for number in range(SHOWN_DECISIONS + 1):
        kept.note(Record(0.0, Failure(cluster=ORDERS, reason=str(number))))
        kept.note(Record(0.0, Failure(cluster="", reason="another")))
    shown = [decision["reason"] for decision in kept.facts_of(ORDERS)]
    assert shown == [str(number) for number in range(1, SHOWN_DECISIONS + 1)]
