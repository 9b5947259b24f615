"""Objects on all nodes of a domain can be asked of any of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pika
import pytest

from flyball.broker.management import domain_nodes
from flyball.broker.management.domain_nodes import DomainNodes
from flyball.broker.management.inspection import Facts
from flyball.broker.management.node_sampler import Sampler
from flyball.broker.node.node import Node
from flyball.errors import ClusterError
from tests.broker.domains import Pair, two_nodes


class Part:
    """Lets a node answer, and keeps what asks the others."""

    def __init__(self) -> None:
        self.of: dict[str, DomainNodes] = {}

    @asynccontextmanager
    async def __call__(self, node: Node) -> AsyncIterator[None]:
        made = DomainNodes(node, Sampler(node))
        made.install()
        self.of[node.hub.peering.name] = made
        yield


@pytest.fixture
def part() -> Part:
    return Part()


@pytest.fixture
def nodes(tmp_path: Path, new_database: Callable[[], str], part: Part) -> Iterator[Pair]:
    with two_nodes(tmp_path, new_database, parts=[part], thorbang="off") as nodes:
        yield nodes


def channel_of(node: Any, queue_name: str) -> Any:
    channel = pika.BlockingConnection(pika.ConnectionParameters(*node.address("amqp"), heartbeat=0)).channel()
    channel.queue_declare(queue_name, durable=True)
    channel.basic_consume(queue_name, print)
    return channel


def listed(asking: DomainNodes, what: str, _: Node) -> Coroutine[Any, Any, list[Facts]]:
    return asking.list_all(what)


def test_lists_cover_all_nodes_a_page_at_a_time(nodes: Pair, part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(domain_nodes, "SLICE", 2)
    first, second = nodes
    channels = [channel_of(first, "here")] + [channel_of(second, f"there-{number}") for number in range(3)]
    asking = part.of["a"]
    queues = first.run(lambda _: asking.list_all("queues"))
    assert {(queue["node"], queue["name"]) for queue in queues} == {
        ("a", "here"),
        ("b", "there-0"),
        ("b", "there-1"),
        ("b", "there-2"),
    }
    for what in ("connections", "channels", "consumers"):
        found = first.run(partial(listed, asking, what))
        places = [facts.get("channel_details", facts)["node"] for facts in found]
        assert sorted(places) == ["a", "b", "b", "b"], what
    queue = {"queue": ("/", "there-1")}
    [consumer] = first.run(lambda _: asking.list_all("consumers", queue))
    assert (consumer["channel_details"]["node"], consumer["queue"]["name"]) == ("b", "there-1")
    answers = first.run(lambda _: asking.ask_all("totals"))
    assert {name: answer["queues"] for name, answer in answers.items()} == {"a": 1, "b": 3}
    for channel in channels:
        channel.connection.close()


def test_a_page_ends_with_a_connection_that_has_many_channels(
    nodes: Pair, part: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(domain_nodes, "SLICE", 3)
    first, second = nodes
    channels = [channel_of(second, f"there-{number}") for number in range(3)]
    for channel in channels[:2]:
        for _ in range(4):
            channel.connection.channel()
    pages: list[int] = []

    async def ask(node: Node) -> None:
        after: int | None = 0
        while after is not None:
            page = await node.peers.commands["console.channels"](after=after)
            pages.append(len(page["items"]))
            after = page["after"]

    second.run(ask)
    assert pages == [5, 5, 1]
    assert len(first.run(partial(listed, part.of["a"], "channels"))) == 11
    for channel in channels:
        channel.connection.close()


def test_a_single_node_can_be_asked_by_its_name(nodes: Pair, part: Part) -> None:
    first, _ = nodes
    asking = part.of["a"]

    async def double(number: int) -> int:
        return 2 * number

    for made in part.of.values():
        made.provide("double", double)
    assert first.run(lambda _: asking.ask_node("a", "node"))["name"] == "a"
    assert first.run(lambda _: asking.ask_node("b", "node"))["name"] == "b"
    assert first.run(lambda _: asking.ask_node("b", "double", {"number": 21})) == 42
    with pytest.raises(ClusterError, match="unknown node 'c'"):
        first.run(lambda _: asking.ask_node("c", "node"))


def test_a_node_that_does_not_answer_is_left_out(nodes: Pair, part: Part) -> None:
    first, second = nodes
    second.call(lambda node: node.peers.commands.pop("console.totals"))
    assert set(first.run(lambda _: part.of["a"].ask_all("totals"))) == {"a"}
