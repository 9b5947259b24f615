"""The same queues through every protocol: what one puts the others get, as far as they have words for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from pika.exceptions import UnroutableError

from flyball.broker.wire import telesto as wire
from flyball.broker.wire.telesto import ErrorCode, ReadMode, WireMessage
from flyball.model import Policy
from tests.broker.peers import TelestoPeer, ThorBangPeer, thorbang
from tests.broker.peers import telesto as connect_telesto
from tests.broker.protocols.amqp.compatibility.queues import (
    Consumer,
    channel_closed,
    count,
    declare_dead_letters,
    get,
    publish,
    take_all,
    wait_for_count,
)
from tests.nodes import RunningNode


@pytest.fixture
def node(memory_node: RunningNode) -> RunningNode:
    return memory_node


@pytest.fixture
def channel(node: RunningNode) -> Iterator[Any]:
    """A channel of pika's blocking connection."""
    host, port = node.address("amqp")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port, heartbeat=0))
    yield connection.channel()
    connection.close()


@pytest.fixture
def telesto(node: RunningNode) -> TelestoPeer:
    return connect_telesto(node)


def put(
    telesto: TelestoPeer, queue_id: int, text: str, *, receiver: int = 0, context: int = 0, priority: int = 0
) -> wire.Packet:
    message = WireMessage(0, queue_id, 0, receiver, context, priority, 0, text)
    return telesto.ask(wire.PutMessage(telesto.next_id(), message, []))


def id_of(telesto: TelestoPeer, queue: str = "queue") -> int:
    return telesto.get(wire.GetQueueIdResponse, wire.GetQueueId(telesto.next_id(), queue)).queue_id


def read(telesto: TelestoPeer, queue_id: int) -> WireMessage:
    request = wire.ReadMessage(telesto.next_id(), queue_id, 0, ReadMode.TIME)
    return telesto.get(wire.ReadMessageResponse, request).message


def names_of_queues(telesto: TelestoPeer) -> list[str]:
    return [queue.name for queue in telesto.get(wire.GetQueuesResponse, wire.GetQueues(telesto.next_id())).queues]


@pytest.fixture
def thor(node: RunningNode) -> ThorBangPeer:
    return thorbang(node)


# From Telesto to AMQP


def test_amqp_sees_all_that_telesto_says_about_a_message(
    node: RunningNode, channel: Any, telesto: TelestoPeer
) -> None:
    queue_id = telesto.create_queue()
    other = connect_telesto(node, "other")
    put(telesto, queue_id, "full", receiver=other.client_id, context=7, priority=5)
    full = get(channel, "queue", auto_ack=True)
    assert full is not None
    assert (full.body, full.method.exchange, full.method.routing_key) == (b"full", "", "queue")
    assert full.headers == {
        "x-flyball-sender": telesto.client_id,
        "x-flyball-receiver": other.client_id,
        "x-flyball-context": 7,
    }
    assert (full.properties.priority, full.properties.correlation_id, full.properties.delivery_mode) == (5, "7", 2)
    assert full.properties.timestamp > 1_700_000_000


def test_amqp_sees_nothing_that_telesto_does_not_say(channel: Any, telesto: TelestoPeer) -> None:
    put(telesto, telesto.create_queue(), "bare")
    bare = get(channel, "queue", auto_ack=True)
    assert bare is not None
    assert bare.headers == {"x-flyball-sender": telesto.client_id}
    assert (bare.properties.priority, bare.properties.correlation_id, bare.properties.delivery_mode) == (
        None,
        None,
        2,
    )


@pytest.mark.parametrize(("priority", "shown", "header"), [(-3, None, -3), (0, None, None), (127, 127, None)])
def test_a_priority_that_amqp_has_no_word_for_is_in_a_header(
    channel: Any, telesto: TelestoPeer, priority: int, shown: int | None, header: int | None
) -> None:
    put(telesto, telesto.create_queue(), "body", priority=priority)
    delivery = get(channel, "queue", auto_ack=True)
    assert delivery is not None
    assert delivery.properties.priority == shown
    assert delivery.headers.get("x-flyball-priority") == header


def test_a_consumer_of_amqp_gets_what_telesto_puts_for_anybody(
    node: RunningNode, channel: Any, telesto: TelestoPeer
) -> None:
    queue_id = telesto.create_queue()
    consumer = Consumer(channel, "queue")
    put(telesto, queue_id, "for nobody")
    put(telesto, queue_id, "for another", receiver=connect_telesto(node, "other").client_id)
    assert consumer.wait_for(2) == ["for nobody", "for another"]
    channel.basic_nack(consumer.deliveries[1].tag, requeue=True)
    assert consumer.wait_for(3)[2] == "for another*"
    channel.basic_ack(consumer.last.tag, multiple=False)
    channel.basic_ack(consumer.deliveries[0].tag)
    assert consumer.settle() == ["for nobody", "for another", "for another*"]
    assert telesto.read_text(queue_id) is None


def test_a_message_of_telesto_can_become_a_dead_letter(channel: Any, telesto: TelestoPeer) -> None:
    exchange, dead = declare_dead_letters(channel)
    channel.queue_declare("queue", durable=True, arguments={"x-dead-letter-exchange": exchange})
    put(telesto, id_of(telesto), "body", context=7)
    delivery = get(channel, "queue")
    assert delivery is not None
    channel.basic_reject(delivery.tag, requeue=False)
    wait_for_count(channel, dead, 1)
    letter = get(channel, dead, auto_ack=True)
    assert letter is not None
    assert letter.body == b"body"
    assert letter.headers["x-flyball-context"] == 7
    assert letter.headers["x-death"][0]["reason"] == "rejected"
    assert letter.headers["x-death"][0]["routing-keys"] == ["queue"]


# From AMQP to Telesto


def test_telesto_finds_a_message_of_amqp_by_its_headers(channel: Any, telesto: TelestoPeer) -> None:
    channel.queue_declare("queue", durable=True)
    publish(channel, "queue", "other")
    headers = {"x-flyball-sender": 5, "x-flyball-receiver": telesto.client_id, "x-flyball-context": 7}
    publish(channel, "queue", "body", headers=headers)
    message = telesto.get(wire.ReadMessageResponse, wire.ReadResponse(9, id_of(telesto), 7)).message
    found = (message.text, message.sender_id, message.receiver_id, message.context)
    assert found == ("body", 5, telesto.client_id, 7)


def test_telesto_sees_a_message_of_amqp_as_from_nobody_to_nobody(
    node: RunningNode, channel: Any, telesto: TelestoPeer
) -> None:
    channel.queue_declare("queue", durable=True)
    publish(channel, "queue", "0", "1", delivery_mode=2, correlation_id="7", headers={"context": 7})
    for client in (telesto, connect_telesto(node, "other")):
        message = read(client, id_of(client))
        assert (message.sender_id, message.receiver_id, message.context) == (0, 0, 0)
    assert take_all(channel, "queue") == []


def test_telesto_sees_the_priority_of_a_message_of_amqp(channel: Any, telesto: TelestoPeer) -> None:
    channel.queue_declare("queue", durable=True)
    for priority in (1, 200, None, 9):
        headers = {"x-flyball-receiver": telesto.client_id}
        publish(channel, "queue", str(priority), priority=priority, headers=headers)
    queue_id = id_of(telesto)
    put(telesto, queue_id, "between", priority=5, receiver=telesto.client_id)
    in_order = [telesto.read_text(queue_id, ReadMode.PRIORITY) for _ in range(5)]
    assert in_order == ["200", "9", "between", "1", "None"]


def test_amqp_gets_the_priorities_of_telesto_in_a_queue_with_priorities(channel: Any, telesto: TelestoPeer) -> None:
    channel.queue_declare("queue", durable=True, arguments={"x-max-priority": 5})
    publish(channel, "queue", "amqp 3", priority=3)
    for priority in (1, 4, 3):
        put(telesto, id_of(telesto), f"telesto {priority}", priority=priority)
    assert take_all(channel, "queue") == ["telesto 4", "amqp 3", "telesto 3", "telesto 1"]


def test_telesto_reads_what_amqp_publishes_through_an_exchange(channel: Any, telesto: TelestoPeer) -> None:
    queue_id = telesto.create_queue()
    channel.queue_bind("queue", "amq.topic", "orders.#")
    channel.basic_publish("amq.topic", "orders.new", b"one")
    wait_for_count(channel, "queue", 1)
    assert telesto.read_text(queue_id) == "one"
    assert count(channel, "queue") == 0


# Queues


def test_amqp_uses_a_queue_of_telesto_until_it_is_deleted(channel: Any, telesto: TelestoPeer) -> None:
    queue_id = telesto.create_queue()
    channel.queue_declare("queue", durable=True)
    channel.exchange_declare("exchange", "fanout")
    channel.queue_bind("queue", "exchange")
    channel.confirm_delivery()
    channel.basic_publish("exchange", "", b"body", mandatory=True)
    consumer = Consumer(channel, "queue")
    consumer.wait_for(1)

    telesto.get(wire.Success, wire.DeleteQueue(9, queue_id))

    consumer.wait_for_cancel()
    with pytest.raises(UnroutableError):
        channel.basic_publish("exchange", "", b"body", mandatory=True)
    # A queue of the same name is another one.
    telesto.create_queue()
    with pytest.raises(UnroutableError):
        channel.basic_publish("exchange", "", b"body", mandatory=True)
    channel.basic_publish("", "queue", b"new", mandatory=True)
    # What was delivered went with its queue, and can still be settled.
    channel.basic_ack(consumer.last.tag)
    assert take_all(channel, "queue") == ["new"]


def test_a_queue_that_amqp_deletes_is_gone_for_telesto(channel: Any, telesto: TelestoPeer) -> None:
    channel.queue_declare("queue", durable=True)
    assert names_of_queues(telesto) == ["queue"]
    queue_id = id_of(telesto)
    channel.queue_delete("queue")
    assert telesto.refusal(wire.GetQueueName(9, queue_id)) == ErrorCode.QUEUE_NOT_EXISTING
    assert telesto.refusal(wire.GetQueues(10)) == ErrorCode.NO_QUEUES_EXISTING


def test_a_policy_applies_to_queues_of_telesto(node: RunningNode, channel: Any, telesto: TelestoPeer) -> None:
    node.administer(lambda authority: authority.set_policy(Policy("short", "^short", {"max-length": 2})))
    queue_id = telesto.create_queue("short")
    for number in range(4):
        put(telesto, queue_id, str(number))
    assert take_all(channel, "short") == ["2", "3"]


def test_the_limits_of_a_queue_hold_for_telesto(channel: Any, telesto: TelestoPeer) -> None:
    exchange, dead = declare_dead_letters(channel)
    to_dead = {"x-dead-letter-exchange": exchange}
    channel.queue_declare("short", durable=True, arguments={**to_dead, "x-max-length": 1})
    channel.queue_declare("quick", durable=True, arguments={**to_dead, "x-message-ttl": 50})
    channel.queue_declare("full", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    put(telesto, id_of(telesto, "short"), "0")
    put(telesto, id_of(telesto, "short"), "1")
    put(telesto, id_of(telesto, "quick"), "2")
    put(telesto, id_of(telesto, "full"), "3")
    refused = put(telesto, id_of(telesto, "full"), "4")
    assert isinstance(refused, wire.Error)
    assert "is full" in refused.details
    wait_for_count(channel, dead, 2)
    assert take_all(channel, dead) == ["0", "2"]
    assert take_all(channel, "short") == ["1"]
    assert take_all(channel, "full") == ["3"]


def test_telesto_lists_only_queues_of_the_default_virtual_host(
    node: RunningNode, telesto: TelestoPeer, channel: Any
) -> None:
    node.administer(lambda authority: authority.add_vhost("shop"))
    node.allow_all("guest", "shop")
    host, port = node.address("amqp")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port, "shop", heartbeat=0))
    shop = connection.channel()
    for other in (shop, channel):
        other.queue_declare("same name", durable=True)
        publish(other, "same name", "body")
    assert names_of_queues(telesto) == ["same name"]
    active = telesto.get(wire.GetActiveQueuesResponse, wire.GetActiveQueues(9)).queues
    assert [queue.name for queue in active] == ["same name"]
    assert telesto.read_text(id_of(telesto, "same name")) == "body"
    assert count(shop, "same name") == 1
    connection.close()


def test_what_telesto_puts_into_an_exclusive_queue_goes_with_it(
    start_node: Callable[..., RunningNode],
) -> None:
    node = start_node()
    host, port = node.address("amqp")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port, heartbeat=0))
    channel = connection.channel()
    channel.queue_declare("mine", durable=True, exclusive=True)
    telesto = connect_telesto(node)
    put(telesto, id_of(telesto, "mine"), "body")
    delivery = get(channel, "mine")
    assert delivery is not None
    assert delivery.properties.delivery_mode == 1
    connection.close()


# ThorBangMQ


def test_thorbang_and_amqp_exchange_messages(channel: Any, thor: ThorBangPeer) -> None:
    client_id, queue_id = thor.set_up()
    channel.queue_bind("queue", "amq.direct", "key")
    publish(channel, "queue", "plain", priority=3)
    channel.basic_publish("amq.direct", "key", "routed é".encode())
    wait_for_count(channel, "queue", 2)
    answers = thor.ask(f"POPQ,{client_id},{queue_id},1", f"POPQ,{client_id},{queue_id},1")
    fields = [answer.split(",", 4) for answer in answers]
    # Without a sender and a context.
    assert [(sender, context, body) for _, sender, context, _, body in fields] == [
        ("0", "0", "plain"),
        ("0", "0", "routed é"),
    ]
    assert thor.ask(f"MSG,-1,{client_id},{queue_id},9,7,back") == ["OK"]
    delivery = get(channel, "queue", auto_ack=True)
    assert delivery is not None
    assert delivery.body == b"back"
    assert delivery.headers == {"x-flyball-sender": client_id, "x-flyball-context": 7}
    assert delivery.properties.priority == 9


def test_a_message_that_thorbang_cannot_express_stays(channel: Any, thor: ThorBangPeer) -> None:
    client_id, queue_id = thor.set_up()
    publish(channel, "queue", "a\0b")
    (answer,) = thor.ask(f"POPQ,{client_id},{queue_id},1")
    assert answer.startswith("FAIL")
    assert take_all(channel, "queue") == ["a\0b"]


def test_thorbang_removes_a_queue_of_amqp_when_it_is_empty(
    channel: Any, thor: ThorBangPeer, telesto: TelestoPeer
) -> None:
    channel.queue_declare("queue", durable=True)
    publish(channel, "queue", "body")
    queue_id = id_of(telesto)
    (refused,) = thor.ask(f"REMOVEQUEUE,{queue_id}")
    assert refused.startswith("FAIL")
    assert take_all(channel, "queue") == ["body"]
    consumer = Consumer(channel, "queue")
    assert thor.ask(f"REMOVEQUEUE,{queue_id}") == ["OK"]
    consumer.wait_for_cancel()
    with channel_closed(404, "NOT_FOUND - no queue 'queue' in vhost '/'"):
        get(channel, "queue")
