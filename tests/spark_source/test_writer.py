"""Spark publishes rows, as a table and as a stream; a row that is published twice is recognized by its key."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.types import IntegerType

from flyball.client.sync import Client
from tests.spark_source.conftest import Read, run


def publish(frame: DataFrame, address: str, **options: str) -> None:
    frame.write.format("flyball").mode("append").options(address=address, **options).save()


def test_rows_are_published_with_all_that_they_say(
    client: Client, queue: str, spark: SparkSession, address: str
) -> None:
    schema = "body BINARY, receiver INT, context BIGINT, priority INT, properties STRING, persistent BOOLEAN"
    rows = [(b"\x00\xff", 8, 42, 7, "key", False), (b"plain", None, None, None, None, None)]
    publish(spark.createDataFrame(rows, schema).coalesce(1), address, queue=queue)
    first, second = client.read_messages(queue)
    assert (first.body, first.receiver, first.context, first.priority) == (b"\x00\xff", 8, 42, 7)
    assert (first.properties, first.persistent) == (b"key", False)
    assert (second.body, second.receiver, second.context, second.priority) == (b"plain", None, None, 0)
    assert (second.properties, second.persistent) == (b"", True)


def test_a_column_says_to_which_queue_a_row_goes(
    client: Client, queue: str, other_queue: str, spark: SparkSession, address: str
) -> None:
    rows = [(f"{number}", queue if number % 2 else other_queue) for number in range(10)]
    publish(spark.createDataFrame(rows, "body STRING, queue STRING").coalesce(1), address)
    assert [message.text for message in client.read_messages(queue)] == ["1", "3", "5", "7", "9"]
    assert [message.text for message in client.read_messages(other_queue)] == ["0", "2", "4", "6", "8"]


def test_rows_of_one_queue_can_be_published_to_another_as_they_are(
    client: Client, queue: str, other_queue: str, read: Read, address: str
) -> None:
    client.put_many(queue, [f"{number}" for number in range(3000)])
    publish(read(queue=queue, partitions="3"), address, queue=other_queue)
    bodies = [message.text for message in client.read_messages(other_queue)]
    assert sorted(bodies, key=int) == [f"{number}" for number in range(3000)]
    assert len(client.list_ids(queue)) == 3000


def test_after_a_failure_messages_may_be_there_twice_and_their_keys_tell(
    client: Client,
    queue: str,
    other_queue: str,
    read: Read,
    read_stream: Read,
    checkpoint: str,
    address: str,
    tmp_path: Path,
) -> None:
    fuse = tmp_path / "fuse"
    fuse.touch()

    def bad_receiver(body: bytes) -> int | None:
        """Return a receiver that there cannot be, for one message and the first time that it comes."""
        if bytes(body) == b"2700" and fuse.exists():
            fuse.unlink()
            return 0
        return None

    client.put_many(queue, [f"{number}" for number in range(3000)])
    rows = read_stream(queue=queue, mode="consume", maxRowsPerBatch="1500").select(
        "body",
        F.udf(bad_receiver, IntegerType(), useArrow=False)("body").alias("receiver"),
        F.concat_ws("/", "queue", "id").alias("properties"),
    )
    writer = rows.writeStream.format("flyball").options(address=address, queue=other_queue)
    with pytest.raises(StreamingQueryException, match="use a value from 1 to"):
        run(writer, checkpoint)
    # The client puts a thousand at a time: of the second batch the first thousand are published.
    assert len(client.list_ids(other_queue)) == 2500
    run(writer, checkpoint)
    published = read(queue=other_queue)
    assert published.count() == 4000
    once = published.dropDuplicates(["properties"]).select("body").collect()
    assert sorted(int(bytes(row["body"])) for row in once) == list(range(3000))


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ("1 AS x", {"queue": "orders"}, "unknown column 'x'; available: body, queue"),
        ("1L AS context", {"queue": "orders"}, "missing column 'body'"),
        ("1 AS body", {"queue": "orders"}, "unsupported type int of column 'body'"),
        ("'a' AS body", {}, "no queue given: use option 'queue', or a column 'queue'"),
        ("'a' AS body", {"queue": "orders", "mode": "peek"}, "unknown option 'mode'; available: address, user"),
        ("'a' AS body", {"queue": "missing"}, "no queue 'missing' at"),
        ("CAST(null AS STRING) AS body", {"queue": "orders"}, "a row has no body"),
        ("'a' AS body, CAST(null AS STRING) AS queue", {}, "a row has no queue"),
    ],
)
def test_a_mistake_is_one_clear_line_and_nothing_is_published(
    client: Client,
    queue: str,
    spark: SparkSession,
    address: str,
    columns: str,
    options: dict[str, str],
    says: str,
) -> None:
    with pytest.raises(PySparkException) as caught:
        publish(spark.sql(f"SELECT {columns}"), address, **options)
    assert [line for line in str(caught.value).splitlines() if says in line], str(caught.value)
    assert client.list_ids(queue) == []


def test_a_queue_is_not_overwritten(client: Client, queue: str, spark: SparkSession, address: str) -> None:
    writer = spark.sql("SELECT 'a' AS body").write.format("flyball").options(address=address, queue=queue)
    with pytest.raises(PySparkException, match="mode overwrite is not supported: use mode append"):
        writer.mode("overwrite").save()
