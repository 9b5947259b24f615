"""Spark reads queues: tables and streams, in parts, without losing or doubling anything."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.types import BooleanType

from flyball.broker.management.flyball_api.messages import PAGE_MESSAGES
from flyball.broker.management.part import console_part
from flyball.client import Draft
from flyball.client.sync import Client
from flyball.spark_source.options import read_options
from flyball.spark_source.reader import BatchReader
from tests.nodes import RunningNode
from tests.spark_source.conftest import Read, run


def texts(frame: DataFrame) -> list[str]:
    return [bytes(row["body"]).decode() for row in frame.orderBy("id").select("body").collect()]


def numbers(count: int, first: int = 0) -> list[str]:
    return [f"{number}" for number in range(first, first + count)]


def to_files(frame: DataFrame, folder: Path) -> Callable[[str], None]:
    """Return a function that runs the stream into Parquet files, a sink that takes every batch once."""
    return lambda checkpoint: run(frame.writeStream.format("parquet").option("path", str(folder)), checkpoint)


def from_files(spark: SparkSession, folder: Path) -> list[str]:
    return texts(spark.read.parquet(str(folder)))


def test_a_table_has_a_row_for_each_message_and_leaves_them_in_the_queue(
    client: Client, queue: str, read: Read
) -> None:
    before = datetime.now(UTC)
    client.put_many(
        queue, [Draft(b"\x00\xff", 8, 42, 7, persistent=False, properties=b"p", sender=9), Draft("plain")]
    )
    first, second = read(queue=queue).orderBy("id").collect()
    assert (first["id"], first["queue"], bytes(first["body"])) == (client.list_ids(queue)[0], queue, b"\x00\xff")
    assert (first["sender"], first["receiver"], first["context"], first["priority"]) == (9, 8, 42, 7)
    assert (bytes(first["properties"]), first["persistent"], first["delivery_count"]) == (b"p", False, 0)
    assert before.timestamp() - 1 < first["arrived"].timestamp() < before.timestamp() + 60
    assert (second["receiver"], second["context"], bytes(second["body"])) == (None, None, b"plain")
    assert len(client.read_messages(queue)) == 2


def test_an_empty_queue_is_an_empty_table(queue: str, read: Read) -> None:
    assert read(queue=queue).collect() == []


def test_a_table_is_read_in_as_many_partitions_as_asked_for(client: Client, queue: str, read: Read) -> None:
    client.put_many(queue, numbers(100))
    frame = read(queue=queue, partitions="3")
    sizes = [row["count"] for row in frame.groupBy(F.spark_partition_id()).count().collect()]
    assert sorted(sizes) == [33, 33, 34]
    assert texts(frame) == numbers(100)


def test_several_queues_are_one_table_with_a_partition_each(
    client: Client, queue: str, other_queue: str, read: Read
) -> None:
    client.put_many(queue, numbers(10))
    client.put_many(other_queue, numbers(10, first=10))
    frame = read(queues=f"{queue}, {other_queue}", partitions="2")
    assert frame.select(F.spark_partition_id()).distinct().count() == 2
    assert {(row["queue"], row["count"]) for row in frame.groupBy("queue").count().collect()} == {
        (queue, 10),
        (other_queue, 10),
    }
    assert texts(frame) == numbers(20)


def test_a_hundred_thousand_messages_are_read_in_few_batches(
    client: Client, queue: str, read: Read, address: str
) -> None:
    client.put_many(queue, (b"%d" % number for number in range(100_000)))
    found = read(queue=queue).select(F.count("*"), F.countDistinct("body"), F.max("id") - F.min("id")).collect()
    assert tuple(found[0]) == (100_000, 100_000, 99_999)
    # A row at a time it would be half a minute instead of 1 to 2 s.
    reader = BatchReader(read_options({"address": address, "queue": queue}))
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    assert sum(batch.num_rows for batch in batches) == 100_000
    # The first ones of a partition are small: the node does not know yet how large messages are.
    assert len(batches) <= 100_000 // PAGE_MESSAGES + 10 * len(reader.partitions())


def test_a_stream_in_mode_peek_reads_what_is_new_and_leaves_everything(
    client: Client, queue: str, read_stream: Read, spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    stream = to_files(read_stream(queue=queue), tmp_path / "out")
    client.put_many(queue, numbers(5))
    stream(checkpoint)
    client.put_many(queue, numbers(5, first=5))
    stream(checkpoint)
    stream(checkpoint)
    assert from_files(spark, tmp_path / "out") == numbers(10)
    assert len(client.read_messages(queue)) == 10


def test_consuming_stream_removes_messages_after_the_commit_only(
    client: Client, queue: str, other_queue: str, read_stream: Read, checkpoint: str, address: str
) -> None:
    left: list[tuple[int, int]] = []

    def note(batch: DataFrame, number: int) -> None:
        with Client.connect(address) as watcher:
            left.append((batch.count(), len(watcher.list_ids(queue)) + len(watcher.list_ids(other_queue))))

    client.put_many(queue, numbers(50))
    client.put_many(other_queue, numbers(10))
    frame = read_stream(queues=f"{queue},{other_queue}", mode="consume", maxRowsPerBatch="20", partitions="2")
    run(frame.writeStream.foreachBatch(note), checkpoint)
    # While a batch is dealt with, it and what follows are there; what was before is gone.
    assert left == [(20, 60), (20, 40), (20, 20)]
    assert (len(client.list_ids(queue)), len(client.list_ids(other_queue))) == (20, 0)
    # The last one is removed with the first batch of the next run.
    client.put(queue, "more")
    run(frame.writeStream.foreachBatch(note), checkpoint)
    assert left[3:] == [(1, 1)]
    assert texts_of(client, queue) == ["more"]


def texts_of(client: Client, queue: str) -> list[str]:
    return [message.text for message in client.read_messages(queue)]


def test_a_failure_in_mid_stream_loses_nothing_and_doubles_nothing(
    client: Client, queue: str, read_stream: Read, spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    fuse = tmp_path / "fuse"
    fuse.touch()
    fails_once = F.udf(lambda body: burn(fuse, bytes(body) == b"65"), BooleanType())
    frame = read_stream(queue=queue, mode="consume", maxRowsPerBatch="30", partitions="3").where(fails_once("body"))
    stream = to_files(frame, tmp_path / "out")
    client.put_many(queue, numbers(100))
    with pytest.raises(StreamingQueryException, match="burnt"):
        stream(checkpoint)
    # Two batches are through and removed; the third has failed and is still there.
    assert texts_of(client, queue) == numbers(40, first=60)
    client.put_many(queue, numbers(10, first=100))
    stream(checkpoint)
    assert from_files(spark, tmp_path / "out") == numbers(110)


def burn(fuse: Path, here: bool) -> bool:
    """Fail at one message, the first time that it comes."""
    if here and fuse.exists():
        fuse.unlink()
        raise RuntimeError("burnt")
    return True


def test_a_stream_goes_on_where_it_was_when_the_node_has_crashed_meanwhile(
    start_node: Callable[..., RunningNode], new_database: Callable[[], str], spark: SparkSession, tmp_path: Path
) -> None:
    store = new_database()
    for part in range(2):
        node = start_node(store=store, parts=[console_part()], http="127.0.0.1:0")
        address = str(node.address("amqp"))
        with Client.connect(address) as client:
            if part == 0:
                client.create_queue("orders")
            client.put_many("orders", numbers(10, first=10 * part))
        options = {"address": address, "queue": "orders", "mode": "consume"}
        frame = spark.readStream.format("flyball").options(**options).load()
        to_files(frame, tmp_path / "out")(str(tmp_path / "checkpoint"))
        with Client.connect(address) as client:
            assert texts_of(client, "orders") == numbers(10, first=10 * part)
        node.stop()
    assert from_files(spark, tmp_path / "out") == numbers(20)


def test_a_queue_that_others_consume_is_not_consumed_by_a_stream(
    client: Client, queue: str, read_stream: Read, checkpoint: str
) -> None:
    client.put_many(queue, numbers(2))
    with client.consume(queue, prefetch=1) as consumer:
        assert consumer.next(10) is not None
        with pytest.raises(StreamingQueryException, match="queue 'orders' has other consumers"):
            run(read_stream(queue=queue, mode="consume").writeStream.format("noop"), checkpoint)
    assert texts_of(client, queue) == numbers(2)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "no queue given: use option 'queue'"),
        ({"queue": "a", "queues": "b"}, "no queue given"),
        ({"queue": "orders", "mode": "steal"}, "invalid option 'mode' 'steal': use 'peek' or 'consume'"),
        ({"queue": "orders", "partitions": "0"}, "invalid option 'partitions' '0': use an integer above 0"),
        ({"queue": "orders", "maxRowPerBatch": "1"}, "unknown option 'maxrowperbatch'; available: address"),
        ({"queue": "orders", "mode": "consume"}, "mode consume needs readStream"),
        ({"queue": "missing"}, "no queue 'missing' at 127.0.0.1"),
        ({"queue": "orders", "address": "127.0.0.1:1"}, "check that `flyball serve` runs there"),
        ({"queue": "orders", "address": "nowhere:x"}, "option 'address' or 'httpUrl'"),
    ],
)
def test_a_mistake_is_one_clear_line(
    spark: SparkSession, address: str, queue: str, options: dict[str, str], says: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        spark.read.format("flyball").options(**{"address": address, **options}).load().collect()
    assert [line for line in str(caught.value).splitlines() if says in line], str(caught.value)


def test_other_columns_than_those_of_a_queue_are_refused(spark: SparkSession, address: str, queue: str) -> None:
    reader = spark.read.format("flyball").options(address=address, queue=queue).schema("body STRING")
    with pytest.raises(PySparkException, match=r"the columns of a queue are id, queue, .* leave out schema"):
        reader.load().collect()
