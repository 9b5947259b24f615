"""A store of additive aggregates of traces, written in atomic batches.

Each batch is a folder in each table and one file that lists them, which is written last: data without such a file
are ignored. A batch may be ingested again after a crash with the same result. Compaction writes one batch that
replaces others, and commits it in the same way. Only one process may write at a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from flyball.errors import PipelineError
from flyball.pipeline.filesystem import files_at
from flyball.pipeline.manifest import EXPERIMENT_FILE, RUN_FILE, find_files, read_experiments, read_runs
from flyball.pipeline.places import as_pattern, is_uri, join, name_of, uri_of
from flyball.pipeline.schemas import TABLES
from flyball.pipeline.store_tables import AGGREGATES, FILES, REJECTED, newest

_MARKER = "flyball-store.json"
VERSION = 3
_BATCHES = "_batches"
_CHECKPOINTS = "_checkpoints"
_MANIFESTS = "_manifests"
_LOCK = "_lock"

# Interval at which a writer renews its lock, and the age of a lock at which its writer counts as dead.
HEARTBEAT_S = 10.0
STALE_S = 60.0

QUARANTINED_LINES = "quarantine/lines"

INCOMPLETE = "belongs to a run that is not complete"

# The tables of a store: rows for samples, sums for all others.
SCHEMAS: dict[str, StructType] = {
    "files": FILES,
    "rejected": REJECTED,
    **{name: aggregate.schema for name, aggregate in AGGREGATES.items()},
    "samples": TABLES["samples"],
}


class Quarantined(NamedTuple):
    """A rejected file, or rejected rows of one; `rows` is 0 if their number is unknown."""

    file: str
    reason: str
    rows: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A summary of one batch. It is small, whatever the size of the batch."""

    name: str
    # The tables that it contains rows of.
    tables: list[str] = field(default_factory=list)
    # The batches that it replaces.
    replaces: list[str] = field(default_factory=list)
    # Number of valid rows, by table.
    rows: dict[str, int] = field(default_factory=dict)
    # Number of checked files.
    files: int = 0
    # Number of files that were rejected, or have rejected rows.
    left_out: int = 0
    # Whether writers have dropped records.
    has_dropped: bool = False
    # Start of the seconds of each run.
    origins: dict[str, int] = field(default_factory=dict)
    # Start of the first and the last request of each run.
    extents: dict[str, list[int]] = field(default_factory=dict)


class Store:
    """A folder with tables."""

    def __init__(self, place: str | Path, spark: SparkSession | None = None, held: bytes | None = None) -> None:
        """`held` is the content of the lock, for the part of a writer that runs in another process."""
        # The content of the lock while this is the writer.
        self.held = held
        self.place = str(Path(place).resolve()) if not is_uri(place) else str(place).rstrip("/")
        self._files = files_at(place, spark)

    def is_there(self) -> bool:
        """Whether the folder contains a store."""
        return self._files.exists(join(self.place, _MARKER))

    def create(self) -> None:
        """Create the store, unless it exists. Raises PipelineError if the folder contains other things."""
        if self.is_there():
            return
        try:
            if self._files.folders(self.place) or any(self._files.find(self.place, "*", is_deep=False)):
                raise PipelineError(f"{self.place} is not empty and not a store of traces: give a new folder")
            self._files.write(join(self.place, _MARKER), json.dumps({"version": VERSION}).encode())
        except OSError as error:
            raise PipelineError(f"{self.place} cannot be used as a store: {error.strerror}") from error

    def check(self) -> None:
        """Raise PipelineError unless this is a store of a known version."""
        if not self.is_there():
            raise PipelineError(
                f"{self.place} is not a store: make one with `flyball pipeline ingest SOURCE --out STORE`"
            )
        try:
            version = json.loads(self._files.read(join(self.place, _MARKER)))["version"]
        except (OSError, ValueError, KeyError, TypeError):
            version = None
        if version != VERSION:
            raise PipelineError(
                f"{self.place} is a store of version {version}, this pipeline reads {VERSION}:"
                " ingest the traces into a new one"
            )

    def checkpoint_of(self, key: str) -> str:
        """Return the checkpoint folder of the stream of that name."""
        return uri_of(join(self.place, _CHECKPOINTS, key))

    @property
    def manifests(self) -> str:
        """The folder with the manifests of experiments and runs."""
        return join(self.place, _MANIFESTS)

    def folder(self, table: str, batch: str) -> str:
        """Return the URI of the rows of a table in a batch."""
        return uri_of(join(self.place, table, f"batch={batch}"))

    def batches(self) -> list[Batch]:
        """Return the committed batches that have not been replaced, in the order of their names."""
        found = {}
        for entry in self._files.find(join(self.place, _BATCHES), "*.json", is_deep=False):
            # Another process may have compacted it meanwhile: the batch that replaces it exists.
            with contextlib.suppress(FileNotFoundError):
                batch = Batch(**json.loads(self._files.read(join(self.place, _BATCHES, name_of(entry.place)))))
                found[batch.name] = batch
        replaced = {name for batch in found.values() for name in batch.replaces}
        return [batch for name, batch in sorted(found.items()) if name not in replaced]

    def has(self, batch: str) -> bool:
        """Whether a batch was committed, even if another one has replaced it since."""
        return self._files.exists(join(self.place, _BATCHES, f"{batch}.json")) or any(
            batch in one.replaces for one in self.batches()
        )

    def commit(self, batch: Batch) -> None:
        """Commit a batch. Raises PipelineError if another process has become the writer meanwhile."""
        self._check_lock()
        self._files.write(join(self.place, _BATCHES, f"{batch.name}.json"), json.dumps(asdict(batch)).encode())

    def write(self, rows: DataFrame, table: str, batch: str) -> None:
        """Write the rows of a table in a batch, and overwrite those of an earlier attempt."""
        rows.write.mode("overwrite").parquet(self.folder(table, batch))

    def write_small(self, rows: pa.Table, table: str, batch: str) -> None:
        """Write the rows of a small table, in the driver's memory, in a batch."""
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink)
        folder = join(self.place, table, f"batch={batch}")
        self._files.delete(folder)
        self._files.write(join(folder, "part-0.parquet"), sink.getvalue().to_pybytes())

    def read(self, spark: SparkSession, table: str, batches: Sequence[Batch] | None = None) -> DataFrame:
        """Read a table, or its rows in some batches."""
        known = self.batches() if batches is None else batches
        folders = [self.folder(table, batch.name) for batch in known if table in batch.tables]
        schema = SCHEMAS[table]
        if not folders:
            return spark.createDataFrame([], schema)
        return spark.read.schema(schema).parquet(*map(as_pattern, folders)).select(*schema.names)

    def compact(self, spark: SparkSession) -> int:
        """Merge all batches into one, so that there are few files; return their previous number.

        Aggregates are summed. The old batches are removed after the new one is committed.
        """
        batches = self.batches()
        self._remove_replaced(batches)
        if len(batches) < 2:
            return len(batches)
        names = [batch.name for batch in batches]
        name = f"compacted-{_digest(' '.join(names))}"
        tables = sorted({table for batch in batches for table in batch.tables})
        for table in tables:
            if table.startswith("quarantine/"):
                folders = [self.folder(table, batch.name) for batch in batches if table in batch.tables]
                self.write(spark.read.parquet(*map(as_pattern, folders)).coalesce(1), table, name)
                continue
            rows = self.read(spark, table, batches)
            if table in AGGREGATES:
                rows = AGGREGATES[table].merged(rows)
            if table == "samples":
                rows = newest(rows, total(batches).rows.get("samples", 0))
            self.write(rows.coalesce(1) if table not in AGGREGATES else rows, table, name)
        # Lists of earlier compactions are kept: a stream may repeat a batch whose checkpoint was not written.
        replaced = [*names, *(old for batch in batches for old in batch.replaces[-1000:])]
        self.commit(_joined(name, tables, batches, replaced))
        self._remove_replaced(self.batches())
        return len(batches)

    def _remove_replaced(self, batches: Sequence[Batch]) -> None:
        kept = {batch.name for batch in batches}
        for batch in batches:
            for old in batch.replaces:
                if self._files.exists(join(self.place, _BATCHES, f"{old}.json")) and old not in kept:
                    for table in (*SCHEMAS, QUARANTINED_LINES, *(f"quarantine/{name}" for name in TABLES)):
                        self._files.delete(join(self.place, table, f"batch={old}"))
                    self._files.delete(join(self.place, _BATCHES, f"{old}.json"))

    def copy_manifests(self, source: str, spark: SparkSession | None = None) -> None:
        """Copy the manifests of the experiments and runs in `source`. Raises PipelineError if one is invalid."""
        files = files_at(source, spark)
        read_experiments(source, files)
        read_runs(source, files)
        texts: dict[str, bytes] = {}
        for name in (EXPERIMENT_FILE, RUN_FILE):
            for place in find_files(source, name, files):
                folder = place.rpartition("/")[0]
                target = join(self.manifests, name_of(folder) if name == RUN_FILE else _digest(folder), name)
                texts[target] = files.read(place)
                if name == RUN_FILE and self._files.exists(target) and self._files.read(target) != texts[target]:
                    run = name_of(folder).removeprefix("run=")
                    raise PipelineError(
                        f"{self.place} holds another run {run!r}: ingest {source} into a store of its own"
                    )
        for target, text in texts.items():
            if not self._files.exists(target) or self._files.read(target) != text:
                self._files.write(target, text)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the writer's lock within the block. Raises PipelineError if another process holds it."""
        lock = join(self.place, _LOCK)
        owner = {"host": socket.gethostname(), "pid": os.getpid(), "token": f"{time.time_ns()}-{id(self)}"}
        content = json.dumps(owner).encode()
        self._acquire(lock, content)
        self.held = content
        stopped = threading.Event()

        def beat() -> None:
            while not stopped.wait(HEARTBEAT_S):
                with contextlib.suppress(OSError):
                    # Another process may have broken the lock of a writer that was suspended for long.
                    if self._files.read(lock) != content:
                        return
                    self._files.write(lock, content)

        thread = threading.Thread(target=beat, name="store-lock", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.held = None
            stopped.set()
            thread.join()
            with contextlib.suppress(OSError):
                if self._files.read(lock) == content:
                    self._files.delete(lock)

    def _acquire(self, lock: str, content: bytes) -> None:
        for _ in range(2):
            try:
                self._files.create(lock, content)
            except FileExistsError:
                self._break_lock(lock)
            except OSError as error:
                raise PipelineError(f"{self.place} cannot be written to: {error.strerror}") from error
            else:
                # In an object store two writers may succeed in creating the lock: the last one holds it.
                if self._files.read(lock) == content:
                    return
        raise PipelineError(f"{self.place} is being written by another process: wait until it has ended")

    def _check_lock(self) -> None:
        if self.held is None:
            return
        try:
            is_mine = self._files.read(join(self.place, _LOCK)) == self.held
        except FileNotFoundError:
            is_mine = False
        if not is_mine:
            raise PipelineError(
                f"{self.place} has another writer now, and this one has ended:"
                " start it again when the other has ended; no file is ingested twice"
            )

    def _break_lock(self, lock: str) -> None:
        """Remove the lock of a dead writer. Raises PipelineError if it is alive."""
        try:
            age_s = time.time() - self._files.modified_s(lock)
            owner: dict[str, Any] = json.loads(self._files.read(lock))
        except FileNotFoundError:
            return
        except ValueError:
            owner = {}
        is_mine = owner.get("host") == socket.gethostname()
        if not (age_s > STALE_S or (is_mine and not _is_alive(int(owner["pid"])))):
            raise PipelineError(
                f"{self.place} is being written by process {owner.get('pid')} on {owner.get('host')}:"
                f" wait until it has ended, or remove {lock} if it has"
            )
        self._files.delete(lock)


def _joined(name: str, tables: list[str], batches: Sequence[Batch], replaced: list[str]) -> Batch:
    rows: dict[str, int] = {}
    origins: dict[str, int] = {}
    extents: dict[str, list[int]] = {}
    for batch in batches:
        for table, count in batch.rows.items():
            rows[table] = rows.get(table, 0) + count
        origins |= batch.origins
        for run, (first, last) in batch.extents.items():
            known = extents.get(run, [first, last])
            extents[run] = [min(known[0], first), max(known[1], last)]
    files, left_out = (sum(getattr(batch, what) for batch in batches) for what in ("files", "left_out"))
    has_dropped = any(batch.has_dropped for batch in batches)
    return Batch(name, tables, replaced, rows, files, left_out, has_dropped, origins, extents)


def total(batches: Sequence[Batch]) -> Batch:
    """Return the combined summary of all batches."""
    return _joined("", sorted({table for batch in batches for table in batch.tables}), batches, [])


def quarantined(store: Store, spark: SparkSession, most: int) -> list[Quarantined]:
    """Return the rejected files and rows, and the reasons; the first `most` by name."""
    batches = store.batches()
    files = latest(store.read(spark, "files", batches))
    problems = files.where("problem is not null").select("file", sf.col("problem").alias("reason"), "rows")
    rejected = store.read(spark, "rejected", batches).groupBy("file", "reason").agg(sf.sum("rows").alias("rows"))
    found = problems.unionByName(rejected).orderBy("file", "reason").limit(most).toArrow().to_pylist()
    return [Quarantined(**row) for row in found]


def latest(files: DataFrame) -> DataFrame:
    """Keep the latest facts of each file: an ingested file stays ingested."""
    facts = sf.struct(*(name for name in FILES.names if name != "file"))
    rank = sf.struct(sf.col("problem").isNull(), sf.col("modified_us"))
    return files.groupBy("file").agg(sf.max_by(facts, rank).alias("facts")).select("file", "facts.*")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
