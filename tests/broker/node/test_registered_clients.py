"""Clients of the research protocols register without a password: what they take counts, and has an end."""

from __future__ import annotations

from pathlib import Path

from flyball.model import CLIENT_BYTES
from tests.broker.peers import ThorBangPeer
from tests.nodes import RunningNode

MIB = 1024 * 1024


def test_clients_above_the_definitions_limit_are_refused(tmp_path: Path) -> None:
    with RunningNode(tmp_path, store="memory", memory_bytes="4MiB") as node:
        node.call(lambda running: running.hub.broker.ledger.tick(running.topology.definitions_bytes()))
        before = node.call(lambda running: running.hub.broker.ledger.definitions_bytes)
        peer = ThorBangPeer(node.connect("thorbang"))
        count = (3 * MIB // 2 - before) // CLIENT_BYTES
        registered = peer.ask(*[f"CREATECLIENT,client {number}" for number in range(count)])
        assert all(answer.isdecimal() for answer in registered)
        node.call(lambda running: running.hub.broker.ledger.tick(running.topology.definitions_bytes()))
        held = node.call(lambda running: running.hub.broker.ledger.definitions_bytes)
        assert held - before == count * CLIENT_BYTES
        assert not peer.ask("CREATECLIENT,one too many")[0].isdecimal()
        peer.ask(*[f"REMOVECLIENT,{client_id}" for client_id in registered[:100]])
        node.call(lambda running: running.hub.broker.ledger.tick(running.topology.definitions_bytes()))
        assert peer.ask("CREATECLIENT,another one")[0].isdecimal()
