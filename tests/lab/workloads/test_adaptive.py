"""A consumer that adapts itself, against real brokers: the loop, its signals and its disturbances."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow.parquet as pq
import pytest

from flyball.client.adaptive import AdaptiveConsumer
from flyball.control.loop import Sample
from flyball.errors import ControlError, LabError
from flyball.lab.drivers import Target
from flyball.lab.workloads import make_workload
from flyball.lab.workloads.adaptive import Adaptive
from flyball.trace.samples import SampleWriter
from flyball.trace.schema import SAMPLE_SCHEMA
from tests.broker.protocols.amqp.compatibility.brokers import Broker
from tests.lab.runs import Outcome, run, target_of
from tests.nodes import RunningNode

GOAL_PER_S = 50.0
# Far below of what a machine can do, however busy: with a window of one there are ten messages a second.
SMALL: dict[str, Any] = {
    "kind": "adaptive",
    "producers": 5,
    "gap_s": 0.05,
    "fill_s": 0.5,
    "sample_time_s": 0.3,
    "goal_per_s": GOAL_PER_S,
    "round_trip_ms": 100.0,
}


def samples_of(outcome: Outcome) -> list[dict[str, Any]]:
    table = pq.ParquetDataset(sorted(outcome.traces.glob("samples-*.parquet"))).read()
    assert table.schema.remove_metadata().equals(SAMPLE_SCHEMA)
    found: list[dict[str, Any]] = table.sort_by("sequence").to_pylist()
    return found


def check(outcome: Outcome) -> None:
    """No message came twice or was never sent; what is left in the queue is not lost."""
    assert outcome.failure == ""
    assert outcome.total("failed") == 0
    verdict = outcome.verdict
    assert (verdict.doubled, verdict.unsent) == (0, 0)
    assert 0 < verdict.received < verdict.sent == outcome.total("sent")
    calls = outcome.calls()
    assert set(calls["kind"].to_pylist()) == {"deliver"}
    assert calls.num_rows == outcome.total("received") == verdict.received


def check_loop(outcome: Outcome, least_action: float) -> None:
    """The loop was recorded, and has opened the window, with which a message at a time would come."""
    check(outcome)
    samples = samples_of(outcome)
    assert {sample["setpoint"] for sample in samples} == {GOAL_PER_S}
    assert [sample["sequence"] for sample in samples] == sorted({sample["sequence"] for sample in samples})
    assert samples[-1]["action"] >= least_action
    assert max(sample["measurement"] for sample in samples) > 15


@pytest.mark.parametrize(("actuator", "least_action"), [("integer", 2.0), ("fractional", 2.0), ("pacer", 25.0)])
def test_a_loop_runs_on_flyball(actuator: str, least_action: float, memory_node: RunningNode, tmp_path: Path) -> None:
    outcome = run({**SMALL, "actuator": actuator}, [target_of(memory_node, "amqp")], tmp_path, calls=60)
    check_loop(outcome, least_action)


def test_a_loop_runs_on_rabbitmq(rabbitmq_node: Broker, tmp_path: Path) -> None:
    target = Target(name="rabbitmq", host=rabbitmq_node.host, port=rabbitmq_node.port)
    check_loop(run(SMALL, [target], tmp_path, calls=60), 2.0)


@pytest.mark.parametrize(
    ("signal", "played"), [("staircase", [1.0, 4.0, 7.0, 10.0]), ("geometric", [1.0, 2.0, 5.0, 10.0])]
)
def test_a_staircase_is_played_one_step_a_sample(
    signal: str, played: list[float], memory_node: RunningNode, tmp_path: Path
) -> None:
    parameters = {**SMALL, "signal": signal, "actuator": "integer", "levels": 4, "lowest": 1, "highest": 10}
    outcome = run(parameters, [target_of(memory_node, "amqp")], tmp_path, calls=90)
    check(outcome)
    actions = [sample["action"] for sample in samples_of(outcome)]
    assert list(dict.fromkeys(actions)) == played
    assert actions == sorted(actions)


def test_a_sample_that_is_left_out_leaves_no_step_out(
    memory_node: RunningNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = SampleWriter.record

    def record_slowly(writer: SampleWriter, sample: Sample) -> None:
        record(writer, sample)
        if sample.action == 4.0:
            # The whole process stands still for more than a sample time.
            time.sleep(1.5 * SMALL["sample_time_s"])

    monkeypatch.setattr(SampleWriter, "record", record_slowly)
    parameters = {**SMALL, "signal": "staircase", "actuator": "integer", "levels": 4, "lowest": 1, "highest": 10}
    samples = samples_of(run(parameters, [target_of(memory_node, "amqp")], tmp_path, calls=90))
    assert list(dict.fromkeys(sample["action"] for sample in samples)) == [1.0, 4.0, 7.0, 10.0]
    assert samples[-1]["sequence"] > len(samples)


def test_a_signal_goes_on_where_a_loop_would_wait_for_messages(memory_node: RunningNode, tmp_path: Path) -> None:
    parameters = {**SMALL, "signal": "staircase", "actuator": "integer", "levels": 4, "lowest": 1, "highest": 100}
    outcome = run(
        {**parameters, "producers": 1, "gap_s": 0.01}, [target_of(memory_node, "amqp")], tmp_path, calls=400
    )
    assert samples_of(outcome)[-1]["action"] == 100.0


def constant(window: float, **more: object) -> dict[str, Any]:
    """Return a loop whose law does nothing but hold the window."""
    law = {"kind": "p", "kp": 0.0, "feedforward": window / GOAL_PER_S}
    return {**SMALL, "law": law, "actuator": "integer", "allow_uncertified": True, **more}


def test_halved_capacity_is_half_the_rate_at_the_same_window(memory_node: RunningNode, tmp_path: Path) -> None:
    schedule = [{"at_sample": 8, "capacity_ratio": 0.5}]
    target = target_of(memory_node, "amqp")
    # The way is so long that what a busy machine adds to it matters little.
    outcome = run(constant(3, schedule=schedule, round_trip_ms=200.0), [target], tmp_path, calls=60)
    check(outcome)
    samples = samples_of(outcome)
    assert {sample["action"] for sample in samples[1:]} == {3.0}
    before = fmean(sample["measurement"] for sample in samples if 2 <= sample["sequence"] <= 8)
    after = fmean(sample["measurement"] for sample in samples if sample["sequence"] >= 10)
    assert 0.35 < after / before < 0.65


def test_the_goal_changes_after_its_sample(memory_node: RunningNode, tmp_path: Path) -> None:
    schedule = [{"at_sample": 3, "goal_per_s": 25.0}]
    outcome = run({**SMALL, "schedule": schedule}, [target_of(memory_node, "amqp")], tmp_path, calls=90)
    check(outcome)
    goals = {sample["sequence"]: sample["setpoint"] for sample in samples_of(outcome)}
    assert all(goal == (GOAL_PER_S if sequence <= 3 else 25.0) for sequence, goal in goals.items())
    assert 25.0 in goals.values()


def test_what_is_wrong_with_a_loop_is_told_in_a_line(
    memory_node: RunningNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def start(self: AdaptiveConsumer) -> None:
        raise ControlError("the queue is gone")

    monkeypatch.setattr(AdaptiveConsumer, "start", start)
    outcome = run(SMALL, [target_of(memory_node, "amqp")], tmp_path)
    assert outcome.failure.endswith("the queue is gone")
    assert "ControlError" not in outcome.failure
    assert "Traceback" not in capsys.readouterr().err


def test_publishers_come_and_go_with_the_samples() -> None:
    schedule = [{"at_sample": 10, "producers_ratio": 2}, {"at_sample": 20, "producers_ratio": 0.5}]
    workload = make_workload({**SMALL, "producers": 4, "fill_s": 1.0, "sample_time_s": 0.5, "schedule": schedule})
    assert isinstance(workload, Adaptive)
    assert workload.client_count == 9
    assert [workload.spans_of(number) for number in (0, 1)] == [[(0.0, float("inf"))]] * 2
    assert [workload.spans_of(number) for number in (2, 3)] == [[(0.0, 11.0)]] * 2
    assert [workload.spans_of(number) for number in (4, 7)] == [[(6.0, 11.0)]] * 2


def test_the_consumer_has_a_process_to_itself() -> None:
    workload = make_workload(SMALL)
    assert [list(numbers) for numbers in workload.numbers_of_workers(3)] == [[0, 2, 4], [1, 3], [5]]
    assert workload.role_of(5) == "adaptive"


def test_a_schedule_says_only_what_changes() -> None:
    workload = make_workload({**SMALL, "schedule": [{"at_sample": 3, "capacity_ratio": 0.5}]})
    assert workload.model_dump(mode="json")["schedule"] == [{"at_sample": 3, "capacity_ratio": 0.5}]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"law": {"kind": "pd"}}, "there is no law 'pd'"),
        ({"law": {"kind": "pi", "kp": 1}}, "pi: ki is missing"),
        ({"law": {"kind": "designed"}}, "made as one of p, i, pi, pid, lambda_pi"),
        ({"law": {"kind": "designed", "as": "pi", "kp": 1}}, "not kp = 1"),
        ({"lowest": 5, "highest": 5}, "lowest must be below highest"),
        ({"signal": "random"}, "actuator = 'integer'"),
        ({"schedule": [{"at_sample": 3}]}, "give goal_per_s, producers_ratio or capacity_ratio"),
        (
            {"schedule": [{"at_sample": 3, "goal_per_s": 1}, {"at_sample": 3, "capacity_ratio": 1}]},
            "the samples in schedule must increase",
        ),
        ({"protocol": "thorbang"}, "it can be run over amqp"),
    ],
)
def test_a_wrong_parameter_is_reported(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(LabError, match=told):
        make_workload({**SMALL, **wrong})


def test_a_package_that_is_missing_is_told_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = make_workload(SMALL)
    workload.check_packages()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LabError, match=r"needs aio_pika: pip install 'flyball\[control\]'"):
        workload.check_packages()


def test_gains_that_nobody_has_verified_are_refused_unless_that_is_wanted() -> None:
    law = {"kind": "pi", "kp": -0.0016, "ki": 0.006}
    with pytest.raises(LabError, match="nothing is known about its plant; or give allow_uncertified = true"):
        make_workload({**SMALL, "law": law}).prepare([])
    prepared = make_workload({**SMALL, "law": law, "allow_uncertified": True}).prepare([])
    assert prepared == {"law_used": law, "plant": None, "certificate": None}
