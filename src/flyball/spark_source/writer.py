"""Publishes rows as messages. A task that Spark repeats publishes again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from flyball.spark_source.connection import connected
from flyball.spark_source.options import WriteOptions
from flyball.spark_source.rows import drafts


@dataclass(frozen=True, slots=True)
class Published(WriterCommitMessage):
    """Number of committed messages of a partition."""

    count: int


class BatchWriter(DataSourceArrowWriter):
    """Publishes the rows of a DataFrame."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return publish(self._options, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """Publishes the rows of each batch."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return publish(self._options, iterator)


def publish(options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> Published:
    """Publish rows in order; on return all are committed."""
    count = 0
    with connected(options.access) as client:
        for batch in batches:
            for queue, of_queue in drafts(batch, options.queue).items():
                client.put_many(queue, of_queue)
                count += len(of_queue)
    return Published(count)
