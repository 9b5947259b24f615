"""Real nodes for the client's tests, in both flavours; tests may be coroutines."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.client.telesto.flavours import FLAVOURS, Connect
from tests.nodes import RunningNode

_names = itertools.count(1)


def start(tmp_path_factory: pytest.TempPathFactory, store: str) -> RunningNode:
    return RunningNode(tmp_path_factory.mktemp(store), store=store, thorbang="off")


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
    return str(memory_node.address("telesto"))


@pytest.fixture(params=["memory_node", "postgres_node"])
def any_address(request: pytest.FixtureRequest) -> str:
    """A node on each kind of store."""
    node: RunningNode = request.getfixturevalue(request.param)
    return str(node.address("telesto"))


@pytest.fixture(params=FLAVOURS)
def connect(request: pytest.FixtureRequest) -> Connect:
    """Connect the asynchronous client, and in another test the synchronous one."""
    flavour: Connect = request.param
    return flavour


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Make names that no other test has used."""
    return lambda name: f"{name}-{next(_names)}"
