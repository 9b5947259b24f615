"""A node for the examples of a page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nodes import RunningNode, with_api


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    """A node without queues, with an HTTP API."""
    with RunningNode(tmp_path / "data", **with_api(store="memory", telesto="off", thorbang="off")) as node:
        yield node
