"""Limits of virtual hosts and users, on both brokers: how many connections, queues and channels there may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pika import spec

from tests.broker.protocols.amqp.compatibility.brokers import Broker
from tests.broker.protocols.amqp.compatibility.peer import Peer

NewPeer = Callable[[], Peer]


@pytest.fixture
def user(broker: Broker, name: str) -> Iterator[str]:
    """A user with a virtual host of the same name."""
    broker.add_user(name, name)
    broker.add_vhost(name)
    broker.set_permission(name, name)
    yield name
    broker.delete_vhost(name)
    broker.delete_user(name)


def refused_at_open(peer: Peer, user: str, text: str) -> None:
    peer.log_in(user, user)
    peer.tune()
    peer.send(spec.Connection.Open(virtual_host=user), 0)
    peer.expect_connection_close(530, text, spec.Connection.Open)


def test_connections_to_a_vhost_are_limited(broker: Broker, new_peer: NewPeer, user: str) -> None:
    broker.set_vhost_limit(user, "max-connections", 1)
    first = new_peer().open(user, user, user)
    reason = f"NOT_ALLOWED - access to vhost '{user}' refused for user '{user}': connection limit (1) is reached"
    refused_at_open(new_peer(), user, reason)
    broker.set_vhost_limit(user, "max-connections", 0)
    first.open_channel(2)
    broker.set_vhost_limit(user, "max-connections", -1)
    new_peer().open(user, user, user)


def test_connections_of_a_user_are_limited(broker: Broker, new_peer: NewPeer, user: str) -> None:
    broker.set_user_limit(user, "max-connections", 1)
    first = new_peer().open(user, user, user)
    reason = f"NOT_ALLOWED - connection refused for user '{user}': user connection limit (1) is reached"
    refused_at_open(new_peer(), user, reason)
    broker.set_user_limit(user, "max-connections", 0)
    first.open_channel(2)
    refused_at_open(new_peer(), user, reason.replace("(1)", "(0)"))
    broker.set_user_limit(user, "max-connections", -1)
    new_peer().open(user, user, user)


def test_connection_that_ends_makes_room_for_another(broker: Broker, new_peer: NewPeer, user: str) -> None:
    first = new_peer().open(user, user, user)
    broker.set_vhost_limit(user, "max-connections", 1)
    first.send(spec.Connection.Close(reply_code=200, reply_text="", class_id=0, method_id=0), 0)
    first.expect(spec.Connection.CloseOk, 0)
    first.hang_up()
    first.expect_end()
    for _ in range(50):
        # RabbitMQ counts a little later.
        peer = new_peer()
        peer.log_in(user, user)
        peer.tune()
        peer.send(spec.Connection.Open(virtual_host=user), 0)
        if isinstance(peer.read_frame().method, spec.Connection.OpenOk):
            return
    raise AssertionError("the connection still counts")


def test_channels_of_a_user_are_limited_over_all_connections(broker: Broker, new_peer: NewPeer, user: str) -> None:
    broker.set_user_limit(user, "max-channels", 3)
    new_peer().open(user, user, user, channels=2)
    second = new_peer().open(user, user, user, channels=1)
    second.send(spec.Channel.Open(), 2)
    reason = f"number of channels opened for user '{user}' has reached the maximum allowed user limit of (3)"
    second.expect_connection_close(530, f"NOT_ALLOWED - {reason}")


def test_queues_of_a_vhost_are_limited(broker: Broker, new_peer: NewPeer, user: str) -> None:
    broker.set_vhost_limit(user, "max-queues", 1)
    peer = new_peer().open(user, user, user, channels=3)
    declare = spec.Queue.Declare
    peer.ask(declare(queue="one"), spec.Queue.DeclareOk)
    peer.ask(declare(queue="one"), spec.Queue.DeclareOk)
    peer.send(declare(queue="two"))
    text = "PRECONDITION_FAILED - cannot declare queue '{}': queue limit in vhost '" + user + "' (1) is reached"
    peer.expect_channel_close(406, text.format("two"), declare)
    peer.send(declare(queue="mine", exclusive=True), 2)
    peer.expect_channel_close(406, text.format("mine"), declare, 2)
    peer.ask(spec.Queue.Delete(queue="one"), spec.Queue.DeleteOk, 3)
    peer.ask(declare(queue="two"), spec.Queue.DeclareOk, 3)
