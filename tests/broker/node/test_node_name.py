"""Under which name and addresses others know a node."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from flyball.broker.node.listeners import advertised
from flyball.broker.node.name import node_name
from flyball.broker.settings import Address, load_settings


def test_node_keeps_its_name_when_the_host_name_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings({"data": str(tmp_path)}, {})
    first = node_name(settings)
    assert first == socket.gethostname()
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert node_name(settings) == first


def test_a_name_that_was_given_counts(tmp_path: Path) -> None:
    node_name(load_settings({"data": str(tmp_path)}, {}))
    assert node_name(load_settings({"data": str(tmp_path), "name": "north"}, {})) == "north"


def test_wildcard_listener_advertises_the_host_name_or_the_given_one(
    tmp_path: Path,
) -> None:
    listeners = {"amqp": Address("0.0.0.0", 5672), "link": Address("::", 1), "telesto": Address("127.0.0.1", 9001)}
    here = advertised(listeners, load_settings({"data": str(tmp_path)}, {}))
    assert here["amqp"] == f"{socket.gethostname()}:5672"
    assert here["telesto"] == "127.0.0.1:9001"
    there = advertised(listeners, load_settings({"data": str(tmp_path), "advertise": "north.example"}, {}))
    assert there == {"amqp": "north.example:5672", "link": "north.example:1", "telesto": "127.0.0.1:9001"}
