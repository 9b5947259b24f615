"""Queues are listed, found and described as RabbitMQ does it."""

from __future__ import annotations

from typing import Any

import pika
import pytest

from flyball.broker.management import inspection
from flyball.broker.management.api import queues
from flyball.broker.management.api.context import ApiContext
from flyball.broker.node.node import Node
from flyball.model import Policy
from tests.broker.management.api.conftest import Api
from tests.nodes import RunningNode


def test_a_queue_tells_its_declaration_its_messages_and_what_happened(api: Api, channel: Any) -> None:
    channel.queue_declare("described", durable=True, arguments={"x-max-length": 10})
    for _ in range(3):
        channel.basic_publish("", "described", b"12345")
    channel.basic_get("described")
    found = api.until("/queues/%2F/described", lambda queue: queue["messages_unacknowledged"] == 1)
    assert {
        name: found[name] for name in ("name", "vhost", "durable", "auto_delete", "exclusive", "type", "node")
    } == {
        "name": "described",
        "vhost": "/",
        "durable": True,
        "auto_delete": False,
        "exclusive": False,
        "type": "classic",
        "node": "north",
    }
    assert found["arguments"] == {"x-max-length": 10}
    assert (found["messages"], found["messages_ready"], found["message_bytes_ready"]) == (3, 2, 10)
    assert (found["message_bytes"], found["message_bytes_unacknowledged"]) == (15, 5)
    assert (found["message_bytes_ram"], found["message_bytes_paged_out"]) == (15, 0)
    stats = found["message_stats"]
    assert (stats["publish"], stats["get"], stats["deliver_get"]) == (3, 1, 1)
    assert stats["publish_details"].keys() == {"rate"}


def test_bytes_that_cost_too_much_to_count_are_left_out(
    api: Api, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "MAX_MEASURED", 1)
    channel.queue_declare("much-out")
    for _ in range(3):
        channel.basic_publish("", "much-out", b"12345")
    for _ in range(2):
        channel.basic_get("much-out")
    found = api.until("/queues/%2F/much-out", lambda queue: queue["messages_unacknowledged"] == 2)
    told = {name: value for name, value in found.items() if name.startswith("message_bytes")}
    assert told == {"message_bytes_ready": 5, "message_bytes_paged_out": 0}


def test_of_messages_that_are_not_in_memory_no_bytes_are_told(
    api: Api, channel: Any, console_node: RunningNode
) -> None:
    channel.queue_declare("partly-out", durable=True)
    for _ in range(3):
        channel.basic_publish("", "partly-out", b"12345", pika.BasicProperties(delivery_mode=2))
    api.until("/queues/%2F/partly-out", lambda queue: queue["messages"] == 3)

    def evict(node: Node) -> bool:
        engine = node.hub.broker.engine
        state = engine.find_queue("partly-out", "/")
        evicted = [] if state is None else state.evict(1, 0)
        engine.resident_bytes -= sum(message.footprint_bytes for message in evicted)
        return bool(evicted)

    # As soon as the store has them.
    console_node.wait_until(evict)
    found = api.get("/queues/%2F/partly-out")
    assert found["messages_paged_out"] > 0
    told = {name: value for name, value in found.items() if name.startswith("message_bytes")}
    assert told == {"message_bytes_ready": 15, "message_bytes_unacknowledged": 0, "message_bytes": 15}


def test_names_may_hold_slashes_spaces_and_percent_signs(api: Api, channel: Any) -> None:
    for name, encoded in (("a/b", "a%2Fb"), ("a b", "a%20b"), ("50%25", "50%2525"), ("ü", "%C3%BC")):
        channel.queue_declare(name)
        assert api.get(f"/queues/%2F/{encoded}")["name"] == name


def test_a_queue_that_is_not_there_is_not_found(api: Api) -> None:
    answer = api.ask("/queues/%2F/nothing")
    assert answer.status_code == 404
    assert answer.json()["error"] == "Object Not Found"
    assert "nothing" in answer.json()["reason"]
    assert answer.json()["advice"]


def test_a_vhost_that_is_not_there_is_not_found(api: Api) -> None:
    assert api.ask("/queues/nowhere").status_code == 404


def test_a_list_covers_all_vhosts_or_one(api: Api, channel: Any) -> None:
    channel.queue_declare("listed")
    assert "listed" in api.names("/queues")
    assert "listed" in api.names("/queues/%2F")


def test_a_page_of_queues_is_sorted_by_what_is_wished(api: Api, channel: Any) -> None:
    for number in range(3):
        channel.queue_declare(f"sorted-{number}")
        for _ in range(number):
            channel.basic_publish("", f"sorted-{number}", b"")
    wish = "page=1&page_size=2&name=^sorted-&use_regex=true&sort=messages&sort_reverse=true&columns=name,messages"
    found = api.until(f"/queues/%2F?{wish}", lambda page: page["items"][0]["messages"] == 2)
    assert found["items"] == [{"name": "sorted-2", "messages": 2}, {"name": "sorted-1", "messages": 1}]
    assert (found["filtered_count"], found["page_count"]) == (3, 2)


def test_queues_are_sorted_by_how_fast_their_counts_grow(api: Api, channel: Any) -> None:
    for name in ("rated-0", "rated-1", "rated-2"):
        channel.queue_declare(name)
    rate = "message_stats.publish_details.rate"
    wish = f"page=1&name=^rated-&use_regex=true&sort={rate}&sort_reverse=true&columns=name,{rate}"

    def publish_and_look(page: dict[str, Any]) -> bool:
        channel.basic_publish("", "rated-1", b"")
        return bool(page["items"][0]["message_stats"]["publish_details"]["rate"] > 0)

    found = api.until(f"/queues?{wish}", publish_and_look)["items"]
    assert found[0]["name"] == "rated-1"
    assert found[1] == {"name": "rated-0", "message_stats": {"publish_details": {"rate": 0.0}}}
    # Without other fields it has the same form.
    assert api.get(f"/queues?page=1&name=rated-0&columns={rate}")["items"] == [
        {"message_stats": {"publish_details": {"rate": 0.0}}}
    ]


@pytest.mark.parametrize(
    "sort",
    [
        "name",
        "vhost",
        "state",
        "messages",
        "messages_ready",
        "messages_unacknowledged",
        "consumers",
        "messages_details.rate",
        "message_stats.publish",
        "message_stats.publish_details.rate",
        "message_stats.deliver_get_details.rate",
        "message_stats.ack_details.rate",
    ],
)
def test_a_sorted_page_makes_no_documents_of_queues_that_are_not_on_it(
    sort: str, api: Api, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        channel.queue_declare(f"paged-{number}")
    made: list[dict[str, Any]] = []
    document = queues.document

    def noted(context: ApiContext, facts: Any) -> dict[str, Any]:
        made.append(document(context, facts))
        return made[-1]

    monkeypatch.setattr(queues, "document", noted)
    page = api.get(f"/queues?page=1&page_size=1&name=paged-&sort={sort}")
    assert page["items"] == made
    assert len(made) == 1


def test_a_queue_names_its_consumers(api: Api, channel: Any) -> None:
    channel.queue_declare("consumed")
    channel.basic_qos(prefetch_count=7)
    channel.basic_consume("consumed", lambda *_: None, consumer_tag="reader")
    found = api.until("/queues/%2F/consumed", lambda queue: queue["consumers"] == 1)
    (consumer,) = found["consumer_details"]
    assert (consumer["consumer_tag"], consumer["prefetch_count"], consumer["ack_required"]) == ("reader", 7, True)
    assert consumer["queue"] == {"name": "consumed", "vhost": "/"}
    assert consumer["channel_details"]["connection_name"] in api.names("/connections")


def test_a_queue_names_the_consumer_that_has_it_for_itself(api: Api, channel: Any) -> None:
    channel.queue_declare("kept")
    assert api.get("/queues/%2F/kept")["exclusive_consumer_tag"] is None
    channel.basic_consume("kept", lambda *_: None, consumer_tag="only-one", exclusive=True)
    assert api.get("/queues/%2F/kept")["exclusive_consumer_tag"] == "only-one"
    channel.basic_cancel("only-one")
    assert api.get("/queues/%2F/kept")["exclusive_consumer_tag"] is None


def test_an_exclusive_queue_names_its_owner(api: Api, channel: Any) -> None:
    channel.queue_declare("owned", exclusive=True)
    owner = api.get("/queues/%2F/owned")["owner_pid_details"]
    assert owner["name"] in api.names("/connections")
    assert owner["peer_host"] == "127.0.0.1"


def test_the_policy_of_a_queue_is_shown_with_what_it_says(api: Api, channel: Any, console_node: RunningNode) -> None:
    channel.queue_declare("governed")
    console_node.administer(lambda authority: authority.set_policy(Policy("short", "^governed$", {"max-length": 5})))
    found = api.get("/queues/%2F/governed")
    assert (found["policy"], found["effective_policy_definition"]) == ("short", {"max-length": 5})


def test_a_rate_is_told_once_the_queue_was_looked_at_before(api: Api, channel: Any) -> None:
    channel.queue_declare("busy")

    def publish_and_look(queue: dict[str, Any]) -> bool:
        channel.basic_publish("", "busy", b"")
        return bool(queue["message_stats"]["publish_details"]["rate"] > 0)

    api.until("/queues/%2F/busy", publish_and_look)


def test_queues_whose_places_look_alike_have_rates_of_their_own(api: Api) -> None:
    busy, idle = "/queues/slashed%2Fa/b", "/queues/slashed/a%2Fb"
    for vhost, path in (("slashed%2Fa", busy), ("slashed", idle)):
        assert api.ask(f"/vhosts/{vhost}", "PUT").status_code == 201
        assert api.ask(path, "PUT", json={}).status_code == 201
    message = {"routing_key": "b", "payload": "", "payload_encoding": "string", "properties": {}}

    def is_busy(queue: Any) -> bool:
        api.ask("/exchanges/slashed%2Fa/amq.default/publish", "POST", json=message)
        return bool(queue["message_stats"]["publish_details"]["rate"] > 0)

    api.until(busy, is_busy)
    assert api.get(idle)["message_stats"]["publish_details"]["rate"] == 0
