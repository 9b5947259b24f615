"""The folder of results: what is kept, refused and deleted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

import flyball
from flyball.errors import LabError
from flyball.lab.plan import plan
from flyball.lab.results import Results
from flyball.pipeline.manifest import read_experiments, read_runs
from tests.lab.descriptions import TINY, described

VIEWED = TINY + '[sweep]\n"workload.clients" = [1, 2]\n[[view]]\nkind = "curve"\nx = "workload.clients"\n'
MANIFEST: dict[str, object] = {"version": 1, "run": "", "measured": {"from_us": 1, "until_us": 2}}


def opened(folder: Path, text: str, *, is_fresh: bool = False, is_quick: bool = False) -> tuple[Results, list[str]]:
    """Open the results of a description; also return the runs that are complete."""
    laid_out = plan(described(folder, text), is_quick=is_quick)
    results = Results(folder / "out", laid_out)
    results.open(is_fresh=is_fresh)
    return results, [run.run_id for run in laid_out.runs if results.is_complete(run)]


def with_one_run(folder: Path) -> Results:
    laid_out = plan(described(folder, VIEWED))
    results = Results(folder / "out", laid_out)
    results.open(is_fresh=False)
    (results.begin(laid_out.runs[0]) / "traces" / "calls-x.parquet").write_bytes(b"x")
    results.complete(laid_out.runs[0], MANIFEST | {"run": laid_out.runs[0].run_id})
    return results


def test_the_pipeline_reads_what_the_lab_writes(tmp_path: Path) -> None:
    results = with_one_run(tmp_path)
    (experiment,) = read_experiments(results.folder)
    assert (experiment.name, experiment.factors, experiment.run_count) == ("tiny", {"workload.clients": [1, 2]}, 2)
    assert (experiment.views[0].kind, experiment.views[0].x) == ("curve", "workload.clients")
    (run,) = read_runs(results.folder)
    assert (results.folder / f"run={run.run}" / "traces" / "calls-x.parquet").exists()


def test_complete_runs_are_found_again(tmp_path: Path) -> None:
    with_one_run(tmp_path)
    _, complete = opened(tmp_path, VIEWED)
    assert len(complete) == 1


def test_another_title_or_view_does_not_make_other_results(tmp_path: Path) -> None:
    with_one_run(tmp_path)
    _, complete = opened(tmp_path, VIEWED.replace('"curve"', '"table"').replace('"Tiny"', '"Small"'))
    assert len(complete) == 1


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("length_s = 0.4", "length_s = 0.5", "run.length_s was 0.4, now 0.5"),
        ('"memory"', '"null"', 'target.store was "memory", now "null"'),
        ("[1, 2]", "[1, 2, 3]", "sweep.workload.clients was "),
        ("[run]", "body_bytes = 9\n[run]", "workload.body_bytes was null, now 9"),
    ],
)
def test_results_of_another_definition_are_refused(tmp_path: Path, right: str, wrong: str, told: str) -> None:
    with_one_run(tmp_path)
    with pytest.raises(LabError) as error:
        opened(tmp_path, VIEWED.replace(right, wrong))
    assert told in str(error.value)
    assert "give --fresh to delete them, or another --out" in str(error.value)


def test_results_of_another_version_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_one_run(tmp_path)
    monkeypatch.setattr("flyball.__version__", "9.9")
    with pytest.raises(LabError, match=r'flyball was ".*", now "9\.9"'):
        opened(tmp_path, VIEWED)


def test_a_folder_without_runs_takes_another_definition(tmp_path: Path) -> None:
    opened(tmp_path, VIEWED)
    _, complete = opened(tmp_path, VIEWED, is_quick=True)
    assert complete == []


def test_quick_results_are_not_mixed_with_others(tmp_path: Path) -> None:
    with_one_run(tmp_path)
    with pytest.raises(LabError, match="is_quick was false, now true"):
        opened(tmp_path, VIEWED, is_quick=True)


def test_fresh_throws_earlier_results_away_but_nothing_else(tmp_path: Path) -> None:
    results = with_one_run(tmp_path)
    (tmp_path / "out" / "mine.txt").write_text("x")
    _, complete = opened(tmp_path, VIEWED.replace("0.4", "0.5"), is_fresh=True)
    assert complete == []
    assert (tmp_path / "out" / "mine.txt").exists()
    assert [path.name for path in results.folder.glob("run=*")] == []


def test_a_half_made_run_is_no_result_and_is_removed_at_the_next_start(tmp_path: Path) -> None:
    laid_out = plan(described(tmp_path, VIEWED))
    results = Results(tmp_path / "out", laid_out)
    results.open(is_fresh=False)
    half_made = results.begin(laid_out.runs[0])
    assert read_runs(results.folder) == []
    opened(tmp_path, VIEWED)
    assert not half_made.exists()


def test_failed_run_keeps_its_reason_and_logs_until_it_is_repeated(tmp_path: Path) -> None:
    laid_out = plan(described(tmp_path, VIEWED))
    results = Results(tmp_path / "out", laid_out)
    results.open(is_fresh=False)
    run = laid_out.runs[0]
    folder = results.begin(run)
    (folder / "logs" / "node-1.log").write_text("why")
    kept = results.fail(run, "node-1 died")
    assert kept.name == f"failed={run.run_id}"
    assert (kept / "reason.txt").read_text() == "node-1 died\n"
    assert (kept / "logs" / "node-1.log").exists()
    assert not results.is_complete(run)
    results.begin(run)
    assert not kept.exists()


def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    results = with_one_run(tmp_path)
    (results.folder / "definition.json").write_text("{")
    with pytest.raises(LabError, match=r"cannot read .*definition\.json.*--fresh"):
        opened(tmp_path, VIEWED)


def test_a_password_is_in_no_file_of_the_results(tmp_path: Path) -> None:
    text = VIEWED.replace('"memory"', '"postgresql://me:secret@h/d"\npassword = "hidden"')
    results, _ = opened(tmp_path, text)
    for path in results.folder.rglob("*.json"):
        assert "secret" not in path.read_text()
        assert "hidden" not in path.read_text()
        json.loads(path.read_text())


NEEDING = 'needs = "group/first"\n' + TINY


def first_results(folder: Path, runs: int, definition: Mapping[str, object] | None = None) -> None:
    """Write results of an experiment that others need."""
    for number in range(runs):
        run = folder / "out" / "group-first" / f"run={number}"
        run.mkdir(parents=True)
        (run / "run.json").write_text(json.dumps({**MANIFEST, "target": {"kind": "flyball"}}))
    (folder / "out" / "group-first" / "experiment.json").write_text(json.dumps({"run_count": 2}))
    made = {"flyball": flyball.__version__, "is_quick": False, **(definition or {})}
    (folder / "out" / "group-first" / "definition.json").write_text(json.dumps(made))


def test_the_runs_of_the_experiment_that_is_needed_are_found_beside_it(tmp_path: Path) -> None:
    first_results(tmp_path, runs=2)
    results, _ = opened(tmp_path, NEEDING)
    traces = [run.traces for run in results.earlier_runs()]
    assert traces == [tmp_path / "out" / "group-first" / f"run={number}" / "traces" for number in (0, 1)]


def test_an_experiment_that_needs_nothing_begins_with_nothing(tmp_path: Path) -> None:
    results, _ = opened(tmp_path, TINY)
    assert results.earlier_runs() == []


@pytest.mark.parametrize("is_quick", [False, True])
def test_what_has_to_be_run_first_is_told_with_the_command(is_quick: bool, tmp_path: Path) -> None:
    results, _ = opened(tmp_path, NEEDING, is_quick=is_quick)
    out = tmp_path / "out"
    command = f"flyball lab run group/first{' --quick' * is_quick} --out {out}"
    with pytest.raises(LabError) as missing:
        results.earlier_runs()
    assert str(missing.value) == (
        f"tiny begins with the results of group/first, and in {out} they are not there; first: {command}"
    )
    first_results(tmp_path, runs=1, definition={"is_quick": is_quick})
    with pytest.raises(LabError, match="they are not complete: 1 of 2 runs; first: "):
        results.earlier_runs()


@pytest.mark.parametrize(
    ("made", "is_quick", "says"),
    [
        (
            {"flyball": "0.0.1"},
            False,
            f"they are of Flyball 0.0.1, not {flyball.__version__}; first: .* --fresh --out",
        ),
        ({"is_quick": True}, False, "they were made with --quick; first: flyball lab run group/first --fresh --out "),
        ({"is_quick": False}, True, "they were made without --quick; first: .*group/first --quick --fresh --out "),
    ],
)
def test_results_of_another_version_or_of_another_length_are_of_no_use(
    made: dict[str, object], is_quick: bool, says: str, tmp_path: Path
) -> None:
    first_results(tmp_path, runs=2, definition=made)
    results, _ = opened(tmp_path, NEEDING, is_quick=is_quick)
    with pytest.raises(LabError, match=says):
        results.earlier_runs()


def test_results_that_cannot_be_made_again_are_not_thrown_away(tmp_path: Path) -> None:
    first_results(tmp_path, runs=2)
    results, _ = opened(tmp_path, NEEDING)
    (tmp_path / "out" / "group-first" / "run=0" / "run.json").unlink()
    with pytest.raises(LabError, match="1 of 2 runs"):
        results.open(is_fresh=True)
    assert (results.folder / "definition.json").exists()
