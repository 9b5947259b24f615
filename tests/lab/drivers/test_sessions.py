"""Sessions against a real node: the same words, whatever the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from flyball.errors import LabError
from flyball.lab.drivers import ANY_RECEIVER, PROTOCOLS, AmqpSession, Received, Session, Target, connect
from tests.lab.runs import target_of
from tests.nodes import RunningNode

protocols = pytest.mark.parametrize("protocol", PROTOCOLS)


async def pair(protocol: str, target: Target) -> tuple[Session, Session, Any]:
    """Return two clients that know each other, and a queue for both."""
    maker = await connect(protocol, target)
    queue = await maker.create_queue("conversation")
    sessions = []
    for number in range(2):
        address = await maker.create_client(f"client {number}", number)
        await maker.open_box(queue, address)
        session = await connect(protocol, target)
        await session.identify(address)
        sessions.append(session)
    await maker.close()
    return sessions[0], sessions[1], queue


def converse(node: RunningNode, protocol: str, dialogue: Callable[[Session, Session, Any], Awaitable[None]]) -> None:
    async def main() -> None:
        alice, bob, queue = await pair(protocol, target_of(node, protocol))
        await dialogue(alice, bob, queue)
        await alice.close()
        await bob.close()

    uvloop.run(main())


@protocols
def test_a_message_reaches_its_receiver_and_nobody_else(protocol: str, memory_node: RunningNode) -> None:
    async def dialogue(alice: Session, bob: Session, queue: Any) -> None:
        await alice.put(queue, bob.address, b"hello, bob", 12)
        assert alice.sent_ns < alice.answered_ns
        assert await alice.take(queue) is None
        assert await bob.take(queue) == Received(alice.address, 12, b"hello, bob")
        assert await bob.take(queue) is None

    converse(memory_node, protocol, dialogue)


@protocols
def test_a_message_for_nobody_in_particular_goes_to_who_comes_first(protocol: str, memory_node: RunningNode) -> None:
    async def dialogue(alice: Session, bob: Session, queue: Any) -> None:
        await alice.put(queue, ANY_RECEIVER, b"who?", 1)
        assert await bob.take(queue, unaddressed=True) == Received(alice.address, 1, b"who?")
        assert await alice.take(queue, unaddressed=True) is None

    converse(memory_node, protocol, dialogue)


def test_telesto_takes_by_context(memory_node: RunningNode) -> None:
    async def dialogue(alice: Session, bob: Session, queue: Any) -> None:
        for context in (1, 2, 3):
            await alice.put(queue, bob.address, b"%d" % context, context)
        assert await bob.take(queue, 2) == Received(alice.address, 2, b"2")
        assert await bob.take(queue, 2) is None

    converse(memory_node, "telesto", dialogue)


def test_thorbang_peeks(memory_node: RunningNode) -> None:
    async def dialogue(alice: Session, bob: Session, queue: Any) -> None:
        assert await bob.peek(queue) is None
        await alice.put(queue, bob.address, b"look", 5)
        assert await bob.peek(queue, by_time=False) == await bob.take(queue) == Received(alice.address, 5, b"look")

    converse(memory_node, "thorbang", dialogue)


@pytest.mark.parametrize("protocol", ["telesto", "amqp"])
def test_protocols_that_cannot_peek_say_which_can(protocol: str, memory_node: RunningNode) -> None:
    async def dialogue(alice: Session, bob: Session, queue: Any) -> None:
        with pytest.raises(LabError, match="cannot peek: use thorbang"):
            await bob.peek(queue)

    converse(memory_node, protocol, dialogue)


@pytest.mark.parametrize(
    ("protocol", "complaint"),
    [
        ("thorbang", "MSG was answered with b'FAIL QUEUE 99'"),
        ("telesto", "PutMessage was answered with Error"),
        ("amqp", "the broker returned a message to 99.1: NO_ROUTE"),
    ],
)
def test_a_refused_put_shows_what_came_back(protocol: str, complaint: str, memory_node: RunningNode) -> None:
    async def dialogue(alice: Session, bob: Session, queue: Any) -> None:
        with pytest.raises(LabError, match=complaint):
            await alice.put(99, 1, b"lost")

    converse(memory_node, protocol, dialogue)


async def take_for_ever(session: Session, queue: Any) -> None:
    while True:
        await session.take(queue)


@protocols
def test_a_server_that_goes_away_fails_the_request_under_way(protocol: str, memory_node: RunningNode) -> None:
    async def main() -> None:
        alice, _, queue = await pair(protocol, target_of(memory_node, protocol))
        await asyncio.get_running_loop().run_in_executor(None, memory_node.stop)
        with pytest.raises(LabError, match="closed"):
            await take_for_ever(alice, queue)
        await alice.close()

    uvloop.run(main())


@protocols
def test_where_nobody_listens_is_said(protocol: str) -> None:
    with pytest.raises(LabError, match=r"cannot connect to node-1 on 127.0.0.1:1: .*refused"):
        uvloop.run(connect(protocol, Target(name="node-1", host="127.0.0.1", port=1)))


def test_a_wrong_password_is_said(memory_node: RunningNode) -> None:
    target = target_of(memory_node, "amqp").model_copy(update={"password": "wrong"})
    with pytest.raises(LabError, match=r"cannot connect to node-1 on .*: the broker closed with 403 ACCESS_REFUSED"):
        uvloop.run(connect("amqp", target))


@pytest.mark.parametrize("body_bytes", [0, 24, 300_000])
def test_bodies_of_any_size_pass_through_amqp(body_bytes: int, memory_node: RunningNode) -> None:
    async def dialogue(alice: Session, bob: Session, queue: Any) -> None:
        assert isinstance(alice, AmqpSession)
        assert isinstance(bob, AmqpSession)
        confirmed: list[int] = []
        body = b"x" * body_bytes
        await bob.consume(queue, 10, no_ack=False)
        for _ in range(3):
            alice.publish(queue, body, persistent=True, confirmed=confirmed.append)
        while len(bob.link.deliveries) < 3:
            await bob.link.news()
        bob.link.ack(bob.link.deliveries[-1].tag, multiple=True)
        while alice.link.in_flight:
            await alice.link.news()
        assert [delivery.body for delivery in bob.link.deliveries] == [body] * 3
        assert len(confirmed) == 3

    converse(memory_node, "amqp", dialogue)
