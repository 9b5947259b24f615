"""Tests of clients may be coroutines."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable, Iterator

import pytest
import uvloop

from flyball.broker.management.part import console_part
from tests.client.flavours import FLAVOURS, Connect
from tests.nodes import RunningNode

TEST_LIMIT_S = 200.0

_names = itertools.count(1)


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


def start(tmp_path_factory: pytest.TempPathFactory, store: str) -> RunningNode:
    folder = tmp_path_factory.mktemp(store)
    return RunningNode(folder, parts=[console_part()], store=store, http="127.0.0.1:0", thorbang="off")


@pytest.fixture(scope="session")
def memory_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with start(tmp_path_factory, "memory") as node:
        yield node


@pytest.fixture(scope="session")
def postgres_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with start(tmp_path_factory, "embedded") as node:
        yield node


@pytest.fixture
def address(memory_node: RunningNode) -> str:
    """A node for tests to which the store does not matter."""
    return str(memory_node.address("amqp"))


@pytest.fixture(params=["memory_node", "postgres_node"])
def any_address(request: pytest.FixtureRequest) -> str:
    """A node on each kind of store."""
    node: RunningNode = request.getfixturevalue(request.param)
    return str(node.address("amqp"))


@pytest.fixture(params=FLAVOURS)
def connect(request: pytest.FixtureRequest) -> Connect:
    """Connect the asynchronous client, and in another test the synchronous one."""
    flavour: Connect = request.param
    return flavour


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Make names that no other test has used."""
    return lambda name: f"{name}-{next(_names)}"
