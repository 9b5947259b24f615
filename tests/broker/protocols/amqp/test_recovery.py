"""State of AMQP clients after a restart or a crash: it is found again, and behaves as before."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pika
import pytest
from pika import spec
from pika.exceptions import ConnectionClosedByBroker, NackError, ProbableAuthenticationError, UnroutableError

from flyball.broker.core.authority import Authority
from flyball.broker.core.topology import Topology
from flyball.broker.protocols.amqp import AmqpSession
from flyball.model import Exchange, Permission, Policy
from tests.broker.chaos import frozen
from tests.broker.peers import ThorBangPeer
from tests.broker.protocols.amqp.compatibility.peer import Peer
from tests.broker.protocols.amqp.compatibility.queues import (
    Consumer,
    channel_closed,
    count,
    get,
    publish,
    take,
    take_all,
    wait_for_count,
)
from tests.nodes import RunningNode, ServeProcess

OpenChannel = Callable[..., Any]


class Node:
    """A node on one database, which can be started again."""

    def __init__(self, start: Callable[..., RunningNode], database: str, open_channel: OpenChannel) -> None:
        self._start = start
        self._database = database
        self._open_channel = open_channel
        self._flags: dict[str, object] = {}
        self.now: RunningNode

    def start(self, **flags: object) -> Any:
        """Start it, with these flags of `flyball serve` from now on; return a channel."""
        self._flags |= flags
        self.now = self._start(store=self._database, **self._flags)
        return self._open_channel(self.now)

    def restart(self) -> Any:
        """Stop it gracefully and start it again; return a channel."""
        self.now.stop()
        return self.start()


@pytest.fixture
def node(start_node: Callable[..., RunningNode], new_database: Callable[[], str], open_channel: OpenChannel) -> Node:
    return Node(start_node, new_database(), open_channel)


def keep(channel: Any, queue: str, *bodies: str, **properties: Any) -> None:
    """Publish persistent messages; they are in the store on return."""
    publish(channel, queue, *bodies, delivery_mode=2, **properties)


# Definitions


QUEUE_ARGUMENTS: dict[str, Any] = {
    "x-message-ttl": 60_000,
    "x-expires": 3_600_000,
    "x-max-length": 1000,
    "x-max-length-bytes": 2**40,
    "x-max-priority": 7,
    "x-overflow": "reject-publish",
    "x-dead-letter-exchange": "d\u00e9ad \u0000 letters",
    "x-dead-letter-routing-key": "k\u00e9y",
    "x-single-active-consumer": True,
    "x-unknown": ["list", {"of": "things"}, 1, Decimal("1.5"), datetime(2026, 1, 1), None],
}
EXCHANGE_ARGUMENTS: dict[str, Any] = {"alternate-exchange": "amq.fanout", "own": {"number": 2**40, "flag": False}}


def test_durable_queues_are_the_same_after_a_restart(node: Node) -> None:
    channel = node.start()
    channel.queue_declare("plain", durable=True)
    channel.queue_declare("auto", durable=True, auto_delete=True)
    channel.queue_declare("quorum", durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 3})
    channel.queue_declare("all", durable=True, arguments=QUEUE_ARGUMENTS)
    before = node.now.call(lambda node: {state.queue.name: state.queue for state in node.hub.broker.engine.queues})

    channel = node.restart()

    after = node.now.call(lambda node: {state.queue.name: state.queue for state in node.hub.broker.engine.queues})
    assert after == before
    # What a client declares again, as they do after every reconnection, is what there is.
    channel.queue_declare("auto", durable=True, auto_delete=True)
    channel.queue_declare("all", durable=True, arguments=QUEUE_ARGUMENTS)
    text = "inequivalent arg 'x-max-length' for queue 'all' in vhost '/': received '1' but current is '1000'"
    with channel_closed(406, f"PRECONDITION_FAILED - {text}"):
        channel.queue_declare("all", durable=True, arguments={**QUEUE_ARGUMENTS, "x-max-length": 1})


def test_durable_exchanges_are_the_same_after_a_restart(node: Node) -> None:
    def exchanges() -> dict[str, Exchange]:
        def look(node: RunningNode) -> Any:
            return {exchange.name: exchange for exchange in topology_of(node).router("/").exchanges}

        found: dict[str, Exchange] = look(node.now)
        return found

    channel = node.start()
    for kind in ("direct", "fanout", "topic", "headers"):
        channel.exchange_declare(kind, kind, durable=True)
    channel.exchange_declare(
        "all", "topic", durable=True, auto_delete=True, internal=True, arguments=EXCHANGE_ARGUMENTS
    )
    channel.exchange_declare("passing", "direct")
    before = exchanges()

    channel = node.restart()

    del before["passing"]
    assert exchanges() == before
    channel.exchange_declare(
        "all", "topic", durable=True, auto_delete=True, internal=True, arguments=EXCHANGE_ARGUMENTS
    )


def topology_of(node: RunningNode) -> Topology:
    """Return the topology of a node, to be looked at while the node is at rest."""
    with socket.create_connection(node.address("amqp")):
        node.wait_until(lambda node: any(isinstance(c, AmqpSession) for c in node.hub.connections))
        sessions = [c for c in node.node.hub.connections if isinstance(c, AmqpSession)]
        return sessions[0].context.topology


def test_durable_bindings_work_after_a_restart_and_others_are_gone(node: Node) -> None:
    channel = node.start()
    for name, kind in (("source", "topic"), ("second", "headers")):
        channel.exchange_declare(name, kind, durable=True)
    channel.exchange_declare("passing", "fanout")
    channel.queue_declare("kept", durable=True)
    channel.queue_declare("passing")
    matched = {"x-match": "all", "number": 5, "text": "t\u00e9xt", "flag": True, "time": datetime(2026, 1, 1)}
    channel.exchange_bind("second", "source", "to.*")
    channel.queue_bind("kept", "second", arguments=matched)
    channel.queue_bind("kept", "second", arguments={"x-match": "all", "other": Decimal("1.5")})
    channel.queue_bind("kept", "source", "twice.#")
    channel.queue_bind("kept", "source", "unbound")
    channel.queue_unbind("kept", "source", "unbound")
    channel.queue_bind("kept", "passing")
    channel.queue_bind("passing", "source", "#")

    channel = node.restart()

    channel.confirm_delivery()
    headers = {name: value for name, value in matched.items() if name != "x-match"}
    for body, key, found in (
        (b"matched", "to.second", headers),
        (b"other", "to.second", {"other": Decimal("1.5")}),
        (b"direct", "twice.or.more", {}),
    ):
        channel.basic_publish("source", key, body, pika.BasicProperties(headers=found), mandatory=True)
    for key, found in (("unbound", {}), ("to.second", {**headers, "number": 6}), ("anything", {})):
        with pytest.raises(UnroutableError):
            channel.basic_publish("source", key, b"lost", pika.BasicProperties(headers=found), mandatory=True)
    assert take_all(channel, "kept") == ["matched", "other", "direct"]
    # A binding that was found can be taken away like one that was made.
    channel.queue_unbind("kept", "second", arguments=matched)
    channel.exchange_delete("second")
    channel = node.restart()
    channel.confirm_delivery()
    with pytest.raises(UnroutableError):
        channel.basic_publish("source", "to.second", b"lost", pika.BasicProperties(headers=headers), mandatory=True)
    channel.basic_publish("source", "twice", b"direct", mandatory=True)


def test_what_is_not_durable_is_gone_after_a_restart(node: Node, connect: Callable[..., Any]) -> None:
    channel = node.start()
    channel.queue_declare("passing")
    channel.queue_declare("exclusive", durable=True, exclusive=True)
    channel.queue_declare("kept", durable=True)
    keep(channel, "exclusive", "message")
    keep(channel, "passing", "message")
    publish(channel, "kept", "passing 0")
    keep(channel, "kept", "kept")
    publish(channel, "kept", "passing 1")

    channel = node.restart()

    assert take_all(channel, "kept") == ["kept*"]
    for queue in ("passing", "exclusive"):
        other = connect(node.now).channel()
        with channel_closed(404, f"NOT_FOUND - no queue '{queue}' in vhost '/'"):
            other.queue_declare(queue, passive=True)


def test_users_vhosts_permissions_and_policies_hold_after_a_restart(node: Node, open_channel: OpenChannel) -> None:
    node.start()

    async def change(authority: Authority) -> None:
        await authority.add_vhost("shop")
        await authority.add_user("dora", "secret", ["monitoring"])
        await authority.set_permission(Permission("dora", "shop", ".*", ".*", "^short$"))
        await authority.set_policy(Policy("short", "^short", {"max-length": 1}, "shop"))

    node.now.administer(change)
    channel = open_channel(node.now, "dora", "secret", "shop")
    channel.queue_declare("short", durable=True)
    channel.queue_declare("closed", durable=True)
    keep(channel, "short", "0")

    node.restart()

    channel = open_channel(node.now, "dora", "secret", "shop")
    keep(channel, "short", "1")
    assert take_all(channel, "short") == ["1"]
    text = "access to queue 'closed' in vhost 'shop' refused for user 'dora'"
    with channel_closed(403, f"ACCESS_REFUSED - {text}"):
        get(channel, "closed")
    assert node.now.call(lambda node: node.hub.authority.access.user("dora").tags) == ("monitoring",)
    with pytest.raises(ProbableAuthenticationError):
        open_channel(node.now, "dora", "wrong", "shop")


def test_a_deleted_vhost_leaves_nothing_behind(node: Node, open_channel: OpenChannel) -> None:
    node.start()
    for _ in range(2):
        node.now.administer(lambda authority: authority.add_vhost("shop"))
        node.now.allow_all("guest", "shop")
        channel = open_channel(node.now, vhost="shop")
        channel.exchange_declare("exchange", "fanout", durable=True)
        channel.queue_declare("queue", durable=True)
        channel.queue_bind("queue", "exchange")
        assert count(channel, "queue") == 0
        keep(channel, "queue", "message")
        node.now.administer(lambda authority: authority.delete_vhost("shop"))
        node.restart()
    assert node.now.call(lambda node: node.hub.authority.access.vhosts) == ["/"]


def test_messages_are_the_same_after_a_restart(node: Node) -> None:
    channel = node.start()
    channel.queue_declare("queue", durable=True)
    channel.confirm_delivery()
    headers = {"text": "t\u00e9xt", "list": [1, {"two": None}], "time": datetime(2026, 1, 1), "bytes": b"\xff"}
    properties = pika.BasicProperties(
        "text/plain",
        "utf-8",
        headers,
        2,
        5,
        "correlation",
        "reply",
        "60000",
        "id",
        1_700_000_000,
        "type",
        "guest",
        "app",
    )
    channel.basic_publish("amq.direct", "nowhere", b"lost", properties)
    channel.queue_bind("queue", "amq.direct", "key")
    channel.basic_publish("amq.direct", "key", bytes(range(256)), properties)
    channel.basic_publish("", "queue", b"", pika.BasicProperties(delivery_mode=2))

    channel = node.restart()

    full, empty = get(channel, "queue"), get(channel, "queue")
    assert full is not None
    assert empty is not None
    assert (full.body, full.method.exchange, full.method.routing_key) == (bytes(range(256)), "amq.direct", "key")
    assert full.properties.encode() == properties.encode()
    assert (empty.body, empty.method.exchange, empty.method.routing_key) == (b"", "", "queue")


# Limits


def test_messages_are_dead_lettered_on_time_after_a_restart(node: Node) -> None:
    channel = node.start()
    channel.queue_declare("dead", durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("delay", durable=True, arguments={**arguments, "x-message-ttl": 300})
    channel.queue_declare("late", durable=True, arguments=arguments)
    keep(channel, "delay", "0", "1")
    keep(channel, "late", "2", expiration="300")

    channel = node.restart()

    wait_for_count(channel, "dead", 3)
    assert sorted(take_all(channel, "dead")) == ["0", "1", "2"]
    assert count(channel, "delay") == count(channel, "late") == 0


def test_a_limit_on_bytes_counts_what_was_there_before_a_restart(node: Node) -> None:
    channel = node.start()
    channel.queue_declare("drops", durable=True, arguments={"x-max-length-bytes": 10})
    refusing = {"x-max-length-bytes": 10, "x-overflow": "reject-publish"}
    channel.queue_declare("refuses", durable=True, arguments=refusing)
    for queue in ("drops", "refuses"):
        keep(channel, queue, "0000", "1111")

    channel = node.restart()

    keep(channel, "drops", "2222")
    assert take_all(channel, "drops") == ["1111*", "2222"]
    with pytest.raises(NackError):
        keep(channel, "refuses", "2222")
    assert get(channel, "refuses", auto_ack=True) is not None
    keep(channel, "refuses", "2222")
    assert take_all(channel, "refuses") == ["1111*", "2222"]
    keep(channel, "drops", "3333", "4444", "5555")
    assert take_all(channel, "drops") == ["4444", "5555"]


def test_a_new_limit_on_bytes_counts_what_was_there_before_a_restart(node: Node) -> None:
    channel = node.start()
    channel.queue_declare("queue", durable=True)
    keep(channel, "queue", "0000", "1111", "2222", "3333")
    channel = node.restart()
    assert get(channel, "queue", auto_ack=True) is not None
    publish(channel, "queue", "4444")

    node.now.administer(lambda authority: authority.set_policy(Policy("short", "", {"max-length-bytes": 10})))

    wait_for_count(channel, "queue", 2)
    assert take_all(channel, "queue") == ["3333*", "4444"]


def test_a_limit_on_length_counts_what_was_there_before_a_restart(node: Node) -> None:
    channel = node.start()
    channel.queue_declare("queue", durable=True, arguments={"x-max-length": 2})
    keep(channel, "queue", "0", "1", "2")

    channel = node.restart()

    keep(channel, "queue", "3")
    assert take_all(channel, "queue") == ["2*", "3"]


def test_priorities_hold_across_a_restart(node: Node) -> None:
    channel = node.start()
    channel.queue_declare("queue", durable=True, arguments={"x-max-priority": 5})
    for priority in (1, 5, 3):
        keep(channel, "queue", f"{priority} before", priority=priority)

    channel = node.restart()

    for priority in (3, 9, 0):
        keep(channel, "queue", f"{priority} after", priority=priority)
    assert take_all(channel, "queue") == ["5 before*", "9 after", "3 before*", "3 after", "1 before*", "0 after"]


# Crashes


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServeProcess]:
    with ServeProcess(tmp_path, store="embedded") as process:
        yield process


def test_what_was_confirmed_is_there_after_a_crash_in_its_order(
    process: ServeProcess, open_channel: OpenChannel
) -> None:
    channel = open_channel(process)
    channel.queue_declare("queue", durable=True)
    channel.queue_declare("passing")
    bodies = [str(number) for number in range(200)]
    keep(channel, "queue", *bodies)
    publish(channel, "passing", "gone")
    acknowledged = [take(channel, "queue") for _ in range(50)]
    channel.basic_ack(acknowledged[-1].tag, multiple=True)
    unacked = [take(channel, "queue") for _ in range(10)]
    assert len(unacked) == 10
    # An acknowledgement is in the store at the latest with a confirm that comes after it.
    keep(channel, "queue", "last")

    process.kill()
    process.start()

    channel = open_channel(process)
    assert take_all(channel, "queue") == [f"{body}*" for body in [*bodies[50:], "last"]]


def test_a_transaction_that_was_committed_is_there_after_a_crash(
    process: ServeProcess, open_channel: OpenChannel
) -> None:
    channel = open_channel(process)
    channel.queue_declare("from", durable=True)
    channel.queue_declare("to", durable=True)
    keep(channel, "from", "0", "1")
    channel.tx_select()
    for body in (b"moved", b"not committed"):
        channel.basic_ack(take(channel, "from").tag)
        channel.basic_publish("", "to", body, pika.BasicProperties(delivery_mode=2))
        if body == b"moved":
            channel.tx_commit()

    process.kill()
    process.start()

    channel = open_channel(process)
    assert take_all(channel, "from") == ["1*"]
    assert take_all(channel, "to") == ["moved*"]


def test_a_dead_letter_is_in_one_of_its_queues_whenever_the_node_is_killed(
    process: ServeProcess, open_channel: OpenChannel
) -> None:
    bodies = [str(number) for number in range(300)]
    channel = open_channel(process)
    channel.queue_declare("dead", durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("queue", durable=True, arguments=arguments)
    keep(channel, "queue", *bodies)
    for number in (20, 80, 200):
        consumer = Consumer(channel, "queue")
        consumer.wait_for(number)
        for delivery in consumer.deliveries[:number]:
            channel.basic_reject(delivery.tag, requeue=False)
        channel.connection.process_data_events(0)
        process.kill()
        process.start()
        channel = open_channel(process)
        dead = count(channel, "dead")
        assert count(channel, "queue") + dead == len(bodies)
    assert sorted(take_all(channel, "queue") + take_all(channel, "dead")) == sorted([f"{body}*" for body in bodies])


# Backlogs that are larger than the memory for them


LARGE = 20_000


def large(number: int) -> str:
    return f"{number:06}" + "x" * LARGE


def number_of(text: str) -> int:
    return int(text[:6])


def test_a_backlog_beyond_memory_comes_in_order_while_publishing_goes_on(
    node: Node, open_channel: OpenChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flyball.broker.core.store_reader.LOAD_BYTES", 256 * 1024)
    channel = node.start(resident_bytes="1MiB")
    channel.queue_declare("queue", durable=True)
    publisher = open_channel(node.now)
    keep(publisher, "queue", *[large(number) for number in range(300)])
    assert node.now.call(lambda node: node.hub.broker.engine.resident_bytes) < 2 * 1024 * 1024
    channel.basic_qos(prefetch_count=10)
    consumer = Consumer(channel, "queue")
    for number in range(600):
        if number % 2 == 0:
            keep(publisher, "queue", large(300 + number // 2))
        consumer.wait_for(number + 1)
        channel.basic_ack(consumer.deliveries[number].tag)
        assert node.now.call(lambda node: node.hub.broker.engine.resident_bytes) < 2 * 1024 * 1024
    assert [number_of(text) for text in consumer.texts] == list(range(600))
    assert count(channel, "queue") == 0


def test_messages_beyond_memory_can_be_requeued_and_become_dead_letters(node: Node) -> None:
    channel = node.start(resident_bytes="1MiB")
    channel.queue_declare("dead", durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("queue", durable=True, arguments=arguments)
    keep(channel, "queue", *[large(number) for number in range(200)])
    channel.basic_qos(prefetch_count=100)
    first = Consumer(channel, "queue")
    first.wait_for(100)
    first.cancel()
    channel.basic_nack(first.last.tag, multiple=True, requeue=True)
    second = Consumer(channel, "queue")
    assert [(number_of(text), text[-1]) for text in second.wait_for(100)] == [(n, "*") for n in range(100)]
    channel.basic_nack(second.last.tag, multiple=True, requeue=False)
    second.wait_for(200)
    channel.basic_nack(second.last.tag, multiple=True, requeue=False)
    wait_for_count(channel, "dead", 200)
    assert count(channel, "queue") == 0
    channel = node.restart()
    assert [number_of(text) for text in take_all(channel, "dead")] == list(range(200))


def test_a_limit_drops_the_oldest_though_they_are_not_in_memory(node: Node) -> None:
    channel = node.start(resident_bytes="1MiB")
    channel.queue_declare("dead", durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-max-length": 200}
    channel.queue_declare("queue", durable=True, arguments=arguments)
    keep(channel, "queue", *[large(number) for number in range(250)])
    wait_for_count(channel, "dead", 50)
    assert [number_of(text) for text in take_all(channel, "dead")] == list(range(50))
    assert [number_of(text) for text in take_all(channel, "queue")] == list(range(50, 250))


def test_messages_beyond_memory_expire_on_time(node: Node) -> None:
    channel = node.start(resident_bytes="1MiB")
    channel.queue_declare("dead", durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-message-ttl": 1500}
    channel.queue_declare("queue", durable=True, arguments=arguments)
    keep(channel, "queue", *[large(number) for number in range(150)])
    wait_for_count(channel, "dead", 150)
    assert count(channel, "queue") == 0


# A store that is unavailable


TIME_LIMIT_S = 2.0


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[ServeProcess]:
    """A node that waits for its store only two seconds."""
    with ServeProcess(tmp_path, store="embedded", store_time_limit_s=TIME_LIMIT_S) as process:
        yield process


def test_confirms_wait_for_a_store_that_is_away_and_nothing_else_does(
    tmp_path: Path, hasty: ServeProcess, open_channel: OpenChannel
) -> None:
    channel = open_channel(hasty)
    channel.queue_declare("queue", durable=True)
    with Peer(*hasty.address("amqp")) as publisher:
        publisher.open()
        publisher.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
        go_on = frozen(tmp_path)
        try:
            for body in (b"0", b"1"):
                publisher.publish(body, routing_key="queue", properties=spec.BasicProperties(delivery_mode=2))
            with pytest.raises(TimeoutError):
                publisher.read_frame(timeout_s=2 * TIME_LIMIT_S)
            # It has arrived all the same, and others are served.
            publish(channel, "queue", "passing")
            wait_for_count(channel, "queue", 3)
        finally:
            go_on()
        confirmed = 0
        while confirmed < 2:
            confirmed = publisher.expect(spec.Basic.Ack).delivery_tag
    hasty.kill()
    hasty.start()
    assert take_all(open_channel(hasty), "queue") == ["0*", "1*"]


def test_declaration_fails_while_the_store_is_unavailable(
    tmp_path: Path, hasty: ServeProcess, open_channel: OpenChannel
) -> None:
    channel, other = open_channel(hasty), open_channel(hasty)
    go_on = frozen(tmp_path)
    try:
        with pytest.raises(ConnectionClosedByBroker) as closed:
            channel.queue_declare("queue", durable=True)
        # What does not need the store goes on.
        other.queue_declare("passing")
        publish(other, "passing", "body")
        assert take_all(other, "passing") == ["body"]
    finally:
        go_on()
    assert closed.value.reply_code == 541
    ThorBangPeer(hasty.connect("thorbang")).wait_for_the_store()
    channel = open_channel(hasty)
    channel.queue_declare("queue", durable=True)
    keep(channel, "queue", "body")
    assert hasty.stop()[0] == 0
    hasty.start()
    assert take_all(open_channel(hasty), "queue") == ["body*"]


def channel_to_messages_in_the_store(node: ServeProcess, open_channel: OpenChannel) -> Any:
    """Leave two messages in a queue that the node has not in memory."""
    channel = open_channel(node)
    channel.queue_declare("queue", durable=True)
    keep(channel, "queue", "0", "1")
    assert node.stop() == (0, "")
    node.start()
    return open_channel(node)


def test_a_consumer_waits_for_a_store_that_is_away(
    tmp_path: Path, hasty: ServeProcess, open_channel: OpenChannel
) -> None:
    channel = channel_to_messages_in_the_store(hasty, open_channel)
    go_on = frozen(tmp_path)
    try:
        consumer = Consumer(channel, "queue")
        assert consumer.settle() == []
    finally:
        go_on()
    assert consumer.wait_for(2) == ["0*", "1*"]


def test_a_get_that_needs_a_store_that_is_away_fails_in_time(
    tmp_path: Path, hasty: ServeProcess, open_channel: OpenChannel
) -> None:
    channel = channel_to_messages_in_the_store(hasty, open_channel)
    go_on = frozen(tmp_path)
    try:
        with pytest.raises(ConnectionClosedByBroker) as closed:
            channel.basic_get("queue")
    finally:
        go_on()
    assert (closed.value.reply_code, f"within {TIME_LIMIT_S:g} s" in closed.value.reply_text) == (541, True)
    ThorBangPeer(hasty.connect("thorbang")).wait_for_the_store()
    assert take_all(open_channel(hasty), "queue") == ["0*", "1*"]


def test_recovered_messages_are_redelivered_as_in_rabbitmq(node: Node) -> None:
    """RabbitMQ 3.10 marks everything that a restart finds, delivered or not."""
    channel = node.start()
    channel.queue_declare("q", durable=True)
    keep(channel, "q", "delivered", "ready")
    assert take(channel, "q").text == "delivered"
    channel = node.restart()
    keep(channel, "q", "new")
    assert [take(channel, "q").text for _ in range(3)] == ["delivered*", "ready*", "new"]
    # Requeued, they are redelivered whether they were recovered or not.
    channel.basic_nack(0, multiple=True)
    assert [take(channel, "q").text for _ in range(3)] == ["delivered*", "ready*", "new*"]
