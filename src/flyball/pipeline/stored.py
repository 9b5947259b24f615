"""A store as Spark tables: the input of all stages, and the original rows while their files exist."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from flyball.errors import PipelineError
from flyball.pipeline.events import MOST_POINTS, WINDOWS
from flyball.pipeline.filesystem import files_at
from flyball.pipeline.manifest import Run, read_runs
from flyball.pipeline.rules import is_sound
from flyball.pipeline.schemas import TABLES
from flyball.pipeline.spark_errors import one_line_errors
from flyball.pipeline.store_tables import AGGREGATES, newest
from flyball.pipeline.trace_scan import (
    check_places,
    scan,
    sound_file,
)
from flyball.pipeline.trace_store import INCOMPLETE, SCHEMAS, Batch, Quarantined, Store, latest, quarantined, total

# Maximum number of rejected files and rows that are reported individually.
MOST_QUARANTINED = 1000


@dataclass(frozen=True, slots=True)
class Ingested:
    """The content of a store as Spark tables, with the facts about them that are already known."""

    # SECONDS, counted from the start of each run's measured time.
    seconds: DataFrame
    # SPREAD of the measured time.
    spread: DataFrame
    costs: DataFrame
    answers: DataFrame
    # The newest of each loop.
    samples: DataFrame
    # ADMITTED: costs of applications' requests.
    admitted: DataFrame
    # Sums of the activity of nodes and queues, and of the times of messages; see `activity`.
    node_points: DataFrame
    queue_points: DataFrame
    time_points: DataFrame
    # INTERVAL_SUMS, from the logs of ThorBangMQ's servers.
    intervals: DataFrame
    # DOWNTIME_SUMS, from the logs of Telesto: the time for which workers waited for requests.
    downtimes: DataFrame
    # run, from_us, until_us: the measured time of each run.
    windows: DataFrame
    # The rejected files and rows, and the reasons.
    quarantine: list[Quarantined]
    # Number of rows by table, without empty ones.
    rows: dict[str, int]
    # Records that nodes and clients could not write.
    dropped: int


def open_store(spark: SparkSession, store: str | Path) -> Ingested:
    """Open a store. Raises PipelineError if it is not a store, or holds no valid row."""
    place = Store(store, spark)
    place.check()
    batches = place.batches()
    known = total(batches)
    with one_line_errors(f"opening {store}"):
        left_out = quarantined(place, spark, MOST_QUARANTINED) if known.left_out else []
        quarantine = _still_there(left_out, spark)
        if not known.rows:
            raise PipelineError(_nothing_usable(place, quarantine))
        manifests = {run.run: run for run in read_runs(place.manifests, files_at(place.place, spark))}
        windows = [(run, *_window(run, known, manifests)) for run in sorted(known.extents)]
        tables = {name: place.read(spark, name, batches) for name in (*AGGREGATES, "samples")}
        tables["samples"] = newest(tables["samples"], known.rows.get("samples", 0))
        moved = [
            (run, shift) for run, from_us, _ in windows if (shift := (from_us - known.origins[run]) // 1_000_000)
        ]
        if moved:
            shifts = spark.createDataFrame(moved, "run string, shift bigint")
            later = sf.col("second") - sf.coalesce("shift", sf.lit(0))
            for name in ("seconds", "intervals", "downtimes"):
                rows = tables[name].join(sf.broadcast(shifts), "run", "left").withColumn("second", later)
                tables[name] = rows.select(*SCHEMAS[name].names)
        dropped = _dropped(place.read(spark, "files", batches)) if known.has_dropped else 0
        return Ingested(
            **tables,
            windows=spark.createDataFrame(windows, WINDOWS),
            quarantine=quarantine,
            rows=known.rows,
            dropped=dropped,
        )


def drill_down(spark: SparkSession, store: str | Path, table: str) -> DataFrame:
    """Read the rows of a table that a store has aggregated, from the trace files that still exist."""
    place = Store(store, spark)
    taken = latest(place.read(spark, "files")).where((sf.col("table") == table) & sf.col("problem").isNull())
    files = [row["file"] for row in taken.select("file").toArrow().to_pylist()]
    facts = check_places(spark, files) if files else []
    sound = [sound_file({**row, "uri": row["file"]}) for row in facts if not row["problem"]]
    if not sound:
        return spark.createDataFrame([], TABLES[table])
    return scan(spark, table, sound).where(is_sound(table)).select(*TABLES[table].names)


def _window(run: str, known: Batch, manifests: Mapping[str, Run]) -> tuple[int, int]:
    """Return the measured time of a run: from its manifest, or else the extent of its records."""
    if run in manifests and 0 < manifests[run].measured.from_us < manifests[run].measured.until_us:
        return manifests[run].measured.from_us, manifests[run].measured.until_us
    first, last = known.extents[run]
    origin = known.origins[run]
    # Seconds are counted from the origin: a window starts with one of them, in a long run with a minute.
    step = 1_000_000 if last - first < MOST_POINTS * 1_000_000 else 60_000_000
    return origin + (first - origin) // step * step, last + 1


def _still_there(found: list[Quarantined], spark: SparkSession) -> list[Quarantined]:
    """Omit files of incomplete runs that the lab has removed to repeat them."""
    return [one for one in found if one.reason != INCOMPLETE or files_at(one.file, spark).exists(one.file)]


def _dropped(files: DataFrame) -> int:
    """Sum the records that writers have dropped; each file has the total since its writer's start.

    Sorted by name, the files of a writer are in chronological order. A smaller number than before means that the
    writer was restarted.
    """
    writer = sf.regexp_replace("file", r"-[^-/]*-[^-/]*$", "")
    known = latest(files).where("problem is null").select("file", "dropped", writer.alias("writer"))
    before = sf.expr("coalesce(lag(dropped) over (partition by writer order by file), 0)")
    added = known.select(sf.expr("dropped").alias("now"), before.alias("before"))
    found = added.agg(sf.expr("sum(if(now >= before, now - before, now))")).collect()[0][0]
    return int(found or 0)


def _nothing_usable(store: Store, quarantine: list[Quarantined]) -> str:
    if not quarantine:
        return f"the traces in {store.place} hold no rows: the node got no requests while it recorded"
    first = quarantine[0]
    others = len(quarantine) - 1
    return f"no trace can be used: {first.file} {first.reason}" + (f", and {others} more" if others else "")
