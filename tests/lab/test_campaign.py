"""Campaigns: which runs are made, kept and deleted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import flyball
from flyball.errors import LabError
from flyball.lab import campaign
from flyball.lab.campaign import run_all
from flyball.lab.plan import Plan, PlannedRun, plan
from flyball.lab.results import Results, write_json
from flyball.lab.runner import Live
from tests.lab.descriptions import TINY, described


class Notes:
    """Notes the progress of a campaign."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.failed: list[str] = []

    def begin(self, run: PlannedRun) -> None:
        self.begun.append(run.run_id)

    def live(self, live: Live) -> None:
        pass

    def end(self, run: PlannedRun, manifest: Mapping[str, Any]) -> None:
        self.ended.append(run.run_id)

    def fail(self, run: PlannedRun, reason: str, folder: Path) -> None:
        self.failed.append(f"{run.run_id}: {reason}")


@pytest.fixture
def three(tmp_path: Path) -> Plan:
    return plan(described(tmp_path, TINY + '[sweep]\n"workload.clients" = [1, 2, 3]\n'))


@pytest.fixture
def results(tmp_path: Path, three: Plan) -> Results:
    found = Results(tmp_path / "out", three)
    found.open(is_fresh=False)
    return found


MakeRuns = Callable[[dict[str, BaseException]], None]


@pytest.fixture
def make_runs(monkeypatch: pytest.MonkeyPatch) -> MakeRuns:
    """Let runs succeed at once but for those whose error is given."""

    def replace(errors: dict[str, BaseException]) -> None:
        async def make_run(run: PlannedRun, folder: Path, tell: object) -> dict[str, Any]:
            if run.run_id in errors:
                raise errors[run.run_id]
            return {"run": run.run_id}

        monkeypatch.setattr(campaign, "make_run", make_run)

    return replace


def test_what_is_complete_is_not_made_again(three: Plan, results: Results, make_runs: MakeRuns) -> None:
    make_runs({})
    results.begin(three.runs[1])
    results.complete(three.runs[1], {"run": "earlier"})
    notes = Notes()
    assert run_all(three, results, notes, keeps_going=False) == []
    ids = [run.run_id for run in three.runs]
    assert notes.begun == [ids[0], ids[2]]
    assert notes.ended == ids
    assert all(results.is_complete(run) for run in three.runs)


def test_a_failed_run_ends_the_campaign(three: Plan, results: Results, make_runs: MakeRuns) -> None:
    bad = three.runs[1]
    make_runs({bad.run_id: LabError("worker-1 died")})
    notes = Notes()
    (failure,) = run_all(three, results, notes, keeps_going=False)
    assert (failure.run_id, failure.reason) == (bad.run_id, "worker-1 died")
    assert (failure.folder / "reason.txt").read_text() == "worker-1 died\n"
    assert notes.begun == [run.run_id for run in three.runs[:2]]
    assert notes.failed == [f"{bad.run_id}: worker-1 died"]


def test_it_goes_on_after_a_failed_run_if_told_so(three: Plan, results: Results, make_runs: MakeRuns) -> None:
    make_runs({three.runs[0].run_id: LabError("a"), three.runs[2].run_id: LabError("b")})
    failures = run_all(three, results, Notes(), keeps_going=True)
    assert [failure.reason for failure in failures] == ["a", "b"]
    assert results.is_complete(three.runs[1])


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("a defect")])
def test_an_interrupted_run_is_thrown_away_and_the_others_stay(
    three: Plan, results: Results, make_runs: MakeRuns, error: BaseException
) -> None:
    make_runs({three.runs[1].run_id: error})
    with pytest.raises(type(error)):
        run_all(three, results, Notes(), keeps_going=True)
    assert [path.name for path in results.folder.glob("*run=*")] == [f"run={three.runs[0].run_id}"]


PREPARING = """
from flyball.lab.workloads.send_and_pop import SendAndPop

class Preparing(SendAndPop):
    kind: str

    def prepare(self, earlier):
        return {"learned": [run.manifest["says"] for run in earlier]}
"""


@pytest.fixture
def needing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Plan, Results]:
    """An experiment that begins with the results of another, of which there are two runs on RabbitMQ."""
    (tmp_path / "preparing.py").write_text(PREPARING)
    monkeypatch.syspath_prepend(str(tmp_path))
    for number in range(2):
        run = tmp_path / "out" / "first" / f"run={number}"
        run.mkdir(parents=True)
        write_json(run / "run.json", {"target": {"kind": "rabbitmq"}, "says": number})
    write_json(tmp_path / "out" / "first" / "experiment.json", {"run_count": 2})
    write_json(tmp_path / "out" / "first" / "definition.json", {"flyball": flyball.__version__, "is_quick": False})
    text = 'needs = "first"\n' + TINY.replace('"send_and_pop"', '"preparing:Preparing"\nprotocol = "amqp"')
    laid_out = plan(described(tmp_path, text).changed({"target.kind": "rabbitmq"}))
    results = Results(tmp_path / "out", laid_out)
    results.open(is_fresh=False)
    return laid_out, results


def test_a_run_gets_what_its_workload_takes_from_the_experiment_that_it_needs(
    needing: tuple[Plan, Results], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def make_run(run: PlannedRun, folder: Path, tell: object) -> dict[str, Any]:
        return run.prepared

    monkeypatch.setattr(campaign, "make_run", make_run)
    laid_out, results = needing
    assert run_all(laid_out, results, Notes(), keeps_going=False) == []
    assert results.manifest(laid_out.runs[0]) == {"learned": [0, 1]}


def test_results_on_another_kind_of_target_are_of_no_use(
    needing: tuple[Plan, Results], make_runs: MakeRuns, tmp_path: Path
) -> None:
    make_runs({})
    laid_out, _ = needing
    elsewhere = plan(laid_out.experiment.changed({"target.kind": "flyball"}))
    results = Results(tmp_path / "out", elsewhere)
    results.open(is_fresh=True)
    with pytest.raises(LabError, match="first was not run on flyball; run it there first"):
        run_all(elsewhere, results, Notes(), keeps_going=True)


def test_what_was_learned_of_one_foreign_target_is_of_no_use_for_another(
    needing: tuple[Plan, Results], make_runs: MakeRuns, tmp_path: Path
) -> None:
    make_runs({})
    laid_out, _ = needing
    learned = {"target": {"kind": "foreign", "addresses": ["here:5672"]}, "says": 0}
    write_json(tmp_path / "out" / "first" / "run=0" / "run.json", learned)
    for address, is_known in (("here:5672", True), ("there:5672", False)):
        foreign = plan(laid_out.experiment.changed({"target.kind": "foreign", "target.addresses": [address]}))
        results = Results(tmp_path / "out", foreign)
        results.open(is_fresh=True)
        if is_known:
            assert run_all(foreign, results, Notes(), keeps_going=True) == []
        else:
            with pytest.raises(LabError, match="first was not run on foreign there:5672; run it there first"):
                run_all(foreign, results, Notes(), keeps_going=True)
