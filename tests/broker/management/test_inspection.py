"""A node's statistics are what its clients have done."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pika
import pytest

from flyball.broker.management import inspection
from flyball.broker.management import totals as counting
from flyball.broker.management.domain_nodes import DomainNodes
from flyball.broker.management.inspection import Facts
from flyball.broker.management.node_sampler import Sampler
from flyball.broker.management.totals import COUNTERS, GAUGES, Totals
from flyball.broker.node.node import Node
from tests.broker.peers import ThorBangPeer
from tests.nodes import RunningNode

PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    with RunningNode(tmp_path, store="memory", name="north", trace="on") as node:
        yield node


@pytest.fixture
def connection(node: RunningNode) -> Iterator[Any]:
    host, port = node.address("amqp")
    parameters = pika.ConnectionParameters(host, port, heartbeat=0, client_properties={"connection_name": "shop"})
    connection = pika.BlockingConnection(parameters)
    yield connection
    if connection.is_open:
        connection.close()


def totals(node: RunningNode) -> Totals:
    return node.run(counting.totals)


def listing(what: str, node: Node) -> Coroutine[Any, Any, list[Facts]]:
    return DomainNodes(node, Sampler(node)).list_all(what)


def listed(node: RunningNode, what: str) -> list[Facts]:
    """Return a list of the node, which is alone."""
    return node.run(partial(listing, what))


def queue(node: RunningNode, name: str) -> Facts:
    return next(facts for facts in listed(node, "queues") if facts["name"] == name)


def exchange_published(node: RunningNode) -> dict[tuple[str, str], int]:
    return node.call(lambda found: found.hub.broker.meters.exchanges)


def counted(facts: Facts, *names: str) -> list[Any]:
    return [facts[name] for name in names]


def publish(channel: Any, queue_name: str, count: int = 1, **options: Any) -> None:
    for _ in range(count):
        channel.basic_publish("", queue_name, b"body", PERSISTENT, **options)


def test_a_message_is_counted_on_its_whole_way(node: RunningNode, connection: Any) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True)
    channel.basic_qos(prefetch_count=2)
    publish(channel, "orders", 3)
    seen: list[int] = []
    channel.basic_consume("orders", lambda _, method, *__: seen.append(method.delivery_tag))
    while len(seen) < 2:
        connection.process_data_events(1)
    channel.basic_ack(seen[0])
    channel.basic_nack(seen[1], requeue=True)
    while len(seen) < 4:
        connection.process_data_events(1)
    facts = queue(node, "orders")
    assert counted(facts, "published", "delivered", "redelivered", "acknowledged") == [3, 4, 1, 1]
    assert counted(facts, "ready", "unacked", "messages", "consumers", "in_memory") == [0, 2, 2, 1, 0]
    (told,) = listed(node, "channels")
    stats = told["message_stats"]
    assert counted(stats, "publish", "confirm", "deliver_get", "ack", "redeliver") == [3, 3, 4, 1, 1]
    assert counted(told, "messages_unacknowledged", "messages_unconfirmed") == [2, 0]
    assert counted(told, "prefetch_count", "consumer_count") == [2, 1]
    assert (told["confirm"], told["transactional"]) == (True, False)
    found = totals(node)
    assert (found.published, found.confirmed, found.routed) == (3, 3, 3)
    assert (found.delivered, found.redelivered, found.acknowledged) == (4, 1, 1)
    assert (found.ready, found.unacked, found.queues, found.consumers) == (0, 2, 1, 1)
    assert (found.connections, found.channels) == (1, 1)
    assert exchange_published(node) == {("/", ""): 3}


def test_deliveries_without_acknowledgement_are_counted_apart(node: RunningNode, connection: Any) -> None:
    channel = connection.channel()
    channel.queue_declare("orders")
    seen: list[bytes] = []
    channel.basic_consume("orders", lambda *given: seen.append(given[3]), auto_ack=True)
    publish(channel, "orders", 2)
    while len(seen) < 2:
        connection.process_data_events(1)
    facts = queue(node, "orders")
    assert counted(facts, "delivered", "delivered_no_ack", "acknowledged", "unacked") == [0, 2, 0, 0]


def test_gets_are_counted_and_those_that_find_nothing_too(node: RunningNode, connection: Any) -> None:
    channel = connection.channel()
    channel.queue_declare("orders")
    channel.basic_get("orders")
    publish(channel, "orders", 2)
    method, _, _ = channel.basic_get("orders")
    channel.basic_ack(method.delivery_tag)
    channel.basic_get("orders", auto_ack=True)
    facts = queue(node, "orders")
    assert counted(facts, "got", "got_no_ack", "acknowledged") == [1, 1, 1]
    assert totals(node).get_empty == 1


def test_messages_that_no_queue_gets_are_counted(node: RunningNode, connection: Any) -> None:
    channel = connection.channel()
    channel.exchange_declare("news")
    channel.basic_publish("news", "nobody", b"")
    channel.basic_publish("news", "nobody", b"", mandatory=True)
    channel.basic_publish("", "nobody", b"")
    channel.tx_select()
    channel.basic_publish("news", "nobody", b"", mandatory=True)
    channel.tx_commit()
    found = totals(node)
    assert (found.published, found.unroutable_dropped, found.unroutable_returned, found.routed) == (4, 2, 2, 0)
    assert exchange_published(node) == {("/", "news"): 3, ("/", ""): 1}
    channel.exchange_delete("news")
    assert exchange_published(node) == {("/", ""): 1}
    assert totals(node).published == 4


def test_messages_that_expire_or_are_rejected_are_dropped_and_not_acknowledged(
    node: RunningNode, connection: Any
) -> None:
    channel = connection.channel()
    channel.queue_declare("orders", arguments={"x-max-length": 1})
    publish(channel, "orders", 3)
    method, _, _ = channel.basic_get("orders")
    channel.basic_reject(method.delivery_tag, requeue=False)
    channel.queue_declare("orders", passive=True)
    assert counted(queue(node, "orders"), "published", "acknowledged", "messages") == [3, 0, 0]
    assert totals(node).dropped == 3


def test_clients_of_the_research_protocols_are_counted_too(node: RunningNode) -> None:
    peer = ThorBangPeer(node.connect("thorbang"))
    client, orders = peer.set_up()
    peer.ask(f"MSG,{client},{client},{orders},1,0,hello")
    peer.ask(f"POPQ,{client},{orders},1")
    peer.ask(f"POPQ,{client},{orders},1")
    found = totals(node)
    assert (found.published, found.routed, found.got_no_ack, found.get_empty) == (1, 1, 1, 1)
    (facts,) = listed(node, "connections")
    assert counted(facts, "protocol", "user_who_performed_action", "state") == ["ThorBangMQ", "", "running"]


def test_what_deleted_queues_and_closed_connections_did_still_counts(node: RunningNode, connection: Any) -> None:
    channel = connection.channel()
    channel.queue_declare("orders")
    publish(channel, "orders")
    channel.basic_get("orders", auto_ack=True)
    channel.queue_delete("orders")
    before = totals(node)
    connection.close()
    node.wait_until(lambda _: not node.node.hub.connections)
    found = totals(node)
    assert (found.routed, found.got_no_ack) == (1, 1)
    assert (found.queues_created, found.queues_deleted, found.queues_declared, found.queues) == (1, 1, 1, 0)
    assert (found.connections_opened, found.connections_closed, found.connections) == (1, 1, 0)
    assert (found.channels_opened, found.channels_closed, found.channels) == (1, 1, 0)
    assert all(getattr(found, name) >= getattr(before, name) for name in COUNTERS)
    assert found.read_bytes > 0
    assert found.written_bytes > 0


def test_a_connection_tells_who_and_where_it_is(node: RunningNode, connection: Any) -> None:
    connection.channel()
    (facts,) = listed(node, "connections")
    host, port = node.address("amqp")
    assert facts["name"] == f"127.0.0.1:{facts['peer_port']} -> {host}:{port}"
    assert counted(facts, "node", "protocol", "user", "vhost") == ["north", "AMQP 0-9-1", "guest", "/"]
    assert counted(facts, "state", "channels", "ssl") == ["running", 1, False]
    assert facts["client_properties"]["connection_name"] == "shop"
    assert facts["auth_mechanism"] == "PLAIN"
    assert facts["recv_oct"] > 0
    assert facts["connected_at"] > 1e12


def test_a_consumer_tells_its_queue_and_its_window(node: RunningNode, connection: Any) -> None:
    channel = connection.channel()
    channel.queue_declare("orders", arguments={"x-single-active-consumer": True})
    for number in (1, 2):
        channel.basic_consume("orders", print, consumer_tag=f"c{number}", arguments={"x-prefetch": Decimal("2.5")})
    first, second = listed(node, "consumers")
    assert first["queue"] == {"name": "orders", "vhost": "/"}
    assert counted(first, "consumer_tag", "prefetch_count", "ack_required") == ["c1", 2.5, True]
    assert (first["active"], second["active"]) == (True, False)
    assert first["arguments"] == {"x-prefetch": 2.5}
    channel_details = first["channel_details"]
    assert channel_details["name"] == f"{channel_details['connection_name']} (1)"
    assert queue(node, "orders")["active_consumer"] == "c1"


def test_a_queue_tells_how_it_was_declared_and_whose_it_is(node: RunningNode, connection: Any) -> None:
    channel = connection.channel()
    channel.queue_declare("orders", exclusive=True, arguments={"x-message-ttl": 60_000})
    publish(channel, "orders")
    channel.queue_declare("orders", passive=True)
    facts = queue(node, "orders")
    (own,) = listed(node, "connections")
    assert (facts["owner"], facts["exclusive"], facts["durable"]) == (own["name"], True, False)
    assert (facts["arguments"], facts["type"]) == ({"x-message-ttl": 60_000}, "classic")
    assert (facts["ready"], facts["ready_bytes"], facts["node"]) == (1, 4, "north")
    assert 0 <= facts["head_age_s"] < 60


def test_the_totals_of_many_queues_are_counted_in_slices(
    node: RunningNode, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "SLICE", 2)
    # The test takes the turns itself.
    monkeypatch.setattr(counting, "next_slice", lambda: asyncio.sleep(0))
    channel = connection.channel()
    for number in range(5):
        channel.queue_declare(f"q{number}")
        publish(channel, f"q{number}")
    channel.queue_declare("q4", passive=True)

    async def while_one_goes(_: object) -> tuple[Totals, Totals]:
        going = counting.totals(node.node)
        # It is deleted after the count of the queues has begun, and before it has come so far.
        first = going.send(None)
        assert first is None
        last = node.node.hub.broker.engine.find_queue("q4")
        assert last is not None
        node.node.topology.lifecycle.delete(last.queue.id, lambda error: None)
        while True:
            try:
                going.send(None)
            except StopIteration as ended:
                return ended.value, await counting.totals(node.node)

    during, after = node.run(while_one_goes)
    assert (during.routed, after.routed) == (5, 5)
    assert (during.queues, after.queues) == (5, 4)


LISTS = ("queues", "connections", "channels", "consumers")


@pytest.mark.parametrize(
    "telling", [partial(listing, "channels"), partial(listing, "consumers"), inspection.channel_totals]
)
def test_the_channels_of_one_connection_are_told_in_slices(
    node: RunningNode, connection: Any, monkeypatch: pytest.MonkeyPatch, telling: Callable[[Node], Any]
) -> None:
    monkeypatch.setattr(inspection, "SLICE", 2)
    monkeypatch.setattr(inspection, "next_slice", lambda: asyncio.sleep(0))
    for number in range(5):
        channel = connection.channel()
        channel.queue_declare(f"q{number}")
        channel.basic_consume(f"q{number}", print)

    async def turns(found: Node) -> int:
        told = telling(found)
        for turn in itertools.count():
            try:
                told.send(None)
            except StopIteration:
                return turn
        raise AssertionError("it ends")

    assert node.run(turns) == 2


def test_everything_told_fits_into_json(node: RunningNode, connection: Any) -> None:
    channel = connection.channel()
    channel.queue_declare("orders")
    channel.basic_consume("orders", print)
    for what in LISTS:
        assert json.loads(json.dumps(listed(node, what)))
    assert json.loads(json.dumps(node.call(inspection.node_facts)))["name"] == "north"
    told = json.loads(json.dumps(node.call(inspection.latencies)))
    assert told["create_queue"]["count"] == 1
    assert set(totals(node).by_name()) == {"at_s", *COUNTERS, *GAUGES}


def test_a_node_that_is_well_has_no_alarms(node: RunningNode) -> None:
    facts = node.call(inspection.node_facts)
    assert facts["alarms"] == []
    assert facts["memory_bytes"] > 10_000_000
    assert facts["open_files"] > 3
    assert set(facts["addresses"]) == {"amqp", "telesto", "thorbang"}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"caf\xc3\xa9", "café"),
        (Decimal("1.5"), 1.5),
        (float("inf"), "inf"),
        (datetime(2026, 1, 1, tzinfo=UTC), 1767225600),
        ({"a": [b"b", {"c": None}]}, {"a": ["b", {"c": None}]}),
        ({"caf\udce9": "\udcff"}, {"caf\ufffd": "\ufffd"}),
    ],
)
def test_values_of_amqp_are_told_as_json_can_say_them(value: object, told: object) -> None:
    assert inspection.plain(value) == told
