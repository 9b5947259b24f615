"""From files to tables: the one stream of the pipeline.

A stream finds each new file once and remembers it in a checkpoint. Arrow looks at every row, and good files are
linked into the store as they are: Spark would take many times as long to rewrite them. Statistics are batch functions
over the store's tables, because a stream would hold back the last seconds of a run.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import coalesce, col, lit
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from flyball.errors import PipelineError
from flyball.pipeline.events import WINDOWS
from flyball.pipeline.log_formats import LogFormat
from flyball.pipeline.logs import LOG_NAMES, opener_of
from flyball.pipeline.manifest import find_files, read_runs
from flyball.pipeline.schemas import TABLES
from flyball.pipeline.spark_errors import one_line_errors
from flyball.pipeline.table_store import Opener, Quarantined, Store, Taken
from flyball.pipeline.trace_reader import TRACE_NAMES, open_trace

_FILES = StructType(
    [
        StructField("path", StringType()),
        StructField("modificationTime", TimestampType()),
        StructField("length", LongType()),
        StructField("content", BinaryType()),
    ]
)
"""What Spark tells about files; their content it reads only if asked for."""

_ONCE = "once"
_AGAIN = "again-"
"""How the names of batches begin that hold files for a second look."""


@dataclass(frozen=True, slots=True)
class Ingested:
    """The tables of a store, and what is known about them without reading them."""

    requests: DataFrame
    calls: DataFrame
    samples: DataFrame
    admissions: DataFrame
    intervals: DataFrame
    """From the logs of ThorBangMQ's servers: what they counted in each interval."""
    downtimes: DataFrame
    """From the logs of Telesto: how long workers waited for requests."""
    windows: DataFrame
    """run, from_us, until_us: the part of each run that counts."""
    quarantine: list[Quarantined]
    """What was left out, and why."""
    rows: dict[str, int]
    """Rows of each table that has some."""
    dropped: int
    """Records that nodes and clients could not write."""


def check_source(source: Path, log_format: LogFormat | None = None) -> None:
    """Raise PipelineError if there is nothing to ingest in `source`, nor a store. Needs no Spark and is quick."""
    if not source.exists():
        raise PipelineError(_nowhere(source))
    if Store.is_at(source):
        Store(source).check()
    elif source.is_dir() and not any(find_files(source, name) for name in _names(log_format)):
        raise PipelineError(_nothing_in(source, log_format))


def check_ingestible(source: Path) -> None:
    """Raise PipelineError if `source` can never have files to take: it is not there, or it is a store."""
    if not source.exists():
        raise PipelineError(_nowhere(source))
    if Store.is_at(source):
        raise PipelineError(f"{source} is a store already: `flyball pipeline report` reads it as it is")


def ingest(spark: SparkSession, source: Path, store: Path, log_format: LogFormat | None = None) -> Ingested:
    """Take the files in `source` that are new into `store` and open it.

    May be repeated at any time, also after a crash: no file is taken twice. A file that was left out is looked at
    again when it has changed. Raises PipelineError if there is nothing to take and never was.
    """
    check_ingestible(source)
    place = Store(store)
    place.create()
    take_new(spark, source, place, log_format)
    if not place.taken():
        raise PipelineError(_nothing_in(source, log_format))
    return open_store(spark, store)


def ingest_once(spark: SparkSession, source: Path, store: Path) -> Ingested:
    """Take all trace files in `source` into a new store that is thrown away after use, and open it.

    Nobody has to remember what was taken, so there is no stream: it takes seconds to start. Raises PipelineError if
    there is nothing to take.
    """
    check_ingestible(source)
    place = Store(store)
    place.create()
    if source.is_dir():
        place.copy_manifests(source.resolve())
    with one_line_errors(f"reading {source}"):
        place.take(_ONCE, _files_in(source.resolve(), None), open_trace)
    if not place.taken():
        raise PipelineError(_nothing_in(source, None))
    return open_store(spark, store)


def take_new(spark: SparkSession, source: Path, store: Store, log_format: LogFormat | None = None) -> None:
    """Take the files in `source` that are new, or whole now. Raises PipelineError if Spark or the disk fail."""
    source = source.resolve()
    if source.is_dir():
        store.copy_manifests(source)
    with one_line_errors(f"reading {source}"):
        _retake(store, source, log_format)
        _stream(spark, source, store, log_format)


def _retake(store: Store, source: Path, log_format: LogFormat | None) -> None:
    """Look again at files that were left out and have changed, and at empty ones: the stream passes over both."""
    store.forget_started(_AGAIN)
    known = {entry.source for entry in store.taken()}
    changed = [path for path in store.changed() if _is_of(path, source, log_format)]
    files = [*changed, *(path for path in _empty_files(source, log_format) if str(path) not in known)]
    if files:
        looks = [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in files]
        store.take(f"{_AGAIN}{_key(repr(looks))}", files, _opener(log_format))


def _is_of(path: Path, source: Path, log_format: LogFormat | None) -> bool:
    """Whether a file is one that is looked for: a store may have others, from elsewhere or of another format."""
    return path == source or (path.is_relative_to(source) and any(map(path.match, _names(log_format))))


def _stream(spark: SparkSession, source: Path, store: Store, log_format: LogFormat | None) -> None:
    key = _key(f"{source} {log_format or ''}")
    files = (
        spark.readStream.format("binaryFile")
        .schema(_FILES)
        .option("recursiveFileLookup", True)
        .option("pathGlobFilter", _either(_names(log_format)))
        .load(_literal(source))
        .select("path")
    )
    query = (
        files.writeStream.foreachBatch(partial(_take_batch, str(store.folder), key, log_format))
        .option("checkpointLocation", str(store.checkpoint_of(key)))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()


def _take_batch(folder: str, key: str, log_format: LogFormat | None, files: DataFrame, number: int) -> None:
    """Take one batch of new files. With Spark Connect this runs where Spark is, so it leaves all it knows on disk."""
    paths = [Path("/" + row.path.removeprefix("file:").lstrip("/")) for row in files.collect()]
    Store(Path(folder)).take(f"{key}-{number}", paths, _opener(log_format))


def _empty_files(source: Path, log_format: LogFormat | None) -> list[Path]:
    return [path for path in _files_in(source, log_format) if not path.stat().st_size]


def _files_in(source: Path, log_format: LogFormat | None) -> list[Path]:
    return (
        [source] if source.is_file() else [path for name in _names(log_format) for path in find_files(source, name)]
    )


def _opener(log_format: LogFormat | None) -> Opener:
    return opener_of(log_format) if log_format else open_trace


def open_store(spark: SparkSession, store: Path) -> Ingested:
    """Open what has been ingested. Raises PipelineError if it is no store, or holds no row that can be used."""
    place = Store(store)
    place.check()
    taken = place.taken()
    rows: dict[str, int] = {}
    for entry in taken:
        for table, count in entry.rows.items():
            rows[table] = rows.get(table, 0) + count
    quarantine = place.quarantined()
    if not rows:
        raise PipelineError(_nothing_usable(place, quarantine))
    with one_line_errors(f"opening {store}"):
        tables = {name: _table(spark, place, name) for name in TABLES}
        windows = spark.createDataFrame(_windows(place, taken), WINDOWS)
    return Ingested(**tables, windows=windows, quarantine=quarantine, rows=rows, dropped=_dropped(taken))


def _table(spark: SparkSession, store: Store, name: str) -> DataFrame:
    columns = [field for field in TABLES[name] if field.name != "run"]
    # Rows without a run lie in a folder that Spark takes for a missing value.
    schema = StructType([StructField("run", StringType()), *columns])
    folder = store.table(name)
    if folder is None:
        return spark.createDataFrame([], schema)
    run = coalesce(col("run"), lit("")).alias("run")
    return spark.read.schema(schema).parquet(_literal(folder)).select(run, *(field.name for field in columns))


def _windows(store: Store, taken: list[Taken]) -> list[tuple[str, int, int]]:
    """Return what counts of each run: what the lab says, or else all that was recorded."""
    windows: dict[str, tuple[int, int]] = {}
    for entry in taken:
        if entry.from_us is not None and entry.until_us is not None:
            first, last = windows.get(entry.run, (entry.from_us, entry.until_us))
            windows[entry.run] = (min(first, entry.from_us), max(last, entry.until_us + 1))
    for run in read_runs(store.manifests):
        if run.run in windows and 0 < run.measured.from_us < run.measured.until_us:
            windows[run.run] = (run.measured.from_us, run.measured.until_us)
    return [(run, *window) for run, window in sorted(windows.items())]


def _dropped(taken: list[Taken]) -> int:
    """Add up what writers have dropped; each file says how many were missing since its writer began.

    `taken` is sorted by name, that is, the files of one writer by time. Fewer than before mean that it began anew.
    """
    total = 0
    last: dict[str, int] = {}
    for entry in taken:
        writer = entry.source.rsplit("-", 2)[0]
        before = last.get(writer, 0)
        total += entry.dropped - before if entry.dropped >= before else entry.dropped
        last[writer] = entry.dropped
    return total


def _names(log_format: LogFormat | None) -> Sequence[str]:
    return LOG_NAMES if log_format else TRACE_NAMES


def _nowhere(source: Path) -> str:
    return f"there is no {source}: give a folder of traces"


def _nothing_in(source: Path, log_format: LogFormat | None) -> str:
    if log_format:
        return f"no logs in {source}: give a file, or a folder with files named {' or '.join(LOG_NAMES)}"
    return f"no traces in {source}: give a node's data folder or a folder of results of `flyball lab run`"


def _nothing_usable(store: Store, quarantine: list[Quarantined]) -> str:
    if not quarantine:
        return f"the traces in {store.folder} hold no rows: nothing was asked of the node while it recorded"
    first = quarantine[0]
    others = len(quarantine) - 1
    return f"no trace can be used: {first.file} {first.reason}" + (f", and {others} more" if others else "")


def _either(patterns: Sequence[str]) -> str:
    """Return a pattern that Spark understands, for names that have one of several forms."""
    return "{" + ",".join(patterns) + "}"


def _literal(path: Path) -> str:
    """Return the path so that Spark takes no character in it for a pattern."""
    return re.sub(r"([*?{}\[\]\\])", r"\\\1", str(path))


def _key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
