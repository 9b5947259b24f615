"""Messages are published and got over HTTP; what is answered is in the store."""

from __future__ import annotations

import base64
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from flyball.broker.core import memory
from flyball.broker.management.api import messages
from flyball.broker.management.part import console_part
from flyball.broker.management.slices import next_slice
from flyball.broker.node.node import Node
from flyball.broker.protocols.amqp.direct import direct_channel
from flyball.broker.wire.amqp import Properties, write_table
from flyball.model import User
from tests.nodes import ANSWER_LIMIT_S, Gate, RunningNode

Place = Callable[..., str]


def test_large_messages_are_shown_in_pieces(
    api: httpx.Client, place: Place, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "PIECE_BYTES", 3)
    monkeypatch.setattr(messages, "LARGE_BYTES", 3)
    payloads = ['ä"\\\n€' * 5, "plain", ""]
    for payload in payloads:
        publish(api, place, payload)
    publish(api, place, base64.b64encode(b"\xff" * 8).decode(), payload_encoding="base64")
    turns: list[None] = []

    async def counted() -> None:
        turns.append(None)
        await next_slice()

    monkeypatch.setattr(messages, "next_slice", counted)
    found = get(api, queue, "ack_requeue_true")
    assert [each["payload"] for each in found] == [*payloads, base64.b64encode(b"\xff" * 8).decode()]
    assert [each["payload_encoding"] for each in found] == ["string", "string", "string", "base64"]
    assert len(turns) >= 2 * len(payloads[0].encode()) // 3
    [cut] = get(api, queue, count=1, truncate=4)
    assert cut["payload"] == 'ä"\\'


@pytest.fixture
def queue(api: httpx.Client, place: Place) -> str:
    """The path of a queue, which is named q."""
    assert api.put(place("queues", "q"), json={}).status_code == 201
    return place("queues", "q")


def publish(api: httpx.Client, place: Place, text: str, **more: Any) -> httpx.Response:
    body = {"properties": {}, "routing_key": "q", "payload": text, "payload_encoding": "string", **more}
    return api.post(place("exchanges", "amq.default", "publish"), json=body)


def get(api: httpx.Client, queue: str, mode: str = "ack_requeue_false", **more: Any) -> list[dict[str, Any]]:
    body = {"count": 10, "ackmode": mode, "encoding": "auto", **more}
    answer = api.post(f"{queue}/get", json=body)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()
    return found


def test_a_long_text_may_be_published_but_not_a_document_with_a_million_parts(
    api: httpx.Client, place: Place, queue: str
) -> None:
    assert publish(api, place, '{"a": 1},' * 200_000).json() == {"routed": True}
    refused = publish(api, place, "", properties={"headers": {"list": [{}] * 400_000}})
    assert (refused.status_code, refused.json()["error"]) == (413, "too_large")


def test_messages_in_answers_count_until_they_are_sent(
    api: httpx.Client, place: Place, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        assert publish(api, place, "x" * 5000).json() == {"routed": True}
    monkeypatch.setattr(memory, "HTTP_BYTES", 8000)
    # Each counts with 2048 bytes in addition to its body: the second is one too many, and neither stays.
    for _ in range(2):
        assert len(get(api, queue)) == 2
    assert get(api, queue) == []


def test_what_was_answered_makes_room_for_more(
    api: httpx.Client, place: Place, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "HTTP_BYTES", 1000)
    for _ in range(3):
        assert publish(api, place, "x" * 500).json() == {"routed": True}
        refused = publish(api, place, "x" * 1000)
        assert (refused.status_code, refused.json()["error"]) == (413, "too_large"), "alone it is too much"


def test_a_message_comes_back_as_it_was_published(api: httpx.Client, place: Place, queue: str) -> None:
    properties = {
        "content_type": "text/plain",
        "content_encoding": "utf-8",
        "delivery_mode": 2,
        "priority": 4,
        "correlation_id": "c",
        "reply_to": "answers",
        "expiration": "60000",
        "message_id": "m",
        "timestamp": 1700000000,
        "type": "greeting",
        "user_id": "guest",
        "app_id": "tests",
        "headers": {"number": 1, "half": 0.5, "flag": True, "list": ["a", None], "table": {"b": "c"}},
    }
    assert publish(api, place, "grüezi", properties=properties).json() == {"routed": True}
    assert get(api, queue) == [
        {
            "payload_bytes": 7,
            "redelivered": False,
            "exchange": "",
            "routing_key": "q",
            "message_count": 0,
            "properties": properties,
            "payload": "grüezi",
            "payload_encoding": "string",
        }
    ]
    assert get(api, queue) == []


def test_bytes_that_are_no_text_go_both_ways_as_base64(api: httpx.Client, place: Place, queue: str) -> None:
    encoded = base64.b64encode(b"\xff\x00").decode()
    assert publish(api, place, encoded, payload_encoding="base64").json() == {"routed": True}
    publish(api, place, "text")
    assert [(message["payload"], message["payload_encoding"]) for message in get(api, queue, "ack_requeue_true")] == [
        (encoded, "base64"),
        ("text", "string"),
    ]
    assert [message["payload_encoding"] for message in get(api, queue, encoding="base64")] == ["base64", "base64"]


def test_a_long_payload_is_cut_where_a_character_ends(api: httpx.Client, place: Place, queue: str) -> None:
    publish(api, place, "aää")
    [message] = get(api, queue, truncate=2)
    assert (message["payload"], message["payload_encoding"], message["payload_bytes"]) == ("a", "string", 5)


@pytest.mark.parametrize(
    ("mode", "left", "is_redelivered"),
    [
        ("ack_requeue_true", ["0", "1", "2"], True),
        ("reject_requeue_true", ["0", "1", "2"], True),
        ("ack_requeue_false", ["2"], False),
        ("reject_requeue_false", ["2"], False),
    ],
)
def test_the_ackmode_says_what_becomes_of_messages(
    mode: str, left: list[str], is_redelivered: bool, api: httpx.Client, place: Place, queue: str
) -> None:
    for number in range(3):
        publish(api, place, str(number))
    assert [message["payload"] for message in get(api, queue, mode, count=2)] == ["0", "1"]
    found = get(api, queue)
    assert [message["payload"] for message in found] == left
    assert found[0]["redelivered"] is is_redelivered


def test_rejected_messages_go_where_dead_letters_go(api: httpx.Client, place: Place) -> None:
    api.put(place("queues", "graves"), json={})
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"}
    api.put(place("queues", "q"), json={"arguments": arguments})
    publish(api, place, "hello")
    get(api, place("queues", "q"), "reject_requeue_false")
    [message] = get(api, place("queues", "graves"))
    assert message["payload"] == "hello"
    assert message["properties"]["headers"]["x-death"][0]["reason"] == "rejected"


def test_the_older_way_to_say_what_becomes_of_messages_is_understood(
    api: httpx.Client, place: Place, queue: str
) -> None:
    publish(api, place, "hello")
    for requeue, count in ((True, 1), (False, 1), (True, 0)):
        body = {"count": "5", "requeue": requeue, "encoding": "auto"}
        assert len(api.post(f"{queue}/get", json=body).json()) == count


def test_a_message_that_no_queue_takes_is_told(api: httpx.Client, place: Place, queue: str) -> None:
    assert publish(api, place, "hello", routing_key="nobody").json() == {"routed": False}
    full = {"arguments": {"x-max-length": 1, "x-overflow": "reject-publish"}}
    api.put(place("queues", "full"), json=full)
    assert publish(api, place, "1", routing_key="full").json() == {"routed": True}
    assert publish(api, place, "2", routing_key="full").json() == {"routed": False}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"payload": None}, "missing field 'payload'"),
        ({"routing_key": None}, "missing field 'routing_key'"),
        ({"payload_encoding": "rot13"}, "unknown payload_encoding 'rot13'"),
        ({"payload": "%", "payload_encoding": "base64"}, "not valid base64"),
        ({"payload": "\u00e9", "payload_encoding": "base64"}, "not valid base64"),
        ({"properties": {"colour": "red"}}, "unknown property 'colour'"),
        ({"properties": {"priority": 300}}, "'priority' must be below 256"),
        ({"properties": {"delivery_mode": "twice"}}, "'delivery_mode' must be an integer"),
        ({"properties": {"headers": {"big": 2**70}}}, "does not fit into 64 bits"),
        ({"properties": {"expiration": "soon"}}, "invalid expiration 'soon'"),
        ({"properties": {"user_id": "root"}}, "authenticated user was 'guest'"),
        ({"properties": {"reply_to": "amq.rabbitmq.reply-to"}}, "reply consumer does not exist"),
        ({"routing_key": "k" * 256}, "a short string of 256 octets"),
    ],
)
def test_a_message_that_cannot_be_is_refused_with_the_reason(
    change: dict[str, Any], reason: str, api: httpx.Client, place: Place, queue: str
) -> None:
    answer = publish(api, place, "hello", **change)
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")
    assert reason in answer.json()["reason"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"count": -1}, "'count' must be an integer of at least 0"),
        ({"count": None}, "'count' must be an integer"),
        ({"ackmode": "perhaps"}, "unknown ackmode 'perhaps'"),
        ({"encoding": "rot13"}, "unknown encoding 'rot13'"),
        ({"truncate": -1}, "'truncate' must be an integer of at least 0"),
    ],
)
def test_what_cannot_be_got_is_refused_with_the_reason(
    change: dict[str, Any], reason: str, api: httpx.Client, queue: str
) -> None:
    body = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto", **change}
    answer = api.post(f"{queue}/get", json=body)
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")
    assert reason in answer.json()["reason"]


def test_what_is_not_there_is_told(api: httpx.Client, place: Place) -> None:
    body = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    assert api.post(place("queues", "nothing", "get"), json=body).status_code == 404
    message = {"properties": {}, "routing_key": "", "payload": "", "payload_encoding": "string"}
    assert api.post(place("exchanges", "nothing", "publish"), json=message).status_code == 404


def test_what_amqp_clients_publish_is_shown_whatever_it_holds(
    api: httpx.Client, console_node: RunningNode, vhost: str, queue: str
) -> None:
    properties = Properties(message_id="\udcff", headers=write_table({"bytes": b"\xff", "nan": float("nan")}))

    async def put(node: Node) -> None:
        async with direct_channel(node.hub, node.amqp, User("guest"), vhost) as channel:
            await channel.publish("", "q", properties.encode(), b"")

    console_node.run(put)
    [message] = get(api, queue)
    assert message["payload"] == ""
    assert message["properties"] == {"message_id": "\ufffd", "headers": {"bytes": "\ufffd", "nan": "nan"}}


def test_a_published_message_is_answered_when_it_is_in_the_store(
    gate: Gate, start_memory_node: Callable[..., RunningNode]
) -> None:
    node = start_memory_node(parts=[console_part()], http="127.0.0.1:0")
    base = f"http://{node.address('http')}/api"
    with (
        httpx.Client(base_url=base, auth=("guest", "guest"), timeout=ANSWER_LIMIT_S) as api,
        ThreadPoolExecutor() as others,
    ):
        assert api.put("/queues/%2F/q", json={"durable": True}).status_code == 201
        gate.close(node)
        body = {"properties": {"delivery_mode": 2}, "routing_key": "q", "payload": "m", "payload_encoding": "string"}
        answer = others.submit(api.post, "/exchanges/%2F/amq.default/publish", json=body)
        node.wait_until(lambda running: running.hub.broker.journal.pending_count > 0)
        assert not answer.done()
        gate.open(node)
        assert answer.result().json() == {"routed": True}


def test_what_is_answered_survives_the_node(tmp_path: Path) -> None:
    def serving() -> RunningNode:
        return RunningNode(tmp_path, parts=[console_part()], store="embedded", http="127.0.0.1:0")

    with (
        serving() as node,
        httpx.Client(
            base_url=f"http://{node.address('http')}/api", auth=("guest", "guest"), timeout=ANSWER_LIMIT_S
        ) as api,
    ):
        api.put("/queues/%2F/q", json={"durable": True})
        body = {"properties": {"delivery_mode": 2}, "routing_key": "q", "payload": "m", "payload_encoding": "string"}
        assert api.post("/exchanges/%2F/amq.default/publish", json=body).json() == {"routed": True}
    with (
        serving() as node,
        httpx.Client(
            base_url=f"http://{node.address('http')}/api", auth=("guest", "guest"), timeout=ANSWER_LIMIT_S
        ) as api,
    ):
        assert [message["payload"] for message in get(api, "/queues/%2F/q")] == ["m"]
