"""`flyball lab`: what it prints, and that a run survives an interruption."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner, Result

from flyball.cli import experiment_commands
from flyball.cli.main import app
from flyball.lab.campaign import Failure, Watcher
from flyball.lab.experiment import shipped_experiments
from flyball.lab.papers import PAPERS
from flyball.lab.plan import Plan
from flyball.lab.results import Results

QUIET = {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}

TINY = """
title = "Tiny"
[target]
store = "memory"
[workload]
kind = "send_and_pop"
[run]
repetitions = 1
warm_up_s = 0.1
length_s = 0.3
cool_down_s = 0.1
[sweep]
"workload.clients" = [1, 2]
"""


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY, encoding="utf-8")
    return str(path)


def lab(*arguments: str) -> Result:
    result = CliRunner().invoke(app, ["lab", *arguments], env=QUIET)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_list_shows_the_shipped_experiments() -> None:
    names = [experiment.name for experiment in shipped_experiments()]
    rows = lab("list").stdout.partition("\n\n")[0].splitlines()[1:]
    assert [row.split()[0] for row in rows] == names
    assert [json.loads(line)["name"] for line in lab("list", "--json").stdout.splitlines()] == names


def test_list_cites_every_paper() -> None:
    papers = lab("list").stdout.partition("\n\n")[2]
    for paper in PAPERS:
        assert f"{paper.name}\n    {paper.citation}\n" in papers


def test_former_names_of_papers_are_accepted() -> None:
    for paper in PAPERS:
        one = next(each for each in shipped_experiments() if each.name.startswith(f"{paper.name}/"))
        former = one.name.replace(paper.name, paper.former_name, 1)
        assert lab("show", former).stdout == lab("show", one.name).stdout


def test_list_of_a_folder_shows_what_lies_in_it(tiny: str, tmp_path: Path) -> None:
    assert lab("list", str(tmp_path)).stdout.splitlines()[1].split()[:2] == ["tiny", "Tiny"]
    (tmp_path / "empty").mkdir()
    assert lab("list", str(tmp_path / "empty")).stdout == "no experiments here\n"


def test_list_shows_the_good_files_and_names_the_wrong_one(tiny: str, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("titel = 3\n", encoding="utf-8")
    result = lab("list", str(tmp_path))
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["name", "tiny"]
    assert result.exit_code == 1
    assert result.stderr == f"flyball: {tmp_path / 'bad.toml'}: titel: no such key; did you mean title?\n"
    as_json = lab("list", str(tmp_path), "--json")
    assert (json.loads(as_json.stdout)["name"], as_json.exit_code) == ("tiny", 1)


def test_show_tells_target_workload_cells_and_time(tiny: str) -> None:
    shown = lab("show", tiny, "--set", "workload.body_bytes=77").stdout
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert lines[0] == "tiny: Tiny"
    for line in ("nodes 1, store memory", "workload kind send_and_pop", "workload body_bytes 77", "workload.clients"):
        assert line in lines
    assert lines[-1].startswith("2 cells, 1 repetition each: 2 runs, about ")


def test_show_of_a_quick_experiment_is_shorter(tmp_path: Path) -> None:
    path = tmp_path / "long.toml"
    path.write_text(TINY.replace("length_s = 0.3", "length_s = 600"), encoding="utf-8")
    assert "measured 600 s" in lab("show", str(path)).stdout
    assert "measured 7 s" in lab("show", str(path), "--quick").stdout


def test_what_is_set_holds_in_a_quick_run_as_well(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    quick = '\n[quick]\n"run.length_s" = 2\nsweep = { "workload.clients" = [1] }\n'
    path.write_text(TINY + quick, encoding="utf-8")
    shown = lab("show", str(path), "--quick").stdout
    assert "measured 2 s" in shown
    assert "1 cell" in shown
    more = lab("show", str(path), "--quick", "--set", "run.length_s=3", "--set", "sweep.workload.clients=[1, 2, 3]")
    assert "measured 3 s" in more.stdout
    assert "3 cells" in more.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["show", "thorbangmq/no"], "no experiment 'thorbangmq/no'"),
        (["show", "no.toml"], "cannot read no.toml: No such file or directory"),
        (["show", "TINY", "--set", "workload.client=1"], "workload.client: no such key; did you mean clients?"),
        (["show", "TINY", "--set", "workload.clients"], "invalid --set workload.clients: use KEY=VALUE"),
        (
            ["show", "TINY", "--set", "workload.clients=1"],
            "the value is swept; set its levels, as in --set 'sweep.work",
        ),
        (["show", "TINY", "--set", "sweep.workload.clients=[0]"], "workload.clients: Input should be greater than"),
        (["list", "no-folder"], "no-folder is not a folder"),
        (["reproduce", "seed-9", "--out", "x"], "unknown paper 'seed-9': use selfware, admission, thorbangmq, "),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_1(tiny: str, arguments: list[str], told: str) -> None:
    result = lab(*[tiny if argument == "TINY" else argument for argument in arguments])
    assert result.exit_code == 1
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


def test_comparing_needs_two_folders() -> None:
    result = lab("compare", "one")
    assert (result.exit_code, result.stderr) == (2, "flyball: use two or more result folders\n")


def test_levels_can_be_given_on_the_command_line(tiny: str) -> None:
    assert "3 cells" in lab("show", tiny, "--set", "sweep.workload.clients=[1, 2, 3]").stdout
    assert "4 cells" in lab("show", tiny, "--set", 'sweep.target.store=["memory", "null"]').stdout


def test_values_that_need_each_other_can_be_given_together(tiny: str) -> None:
    shown = lab("show", tiny, "--set", "target.kind=foreign", "--set", 'target.addresses=["127.0.0.1:8123"]').stdout
    assert "127.0.0.1:8123" in shown


def test_a_failed_run_is_told_with_where_to_look_and_exit_code_1(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(plan: Plan, results: Results, watcher: Watcher, *, keeps_going: bool) -> list[Failure]:
        watcher.fail(plan.runs[0], "client 1: refused", tmp_path)
        return [Failure(plan.runs[0].run_id, "client 1: refused", tmp_path / "failed=x")]

    monkeypatch.setattr(experiment_commands, "run_all", fail)
    result = lab("run", tiny, "--out", str(tmp_path / "out"))
    assert result.exit_code == 1
    assert "failed: client 1: refused. Its logs are in " in result.stderr
    assert "failed=x" in result.stderr


def test_reproduce_runs_all_experiments_and_writes_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def note(plan: Plan, results: Results, watcher: Watcher, *, keeps_going: bool) -> list[Failure]:
        assert plan.is_quick
        made.append(plan.experiment.name)
        return []

    def write_report_of(source: Path, out: Path) -> Path:
        made.append(f"report on {source.relative_to(tmp_path)} in {out.relative_to(tmp_path)}")
        return out / "report.html"

    monkeypatch.setattr(experiment_commands, "run_all", note)
    monkeypatch.setattr("flyball.cli.pipeline.write_report_of", write_report_of)
    result = lab("reproduce", "telesto", "--out", str(tmp_path / "out"), "--quick")
    assert result.exit_code == 0, result.stderr
    experiments = [one.name for one in shipped_experiments() if one.name.startswith("telesto/")]
    assert made == [*experiments, "report on out/results in out"]


def test_reproducing_a_seed_goes_on_after_a_failed_run_if_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def fail(plan: Plan, results: Results, watcher: Watcher, *, keeps_going: bool) -> list[Failure]:
        made.append(plan.experiment.name)
        return [Failure(plan.runs[0].run_id, "client 1: refused", tmp_path / "failed=x")]

    def write_report_of(source: Path, out: Path) -> Path:
        made.append("report")
        return out / "report.html"

    monkeypatch.setattr(experiment_commands, "run_all", fail)
    monkeypatch.setattr("flyball.cli.pipeline.write_report_of", write_report_of)
    arguments = ["reproduce", "telesto", "--quick", "--out", str(tmp_path / "out")]
    assert lab(*arguments).exit_code == 1
    first, *others = (one.name for one in shipped_experiments() if one.name.startswith("telesto/"))
    assert made == [first]

    result = lab(*arguments, "--keep-going")
    assert made == [first, first, *others, "report"]
    assert result.exit_code == 1
    assert f"failed (and {len(others)} more): client 1: refused. Its logs are in " in result.stderr


def test_reproducing_a_seed_asks_for_missing_packages_before_it_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = lab("reproduce", "telesto", "--out", str(tmp_path / "out"))
    assert (result.exit_code, "pip install 'flyball[pipeline]'" in result.stderr) == (1, True)
    assert not (tmp_path / "out").exists()


def test_experiments_of_a_paper_run_in_order_of_their_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def note(plan: Plan, results: Results, watcher: Watcher, *, keeps_going: bool) -> list[Failure]:
        made.append(plan.experiment.name)
        if plan.experiment.needs:
            results.earlier_runs()
        return []

    monkeypatch.setattr(experiment_commands, "run_all", note)
    monkeypatch.setattr("flyball.cli.pipeline.write_report_of", lambda source, out: made.append("report"))
    arguments = ["reproduce", "prefetch", "--quick", "--out", str(tmp_path / "out")]
    assert lab(*arguments).exit_code == 1
    assert made[-2] == "prefetch/identification"
    made.clear()
    result = lab(*arguments, "--keep-going")
    assert len(made) == len(set(made)) == 7
    assert made[-1] == "report"
    assert result.exit_code == 1
    assert "begins with the results of prefetch/identification" in result.stderr


def test_an_experiment_without_what_it_needs_says_what_to_run_first(tmp_path: Path) -> None:
    assert "the results of prefetch/identification" in lab("show", "prefetch/disturbances").stdout
    result = lab("run", "prefetch/disturbances", "--quick", "--out", str(tmp_path))
    assert result.exit_code == 1
    assert f"first: flyball lab run prefetch/identification --quick --out {tmp_path}\n" in result.stderr


def test_packages_for_an_adaptive_consumer_are_asked_for_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = lab("run", "prefetch/open-loop", "--quick", "--out", str(tmp_path / "out"))
    assert (result.exit_code, "pip install 'flyball[control]'" in result.stderr) == (1, True)
    assert not (tmp_path / "out").exists()


def start(tiny: str, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "flyball", "lab", "run", tiny, "--out", str(out)]
    environment = {**os.environ, **QUIET, "PYTHONUNBUFFERED": "1", "TMPDIR": str(out.parent)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def test_an_interrupted_experiment_keeps_what_it_has_and_goes_on_from_there(tiny: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    running = start(tiny, out)
    assert running.stdout is not None
    # One run is complete when its line is printed; the next one has begun or is about to.
    first = running.stdout.readline()
    below = psutil.Process(running.pid).children(recursive=True)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate()
    assert running.returncode == 130
    assert errors == "flyball: interrupted: completed runs are kept; repeat the command without --fresh to continue\n"
    _, alive = psutil.wait_procs(below, timeout=60)
    assert alive == []
    assert len(list(out.glob("tiny/run=*"))) == 1
    assert list(out.glob("tiny/.run=*")) == []
    assert list(tmp_path.glob("flyball-lab-*")) == []

    again = start(tiny, out)
    output, errors = again.communicate()
    assert (again.returncode, errors) == (0, "")
    # The first run is not made again, but counted.
    assert first.split(":")[0] not in output
    assert [line.split()[:2] for line in output.splitlines() if line.strip()[:2] in ("1 ", "2 ")] == [
        ["1", "1"],
        ["2", "1"],
    ]
    assert f"flyball pipeline report {out}" in output
    assert len(list(out.glob("tiny/run=*"))) == 2


def test_a_full_disk_is_said_in_one_line(tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device", "out/run")

    monkeypatch.setattr("flyball.lab.results.Results.begin", full)
    result = CliRunner().invoke(app, ["lab", "run", tiny, "--out", str(tmp_path / "out")], env=QUIET)
    assert (result.exit_code, result.stderr) == (
        1,
        "flyball: out/run: No space left on device. Free some disk space and run the command again.\n",
    )


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--policy", "dsp"], "invalid --policy 'dsp': use none, integral, "),
        (["--users", "3"], "--users: users: a site needs 20 at least"),
        (["--pool-size", "0"], "--pool-size: Input should be greater than or equal to 1"),
    ],
)
def test_an_auction_site_that_cannot_be_is_refused_in_one_line(options: list[str], complaint: str) -> None:
    done = lab("auction", *options)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(f"flyball: {complaint}")
    assert done.stderr.count("\n") == 1


def test_an_auction_site_serves_until_it_is_interrupted() -> None:
    command = [sys.executable, "-m", "flyball", "lab", "auction", "--port", "0", "--pool-size", "2"]
    command += ["--users", "100", "--items", "50", "--old-items", "20"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[2]
        with urllib.request.urlopen(f"{address}admission") as answer:
            assert json.load(answer)["name"] == "admission"
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        said, complaints = process.communicate(timeout=60)
    assert (process.returncode, said.splitlines()[-1], complaints) == (0, "ended", "")
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []
