"""Unacked messages whose bodies were left to the store: what comes of them is as if they had been in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pika import spec

from flyball.broker.node.node import Node
from tests.broker.protocols.amqp.compatibility.peer import Content, Peer
from tests.nodes import RunningNode

PERSISTENT = spec.BasicProperties(delivery_mode=2, headers={"h": "x" * 500})
COUNT = 40
BODY_BYTES = 50_000


@pytest.fixture
def node(tmp_path: Path, new_database: Callable[[], str]) -> Iterator[RunningNode]:
    with RunningNode(tmp_path, store=new_database(), resident_bytes="128KiB", telesto="off", thorbang="off") as node:
        yield node


def body(number: int) -> bytes:
    return b"%06d" % number * (BODY_BYTES // 6)


def opened(node: RunningNode, channels: int = 1) -> Peer:
    return Peer(*node.address("amqp")).open(channels=channels)


def publish(peer: Peer, queue: str, arguments: Any = None, count: int = COUNT) -> None:
    peer.ask(spec.Queue.Declare(queue=queue, durable=True, arguments=arguments), spec.Queue.DeclareOk)
    peer.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
    for number in range(count):
        peer.publish(body(number), routing_key=queue, properties=PERSISTENT)
    confirmed = 0
    while confirmed < count:
        confirmed = peer.expect(spec.Basic.Ack).delivery_tag


def numbers(contents: list[Content]) -> list[int]:
    for content in contents:
        assert content.body == body(int(content.body[:6]))
        assert content.properties.headers == {"h": "x" * 500} or "x-death" in content.properties.headers
    return [int(content.body[:6]) for content in contents]


def take(peer: Peer, count: int = COUNT, channel: int = 1) -> list[Content]:
    return [peer.expect_content(spec.Basic.Deliver, channel) for _ in range(count)]


def paged(node: Node) -> int:
    return sum(message.is_paged for state in node.hub.broker.engine.queues for message in state.unacked.values())


def consume_all(node: RunningNode, peer: Peer, queue: str, channel: int = 1) -> None:
    peer.ask(spec.Basic.Consume(queue=queue), spec.Basic.ConsumeOk, channel)
    assert numbers(take(peer, channel=channel)) == list(range(COUNT))
    # As soon as all are stored and memory runs short again.
    node.wait_until(lambda node: node.hub.broker.ledger.page_out(10**9) == 0 and paged(node) == COUNT)


def test_requeued_messages_come_again_in_order_and_whole(node: RunningNode) -> None:
    with opened(node) as publisher, opened(node) as peer:
        publish(publisher, "q")
        consume_all(node, peer, "q")
        peer.send(spec.Basic.Nack(delivery_tag=0, multiple=True, requeue=True))
        again = take(peer)
        assert numbers(again) == list(range(COUNT))
        assert all(content.method.redelivered for content in again)
        peer.send(spec.Basic.Ack(delivery_tag=0, multiple=True))
        peer.ask(spec.Queue.Delete(queue="q"), spec.Queue.DeleteOk)
        node.wait_until(lambda node: node.hub.broker.engine.resident_bytes == 0)


def test_messages_of_a_closed_connection_go_to_the_next_consumer(node: RunningNode) -> None:
    with opened(node) as publisher:
        publish(publisher, "q")
        with opened(node) as peer:
            consume_all(node, peer, "q")
        with opened(node) as other:
            other.ask(spec.Basic.Consume(queue="q"), spec.Basic.ConsumeOk)
            assert numbers(take(other)) == list(range(COUNT))


def test_rejected_messages_are_dead_lettered_with_their_bodies(node: RunningNode) -> None:
    with opened(node) as publisher, opened(node, channels=2) as peer:
        peer.ask(spec.Queue.Declare(queue="dead", durable=True), spec.Queue.DeclareOk)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        publish(publisher, "q", arguments)
        consume_all(node, peer, "q")
        peer.send(spec.Basic.Nack(delivery_tag=0, multiple=True, requeue=False))
        peer.ask(spec.Basic.Consume(queue="dead"), spec.Basic.ConsumeOk, 2)
        dead = take(peer, channel=2)
        assert sorted(numbers(dead)) == list(range(COUNT))
        assert peer.ask(spec.Queue.Declare(queue="q", passive=True), spec.Queue.DeclareOk).message_count == 0


def test_rejected_messages_without_an_exchange_are_gone(node: RunningNode) -> None:
    with opened(node) as publisher, opened(node) as peer:
        publish(publisher, "q")
        consume_all(node, peer, "q")
        peer.send(spec.Basic.Nack(delivery_tag=0, multiple=True, requeue=False))
        assert peer.ask(spec.Queue.Declare(queue="q", passive=True), spec.Queue.DeclareOk).message_count == 0
        node.wait_until(lambda node: node.hub.broker.engine.resident_bytes == 0)


def test_messages_out_during_a_purge_come_back_whole(node: RunningNode) -> None:
    with opened(node) as publisher, opened(node) as peer:
        publish(publisher, "q")
        consume_all(node, peer, "q")
        assert peer.ask(spec.Queue.Purge(queue="q"), spec.Queue.PurgeOk).message_count == 0
        peer.send(spec.Basic.Nack(delivery_tag=0, multiple=True, requeue=True))
        assert sorted(numbers(take(peer))) == list(range(COUNT))


def test_messages_that_expire_while_unacked_are_dead_lettered_when_requeued(node: RunningNode) -> None:
    with opened(node) as publisher, opened(node, channels=2) as peer:
        peer.ask(spec.Queue.Declare(queue="dead", durable=True), spec.Queue.DeclareOk)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-message-ttl": 600_000}
        publish(publisher, "q", arguments)
        consume_all(node, peer, "q")

        def make_late(node: Node) -> None:
            broker = node.hub.broker
            real_us = broker.now_us
            broker.now_us = lambda: real_us() + 3_600_000_000

        node.call(make_late)
        peer.ask(spec.Basic.Cancel(consumer_tag=""), spec.Basic.CancelOk)
        peer.send(spec.Basic.Nack(delivery_tag=0, multiple=True, requeue=True))
        peer.ask(spec.Basic.Consume(queue="dead"), spec.Basic.ConsumeOk, 2)
        assert sorted(numbers(take(peer, channel=2))) == list(range(COUNT))


def test_acked_messages_are_gone_from_the_store(node: RunningNode) -> None:
    with opened(node) as publisher, opened(node) as peer:
        publish(publisher, "q")
        consume_all(node, peer, "q")
        peer.send(spec.Basic.Ack(delivery_tag=0, multiple=True))
        node.wait_until(lambda node: node.hub.broker.journal.rows_removed == COUNT)


def test_messages_that_are_only_in_the_store_expire_in_time_and_in_order(node: RunningNode) -> None:
    with opened(node) as publisher, opened(node) as peer:
        peer.ask(spec.Queue.Declare(queue="dead", durable=True), spec.Queue.DeclareOk)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-message-ttl": 1000}
        publish(publisher, "q", arguments, 200)
        peer.ask(spec.Basic.Consume(queue="dead", no_ack=True), spec.Basic.ConsumeOk)
        assert numbers(take(peer, 200)) == list(range(200))
