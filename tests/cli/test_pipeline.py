"""`flyball pipeline`, as processes: what they print, where, and their exit codes."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.traces import steady_requests, write_experiment, write_requests, write_steady_run
from typer.testing import CliRunner

from flyball.cli import pipeline
from flyball.cli.main import app
from flyball.errors import PipelineError
from flyball.pipeline import session
from flyball.pipeline.analysis import Analysis

FLYBALL = (sys.executable, "-m", "flyball", "pipeline")
# Spark alone takes seconds to start, and more where the machine has other things to do.
LIMIT_S = 240.0


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*FLYBALL, *map(str, arguments), "--master", "local[2]", "--memory", "1g"]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def assert_one_line(text: str) -> None:
    assert text.startswith("flyball: ")
    assert text.count("\n") == 1


def test_a_report_is_written_with_its_tables(tmp_path: Path) -> None:
    write_steady_run(write_experiment(tmp_path / "results" / "clients"), "clients.1.r1")
    broken = tmp_path / "results" / "trace-broken.parquet"
    broken.write_bytes(b"PAR1")
    done = run("report", tmp_path / "results", "--out", tmp_path / "out")
    assert (done.returncode, done.stderr) == (
        0,
        f"flyball: left out: {broken} is truncated, or not a Parquet file\n",
    )
    assert done.stdout == f"report: {tmp_path / 'out' / 'report.html'}\ntables: {tmp_path / 'out' / 'tables'}\n"
    assert (tmp_path / "out" / "report.html").exists()
    assert (tmp_path / "out" / "tables" / "measures.csv").exists()


@pytest.mark.parametrize("command", ["report", "ingest", "profile", "identify", "capacity"])
@pytest.mark.parametrize(("source", "problem"), [("empty", "no traces in"), ("missing", "does not exist")])
def test_a_source_without_traces_is_said_in_one_line_before_spark_starts(
    tmp_path: Path, command: str, source: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "spark_session", None)
    (tmp_path / "empty").mkdir()
    result = CliRunner().invoke(app, ["pipeline", command, str(tmp_path / source), "--out", str(tmp_path / "out")])
    assert (result.exit_code, result.stdout) == (1, "")
    assert_one_line(result.stderr)
    assert problem in result.stderr


def test_new_files_are_followed_until_ctrl_c(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_requests(data / "trace-a-1.parquet", steady_requests(10))
    command = [*FLYBALL, "ingest", str(data), "--out", str(tmp_path / "store"), "--follow", "--memory", "1g"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1 files, 10 rows\n"
        write_requests(data / ".trace-a-2.parquet", steady_requests(5))
        os.rename(data / ".trace-a-2.parquet", data / "trace-a-2.parquet")
        assert process.stdout.readline() == "2 files, 15 rows\n"
        process.send_signal(signal.SIGINT)
        rest, complaints = process.communicate(timeout=60)
    assert (process.returncode, rest, complaints) == (130, "", "")


def test_a_wrong_setting_of_spark_is_said_in_one_line(tmp_path: Path) -> None:
    write_requests(tmp_path / "data" / "trace-a-1.parquet", steady_requests(10))
    command = [*FLYBALL, "report", str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--memory", "1k"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 1
    assert_one_line(done.stderr)
    assert "memory" in done.stderr


def test_traces_without_a_capacity_are_reported_in_one_line(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # That Spark itself says nothing is seen where a process writes a report.
    monkeypatch.setattr(session, "spark_session", lambda settings: contextlib.nullcontext(spark))
    write_requests(tmp_path / "data" / "trace-a-1.parquet", steady_requests(200))
    result = CliRunner().invoke(app, ["pipeline", "capacity", str(tmp_path / "data"), "--out", str(tmp_path / "out")])
    assert (result.exit_code, result.stdout) == (1, "")
    assert_one_line(result.stderr)
    assert "no capacity can be found" in result.stderr


def test_without_its_packages_the_pipeline_says_what_to_install(tmp_path: Path) -> None:
    lacking = "import sys; sys.modules['pyspark'] = None; from flyball.cli.main import app; app()"
    command = [sys.executable, "-c", lacking, "pipeline", "report", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == "flyball: the pipeline needs additional packages: pip install 'flyball[pipeline]'\n"


def test_a_comparison_needs_two_sources() -> None:
    result = CliRunner().invoke(app, ["pipeline", "compare", "one"])
    assert result.exit_code == 2
    assert result.stderr == "flyball: only one source given: name two or more to compare\n"


def test_ctrl_c_ends_any_command_with_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "write_report_of", interrupted)
    result = CliRunner().invoke(app, ["pipeline", "report", "somewhere"])
    assert (result.exit_code, result.output) == (130, "")


def test_an_error_is_one_line_whatever_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> Path:
        raise PipelineError("two\nlines")

    monkeypatch.setattr(pipeline, "write_report_of", failing)
    result = CliRunner().invoke(app, ["pipeline", "report", "somewhere"])
    assert (result.exit_code, result.stderr) == (1, "flyball: two lines\n")


def test_a_full_disk_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device", "out/report.html")

    monkeypatch.setattr(pipeline, "write_report_of", failing)
    result = CliRunner().invoke(app, ["pipeline", "report", "somewhere"])
    assert (result.exit_code, result.stderr) == (
        1,
        "flyball: out/report.html: No space left on device. Free some disk space and run the command again.\n",
    )


def test_a_comparison_says_what_was_left_out_of_each_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def analysed(_: object, source: Path, *__: object) -> Analysis:
        left_out = pd.DataFrame([(source.name, "is truncated", 3)], columns=["file", "reason", "rows"])
        return Analysis([], [], {"quarantine": left_out})

    monkeypatch.setattr(pipeline.Means, "spark", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr("flyball.pipeline.analysis.analyse", analysed)
    monkeypatch.setattr("flyball.pipeline.report.write_comparison", lambda *_: None)
    pipeline.write_comparison_of([Path("before"), Path("after")], tmp_path)
    assert capsys.readouterr().err.splitlines() == [
        "flyball: left out: before is truncated (3 rows)",
        "flyball: left out: after is truncated (3 rows)",
    ]


def test_sources_of_one_name_are_told_apart() -> None:
    sources = [Path("a/results"), Path("b/results"), Path("c/other"), Path("d/results")]
    assert pipeline._distinct_names(sources) == ["results", "results-2", "other", "results-3"]
