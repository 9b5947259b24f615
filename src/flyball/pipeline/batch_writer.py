"""Writes one batch of a store: the aggregates of the rows of some files, and the rejected rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from flyball.errors import PipelineError
from flyball.pipeline.activity import node_points, queue_points, time_points
from flyball.pipeline.events import MOST_POINTS, WINDOWS, of_calls, of_requests, placed, within
from flyball.pipeline.filesystem import files_at
from flyball.pipeline.latency import spread
from flyball.pipeline.log_sums import downtime_sums, interval_sums
from flyball.pipeline.manifest import read_runs
from flyball.pipeline.policies import answers, compared_runs
from flyball.pipeline.profile import admitted, costs
from flyball.pipeline.rules import is_sound, reason
from flyball.pipeline.schemas import TABLES
from flyball.pipeline.store_tables import FILES, REJECTED, newest
from flyball.pipeline.throughput import seconds
from flyball.pipeline.trace_scan import (
    SoundFile,
    as_place,
    scan,
)
from flyball.pipeline.trace_store import QUARANTINED_LINES, Batch, Store, total

# If a batch has more requests than this, costs are counted for a sample of them.
ENOUGH_ROWS = 10_000_000

# If a batch has more rows of a kind than this, times other than the response are counted for a sample of them.
ENOUGH_OF_A_KIND = 1_000_000

# The aggregated tables, with the source of their events.
_SOURCES = {"requests": "nodes", "calls": "clients"}

# Other tables that are summed: the name of their sums, and the expression for the number of their rows.
_SUMS = {
    "admissions": ("admitted", "sum(if(unit = 'ms', rows, 0))"),
    "intervals": ("intervals", "sum(records)"),
    "downtimes": ("downtimes", "sum(requests)"),
}

# Tables that are summed over time, with the table of their sums.
_ACTIVITY = {
    "nodes": ("node_points", node_points),
    "queues": ("queue_points", queue_points),
    "times": ("time_points", time_points),
}


class BatchWriter:
    """Writes one batch."""

    def __init__(self, spark: SparkSession, store: Store, name: str, source: str) -> None:
        self._spark = spark
        self._store = store
        self._name = name
        self._source = source
        self._tables: list[str] = []
        self._has_dropped = False
        self._extents_found: list[tuple[str, int, int]] = []
        self._rows: dict[str, int] = {}
        known = total(store.batches())
        self._origins, self._extents = known.origins, known.extents
        manifests = read_runs(store.manifests, files_at(store.place, spark))
        self._manifests = {run.run: run for run in manifests if 0 < run.measured.from_us < run.measured.until_us}

    def files(self, ledger: Sequence[Mapping[str, Any]]) -> None:
        """Write the table of files."""
        columns = {name: [entry[name] for entry in ledger] for name in FILES.names}
        self._write_small(columns, FILES, "files")
        self._has_dropped = any(columns["dropped"])

    def lines(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write the rejected lines of logs."""
        if lines:
            self._store.write_small(pa.Table.from_pylist(list(lines)), QUARANTINED_LINES, self._name)
            self._tables.append(QUARANTINED_LINES)

    def rows(
        self, sound: Sequence[SoundFile], rejected: list[tuple[str, str, int]], file_count: int, problems: set[str]
    ) -> Batch:
        """Write the aggregates of the rows of files; return the batch."""
        by_table: dict[str, list[SoundFile]] = {}
        for file in sound:
            by_table.setdefault(file.table, []).append(file)
        origins = {run: self._origin(run, sound) for run in dict.fromkeys(file.run for file in sound)}
        extents: dict[str, list[int]] = {}
        scans = {}
        for table, files in by_table.items():
            scans[table] = scan(self._spark, table, files, self._source)
        events = {
            table: as_events(scans[table].where(is_sound(table)))
            for table, as_events in (("requests", of_requests), ("calls", of_calls))
            if table in scans
        }
        if "samples" in scans:
            self._keep_samples(scans["samples"].where(is_sound("samples")))
        alignments = self._spark.createDataFrame(self._alignments(origins, sound), WINDOWS)
        for table in _SUMS.keys() & scans.keys():
            self._add_up(table, scans[table].where(is_sound(table)), origins, alignments)
        if events:
            self._aggregate(scans, events, origins, alignments, sound)
        self._add_activity(scans, alignments)
        for table, frame in scans.items():
            missing = sum(file.rows for file in by_table[table]) - self._rows.get(table, 0)
            if missing:
                found = self._quarantine(table, frame)
                if sum(count for _, _, count in found) != missing:
                    raise PipelineError(
                        f"{missing} rows of {table} were lost while {self._source} was read:"
                        " a file changed meanwhile; repeat the command"
                    )
                rejected += found
        if rejected:
            columns = dict(zip(REJECTED.names, map(list, zip(*rejected, strict=True)), strict=True))
            self._write_small(columns, REJECTED, "rejected")
        for run, first, last in self._extents_found:
            known = extents.get(run, [first, last])
            extents[run] = [min(known[0], first), max(known[1], last)]
        rows = {table: count for table, count in self._rows.items() if count}
        left_out = len(problems | {file for file, _, _ in rejected})
        return Batch(self._name, self._tables, [], rows, file_count, left_out, self._has_dropped, origins, extents)

    def _write_small(self, columns: Mapping[str, list[Any]], schema: StructType, table: str) -> None:
        """Write a table that is in the driver's memory, without Spark."""
        self._store.write_small(pa.table(dict(columns), schema=to_arrow_schema(schema)), table, self._name)
        self._tables.append(table)

    def _write(self, rows: DataFrame, table: str) -> None:
        self._store.write(rows, table, self._name)
        self._tables.append(table)

    def _read(self, table: str) -> DataFrame:
        return self._store.read(self._spark, table, [Batch(self._name, [table])])

    def _keep_samples(self, samples: DataFrame) -> None:
        """Write the newest samples of each loop."""
        found = samples.groupBy("run").agg(sf.count("*"), sf.min("at_us"), sf.max("at_us")).collect()
        self._rows["samples"] = sum(rows for _, rows, _, _ in found)
        self._extents_found += [(run, first, last) for run, _, first, last in found]
        self._write(newest(samples, self._rows["samples"]).select(*TABLES["samples"].names), "samples")

    def _add_up(self, table: str, rows: DataFrame, origins: Mapping[str, int], alignments: DataFrame) -> None:
        """Write the sums of one of the tables in _SUMS."""
        name, count = _SUMS[table]
        if table == "admissions":
            sums = admitted(rows, self._spark.createDataFrame(self._windows(origins), WINDOWS))
        else:
            sums = (interval_sums if table == "intervals" else downtime_sums)(rows, alignments)
        self._write(sums, name)
        found = self._read(name).groupBy("run").agg(sf.expr(count), sf.min("first_us"), sf.max("last_us")).collect()
        self._rows[table] = sum(rows for _, rows, _, _ in found)
        self._extents_found += [(run, first, last) for run, _, first, last in found]

    def _add_activity(self, scans: Mapping[str, DataFrame], alignments: DataFrame) -> None:
        """Write the sums of the tables in _ACTIVITY."""
        known = {run for run, _, _ in self._extents_found}
        for table, (points, add) in _ACTIVITY.items():
            if table not in scans:
                continue
            rows = scans[table].where(is_sound(table)).select(*TABLES[table].names)
            self._write(add(rows, alignments), points)
            found = rows.groupBy("run").agg(sf.count("*"), sf.min("at_us"), sf.max("at_us")).collect()
            self._rows[table] = sum(count for _, count, _, _ in found)
            # Nodes record activity while they are idle, too: its extent counts only for runs without other records.
            self._extents_found += [(run, first, last) for run, _, first, last in found if run not in known]

    def _aggregate(
        self,
        scans: Mapping[str, DataFrame],
        events: Mapping[str, DataFrame],
        origins: Mapping[str, int],
        alignments: DataFrame,
        sound: Sequence[SoundFile],
    ) -> None:
        every = _union(list(events.values()))
        self._write(seconds(placed(every, alignments)), "seconds")
        counted = self._read("seconds").groupBy("source", "run")
        found = counted.agg(sf.sum("records"), sf.min("first_us"), sf.max("last_us")).collect()
        self._extents_found += [(run, first, last) for _, run, _, first, last in found]
        for table, source in _SOURCES.items():
            if table in events:
                self._rows[table] = sum(records for where, _, records, _, _ in found if where == source)
        file_rows = {table: sum(file.rows for file in sound if file.table == table) for table in events}
        # The rows of a table are checked again only if some were rejected, so that both passes count the same rows.
        clean = {
            table: as_events(scans[table]) if self._rows[table] == file_rows[table] else events[table]
            for table, as_events in (("requests", of_requests), ("calls", of_calls))
            if table in events
        }
        windows = self._spark.createDataFrame(self._windows(origins), WINDOWS)
        many = sum(file_rows.values()) >= 2 * ENOUGH_OF_A_KIND
        records = self._read("seconds").groupBy("kind").agg(sf.sum("records")).collect() if many else []
        one_in = {kind: count // ENOUGH_OF_A_KIND for kind, count in records if count >= 2 * ENOUGH_OF_A_KIND}
        self._write(spread(within(_union(list(clean.values())), windows), one_in), "spread")
        if "requests" in scans:
            rows = scans["requests"]
            rows = rows if self._rows["requests"] == file_rows["requests"] else rows.where(is_sound("requests"))
            self._write(costs(part_of(rows, file_rows["requests"])).coalesce(1), "costs")
        compared = [run for run in compared_runs(list(self._manifests.values())) if run.run in origins]
        if "calls" in clean and compared:
            self._write(answers(within(clean["calls"], windows), compared), "answers")

    def _quarantine(self, table: str, rows: DataFrame) -> list[tuple[str, str, int]]:
        """Write the rejected rows with their reason; return their number by file."""
        name = f"quarantine/{table}"
        bad = rows.withColumn("reason", reason(table)).where("reason is not null")
        self._write(bad.select(*TABLES[table].names, "reason", as_place(sf.col("_file")).alias("file")), name)
        kept = self._spark.read.parquet(self._store.folder(name, self._name))
        counted = kept.groupBy("file", "reason").count().toArrow().to_pylist()
        return [(row["file"], row["reason"], row["count"]) for row in counted]

    def _origin(self, run: str, sound: Sequence[SoundFile]) -> int:
        """Return the time from which the seconds of a run are counted, which is the same for all of its files."""
        if run in self._manifests:
            return self._manifests[run].measured.from_us
        if run in self._origins:
            return self._origins[run]
        return min((file.first_us for file in sound if file.run == run and file.first_us is not None), default=0)

    def _windows(self, origins: Mapping[str, int]) -> list[tuple[str, int, int]]:
        """Return the measured time of each run: from its manifest, or else the extent of its records."""
        return [
            (run, measured.from_us, measured.until_us)
            if (measured := getattr(self._manifests.get(run), "measured", None))
            else (run, 0, 1 << 62)
            for run in origins
        ]

    def _alignments(self, origins: Mapping[str, int], sound: Sequence[SoundFile]) -> list[tuple[str, int, int]]:
        """Return windows, with the length of the points into which the seconds of each run are merged."""
        found = []
        for run, origin in origins.items():
            if run in self._manifests:
                until = self._manifests[run].measured.until_us
            else:
                times = [file.last_us for file in sound if file.run == run and file.last_us is not None]
                until = max([*times, *self._extents.get(run, [])], default=origin)
                # A minute at most: the files so far may be only the start of the run.
                until = min(until, origin + 60 * MOST_POINTS * 1_000_000)
            found.append((run, origin, max(until, origin + 1)))
        return found


def part_of(rows: DataFrame, count: int) -> DataFrame:
    """Sample enough of `count` requests for a profile; each sampled one is weighted for those left out."""
    one_in = max(count // ENOUGH_ROWS, 1)
    if one_in == 1:
        return rows
    # By a hash: with a client that alternates put and take, every n-th request would be of one kind.
    part = rows.where(sf.pmod(sf.hash("sequence"), sf.lit(one_in)) == 0)
    return part.withColumn("weight", sf.col("weight") * sf.lit(one_in))


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    first, *others = frames
    for other in others:
        first = first.unionByName(other)
    return first
