"""Getting one message at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
from pika import spec

from tests.broker.protocols.amqp.compatibility.peer import Peer
from tests.broker.protocols.amqp.compatibility.queues import channel_closed, declare, get, publish, take, take_all

Connect = Callable[..., Any]


def test_an_empty_queue_says_so(peer: Peer, channel: Any) -> None:
    peer.ask(spec.Basic.Get(queue=declare(channel)), spec.Basic.GetEmpty)


def test_the_number_of_messages_that_remain_is_told(channel: Any) -> None:
    queue = declare(channel)
    publish(channel, queue, *"012")
    deliveries = [take(channel, queue, auto_ack=auto_ack) for auto_ack in (False, True, False)]
    assert [(delivery.tag, delivery.method.message_count) for delivery in deliveries] == [(1, 2), (2, 1), (3, 0)]


def test_a_message_comes_with_its_exchange_key_and_properties(channel: Any, name: str) -> None:
    queue = declare(channel)
    channel.exchange_declare(name, "topic")
    channel.queue_bind(queue, name, "a.*")
    channel.basic_publish(name, "a.b", b"body", pika.BasicProperties(message_id="7", headers={"k": 1}))
    delivery = take(channel, queue)
    assert (delivery.method.exchange, delivery.method.routing_key, delivery.text) == (name, "a.b", "body")
    assert (delivery.properties.message_id, delivery.headers) == ("7", {"k": 1})


def test_unacked_get_is_requeued_when_the_channel_closes(connect: Connect, channel: Any) -> None:
    queue = declare(channel)
    publish(channel, queue, "0", "1")
    other = connect().channel()
    assert take(other, queue).text == "0"
    assert take(other, queue, auto_ack=True).text == "1"
    other.close()
    assert take_all(channel, queue) == ["0*"]


def test_no_name_means_the_queue_that_was_declared_last(connect: Connect, channel: Any) -> None:
    publish(channel, declare(channel), "body")
    assert take(channel, "").text == "body"
    with channel_closed(404, "NOT_FOUND - no previously declared queue"):
        get(connect().channel(), "")


def test_getting_from_a_missing_queue_closes_the_channel(channel: Any, name: str) -> None:
    with channel_closed(404, f"NOT_FOUND - no queue '{name}' in vhost '/'"):
        get(channel, name)
