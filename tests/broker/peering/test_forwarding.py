"""Two real nodes over one PostgreSQL: each serves any AMQP client, whichever node owns the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pika
import pytest

from flyball.broker.node.node import Node
from flyball.broker.store.registry import NodeState
from tests.broker.protocols.amqp.conftest import connect as connect
from tests.broker.protocols.amqp.conftest import open_channel as open_channel
from tests.nodes import ANSWER_LIMIT_S, RunningNode, ServeProcess

PERSISTENT = pika.BasicProperties(delivery_mode=2)


class Pair:
    """Two nodes with a channel each. What is declared by `there` is the second node's."""

    def __init__(self, first: RunningNode, second: RunningNode, open_channel: Callable[..., Any]) -> None:
        self.first, self.second = first, second
        self._open = open_channel
        self.here = open_channel(first)
        self.there = open_channel(second)

    def again(self) -> Any:
        """Return a new channel to the first node."""
        return self._open(self.first)

    def owner_of(self, name: str) -> list[int]:
        """Return which of the nodes serve a queue of that name."""
        return [
            place
            for place, node in enumerate((self.first, self.second), 1)
            if node.call(lambda node: node.hub.broker.engine.find_queue(name)) is not None
        ]


@pytest.fixture
def pair(tmp_path: Path, new_database: Callable[[], str], open_channel: Callable[..., Any]) -> Iterator[Pair]:
    store = new_database()
    with ExitStack() as nodes:
        first, second = (
            nodes.enter_context(RunningNode(tmp_path / name, store=store, name=name, lease_s=60))
            for name in ("one", "two")
        )
        yield Pair(first, second, open_channel)


def bodies_of(channel: Any, queue_name: str, count: int) -> list[bytes]:
    """Consume `count` messages and acknowledge them."""
    found: list[bytes] = []
    for method, _, body in channel.consume(queue_name, inactivity_timeout=ANSWER_LIMIT_S):
        assert method is not None, "no message came in time"
        found.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(found) == count:
            break
    channel.cancel()
    return found


def test_confirmed_messages_are_consumed_through_the_other_node(pair: Pair) -> None:
    pair.there.queue_declare("orders", durable=True)
    pair.here.confirm_delivery()
    for number in range(20):
        pair.here.basic_publish("", "orders", b"%d" % number, PERSISTENT, mandatory=True)
    assert pair.owner_of("orders") == [2]
    assert bodies_of(pair.here, "orders", 10) == [b"%d" % number for number in range(10)]
    assert bodies_of(pair.there, "orders", 10) == [b"%d" % number for number in range(10, 20)]


def test_consumer_selects_from_a_queue_of_the_other_node(pair: Pair) -> None:
    pair.there.queue_declare("orders", durable=True)
    pair.here.confirm_delivery()
    for number in range(6):
        headers = {"x-flyball-context": number % 2}
        pair.here.basic_publish("", "orders", b"%d" % number, pika.BasicProperties(headers=headers), mandatory=True)
    found = []
    selection = {"x-context": 1, "x-order": "newest", "x-prefetch": 1}
    for method, _, body in pair.here.consume("orders", inactivity_timeout=ANSWER_LIMIT_S, arguments=selection):
        assert method is not None, "no message came in time"
        found.append(body)
        pair.here.basic_ack(method.delivery_tag)
        if len(found) == 3:
            break
    assert found == [b"5", b"3", b"1"]


def test_both_nodes_know_one_queue_of_a_name(pair: Pair) -> None:
    pair.here.queue_declare("orders", durable=True)
    pair.there.queue_declare("orders", durable=True)
    assert pair.owner_of("orders") == [1]
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="inequivalent arg 'durable'"):
        pair.there.queue_declare("orders")


def test_bindings_made_at_one_node_lead_messages_of_the_other(pair: Pair) -> None:
    pair.there.exchange_declare("news", "topic", durable=True)
    pair.there.queue_declare("all", durable=True)
    pair.there.queue_bind("all", "news", "#")
    pair.here.queue_declare("mine", durable=True)
    pair.here.queue_bind("mine", "news", "sport.*")
    pair.here.confirm_delivery()
    pair.here.basic_publish("news", "sport.chess", b"1", PERSISTENT, mandatory=True)
    assert bodies_of(pair.here, "all", 1) == bodies_of(pair.here, "mine", 1) == [b"1"]


def test_what_one_node_has_answered_holds_at_the_other_at_once(pair: Pair) -> None:
    follow_only_when_asked(pair.first)
    pair.there.exchange_declare("news", "topic")
    pair.there.queue_declare("all")
    pair.there.queue_bind("all", "news", "#")
    pair.here.confirm_delivery()
    pair.here.basic_publish("news", "sport", b"1", mandatory=True)
    assert bodies_of(pair.there, "all", 1) == [b"1"]
    pair.there.queue_unbind("all", "news", "#")
    with pytest.raises(pika.exceptions.UnroutableError):
        pair.here.basic_publish("news", "sport", b"2", mandatory=True)
    pair.there.exchange_delete("news")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no exchange 'news'"):
        pair.here.basic_publish("news", "sport", b"3", mandatory=True)


def test_a_user_that_was_added_at_one_node_can_log_in_at_the_other_at_once(pair: Pair) -> None:
    follow_only_when_asked(pair.first)

    async def add(node: Node) -> None:
        await node.hub.authority.add_user("alice", "secret")
        await node.hub.peering.followed()

    pair.second.run(add)
    assert pair.first.call(lambda node: node.hub.authority.access.find_user("alice")) is not None


def follow_only_when_asked(node: RunningNode) -> None:
    """Let the node not follow what others change by itself."""
    node.call(lambda node: setattr(node.membership._news, "set", lambda: None))


def test_what_is_given_back_or_rejected_goes_where_the_owner_says(pair: Pair) -> None:
    pair.here.queue_declare("dead", durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    pair.there.queue_declare("orders", durable=True, arguments=arguments)
    pair.here.basic_publish("", "orders", b"1", PERSISTENT)
    method, _, _ = next(iter(pair.here.consume("orders")))
    pair.here.basic_nack(method.delivery_tag)
    method, _, body = next(iter(pair.here.consume("orders")))
    assert (body, method.redelivered) == (b"1", True)
    pair.here.basic_reject(method.delivery_tag, requeue=False)
    pair.here.cancel()
    assert bodies_of(pair.here, "dead", 1) == [b"1"]


def test_single_messages_purges_and_deletions_reach_the_owner(pair: Pair) -> None:
    pair.there.queue_declare("orders", durable=True)
    for body in (b"1", b"2", b"3"):
        pair.here.basic_publish("", "orders", body, PERSISTENT)
    method, _, body = pair.here.basic_get("orders")
    assert (body, method.message_count) == (b"1", 2)
    pair.here.basic_ack(method.delivery_tag)
    assert pair.here.queue_purge("orders").method.message_count == 2
    pair.here.basic_publish("", "orders", b"4", PERSISTENT)
    assert pair.here.queue_declare("orders", passive=True).method.message_count == 1
    assert pair.here.queue_delete("orders").method.message_count == 1
    assert pair.owner_of("orders") == []
    pair.here.queue_declare("orders", durable=True, auto_delete=True)
    assert pair.owner_of("orders") == [1]


def test_a_transaction_is_done_at_the_owner_when_it_is_answered(pair: Pair) -> None:
    pair.there.queue_declare("orders", durable=True)
    pair.here.tx_select()
    pair.here.basic_publish("", "orders", b"1", PERSISTENT)
    assert pair.there.queue_declare("orders", passive=True).method.message_count == 0
    pair.here.tx_commit()
    assert pair.there.queue_declare("orders", passive=True).method.message_count == 1
    method, _, _ = pair.here.basic_get("orders")
    pair.here.basic_ack(method.delivery_tag)
    pair.here.tx_commit()
    pair.here.connection.close()
    assert pair.there.queue_declare("orders", passive=True).method.message_count == 0


def test_exclusive_queues_and_consumers_keep_those_of_other_nodes_out(pair: Pair) -> None:
    pair.there.queue_declare("own", exclusive=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="exclusive access"):
        pair.here.queue_declare("own", exclusive=True)
    here = pair.again()
    pair.there.queue_declare("orders", durable=True)
    here.basic_consume("orders", lambda *_: None, exclusive=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="in exclusive use"):
        pair.there.basic_consume("orders", lambda *_: None)


def test_direct_replies_cross_nodes(pair: Pair) -> None:
    pair.there.queue_declare("orders", durable=True)
    replies: list[bytes] = []
    pair.here.basic_consume("amq.rabbitmq.reply-to", lambda *delivery: replies.append(delivery[3]), auto_ack=True)
    properties = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to")
    pair.here.basic_publish("", "orders", b"question", properties)
    _, asked, _ = next(iter(pair.there.consume("orders", auto_ack=True)))
    pair.there.basic_publish("", asked.reply_to, b"answer")
    pair.there.cancel()
    while not replies:
        pair.here.connection.process_data_events(time_limit=ANSWER_LIMIT_S)
    assert replies == [b"answer"]


def test_the_queues_of_a_killed_node_go_on_at_another_with_their_consumers(
    tmp_path: Path, new_database: Callable[[], str], open_channel: Callable[..., Any]
) -> None:
    store = new_database()
    with (
        RunningNode(tmp_path / "one", store=store, name="one") as one,
        ServeProcess(tmp_path / "two", store=store, name="two") as two,
    ):
        there, here = open_channel(two), open_channel(one)
        there.queue_declare("orders", durable=True)
        here.confirm_delivery()
        for number in range(10):
            here.basic_publish("", "orders", b"%d" % number, PERSISTENT)
        received: list[tuple[bytes, int]] = []
        here.basic_qos(prefetch_count=3)
        here.basic_consume("orders", lambda _, method, __, body: received.append((body, method.delivery_tag)))
        while len(received) < 3:
            here.connection.process_data_events(time_limit=ANSWER_LIMIT_S)
        two.kill()
        take_over(one)
        # What it held is void, and comes again; to acknowledge it does no harm.
        while len(received) < 6:
            here.connection.process_data_events(time_limit=ANSWER_LIMIT_S)
        here.basic_ack(received[2][1], multiple=True)
        while {body for body, _ in received} != {b"%d" % number for number in range(10)}:
            here.basic_ack(received[-1][1], multiple=True)
            here.connection.process_data_events(time_limit=ANSWER_LIMIT_S)
        here.basic_ack(received[-1][1], multiple=True)
        here.basic_publish("", "orders", b"after", PERSISTENT)
        while received[-1][0] != b"after":
            here.connection.process_data_events(time_limit=ANSWER_LIMIT_S)


def take_over(node: RunningNode) -> None:
    """Let the node declare all others dead, as soon as their leases are over, and serve their queues."""

    async def dead_letter() -> None:
        membership = node.node.membership
        registry = membership.registry
        for record in await registry.nodes():
            if record.id == membership.node_id or record.state is NodeState.DEAD:
                continue
            async with asyncio.timeout(ANSWER_LIMIT_S):
                # No event says when the lease of another node is over.
                while not await registry.declare_dead(record.id, record.epoch):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            mine = {remote.queue.id: membership.node_id for remote in node.node.topology.directory.of_node(record.id)}
            await registry.take_over(record.id, mine)
        await membership.catch_up()

    asyncio.run_coroutine_threadsafe(dead_letter(), node._loop).result(ANSWER_LIMIT_S)
