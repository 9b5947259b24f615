"""Memory of channels counts when they are opened, and no more when they are closed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pika import spec

from flyball.broker.core.memory import CHANNEL_BYTES
from flyball.broker.node.node import Node
from flyball.broker.protocols.amqp import AmqpSession
from tests.broker.protocols.amqp.compatibility.peer import Peer, method_frame
from tests.nodes import RunningNode

COUNT = 1000


def held_bytes(node: Node) -> int:
    return sum(session.held_bytes() for session in node.hub.connections if isinstance(session, AmqpSession))


def test_channels_are_charged_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not only when they are measured, a second later.
    monkeypatch.setattr(AmqpSession, "tick", lambda session, now_s: None)
    with RunningNode(tmp_path, store="memory") as node, Peer(*node.address("amqp")) as peer:
        peer.open()
        peer.ask(spec.Basic.Qos(), spec.Basic.QosOk)
        before = node.call(held_bytes)
        peer.send_bytes(b"".join([method_frame(spec.Channel.Open(), number) for number in range(2, COUNT + 2)]))
        for number in range(2, COUNT + 2):
            peer.expect(spec.Channel.OpenOk, number)
        assert node.call(held_bytes) - before >= COUNT * CHANNEL_BYTES
        close = spec.Channel.Close(200, "", 0, 0)
        peer.send_bytes(b"".join([method_frame(close, number) for number in range(2, COUNT + 2)]))
        for number in range(2, COUNT + 2):
            peer.expect(spec.Channel.CloseOk, number)
        assert node.call(held_bytes) == before
