"""A node with its console, users with each right, and a client of its HTTP side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from flyball.broker.management import node_sampler
from flyball.broker.management.part import console_part
from tests.broker.management.flyball_api.streams import GUEST
from tests.nodes import ANSWER_LIMIT_S, RunningNode


@pytest.fixture
def quick_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for it before the node: its console takes samples all the time."""
    monkeypatch.setattr(node_sampler, "SAMPLE_S", 0.02)


@pytest.fixture
def node(tmp_path: Path, quick_samples: None) -> Iterator[RunningNode]:
    part = console_part()
    with RunningNode(tmp_path / "data", parts=[part], store="memory", name="north", http="127.0.0.1:0") as node:
        yield node


@pytest.fixture
def api(node: RunningNode) -> Iterator[httpx.Client]:
    """Asks as an administrator."""
    with httpx.Client(
        base_url=f"http://{node.address('http')}/api/flyball", auth=GUEST, timeout=ANSWER_LIMIT_S
    ) as client:
        yield client


@pytest.fixture
def users(node: RunningNode) -> dict[str, tuple[str, str]]:
    """A name and password for each right."""
    found: dict[str, tuple[str, str]] = {}
    for tag in ("nothing", "management", "monitoring"):
        tags = [] if tag == "nothing" else [tag]
        node.run(lambda node, tag=tag, tags=tags: node.hub.authority.add_user(tag, "secret", tags))  # type: ignore[misc]
        found[tag] = (tag, "secret")
    return found
