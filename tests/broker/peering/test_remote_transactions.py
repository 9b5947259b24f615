"""Two real nodes over one PostgreSQL: the acks of a transaction are durable, whichever node owns the queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pika import spec

from tests.broker.protocols.amqp.compatibility.peer import METHOD, Content, Peer
from tests.nodes import RunningNode

PERSISTENT = spec.BasicProperties(delivery_mode=2)


@pytest.fixture
def pair(tmp_path: Path, new_database: Callable[[], str]) -> Iterator[tuple[RunningNode, RunningNode]]:
    store = new_database()
    with ExitStack() as nodes:
        owner, entry = (
            nodes.enter_context(RunningNode(tmp_path / name, store=store, name=name, lease_s=60)) for name in "ab"
        )
        yield owner, entry


@pytest.fixture
def peers(pair: tuple[RunningNode, RunningNode]) -> Iterator[tuple[Peer, Peer]]:
    """A client of the node that owns the queue, and one of the other node."""
    with ExitStack() as clients:
        owner, entry = (clients.enter_context(Peer(*node.address("amqp"))).open() for node in pair)
        owner.ask(spec.Queue.Declare(queue="orders", durable=True), spec.Queue.DeclareOk)
        owner.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
        owner.publish(b"one", routing_key="orders", properties=PERSISTENT)
        owner.expect(spec.Basic.Ack)
        yield owner, entry


def consume_in_a_transaction(peer: Peer) -> Content:
    """Begin a transaction and acknowledge the first message in it."""
    peer.ask(spec.Tx.Select(), spec.Tx.SelectOk)
    peer.ask(spec.Basic.Consume(queue="orders", consumer_tag="tag"), spec.Basic.ConsumeOk)
    content = peer.expect_content(spec.Basic.Deliver)
    peer.send(spec.Basic.Ack(delivery_tag=content.method.delivery_tag))
    return content


def lose_links(node: RunningNode) -> None:
    """Let the links of a node break; it makes new ones at once."""

    def lose(node: object) -> None:
        for link in list(node.peers.links):  # type: ignore[attr-defined]
            link.give_up("was cut")

    node.call(lose)


def next_answer(peer: Peer) -> object:
    """Return the next method that is not a delivery."""
    while True:
        frame = peer.read_frame()
        if frame.kind == METHOD and not isinstance(frame.method, spec.Basic.Deliver):
            return frame.method


def test_acks_over_a_link_are_durable_when_their_commit_is_confirmed(
    pair: tuple[RunningNode, RunningNode], peers: tuple[Peer, Peer]
) -> None:
    owner, entry = peers
    consume_in_a_transaction(entry)
    entry.ask(spec.Tx.Commit(), spec.Tx.CommitOk)
    owner.send(spec.Basic.Get(queue="orders"))
    owner.expect(spec.Basic.GetEmpty)


def test_a_commit_fails_whose_acknowledgements_came_after_the_link_was_lost(
    pair: tuple[RunningNode, RunningNode], peers: tuple[Peer, Peer]
) -> None:
    _, entry = peers
    consume_in_a_transaction(entry)
    lose_links(pair[1])
    # The owner has the message back and sends it again, over another link.
    entry.send(spec.Tx.Commit())
    assert isinstance(next_answer(entry), spec.Connection.Close)
    entry.send(spec.Connection.CloseOk(), 0)
