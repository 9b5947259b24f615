"""Links that break, owners that die and queues that move: consumers and messages follow. And moves on purpose."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import Any

import aio_pika
import aiormq
import pytest

from flyball.broker.core.handles import LocalQueue
from flyball.broker.core.pending import outcome
from flyball.broker.peering import proxy_queues
from flyball.broker.peering import puts as puts_module
from flyball.broker.peering.link import consumers as link_consumers
from flyball.errors import StoreUnavailable
from flyball.model import Message, QueueSummary
from tests.broker.peering.link.domains import DomainNode, client, domain, held_store, run, until
from tests.broker.peering.link.pairs import Inbox, Two, bodies, two_nodes, with_two_nodes


@with_two_nodes
async def test_a_broken_link_gives_the_messages_back_and_the_consumer_goes_on(two: Two) -> None:
    queue, inbox = await two.forwarded(), Inbox()
    await queue.consume(inbox)
    await two.publish(b"1")
    (void,) = await inbox.take(1)
    link = two.first.peers.link(2)
    assert link is not None
    link.give_up("was cut by the test")
    (again,) = await inbox.take(1)
    assert (again.body, again.redelivered) == (b"1", True)
    await void.ack()
    await two.first.peers.request(2, "flush", {})
    assert len(two.queue_state.unacked) == 1
    await again.ack()
    await until(lambda: not two.queue_state.unacked)


@with_two_nodes
async def test_an_auto_delete_queue_outlives_a_broken_link(two: Two) -> None:
    queue, inbox = await two.forwarded(auto_delete=True), Inbox()
    tag = await queue.consume(inbox)
    await two.publish(b"1")
    await inbox.take(1)
    link = two.first.peers.link(2)
    assert link is not None
    link.give_up("was cut by the test")
    (again,) = await inbox.take(1)
    assert (again.body, again.redelivered) == (b"1", True)
    await again.ack()
    await queue.cancel(tag)
    await until(lambda: two.second.broker.engine.find_queue("orders") is None)


def test_an_auto_delete_queue_goes_if_nobody_returns_over_another_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_consumers, "RETURN_S", 0.01)

    async def test() -> None:
        async with two_nodes() as two:
            queue = await two.forwarded(auto_delete=True)
            await queue.consume(Inbox())
            two.made.kill(two.first)
            await until(lambda: two.second.broker.engine.find_queue("orders") is None)

    run(test())


@with_two_nodes
async def test_what_comes_over_a_link_while_the_node_has_no_lease_is_not_passed_on(two: Two) -> None:
    queue, inbox = await two.forwarded(), Inbox()
    await queue.consume(inbox)
    link = two.first.peers.link(2)
    assert link is not None
    two.first.hub.lease_ends_s = 0.0
    await two.publish(b"1", channel=two.there)
    await until(lambda: link.is_lost)
    two.first.hub.extend_lease(math.inf)
    (again,) = await inbox.take(1)
    assert (again.body, again.redelivered) == (b"1", True)


@with_two_nodes
async def test_consumer_cancelled_while_its_queue_has_no_owner_stays_so(two: Two) -> None:
    queue, inbox = await two.forwarded(), Inbox()
    tag = await queue.consume(inbox)
    remote = two.first.directory.get(two.queue_id)
    assert remote is not None
    remote.owner = 77
    two.first.peers.drop(2, "was cut by the test")
    await queue.cancel(tag)
    two.first.directory.put(remote.queue, 2)
    await two.publish(b"1")
    await two.first.peers.request(2, "flush", {})
    assert not two.queue_state.consumers
    assert inbox.messages.empty()


@with_two_nodes
async def test_a_client_that_asks_while_the_link_is_broken_waits_for_the_next_one(two: Two) -> None:
    queue, inbox = await two.forwarded(), Inbox()
    await two.publish(b"1", b"2")
    link = two.first.peers.link(2)
    assert link is not None
    getting = asyncio.ensure_future(queue.get())
    answers = link._answers
    await until(lambda: bool(answers))
    link.give_up("was cut by the test")
    assert (await getting).body in (b"1", b"2")
    link = two.first.peers.link(2)
    assert link is not None
    consuming = asyncio.ensure_future(queue.consume(inbox))
    consumers = link.consumers
    await until(lambda: bool(consumers))
    link.give_up("was cut by the test")
    await consuming
    assert len(await inbox.take(1)) == 1


@with_two_nodes
async def test_a_consumer_whose_link_breaks_again_and_again_is_attached_once(two: Two) -> None:
    queue, inbox = await two.forwarded(), Inbox()
    await queue.consume(inbox)
    for _ in range(5):
        link = two.first.peers.link(2)
        assert link is not None
        await until(lambda link=link: link.is_ready)  # type: ignore[misc]
        two.first.peers.drop(2, "was cut by the test")
    await two.publish(b"1")
    (message,) = await inbox.take(1)
    await message.ack()
    await until(lambda: not two.queue_state.unacked)
    assert len(two.queue_state.consumers) == 1
    assert len(two.first.broker.engine._queues) == 1


@with_two_nodes
async def test_the_owner_pauses_while_much_waits_for_a_client_that_does_not_read(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_queues, "PROXY_QUEUE_BYTES", 10_000)
    queue, inbox = await two.forwarded(), Inbox()
    session = two.first.sessions[0]
    async with client(two.second) as connection:
        sender = await connection.channel()
        await queue.consume(inbox)
        session.pause_writing()
        await two.publish(*[bytes(1000)] * 50, channel=sender)
        await two.first.peers.request(2, "flush", {})
        await two.publish(*[bytes(1000)] * 50, channel=sender)
        await two.first.peers.request(2, "flush", {})
        assert len(two.queue_state) >= 50
        session.resume_writing()
        for message in await inbox.take(100):
            await message.ack()
        await until(lambda: not two.queue_state.unacked and not len(two.queue_state))


@with_two_nodes
async def test_publishers_wait_while_the_other_node_does_not_answer(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puts_module, "CONGESTED_BYTES", 10_000)
    await two.forwarded()
    gate = held_store(two.second)
    publishing = asyncio.gather(*[two.publish(bytes(1000)) for _ in range(50)])
    await until(lambda: two.first.remotes.puts.is_congested)
    await two.first.peers.request(2, "queue.counts", {"queue_id": two.queue_id})
    assert len(two.queue_state) < 20
    gate.set()
    await publishing
    assert len(two.queue_state) == 50


@with_two_nodes
async def test_a_put_under_way_when_the_owner_dies_is_refused(two: Two) -> None:
    await two.forwarded()
    gate = held_store(two.second)
    publishing = asyncio.ensure_future(two.publish(b"1"))
    await until(lambda: len(two.queue_state) == 1)
    two.made.kill(two.second)
    with pytest.raises(aio_pika.exceptions.DeliveryError):
        await publishing
    gate.set()


def move_queue(two: Two, owner: DomainNode) -> None:
    """Let another node serve the queue, as if it had been adopted; its messages stay behind in this test."""
    queue = two.queue_state.queue
    other = next(node for node in two.made.nodes if node is not owner)
    state = other.broker.engine.delete_queue(queue.id)
    created = owner.broker.engine.create_queue(queue.name, durable=True)
    adopted = owner.broker.engine._queues.pop(created.id)
    adopted.queue.id = queue.id
    owner.broker.engine._queues[queue.id] = adopted
    two.made.send_all()
    for consumer in list(state.consumers.values()):
        consumer.owner.queue_moved(consumer)


@with_two_nodes
async def test_consumer_follows_its_queue_to_its_own_node(two: Two) -> None:
    queue, inbox = await two.forwarded(), Inbox()
    await queue.consume(inbox)
    await two.publish(b"1")
    (void,) = await inbox.take(1)
    move_queue(two, two.first)
    await two.publish(b"2")
    (message,) = await inbox.take(1)
    assert message.body == b"2"
    await void.ack()
    await message.ack()
    here = two.first.broker.engine.find_queue("orders")
    assert here is not None
    await until(lambda: not here.unacked)
    # The consumer of the other node's client follows to where it is, too.
    other = Inbox()
    await two.there.reopen()
    await (await two.there.get_queue("orders")).consume(other)
    assert len(here.consumers) == 2


@with_two_nodes
async def test_a_message_for_a_queue_without_an_owner_waits_for_the_next_one(two: Two) -> None:
    await two.forwarded()
    remote = two.first.directory.get(two.queue_id)
    assert remote is not None
    remote.owner = 77
    publishing = asyncio.ensure_future(two.publish(b"1"))
    await until(lambda: two.first.remotes.puts.is_congested)
    assert not publishing.done()
    two.first.directory.put(remote.queue, 2)
    await publishing
    assert two.bodies() == [b"1"]


@with_two_nodes
async def test_a_message_for_a_queue_without_an_owner_is_refused_when_its_time_is_up(two: Two) -> None:
    await two.forwarded()
    two.first.remotes.puts.wait_s = 0.05
    remote = two.first.directory.get(two.queue_id)
    assert remote is not None
    remote.owner = 77
    with pytest.raises(aio_pika.exceptions.DeliveryError):
        await two.publish(b"1")


@with_two_nodes
async def test_put_is_confirmed_when_the_owner_learns_of_its_queue(two: Two) -> None:
    await two.forwarded()
    two.first.changes.catch_up = _nothing_new
    served = two.second.broker.engine._queues
    # The first node has learned sooner than the owner itself which node that is.
    adopted = served.pop(two.queue_id)
    publishing = asyncio.ensure_future(two.publish(b"1"))
    await until(lambda: two.first.remotes.puts.is_congested)
    assert not publishing.done()
    served[two.queue_id] = adopted
    await publishing
    assert two.bodies() == [b"1"]


@with_two_nodes
async def test_handed_over_messages_wait_until_the_node_adopts_their_queue(
    two: Two,
) -> None:
    await two.forwarded()
    served = two.second.broker.engine._queues
    adopted = served.pop(two.queue_id)
    attempts = 0

    async def catch_up() -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise StoreUnavailable("the store is away")
        served[two.queue_id] = adopted

    two.second.changes.catch_up = catch_up
    remote = two.first.directory.get(two.queue_id)
    assert remote is not None
    handed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    two.first.remotes.hand(remote, [Message(1, two.queue_id, b"1", persistent=False)], handed.set_result)
    assert await handed
    assert two.bodies() == [b"1"]


@with_two_nodes
async def test_request_waits_until_the_owner_learns_of_the_queue(two: Two) -> None:
    queue, inbox = await two.forwarded(), Inbox()
    await two.publish(b"1")
    two.first.changes.catch_up = _nothing_new
    served = two.second.broker.engine._queues

    async def while_unknown(work: Any) -> Any:
        adopted = served.pop(two.queue_id)
        asked = asyncio.ensure_future(work)
        await until(lambda: bool(two.first.remotes._waiting))
        served[two.queue_id] = adopted
        return await asked

    declared = await while_unknown(two.here.declare_queue("orders", passive=True))
    assert declared.declaration_result.message_count == 1
    await while_unknown(queue.consume(inbox))
    (message,) = await inbox.take(1)
    await message.ack()
    await while_unknown(queue.delete(if_unused=False, if_empty=False))
    assert two.queue_id not in served


@pytest.mark.parametrize("what", ["declared", "purged", "deleted"])
def test_operation_is_done_here_if_the_queue_moves_here_meanwhile(what: str) -> None:
    async def test() -> None:
        async with two_nodes() as two:
            queue = await two.forwarded()
            two.first.changes.catch_up = _nothing_new
            moved = two.second.broker.engine._queues.pop(two.queue_id).queue
            works: dict[str, Any] = {
                "declared": lambda: two.here.declare_queue("orders", passive=True),
                "purged": queue.purge,
                "deleted": lambda: queue.delete(if_unused=False, if_empty=False),
            }
            asked = asyncio.ensure_future(works[what]())
            await until(lambda: bool(two.first.remotes._waiting))
            two.first.broker.engine.adopt_queue(QueueSummary(moved))
            two.first.directory.remove(moved.id)
            await asked
            assert two.first.broker.engine.has_queue(moved.id) == (what != "deleted")

    run(test())


@with_two_nodes
async def test_put_into_several_queues_waits_for_one_unknown_to_its_owner(two: Two) -> None:
    await two.forwarded()
    other = await two.there.declare_queue("others", durable=True)
    exchange = await two.there.declare_exchange("all", "fanout")
    await other.bind(exchange)
    await (await two.there.get_queue("orders")).bind(exchange)
    two.made.send_all()
    for name in ("orders", "others"):
        await (await two.here.get_queue(name)).bind(await two.here.declare_exchange("all", "fanout"))
    two.first.changes.catch_up = _nothing_new
    served = two.second.broker.engine._queues
    adopted = served.pop(two.queue_id)
    there = await two.here.get_exchange("all")
    publishing = asyncio.ensure_future(there.publish(aio_pika.Message(b"1", delivery_mode=2), ""))
    await until(lambda: two.first.remotes.puts.is_congested)
    served[two.queue_id] = adopted
    await publishing
    assert two.bodies() == [b"1"]
    assert other.name in [state.queue.name for state in served.values() if len(state) == 1]


@pytest.mark.parametrize("first", ["comes here", "is gone"])
def test_put_into_several_queues_of_a_dead_node_follows_each(first: str) -> None:
    async def test() -> None:
        async with domain(3) as made, client(made.nodes[0]) as one, client(made.nodes[1]) as other:
            two = Two(made, await one.channel(), await other.channel())
            heir = made.nodes[2]
            for name in ("orders", "others"):
                await two.there.declare_queue(name, durable=True)
                two.made.send_all()
                exchange = await two.here.declare_exchange("all", "fanout")
                await (await two.here.get_queue(name)).bind(exchange)
            lost = {state.queue.name: state.queue for state in two.second.broker.engine.queues}
            made.nodes.remove(two.second)
            made.kill(two.second)
            exchange = await two.here.get_exchange("all")
            publishing = asyncio.ensure_future(exchange.publish(aio_pika.Message(b"1", delivery_mode=2), ""))
            await until(lambda: two.first.remotes.puts.is_congested)
            if first == "comes here":
                two.first.broker.engine.adopt_queue(QueueSummary(lost["orders"]))
            two.first.directory.remove(lost["orders"].id)
            heir.broker.engine.adopt_queue(QueueSummary(lost["others"]))
            two.first.directory.put(lost["others"], heir.id)
            await publishing
            assert bodies_of(heir.broker.engine.queue(lost["others"].id)) == [b"1"]
            if first == "comes here":
                assert bodies_of(two.first.broker.engine.queue(lost["orders"].id)) == [b"1"]

    run(test())


def test_messages_keep_their_order_though_their_queue_moves_between_two_of_them() -> None:
    async def test() -> None:
        async with domain(3) as made, client(made.nodes[0]) as one, client(made.nodes[1]) as other:
            two = Two(made, await one.channel(), await other.channel())
            await two.forwarded()
            first, second, third = made.nodes
            first.changes.catch_up = _nothing_new
            moved = two.queue_state.queue
            await first.peers.request(2, "flush", {})
            # What the old owner says is on its way for a while.
            second.hub.lease_ends_s = 0.0
            second.broker.engine.delete_queue(moved.id)
            publishing = [asyncio.ensure_future(two.publish(b"%d" % number)) for number in range(3)]
            link = first.peers.link(2)
            assert link is not None
            puts = link._puts
            await until(lambda: len(puts) == 3)
            third.broker.engine.adopt_queue(QueueSummary(moved))
            first.directory.put(moved, third.id)
            later = asyncio.ensure_future(two.publish(b"3"))
            await until(lambda: first.remotes.puts.is_congested)
            second.hub.extend_lease(math.inf)
            await asyncio.gather(*publishing, later)
            assert bodies_of(third.broker.engine.queue(moved.id)) == [b"0", b"1", b"2", b"3"]
            assert not first.remotes.puts._ways

    run(test())


async def _nothing_new() -> None:
    """No change was reported."""


async def _move_away(two: Two) -> None:
    """Let the second node leave its queue to a third one, of which the first has not been notified."""
    committed: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    two.second.topology.lifecycle.release(two.queue_id, 77, committed.set_result)
    await committed


@pytest.mark.parametrize("is_asked_for", [False, True])
def test_transaction_fails_if_its_acks_arrive_after_the_queue_has_moved(
    is_asked_for: bool,
) -> None:
    async def test() -> None:
        async with two_nodes() as two:
            await two.forwarded()
            await two.publish(b"1")
            connection = await aiormq.connect(f"amqp://guest:guest@{two.first.addresses['amqp']}/")
            channel = await connection.channel(publisher_confirms=False)
            await channel.tx_select()
            inbox: asyncio.Queue[Any] = asyncio.Queue()
            if is_asked_for:
                inbox.put_nowait(await channel.basic_get("orders"))
            else:
                await channel.basic_consume("orders", inbox.put)
            message = await inbox.get()
            await channel.basic_ack(message.delivery.delivery_tag)
            link = two.first.peers.link(2)
            assert link is not None
            # What the owner says of the move is on its way when the acknowledgement goes.
            hold = two.second.hub.lease_ends_s
            two.second.hub.lease_ends_s = 0.0
            await _move_away(two)
            committing = asyncio.ensure_future(channel.tx_commit())
            await until(lambda: bool(link._answers))
            two.second.hub.extend_lease(hold)
            with pytest.raises(aiormq.exceptions.AMQPError, match=r"redelivered|comes again"):
                await committing
            await connection.close()

    run(test())


def amqp_consumer(node: DomainNode) -> Any:
    found = [
        consumer
        for session in node.sessions
        for channel in session._channels.values()
        for consumer in channel.deliveries.consumers.values()
    ]
    assert len(found) == 1
    return found[0]


async def _member_of(two: Two, node: DomainNode) -> Any:
    """Make a member of the clustered queue `orders` on a node."""
    state = node.broker.engine.find_queue("orders")
    if state is None:
        queue = node.broker.engine.create_queue("orders", durable=True)
        state = node.broker.engine.queue(queue.id)
    state.queue.member = True
    two.made.send_all()
    return state


@pytest.mark.parametrize("route", [(0, 1), (1, 0), (1, 2)])
def test_a_consumer_moves_between_members_without_its_client_noticing(route: tuple[int, int]) -> None:
    async def test() -> None:
        async with domain(3) as made, client(made.nodes[0]) as one, client(made.nodes[0]) as publishing:
            channel = await one.channel()
            two = Two(made, channel, channel)
            source, target = (made.nodes[place] for place in route)
            members = {node.id: await _member_of(two, node) for node in dict.fromkeys((source, target))}
            two.made.send_all()
            inbox = Inbox()
            if source is not made.nodes[0]:
                made.nodes[0].sessions[0].set_home("/", "orders", members[source.id].queue.id)
                made.nodes[0].sessions[1].set_home("/", "orders", members[source.id].queue.id)
            await (await channel.get_queue("orders")).consume(inbox)
            sender = await publishing.channel()
            await two.publish(b"kept", b"settled", channel=sender)
            kept, settled = await inbox.take(2)
            await settled.ack()
            consumer = amqp_consumer(made.nodes[0])
            where = members[target.id]
            # The acknowledgement has arrived.
            await until(lambda: len(consumer.engine_consumer.leases) == 1)
            assert await consumer.move(where.queue, time_limit_s=0.05)
            assert consumer.queue.id == where.queue.id
            # What was not acked in time was requeued; a late ack has no effect, and does no harm.
            await kept.ack()
            await made.nodes[0].peers.request(2, "flush", {})
            assert bodies_of(members[source.id]) + [
                message.body for message in members[source.id].unacked.values()
            ] == [b"kept"]
            for session in made.nodes[0].sessions:
                session.set_home("/", "orders", where.queue.id)
            await two.publish(b"after", channel=sender)
            assert bodies(await inbox.take(1)) == [b"after"]

    run(test())


def bodies_of(state: Any) -> list[bytes]:
    return [message.body for message in state.oldest(0, 100)]


@with_two_nodes
async def test_a_consumer_moves_as_soon_as_all_is_settled(two: Two) -> None:
    queue, inbox = await two.forwarded(), Inbox()
    two.queue_state.queue.member = True
    await queue.consume(inbox)
    await two.publish(b"1")
    (message,) = await inbox.take(1)
    here = await _member_of(two, two.first)
    moving = asyncio.ensure_future(amqp_consumer(two.first).move(here.queue, time_limit_s=1000.0))
    await until(lambda: bool(two.second.peers.sessions))
    assert not moving.done()
    await message.ack()
    assert await moving
    assert len(here.consumers) == 1
    await until(lambda: not two.queue_state.consumers and not two.queue_state.unacked)


@with_two_nodes
async def test_a_producer_is_sent_to_another_member_by_its_home(two: Two) -> None:
    await two.forwarded()
    two.queue_state.queue.member = True
    here = await _member_of(two, two.first)
    await two.publish(b"1")
    two.first.sessions[0].set_home("/", "orders", two.queue_id)
    await two.publish(b"2")
    two.first.sessions[0].set_home("/", "orders", None)
    await two.publish(b"3")
    assert bodies_of(here) == [b"1", b"3"]
    assert two.bodies() == [b"2"]


@with_two_nodes
async def test_consumer_of_a_closed_client_does_not_start_after_a_move(two: Two) -> None:
    queue, inbox = await two.forwarded(), Inbox()
    await queue.consume(inbox)
    here = await _member_of(two, two.first)
    consumer = amqp_consumer(two.first)
    consumer.deliveries.channel.is_closing = True
    await outcome(partial(LocalQueue(two.first.topology, here).consume, consumer))
    assert not here.consumers


@with_two_nodes
async def test_a_message_for_a_member_that_is_gone_goes_to_another_one(two: Two) -> None:
    await two.forwarded()
    two.queue_state.queue.member = True
    here = await _member_of(two, two.first)
    two.first.sessions[0].set_home("/", "orders", two.queue_id)
    # This node has not been notified.
    two.second.broker.engine.delete_queue(two.queue_id)
    await two.publish(b"1")
    assert bodies_of(here) == [b"1"]


@with_two_nodes
async def test_messages_are_handed_to_another_member_once_though_the_link_breaks(two: Two) -> None:
    await two.forwarded()
    here = await _member_of(two, two.first)
    for body in (b"1", b"2"):
        await two.here.default_exchange.publish(aio_pika.Message(body, delivery_mode=1), "orders")
    broker = two.first.broker
    remote = two.first.directory.get(two.queue_id)
    assert remote is not None
    messages = here.oldest(0, 10)
    for message in messages:
        here.take_anywhere(message)
    handed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    await two.first.peers.request(2, "flush", {})
    link = two.first.peers.link(2)
    assert link is not None
    two.first.remotes.hand(remote, messages, handed.set_result)
    link.flush()
    await until(lambda: len(two.queue_state) == 2)
    # The answer is on its way, and does not come.
    link.give_up("was cut by the test")
    assert await handed
    assert two.bodies() == [b"1", b"2"]
    for message in messages:
        broker.settle(message)
    assert not here.unacked
