"""A store of ingested traces: tables of Parquet files, and a ledger of what became of each source file.

Files that are sound are linked, not rewritten; small ones are merged. All can be repeated after a crash with the
same result. Knows nothing of Spark.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flyball.errors import PipelineError
from flyball.pipeline.manifest import EXPERIMENT_FILE, RUN_FILE, find_files, read_experiments, read_runs
from flyball.pipeline.rules import RULES
from flyball.pipeline.trace_reader import REASON, Malformed, Part, Source

Opener = Callable[[Path], Source]

_MARKER = "flyball-store.json"
_VERSION = 1
_LEDGER = "_ledger"
_CHECKPOINTS = "_checkpoints"
_MANIFESTS = "_manifests"
_QUARANTINE = "quarantine"
_STARTED = ".started"
_NO_RUN = "__HIVE_DEFAULT_PARTITION__"
"""What Spark calls the folder of rows that have no value."""

_SMALL_ROWS = 20_000
"""A file with fewer rows is merged with others: opening it for each query costs more than rewriting it once."""
_MERGED_ROWS = 2_000_000
_GROUP_ROWS = 1 << 19

INCOMPLETE = "belongs to a run that is not complete"


class Quarantined(NamedTuple):
    """A file that could not be used, or rows of one."""

    file: str
    reason: str
    rows: int
    """How many rows, 0 if that cannot be known."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of one source file."""

    source: str
    run: str
    size_bytes: int
    modified_ns: int
    problem: str | None = None
    """Why the whole file is left out; it is looked at again when it has changed."""
    lost_rows: int = 0
    """The rows of a file that is left out, as far as they are known."""
    rows: dict[str, int] = field(default_factory=dict)
    """Rows that can be used, by table."""
    bad: dict[str, int] = field(default_factory=dict)
    """Rows that cannot, by reason."""
    from_us: int | None = None
    until_us: int | None = None
    dropped: int = 0
    is_table: bool = False
    """Whether the file could stand in its table as it is, if it has no bad rows."""

    @property
    def good_rows(self) -> int:
        return sum(self.rows.values())

    @property
    def stays_as_it_is(self) -> bool:
        """Whether it is linked into its table, not rewritten."""
        return self.is_table and not self.bad and self.good_rows >= _SMALL_ROWS


class Store:
    """A folder with tables. One process may write to it at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    @staticmethod
    def is_at(folder: Path) -> bool:
        """Whether there is a store in that folder."""
        return (folder / _MARKER).is_file()

    def create(self) -> None:
        """Make the store, unless there is one. Raises PipelineError if the folder holds other things."""
        if self.is_at(self.folder):
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if any(self.folder.iterdir()):
                raise PipelineError(f"{self.folder} is not empty and no store of traces: give a new folder")
            _replace(self.folder / _MARKER, json.dumps({"version": _VERSION}))
        except OSError as error:
            raise PipelineError(f"{self.folder} cannot be used as a store: {error.strerror}") from error

    def check(self) -> None:
        """Raise PipelineError unless this is a store that is complete and of a version that is known."""
        if not self.is_at(self.folder):
            raise PipelineError(
                f"{self.folder} is no store: make one with `flyball pipeline ingest SOURCE --out STORE`"
            )
        try:
            version = json.loads((self.folder / _MARKER).read_bytes())["version"]
        except (OSError, ValueError, KeyError, TypeError):
            version = None
        if version != _VERSION:
            raise PipelineError(f"{self.folder} is a store of version {version}, this pipeline reads {_VERSION}")
        if any((self.folder / _LEDGER).glob(f"*{_STARTED}")):
            raise PipelineError(
                f"{self.folder} is half-written: repeat the `flyball pipeline ingest` that was stopped"
            )

    def checkpoint_of(self, key: str) -> Path:
        """Where the stream of that name keeps what it has seen."""
        return self.folder / _CHECKPOINTS / key

    def table(self, name: str) -> Path | None:
        """Return the folder of a table, or None if it has no rows."""
        folder = self.folder / name
        return folder if any(folder.glob("run=*/*.parquet")) else None

    @property
    def manifests(self) -> Path:
        """The folder with what the lab says about experiments and runs."""
        return self.folder / _MANIFESTS

    def taken(self) -> list[Taken]:
        """Return what became of every source file, by name."""
        latest: dict[str, Taken] = {}
        for path in sorted((self.folder / _LEDGER).glob("*.json")):
            for facts in json.loads(path.read_bytes()):
                entry = Taken(**facts)
                known = latest.get(entry.source)
                if known is None or _rank(entry) > _rank(known):
                    latest[entry.source] = entry
        return [latest[source] for source in sorted(latest)]

    def quarantined(self) -> list[Quarantined]:
        """Return all files and rows that were left out, and why."""
        found = []
        for entry in self.taken():
            if entry.problem == INCOMPLETE and not os.path.exists(entry.source):
                # The lab has removed what was left of the run, to repeat it.
                continue
            if entry.problem:
                found.append(Quarantined(entry.source, entry.problem, entry.lost_rows))
            found += [Quarantined(entry.source, reason, rows) for reason, rows in sorted(entry.bad.items())]
        return found

    def changed(self) -> list[Path]:
        """Return the files that were left out and are worth another look."""
        return [Path(entry.source) for entry in self.taken() if entry.problem and _has_changed(entry)]

    def copy_manifests(self, source: Path) -> None:
        """Keep what the lab says about the experiments and runs in `source`. Raises PipelineError if it is wrong."""
        read_experiments(source)
        read_runs(source)
        texts: dict[Path, str] = {}
        for name in (EXPERIMENT_FILE, RUN_FILE):
            for path in find_files(source, name):
                place = path.resolve().parent
                target = self.manifests / (place.name if name == RUN_FILE else _digest(str(place))) / name
                texts[target] = path.read_text(encoding="utf-8")
                if name == RUN_FILE and target.exists() and target.read_text(encoding="utf-8") != texts[target]:
                    raise PipelineError(
                        f"{self.folder} holds another run {run_of(place)!r}: take {source} into a store of its own"
                    )
        for target, text in texts.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            _replace(target, text)

    def take(self, batch: str, paths: Iterable[Path], open_source: Opener) -> None:
        """Take files into the tables, or into quarantine; all of them under the name of one batch.

        Files that are in a table already are passed over. May be repeated with the same name and files after a crash
        at any point. Raises PipelineError if a file changes meanwhile, or the disk fails.
        """
        try:
            self._take(batch, paths, open_source)
        except Malformed as error:
            raise PipelineError(f"a file changed while it was read, and now {error}: repeat the command") from error
        except OSError as error:
            raise PipelineError(
                f"{error.filename or self.folder}: {error.strerror}. Repeat the command when that is cured"
            ) from error

    def _take(self, batch: str, paths: Iterable[Path], open_source: Opener) -> None:
        ledger = self.folder / _LEDGER
        if (ledger / f"{batch}.json").exists():
            return
        ledger.mkdir(exist_ok=True)
        started = ledger / f"{batch}{_STARTED}"
        if started.exists():
            self._undo(started)
        known = {entry.source for entry in self.taken() if not entry.problem}
        mine = sorted(path for path in paths if str(path) not in known and not _is_in_a_store(path))
        _replace(started, json.dumps([str(path) for path in mine]))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            entries = list(pool.map(lambda path: _examine(path, open_source), mine))
            usable = [entry for entry in entries if entry.good_rows or entry.bad]
            for entry in usable:
                if entry.stays_as_it_is:
                    self._link(entry)
            groups = enumerate(_groups(entry for entry in usable if not entry.stays_as_it_is))
            merge = partial(self._merge, open_source=open_source)
            for job in [pool.submit(merge, f"merged-{batch}-{number}", group) for number, group in groups]:
                job.result()
        _replace(ledger / f"{batch}.json", json.dumps([asdict(entry) for entry in entries]))
        started.unlink()

    def forget_started(self, prefix: str) -> None:
        """Undo the batches with names like this that a crash has stopped: none of their files is taken."""
        for started in (self.folder / _LEDGER).glob(f"{prefix}*{_STARTED}"):
            self._undo(started)
            started.unlink()

    def _undo(self, started: Path) -> None:
        """Remove what a crash has left of a batch."""
        names = [f"*merged-{started.name.removesuffix(_STARTED)}-*"]
        names += [glob.escape(_link_name(source)) for source in json.loads(started.read_bytes())]
        for name in names:
            for path in self.folder.rglob(f"{name}.parquet"):
                path.unlink()

    def _link(self, entry: Taken) -> None:
        """Put a file into its table as it is."""
        [table] = entry.rows
        target = self._file(table, entry.run, _link_name(entry.source))
        part = _unfinished(target)
        part.unlink(missing_ok=True)
        try:
            os.link(entry.source, part)
        except OSError:
            # Another disk, or one that has no links.
            shutil.copyfile(entry.source, part)
        part.rename(target)

    def _merge(self, name: str, entries: Sequence[Taken], open_source: Opener) -> None:
        """Write the good rows of some files of one run into one file for each table; the others to quarantine."""
        with contextlib.ExitStack() as stack:
            writers: dict[Path, _Writer] = {}

            def write(target: Path, batch: pa.RecordBatch) -> None:
                if batch.num_rows:
                    if target not in writers:
                        writers[target] = _Writer(target)
                        stack.callback(writers[target].abandon)
                    writers[target].write(batch)

            for entry in entries:
                for part in open_source(Path(entry.source)).parts():
                    write(self._file(part.table, entry.run, name), part.good)
                    write(self._file(f"{_QUARANTINE}/{part.table}", entry.run, name), _of_file(part, entry.source))
            for writer in writers.values():
                writer.close()

    def _file(self, table: str, run: str, name: str) -> Path:
        folder = self.folder / table / f"run={quote(run, safe='') or _NO_RUN}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name}.parquet"


class _Writer:
    """Writes batches into one Parquet file, which has its name when it is complete."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._part = _unfinished(target)
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._writer: pq.ParquetWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._rows += batch.num_rows
        if self._rows >= _GROUP_ROWS:
            self._flush()

    def close(self) -> None:
        self._flush()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            self._part.rename(self._target)

    def abandon(self) -> None:
        """Throw away what is not complete. Raises nothing, so that it can follow any error."""
        if self._writer is not None:
            with contextlib.suppress(OSError, pa.ArrowException):
                self._writer.close()
        with contextlib.suppress(OSError):
            self._part.unlink(missing_ok=True)

    def _flush(self) -> None:
        if not self._batches:
            return
        table = pa.Table.from_batches(self._batches).unify_dictionaries()
        if self._writer is None:
            texts = [column.name for column in table.schema if pa.types.is_dictionary(column.type)]
            whole = {c.name: "DELTA_BINARY_PACKED" for c in table.schema if pa.types.is_integer(c.type)}
            self._writer = pq.ParquetWriter(
                self._part, table.schema, compression="zstd", use_dictionary=texts, column_encoding=whole
            )
        self._writer.write_table(table)
        self._batches, self._rows = [], 0


def run_of(path: Path) -> str:
    """Return what follows `run=` in the path of a trace, or an empty text."""
    return next((part.removeprefix("run=") for part in reversed(path.parts) if part.startswith("run=")), "")


def _examine(path: Path, open_source: Opener) -> Taken:
    """Read a file to its end and say what it is worth."""
    run = run_of(path.parent)
    try:
        status = path.stat()
        size_bytes, modified_ns = status.st_size, status.st_mtime_ns
    except OSError as error:
        return Taken(str(path), run, 0, 0, f"cannot be read: {error.strerror}")
    known = 0
    try:
        if _is_incomplete(path):
            raise Malformed(INCOMPLETE)
        source = open_source(path)
        known = source.rows
        rows: dict[str, int] = {}
        bad: dict[str, int] = {}
        window: list[int] = []
        for part in source.parts():
            if part.good.num_rows:
                rows[part.table] = rows.get(part.table, 0) + part.good.num_rows
                window += _window(part)
            for reason in pc.value_counts(part.bad.column(REASON)).to_pylist():
                bad[reason["values"]] = bad.get(reason["values"], 0) + reason["counts"]
    except Malformed as error:
        return Taken(str(path), run, size_bytes, modified_ns, str(error), known)
    return Taken(
        str(path),
        run,
        size_bytes,
        modified_ns,
        rows=rows,
        bad=bad,
        from_us=min(window, default=None),
        until_us=max(window, default=None),
        dropped=source.dropped,
        is_table=source.is_table,
    )


def _window(part: Part) -> list[int]:
    extremes = pc.min_max(part.good.column(RULES[part.table].time_column)).as_py()
    return [extremes["min"], extremes["max"]]


def _is_in_a_store(path: Path) -> bool:
    """Whether a file is a part of a store, this one or another: its source is what counts."""
    return any(Store.is_at(folder) for folder in path.parents)


def _link_name(source: str) -> str:
    return f"{Path(source).stem}-{_digest(source)}"


def _is_incomplete(path: Path) -> bool:
    """Whether the lab has begun the run of this file and not ended it."""
    for folder in path.parents:
        if folder.name.startswith("run="):
            return (folder.parent / EXPERIMENT_FILE).exists() and not (folder / RUN_FILE).exists()
    return False


def _has_changed(entry: Taken) -> bool:
    try:
        status = os.stat(entry.source)
    except OSError:
        return False
    if entry.problem == INCOMPLETE:
        return not _is_incomplete(Path(entry.source))
    return (status.st_size, status.st_mtime_ns) != (entry.size_bytes, entry.modified_ns)


def _rank(entry: Taken) -> tuple[bool, int]:
    """What is known last about a file: a file that was taken stays so."""
    return (entry.problem is None, entry.modified_ns)


def _groups(entries: Iterable[Taken]) -> Iterator[list[Taken]]:
    """Divide files into those that are merged into one: of one run, in order, and not too many rows."""
    by_run: dict[str, list[Taken]] = {}
    for entry in entries:
        by_run.setdefault(entry.run, []).append(entry)
    for members in by_run.values():
        group: list[Taken] = []
        rows = 0
        for entry in members:
            if group and rows + entry.good_rows > _MERGED_ROWS:
                yield group
                group, rows = [], 0
            group.append(entry)
            rows += entry.good_rows
        yield group


def _of_file(part: Part, source: str) -> pa.RecordBatch:
    bad = part.bad
    return pa.RecordBatch.from_arrays(
        [*bad.columns, pa.array([source] * bad.num_rows, pa.string())], [*bad.schema.names, "file"]
    )


def _unfinished(target: Path) -> Path:
    return target.with_name(f".{target.name}")


def _replace(target: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    part = _unfinished(target)
    part.write_text(text, encoding="utf-8")
    part.rename(target)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
