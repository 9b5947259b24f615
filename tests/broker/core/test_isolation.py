"""One failure stays one failure: a defect that one client or message meets ends nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPConnectionError, ConnectionClosedByBroker

from flyball.broker.models.registry import Models
from flyball.broker.node import housekeeping
from flyball.broker.node import node as node_module
from flyball.broker.node.node import Node
from flyball.broker.protocols.amqp import methods
from flyball.broker.protocols.amqp import session as session_module
from flyball.broker.protocols.amqp.consumers import AmqpConsumer
from flyball.broker.protocols.amqp.session import AmqpSession
from flyball.broker.transport.connection import Hub
from flyball.broker.wire import amqp
from tests.nodes import RunningNode


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    with RunningNode(tmp_path, store="memory") as running:
        yield running


@contextlib.contextmanager
def channel_of(node: RunningNode) -> Iterator[BlockingChannel]:
    host, port = node.address("amqp")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port))
    try:
        yield connection.channel()
    finally:
        if connection.is_open:
            connection.close()


def fails(*_: Any, **__: Any) -> None:
    raise ZeroDivisionError("a defect")


def faults_of(node: RunningNode) -> int:
    return node.call(lambda running: running.hub.faults.count)


def oldest_session(running: Node) -> AmqpSession:
    found = [session for session in running.hub.connections if isinstance(session, AmqpSession)]
    return min(found, key=lambda session: session.number)


def test_a_defect_in_a_command_closes_only_that_connection_with_541(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with channel_of(node) as good, channel_of(node) as bad:
        bad.queue_declare("orders")
        bad.basic_publish("", "orders", b"one")
        bad.basic_get("orders")
        with monkeypatch.context() as broken:
            broken.setattr(session_module, "ON_CHANNEL", {**methods.ON_CHANNEL, amqp.ChannelFlow: fails})
            with pytest.raises(ConnectionClosedByBroker) as closed:
                bad.flow(True)
        assert closed.value.reply_code == 541
        # What the connection held is there for others.
        method, _, body = good.basic_get("orders", auto_ack=True)
        assert method is not None
        assert body == b"one"
    assert faults_of(node) == 1


def test_a_consumer_that_cannot_be_sent_a_message_leaves_it_to_others(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with channel_of(node) as bad, channel_of(node) as good:
        good.queue_declare("orders")
        bad.basic_consume("orders", lambda *_: None)
        with monkeypatch.context() as broken:
            broken.setattr(AmqpConsumer, "deliver", fails)
            good.confirm_delivery()
            # The publisher notices nothing of what its message meets.
            good.basic_publish("", "orders", b"one")
        with pytest.raises(ConnectionClosedByBroker) as closed:
            bad.connection.process_data_events(time_limit=10)
        assert closed.value.reply_code == 541
        _, _, body = good.basic_get("orders", auto_ack=True)
        assert body == b"one"


def test_a_connection_that_cannot_be_flushed_does_not_keep_others_from_it(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with channel_of(node) as bad, channel_of(node) as good:
        good.queue_declare("orders")

        def break_first(running: Node) -> None:
            monkeypatch.setattr(oldest_session(running), "flush", fails)
            # Both have something to send in the same turn, the broken one first.
            for connection in sorted(running.hub.connections, key=lambda found: found.number):
                running.hub.mark_dirty(connection)

        node.call(break_first)
        assert good.queue_declare("orders", passive=True).method.message_count == 0
        with pytest.raises(AMQPConnectionError):
            bad.connection.process_data_events(time_limit=10)
        assert faults_of(node) >= 1


def test_housekeeping_goes_on_after_a_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "HOUSEKEEPING_S", 0.01)
    ticks: list[float] = []

    def tick(hub: Hub, now_s: float) -> None:
        ticks.append(now_s)
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(Hub, "tick", tick)
    with RunningNode(tmp_path, store="memory") as node, channel_of(node) as channel:
        while len(ticks) < 3:
            channel.queue_declare("orders")
        status = node.call(lambda running: running.hub.reports["supervisor"]())
    assert status["faults_by_place"]["housekeeping: connections"] >= 3
    assert status["restarts"] == 0


def test_a_failing_task_of_the_node_is_restarted_and_clients_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []

    async def keep_house(hub: Hub, models: Models) -> None:
        attempts.append(len(attempts))
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(node_module, "keep_house", keep_house)
    with RunningNode(tmp_path, store="memory") as node, channel_of(node) as channel:
        while len(attempts) < 2:
            channel.queue_declare("orders")
        assert node.call(lambda running: running.supervisor.restarts) >= 1


def test_a_commit_answers_all_clients_though_one_answer_fails(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with channel_of(node) as bad, channel_of(node) as good:

        def break_first(running: Node) -> None:
            monkeypatch.setattr(oldest_session(running), "answered", fails)

        node.call(break_first)
        with pytest.raises(ConnectionClosedByBroker) as closed:
            bad.queue_declare("theirs", durable=True)
        assert closed.value.reply_code == 541
        good.queue_declare("ours", durable=True)
