"""Runs: a real one from end to end, and all that can go wrong while one is made."""

from __future__ import annotations

import asyncio
import asyncio.subprocess
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, ClassVar

import psutil
import pytest
import uvloop

from flyball.errors import LabError
from flyball.lab import runner
from flyball.lab.experiment import Experiment
from flyball.lab.hosts import ThisMachine
from flyball.lab.peer import Peer
from flyball.lab.plan import plan
from flyball.lab.runner import Live, Worker, make_run, worker_count
from flyball.lab.tally import Verdict
from flyball.pipeline.manifest import Run
from tests.lab.descriptions import TINY, described
from tests.lab.runs import tables_in
from tests.nodes import RunningNode

FAKE_WORKER = Path(__file__).with_name("fake_worker.py")


def ignore(live: Live) -> None:
    pass


def made(experiment: Experiment, folder: Path, tell: Callable[[Live], None] = ignore) -> dict[str, Any]:
    """Make the first run of the experiment."""
    for part in ("traces", "logs"):
        (folder / "run" / part).mkdir(parents=True)
    return uvloop.run(make_run(plan(experiment).runs[0], folder / "run", tell))


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterable[None]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    others = lab_processes()
    yield
    assert list(scratch.iterdir()) == []
    # Those of earlier tests may end meanwhile.
    assert set(lab_processes()) <= set(others)


def lab_processes(text: str = "flyball") -> list[psutil.Process]:
    """Return processes below this one that run something of ours."""
    return [child for child in psutil.Process().children(recursive=True) if text in command_line(child)]


def command_line(process: psutil.Process) -> str:
    """Return what a process runs: nothing once it has ended."""
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def test_a_run_leaves_traces_of_nodes_and_clients_and_a_manifest(tmp_path: Path) -> None:
    settings = "[noise]\nprocesses = 1\n[clients]\nworkers = 2\n"
    text = TINY.replace('store = "memory"', 'store = "memory"\nnodes = 2\nsettings = { trace_most_per_s = 100000 }')
    stages: list[str] = []
    manifest = made(described(tmp_path, text + settings), tmp_path, lambda live: stages.append(live.stage))

    tables = tables_in(tmp_path / "run" / "traces")
    assert {"calls-worker-1", "calls-worker-2"} <= set(tables)
    for kind in ("trace", "nodes", "queues"):
        assert {f"{kind}-node-1", f"{kind}-node-2"} <= set(tables)
    window = Run(run=manifest["run"], measured=manifest["measured"]).measured
    assert manifest["measured"]["until_us"] - manifest["measured"]["from_us"] == 400_000
    assert window is not None
    calls = [call for name in ("calls-worker-1", "calls-worker-2") for call in tables[name].to_pylist()]
    requests = [row for name in ("trace-node-1", "trace-node-2") for row in tables[name].to_pylist()]
    assert {call["target"] for call in calls} == {"node-1", "node-2"} == {row["node"] for row in requests}
    assert manifest["checks"] == {"calls": len(calls), "failed": 0, "lost": 0, "doubled": 0}
    # The nodes have seen the very calls that the clients made, besides what set them up, and each a last look.
    assert sum(row["kind"] in ("put", "take") for row in requests) == len(calls) + 2

    assert (manifest["clients"]["count"], manifest["clients"]["workers"]) == (2, 2)
    assert 0 <= manifest["clients"]["busiest_cpu_ratio"] < 2
    assert [node["name"] for node in manifest["nodes"]] == ["node-1", "node-2"]
    assert all(node["cpu_s"] >= 0 and node["peak_bytes"] > 10_000_000 for node in manifest["nodes"])
    assert manifest["figures"]["calls_per_s"] > 0
    assert list(dict.fromkeys(stages)) == [
        *("starting", "setting up", "connecting", "warming up", "measuring", "cooling down", "draining", "stopping")
    ]


def test_rabbitmq_is_started_put_under_load_and_stopped(tmp_path: Path) -> None:
    text = TINY.replace('store = "memory"', 'kind = "rabbitmq"\nsettings = { "channel_max" = 100 }')
    manifest = made(described(tmp_path, text.replace("clients = 2", 'clients = 2\nprotocol = "amqp"')), tmp_path)
    assert manifest["target"]["kind"] == "rabbitmq"
    assert manifest["target"]["version"].count(".") == 2
    assert manifest["checks"]["calls"] > 0
    assert manifest["nodes"][0]["peak_bytes"] > 10_000_000
    assert list(tables_in(tmp_path / "run" / "traces")) == ["calls-worker-1"]


def when_measuring(act: Callable[[], None]) -> Callable[[Live], None]:
    """Do something once, as soon as the run is measured."""
    acts = [act]

    def tell(live: Live) -> None:
        if live.stage == "measuring" and acts:
            acts.pop()()

    return tell


LONG = TINY.replace("length_s = 0.4", "length_s = 3600")


def test_a_worker_that_dies_fails_the_run_at_once(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="worker-1 ended too early with exit code -9"):
        made(described(tmp_path, LONG), tmp_path, when_measuring(lambda: lab_processes("lab.worker")[0].kill()))


def test_a_node_that_dies_fails_the_run_with_its_last_words(tmp_path: Path) -> None:
    def kill() -> None:
        (node,) = lab_processes("flyball serve --name node-1")
        node.send_signal(signal.SIGKILL)

    with pytest.raises(LabError, match=r"node-1: the node has died: "):
        made(described(tmp_path, LONG), tmp_path, when_measuring(kill))


def test_a_node_that_does_not_start_says_why(tmp_path: Path) -> None:
    experiment = described(tmp_path, TINY.replace('"memory"', '"postgresql://127.0.0.1:1/none"'))
    with pytest.raises(LabError, match=r"node-1: the node does not start: .*the store failed"):
        made(experiment, tmp_path)


@pytest.mark.parametrize("protocol", ["thorbang", "telesto", "amqp"])
def test_a_foreign_server_is_put_under_load_and_left_alone(
    protocol: str, memory_node: RunningNode, tmp_path: Path
) -> None:
    host, port = memory_node.address(protocol)
    text = TINY.replace('store = "memory"', f'kind = "foreign"\naddresses = ["{host}:{port}"]')
    # With time to think clients are not the bottleneck, about which there would be a warning.
    text = text.replace("clients = 2", f'clients = 2\nthink_time_s = 0.002\nprotocol = "{protocol}"')
    manifest = made(described(tmp_path, text), tmp_path)
    (calls,) = tables_in(tmp_path / "run" / "traces").values()
    assert calls.num_rows == manifest["checks"]["calls"] > 0
    assert (manifest["target"]["kind"], manifest["nodes"]) == ("foreign", [{"name": "target-1"}])
    assert manifest["warnings"] == []
    memory_node.wait_until(lambda node: not node.hub.connections)


def test_a_foreign_server_that_is_not_there_is_told(tmp_path: Path) -> None:
    text = TINY.replace('store = "memory"', 'kind = "foreign"\naddresses = ["127.0.0.1:1"]')
    with pytest.raises(LabError, match="cannot set the workload up: "):
        made(described(tmp_path, text), tmp_path)


class FakeWorkload:
    """A workload that needs no server."""

    drains = True
    protocol = "thorbang"
    client_count = 1
    least_workers = 1

    def numbers_of_workers(self, worker_count: int) -> list[list[int]]:
        return [[0]]

    async def set_up(self, targets: object) -> dict[str, Any]:
        return {}

    def model_dump(self, mode: str) -> dict[str, Any]:
        return {"kind": "fake"}


class FakeHost(ThisMachine):
    """Starts bad workers in the place of good ones."""

    async def start(self, module: str, folder: str, errors: IO[bytes]) -> asyncio.subprocess.Process:
        if module != "flyball.lab.worker":
            return await super().start(module, folder, errors)
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            sys.executable, str(FAKE_WORKER), stdin=pipe, stdout=pipe, stderr=errors
        )


def fake_verdict(tallies: Iterable[Mapping[str, Any]]) -> Verdict:
    (tally,) = tallies
    sent, received = set(tally["sent"]), set(tally["received"])
    return Verdict(len(sent), len(received), len(sent - received), tally["doubled"], len(received - sent))


class WithFakes:
    """Runs an experiment with a fake worker, which has that fault."""

    # Short for those that have to reach them; the others may take their time.
    limits: ClassVar[dict[str, dict[str, float]]] = {
        "falls silent": {"SILENCE_LIMIT_S": 1.0, "WORKER_END_S": 1.0},
        "does not stop": {"OBEY_LIMIT_S": 1.5},
        "loses": {"DRAIN_IDLE_S": 0.3},
    }

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._monkeypatch = monkeypatch
        self._folder = folder
        monkeypatch.setattr(runner, "BLAME_S", 0.0)
        monkeypatch.setattr(runner, "make_workload", lambda parameters: FakeWorkload())
        monkeypatch.setattr(runner, "ThisMachine", FakeHost)
        monkeypatch.setattr(runner, "judge", fake_verdict)

    def run(self, fault: str, length_s: float = 0.2) -> dict[str, Any]:
        self._monkeypatch.setenv("FAULT", fault)
        for name, value in self.limits.get(fault, {}).items():
            self._monkeypatch.setattr(runner, name, value)
        text = TINY.replace('store = "memory"', 'kind = "foreign"\naddresses = ["127.0.0.1:1"]')
        experiment = described(self._folder, text.replace("length_s = 0.4", f"length_s = {length_s}"))
        return made(experiment, self._folder)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> WithFakes:
    return WithFakes(monkeypatch, tmp_path)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("dies while it connects", "worker-1 ended too early with exit code 3: out of sockets"),
        ("fails while it connects", "worker-1: client 0: refused"),
        ("speaks nonsense", "worker-1 printed a line that is not JSON: b'nonsense"),
        ("has a failed call", "worker-1: 1 calls failed"),
        ("falls silent", "worker-1 sent no output for 1.0 s"),
        ("does not stop", "worker-1 did not stop within 1.5 s"),
        ("loses", "1 messages of 2 are lost, 0 duplicated"),
        ("gets it twice", "0 messages of 2 are lost, 1 duplicated"),
        ("gets what was never sent", "1 messages were received that were never sent"),
    ],
)
def test_whatever_goes_wrong_fails_the_run_with_the_reason(fakes: WithFakes, fault: str, told: str) -> None:
    length_s = 30.0 if fault in ("speaks nonsense", "has a failed call", "falls silent") else 0.2
    with pytest.raises(LabError) as error:
        fakes.run(fault, length_s)
    assert told in str(error.value)


def test_a_host_that_is_gone_does_not_hide_why_the_run_failed(
    fakes: WithFakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def remove_and_be_gone(self: FakeHost, folder: str) -> None:
        shutil.rmtree(folder)
        raise LabError("cannot reach it")

    monkeypatch.setattr(FakeHost, "remove", remove_and_be_gone)
    with pytest.raises(LabError, match="worker-1: client 0: refused"):
        fakes.run("fails while it connects")


def test_the_same_without_a_fault_succeeds(fakes: WithFakes) -> None:
    manifest = fakes.run("none")
    assert manifest["checks"]["failed"] == 0
    assert manifest["warnings"] == ["no call was answered in the measured time: make it longer"]
    assert manifest["nodes"] == [{"name": "target-1"}]


def test_clients_that_are_the_bottleneck_are_a_warning(fakes: WithFakes) -> None:
    manifest = fakes.run("is too busy")
    assert manifest["clients"]["are_bottleneck"]
    assert "the clients may be the bottleneck" in manifest["warnings"][0]


def worker_that_used(samples: list[tuple[float, float]]) -> Worker:
    worker = Worker.__new__(Worker)
    worker.cpu_samples = samples
    worker.outcome = {"cpu_s": 9.0, "wall_s": 10.0}
    return worker


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        # Busy before and after, idle in the window from second 10 to 20.
        ([(9.0, 5.0), (10.5, 6.0), (19.5, 6.9), (21.0, 8.4)], 0.1),
        # Too few reports in the window: all there are.
        ([(5.0, 0.0), (15.0, 5.0)], 0.5),
        ([(15.0, 5.0)], 0.9),
    ],
)
def test_the_share_of_clients_is_that_of_the_measured_time(
    samples: list[tuple[float, float]], expected: float
) -> None:
    assert worker_that_used(samples).busy_ratio(10_000_000, 20_000_000) == pytest.approx(expected)


def test_reports_that_are_heard_late_make_no_worker_busier() -> None:
    worker = Worker(Peer("worker-1", ThisMachine(), "", "", Path(), 1.0), [0])
    for at_s in (0.0, 1.0, 2.0):
        worker.handle({"event": "progress", "cpu_s": at_s / 10, "at_s": at_s})
    assert worker.busy_ratio(0, 2_000_000) == pytest.approx(0.1)


def test_the_cpu_time_of_clients_is_that_of_the_measured_time_as_for_nodes(tmp_path: Path) -> None:
    manifest = made(described(tmp_path, TINY), tmp_path)
    assert manifest["clients"]["cpu_s"] == pytest.approx(0.4 * manifest["clients"]["busiest_cpu_ratio"], abs=0.001)


def test_a_run_whose_clients_have_done_all_they_had_to_do_ends_early(fakes: WithFakes) -> None:
    manifest = fakes.run("is done early", length_s=60)
    measured = manifest["measured"]
    assert 0 < measured["until_us"] - measured["from_us"] < 30_000_000


@pytest.mark.parametrize(
    ("clients", "workers", "hosts", "expected"),
    [(1, 0, 0, 1), (50, 0, 0, 1), (51, 0, 0, 2), (1000, 0, 0, 4), (1000, 7, 0, 7), (3, 7, 0, 3), (10, 0, 3, 3)],
)
def test_clients_are_spread_over_processes(
    tmp_path: Path, clients: int, workers: int, hosts: int, expected: int
) -> None:
    urls = [f"ssh://host-{number}" for number in range(hosts)]
    experiment = described(tmp_path, TINY + f"[clients]\nworkers = {workers}\nhosts = {urls}\n")
    assert worker_count(experiment, clients, core_count=2) == expected


def test_a_workload_may_need_several_processes(tmp_path: Path) -> None:
    experiment = described(tmp_path, TINY)
    assert [worker_count(experiment, clients, core_count=2, least=2) for clients in (1, 3)] == [1, 2]
