"""The workload of docs/how-it-works/lab-workload.md runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flyball.errors import LabError
from flyball.lab.drivers import PROTOCOLS
from flyball.lab.experiment import load
from flyball.lab.workloads import make_workload
from tests.lab.runs import run, target_of
from tests.nodes import RunningNode

PAGE = (Path(__file__).parents[2] / "docs" / "how-it-works" / "lab-workload.md").read_text(encoding="utf-8")


def block(kind: str) -> str:
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "bursts.py").write_text(block("python"))
    monkeypatch.syspath_prepend(str(tmp_path))
    return "bursts"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_example_runs_over_every_protocol(
    protocol: str, module: str, memory_node: RunningNode, tmp_path: Path
) -> None:
    parameters = {"kind": f"{module}:Bursts", "protocol": protocol, "clients": 2, "pause_s": 0.001}
    outcome = run(parameters, [target_of(memory_node, protocol)], tmp_path / "traces")
    assert outcome.failure == ""
    assert outcome.total("sent") == outcome.total("received") >= 50


def test_the_example_is_short() -> None:
    assert len(block("python").splitlines()) < 40


def test_an_experiment_may_name_the_example(module: str, tmp_path: Path) -> None:
    path = tmp_path / "bursts.toml"
    path.write_text(block("toml"))
    experiment = load(path)
    assert [cell["workload.burst"] for cell in experiment.cells()] == [1, 10, 100]


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        ("no_such_module:Bursts", "cannot import no_such_module"),
        ("bursts:Nothing", "bursts has no workload Nothing"),
        ("bursts:Client", "bursts has no workload Client"),
    ],
)
def test_what_is_no_workload_is_refused(kind: str, complaint: str, module: str) -> None:
    with pytest.raises(LabError, match=complaint):
        make_workload({"kind": kind})
