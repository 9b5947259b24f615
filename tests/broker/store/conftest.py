"""Tests of the stores may be coroutines; on the one PostgreSQL of all tests each has a schema of its own."""

from __future__ import annotations

import asyncio
import inspect
import itertools

import pytest
import uvloop

from flyball.broker.store.interface import Store
from flyball.broker.store.memory import MemoryStore
from flyball.broker.store.postgres.embedded import EmbeddedPostgres
from flyball.broker.store.postgres.store import PostgresStore
from tests.broker.store.domains import SharedDomain, shared_memory, shared_postgres

_schema_numbers = itertools.count(1)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, and close the stores it was given."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: value for name, value in pyfuncitem.funcargs.items() if name in wanted}

    async def whole_test() -> None:
        try:
            await pyfuncitem.obj(**arguments)
        finally:
            for value in arguments.values():
                if isinstance(value, PostgresStore | MemoryStore | SharedDomain):
                    await value.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(whole_test())
    return True


@pytest.fixture
def schema() -> str:
    """A schema that no other test uses."""
    return f"test_{next(_schema_numbers)}"


@pytest.fixture
def postgres_store(postgres: EmbeddedPostgres, schema: str) -> PostgresStore:
    return PostgresStore(postgres.dsn, schema=schema)


@pytest.fixture(params=["postgres", "memory"])
def store(request: pytest.FixtureRequest) -> Store:
    """Every store that keeps messages."""
    if request.param == "memory":
        return MemoryStore()
    found: PostgresStore = request.getfixturevalue("postgres_store")
    return found


@pytest.fixture
def postgres_domain(postgres: EmbeddedPostgres, schema: str) -> SharedDomain:
    return shared_postgres(postgres.dsn, schema)


@pytest.fixture(params=["postgres", "memory"])
def domain(request: pytest.FixtureRequest) -> SharedDomain:
    """Every store that several nodes can share."""
    if request.param == "memory":
        return shared_memory()
    found: SharedDomain = request.getfixturevalue("postgres_domain")
    return found
