"""Acks the last committed batch of a stream, without waiting for the next batch."""

from __future__ import annotations

import json

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from flyball.client.client import DEFAULT_ADDRESS
from flyball.errors import PipelineError
from flyball.spark_source.connection import connected
from flyball.spark_source.offsets import consumed
from flyball.spark_source.options import Access
from flyball.spark_source.reader import check_alone


def acknowledge(
    spark: SparkSession,
    checkpoint: str,
    *,
    address: str = DEFAULT_ADDRESS,
    user: str | None = None,
    password: str | None = None,
    vhost: str | None = None,
    http_url: str | None = None,
) -> dict[str, int]:
    """Remove the messages of all committed batches of a stream in mode consume; return their number by queue.

    Spark reports a committed batch to the source when it plans the next one: after a run with
    `trigger(availableNow=True)`, or a stop, the messages of the last batch are still in the queue. They would not be
    read again, and would be removed by the next run; this removes them now. The query must not be running. May be
    called twice.

    Raises PipelineError without a stream's checkpoint.
    """
    access = Access(address, user, password, vhost, http_url)
    ends = _committed(spark, checkpoint)
    removed: dict[str, int] = {}
    if ends:
        with connected(access) as connection:
            check_alone(connection, list(ends))
            for queue, up_to_id in ends.items():
                removed[queue] = connection.remove_messages(queue, up_to_id=up_to_id)
    return removed


def _committed(spark: SparkSession, checkpoint: str) -> dict[str, int]:
    """Return the last committed id of each consumed queue."""
    try:
        commits = _files(spark, f"{checkpoint}/commits")
        offsets = _files(spark, f"{checkpoint}/offsets")
    except AnalysisException:
        raise PipelineError(f"no stream checkpoint at {checkpoint}: use the query's checkpointLocation") from None
    ends: dict[str, int] = {}
    if commits:
        # A version, Spark's metadata, then one line per source.
        for line in offsets[max(commits)].splitlines()[2:]:
            ends |= consumed(json.loads(line) if line.startswith("{") else None)
    return ends


def _files(spark: SparkSession, folder: str) -> dict[int, str]:
    """Return the contents of a checkpoint's files by number, from any storage that Spark can read."""
    found = spark.read.text(folder, wholetext=True).select("_metadata.file_name", "value").collect()
    return {int(row["file_name"]): row["value"] for row in found if row["file_name"].isdigit()}
