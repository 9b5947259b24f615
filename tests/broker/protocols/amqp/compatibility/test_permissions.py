"""Permissions of users in a virtual host, and effects of policies on queues and exchanges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pika import spec

from tests.broker.protocols.amqp.compatibility.brokers import Broker
from tests.broker.protocols.amqp.compatibility.peer import Peer

NewName = Callable[[], str]
NewPeer = Callable[[], Peer]


@pytest.fixture
def user(broker: Broker, name: str) -> str:
    """A user who may configure conf..., write write... and read read..., with its name as password."""
    broker.add_user(name, name)
    broker.set_permission(name, "/", configure="^conf", write="^write", read="^read")
    return name


@pytest.fixture
def limited(new_peer: NewPeer, user: str) -> Peer:
    """A peer of that user."""
    return new_peer().open(user, user)


def refusal(kind: str, name: str, user: str) -> str:
    return f"ACCESS_REFUSED - access to {kind} '{name}' in vhost '/' refused for user '{user}'"


REFUSED: list[tuple[Any, str, str]] = [
    (spec.Queue.Declare(queue="other"), "queue", "other"),
    (spec.Queue.Delete(queue="other"), "queue", "other"),
    (spec.Queue.Purge(queue="other"), "queue", "other"),
    (spec.Queue.Bind(queue="other", exchange="read"), "queue", "other"),
    (spec.Queue.Bind(queue="write", exchange="other"), "exchange", "other"),
    (spec.Queue.Unbind(queue="other", exchange="read"), "queue", "other"),
    (spec.Queue.Unbind(queue="write", exchange="other"), "exchange", "other"),
    (spec.Basic.Get(queue="other"), "queue", "other"),
    (spec.Basic.Consume(queue="other"), "queue", "other"),
    (spec.Exchange.Declare(exchange="other"), "exchange", "other"),
    (spec.Exchange.Delete(exchange="other"), "exchange", "other"),
    (spec.Exchange.Bind(destination="other", source="read"), "exchange", "other"),
    (spec.Exchange.Bind(destination="write", source="other"), "exchange", "other"),
    (spec.Queue.Declare(queue="conf", arguments={"x-dead-letter-exchange": "write"}), "queue", "conf"),
    (spec.Exchange.Declare(exchange="conf", arguments={"alternate-exchange": "write"}), "exchange", "conf"),
]


@pytest.mark.parametrize(
    ("method", "kind", "name"), REFUSED, ids=[f"{method.NAME} {kind} {name}" for method, kind, name in REFUSED]
)
def test_what_is_not_permitted_is_refused_whether_it_exists_or_not(
    limited: Peer, user: str, method: Any, kind: str, name: str
) -> None:
    limited.send(method)

    limited.expect_channel_close(403, refusal(kind, name, user), type(method))


@pytest.mark.parametrize(("exchange", "told"), [("amq.direct", "amq.direct"), ("", "amq.default"), ("none", "none")])
def test_publishing_needs_write_permission_for_the_exchange(
    limited: Peer, user: str, exchange: str, told: str
) -> None:
    limited.publish(b"x", exchange, "key")

    limited.expect_channel_close(403, refusal("exchange", told, user), spec.Basic.Publish)


def test_a_made_up_name_needs_permission_too(limited: Peer) -> None:
    limited.send(spec.Queue.Declare(queue=""))

    limited.expect_channel_close(403, "ACCESS_REFUSED - access to queue 'amq.gen-", spec.Queue.Declare)


def test_looking_needs_no_permission(limited: Peer, peer: Peer, new_name: NewName) -> None:
    name = new_name()
    peer.ask(spec.Queue.Declare(queue=name, auto_delete=True), spec.Queue.DeclareOk)

    limited.ask(spec.Queue.Declare(queue=name, passive=True), spec.Queue.DeclareOk)
    limited.ask(spec.Exchange.Declare(exchange="amq.direct", passive=True), spec.Exchange.DeclareOk)

    peer.ask(spec.Queue.Delete(queue=name), spec.Queue.DeleteOk)


def test_what_is_permitted_works(broker: Broker, user: str, new_peer: NewPeer, new_name: NewName) -> None:
    name = new_name()
    pattern = f"^{name}$|^amq\\.default$"
    broker.set_permission(user, "/", configure=name, write=pattern, read=name)
    peer = new_peer().open(user, user)

    peer.ask(spec.Queue.Declare(queue=name, exclusive=True), spec.Queue.DeclareOk)
    peer.publish(b"x", "", name)
    peer.send(spec.Basic.Get(queue=name, no_ack=True))

    assert peer.expect_content(spec.Basic.GetOk).body == b"x"


def test_a_pattern_may_match_anywhere_in_a_name(broker: Broker, user: str, new_peer: NewPeer, name: str) -> None:
    broker.set_permission(user, "/", configure=name, write="", read="")
    peer = new_peer().open(user, user)

    peer.ask(spec.Queue.Declare(queue=f"x{name}x", exclusive=True), spec.Queue.DeclareOk)


def test_an_empty_pattern_matches_no_name(broker: Broker, user: str, new_peer: NewPeer, name: str) -> None:
    broker.set_permission(user, "/", configure="", write="", read="")
    peer = new_peer().open(user, user)

    peer.send(spec.Queue.Declare(queue=name))

    peer.expect_channel_close(403, refusal("queue", name, user), spec.Queue.Declare)


def test_permissions_are_those_of_a_vhost(broker: Broker, user: str, new_peer: NewPeer, new_name: NewName) -> None:
    vhost = new_name()
    broker.add_vhost(vhost)
    broker.set_permission(user, vhost)

    there = new_peer().open(user, user, vhost)
    there.ask(spec.Queue.Declare(queue="anything", exclusive=True), spec.Queue.DeclareOk)

    here = new_peer().open(user, user)
    here.send(spec.Queue.Declare(queue="anything"))
    here.expect_channel_close(403, "ACCESS_REFUSED", spec.Queue.Declare)


# Policies


def wait_for_length(peer: Peer, queue: str, limit: int) -> None:
    """Publish until the queue keeps at most `limit` messages: a policy reaches a queue a moment after it is set."""
    peer.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
    while True:
        for _ in range(limit + 1):
            peer.publish(b"x", "", queue)
            peer.expect(spec.Basic.Ack)
        count = peer.ask(spec.Queue.Declare(queue=queue, passive=True), spec.Queue.DeclareOk).message_count
        if count == limit:
            return
        assert count > limit


def test_a_policy_limits_queues_that_are_there_already(broker: Broker, peer: Peer, name: str) -> None:
    peer.ask(spec.Queue.Declare(queue=name, exclusive=True), spec.Queue.DeclareOk)

    broker.set_policy(name, f"^{name}$", {"max-length": 3}, apply_to="queues")

    wait_for_length(peer, name, 3)
    broker.clear_policy(name)


def test_a_policy_applies_to_queues_declared_later(broker: Broker, peer: Peer, name: str) -> None:
    broker.set_policy(name, f"^{name}", {"max-length": 2})

    peer.ask(spec.Queue.Declare(queue=f"{name}-later", exclusive=True), spec.Queue.DeclareOk)

    wait_for_length(peer, f"{name}-later", 2)
    broker.clear_policy(name)


def test_the_policy_with_the_highest_priority_applies_alone(broker: Broker, peer: Peer, name: str) -> None:
    broker.set_policy(f"{name}-low", f"^{name}$", {"max-length": 1, "message-ttl": 0}, priority=1)
    broker.set_policy(f"{name}-high", f"^{name}$", {"max-length": 4}, priority=2)
    broker.set_policy(f"{name}-exchanges", f"^{name}$", {"alternate-exchange": "x"}, apply_to="exchanges", priority=3)

    peer.ask(spec.Queue.Declare(queue=name, exclusive=True), spec.Queue.DeclareOk)

    wait_for_length(peer, name, 4)
    for policy in ("low", "high", "exchanges"):
        broker.clear_policy(f"{name}-{policy}")


@pytest.mark.parametrize(("argument", "policy", "effective"), [(2, 5, 2), (5, 2, 2)])
def test_of_two_limits_the_lower_one_holds(
    broker: Broker, peer: Peer, name: str, argument: int, policy: int, effective: int
) -> None:
    broker.set_policy(name, f"^{name}$", {"max-length": policy})
    arguments = {"x-max-length": argument}

    peer.ask(spec.Queue.Declare(queue=name, exclusive=True, arguments=arguments), spec.Queue.DeclareOk)

    wait_for_length(peer, name, effective)
    broker.clear_policy(name)


def test_a_cleared_policy_applies_no_more(broker: Broker, peer: Peer, name: str) -> None:
    broker.set_policy(name, f"^{name}$", {"max-length": 1})
    peer.ask(spec.Queue.Declare(queue=name, exclusive=True), spec.Queue.DeclareOk)
    wait_for_length(peer, name, 1)

    broker.clear_policy(name)

    while peer.ask(spec.Queue.Declare(queue=name, passive=True), spec.Queue.DeclareOk).message_count < 5:
        peer.publish(b"x", "", name)
        peer.expect(spec.Basic.Ack)


def test_a_policy_gives_an_exchange_its_alternate(broker: Broker, peer: Peer, new_name: NewName) -> None:
    exchange, alternate = new_name(), new_name()
    for name in (exchange, alternate):
        peer.ask(spec.Exchange.Declare(exchange=name, type="fanout"), spec.Exchange.DeclareOk)
    queue = peer.ask(spec.Queue.Declare(exclusive=True), spec.Queue.DeclareOk).queue
    peer.ask(spec.Queue.Bind(queue=queue, exchange=alternate), spec.Queue.BindOk)

    broker.set_policy(exchange, f"^{exchange}$", {"alternate-exchange": alternate}, apply_to="exchanges")

    while peer.ask(spec.Queue.Declare(queue=queue, passive=True), spec.Queue.DeclareOk).message_count == 0:
        peer.publish(b"x", exchange)
    broker.clear_policy(exchange)


def test_a_policy_says_where_dead_letters_go(broker: Broker, peer: Peer, new_name: NewName) -> None:
    source, target = new_name(), new_name()
    broker.set_policy(source, f"^{source}$", {"dead-letter-exchange": "", "dead-letter-routing-key": target})
    for queue in (source, target):
        peer.ask(spec.Queue.Declare(queue=queue, exclusive=True), spec.Queue.DeclareOk)
    peer.publish(b"x", "", source)
    peer.ask(spec.Basic.Consume(queue=target, consumer_tag="dead"), spec.Basic.ConsumeOk)
    peer.send(spec.Basic.Get(queue=source))
    tag = peer.expect_content(spec.Basic.GetOk).method.delivery_tag

    peer.send(spec.Basic.Reject(delivery_tag=tag, requeue=False))

    dead = peer.expect_content(spec.Basic.Deliver)
    assert (dead.method.consumer_tag, dead.body) == ("dead", b"x")
    assert dead.properties.headers["x-death"][0]["reason"] == "rejected"
    broker.clear_policy(source)


# Clients that are connected when their user or virtual host goes


@pytest.mark.parametrize("gone", ["user", "vhost"])
def test_whose_user_or_vhost_is_deleted_is_told_and_disconnected(
    broker: Broker, new_peer: NewPeer, name: str, gone: str
) -> None:
    broker.add_user(name, name)
    broker.add_vhost(name)
    broker.set_permission(name, name)
    peer = new_peer().open(name, name, name)
    peer.ask(spec.Queue.Declare(queue="mine", durable=True), spec.Queue.DeclareOk)
    other = new_peer().open()

    if gone == "user":
        broker.delete_user(name)
    else:
        broker.delete_vhost(name)

    closed = peer.expect(spec.Connection.Close, 0)
    # RabbitMQ stops a vhost before it deletes it, and reports whichever the connection has noticed first.
    reason = closed.reply_text.replace("is down", "is deleted") if gone == "vhost" else closed.reply_text
    assert (closed.reply_code, reason) == (320, f"CONNECTION_FORCED - {gone} '{name}' is deleted")
    other.ask(spec.Queue.Declare(queue=name, exclusive=True), spec.Queue.DeclareOk)
