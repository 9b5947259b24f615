"""A small auction site's database, made once for all tests of the site: each test has an item to itself."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator

import psycopg
import pytest

from flyball.broker.store.postgres.embedded import EmbeddedPostgres
from flyball.lab.auction.generate import generate
from tests.lab.auction.shops import TINY


@pytest.fixture(scope="session")
def shop_dsn(postgres: EmbeddedPostgres) -> str:
    """Where the database is."""
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE auction")
    dsn = postgres.dsn.replace("/postgres?", "/auction?")
    asyncio.run(generate(dsn, TINY))
    return dsn


@pytest.fixture(scope="session")
def _item_numbers() -> Iterator[int]:
    return itertools.count(1)


@pytest.fixture
def item_id(_item_numbers: Iterator[int]) -> int:
    """An item that no other test changes."""
    return next(_item_numbers)


@pytest.fixture
def ask(shop_dsn: str) -> Callable[[str], list[tuple[object, ...]]]:
    """Ask the database itself."""

    def fetch(query: str) -> list[tuple[object, ...]]:
        with psycopg.connect(shop_dsn) as connection:
            return connection.execute(query.encode()).fetchall()

    return fetch
