"""Reads of the PostgreSQL store that wait until a test lets them go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flyball.broker.store.postgres.store import PostgresStore
from tests.nodes import ANSWER_LIMIT_S, RunningNode


class HeldReads:
    """Holds every load and search that begins from now on, until `allow`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._has_begun = threading.Event()
        self._may_go_on = asyncio.Event()
        load, index = PostgresStore.load, PostgresStore.index

        async def held_load(store: PostgresStore, *arguments: Any) -> Any:
            await self._hold()
            return await load(store, *arguments)

        async def held_index(store: PostgresStore, *arguments: Any) -> AsyncIterator[Any]:
            await self._hold()
            async for piece in index(store, *arguments):
                yield piece

        monkeypatch.setattr(PostgresStore, "load", held_load)
        monkeypatch.setattr(PostgresStore, "index", held_index)

    async def _hold(self) -> None:
        self._has_begun.set()
        await self._may_go_on.wait()

    def wait(self) -> None:
        """Wait until a read has begun."""
        assert self._has_begun.wait(ANSWER_LIMIT_S)

    def allow(self, node: RunningNode) -> None:
        node.call(lambda _: self._may_go_on.set())
