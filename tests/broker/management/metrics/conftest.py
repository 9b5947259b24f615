"""A node with its console, and clients that use it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flyball.broker.management import node_sampler
from flyball.broker.management.part import console_part
from tests.nodes import RunningNode


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningNode]:
    """A node that looks at itself often."""
    monkeypatch.setattr(node_sampler, "SAMPLE_S", 0.02)
    flags = {"store": "memory", "name": "north", "http": "127.0.0.1:0", "trace": "on"}
    with RunningNode(tmp_path / "data", parts=[console_part()], **flags) as node:
        yield node
