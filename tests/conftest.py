"""What several folders of tests share: one real PostgreSQL, and a database of its own for each test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import asyncpg
import pytest
import uvloop

from flyball.store.postgres.embedded import EmbeddedPostgres
from tests.nodes import Gate, RunningNode

_database_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """One server for all tests."""
    server = EmbeddedPostgres(tmp_path_factory.mktemp("postgres"))
    uvloop.run(server.start())
    yield server
    uvloop.run(server.stop())


@pytest.fixture
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
    """Start a node, on a fresh PostgreSQL database unless told otherwise; it is stopped after the test."""
    with ExitStack() as nodes:

        def start(**flags: object) -> RunningNode:
            if "store" not in flags:
                flags["store"] = new_database()
            return nodes.enter_context(RunningNode(tmp_path / "data", **flags))

        yield start


@pytest.fixture
def start_memory_node(tmp_path: Path) -> Iterator[Callable[..., RunningNode]]:
    """Start a node that keeps its messages in memory; it is stopped after the test."""
    with ExitStack() as nodes:

        def start(**flags: object) -> RunningNode:
            return nodes.enter_context(RunningNode(tmp_path / "data", **{"store": "memory", **flags}))

        yield start


@pytest.fixture
def memory_node(start_memory_node: Callable[..., RunningNode]) -> RunningNode:
    return start_memory_node()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Ask for it before the node: it holds back the commits of memory stores."""
    return Gate(monkeypatch)
