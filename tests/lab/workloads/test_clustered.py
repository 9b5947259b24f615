"""Clients of one queue that commit after every message: how many each handles, and when it comes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import uvloop

from flyball.errors import LabError
from flyball.lab.drivers import Target
from flyball.lab.workloads import make_workload
from flyball.lab.workloads.clustered import Clustered
from tests.lab.runs import Outcome, run, target_of
from tests.nodes import RunningNode


def workload(**parameters: Any) -> Clustered:
    found = make_workload({"kind": "clustered", **parameters})
    assert isinstance(found, Clustered)
    return found


def outcome_of(node: RunningNode, folder: Path, **parameters: Any) -> Outcome:
    found = run({"kind": "clustered", **parameters}, [target_of(node, "amqp")], folder / "traces", calls=10**6)
    assert found.failure == ""
    assert (found.verdict.lost, found.verdict.doubled) == (0, 0)
    return found


@pytest.mark.parametrize("receive", ["get", "consume"])
def test_a_run_is_over_when_all_messages_are_taken(receive: str, memory_node: RunningNode, tmp_path: Path) -> None:
    outcome = outcome_of(memory_node, tmp_path, receive=receive, producers=2, consumers=3, messages=50)
    assert outcome.total("sent") == outcome.total("received") == 100
    rows = outcome.calls().to_pylist()
    assert Counter(row["client_id"] for row in rows) == {0: 50, 1: 50, 2: 34, 3: 33, 4: 33}


def test_consumers_begin_when_all_messages_are_there(memory_node: RunningNode, tmp_path: Path) -> None:
    outcome = outcome_of(memory_node, tmp_path, producers=1, consumers=2, messages=60, fills_first=True)
    ends: dict[str, list[int]] = {}
    for row in outcome.calls().to_pylist():
        ends.setdefault(row["kind"], []).append(row["intended_us"] + (row["late_ns"] + row["response_ns"]) // 1000)
    assert max(ends["put"]) <= min(ends["deliver"])


def test_clients_come_in_the_ratio_of_their_roles() -> None:
    roles = workload(producers=5, consumers=10)
    assert [roles.role_of(number)[0] for number in roles.join_order()] == list("pccpccpccpccpcc")


def test_clients_come_one_after_the_other(memory_node: RunningNode, tmp_path: Path) -> None:
    outcome = outcome_of(memory_node, tmp_path, producers=2, consumers=2, messages=20, join_every_s=0.1)
    # Between the two producers comes a consumer.
    assert min(_begins(outcome)[1]) - outcome.began_us >= 200_000


def _begins(outcome: Outcome) -> dict[int, list[int]]:
    begins: dict[int, list[int]] = {}
    for row in outcome.calls().to_pylist():
        begins.setdefault(row["client_id"], []).append(row["intended_us"])
    return begins


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(LabError, match="fills_first"):
        workload(fills_first=True).check(1)


def test_nodes_that_share_nothing_cannot_share_clients() -> None:
    nodes = [Target(name=name, host="127.0.0.1", port=1) for name in ("a", "b")]
    for parameters in ({"messages": 5}, {"placement": "optimised"}):
        with pytest.raises(LabError, match="kind domain"):
            uvloop.run(workload(**parameters).set_up(nodes))
