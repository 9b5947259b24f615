"""A node whose PostgreSQL fails over to a replica that lagged behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop
from pika import spec

from flyball.broker.node.node import Node
from flyball.broker.node.rewind import in_memory
from tests.broker.protocols.amqp.compatibility.peer import ConnectionEnded, Peer
from tests.broker.store.replication import Pair
from tests.nodes import ANSWER_LIMIT_S, RunningNode, ServeProcess
from tests.ports import kept_port

PERSISTENT = spec.BasicProperties(delivery_mode=2)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    found = Pair(tmp_path)
    try:
        uvloop.run(found.start())
        yield found
    finally:
        found.stop()


def test_node_joins_the_promoted_replica_and_saves_what_it_has_in_memory(pair: Pair, tmp_path: Path) -> None:
    with kept_port() as port, ServeProcess(tmp_path / "node", store=pair.url, amqp=f"127.0.0.1:{port}") as node:
        with connected(node) as peer:
            publish(peer, "early", "replicated")
            uvloop.run(pair.catch_up())
            uvloop.run(pair.cut())
            publish(peer, "early", "confirmed, not replicated")
            publish(peer, "late", "in a queue that is not replicated")
            uvloop.run(pair.fail_over())
            with pytest.raises(ConnectionEnded):
                peer.read_frame()
        with reconnected(node) as peer:
            publish(peer, "early", "after")
        code, complaints = node.stop()
        assert code == 0
        assert complaints.count("PostgreSQL continues from an earlier state") <= 3, complaints
        assert "wrote messages again that the store had lost messages=2" in complaints
        assert "synchronous_standby_names" in complaints
        node.start()
        with connected(node) as peer:
            assert drain(peer, "early") == ["replicated", "confirmed, not replicated", "after"]
            assert drain(peer, "late") == ["in a queue that is not replicated"]


def test_message_that_is_paged_out_is_not_written_again_without_its_body(memory_node: RunningNode) -> None:
    with connected(memory_node) as peer:
        publish(peer, "q", "x" * 100_000)
        publish(peer, "q", "whole")
        peer.send(spec.Basic.Get(queue="q"))
        peer.expect_content(spec.Basic.GetOk)

        def page_out(node: Node) -> None:
            engine = node.hub.broker.engine
            [state] = engine.queues
            [unacked] = state.unacked.values()
            assert engine.page_out(unacked)

        memory_node.call(page_out)
        messages, absent = memory_node.call(lambda node: in_memory(node.hub.broker.engine))
        assert [message.body for message in messages] == [b"whole"]
        assert absent == 1


def connected(node: ServeProcess | RunningNode) -> Peer:
    peer = Peer(*node.address("amqp"))
    try:
        peer.open().ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
    except BaseException:
        peer.__exit__(None, None, None)
        raise
    return peer


def reconnected(node: ServeProcess) -> Peer:
    """Connect to a node that joins again; until then it refuses or drops its clients."""
    deadline = time.monotonic() + ANSWER_LIMIT_S
    while True:
        try:
            return connected(node)
        except (OSError, ConnectionEnded):
            assert time.monotonic() < deadline, "it did not come back"


def publish(peer: Peer, queue: str, body: str) -> None:
    """Publish a persistent message to a durable queue; it is confirmed on return."""
    peer.ask(spec.Queue.Declare(queue=queue, durable=True), spec.Queue.DeclareOk)
    peer.publish(body.encode(), routing_key=queue, properties=PERSISTENT)
    peer.expect(spec.Basic.Ack)


def drain(peer: Peer, queue: str) -> list[str]:
    found: list[str] = []
    while True:
        peer.send(spec.Basic.Get(queue=queue, no_ack=True))
        content = peer.try_content(spec.Basic.GetOk, spec.Basic.GetEmpty)
        if content is None:
            return found
        found.append(content.body.decode())
