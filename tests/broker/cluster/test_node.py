from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
import uvloop

from flyball.broker.cluster import node
from flyball.broker.node.node import NodePart
from flyball.broker.node.service_manager import ServiceManager
from flyball.broker.settings import ServeSettings, load_settings
from flyball.errors import Fenced, StoreUnavailable


class Lives:
    """Outcomes of a node, one for each time that it serves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *fates: Exception | None) -> None:
        self.left = list(fates)
        monkeypatch.setattr(node, "_serve_until", self._serve)
        monkeypatch.setattr(node, "REJOIN_S", 0.0)
        # It changes the whole process: this one has other tests to run.
        monkeypatch.setattr("flyball.broker.cluster.node.prepare_process", lambda settings: None)

    async def _serve(
        self, settings: ServeSettings, stop: asyncio.Event, parts: Sequence[NodePart], manager: ServiceManager
    ) -> None:
        fate = self.left.pop(0)
        if fate is not None:
            raise ExceptionGroup("tasks", [fate])
        stop.set()


def serve() -> None:
    uvloop.run(node.serve(load_settings({"store": "memory"}, {})))


def test_a_node_whose_place_was_taken_joins_again_when_the_store_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    lives = Lives(monkeypatch, Fenced("too late"), StoreUnavailable("away"), StoreUnavailable("away"), None)
    serve()
    assert lives.left == []


def test_a_node_that_starts_without_its_store_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    lives = Lives(monkeypatch, StoreUnavailable("away"), None)
    with pytest.raises(StoreUnavailable, match="away"):
        serve()
    assert len(lives.left) == 1
