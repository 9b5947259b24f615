"""Campaigns: which runs are made, kept and thrown away."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from flyball.errors import LabError
from flyball.lab import campaign
from flyball.lab.campaign import run_all
from flyball.lab.plan import Plan, PlannedRun, plan
from flyball.lab.results import Results
from flyball.lab.runner import Live
from tests.lab.descriptions import TINY, described


class Notes:
    """Notes what a campaign tells."""

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
