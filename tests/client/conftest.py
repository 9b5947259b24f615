"""Tests of clients may be coroutines."""

from __future__ import annotations

import asyncio
import inspect

import pytest
import uvloop

TEST_LIMIT_S = 200.0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run tests that are coroutines; they must leave no task behind."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def run() -> None:
        async with asyncio.timeout(TEST_LIMIT_S):
            await pyfuncitem.obj(**arguments)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks were left behind: {left}"

    if getattr(pyfuncitem.funcargs.get("connect"), "__name__", "") == "connect_on_uvloop":
        uvloop.run(run())
    else:
        asyncio.run(run())
    return True
