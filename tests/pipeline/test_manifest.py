"""The lab's manifests of experiments and runs are read, and invalid ones are named with the problem."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyball.errors import PipelineError
from flyball.pipeline.manifest import Measured, Reference, View, cell_of, read_experiments, read_runs
from tests.pipeline.traces import START_US, write_experiment, write_run


def test_experiments_are_found_at_any_depth(tmp_path: Path) -> None:
    write_experiment(tmp_path / "deep" / "clients", "b")
    write_experiment(tmp_path / "sizes", "a")
    assert [experiment.name for experiment in read_experiments(tmp_path)] == ["a", "b"]


def test_views_and_references_are_read_with_what_they_leave_out(tmp_path: Path) -> None:
    write_experiment(
        tmp_path,
        views=[{"kind": "curve", "x": "workload.clients"}],
        references=[{"label": "table 8", "metric": "throughput", "mean": 343.1, "low": -48.7}],
    )
    [experiment] = read_experiments(tmp_path)
    assert experiment.views == [View("curve", x="workload.clients")]
    assert experiment.references == [Reference("table 8", "throughput", 343.1, low=-48.7)]
    assert experiment.references[0].high is None


def test_a_run_knows_its_cell_and_its_measured_window(tmp_path: Path) -> None:
    write_run(tmp_path, "clients.b.r1", length_s=2.0, factors={"b": 2, "a": "x"})
    [run] = read_runs(tmp_path)
    assert run.run == "clients.b.r1"
    assert run.measured == Measured(START_US, START_US + 2_000_000)
    assert run.cell == '{"a": "x", "b": 2}'
    assert run.cell == cell_of({"a": "x", "b": 2})


def test_a_run_without_manifest_is_not_complete(tmp_path: Path) -> None:
    (tmp_path / "run=unfinished").mkdir()
    write_run(tmp_path, "finished")
    assert [run.run for run in read_runs(tmp_path)] == ["finished"]


def test_facts_that_a_later_version_adds_are_ignored(tmp_path: Path) -> None:
    write_run(tmp_path, "r", weather="fine")
    assert [run.run for run in read_runs(tmp_path)] == ["r"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"version": 2}', "has version 2, this pipeline reads 1"),
        ('{"version": 1, "measured": {"from_us": 1, "until_us": 2}}', "run"),
        ('{"version": 1, "run": "r", "measured": {"from_us": "then", "until_us": 2}}', "measured.from_us"),
    ],
)
def test_a_wrong_manifest_is_named_with_its_problem(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "run.json").write_text(text, encoding="utf-8")
    with pytest.raises(PipelineError) as caught:
        read_runs(tmp_path)
    assert str(tmp_path / "run.json") in str(caught.value)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_runs_of_one_id_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "one", "r")
    write_run(tmp_path / "other", "r")
    with pytest.raises(PipelineError, match="two runs 'r'"):
        read_runs(tmp_path)
