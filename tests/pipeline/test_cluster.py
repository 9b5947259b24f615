"""The same report comes from a cluster with two workers and from Spark Connect: real ones, on this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyspark
import pytest
from pyspark.sql import SparkSession

import flyball
from flyball import __main__ as flyball_main
from flyball.pipeline.analysis import analyse
from flyball.pipeline.java import find_java
from tests.pipeline.traces import (
    START_US,
    admission,
    sample,
    write_admissions,
    write_experiment,
    write_samples,
    write_steady_run,
)

SPARK_HOME = Path(pyspark.__file__).parent
QUICKLY = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        **find_java(tmp_path / "java").environment,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "512m",
        "SPARK_DAEMON_JAVA_OPTS": QUICKLY,
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        "PYSPARK_PYTHON": sys.executable,
    }


@contextmanager
def running(command: list[str], environment: dict[str, str], folder: Path, until: str) -> Iterator[str]:
    """Run a program in the background; yield the match of `until` in its output."""
    with subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        # The pipe must be read on, or the program stops when it is full.
        rest = threading.Thread(target=process.stderr.read)
        try:
            found = _awaited(process.stderr, until)
            rest.start()
            yield found
        finally:
            process.terminate()
            if rest.ident is not None:
                rest.join()


def _awaited(lines: Iterator[str], pattern: str) -> str:
    said = []
    for line in lines:
        said.append(line)
        found = re.search(pattern, line)
        if found:
            return found[1]
    raise AssertionError("it ended, and said:\n" + "".join(said))


@pytest.fixture
def cluster(environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """A master and two workers with one core each; the address of the master."""
    spark_class = str(SPARK_HOME / "bin" / "spark-class")
    local = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with ExitStack() as stack:
        master = [spark_class, "org.apache.spark.deploy.master.Master", *local]
        address = stack.enter_context(running(master, environment, tmp_path, r"Starting Spark master at (\S+)"))
        for number in (1, 2):
            worker = [
                spark_class,
                "org.apache.spark.deploy.worker.Worker",
                *local,
                "--cores",
                "1",
                "--memory",
                "512m",
            ]
            worker += ["--work-dir", str(tmp_path / f"worker-{number}"), address]
            stack.enter_context(running(worker, environment, tmp_path, r"Successfully registered with master (\S+)"))
        yield address


@pytest.fixture
def connect(environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """A Spark Connect server; its address."""
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[1]"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for setting in ("spark.ui.enabled=false", "spark.connect.grpc.binding.port=0", "spark.sql.shuffle.partitions=1"):
        command += ["--conf", setting]
    started = r"Spark Connect server started at: .*:(\d+)"
    with running([*command, "spark-internal"], environment, tmp_path, started) as port:
        yield f"sc://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of an experiment, samples of a loop, costs of an application, and a file that is truncated."""
    folder = tmp_path_factory.mktemp("traces")
    reference = {"label": "table 8", "metric": "throughput", "mean": 50.0, "factors": {"workload.clients": 1}}
    experiment = write_experiment(folder / "clients", references=[reference])
    write_steady_run(experiment, "clients.1.r1", per_s=100.0, factors={"workload.clients": 1})
    run = write_steady_run(experiment, "clients.2.r1", per_s=200.0, factors={"workload.clients": 2})
    rows = [sample(at_us=START_US + number * 100_000, sequence=number) for number in range(90)]
    write_samples(run / "traces" / "samples-l-1.parquet", rows)
    write_admissions(run / "traces" / "admissions-shop-1.parquet", [admission(busy_ns=ms * 10**6) for ms in (2, 3)])
    (folder / "trace-broken.parquet").write_bytes(b"PAR1")
    return folder


@pytest.fixture(scope="module")
def expected(spark_process: SparkSession, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report that this machine makes."""
    out = tmp_path_factory.mktemp("here")
    analyse(spark_process.newSession(), source, out)
    return out


def left_out(source: Path) -> str:
    return f"flyball: left out: {source}/trace-broken.parquet is truncated, or not a Parquet file\n"


def assert_same(out: Path, expected: Path) -> None:
    """All tables and models are the same, but for the order of rows and the last digits of sums."""
    names = {path.name for path in (expected / "tables").glob("*.parquet")}
    assert {path.name for path in (out / "tables").glob("*.parquet")} == names
    assert len(names) >= 12
    for name in names:
        one, other = (pd.read_parquet(folder / "tables" / name).round(9) for folder in (out, expected))
        keys = list(other.columns)
        one, other = (frame.sort_values(keys).reset_index(drop=True) for frame in (one, other))
        pd.testing.assert_frame_equal(one, other, obj=name)
    models = sorted(path.name for path in expected.glob("*.json"))
    assert sorted(path.name for path in out.glob("*.json")) == models
    for name in models:
        assert_alike(*(json.loads((folder / name).read_text(encoding="utf-8")) for folder in (out, expected)))


def assert_alike(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_alike(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for part, counterpart in zip(one, other, strict=True):
            assert_alike(part, counterpart)
    else:
        assert one == (pytest.approx(other) if isinstance(other, float) else other)


def test_a_cluster_of_two_workers_makes_the_report_of_one_machine(
    cluster: str, source: Path, expected: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """It is submitted as the documentation says, with Flyball's code in a wheel."""
    wheel = shutil.make_archive(str(tmp_path / "flyball"), "zip", Path(flyball.__file__).parents[1], "flyball")
    submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster]
    submit += ["--executor-memory", "512m", "--conf", "spark.sql.shuffle.partitions=2"]
    submit += ["--py-files", str(Path(wheel).rename(tmp_path / "flyball-0-py3-none-any.whl")), flyball_main.__file__]
    command = [*submit, "pipeline", "report", str(source), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # spark-submit joins both outputs of the driver.
    assert left_out(source) in done.stdout
    applications = [list(folder.glob("app-*/*")) for folder in sorted(tmp_path.glob("worker-*"))]
    assert [len(executors) for executors in applications] == [1, 1], "each worker has had an executor"
    assert_same(tmp_path / "out", expected)


def test_spark_connect_makes_the_report_of_one_machine(
    connect: str, source: Path, expected: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "flyball", "pipeline", "report", str(source), "--out", str(tmp_path / "out")]
    done = subprocess.run([*command, "--master", connect], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, left_out(source))
    assert (tmp_path / "out" / "report.html").is_file()
    assert_same(tmp_path / "out", expected)
