"""Both brokers for the adaptive consumer's tests, and pika to look at them from outside; tests may be coroutines."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

import flyball
from tests.broker.protocols.amqp.compatibility.conftest import broker, channel, connect, flyball_node, name, new_name
from tests.client.conftest import TEST_LIMIT_S

__all__ = ["broker", "channel", "connect", "flyball_node", "name", "new_name"]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run tests that are coroutines; they must leave no task of ours behind. aio-pika's own need a moment longer."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def run() -> None:
        async with asyncio.timeout(TEST_LIMIT_S):
            await pyfuncitem.obj(**arguments)
        left = [task for task in asyncio.all_tasks() - {asyncio.current_task()} if _is_ours(task)]
        assert not left, f"tasks were left behind: {left}"

    asyncio.run(run())
    return True


def _is_ours(task: asyncio.Task[Any]) -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and Path(flyball.__file__).parent in Path(code.co_filename).parents
