"""Tests of sensors may be coroutines. Time passes when they say so, the database is a real one."""

from __future__ import annotations

import asyncio
import inspect

import pytest
import uvloop

from flyball.broker.store.postgres.embedded import EmbeddedPostgres


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: value for name, value in pyfuncitem.funcargs.items() if name in wanted}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture
def dsn(postgres: EmbeddedPostgres) -> str:
    return postgres.dsn
