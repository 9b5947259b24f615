"""The stream sends events once a second; no reader can hold up the node, or make it grow."""

from __future__ import annotations

import asyncio
import socket
import time
import tracemalloc
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest

from flyball.broker.management.flyball_api import stream as module
from flyball.broker.management.flyball_api.stream import Feed, StreamListener, queue_of, topics_of
from flyball.broker.management.part import console_part
from flyball.broker.node.node import Node
from flyball.errors import InvalidArgument
from flyball.model import Permission, User
from tests.broker.domains import two_nodes
from tests.broker.management.flyball_api.streams import Stream, report, streaming
from tests.nodes import ANSWER_LIMIT_S, RunningNode

Users = dict[str, tuple[str, str]]


def channel_of(node: RunningNode) -> Any:
    parameters = pika.ConnectionParameters(*node.address("amqp"), heartbeat=0)
    return pika.BlockingConnection(parameters).channel()


def test_a_sample_has_rates_gauges_latencies_and_alarms(api: httpx.Client, node: RunningNode) -> None:
    channel = channel_of(node)
    channel.queue_declare("orders")
    with streaming(api.base_url) as stream:
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        for number in range(20):
            channel.basic_publish("", "orders", str(number).encode())
        sample = stream.until(lambda sample: sample["gauges"]["ready"] == 20)
    channel.connection.close()
    assert (sample["node"], sample["alarms"]) == ("north", [])
    assert abs(sample["at"] - time.time()) < 20
    assert sample["rates"]["publish"] > 0
    assert set(sample["rates"]) == set(module.RATES)
    wanted = {"ready", "unacked", "connections", "channels", "consumers", "queues", "exchanges", "memory_bytes"}
    wanted |= {"resident_bytes", "pending_bytes", "pending_changes", "cpu_ratio"}
    assert wanted <= set(sample["gauges"])
    assert sample["gauges"]["memory_bytes"] > 1_000_000
    assert {"wait", "parse", "engine", "store", "emit", "p50", "p99"} <= set(sample["latency_ms"]["publish"])
    assert not {"queue", "loops", "admission", "domain", "history"} & set(sample)


def test_samples_go_on_and_time_with_them(api: httpx.Client) -> None:
    with streaming(api.base_url) as stream:
        times = [stream.next()["at"] for _ in range(5)]
    assert times == sorted(times)
    assert times[0] < times[-1]


def test_topics_add_what_they_name(api: httpx.Client, node: RunningNode) -> None:
    api.post("/loops/orders/samples", json=report(time.time()))
    channel = channel_of(node)
    channel.queue_declare("a/b")
    channel.basic_publish("", "a/b", b"1")
    topics = "loops,admission,domain,queue:%2F/a%2Fb,queue:%2F/none"
    with streaming(api.base_url, topics) as stream:
        sample = stream.until(lambda sample: (sample["queue"]["%2F/a%2Fb"] or {}).get("ready") == 1)
        domain = sample.get("domain") or stream.until(lambda sample: "domain" in sample)["domain"]
    channel.connection.close()
    assert sample["queue"]["%2F/none"] is None
    queue = sample["queue"]["%2F/a%2Fb"]
    assert (queue["vhost"], queue["name"], queue["consumers"]) == ("/", "a/b", 0)
    assert set(queue["rates"]) == {"publish", "deliver", "ack"}
    loops = {loop["name"]: loop for loop in sample["loops"]}
    assert (loops["orders"]["measurement"], loops["orders"]["state"]) == (390.0, "running")
    assert loops["north.memory"]["state"] == "idle"
    [admission] = sample["admission"]
    assert (admission["name"], admission["state"]) == ("north.listings", "running")
    assert "keys" not in admission
    assert domain["leader"] == "north"


@pytest.fixture
def lasting_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for it before the node: it looks at its domain once."""
    monkeypatch.setattr(module, "DOMAIN_S", 3600.0)


def test_the_domain_is_told_when_it_is_asked_for_anew_and_not_with_each_sample(
    lasting_domain: None, api: httpx.Client
) -> None:
    with streaming(api.base_url, "domain") as stream:
        stream.until(lambda sample: "domain" in sample)
        assert not any("domain" in stream.next() for _ in range(5))


def test_the_first_sample_brings_the_past_if_it_is_wanted(api: httpx.Client, node: RunningNode) -> None:
    with streaming(api.base_url) as stream:
        for _ in range(5):
            stream.next()
    with streaming(api.base_url, history="1") as stream:
        first, second = stream.next(), stream.next()
    assert len(first["history"]) >= 4
    assert set(first["history"][0]) == {"at", "rates", "gauges"}
    assert "history" not in second


@pytest.mark.parametrize("topics", ["weather", "queue:orders", ",".join(f"queue:a/{n}" for n in range(65))])
def test_topics_that_make_no_sense_are_refused(api: httpx.Client, topics: str) -> None:
    with pytest.raises(InvalidArgument):
        topics_of(topics)
    assert api.get("/stream", params={"topics": topics}).status_code == 400


def test_a_queue_is_named_by_its_encoded_parts() -> None:
    assert queue_of("queue:%2F/orders") == ("/", "orders")
    assert queue_of("queue://orders") == ("/", "orders")
    assert queue_of("queue:v%20h/a%2Fb") == ("v h", "a/b")


def test_users_hear_only_of_what_they_may_see(api: httpx.Client, node: RunningNode, users: Users) -> None:
    def status(user: str, topics: str) -> int:
        with streaming(api.base_url, topics, users[user]) as stream:
            return stream.response.status_code

    assert status("nothing", "overview") == 401
    assert status("management", "overview") == 200
    assert [status("management", topic) for topic in ("loops", "admission", "domain", "queue:%2F/orders")] == [
        401
    ] * 4
    node.run(lambda node: node.hub.authority.set_permission(Permission("management", "/", "", "", "")))
    assert status("management", "queue:%2F/orders") == 200
    assert status("monitoring", "loops,admission,domain,queue:%2F/orders") == 200


def test_who_may_not_see_the_node_as_a_whole_hears_nothing_of_it(
    api: httpx.Client, node: RunningNode, users: Users
) -> None:
    node.run(lambda node: node.hub.authority.set_permission(Permission("management", "/", "", "", "")))
    with streaming(api.base_url, "overview,queue:%2F/orders", users["management"], history="1") as stream:
        assert set(stream.next()) == {"at", "node", "queue"}
        node.run(lambda node: node.hub.authority.set_tags("management", ["monitoring"]))
        assert stream.until(lambda sample: "gauges" in sample)["rates"]


def test_the_stream_of_a_user_who_is_deleted_or_loses_a_right_ends(
    api: httpx.Client, node: RunningNode, users: Users
) -> None:
    with (
        streaming(api.base_url, "overview", users["management"]) as first,
        streaming(api.base_url, "loops", users["monitoring"]) as second,
    ):
        first.next()
        second.next()
        node.run(lambda node: node.hub.authority.delete_user("management"))
        node.run(lambda node: node.hub.authority.set_tags("monitoring", ["management"]))
        assert [sum(1 for _ in stream) >= 0 for stream in (first, second)] == [True, True]


def test_a_stream_ends_when_its_user_logs_out_or_has_another_password(
    api: httpx.Client, node: RunningNode, users: Users
) -> None:
    base = f"http://{node.address('http')}/api"
    name, password = users["management"]
    with httpx.Client(timeout=ANSWER_LIMIT_S) as browser:
        browser.post(f"{base}/login", json={"name": name, "password": password}).raise_for_status()
        with browser.stream("GET", f"{base}/flyball/stream") as response:
            stream = Stream(response)
            stream.next()
            browser.delete(f"{base}/login").raise_for_status()
            assert sum(1 for _ in stream) >= 0
    with streaming(api.base_url, "overview", users["management"]) as stream:
        stream.next()
        node.run(lambda node: node.hub.authority.change_password(name, "another"))
        assert sum(1 for _ in stream) >= 0


def test_too_many_streams_are_refused(api: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STREAMS", 1)
    with streaming(api.base_url) as stream:
        stream.next()
        assert api.get("/stream").status_code == 503


def test_one_user_cannot_take_all_streams(api: httpx.Client, users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OF_A_USER", 1)
    with streaming(api.base_url) as stream:
        stream.next()
        refused = api.get("/stream")
        assert (refused.status_code, refused.json()["error"]) == (429, "too_many_requests")
        with streaming(api.base_url, "overview", users["management"]) as other:
            other.next()


def test_a_node_that_stops_ends_its_streams_by_itself(
    tmp_path: Path, quick_samples: None, caplog: pytest.LogCaptureFixture
) -> None:
    node = RunningNode(tmp_path, parts=[console_part()], store="memory", http="127.0.0.1:0")
    with node, streaming(f"http://{node.address('http')}/api/flyball") as stream:
        stream.next()
        node.stop()
        assert sum(1 for _ in stream) >= 0
    assert "graceful" not in caplog.text, "nobody has to end it"


# Readers that do not read


@pytest.fixture
def feeds(monkeypatch: pytest.MonkeyPatch) -> list[Feed]:
    """Ask for it before the node: what feeds the streams of the nodes that are started."""
    found: list[Feed] = []

    class KnownFeed(Feed):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            found.append(self)

    monkeypatch.setattr(module, "Feed", KnownFeed)
    return found


def add_loops(node: RunningNode, count: int) -> None:
    def add(node: Node) -> None:
        facts = node.hub.loops.get("north.memory").facts
        for number in range(count):
            node.hub.loops.add(f"loop-{number}", facts, lambda: None)

    node.call(add)


def test_one_who_does_not_read_is_cut_off(
    feeds: list[Feed], node: RunningNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "STALL_S", 0.2)
    add_loops(node, 300)
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with reader:
        reader.connect(node.address("http"))
        token = b64encode(b"guest:guest").decode()
        head = f"GET /api/flyball/stream?topics=loops HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {token}"
        reader.sendall(head.encode() + b"\r\n\r\n")
        node.wait_until(lambda _: "disconnected a stream of user 'guest'" in caplog.text)
        node.wait_until(lambda _: feeds[0].count == 0)
        got_bytes = 0
        with suppress(ConnectionResetError):
            while data := reader.recv(65536):
                got_bytes += len(data)
    assert got_bytes < 10_000_000
    assert "Exception" not in caplog.text


def test_one_who_goes_away_is_forgotten(feeds: list[Feed], api: httpx.Client, node: RunningNode) -> None:
    with streaming(api.base_url) as stream:
        stream.next()
        assert feeds[0].count == 1
    node.wait_until(lambda _: feeds[0].count == 0)


def test_one_who_does_not_take_events_misses_all_but_the_newest() -> None:
    async def scenario() -> list[bytes | None]:
        listener = StreamListener(User("guest"), ("overview",), wants_history=False)
        for number in range(1000):
            listener.offer(b"%d" % number)
        first = await listener.take()
        listener.end()
        return [first, await listener.take(), await listener.take()]

    assert asyncio.run(scenario()) == [b"999", None, None]


def test_one_who_comes_while_a_sample_is_made_hears_the_next(feeds: list[Feed], node: RunningNode) -> None:
    [feed] = feeds
    # More than are sent in one turn of the loop, so that other tasks can run between two.
    add_loops(node, 100)

    async def scenario() -> bytes | None:
        guest = node.node.hub.authority.access.user("guest")
        first = feed.listen(StreamListener(guest, ("loops",)))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(feed.send_all())
            await asyncio.sleep(0)
            second = feed.listen(StreamListener(guest, ("queue:%2F/orders",)))
        assert await first.take() is not None
        await feed.send_all()
        return await second.take()

    event = node.run(lambda _: scenario())
    assert event is not None
    assert b'"queue":{"%2F/orders":null}' in event


def test_many_samples_do_not_grow_memory(feeds: list[Feed], tmp_path: Path) -> None:
    part = console_part()
    with RunningNode(tmp_path, parts=[part], store="memory", name="north", http="127.0.0.1:0") as node:
        add_loops(node, 20)
        [feed] = feeds

        async def tell(node: Node, times: int) -> None:
            topics = ("overview", "loops", "admission", "domain", "queue:%2F/orders")
            listener = feed.listen(StreamListener(node.hub.authority.access.user("guest"), topics))
            for _ in range(times):
                await feed.send_all()
                await listener.take()
            feed.leave(listener)

        node.run(lambda node: tell(node, 50))
        tracemalloc.start()
        try:
            began_s = time.monotonic()
            before, _ = tracemalloc.get_traced_memory()
            node.run(lambda node: tell(node, 500))
            after, _ = tracemalloc.get_traced_memory()
            passed_s = time.monotonic() - began_s
        finally:
            tracemalloc.stop()
    # Each node of this process keeps a sample a second, for some minutes, even without readers.
    assert after - before < 100_000 + 5_000 * passed_s


# Errors


class Failing:
    """Does what it stands for, but for the first time."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._has_failed = False

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if not self._has_failed:
            self._has_failed = True
            raise OSError("too many open files")
        return self._function(*arguments, **named)


@pytest.mark.parametrize(("name", "topic"), [("alarms", "overview"), ("tree_of", "domain")])
def test_an_error_while_a_sample_is_made_costs_that_sample_and_not_the_node(
    node: RunningNode,
    api: httpx.Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    topic: str,
) -> None:
    monkeypatch.setattr(module, name, Failing(getattr(module, name)))
    with streaming(api.base_url, topic) as stream:
        stream.until(lambda sample: topic == "overview" or "domain" in sample)
    assert "too many open files" in caplog.text


# Other nodes


def test_queues_and_loops_of_other_nodes_are_heard_of(
    tmp_path: Path, new_database: Callable[[], str], quick_samples: None
) -> None:
    with two_nodes(tmp_path, new_database, parts=[console_part()], http="127.0.0.1:0", thorbang="off") as nodes:
        here, there = nodes
        channel = channel_of(there)
        channel.queue_declare("orders", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "orders", b"1")
        with streaming(f"http://{here.address('http')}/api/flyball", "loops,admission,queue:%2F/orders") as stream:
            sample = stream.until(
                lambda sample: (
                    (sample["queue"]["%2F/orders"] or {}).get("ready") == 1
                    and len(sample["admission"]) == 2
                    and len(sample["loops"]) == 6
                )
            )
        channel.connection.close()
    assert {loop["name"] for loop in sample["loops"]} >= {"a.memory", "b.memory"}
    assert {admission["node"] for admission in sample["admission"]} == {"a", "b"}
