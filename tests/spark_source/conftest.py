"""A node with its client, and streams that run until they have read what there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from flyball.broker.management.part import console_part
from flyball.client.sync import Client
from tests.nodes import RunningNode

Read = Callable[..., DataFrame]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a node listens that lives as long as the module's tests."""
    with RunningNode(
        tmp_path_factory.mktemp("node"), parts=[console_part()], store="memory", http="127.0.0.1:0", thorbang="off"
    ) as node:
        yield str(node.address("amqp"))


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client.connect(address) as client:
        yield client


@pytest.fixture
def queue(client: Client) -> Iterator[str]:
    """An empty queue."""
    client.create_queue("orders")
    yield "orders"
    client.delete_queue("orders")


@pytest.fixture
def other_queue(client: Client) -> Iterator[str]:
    """Another empty queue."""
    client.create_queue("results")
    yield "results"
    client.delete_queue("results")


@pytest.fixture
def read(spark: SparkSession, address: str) -> Read:
    """Read queues as a table."""
    return lambda **options: spark.read.format("flyball").options(address=address, **options).load()


@pytest.fixture
def read_stream(spark: SparkSession, address: str) -> Read:
    """Read queues as a stream."""
    return lambda **options: spark.readStream.format("flyball").options(address=address, **options).load()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


def run(writer: DataStreamWriter, checkpoint: str) -> None:
    """Run a stream until it has dealt with what there was at the start. Raises what ended it."""
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    with stopping(query):
        query.awaitTermination()


@contextmanager
def stopping(query: StreamingQuery) -> Iterator[None]:
    try:
        yield
    finally:
        query.stop()
