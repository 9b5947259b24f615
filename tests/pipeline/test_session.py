"""Spark starts, is silent, uses this interpreter, and ends with the process that started it."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from flyball.errors import PipelineError
from flyball.pipeline.java import find_java
from flyball.pipeline.session import SparkSettings, _conf, _known_defaults, conf_of, spark_session


@pytest.fixture
def busy() -> Iterator[tuple[subprocess.Popen[str], psutil.Process, Path]]:
    """A process in the middle of a query that never ends, as from a terminal; its Java; its folder."""
    command = [sys.executable, "-m", "tests.pipeline.elsewhere", "endless"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as python:
        assert python.stdout is not None
        try:
            said = json.loads(python.stdout.readline())
            yield python, psutil.Process(said["java"]), Path(said["folder"])
        finally:
            python.kill()


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that is reserved and refuses connections."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield unused.getsockname()[1]


def test_workers_run_the_interpreter_of_the_driver(spark: SparkSession) -> None:
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert found == [sys.executable]


def test_a_query_prints_nothing(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    assert spark.range(10).selectExpr("sum(id)").collect()[0][0] == 45
    assert capfd.readouterr() == ("", "")


def test_ctrl_c_in_a_query_ends_python_and_java_at_once_and_in_good_order(
    busy: tuple[subprocess.Popen[str], psutil.Process, Path],
) -> None:
    python, java, folder = busy
    # A terminal interrupts all processes of the group.
    os.killpg(python.pid, signal.SIGINT)
    errors = python.communicate()[1]
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    assert not java.is_running()
    assert not folder.exists()


def test_java_ends_when_python_is_killed(busy: tuple[subprocess.Popen[str], psutil.Process, Path]) -> None:
    python, java, _ = busy
    python.kill()
    java.wait(timeout=60)
    assert not java.is_running()


@pytest.mark.parametrize("scheme", ["spark", "sc"])
def test_a_master_that_is_not_there_is_named_at_once(scheme: str, closed_port: int) -> None:
    master = f"{scheme}://127.0.0.1:{closed_port}"
    with pytest.raises(PipelineError, match=f"cannot reach Spark at {master}: Connection refused"):
        spark_session(SparkSettings(master=master)).__enter__()


@pytest.mark.parametrize("master", ["spark://127.0.0.1", "sc://:7", "spark://host:port"])
def test_a_master_without_host_or_port_is_refused(master: str) -> None:
    scheme = master.partition("//")[0]
    with pytest.raises(PipelineError, match=f"invalid master '{master}': give {scheme}//host:port"):
        spark_session(SparkSettings(master=master)).__enter__()


@pytest.mark.parametrize("master", ["", "locally", "local[]", "local[two]", "http://127.0.0.1"])
def test_an_invalid_master_is_refused(master: str) -> None:
    with pytest.raises(PipelineError, match="invalid master"):
        SparkSettings(master=master)


@pytest.mark.parametrize("memory", ["", "lots", "-3g", "3 g"])
def test_an_invalid_amount_of_memory_is_refused(memory: str) -> None:
    with pytest.raises(PipelineError, match="give it as 512m or 3g"):
        SparkSettings(memory=memory)


# PySpark does not close its pipe to a Java that ended before it was there.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_too_little_memory_is_a_one_line_error_and_changes_no_environment(tmp_path: Path) -> None:
    before = dict(os.environ)
    log = tmp_path / "spark.log"
    with pytest.raises(PipelineError, match=rf"Spark did not start at local\[1\]: see {log}"):
        spark_session(SparkSettings(master="local[1]", memory="1m", log=log)).__enter__()
    assert "heap" in log.read_text()
    assert dict(os.environ) == before
    gc.collect()


def test_a_log_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="cannot write the log"):
        spark_session(SparkSettings(log=tmp_path / "missing" / "spark.log")).__enter__()


def confs(settings: SparkSettings, master: str, tmp_path: Path) -> dict[str, str]:
    return dict(_conf(settings, _known_defaults(), master, find_java(tmp_path), tmp_path).getAll())


def test_what_the_user_sets_wins_over_the_defaults_file_and_that_over_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# of the cluster\nspark.driver.memory  2g\nspark.executor.memory=5g\nspark.sql.shuffle.partitions 64\n"
        "spark.driver.extraJavaOptions -Da=b\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    found = confs(SparkSettings(conf=conf_of(["spark.executor.memory=7g", "spark.x=a=b"])), "yarn", tmp_path)
    assert found["spark.driver.memory"] == "2g"
    assert found["spark.executor.memory"] == "7g"
    assert found["spark.sql.shuffle.partitions"] == "64"
    assert found["spark.x"] == "a=b"
    assert found["spark.ui.enabled"] == "false"
    assert found["spark.driver.extraJavaOptions"].endswith("-Da=b")


def test_partitions_on_a_cluster_are_not_those_of_this_machine(tmp_path: Path) -> None:
    assert "spark.sql.shuffle.partitions" not in confs(SparkSettings(), "yarn", tmp_path)
    assert confs(SparkSettings(), "local[3]", tmp_path)["spark.sql.shuffle.partitions"] == "3"


def test_packages_ui_and_event_log_are_settings_of_spark(tmp_path: Path) -> None:
    settings = SparkSettings(packages=("a:b:1", "c:d:2"), has_ui=True, event_log="s3a://logs/spark")
    found = confs(settings, "local[1]", tmp_path)
    assert found["spark.jars.packages"] == "a:b:1,c:d:2"
    assert found["spark.ui.enabled"] == "true"
    assert (found["spark.eventLog.enabled"], found["spark.eventLog.dir"]) == ("true", "s3a://logs/spark")


@pytest.mark.parametrize("entry", ["spark.x", "=1", "x=1"])
def test_an_invalid_setting_is_refused(entry: str) -> None:
    with pytest.raises(PipelineError, match=r"give it as spark\.KEY=VALUE"):
        conf_of([entry])
