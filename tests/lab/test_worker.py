"""The worker: its dialogue with the runner, and its ends."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.parquet as pq
import pytest
import uvloop

from flyball.lab import worker
from flyball.lab.drivers import Target
from flyball.lab.workloads import Client, Workload, make_workload
from tests.lab.runs import Conductor, Event, assignment, run, target_of
from tests.nodes import RunningNode

PARAMETERS: dict[str, Any] = {"kind": "send_and_pop", "clients": 2}


def assigned(target: Target, traces: Path, parameters: dict[str, Any] = PARAMETERS) -> Event:
    workload = make_workload(parameters)
    set_up = uvloop.run(workload.set_up([target]))
    return assignment(workload, [target], traces, set_up, list(range(workload.client_count)))


def test_a_process_of_its_own_goes_through_the_whole_dialogue(memory_node: RunningNode, tmp_path: Path) -> None:
    line = assigned(target_of(memory_node, "thorbang"), tmp_path)
    command = [sys.executable, "-m", "flyball.lab.worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def tell(command: Event) -> None:
            assert process.stdin is not None
            print(json.dumps(command), file=process.stdin, flush=True)

        def hear(name: str) -> Event:
            assert process.stdout is not None
            for text in process.stdout:
                event: Event = json.loads(text)
                if event["event"] == name:
                    return event
            raise AssertionError(f"it ended before it was {name}")

        tell(line)
        hear("ready")
        tell({"command": "start", "at_us": time.time_ns() // 1000 + 50_000})
        progress = hear("progress")
        assert progress["failed"] == 0
        tell({"command": "stop"})
        stopped = hear("stopped")
        tell({"command": "finish"})
        done = hear("done")
        assert process.wait() == 0
    assert done["calls"] == stopped["calls"] == done["sent"] + done["received"]
    assert done["cpu_s"] > 0
    assert 0 < done["wall_s"] < 300
    assert done["dropped"] == 0
    assert pq.ParquetDataset(sorted(tmp_path.glob("calls-worker-1-*"))).read().num_rows == done["calls"]


def test_a_process_ends_when_its_stdin_closes(memory_node: RunningNode, tmp_path: Path) -> None:
    line = assigned(target_of(memory_node, "thorbang"), tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "flyball.lab.worker"],
        input=json.dumps(line) + "\n" + json.dumps({"command": "start", "at_us": 0}) + "\n",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert [json.loads(text)["event"] for text in done.stdout.splitlines()][:1] == ["ready"]
    assert done.stderr == ""
    memory_node.wait_until(lambda node: not node.hub.connections)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"workload": {"kind": "sing"}}, "there is no workload 'sing'"),
        ({"clients": "many"}, "ValidationError"),
        (
            {"targets": [{"name": "gone", "host": "127.0.0.1", "port": 1}]},
            "client 0: cannot connect to gone on 127.0.0.1:1",
        ),
    ],
)
def test_what_is_wrong_with_the_assignment_is_said(
    change: Event, reason: str, memory_node: RunningNode, tmp_path: Path
) -> None:
    line = {**assigned(target_of(memory_node, "thorbang"), tmp_path), **change}

    async def main() -> tuple[int, list[Event]]:
        conductor = Conductor()
        conductor.tell(line)
        conductor.hang_up()
        return await conductor.be_a_worker(), conductor.events

    code, events = uvloop.run(main())
    assert code == 1
    assert [event["event"] for event in events] == ["failed"]
    assert reason in events[0]["reason"]


def test_that_all_clients_are_through_is_said_at_once(memory_node: RunningNode, tmp_path: Path) -> None:
    parameters = {"kind": "push_peek_pop", "rounds": 1, "repeats": 3}
    line = {**assigned(target_of(memory_node, "thorbang"), tmp_path, parameters), "report_every_s": 3600.0}

    async def main() -> Event:
        conductor = Conductor()
        conductor.tell(line)
        conductor.tell({"command": "start", "at_us": 0})
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(conductor.be_a_worker())
            progress = await conductor.heard("progress")
            conductor.hang_up()
        return progress

    progress = uvloop.run(main())
    assert (progress["running"], progress["calls"]) == (0, 9)


# All pauses together are longer than the limit, and each is much shorter.
MESSAGES, PAUSE_S, LIMIT_S = 20, 0.1, 1.5


class Leisurely(Workload):
    """Takes its time for messages that it sends after the command to stop."""

    addressed_queues: ClassVar[tuple[str, ...]] = ("late",)

    @property
    def client_count(self) -> int:
        return 1

    def role_of(self, number: int) -> str:
        return "client"

    async def behave(self, client: Client) -> None:
        await client.pause(3600)
        queue = client.queue("late")
        for number in range(MESSAGES):
            await client.put(queue, client.address, b"", number + 1)
            await client.pause(PAUSE_S)


def test_clients_may_take_their_time_to_stop_as_long_as_something_moves(
    memory_node: RunningNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "STOP_LIMIT_S", LIMIT_S)
    parameters = {"kind": "tests.lab.test_worker:Leisurely"}
    outcome = run(parameters, [target_of(memory_node, "thorbang")], tmp_path, calls=0)
    assert (outcome.failure, outcome.total("sent")) == ("", MESSAGES)


def test_an_unexpected_command_is_an_error(memory_node: RunningNode, tmp_path: Path) -> None:
    line = assigned(target_of(memory_node, "thorbang"), tmp_path)

    async def main() -> list[Event]:
        conductor = Conductor()
        conductor.tell(line)
        conductor.tell({"command": "dance"})
        await conductor.be_a_worker()
        return conductor.events

    assert uvloop.run(main())[-1] == {
        "event": "failed",
        "reason": 'expected the command start, got {"command": "dance"}',
    }


def test_a_client_makes_the_same_choices_with_the_same_seed(memory_node: RunningNode, tmp_path: Path) -> None:
    parameters = {"kind": "send_and_pop", "rate_per_s": 400, "arrivals": "poisson"}
    steps = []
    for name in ("first", "second"):
        calls = run(parameters, [target_of(memory_node, "thorbang")], tmp_path / name).calls()
        intended_us = calls["intended_us"].to_pylist()
        steps.append([later - intended_us[0] for later in intended_us[1:80]])
    assert steps[0] == pytest.approx(steps[1], abs=2)


def test_think_times_lie_between_an_answer_and_the_next_call(memory_node: RunningNode, tmp_path: Path) -> None:
    parameters = {"kind": "send_and_pop", "think_time_s": 0.003}
    calls = run(parameters, [target_of(memory_node, "thorbang")], tmp_path, calls=20).calls().to_pandas()
    assert (calls["late_ns"] == 0).all()
    assert calls["think_ns"][1:-1].min() >= 3_000_000
    cycle_us = calls["intended_us"].diff()[1:]
    parts_us = (calls["response_ns"].shift() + calls["think_ns"])[1:] / 1000
    assert cycle_us.to_numpy() == pytest.approx(parts_us.to_numpy(), abs=2)
