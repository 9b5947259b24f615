"""Messages that cannot be dead-lettered are parked: kept, seen and left alone until an operator decides."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from flyball.broker.core import topology
from flyball.broker.core.dead_lettering import DeadLetterResult
from flyball.broker.core.dead_letters import DeadLetters
from flyball.broker.engine.queue import QueueState
from flyball.broker.management.part import console_part
from flyball.broker.node import housekeeping
from flyball.broker.node.node import Node
from flyball.errors import InvalidArgument
from flyball.model import Message
from tests.broker.protocols.amqp.compatibility.queues import get, publish, take, texts, wait_for_count
from tests.nodes import ANSWER_LIMIT_S, RunningNode

OpenChannel = Callable[..., Any]
GUEST = ("guest", "guest")

# Longer than a routing key can be: what an earlier version has let pass.
TOO_LONG = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "k" * 300}

HIGHEST = [{"queue": "orders", "reason": "expired", "count": 2**63 - 1}]


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let queues be declared with whatever arguments."""
    monkeypatch.setattr(topology, "check_declaration", lambda queue: None)


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queues whose dead letters failed, each time."""
    failed: list[str] = []

    def noted(self: DeadLetters, state: QueueState, message: Message, reason: str) -> DeadLetterResult:
        try:
            return original(self, state, message, reason)
        except InvalidArgument:
            failed.append(state.queue.name)
            raise

    original = DeadLetters.publish
    monkeypatch.setattr(DeadLetters, "publish", noted)
    return failed


@pytest.fixture
def node(tmp_path: Path, lenient: None, attempts: list[str]) -> Iterator[RunningNode]:
    with RunningNode(tmp_path, parts=[console_part()], store="memory", http="127.0.0.1:0") as running:
        yield running


def api(node: RunningNode, method: str, path: str, **options: Any) -> Any:
    address = "{}:{}".format(*node.address("http"))
    answer = httpx.request(method, f"http://{address}/api{path}", auth=GUEST, timeout=ANSWER_LIMIT_S, **options)
    assert answer.is_success, answer.text
    return answer.json() if answer.content else None


def parked_in(node: RunningNode, name: str) -> list[str]:
    """Return the reasons of the parked messages of a queue."""

    def look(running: Node) -> list[str]:
        state = running.hub.broker.engine.find_queue(name)
        assert state is not None
        assert state.parked.keys() <= state.unacked.keys()
        return [parked.reason for parked in state.parked.values()]

    return node.call(look)


def wait_until_parked(node: RunningNode, channel: Any, name: str, count: int) -> None:
    while len(parked_in(node, name)) < count:
        channel.connection.process_data_events(0.01)


def test_a_rejected_message_is_parked_and_its_consumer_goes_on(node: RunningNode, open_channel: OpenChannel) -> None:
    channel = open_channel(node)
    channel.queue_declare("orders", arguments=TOO_LONG)
    publish(channel, "orders", "bad", "good")
    channel.basic_reject(take(channel, "orders").tag, requeue=False)
    good = take(channel, "orders")
    assert good.text == "good"
    channel.basic_ack(good.tag)
    assert parked_in(node, "orders") == ["rejected"]
    # No other consumer gets it, not even when its own is gone.
    channel.connection.close()
    assert get(open_channel(node), "orders") is None
    assert parked_in(node, "orders") == ["rejected"]


def test_expired_messages_are_parked_once_and_others_still_expire(
    node: RunningNode, open_channel: OpenChannel, caplog: pytest.LogCaptureFixture, attempts: list[str]
) -> None:
    channel = open_channel(node)
    channel.queue_declare("orders", arguments={**TOO_LONG, "x-message-ttl": 1})
    channel.queue_declare("dead")
    channel.queue_declare(
        "other",
        arguments={"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
    )
    with caplog.at_level(logging.ERROR):
        publish(channel, "orders", *(str(number) for number in range(50)))
        wait_until_parked(node, channel, "orders", 50)
        publish(channel, "other", "expires")
        assert take(channel, "dead").text == "expires"
    assert len([record for record in caplog.records if "cannot be dead-lettered" in record.message]) == 1
    assert len(attempts) == 50


def test_operators_see_requeue_and_drop_parked_messages(node: RunningNode, open_channel: OpenChannel) -> None:
    channel = open_channel(node)
    channel.queue_declare("orders", arguments=TOO_LONG)
    publish(channel, "orders", "a", "b", "c")
    for _ in range(3):
        channel.basic_reject(take(channel, "orders").tag, requeue=False)
    wait_until_parked(node, channel, "orders", 3)

    queue = api(node, "GET", "/queues/%2F/orders")
    assert (queue["messages_parked"], queue["messages"], queue["messages_unacknowledged"]) == (3, 0, 0)
    assert api(node, "GET", "/overview")["queue_totals"]["messages_parked"] == 3
    listed = api(node, "GET", "/queues/%2F/orders/parked")
    assert [(item["reason"], item["payload_bytes"]) for item in listed] == [("rejected", 1)] * 3
    assert "255" in listed[0]["problem"]

    ids = [item["id"] for item in listed]
    assert api(node, "POST", "/queues/%2F/orders/parked", json={"action": "drop", "ids": ids[:1]}) == {"count": 1}
    assert api(node, "POST", "/queues/%2F/orders/parked", json={"action": "requeue"}) == {"count": 2}
    assert texts([take(channel, "orders"), take(channel, "orders")]) == ["b*", "c*"]
    assert api(node, "GET", "/queues/%2F/orders/parked") == []


def test_a_user_without_read_permission_cannot_touch_parked_messages(
    node: RunningNode, open_channel: OpenChannel
) -> None:
    channel = open_channel(node)
    channel.queue_declare("orders", arguments=TOO_LONG)
    user = ("carl", "secret")
    api(node, "PUT", "/users/carl", json={"password": "secret", "tags": "management"})
    api(node, "PUT", "/permissions/%2F/carl", json={"configure": ".*", "write": ".*", "read": ""})
    address = "{}:{}".format(*node.address("http"))
    answer = httpx.post(
        f"http://{address}/api/queues/%2F/orders/parked", auth=user, json={"action": "drop"}, timeout=ANSWER_LIMIT_S
    )
    assert answer.status_code == 401


def test_a_queue_with_parked_messages_is_not_deleted_as_empty(node: RunningNode, open_channel: OpenChannel) -> None:
    channel = open_channel(node)
    channel.queue_declare("orders", arguments=TOO_LONG)
    publish(channel, "orders", "a")
    channel.basic_reject(take(channel, "orders").tag, requeue=False)
    wait_until_parked(node, channel, "orders", 1)
    address = "{}:{}".format(*node.address("http"))
    url = f"http://{address}/api/queues/%2F/orders"
    assert httpx.delete(url, params={"if-empty": "true"}, auth=GUEST, timeout=ANSWER_LIMIT_S).status_code == 400


def test_a_node_starts_with_poisoned_messages_and_tries_each_once(
    start_node: Callable[..., RunningNode],
    new_database: Callable[[], str],
    open_channel: OpenChannel,
    lenient: None,
    attempts: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(housekeeping, "HOUSEKEEPING_S", 0.01)
    database = new_database()
    node = start_node(store=database)
    channel = open_channel(node)
    channel.confirm_delivery()
    channel.queue_declare("poisoned", durable=True, arguments={**TOO_LONG, "x-message-ttl": 1})
    channel.queue_declare("dead", durable=True)
    dead = {"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("orders", durable=True, arguments=dead)
    publish(channel, "poisoned", "a", "b", delivery_mode=2)
    publish(channel, "orders", "counted", delivery_mode=2, headers={"x-death": HIGHEST})
    wait_until_parked(node, channel, "poisoned", 2)
    wait_for_count(channel, "dead", 1)
    node.stop()

    attempts.clear()
    node = start_node(store=database)
    channel = open_channel(node)
    wait_until_parked(node, channel, "poisoned", 2)
    letter = take(channel, "dead")
    assert letter.headers["x-death"][0]["count"] == 2**63 - 1
    # Housekeeping goes on, and leaves parked messages alone.
    channel.queue_declare("plain", arguments=dead)
    for number in range(5):
        publish(channel, "plain", str(number))
        assert take(channel, "dead").text == str(number)
    assert attempts == ["poisoned", "poisoned"]
    assert node.call(lambda running: (running.hub.faults.count, running.supervisor.restarts)) == (0, 0)
