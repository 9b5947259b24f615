"""A few rows of traces; columns that do not matter to a test have defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructType

from flyball.pipeline.events import WINDOWS
from flyball.pipeline.schemas import ADMISSIONS, CALLS, REQUESTS

# When the runs of the tests begin.
START_US = 1_700_000_000_000_000

_USUAL: dict[str, object] = {"run": "r1", "kind": "put", "result": "ok", "weight": 1, "message_count": 1}

Row = Mapping[str, object]


def requests(spark: SparkSession, rows: Sequence[Row]) -> DataFrame:
    """Requests of node-1, received when the run began unless said otherwise."""
    return filled(spark, REQUESTS, rows, node="node-1", received_us=START_US)


def calls(spark: SparkSession, rows: Sequence[Row]) -> DataFrame:
    """Calls to node-1, meant for when the run began unless said otherwise."""
    return filled(spark, CALLS, rows, target="node-1", queue="orders", intended_us=START_US)


def admissions(spark: SparkSession, rows: Sequence[Row]) -> DataFrame:
    """Requests that came to an application and were served, when the run began unless said otherwise."""
    return filled(spark, ADMISSIONS, rows, key="GET /", outcome="served", arrived_us=START_US)


def windows(spark: SparkSession, length_s: float, *runs: str) -> DataFrame:
    """Measured times of `length_s` from the beginning, of `runs` or of the usual one."""
    until_us = START_US + round(length_s * 1_000_000)
    return spark.createDataFrame([(run, START_US, until_us) for run in runs or ("r1",)], WINDOWS)


def filled(spark: SparkSession, schema: StructType, rows: Sequence[Row], **usual: object) -> DataFrame:
    """A table of `rows`; columns that they lack are `usual`, or else 0 or empty."""
    empty = {field.name: "" if isinstance(field.dataType, StringType) else 0 for field in schema}
    unknown = {name for row in rows for name in row} - set(empty)
    assert not unknown, f"no such columns: {unknown}"
    known = {name: value for name, value in {**_USUAL, **usual}.items() if name in empty}
    return spark.createDataFrame([tuple({**empty, **known, **row}[name] for name in empty) for row in rows], schema)
