"""Fixtures of several folders of tests: a real PostgreSQL, RabbitMQ and Spark, with a part for each test."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
import uvloop
from hypothesis import HealthCheck, settings
from pika.connection import Parameters

from flyball.broker.core import passwords
from flyball.broker.store.postgres.embedded import EmbeddedPostgres
from tests.broker.protocols.amqp.compatibility.brokers import Broker, rabbitmq_broker
from tests.nodes import ANSWER_LIMIT_S, Gate, RunningNode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_database_numbers = itertools.count(1)

# The same examples in every run, however slow the machine is: what fails has been changed. Others are tried with
# HYPOTHESIS_PROFILE=long.
settings.register_profile(
    "flyball",
    derandomize=os.environ.get("HYPOTHESIS_PROFILE") != "long",
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("flyball")

# What passwords cost a node, for the tests that are about it.
USUAL_PASSWORD_COST = (passwords.TIME_COST, passwords.MEMORY_KIB)


def pytest_configure() -> None:
    """Prepare this process for the tests."""
    # A shell that runs the tests in the background has Ctrl-C ignored: it has to reach the programs under test.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Otherwise a client gives up after seconds, which a slow machine may need to let it in.
    Parameters.DEFAULT_SOCKET_TIMEOUT = Parameters.DEFAULT_STACK_TIMEOUT = ANSWER_LIMIT_S
    # Most tests start a node of this process and log in: at the usual cost argon2 would be nine tenths of both.
    passwords.TIME_COST, passwords.MEMORY_KIB = 1, 8


@pytest.fixture
def usual_password_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hash passwords as a node does outside of tests."""
    time_cost, memory_kib = USUAL_PASSWORD_COST
    monkeypatch.setattr(passwords, "TIME_COST", time_cost)
    monkeypatch.setattr(passwords, "MEMORY_KIB", memory_kib)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """One server for all tests."""
    server = EmbeddedPostgres(tmp_path_factory.mktemp("postgres"))
    uvloop.run(server.start())
    yield server
    uvloop.run(server.stop())


@pytest.fixture(scope="session")
def rabbitmq_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One RabbitMQ for all tests: use names that no other test uses."""
    with rabbitmq_broker(tmp_path_factory.mktemp("rabbitmq")) as broker:
        yield broker


@pytest.fixture(scope="session")
def new_database(postgres: EmbeddedPostgres) -> Callable[[], str]:
    """Make an empty database and return its address."""

    def make() -> str:
        name = f"test_{next(_database_numbers)}"

        async def create() -> None:
            connection = await asyncpg.connect(postgres.dsn)
            await connection.execute(f"CREATE DATABASE {name}")
            await connection.close()

        uvloop.run(create())
        return postgres.dsn.replace("/postgres?", f"/{name}?")

    return make


@pytest.fixture
def start_node(tmp_path: Path, new_database: Callable[[], str]) -> Iterator[Callable[..., RunningNode]]:
    """Start a node, on a fresh PostgreSQL database by default; it is stopped after the test."""
    with ExitStack() as nodes:

        def start(**flags: Any) -> RunningNode:
            if "store" not in flags:
                flags["store"] = new_database()
            return nodes.enter_context(RunningNode(tmp_path / "data", **flags))

        yield start


@pytest.fixture
def start_memory_node(tmp_path: Path) -> Iterator[Callable[..., RunningNode]]:
    """Start a node that keeps its messages in memory; it is stopped after the test."""
    with ExitStack() as nodes:

        def start(**flags: Any) -> RunningNode:
            return nodes.enter_context(RunningNode(tmp_path / "data", **{"store": "memory", **flags}))

        yield start


@pytest.fixture
def memory_node(start_memory_node: Callable[..., RunningNode]) -> RunningNode:
    return start_memory_node()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Ask for it before the node: it holds back the commits of memory stores."""
    return Gate(monkeypatch)


@pytest.fixture(scope="session")
def spark_process() -> Iterator[SparkSession]:
    """One Spark for all tests: it takes seconds to start."""
    # Imported here: most tests need no Spark, and its import takes its time as well.
    from flyball.pipeline.session import SparkSettings, spark_session

    settings = SparkSettings(master="local[2]", memory="1g", is_brief=True, shuffle_partitions=1)
    with spark_session(settings) as session:
        yield session


@pytest.fixture
def spark(spark_process: SparkSession) -> SparkSession:
    """A session that shares nothing with other tests but the process."""
    return spark_process.newSession()
