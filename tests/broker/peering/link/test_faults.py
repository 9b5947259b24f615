"""Errors that one client triggers on a link: only that client is affected, and the link stays open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractQueue

from flyball.broker.core.broker import Broker
from flyball.broker.core.dead_lettering import DeadLettering
from flyball.broker.core.queues import RETRY_S
from flyball.broker.core.topology import Topology
from flyball.broker.peering.link.session import LinkSession
from flyball.broker.peering.proxy_queues import Attachment
from flyball.broker.protocols.amqp.consumers import AmqpConsumer
from flyball.broker.wire import link as wire
from flyball.errors import FlyballError, PeerLost, QueueNotFound
from flyball.model import Message, Selector
from tests.broker.peering.link.domains import client, until
from tests.broker.peering.link.pairs import Inbox, Two, bodies, with_two_nodes


class Defect(Exception):
    """An exception that no code expects."""


def fails(*_: Any, **__: Any) -> None:
    raise Defect("a defect")


class Bystander:
    """A client of the first node that has an unacked message of the queue `orders` of the second."""

    def __init__(self, two: Two) -> None:
        self._two = two
        self._inbox = Inbox()
        self._link = two.first.peers.link(2)

    async def begin(self) -> None:
        queue = await self._two.forwarded()
        await queue.consume(self._inbox)
        await self._two.publish(b"mine")
        assert bodies(await self._inbox.take(1)) == [b"mine"]
        self._link = self._two.first.peers.link(2)

    async def goes_on(self) -> None:
        """Check that its link is the same, and that it is served over it."""
        await self._two.publish(b"next")
        assert bodies(await self._inbox.take(1)) == [b"next"]
        assert self._two.first.peers.link(2) is self._link
        assert len(self._two.queue_state.unacked) == 2


async def with_bystander(two: Two, queue: str = "bad") -> Bystander:
    """Let the second node have another queue, with a message, which only the victim uses."""
    bystander = Bystander(two)
    await bystander.begin()
    await two.there.declare_queue(queue, durable=True)
    await two.there.default_exchange.publish(aio_pika.Message(b"poison", delivery_mode=2), queue)
    two.made.send_all()
    return bystander


async def closes_victim(two: Two, act: Callable[[AbstractQueue], Coroutine[Any, Any, object]]) -> None:
    """Let another client of the first node do something with the queue `bad`, and wait until it was closed for it."""
    async with client(two.first) as connection:
        channel = await connection.channel()
        # Whether it is notified of the end or only sees that the connection is gone, it is not left waiting.
        await asyncio.wait([asyncio.ensure_future(act(await channel.get_queue("bad")))])
        await until(lambda: len(two.first.sessions) == 1)


def of_bad_queue(two: Two, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what fails if its second argument is the queue `bad`, by id."""
    state = two.second.broker.engine.find_queue("bad")
    assert state is not None

    def call(self: Any, queue_id: int, *arguments: Any, **options: Any) -> Any:
        return (fails if queue_id == state.queue.id else original)(self, queue_id, *arguments, **options)

    return call


@with_two_nodes
async def test_get_that_meets_a_defect_fails_and_the_link_goes_on(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    bystander = await with_bystander(two)
    monkeypatch.setattr(Broker, "take_out", of_bad_queue(two, Broker.take_out))
    await closes_victim(two, lambda queue: queue.get())
    await bystander.goes_on()
    assert two.second.hub.faults.by_place == {"frame of another node": 1}


@with_two_nodes
async def test_message_whose_answer_meets_a_defect_is_requeued(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    bystander = await with_bystander(two)
    original = wire.encode_got

    def encode_got(number: int, ready: int, message: Message | None) -> bytes:
        if message is not None:
            fails()
        return original(number, ready, message)

    monkeypatch.setattr(wire, "encode_got", encode_got)
    await closes_victim(two, lambda queue: queue.get())
    await bystander.goes_on()
    bad = two.second.broker.engine.find_queue("bad")
    assert bad is not None
    assert (len(bad), len(bad.unacked)) == (1, 0)


@with_two_nodes
async def test_consumer_that_cannot_begin_is_refused_and_the_link_goes_on(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    bystander = await with_bystander(two)
    monkeypatch.setattr(Broker, "consume", of_bad_queue(two, Broker.consume))
    await closes_victim(two, lambda queue: queue.consume(Inbox()))
    await bystander.goes_on()


@with_two_nodes
async def test_consumer_that_has_begun_when_it_meets_a_defect_is_not_left_behind(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    bystander = await with_bystander(two)
    original = Topology.consumer_added

    def added(self: Topology, state: Any, consumer: Any, **options: Any) -> None:
        (fails if state.queue.name == "bad" else original)(self, state, consumer, **options)

    monkeypatch.setattr(Topology, "consumer_added", added)
    await closes_victim(two, lambda queue: queue.consume(Inbox()))
    await bystander.goes_on()
    bad = two.second.broker.engine.find_queue("bad")
    assert bad is not None
    await until(lambda: (len(bad), len(bad.unacked), len(bad.consumers)) == (1, 0, 0))


@with_two_nodes
async def test_put_that_meets_a_defect_is_refused_and_the_link_goes_on(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    bystander = await with_bystander(two)
    (session,) = two.second.peers.sessions.values()
    assert isinstance(session, LinkSession)
    original = session._put

    def put(frame: wire.Put) -> None:
        (fails if frame.content.body == b"victim" else original)(frame)

    monkeypatch.setitem(session._handlers, wire.Put, put)
    with pytest.raises(aio_pika.exceptions.DeliveryError):
        await two.here.default_exchange.publish(aio_pika.Message(b"victim", delivery_mode=2), "bad")
    await bystander.goes_on()


@with_two_nodes
async def test_read_that_meets_a_defect_fails_and_those_behind_it_do_not(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    bystander = await with_bystander(two)
    monkeypatch.setattr(Broker, "peek", of_bad_queue(two, Broker.peek))
    found: asyncio.Queue[tuple[Message | None, FlyballError | None]] = asyncio.Queue()
    bad = two.second.broker.engine.find_queue("bad")
    assert bad is not None

    def done(message: Message | None, error: FlyballError | None) -> None:
        found.put_nowait((message, error))

    for queue_id in (bad.queue.id, two.queue_id):
        handle = two.first.context.queues.get(queue_id)
        assert handle is not None
        handle.peek(Selector(), done)
    (first, problem), (second, error) = await found.get(), await found.get()
    assert (first, second, error) == (None, None, None)
    assert "internal error" in str(problem)
    (session,) = two.second.peers.sessions.values()
    assert session.in_flight == 0
    await bystander.goes_on()


@with_two_nodes
async def test_batch_that_meets_a_defect_is_not_handed_over(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    bystander = await with_bystander(two)
    monkeypatch.setattr(LinkSession, "_take_handed", fails)
    bad = two.second.broker.engine.find_queue("bad")
    assert bad is not None
    remote = two.first.directory.get(bad.queue.id)
    assert remote is not None
    has_arrived: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    two.first.remotes.hand(remote, [Message(1, 1, b"body", persistent=False)], has_arrived.set_result)
    assert await has_arrived is False
    await bystander.goes_on()


@with_two_nodes
async def test_message_that_cannot_be_requeued_keeps_no_other_from_it(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, inbox = await two.forwarded(), Inbox()
    await queue.consume(inbox)
    await two.publish(b"1", b"poison", b"3")
    messages = await inbox.take(3)
    original = DeadLettering.dead_letter

    def dead_letter(self: DeadLettering, state: Any, message: Message, reason: str) -> None:
        is_poison = self is two.second.broker.dead_lettering and message.body == b"poison"
        (fails if is_poison else original)(self, state, message, reason)

    monkeypatch.setattr(DeadLettering, "dead_letter", dead_letter)
    link = two.first.peers.link(2)
    for message in messages:
        await message.reject(requeue=False)
    # The one that has failed comes again: its rejection has had no effect.
    assert bodies(await inbox.take(1)) == [b"poison"]
    assert two.first.peers.link(2) is link
    assert [message.body for message in two.queue_state.unacked.values()] == [b"poison"]


@with_two_nodes
async def test_delivery_that_meets_a_defect_at_the_owner_closes_its_client_only(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    bystander = await with_bystander(two)
    original = wire.encode_deliver

    def encode(number: int, message: Message) -> bytes:
        if message.body == b"poison":
            fails()
        return original(number, message)

    monkeypatch.setattr(wire, "encode_deliver", encode)
    await closes_victim(two, lambda queue: queue.consume(Inbox()))
    await bystander.goes_on()
    bad = two.second.broker.engine.find_queue("bad")
    assert bad is not None
    await until(lambda: (len(bad), len(bad.unacked), len(bad.consumers)) == (1, 0, 0))


@with_two_nodes
async def test_delivery_that_meets_a_defect_on_arrival_closes_its_client_only(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    bystander = await with_bystander(two)
    original = Attachment._accept

    def accept(self: Attachment, frame: wire.Deliver) -> None:
        (fails if frame.content.body == b"poison" else original)(self, frame)

    monkeypatch.setattr(Attachment, "_accept", accept)
    await closes_victim(two, lambda queue: queue.consume(Inbox()))
    await bystander.goes_on()
    bad = two.second.broker.engine.find_queue("bad")
    assert bad is not None
    await until(lambda: (len(bad), len(bad.unacked), len(bad.consumers)) == (1, 0, 0))


@with_two_nodes
async def test_answer_that_meets_a_defect_leaves_the_link_to_others(two: Two) -> None:
    bystander = await with_bystander(two)
    handle = two.first.context.queues.get(two.queue_id)
    assert handle is not None
    handle.peek(Selector(), fails)
    await until(lambda: two.first.hub.faults.count == 1)
    await bystander.goes_on()


@with_two_nodes
async def test_closed_link_requeues_all_messages_despite_a_failing_consumer(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, inbox = await two.forwarded(), Inbox()
    await two.here.set_qos(1)
    for _ in range(3):
        await queue.consume(inbox)
    await two.publish(b"1", b"2", b"3")
    await inbox.take(3)
    (session,) = two.second.peers.sessions.values()
    original, failed = Broker.cancel, list[object]()

    def cancel(self: Broker, consumer: Any) -> None:
        if self is two.second.broker and not failed:
            failed.append(consumer)
            fails()
        original(self, consumer)

    monkeypatch.setattr(Broker, "cancel", cancel)
    monkeypatch.setattr(AmqpConsumer, "queue_moved", lambda self, consumer: None)
    session.abort()
    assert failed
    assert (len(two.queue_state), len(two.queue_state.unacked)) == (3, 0)


@with_two_nodes
async def test_lost_node_is_asked_again_after_longer_and_longer_waits(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    await two.forwarded()
    waits: list[float] = []

    async def news(time_limit_s: float) -> None:
        waits.append(time_limit_s)

    async def attempt(target: object) -> None:
        if len(waits) == 10:
            raise QueueNotFound("orders")
        raise PeerLost(2, "was lost before it answered")

    async def until_known(remote: object) -> None:
        two.first.directory.remove(two.queue_id)

    monkeypatch.setattr(two.first.remotes, "news", news)
    monkeypatch.setattr(two.first.remotes, "until_known", until_known)
    with pytest.raises(QueueNotFound):
        await two.first.remotes.at_owner(two.queue_state.queue, attempt, attempt)
    assert waits == sorted(waits)
    assert waits[0] < 0.1
    assert waits[-5:] == [RETRY_S] * 5
