"""Fixtures that all tests of the console share."""

from __future__ import annotations

import pytest

from flyball.broker.management import domain_nodes
from tests.nodes import ANSWER_LIMIT_S


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nodes wait for each other as long as tests wait for them: a machine may be slow."""
    monkeypatch.setattr(domain_nodes, "LIMIT_S", ANSWER_LIMIT_S)
