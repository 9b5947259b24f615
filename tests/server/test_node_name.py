"""What a node is called that was given no name."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from flyball.server.node import node_name
from flyball.server.settings import load_settings


def test_a_node_keeps_its_name_with_its_data_when_the_machine_is_called_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_settings({"data": str(tmp_path)}, {})
    first = node_name(settings)
    assert first == socket.gethostname()
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert node_name(settings) == first


def test_a_name_that_was_given_counts(tmp_path: Path) -> None:
    node_name(load_settings({"data": str(tmp_path)}, {}))
    assert node_name(load_settings({"data": str(tmp_path), "name": "north"}, {})) == "north"
