"""Ingests files into a store: every new file is read once, and the aggregates of its rows are written as one batch.

A stream finds new files and records them in a checkpoint; workers check the footer of each; Spark reads the valid
ones in one scan per table, which checks and aggregates their rows. A batch is atomic, so every step may be repeated
after a crash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from flyball.errors import PipelineError
from flyball.pipeline.batch_writer import BatchWriter
from flyball.pipeline.filesystem import files_at
from flyball.pipeline.log_formats import LogFormat
from flyball.pipeline.log_traces import as_traces
from flyball.pipeline.logs import LOG_NAMES
from flyball.pipeline.manifest import EXPERIMENT_FILE, RUN_FILE, find_files
from flyball.pipeline.places import as_pattern, is_local, is_uri, join, name_of, path_of
from flyball.pipeline.spark_errors import one_line_errors
from flyball.pipeline.stored import Ingested, open_store
from flyball.pipeline.trace_scan import (
    ListedFile,
    check_places,
    either,
    files_in,
    names_of,
    place_of,
    run_of,
    sound_file,
)
from flyball.pipeline.trace_store import INCOMPLETE, Store, latest, total

_LISTED = StructType(
    [
        StructField("path", StringType()),
        StructField("modificationTime", TimestampType()),
        StructField("length", LongType()),
        StructField("content", BinaryType()),
    ]
)

# Number of batches above which `--follow` compacts the store.
COMPACT_AFTER = 60

# Prefix of the names of batches that hold files checked a second time.
_AGAIN = "again-"


def check_source(source: str | Path, log_format: LogFormat | None = None) -> None:
    """Raise PipelineError if `source` has nothing to ingest and is not a store. Needs no Spark and is quick.

    URIs of other schemes are checked after Spark has started.
    """
    if not is_local(source):
        return
    path = path_of(source)
    if not path.exists():
        raise PipelineError(_nowhere(source))
    store = Store(path)
    if store.is_there():
        store.check()
    elif path.is_dir() and not any(find_files(path, name) for name in names_of(log_format)):
        raise PipelineError(_nothing_in(source, log_format))


def check_ingestible(source: str | Path, spark: SparkSession | None = None) -> None:
    """Raise PipelineError if `source` can never have files to ingest: it does not exist, or it is a store."""
    with _readable(source):
        if not files_at(source, spark).exists(str(source)):
            raise PipelineError(_nowhere(source))
        if Store(source, spark).is_there():
            raise PipelineError(f"{source} is a store already: `flyball pipeline report` reads it as it is")


def ingest(
    spark: SparkSession, source: str | Path, store: str | Path, log_format: LogFormat | None = None
) -> Ingested:
    """Ingest the new files in `source` into `store` and open it.

    May be repeated at any time, also after a crash: no file is ingested twice. A rejected file is checked again after
    it has changed. Raises PipelineError if nothing is, or was ever, ingested.
    """
    check_ingestible(source, spark)
    place = Store(store, spark)
    place.create()
    with place.locked():
        take_new(spark, source, place, log_format)
    if not place.batches():
        raise PipelineError(_nothing_in(source, log_format))
    return open_store(spark, store)


def ingest_once(spark: SparkSession, source: str | Path, store: str | Path) -> Ingested:
    """Ingest all trace files in `source` into a new temporary store and open it.

    A temporary store needs no record of ingested files, so no stream is used, which takes seconds to start. Raises
    PipelineError if there is nothing to ingest.
    """
    check_ingestible(source, spark)
    source = _resolved(source)
    place = Store(store, spark)
    place.create()
    with one_line_errors(f"reading {source}"), _readable(source):
        if files_at(source, spark).is_folder(source):
            place.copy_manifests(source, spark)
        files = files_in(spark, source, None)
        if not files:
            raise PipelineError(_nothing_in(source, None))
        _Taking(spark, place, source, None).take("once", files)
    return open_store(spark, store)


def take_new(spark: SparkSession, source: str | Path, store: Store, log_format: LogFormat | None = None) -> None:
    """Ingest files in `source` that are new or newly complete. Raises PipelineError if Spark or the disk fails."""
    source = _resolved(source)
    with one_line_errors(f"reading {source}"), _readable(source):
        if files_at(source, spark).is_folder(source):
            store.copy_manifests(source, spark)
        _retake(spark, store, source, log_format)
        _stream(spark, source, store, log_format)


def follow_round(spark: SparkSession, source: str | Path, store: Store, log_format: LogFormat | None = None) -> None:
    """Ingest the new files in `source`, and compact the store if it has many batches."""
    take_new(spark, source, store, log_format)
    if len(store.batches()) > COMPACT_AFTER:
        store.compact(spark)


def _retake(spark: SparkSession, store: Store, source: str, log_format: LogFormat | None) -> None:
    """Check rejected files that have changed, and empty ones, again: the stream skips both."""
    batches = store.batches()
    left_out: dict[str, Mapping[str, Any]] = {}
    if total(batches).left_out:
        problems = latest(store.read(spark, "files", batches)).where("problem is not null").toArrow().to_pylist()
        left_out = {row["file"]: row for row in problems}
    listed = files_in(spark, source, log_format)
    waiting = _Incomplete(spark, source)
    again = [
        file
        for file in listed
        if (known := left_out.get(file.place)) is not None and _has_changed(file, known, waiting)
    ]
    again += [file for file in listed if not file.size_bytes and file.place not in left_out]
    if again:
        _Taking(spark, store, source, log_format).take(f"{_AGAIN}{_key(repr(again))}", again)


def _has_changed(file: ListedFile, known: Mapping[str, Any], waiting: _Incomplete) -> bool:
    if known["problem"] == INCOMPLETE:
        return not waiting.has(file.place)
    return (file.size_bytes, file.modified_us) != (known["size_bytes"], known["modified_us"])


def _stream(spark: SparkSession, source: str, store: Store, log_format: LogFormat | None) -> None:
    key = _key(f"{source} {log_format or ''}")
    files = (
        spark.readStream.format("binaryFile")
        .schema(_LISTED)
        .option("recursiveFileLookup", True)
        .option("pathGlobFilter", either(names_of(log_format)))
        # Accept late files, whatever their age.
        .option("maxFileAge", "3650d")
        .load(as_pattern(source))
        .select("path", "modificationTime", "length")
    )
    query = (
        files.writeStream.foreachBatch(partial(_take_batch, store.place, store.held, source, key, log_format))
        .option("checkpointLocation", store.checkpoint_of(key))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()


def _take_batch(
    store: str, held: bytes | None, source: str, key: str, log_format: LogFormat | None, files: DataFrame, number: int
) -> None:
    """Ingest one batch of new files. With Spark Connect this runs in Spark's process: all its state is in files."""
    spark = files.sparkSession
    rows = files.select("path", sf.unix_micros("modificationTime"), "length").toArrow().to_pydict().values()
    found = [ListedFile(place_of(path), size, modified) for path, modified, size in zip(*rows, strict=True)]
    _Taking(spark, Store(store, spark, held), source, log_format).take(f"{key}-{number}", found)


class _Incomplete:
    """The runs that the lab has started and not completed."""

    def __init__(self, spark: SparkSession, source: str) -> None:
        files = files_at(source, spark)
        # A source may be a folder within an experiment.
        self._files = files
        self._experiments: dict[str, bool] = {}
        self._runs: dict[str, bool] = {}

    def has(self, place: str) -> bool:
        """Whether a file belongs to such a run."""
        folder = place.rpartition("/")[0]
        if folder not in self._runs:
            self._runs[folder] = self._is_incomplete(folder)
        return self._runs[folder]

    def _is_incomplete(self, folder: str) -> bool:
        while "/run=" in folder:
            if name_of(folder).startswith("run="):
                experiment = join(folder.rpartition("/")[0], EXPERIMENT_FILE)
                if experiment not in self._experiments:
                    self._experiments[experiment] = self._files.exists(experiment)
                return self._experiments[experiment] and not self._files.exists(join(folder, RUN_FILE))
            folder = folder.rpartition("/")[0]
        return False


class _Taking:
    """Ingests the files of a source into a store."""

    def __init__(self, spark: SparkSession, store: Store, source: str, log_format: LogFormat | None) -> None:
        self._spark = spark
        self._store = store
        self._source = source
        self._log_format = log_format
        self._waiting = _Incomplete(spark, source)

    def take(self, name: str, files: Sequence[ListedFile]) -> None:
        """Ingest files as the batch of that name, except those that the store has already."""
        if self._store.has(name):
            return
        mine = self._new(files)
        if not mine:
            return
        waiting = [file for file in mine if self._waiting.has(file.place)]
        looked_at = [file for file in mine if not self._waiting.has(file.place)]
        facts = self._facts(name, looked_at)
        try:
            self._take(name, mine, waiting, facts)
        except (PySparkException, Py4JError):
            # A page in the middle of a file may be damaged although its footer is intact.
            damaged = check_places(self._spark, [row["file"] for row in facts if not row["problem"]], is_deep=True)
            problems = {row["file"]: row["problem"] for row in damaged if row["problem"]}
            if not problems:
                raise
            self._take(
                name, mine, waiting, [{**row, "problem": problems.get(row["file"], row["problem"])} for row in facts]
            )

    def _new(self, files: Sequence[ListedFile]) -> list[ListedFile]:
        """Omit files that the store has already: a file may be in several sources."""
        found = {file.place: file for file in files}
        batches = self._store.batches()
        if found and batches:
            candidates = self._spark.createDataFrame(pa.table({"file": list(found)}))
            known = self._store.read(self._spark, "files", batches).where("problem is null")
            for row in known.join(sf.broadcast(candidates), "file", "left_semi").select("file").toArrow().to_pylist():
                found.pop(row["file"], None)
        return sorted(found.values(), key=lambda file: file.place)

    def _facts(self, name: str, files: Sequence[ListedFile]) -> list[dict[str, Any]]:
        """Return the facts in the footer of each file; for logs, those of the traces converted from them."""
        if self._log_format is None:
            return [{**row, "uri": row["file"]} for row in check_places(self._spark, [file.place for file in files])]
        folder = join(self._store.place, "_logs", name)
        return as_traces([file.place for file in files], self._log_format, folder, files_at(folder, self._spark))

    def _take(
        self,
        name: str,
        files: Sequence[ListedFile],
        waiting: Sequence[ListedFile],
        facts: Sequence[Mapping[str, Any]],
    ) -> None:
        ledger = [_entry(file, {"file": file.place, "problem": INCOMPLETE}) for file in waiting]
        by_place = {file.place: file for file in files}
        of_file: dict[str, Mapping[str, Any]] = {}
        for row in facts:
            if row["file"] not in of_file or row["problem"]:
                of_file[row["file"]] = row
        ledger += [_entry(by_place[place], row) for place, row in of_file.items()]
        sound = [sound_file(row) for row in facts if not row["problem"] and row["rows"]]
        rejected = [(row["file"], why, count) for row in facts for why, count in row.get("rejected", {}).items()]
        written = BatchWriter(self._spark, self._store, name, self._source)
        written.files(ledger)
        written.lines([line for row in facts for line in row.get("lines", ())])
        problems = {entry["file"] for entry in ledger if entry["problem"]}
        batch = written.rows(sound, rejected, len(files), problems)
        self._store.commit(batch)
        if self._log_format is not None:
            files_at(self._store.place, self._spark).delete(join(self._store.place, "_logs", name))


def _entry(file: ListedFile, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "file": file.place,
        "run": run_of(file.place),
        "table": facts.get("table"),
        "size_bytes": file.size_bytes,
        "modified_us": file.modified_us,
        "rows": facts.get("rows", 0),
        "dropped": facts.get("dropped", 0),
        "problem": facts["problem"],
    }


def _resolved(source: str | Path) -> str:
    return str(source).rstrip("/") if is_uri(source) and not is_local(source) else str(path_of(source).resolve())


@contextmanager
def _readable(source: str | Path) -> Iterator[None]:
    """Turn an OSError about a source within the block into a PipelineError."""
    try:
        yield
    except OSError as error:
        raise PipelineError(
            f"{error.filename or source}: {error.strerror}. Fix that and repeat the command"
        ) from error


def _nowhere(source: str | Path) -> str:
    return f"{source} does not exist: give a folder of traces"


def _nothing_in(source: str | Path, log_format: LogFormat | None) -> str:
    if log_format:
        return f"no logs in {source}: give a file, or a folder with files named {' or '.join(LOG_NAMES)}"
    return f"no traces in {source}: give a node's data folder or a folder of results of `flyball lab run`"


def _key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
