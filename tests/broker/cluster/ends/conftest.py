"""Domains for tests: each on a database of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import asyncpg
import pytest
import uvloop

from flyball.broker.store.postgres.embedded import EmbeddedPostgres
from tests.broker.cluster.ends.site import Site

_numbers = itertools.count(1)

# Nodes are started in every test, one after the other in some.
TEST_LIMIT_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(TEST_LIMIT_S))


@pytest.fixture
def new_site(tmp_path: Path, new_database: Callable[[], str]) -> Iterator[Callable[..., Site]]:
    """Start a domain with these nodes; they are ended after the test."""
    with ExitStack() as sites:

        def start(*names: str, **flags: object) -> Site:
            site = sites.enter_context(Site(tmp_path, new_database(), **flags))
            site.start(*names)
            return site

        yield start


@pytest.fixture(scope="module")
def site(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Three nodes for all tests of a module, which leave them running, and use names that no other test uses."""
    name = f"site_{next(_numbers)}"

    async def create() -> None:
        connection = await asyncpg.connect(postgres.dsn)
        await connection.execute(f"CREATE DATABASE {name}")
        await connection.close()

    uvloop.run(create())
    with Site(tmp_path_factory.mktemp("site"), postgres.dsn.replace("/postgres?", f"/{name}?")) as site:
        site.start("a", "b", "c")
        yield site
