"""Users and permissions without a node, for tests of what only asks them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from flyball.broker.core.attempts import Attempts
from flyball.broker.core.authority import FIRST_USER, Authority
from flyball.broker.store.group_commit import GroupCommit
from flyball.broker.store.memory import MemoryStore


@asynccontextmanager
async def authority_in_memory(
    loopback_users: tuple[str, ...] = (FIRST_USER,), attempts: Attempts | None = None
) -> AsyncIterator[Authority]:
    """Yield an authority that knows the user guest."""
    store = MemoryStore()
    await store.open()
    journal = GroupCommit(store)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(journal.run())
        authority = Authority(journal, (), loopback_users=loopback_users, attempts=attempts)
        await authority.start()
        yield authority
        await journal.stop()
