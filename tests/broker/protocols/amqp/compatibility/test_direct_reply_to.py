"""Answers without a queue: consuming from amq.rabbitmq.reply-to."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika import spec
from pika.exceptions import UnroutableError

from tests.broker.protocols.amqp.compatibility.peer import Peer
from tests.broker.protocols.amqp.compatibility.queues import Consumer, channel_closed, declare, publish, take

Connect = Callable[..., Any]
REPLIES = "amq.rabbitmq.reply-to"


@pytest.fixture
def service(channel: Any) -> str:
    """The queue of a service, which `channel` serves."""
    return declare(channel)


@pytest.fixture
def client(connect: Connect) -> Any:
    """A channel for questions."""
    return connect().channel()


class Replies(Consumer):
    """A consumer of replies."""

    def __init__(self, channel: Any, **options: Any) -> None:
        super().__init__(channel, REPLIES, auto_ack=True, **options)


def ask(client: Any, channel: Any, service: str) -> str:
    """Send a question to the service, and return where it has to send the answer."""
    client.basic_publish("", service, b"question", pika.BasicProperties(reply_to=REPLIES))
    return str(take(channel, service, auto_ack=True).properties.reply_to)


def test_the_answer_goes_to_the_channel_that_asked(client: Any, channel: Any, service: str) -> None:
    replies = Replies(client, consumer_tag="mine")
    address = ask(client, channel, service)
    assert re.fullmatch(r"amq\.rabbitmq\.reply-to\..+", address)
    properties = pika.BasicProperties(correlation_id="7", headers={"k": 1})
    channel.basic_publish("", address, b"answer", properties)
    channel.basic_publish("", address, b"another")
    assert replies.wait_for(2) == ["answer", "another"]
    first = replies.deliveries[0]
    assert (first.method.exchange, first.method.routing_key, first.method.consumer_tag) == ("", address, "mine")
    assert (first.properties.correlation_id, first.headers) == ("7", {"k": 1})


def test_two_channels_have_two_addresses(connect: Connect, client: Any, channel: Any, service: str) -> None:
    other = client.connection.channel()
    replies, others = Replies(client), Replies(other)
    addresses = ask(client, channel, service), ask(other, channel, service)
    assert addresses[0] != addresses[1]
    channel.basic_publish("", addresses[1], b"for the other")
    channel.basic_publish("", addresses[0], b"for the one")
    assert others.wait_for(1) == ["for the other"]
    assert replies.wait_for(1) == ["for the one"]


def test_asking_without_listening_closes_the_channel(peer: Peer, service: str) -> None:
    peer.publish(b"question", "", service, spec.BasicProperties(reply_to=REPLIES))
    text = "PRECONDITION_FAILED - fast reply consumer does not exist"
    assert peer.expect_channel_close(406, text, spec.Basic.Publish) == text


def test_replies_cannot_be_acknowledged(client: Any) -> None:
    with channel_closed(406, "PRECONDITION_FAILED - reply consumer cannot acknowledge"):
        Consumer(client, REPLIES)


def test_a_channel_listens_once(client: Any) -> None:
    Replies(client)
    with channel_closed(406, "PRECONDITION_FAILED - reply consumer already set"):
        Replies(client)


def test_listening_again_gives_a_new_address(client: Any, channel: Any, service: str) -> None:
    replies = Replies(client)
    old = ask(client, channel, service)
    replies.cancel()
    replies = Replies(client)
    new = ask(client, channel, service)
    assert old != new
    channel.basic_publish("", old, b"for nobody")
    channel.basic_publish("", new, b"answer")
    assert replies.wait_for(1) == ["answer"]


@pytest.mark.parametrize("end", ["cancel", "channel", "connection"])
def test_an_answer_that_comes_too_late_has_no_route(client: Any, channel: Any, service: str, end: str) -> None:
    replies = Replies(client)
    address = ask(client, channel, service)
    if end == "cancel":
        replies.cancel()
    else:
        (client if end == "channel" else client.connection).close()
    channel.confirm_delivery()
    with pytest.raises(UnroutableError):
        channel.basic_publish("", address, b"late", mandatory=True)
    channel.basic_publish("", address, b"late, and nobody minds")


@pytest.mark.parametrize("address", [REPLIES, f"{REPLIES}.bogus"], ids=["bare", "bogus"])
def test_an_address_that_was_never_given_has_no_route(channel: Any, address: str) -> None:
    channel.confirm_delivery()
    with pytest.raises(UnroutableError):
        channel.basic_publish("", address, b"body", mandatory=True)


def test_other_exchanges_do_not_lead_there(client: Any, channel: Any, service: str) -> None:
    replies = Replies(client)
    address = ask(client, channel, service)
    channel.basic_publish("amq.direct", address, b"astray")
    channel.basic_publish("", address, b"answer")
    assert replies.wait_for(1) == ["answer"]


def test_a_service_may_ask_whether_its_client_still_listens(
    connect: Connect, client: Any, channel: Any, service: str
) -> None:
    replies = Replies(client)
    address = ask(client, channel, service)
    declared = connect().channel().queue_declare(address, passive=True).method
    assert (declared.queue, declared.message_count, declared.consumer_count) == (address, 0, 1)
    replies.cancel()
    with channel_closed(404, f"NOT_FOUND - no queue '{address}' in vhost '/'"):
        connect().channel().queue_declare(address, passive=True)


@pytest.mark.parametrize("passive", [False, True])
def test_the_bare_name_can_always_be_declared(channel: Any, passive: bool) -> None:
    declared = channel.queue_declare(REPLIES, passive=passive).method
    assert (declared.queue, declared.message_count, declared.consumer_count) == (REPLIES, 0, 1)


@pytest.mark.parametrize("what", ["bind", "get", "purge"])
def test_the_bare_name_is_no_queue(channel: Any, what: str) -> None:
    requests: dict[str, Callable[[], Any]] = {
        "bind": lambda: channel.queue_bind(REPLIES, "amq.fanout"),
        "get": lambda: channel.basic_get(REPLIES),
        "purge": lambda: channel.queue_purge(REPLIES),
    }
    with channel_closed(404, f"NOT_FOUND - no queue '{REPLIES}' in vhost '/'"):
        requests[what]()


def test_an_ordinary_reply_queue_is_left_alone(channel: Any, service: str) -> None:
    publish(channel, service, "question", reply_to="my-queue")
    assert take(channel, service).properties.reply_to == "my-queue"
