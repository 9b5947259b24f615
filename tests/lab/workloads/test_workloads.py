"""Every workload, for a moment, against a real node, over every protocol that can express it."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from flyball.errors import LabError
from flyball.lab.drivers import Target
from flyball.lab.workloads import WORKLOADS, make_workload
from flyball.trace.schema import CALL_SCHEMA
from tests.broker.protocols.amqp.compatibility.brokers import Broker
from tests.lab.runs import run, target_of
from tests.nodes import RunningNode

QUICK = {"retry_delay_s": 0.002}
SMALL: dict[str, dict[str, Any]] = {
    "send_and_pop": {"clients": 3, "queues": 2, "stored_messages": 20},
    "standard": {"one_way": 2, "two_way": 4, "poll_pause_s": 0.002, "answer_pause_s": 0.003},
    "push_peek_pop": {"clients": 2, "repeats": 10, "body_bytes": 50},
    "telesto_one_way": {"clients": 4, **QUICK},
    "telesto_pairs": {"pairs": 2, **QUICK},
    "telesto_service": {"askers": 3, "servers": 2, **QUICK},
    "telesto_mixed": {"one_way": 4, "pairs": 2, "askers": 3, "servers": 2, **QUICK},
    "stream": {"producers": 2, "consumers": 3, "queues": 2, "in_flight": 10, "prefetch": 5},
    "clustered": {"producers": 2, "consumers": 4},
}
ALL = ("thorbang", "telesto", "amqp")
CASES = [
    (kind, protocol) for kind in SMALL for protocol in ALL if kind not in ("stream", "clustered", "push_peek_pop")
]
CASES += [("push_peek_pop", "thorbang"), ("stream", "amqp"), ("clustered", "amqp")]


def stored_in(node: RunningNode) -> int:
    """Return how many messages the node has."""
    return node.call(lambda node: sum(len(queue) + len(queue.unacked) for queue in node.hub.broker.engine.queues))


def test_every_workload_is_tried() -> None:
    # Those that are missing have tests of their own, in test_adaptive and test_auction.
    assert set(SMALL) == set(WORKLOADS) - {"adaptive", "auction"}


@pytest.mark.parametrize(("kind", "protocol"), CASES)
def test_a_workload_runs_without_a_lost_or_doubled_message(
    kind: str, protocol: str, memory_node: RunningNode, tmp_path: Path
) -> None:
    parameters = {"kind": kind, "protocol": protocol, **SMALL[kind]}
    outcome = run(parameters, [target_of(memory_node, protocol)], tmp_path / "traces", workers=2)
    assert outcome.failure == ""
    assert outcome.total("failed") == 0
    assert outcome.total("calls") >= 200
    assert outcome.total("sent") == outcome.total("received") > 0
    verdict = outcome.verdict
    assert (verdict.lost, verdict.doubled) == (0, 0)
    if make_workload(parameters).drains:
        assert verdict.sent == verdict.received == outcome.total("sent")
    calls = outcome.calls()
    assert calls.schema.remove_metadata().equals(CALL_SCHEMA)
    assert calls.num_rows == outcome.total("calls")
    assert set(calls["protocol"].to_pylist()) == {protocol}
    assert set(calls["worker"].to_pylist()) == {"worker-0", "worker-1"}
    assert min(calls["response_ns"].to_pylist()) > 0


@pytest.mark.parametrize("kind", ["send_and_pop", "standard", "telesto_service", "telesto_mixed", "stream"])
def test_clients_of_several_nodes_find_their_partners_on_their_own(kind: str, tmp_path: Path) -> None:
    protocol = "amqp" if kind == "stream" else "thorbang"
    parameters = {"kind": kind, "protocol": protocol, **SMALL[kind]}
    if kind == "standard":
        parameters |= {"one_way": 4, "two_way": 4}
    if kind == "stream":
        parameters |= {"producers": 2, "consumers": 4}
    with ExitStack() as nodes:
        running = {name: nodes.enter_context(RunningNode(tmp_path / name, store="memory")) for name in ("a", "b")}
        targets = [target_of(node, protocol, name) for name, node in running.items()]
        outcome = run(parameters, targets, tmp_path / "traces", calls=1500)
    assert outcome.failure == ""
    assert (outcome.verdict.lost, outcome.verdict.doubled) == (0, 0)
    assert set(outcome.calls()["target"].to_pylist()) == {"a", "b"}


@pytest.mark.parametrize("kind", ["send_and_pop", "stream"])
def test_a_workload_runs_against_rabbitmq(kind: str, rabbitmq_node: Broker, tmp_path: Path) -> None:
    target = Target(name="rabbitmq", host=rabbitmq_node.host, port=rabbitmq_node.port)
    outcome = run({"kind": kind, "protocol": "amqp", **SMALL[kind]}, [target], tmp_path)
    assert outcome.failure == ""
    assert outcome.total("sent") == outcome.total("received") > 0
    assert (outcome.verdict.lost, outcome.verdict.doubled) == (0, 0)


@pytest.mark.parametrize("acks", ["single", "multiple", "none"])
def test_a_stream_acknowledges_as_it_is_told(acks: str, memory_node: RunningNode, tmp_path: Path) -> None:
    parameters = {"kind": "stream", "protocol": "amqp", "acks": acks, "prefetch": 3, "persistent": False}
    outcome = run(parameters, [target_of(memory_node, "amqp")], tmp_path)
    assert outcome.failure == ""
    assert (outcome.verdict.lost, outcome.verdict.doubled) == (0, 0)
    assert stored_in(memory_node) == 0


def test_what_is_stored_before_stays_there(memory_node: RunningNode, tmp_path: Path) -> None:
    parameters = {"kind": "send_and_pop", "stored_messages": 70, "clients": 2}
    outcome = run(parameters, [target_of(memory_node, "thorbang")], tmp_path)
    assert outcome.failure == ""
    assert stored_in(memory_node) == 70


def test_a_server_that_keeps_nothing_is_not_asked_for_it(
    start_memory_node: Callable[..., RunningNode], tmp_path: Path
) -> None:
    target = target_of(start_memory_node(store="null"), "thorbang")
    assert "is lost" in run({"kind": "send_and_pop"}, [target], tmp_path / "keeping").failure
    assert run({"kind": "send_and_pop", "keeps_messages": False}, [target], tmp_path / "not").failure == ""


@pytest.mark.parametrize("protocol", ALL)
def test_a_phase_of_pops_alone_takes_what_was_prepared(
    protocol: str, memory_node: RunningNode, tmp_path: Path
) -> None:
    parameters = {"kind": "push_peek_pop", "phases": ["pop"], "prepared_messages": 30, "protocol": protocol}
    outcome = run(parameters, [target_of(memory_node, protocol)], tmp_path)
    assert outcome.failure == ""
    assert (outcome.total("sent"), outcome.total("received")) == (0, 30)


def test_phases_come_in_turn(memory_node: RunningNode, tmp_path: Path) -> None:
    parameters = {"kind": "push_peek_pop", "repeats": 4, "rounds": 2, "body_bytes": 7}
    outcome = run(parameters, [target_of(memory_node, "thorbang")], tmp_path)
    calls = outcome.calls()
    assert calls["kind"].to_pylist() == 2 * (["put"] * 4 + ["peek"] * 4 + ["take"] * 4)
    assert set(calls["size_bytes"].to_pylist()) == {7}


def test_a_workload_follows_a_recorded_rate_that_its_workers_need_not_read(
    memory_node: RunningNode, tmp_path: Path
) -> None:
    (tmp_path / "rates.csv").write_text("seconds,rate\n0,0\n0.5,800\n")
    parameters = {"kind": "send_and_pop", "clients": 4, "rate_curve": str(tmp_path / "rates.csv")}
    sent_to_workers = make_workload(parameters).model_dump(mode="json")
    assert sent_to_workers["rate_curve"] == [[0.0, 0.0], [0.5, 800.0]]
    outcome = run(sent_to_workers, [target_of(memory_node, "thorbang")], tmp_path / "traces", calls=150)
    intended_us = sorted(outcome.calls()["intended_us"].to_pylist())
    # The rate grows by 1600 a second each second, so the k-th arrival comes when 800 t² is k.
    between_s = (intended_us[99] - intended_us[0]) / 1e6
    assert between_s == pytest.approx(math.sqrt(100 / 800) - math.sqrt(1 / 800), abs=1e-4)


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"kind": "sing"}, "there is no workload 'sing': use one of adaptive, auction, clustered, push_peek_pop"),
        ({"kind": "send_and_pop", "clints": 3}, "workload.clints of send_and_pop is wrong"),
        ({"kind": "stream", "protocol": "telesto"}, "it can be run over amqp"),
        ({"kind": "push_peek_pop", "protocol": "amqp"}, "amqp cannot peek: use thorbang"),
        ({"kind": "stream", "body_bytes": 23}, "workload.body_bytes of stream is wrong"),
        ({"kind": "standard", "keeps_messages": False}, "needs a store that keeps messages"),
        ({"kind": "send_and_pop", "rate_curve": [[1, 5], [1, 6]]}, "the seconds of its points must increase"),
        ({"kind": "send_and_pop", "rate_curve": "no/such.csv"}, "cannot read no/such.csv"),
        ({"kind": "send_and_pop", "protocol": "telesto", "body_bytes": 2001}, "2000"),
    ],
)
def test_wrong_parameters_are_named(parameters: dict[str, Any], complaint: str) -> None:
    with pytest.raises(LabError, match=complaint):
        make_workload(parameters)


@pytest.mark.parametrize(
    "parameters",
    [
        {"kind": "standard", "one_way": 3},
        {"kind": "standard", "two_way": 2},
        {"kind": "telesto_one_way", "clients": 3},
        {"kind": "telesto_pairs", "pairs": 3},
        {"kind": "telesto_service", "servers": 1},
        {"kind": "telesto_mixed", "one_way": 3},
        {"kind": "telesto_mixed", "one_way": 4, "pairs": 3},
        {"kind": "telesto_mixed", "one_way": 4, "pairs": 2, "servers": 1},
        {"kind": "stream", "consumers": 3, "queues": 2},
    ],
)
def test_clients_that_cannot_be_spread_over_the_targets_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(LabError, match="every"):
        make_workload(parameters).check(target_count=2)
