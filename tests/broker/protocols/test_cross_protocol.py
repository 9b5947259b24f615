"""The same queues through every protocol: what one puts the others get, as far as they have words for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pika
import pytest
from pika.exceptions import UnroutableError

from flyball.errors import FlyballError
from flyball.model import Order, Policy
from tests.broker.peers import ThorBangPeer, thorbang
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
from tests.telesto_client.errors import LimitExceeded
from tests.telesto_client.sync import Client


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
def new_telesto(node: RunningNode) -> Iterator[Callable[[str], Client]]:
    """Connect a Telesto client by that name."""
    with ExitStack() as clients:
        address = str(node.address("telesto"))
        yield lambda name: clients.enter_context(Client.connect(address, name=name))


@pytest.fixture
def telesto(new_telesto: Callable[[str], Client]) -> Client:
    return new_telesto("client")


@pytest.fixture
def thor(node: RunningNode) -> ThorBangPeer:
    return thorbang(node)


# From Telesto to AMQP


def test_amqp_sees_all_that_telesto_says_about_a_message(
    channel: Any, telesto: Client, new_telesto: Callable[[str], Client]
) -> None:
    telesto.create_queue("queue")
    other = new_telesto("other")
    telesto.put("queue", b"full", receiver=other.id, context=7, priority=5, properties=b"\xff\x00")
    full = get(channel, "queue", auto_ack=True)
    assert full is not None
    assert (full.body, full.method.exchange, full.method.routing_key) == (b"full", "", "queue")
    assert full.headers == {
        "x-flyball-sender": telesto.id,
        "x-flyball-receiver": other.id,
        "x-flyball-context": 7,
        "x-flyball-properties": b"\xff\x00",
    }
    assert (full.properties.priority, full.properties.correlation_id, full.properties.delivery_mode) == (5, "7", 2)
    assert full.properties.timestamp > 1_700_000_000


def test_amqp_sees_nothing_that_telesto_does_not_say(channel: Any, telesto: Client) -> None:
    telesto.create_queue("queue")
    telesto.put("queue", b"bare", persistent=False)
    bare = get(channel, "queue", auto_ack=True)
    assert bare is not None
    assert bare.headers == {"x-flyball-sender": telesto.id}
    assert (bare.properties.priority, bare.properties.correlation_id, bare.properties.delivery_mode) == (
        None,
        None,
        1,
    )


@pytest.mark.parametrize(("priority", "shown"), [(-3, None), (0, None), (255, 255), (1000, 255)])
def test_a_priority_that_amqp_has_no_word_for_is_in_a_header(
    channel: Any, telesto: Client, priority: int, shown: int | None
) -> None:
    telesto.create_queue("queue")
    telesto.put("queue", b"body", priority=priority)
    delivery = get(channel, "queue", auto_ack=True)
    assert delivery is not None
    assert delivery.properties.priority == shown
    header = delivery.headers.get("x-flyball-priority")
    assert header == (None if priority in (0, 255) else priority)


def test_a_consumer_of_amqp_gets_what_telesto_puts_for_anybody(
    channel: Any, telesto: Client, new_telesto: Callable[[str], Client]
) -> None:
    telesto.create_queue("queue")
    consumer = Consumer(channel, "queue")
    telesto.put("queue", b"for nobody")
    telesto.put("queue", b"for another", receiver=new_telesto("other").id)
    assert consumer.wait_for(2) == ["for nobody", "for another"]
    channel.basic_nack(consumer.deliveries[1].tag, requeue=True)
    assert consumer.wait_for(3)[2] == "for another*"
    channel.basic_ack(consumer.last.tag, multiple=False)
    channel.basic_ack(consumer.deliveries[0].tag)
    assert consumer.settle() == ["for nobody", "for another", "for another*"]
    assert telesto.take("queue") is None


def test_a_message_of_telesto_can_become_a_dead_letter(channel: Any, telesto: Client) -> None:
    exchange, dead = declare_dead_letters(channel)
    channel.queue_declare("queue", durable=True, arguments={"x-dead-letter-exchange": exchange})
    telesto.put("queue", b"body", context=7)
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


def test_a_message_that_telesto_gives_a_short_time_becomes_a_dead_letter(channel: Any, telesto: Client) -> None:
    exchange, dead = declare_dead_letters(channel)
    channel.queue_declare("queue", durable=True, arguments={"x-dead-letter-exchange": exchange})
    telesto.put("queue", b"body", ttl_s=0.05)
    wait_for_count(channel, dead, 1)


# From AMQP to Telesto


def test_telesto_finds_a_message_of_amqp_by_its_headers(channel: Any, telesto: Client) -> None:
    channel.queue_declare("queue", durable=True)
    publish(channel, "queue", "other")
    headers = {"x-flyball-sender": 5, "x-flyball-receiver": telesto.id, "x-flyball-context": 7}
    publish(channel, "queue", "body", headers=headers)
    message = telesto.take("queue", context=7)
    assert message is not None
    assert (message.text, message.sender, message.receiver, message.context) == ("body", 5, telesto.id, 7)


def test_telesto_sees_a_message_of_amqp_as_from_nobody_to_nobody(
    channel: Any, telesto: Client, new_telesto: Callable[[str], Client]
) -> None:
    channel.queue_declare("queue", durable=True)
    publish(channel, "queue", "0", "1", delivery_mode=2, correlation_id="7", headers={"context": 7})
    for client in (telesto, new_telesto("other")):
        message = client.take("queue")
        assert message is not None
        assert (message.sender, message.receiver, message.context, message.persistent) == (None, None, None, True)
    assert take_all(channel, "queue") == []


def test_telesto_sees_the_priority_of_a_message_of_amqp(channel: Any, telesto: Client) -> None:
    channel.queue_declare("queue", durable=True)
    for priority in (1, 200, None, 9):
        publish(channel, "queue", str(priority), priority=priority)
    telesto.put("queue", b"between", priority=5)
    in_order = [telesto.take("queue", order=Order.PRIORITY) for _ in range(5)]
    assert [message and message.text for message in in_order] == ["200", "9", "between", "1", "None"]


def test_amqp_gets_the_priorities_of_telesto_in_a_queue_with_priorities(channel: Any, telesto: Client) -> None:
    channel.queue_declare("queue", durable=True, arguments={"x-max-priority": 5})
    publish(channel, "queue", "amqp 3", priority=3)
    for priority in (1, 4, 3):
        telesto.put("queue", f"telesto {priority}", priority=priority)
    assert take_all(channel, "queue") == ["telesto 4", "amqp 3", "telesto 3", "telesto 1"]


def test_a_consumer_of_telesto_gets_what_amqp_publishes_through_an_exchange(channel: Any, telesto: Client) -> None:
    telesto.create_queue("queue")
    channel.queue_bind("queue", "amq.topic", "orders.#")
    with telesto.consume("queue", prefetch=5) as consumer:
        channel.basic_publish("amq.topic", "orders.new", b"one")
        first = consumer.next(wait_s=20)
        assert first is not None
        first.requeue()
        again = consumer.next(wait_s=20)
        assert again is not None
        assert (again.message.body, again.message.redelivered) == (b"one", True)
        again.ack()
    assert count(channel, "queue") == 0


def test_both_wait_for_the_same_queue_and_each_message_goes_to_one(channel: Any, telesto: Client) -> None:
    channel.queue_declare("queue", durable=True)
    consumer = Consumer(channel, "queue", auto_ack=True)
    with telesto.consume("queue", prefetch=100) as other:
        publish(channel, "queue", *[str(number) for number in range(10)])
        consumer.wait_for(5)
        theirs = [other.next(wait_s=20) for _ in range(5)]
        bodies = [delivery.message.text for delivery in theirs if delivery is not None]
        assert sorted([*consumer.settle(), *bodies]) == [str(number) for number in range(10)]


# Queues


def test_a_queue_of_telesto_is_declared_alike_and_bound_by_amqp_until_telesto_deletes_it(
    channel: Any, telesto: Client
) -> None:
    telesto.create_queue("queue")
    channel.queue_declare("queue", durable=True)
    channel.exchange_declare("exchange", "fanout")
    channel.queue_bind("queue", "exchange")
    channel.confirm_delivery()
    channel.basic_publish("exchange", "", b"body", mandatory=True)
    consumer = Consumer(channel, "queue")
    consumer.wait_for(1)

    telesto.delete_queue("queue")

    consumer.wait_for_cancel()
    with pytest.raises(UnroutableError):
        channel.basic_publish("exchange", "", b"body", mandatory=True)
    # A queue of the same name is another one.
    telesto.create_queue("queue")
    with pytest.raises(UnroutableError):
        channel.basic_publish("exchange", "", b"body", mandatory=True)
    channel.basic_publish("", "queue", b"new", mandatory=True)
    # What was delivered went with its queue, and can still be settled.
    channel.basic_ack(consumer.last.tag)
    assert take_all(channel, "queue") == ["new"]


def test_a_queue_that_amqp_deletes_is_gone_for_telesto(channel: Any, telesto: Client) -> None:
    channel.queue_declare("queue", durable=True)
    assert [queue.name for queue in telesto.get_queues()] == ["queue"]
    with telesto.consume("queue") as consumer:
        channel.queue_delete("queue")
        with pytest.raises(FlyballError):
            consumer.next(wait_s=20)
    assert telesto.get_queues() == []


def test_a_policy_applies_to_queues_of_telesto(node: RunningNode, channel: Any, telesto: Client) -> None:
    node.administer(lambda authority: authority.set_policy(Policy("short", "^short", {"max-length": 2})))
    telesto.create_queue("short")
    for number in range(4):
        telesto.put("short", str(number))
    assert take_all(channel, "short") == ["2", "3"]


def test_the_limits_of_a_queue_hold_for_telesto(channel: Any, telesto: Client) -> None:
    exchange, dead = declare_dead_letters(channel)
    to_dead = {"x-dead-letter-exchange": exchange}
    channel.queue_declare("short", durable=True, arguments={**to_dead, "x-max-length": 1})
    channel.queue_declare("quick", durable=True, arguments={**to_dead, "x-message-ttl": 50})
    channel.queue_declare("full", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    telesto.put("short", "0")
    telesto.put("short", "1")
    telesto.put("quick", "2", ttl_s=100)
    telesto.put("full", "3")
    with pytest.raises(LimitExceeded, match="is full"):
        telesto.put("full", "4")
    wait_for_count(channel, dead, 2)
    assert take_all(channel, dead) == ["0", "2"]
    assert take_all(channel, "short") == ["1"]
    assert take_all(channel, "full") == ["3"]


def test_telesto_lists_only_queues_of_the_default_virtual_host(
    node: RunningNode, telesto: Client, channel: Any
) -> None:
    node.administer(lambda authority: authority.add_vhost("shop"))
    node.allow_all("guest", "shop")
    host, port = node.address("amqp")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port, "shop", heartbeat=0))
    shop = connection.channel()
    for other in (shop, channel):
        other.queue_declare("same name", durable=True)
        publish(other, "same name", "body")
    assert [queue.name for queue in telesto.get_queues()] == ["same name"]
    assert [queue.name for queue in telesto.get_active_queues()] == ["same name"]
    assert telesto.take("same name") is not None
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
    with Client.connect(str(node.address("telesto")), name="client") as telesto:
        telesto.put("mine", b"body", persistent=True)
        message = telesto.peek("mine")
        assert message is not None
        assert not message.persistent
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
    # Of nobody and without a context.
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


def test_thorbang_removes_a_queue_of_amqp_when_it_is_empty(channel: Any, thor: ThorBangPeer, telesto: Client) -> None:
    channel.queue_declare("queue", durable=True)
    publish(channel, "queue", "body")
    queue_id = telesto.get_queue_by_name("queue").id
    (refused,) = thor.ask(f"REMOVEQUEUE,{queue_id}")
    assert refused.startswith("FAIL")
    assert take_all(channel, "queue") == ["body"]
    consumer = Consumer(channel, "queue")
    assert thor.ask(f"REMOVEQUEUE,{queue_id}") == ["OK"]
    consumer.wait_for_cancel()
    with channel_closed(404, "NOT_FOUND - no queue 'queue' in vhost '/'"):
        get(channel, "queue")
