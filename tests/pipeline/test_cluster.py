"""The same stages run on a cluster with two workers and through Spark Connect: real ones, on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from flyball.pipeline.java import find_java
from tests.pipeline.elsewhere import run_count
from tests.pipeline.traces import write_steady_run

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


def test_a_cluster_of_two_workers_counts_what_one_machine_counts(cluster: str, tmp_path: Path) -> None:
    write_steady_run(tmp_path / "source", "one")
    assert run_count(cluster, tmp_path) == {"put": 500, "take": 500}
    applications = [list(folder.glob("app-*/*")) for folder in sorted(tmp_path.glob("worker-*"))]
    assert [len(executors) for executors in applications] == [1, 1], "each worker has had an executor"


def test_spark_connect_counts_what_one_machine_counts(connect: str, tmp_path: Path) -> None:
    write_steady_run(tmp_path / "source", "one")
    assert run_count(connect, tmp_path) == {"put": 500, "take": 500}


def test_a_whole_report_is_made_with_spark_connect(connect: str, tmp_path: Path) -> None:
    write_steady_run(tmp_path / "source", "one")
    command = [sys.executable, "-m", "flyball", "pipeline", "report", str(tmp_path / "source"), "--master", connect]
    done = subprocess.run([*command, "--out", str(tmp_path / "out")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out" / "report.html").is_file()
    assert (tmp_path / "out" / "profile.json").is_file()
