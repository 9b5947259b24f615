"""The last batch of a stream is removed without waiting for the next run."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from flyball.client.sync import Client
from flyball.errors import PipelineError
from flyball.spark_source import acknowledge, register
from tests.spark_source.conftest import Read, run


def test_committed_batches_are_removed_and_what_came_later_is_not(
    client: Client, queue: str, spark: SparkSession, read_stream: Read, checkpoint: str, address: str
) -> None:
    register(spark)
    client.put_many(queue, ["a", "b", "c"])
    run(read_stream(queue=queue, mode="consume", maxRowsPerBatch="2").writeStream.format("noop"), checkpoint)
    client.put(queue, "later")
    assert len(client.list_ids(queue)) == 2
    assert acknowledge(spark, checkpoint, address=address) == {queue: 1}
    assert acknowledge(spark, checkpoint, address=address) == {queue: 0}
    assert [message.text for message in client.read_messages(queue)] == ["later"]
    # The stream goes on as if nothing had happened.
    run(read_stream(queue=queue, mode="consume").writeStream.format("noop"), checkpoint)
    assert acknowledge(spark, checkpoint, address=address) == {queue: 1}


def test_a_batch_that_has_failed_is_not_removed(
    client: Client, queue: str, spark: SparkSession, read_stream: Read, checkpoint: str, address: str
) -> None:
    def fail(batch: DataFrame, number: int) -> None:
        raise RuntimeError("burnt")

    client.put_many(queue, ["a", "b", "c"])
    with pytest.raises(StreamingQueryException, match="burnt"):
        run(read_stream(queue=queue, mode="consume").writeStream.foreachBatch(fail), checkpoint)
    assert acknowledge(spark, checkpoint, address=address) == {}
    assert len(client.list_ids(queue)) == 3


def test_what_a_stream_has_only_peeked_at_is_not_removed(
    client: Client, queue: str, spark: SparkSession, read_stream: Read, checkpoint: str, address: str
) -> None:
    client.put(queue, "a")
    run(read_stream(queue=queue).writeStream.format("noop"), checkpoint)
    assert acknowledge(spark, checkpoint, address=address) == {}
    assert len(client.list_ids(queue)) == 1


def test_without_a_checkpoint_there_is_one_clear_line(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"no stream checkpoint at .*: use the query's checkpointLocation"):
        acknowledge(spark, str(tmp_path / "nothing"))
