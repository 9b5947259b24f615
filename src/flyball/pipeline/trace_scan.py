"""Trace files as Spark reads them: listing, checking, and scanning the rows of the readable ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from flyball.pipeline.filesystem import files_at
from flyball.pipeline.log_formats import LogFormat
from flyball.pipeline.logs import LOG_NAMES
from flyball.pipeline.places import as_pattern, is_local, is_uri, name_of, uri_of
from flyball.pipeline.rules import MOST_WEIGHT, RULES, schema_of, with_defaults
from flyball.pipeline.schemas import TABLES
from flyball.pipeline.trace_reader import FACTS, TRACE_NAMES, check_files, check_files_deeply

_PLAIN = re.compile(r"[A-Za-z0-9/:._=-]+")

# Maximum number of files passed to Spark by name; for more, Spark lists the folder and skips the others.
_FEW_FILES = 2000

# Number of files that one task checks.
_FILES_OF_A_TASK = 500


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file that may be new."""

    place: str
    size_bytes: int
    modified_us: int


@dataclass(frozen=True, slots=True)
class SoundFile:
    """A readable file."""

    # The file that Spark reads: the file itself, or the trace converted from a log.
    uri: str
    # The name shown to the user.
    file: str
    run: str
    table: str
    rows: int
    factor: int
    first_us: int | None
    last_us: int | None


def names_of(log_format: LogFormat | None) -> Sequence[str]:
    return LOG_NAMES if log_format else TRACE_NAMES


def files_in(spark: SparkSession, source: str, log_format: LogFormat | None) -> list[ListedFile]:
    files = files_at(source, spark)
    if not files.is_folder(source):
        folder, _, name = source.rpartition("/")
        found = [entry for entry in files.find(folder, "*", is_deep=False) if name_of(entry.place) == name]
    else:
        found = [entry for pattern in names_of(log_format) for entry in files.find(source, pattern)]
    return [ListedFile(place_of(one.place), one.size_bytes, one.modified_ms * 1000) for one in found]


def check_places(spark: SparkSession, places: Sequence[str], *, is_deep: bool = False) -> list[dict[str, Any]]:
    """Check files in workers: local files by path, others as Spark reads them."""
    if not places:
        return []
    check = check_files_deeply if is_deep else check_files
    if is_local(places[0]):
        tasks = max(1, min(len(places) // _FILES_OF_A_TASK, 1000))
        listed = spark.createDataFrame(pa.table({"file": list(places)})).repartition(tasks)
    else:
        content = spark.read.format("binaryFile").load(list(map(as_pattern, places)))
        listed = content.select(sf.col("path").alias("file"), "content")
    found: list[dict[str, Any]] = listed.mapInArrow(check, FACTS).toArrow().to_pylist()
    return found


def scan(spark: SparkSession, table: str, files: Sequence[SoundFile], source: str | None = None) -> DataFrame:
    """Read the rows of files: the columns of the table, and `_file`. Includes rows that violate the rules.

    For many files Spark lists the folder `source` itself, and rows of other files are filtered out.
    """
    reader = spark.read.schema(schema_of(table))
    places = [place_of(file.uri) for file in files]
    others = _others(spark, places, source) if len(files) > _FEW_FILES else None
    if others is None or source is None:
        rows = reader.parquet(*(as_pattern(file.uri) for file in files))
    else:
        listing = reader.option("recursiveFileLookup", True).option("pathGlobFilter", either(TRACE_NAMES))
        rows = listing.parquet(as_pattern(source))
        if others:
            # Spark does not open files that this filter excludes.
            rows = rows.where(~_place_of_row(others).isin(list(map(_path_in_rows(others), others))))
    facts = {(file.run, file.factor) for file in files}
    if len(facts) == 1 and others is None and places == [file.file for file in files]:
        [(run, factor)] = facts
        rows = rows.withColumns({"run": sf.lit(run), "_file": _place_of_row(places)})
    else:
        path_in_rows = _path_in_rows(places)
        known = [
            (path_in_rows(place), one.file, one.run, one.factor) for place, one in zip(places, files, strict=True)
        ]
        listed = spark.createDataFrame(known, "place_of string, _file string, run string, _factor bigint")
        listed = listed.withColumn("_key", sf.xxhash64("place_of")).drop("place_of")
        # A join on numbers takes a third of the time of one on texts.
        rows = rows.withColumn("_key", sf.xxhash64(_place_of_row(places))).join(sf.broadcast(listed), "_key")
        factor = 0 if len({file.factor for file in files}) > 1 else files[0].factor
    rows = with_defaults(rows, table)
    if "weight" in RULES[table].columns and factor != 1:
        times = sf.lit(factor) if factor else sf.col("_factor")
        # A weight that violates the rules is left unchanged: the product might overflow.
        is_small = sf.col("weight").between(0, MOST_WEIGHT)
        rows = rows.withColumn("weight", sf.when(is_small, sf.col("weight") * times).otherwise(sf.col("weight")))
    return rows.select(*TABLES[table].names, "_file")


def _others(spark: SparkSession, places: Sequence[str], source: str | None) -> list[str] | None:
    """Return the trace files in `source` other than `places`; None if it is not a folder, or if there are too
    many.
    """
    if source is None or not files_at(source, spark).is_folder(source):
        return None
    listed = {file.place for file in files_in(spark, source, None)}
    others = sorted(listed.difference(places))
    return others if len(others) <= _FEW_FILES and listed.issuperset(places) else None


def as_place(path_in_rows: Column) -> Column:
    """Return the place of a file from the path that Spark reports."""
    return sf.regexp_replace(path_in_rows, "^file:/+", "/")


def _is_plain(places: Iterable[str]) -> bool:
    """Whether Spark reports the places unchanged: it encodes all but the most common characters."""
    return all(map(_PLAIN.fullmatch, places))


def _place_of_row(places: Sequence[str]) -> Column:
    """Return the file of a row, in the form of `_path_in_rows` for these places."""
    if _is_plain(places):
        return sf.col("_metadata.file_path")
    decoded = "url_decode(replace(_metadata.file_path, '+', '%2B'))"
    return sf.expr(f"regexp_replace({decoded}, '^file:/+', '/')")


def _path_in_rows(places: Sequence[str]) -> Callable[[str], str]:
    """Return the function that maps a place to the path that Spark reports for its rows."""
    if _is_plain(places):
        return lambda place: place if is_uri(place) else f"file:{place}"
    return lambda place: place


def sound_file(facts: Mapping[str, Any]) -> SoundFile:
    names = ("table", "rows", "factor", "first_us", "last_us")
    return SoundFile(uri_of(facts["uri"]), facts["file"], run_of(facts["file"]), *(facts[name] for name in names))


def place_of(path: str) -> str:
    """Return the place of a local file as a path, that of another as its URI."""
    return "/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:") else path


def either(patterns: Sequence[str]) -> str:
    """Return a Spark glob pattern for names that match one of several patterns."""
    return "{" + ",".join(patterns) + "}"


def run_of(place: str) -> str:
    """Return the part after `run=` in the path of a trace, or an empty string."""
    folders = place.split("/")[:-1]
    return next((part.removeprefix("run=") for part in reversed(folders) if part.startswith("run=")), "")
