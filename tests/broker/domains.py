"""Two real nodes of one domain, for tests of what the clients of the one do with the queues of the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flyball.broker.node.node import Node
from tests.nodes import RunningNode

Pair = tuple[RunningNode, RunningNode]


def is_clustered(node: Node) -> bool:
    return node.hub.broker.is_clustered and bool(node.membership.others) and node.membership.others[0].addresses != {}


@contextmanager
def two_nodes(folder: Path, new_database: Callable[[], str], **flags: Any) -> Iterator[Pair]:
    """Start the nodes `a` and `b`, and wait until they know each other."""
    url = new_database()

    def node(name: str) -> RunningNode:
        # A lease that no slow machine misses: no test here waits for the end of one.
        return RunningNode(folder / name, **{"store": url, "name": name, "lease_s": 60, **flags})

    with node("a") as first, node("b") as second:
        for one in (first, second):
            one.wait_until(is_clustered)
        yield first, second
