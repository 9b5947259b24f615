"""The only module that creates Spark sessions.

Spark on this machine is silent: its output and Java's are written to a log file. Any other master works as well, and
so does a process started by `spark-submit`. A user's settings override Spark's own `spark-defaults.conf`, which
overrides the defaults here.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import re
import signal
import socket
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import IO

import pyspark
from pyspark.conf import SparkConf
from pyspark.core.context import SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from flyball.errors import PipelineError
from flyball.pipeline.class_archive import archive_of
from flyball.pipeline.java import Java, find_java

_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")

_SETTINGS = {
    "spark.app.name": "flyball",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "true",
    # Nodes close a file every five seconds: with Spark's default cost of 4 MB per file, a day of files makes 540
    # tasks.
    "spark.sql.files.openCostInBytes": "262144",
}
# Results depend on these: a user cannot override them.
_FIXED = {"spark.sql.session.timeZone": "UTC"}
_SETTINGS_ON_THIS_MACHINE = {
    # By default Spark lists the files of a stream with one task per file.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

# The environment variable with the port of the Java that started this process.
_IS_SUBMITTED = "PYSPARK_GATEWAY_PORT"
_DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
_CONNECT = "sc://"
_STANDALONE = "spark://"
_CONNECT_PORT = 15002
_REACH_LIMIT_S = 10.0


_MASTER = re.compile(r"local(\[(\d+|\*)(, ?\d+)?\])?|(spark|sc)://.+|yarn|k8s://.+")
_DEFAULT_MASTER = "local[*]"
_DEFAULT_MEMORY = "3g"


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Where Spark runs, and its resources. Raises PipelineError for invalid values."""

    # `local[N]`, `spark://host:port`, `yarn`, `k8s://...` or, for Spark Connect, `sc://host:port`.
    #
    # None leaves it to `spark-submit` or `spark-defaults.conf`; the default is this machine.
    master: str | None = None
    # Memory of the driver, which does all the work on one machine, and of each executor in a cluster.
    memory: str | None = None
    # Whether the session lasts only seconds: Java then compiles less, which doubles the time of large jobs.
    is_brief: bool = False
    # None: the number of cores of this machine; in a cluster Spark's default, which coalesces small ones.
    shuffle_partitions: int | None = None
    # The file for Spark's own messages; None discards them.
    log: Path | None = None
    # Further options of Java.
    java_options: tuple[str, ...] = ()
    # Further settings of Spark.
    conf: Mapping[str, str] = field(default_factory=dict)
    # Maven coordinates of further packages, `org.apache.spark:spark-hadoop-cloud_2.13:4.3.0` for example.
    packages: tuple[str, ...] = ()
    has_ui: bool = False
    # The folder of Spark's event log, for a history server.
    event_log: str | None = None

    def __post_init__(self) -> None:
        if self.master is not None and not _MASTER.fullmatch(self.master):
            raise PipelineError(
                f"invalid master {self.master!r}: give local[N], spark://host:port, yarn, k8s://... or sc://host:port"
            )
        if self.memory is not None and not re.fullmatch(r"\d+[mg]", self.memory, re.IGNORECASE):
            raise PipelineError(f"invalid amount of memory {self.memory!r}: give it as 512m or 3g")

    @property
    def wanted(self) -> dict[str, str]:
        """The user's choices as settings of Spark."""
        found = dict(self.conf)
        if self.master is not None:
            found["spark.master"] = self.master
        if self.memory is not None:
            found |= {"spark.driver.memory": self.memory, "spark.executor.memory": self.memory}
        if self.packages:
            found["spark.jars.packages"] = ",".join(self.packages)
        if self.has_ui:
            found["spark.ui.enabled"] = "true"
        if self.event_log is not None:
            found |= {"spark.eventLog.enabled": "true", "spark.eventLog.dir": self.event_log}
        return found


def conf_of(entries: Iterable[str]) -> dict[str, str]:
    """Return settings given as KEY=VALUE. Raises PipelineError for any other text."""
    found = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not equals or not key.startswith("spark."):
            raise PipelineError(f"invalid setting of Spark {entry!r}: give it as spark.KEY=VALUE")
        found[key] = value
    return found


@contextmanager
def spark_session(settings: SparkSettings) -> Iterator[SparkSession]:
    """Create a session that ends with the block, also after Ctrl-C. Raises PipelineError if Spark cannot start.

    No process outlives it; if Python is killed, Java notices and exits as well.
    """
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    known = _known_defaults()
    master = settings.wanted.get("spark.master") or known.get("spark.master") or _DEFAULT_MASTER
    for scheme, port in ((_CONNECT, _CONNECT_PORT), (_STANDALONE, None)):
        if master.startswith(scheme):
            _reach(master, scheme, port)
    started = _connected(settings, master) if master.startswith(_CONNECT) else _started(settings, known, master)
    with started as session:
        yield session


def _known_defaults() -> dict[str, str]:
    """Return the settings of `spark-defaults.conf`, or of the `spark-submit` that runs this process."""
    if _IS_SUBMITTED in os.environ:
        # Its Java process has read the file and the command line.
        SparkContext._ensure_initialized()
        return dict(SparkConf().getAll())
    home = os.environ.get("SPARK_CONF_DIR") or str(Path(os.environ.get("SPARK_HOME") or _spark_home(), "conf"))
    try:
        text = Path(home, "spark-defaults.conf").read_text(encoding="utf-8")
    except OSError:
        return {}
    found = {}
    for line in text.splitlines():
        key, _, value = re.sub(r"[\s=]+", " ", line.strip(), count=1).partition(" ")
        if key and not key.startswith("#"):
            found[key] = value.strip()
    return found


def _spark_home() -> Path:
    return Path(pyspark.__file__).parent


@contextmanager
def _connected(settings: SparkSettings, master: str) -> Iterator[SparkSession]:
    builder = SparkSession.builder.remote(master)
    for key, value in {**settings.conf, **_FIXED}.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:
        raise PipelineError(f"no Spark Connect at {master}: {_first_line(error)}") from error
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def _started(settings: SparkSettings, known: Mapping[str, str], master: str) -> Iterator[SparkSession]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flyball-spark-")))
        log = stack.enter_context(_opened(settings.log))
        java = find_java(folder / "java")
        # Spark's own SIGINT handler makes a blocking call to Java, which returns only when the current job is done.
        on_interrupt = signal.getsignal(signal.SIGINT)
        try:
            with _environment({**java.environment, **_python_of_workers(master)}):
                conf = _conf(settings, known, master, java, folder)
                process = _launch(conf, log)
                stack.callback(_end, process)
                session = SparkSession.builder.config(conf=conf).getOrCreate()
        except Exception as error:
            said = f"see {settings.log}" if settings.log else "give --log FILE to see why"
            raise PipelineError(f"Spark did not start at {master}: {said}") from error
        finally:
            _restore(on_interrupt)
        yield session
        # Not earlier: after an error or Ctrl-C Java may still be busy and would not respond.
        session.stop()


def _conf(settings: SparkSettings, known: Mapping[str, str], master: str, java: Java, folder: Path) -> SparkConf:
    """Return the settings for Spark: `known` overrides the defaults here, and the user's settings override both."""
    options = [f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}", "-XX:+UseSerialGC", *settings.java_options]
    archive = archive_of(java)
    if archive.is_file() and not settings.java_options:
        options.append(f"-XX:SharedArchiveFile={archive}")
    in_haste = ["-XX:TieredStopAtLevel=1"] if settings.is_brief else []
    ours = {"spark.driver.memory": _DEFAULT_MEMORY, "spark.executor.memory": _DEFAULT_MEMORY, **_SETTINGS}
    if _is_on_this_machine(master):
        ours |= {**_SETTINGS_ON_THIS_MACHINE, "spark.local.dir": str(folder)}
        partitions = str(settings.shuffle_partitions or _cores(master))
        ours |= {"spark.sql.shuffle.partitions": partitions, "spark.default.parallelism": partitions}
    ours["spark.executor.extraJavaOptions"] = " ".join(in_haste)
    wanted = {**known, **settings.wanted}
    more = wanted.get(_DRIVER_OPTIONS, "")
    quoted = " ".join(f'"{option}"' for option in options + in_haste)
    fixed = {**_FIXED, "spark.master": master, _DRIVER_OPTIONS: f"{quoted} {more}".strip()}
    return SparkConf(loadDefaults=False).setAll(list({**ours, **wanted, **fixed}.items()))


def _launch(conf: SparkConf, log: IO[bytes]) -> Popen[bytes] | None:
    """Start Java such that it ignores the terminal's Ctrl-C, and use it for all sessions.

    None if `spark-submit` has started it, and this process with it.
    """
    if _IS_SUBMITTED in os.environ:
        return None
    gateway = launch_gateway(conf, popen_kwargs={"stderr": log, "stdout": log})  # type: ignore[no-untyped-call]
    # Private, but the only way to redirect Java's output away from the terminal.
    SparkContext._ensure_initialized(gateway=gateway)
    process: Popen[bytes] = gateway.proc
    return process


def _end(process: Popen[bytes] | None) -> None:
    """End Java, even if it is busy: at the end of its input it stops all jobs, removes its files and exits."""
    gateway, context = SparkContext._gateway, SparkContext._active_spark_context
    if process is None:
        if context is not None:
            context.stop()
        return
    # Spark's thread that reads from Java would print a stack trace when Java exits.
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None
    with _silence():
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait()
        except BaseException:
            # Ctrl-C was pressed again.
            process.kill()
            raise
        with contextlib.suppress(Exception):
            if context is not None:
                context.stop()
        if gateway is not None:
            gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None


@contextmanager
def _silence() -> Iterator[None]:
    """Suppress logs and warnings: threads that wait for Java would report its exit."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Change environment variables for the processes that are started in the block."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _python_of_workers(master: str) -> dict[str, str]:
    """Return the environment of workers: without it they would run the first python3 on the PATH."""
    if _is_on_this_machine(master):
        return {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}


@contextmanager
def _opened(log: Path | None) -> Iterator[IO[bytes]]:
    try:
        file = open(log or os.devnull, "ab")  # noqa: SIM115
    except OSError as error:
        raise PipelineError(f"cannot write the log {log}: {error.strerror}") from error
    with file:
        yield file


def _restore(on_interrupt: object) -> None:
    # Handlers can be set in the main thread only; Spark does not set any in others.
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, on_interrupt)  # type: ignore[arg-type]


def _addresses(master: str, scheme: str, default_port: int | None) -> list[tuple[str, int]]:
    """Return hosts and ports: several, separated by commas, for a cluster with standby masters."""
    found = []
    for address in master.removeprefix(scheme).partition("/")[0].split(","):
        host, _, port = address.rpartition(":") if ":" in address else (address, "", str(default_port or ""))
        if not host or not port.isdigit():
            raise PipelineError(f"invalid master {master!r}: give {scheme}host:port")
        found.append((host.strip("[]"), int(port)))
    return found


def _reach(master: str, scheme: str, default_port: int | None) -> None:
    """Raise PipelineError unless that port accepts connections: Spark itself would retry for minutes."""
    reason = ""
    for address in _addresses(master, scheme, default_port):
        try:
            with socket.create_connection(address, _REACH_LIMIT_S):
                return
        except OSError as error:
            reason = error.strerror or str(error)
    raise PipelineError(f"cannot reach Spark at {master}: {reason}")


def _is_on_this_machine(master: str) -> bool:
    if not master.startswith(_STANDALONE):
        return master.startswith("local")
    return all(_is_loopback(host) for host, _ in _addresses(master, _STANDALONE, None))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _cores(master: str) -> int:
    """Return the number of cores that a master on this machine may use."""
    if master == "local":
        return 1
    inside = re.search(r"\[(\d+)", master)
    return int(inside[1]) if inside else os.cpu_count() or 1


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
