"""Messages that cross protocols, as docs/protocols/amqp.md maps them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from flyball.client import LimitExceeded
from flyball.client.sync import Client
from flyball.wire.amqp import Properties
from tests.nodes import RunningNode
from tests.server.peers import ThorBangPeer


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[RunningNode]:
    """A node without queues."""
    with RunningNode(tmp_path, store="memory") as node:
        yield node


@pytest.fixture
def own_channel(own_node: RunningNode) -> Iterator[Any]:
    host, port = own_node.address("amqp")
    with pika.BlockingConnection(pika.ConnectionParameters(host, port, heartbeat=0)) as connection:
        yield connection.channel()


@pytest.fixture
def alice(own_node: RunningNode) -> Iterator[Client]:
    """A client of Telesto's protocol with the extension."""
    with Client.connect(str(own_node.address("telesto")), name="alice") as client:
        yield client


def test_an_amqp_client_gets_what_another_protocol_has_put_with_what_amqp_has_no_word_for_in_headers(
    own_channel: Any, alice: Client
) -> None:
    own_channel.queue_declare("orders", durable=True)
    alice.put("orders", "two coffees", receiver=alice.id, context=42, priority=9, properties=b"opaque")
    (listed,) = alice.read_messages("orders")
    method, properties, body = own_channel.basic_get("orders")
    assert (method.exchange, method.routing_key, body) == ("", "orders", b"two coffees")
    assert properties.headers == {
        "x-flyball-sender": alice.id,
        "x-flyball-receiver": alice.id,
        "x-flyball-context": 42,
        "x-flyball-properties": b"opaque",
    }
    assert (properties.correlation_id, properties.priority, properties.delivery_mode) == ("42", 9, 2)
    assert properties.timestamp == listed.arrived_us // 1_000_000


def test_a_queue_keeps_its_limits_whoever_puts(own_channel: Any, alice: Client) -> None:
    own_channel.queue_declare("dead", durable=True)
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    own_channel.queue_declare("short", durable=True, arguments={"x-max-length": 1, **dead})
    own_channel.queue_declare("brief", durable=True, arguments={"x-message-ttl": 0, **dead})
    own_channel.queue_declare("full", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    for text in ("a", "b"):
        alice.put("short", text)
    alice.put("brief", "c")
    assert [own_channel.basic_get("dead", auto_ack=True)[2] for _ in range(2)] == [b"a", b"c"]
    alice.put("full", "d")
    with pytest.raises(LimitExceeded, match="full"):
        alice.put("full", "e")
    assert [message.body for message in alice.read_messages("full")] == [b"d"]


@pytest.mark.parametrize(("priority", "shown"), [(-1, None), (0, None), (1, 1), (255, 255), (256, 255)])
def test_a_priority_that_amqp_cannot_express_is_in_the_headers(
    own_channel: Any, alice: Client, priority: int, shown: int | None
) -> None:
    own_channel.queue_declare("orders")
    alice.put("orders", "body", priority=priority, persistent=False)
    _, properties, _ = own_channel.basic_get("orders")
    in_headers = {} if 0 <= priority <= 255 else {"x-flyball-priority": priority}
    assert properties.headers == {"x-flyball-sender": alice.id, **in_headers}
    assert (properties.priority, properties.delivery_mode) == (shown, 1)


def test_a_telesto_client_gets_what_amqp_has_published_from_nobody_and_for_anybody(
    own_channel: Any, alice: Client
) -> None:
    own_channel.queue_declare("orders", durable=True, arguments={"x-max-priority": 5})
    published = pika.BasicProperties(delivery_mode=2, priority=9, correlation_id="42", user_id="guest", timestamp=1)
    own_channel.confirm_delivery()
    own_channel.basic_publish("", "orders", b"two coffees", published)
    message = alice.take("orders")
    assert message is not None
    assert (message.text, message.sender, message.receiver, message.context) == ("two coffees", None, None, None)
    assert (message.priority, message.persistent) == (5, True)
    assert message.arrived.year > 1970
    properties = Properties.decode(message.properties)
    assert (properties.correlation_id, properties.priority, properties.timestamp) == ("42", 9, 1)


def test_a_thorbang_client_gets_what_amqp_has_published_by_time(own_node: RunningNode, own_channel: Any) -> None:
    thorbang = ThorBangPeer(own_node.connect("thorbang"))
    queue_id, client_id = thorbang.ask("CREATEQUEUE,orders", "CREATECLIENT,bob")
    own_channel.confirm_delivery()
    own_channel.basic_publish("", "orders", b"two coffees")
    by_priority, by_time = thorbang.ask(f"POPQ,{client_id},{queue_id},0", f"POPQ,{client_id},{queue_id},1")
    assert by_priority == "MSG0"
    assert by_time.startswith("MSG,0,0,")
    assert by_time.endswith(",two coffees")


def test_a_dead_letter_of_another_protocol_keeps_its_headers(own_channel: Any, alice: Client) -> None:
    own_channel.queue_declare("dead")
    own_channel.queue_declare(
        "orders", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}, durable=True
    )
    alice.put("orders", "body", context=42)
    delivered, _, _ = own_channel.basic_get("orders")
    own_channel.basic_reject(delivered.delivery_tag, requeue=False)
    _, properties, body = own_channel.basic_get("dead")
    assert body == b"body"
    assert properties.headers["x-flyball-context"] == 42
    assert properties.headers["x-first-death-reason"] == "rejected"
