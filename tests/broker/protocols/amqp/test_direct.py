"""A client inside the node is served as any other, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from flyball.broker.node.node import Node
from flyball.broker.protocols.amqp import direct
from flyball.broker.protocols.amqp.direct import CHANNEL, DirectChannel, direct_channel
from flyball.broker.wire import amqp
from flyball.errors import (
    InvalidArgument,
    NotPermitted,
    QueueNotFound,
    StoreUnavailable,
    UnlikeDeclared,
    VhostNotFound,
)
from flyball.model import User
from tests.nodes import Gate, RunningNode

T = TypeVar("T")

GUEST = User("guest")
NOBODY = User("nobody")

Use = Callable[[DirectChannel], Awaitable[T]]


def inside(node: RunningNode, use: Use[T], user: User = GUEST, vhost: str = "/", *, is_trusted: bool = False) -> T:
    """Use a channel inside the node."""

    async def run(running: Node) -> T:
        async with direct_channel(running.hub, running.amqp, user, vhost, is_trusted=is_trusted) as channel:
            return await use(channel)

    return node.run(run)


def declare(name: str, *, durable: bool = True, arguments: dict[str, amqp.Value] | None = None) -> amqp.QueueDeclare:
    return amqp.QueueDeclare(CHANNEL, name, False, durable, False, False, False, arguments or {})


async def declare_q(channel: DirectChannel) -> amqp.QueueDeclareOk:
    return await channel.call(declare("q"), amqp.QueueDeclareOk)


def test_messages_go_in_and_out(memory_node: RunningNode) -> None:
    body = b"x" * 500_000

    async def use(channel: DirectChannel) -> tuple[bool, bool, amqp.BasicGetOk | None]:
        await declare_q(channel)
        is_routed = await channel.publish("", "q", amqp.NO_PROPERTIES, body)
        is_lost = not await channel.publish("", "nobody", amqp.NO_PROPERTIES, body)
        return is_routed, is_lost, await channel.get("q", no_ack=True)

    is_routed, is_lost, got = inside(memory_node, use)
    assert is_routed
    assert is_lost
    assert got is not None
    assert (got.body, got.routing_key, got.redelivered) == (body, "q", False)


def test_its_messages_are_counted_but_neither_its_channel_nor_its_bytes(memory_node: RunningNode) -> None:
    def counts(node: Node) -> tuple[int, ...]:
        meters = node.hub.broker.meters
        churn = (meters.channels_opened, meters.channels_closed, meters.read_bytes, meters.written_bytes)
        return (meters.published, meters.confirmed, *churn)

    async def publish(channel: DirectChannel) -> None:
        await declare_q(channel)
        await channel.publish("", "q", amqp.NO_PROPERTIES, b"1")

    before = memory_node.call(counts)
    inside(memory_node, publish)
    after = memory_node.call(counts)
    assert [now - then for now, then in zip(after, before, strict=True)] == [1, 1, 0, 0, 0, 0]


def test_what_is_not_settled_goes_back_when_it_leaves(memory_node: RunningNode) -> None:
    async def take(channel: DirectChannel) -> bool | None:
        await declare_q(channel)
        found = await channel.get("q", no_ack=False)
        return None if found is None else found.redelivered

    async def put(channel: DirectChannel) -> None:
        await declare_q(channel)
        await channel.publish("", "q", amqp.NO_PROPERTIES, b"")

    inside(memory_node, put)
    assert [inside(memory_node, take), inside(memory_node, take)] == [False, True]
    assert memory_node.call(lambda node: (set(node.hub.connections), set(node.hub.stalled))) == (set(), set())


def test_a_refusal_is_the_fact_itself_not_a_code(memory_node: RunningNode) -> None:
    inside(memory_node, declare_q)
    with pytest.raises(UnlikeDeclared):
        inside(memory_node, lambda channel: channel.call(declare("q", durable=False), amqp.QueueDeclareOk))
    with pytest.raises(QueueNotFound):
        inside(memory_node, lambda channel: channel.get("nothing", no_ack=True))
    with pytest.raises(InvalidArgument, match="256 octets"):
        inside(memory_node, lambda channel: channel.call(declare("q" * 256), amqp.QueueDeclareOk))
    deep: dict[str, amqp.Value] = {}
    for _ in range(sys.getrecursionlimit()):
        deep = {"x": deep}
    with pytest.raises(InvalidArgument, match="AMQP cannot encode this"):
        inside(memory_node, lambda channel: channel.call(declare("q", arguments=deep), amqp.QueueDeclareOk))
    long = declare("q", arguments={"x": "y" * 200_000})
    with pytest.raises(InvalidArgument, match="octets"):
        inside(memory_node, lambda channel: channel.call(long, amqp.QueueDeclareOk))


def test_nobody_is_let_in_without_a_permission_unless_it_is_trusted(memory_node: RunningNode) -> None:
    with pytest.raises(NotPermitted, match="access to vhost '/' refused for user 'nobody'"):
        inside(memory_node, declare_q, NOBODY)
    with pytest.raises(VhostNotFound):
        inside(memory_node, declare_q, vhost="nowhere")
    assert inside(memory_node, declare_q, NOBODY, is_trusted=True).queue == "q"


def test_the_answer_comes_when_it_is_in_the_store_or_the_time_is_up(
    gate: Gate, memory_node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "ANSWER_LIMIT_S", 0.05)
    gate.close(memory_node)
    with pytest.raises(StoreUnavailable, match="may or may not have been done"):
        inside(memory_node, declare_q)
    gate.open(memory_node)


def test_many_work_at_once(memory_node: RunningNode) -> None:
    async def run(node: Node) -> None:
        async def one(number: int) -> None:
            async with direct_channel(node.hub, node.amqp, GUEST, "/") as channel:
                await channel.call(declare(f"q{number}"), amqp.QueueDeclareOk)

        await asyncio.gather(*[one(number) for number in range(100)])

    memory_node.run(run)
    assert memory_node.call(lambda node: len(node.hub.broker.engine.queues)) == 100
