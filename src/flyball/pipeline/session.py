"""How a Spark session is made: here and nowhere else.

Spark on this machine is silent: what it and its Java print goes to a log file. A master elsewhere (`spark://...`)
and Spark Connect (`sc://...`) serve as well.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pyspark.conf import SparkConf
from pyspark.core.context import SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from flyball.errors import PipelineError
from flyball.pipeline.java import find_java

_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    # By default Spark lists the files of a stream with a task for each.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Where Spark runs, and how much it may take."""

    master: str = "local[*]"
    """`local[N]`, `spark://host:port` or, for Spark Connect, `sc://host:port`."""
    memory: str = "3g"
    """Of the driver, which on one machine does all the work."""
    is_brief: bool = False
    """Whether it is for seconds: Java then compiles in haste, which costs large jobs twice the time."""
    shuffle_partitions: int | None = None
    """None leaves it to the number of cores."""
    log: Path | None = None
    """Where Spark's own messages go; None throws them away."""


@contextmanager
def spark_session(settings: SparkSettings) -> Iterator[SparkSession]:
    """Make a session that ends with the block. Raises PipelineError if Spark cannot be had."""
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    if settings.master.startswith("sc://"):
        session = SparkSession.builder.remote(settings.master).getOrCreate()
        try:
            yield session
        finally:
            session.stop()
        return
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flyball-spark-")))
        log = stack.enter_context(open(settings.log or os.devnull, "ab"))
        session = _start(settings, folder, log)
        stack.callback(_stop, session)
        yield session


def _start(settings: SparkSettings, folder: Path, log: IO[bytes]) -> SparkSession:
    java = find_java(folder / "java")
    os.environ.update(java.environment)
    # Workers would otherwise run whatever python3 is on the PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    cores = _cores(settings.master)
    options = f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()} -XX:+UseSerialGC"
    if settings.is_brief:
        options += " -XX:TieredStopAtLevel=1"
    conf = SparkConf(loadDefaults=True).setMaster(settings.master).setAppName("flyball")
    conf.setAll(list(_SETTINGS.items()))
    conf.set("spark.driver.memory", settings.memory)
    conf.set("spark.driver.extraJavaOptions", options)
    conf.set("spark.local.dir", str(folder))
    partitions = str(settings.shuffle_partitions or cores)
    conf.set("spark.sql.shuffle.partitions", partitions).set("spark.default.parallelism", partitions)
    try:
        gateway = launch_gateway(conf, popen_kwargs={"stderr": log, "stdout": log})  # type: ignore[no-untyped-call]
        # Private, but the only way to keep what Java prints off the terminal.
        SparkContext._ensure_initialized(gateway=gateway)
        return SparkSession.builder.config(conf=conf).getOrCreate()
    except Exception as error:
        said = f"see {settings.log}" if settings.log else "give --log FILE to see why"
        raise PipelineError(f"Spark did not start at {settings.master}: {said}") from error


def _cores(master: str) -> int:
    """Return how many cores a master on this machine may use, or those of this machine for another one."""
    inside = master.partition("[")[2].rstrip("]")
    return int(inside) if inside.isdigit() else os.cpu_count() or 1


def _stop(session: SparkSession) -> None:
    gateway = SparkContext._gateway
    session.stop()
    if gateway is not None:
        gateway.shutdown()
        process = getattr(gateway, "proc", None)
        if process is not None:
            process.stdin.close()
            process.wait()
        SparkContext._gateway = None
        SparkContext._jvm = None
