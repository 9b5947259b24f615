"""AMQP clients of a node that use queues of another one, as if those were the node's own."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import aio_pika
import aiormq
import aiormq.exceptions
import pytest
from pamqp.commands import Basic

from tests.broker.peering.link.domains import client, held_store, run, until
from tests.broker.peering.link.pairs import Inbox, Two, bodies, two_nodes, with_two_nodes


@with_two_nodes
async def test_a_confirmed_message_is_in_the_queue_of_the_other_node(two: Two) -> None:
    await two.forwarded()
    confirms = await two.publish(b"1", b"2", b"3")
    assert all(isinstance(confirm, Basic.Ack) for confirm in confirms)
    assert two.bodies() == [b"1", b"2", b"3"]
    assert len(two.first.broker.engine.queues) == 0


@with_two_nodes
async def test_many_messages_under_way_are_all_confirmed_and_keep_their_order(two: Two) -> None:
    await two.forwarded()
    await two.here.declare_queue("mine", durable=True)
    exchange = two.here.default_exchange
    # Every third is for this node's own queue: its confirms do not wait for the other node.
    keys = ["mine" if number % 3 == 0 else "orders" for number in range(600)]
    confirms = await asyncio.gather(
        *[exchange.publish(aio_pika.Message(b"%d" % number, delivery_mode=2), key) for number, key in enumerate(keys)]
    )
    assert all(isinstance(confirm, Basic.Ack) for confirm in confirms)
    assert two.bodies() == [b"%d" % number for number, key in enumerate(keys) if key == "orders"]


@with_two_nodes
async def test_a_queue_is_declared_once_and_found_from_every_node(two: Two) -> None:
    await two.forwarded()
    await two.publish(b"1", b"2")
    again = await two.here.declare_queue("orders", durable=True)
    assert (again.declaration_result.message_count, again.declaration_result.consumer_count) == (2, 0)
    passive = await two.here.declare_queue("orders", passive=True)
    assert passive.declaration_result.message_count == 2
    assert two.first.broker.engine.find_queue("orders") is None


@with_two_nodes
async def test_a_queue_that_is_declared_differently_from_elsewhere_is_refused(two: Two) -> None:
    await two.forwarded()
    with pytest.raises(aiormq.exceptions.ChannelPreconditionFailed, match="inequivalent arg 'auto_delete'"):
        await two.here.declare_queue("orders", durable=True, auto_delete=True)


@with_two_nodes
async def test_a_queue_that_nobody_has_is_not_found_from_anywhere(two: Two) -> None:
    with pytest.raises(aiormq.exceptions.ChannelNotFoundEntity, match="no queue 'orders' in vhost '/'"):
        await two.here.declare_queue("orders", passive=True)


@with_two_nodes
async def test_a_queue_of_which_this_node_has_not_heard_yet_is_looked_up(two: Two) -> None:
    await two.there.declare_queue("orders", durable=True)
    assert len(two.first.directory) == 0
    await two.publish(b"1")
    assert two.bodies() == [b"1"]


@with_two_nodes
async def test_messages_are_consumed_and_acknowledged_across_nodes(two: Two) -> None:
    queue, inbox = await two.forwarded(), Inbox()
    await queue.consume(inbox)
    await two.publish(b"1", b"2", b"3")
    messages = await inbox.take(3)
    assert bodies(messages) == [b"1", b"2", b"3"]
    assert not any(message.redelivered for message in messages)
    for message in messages:
        await message.ack()
    await until(lambda: not two.queue_state.unacked)
    assert len(two.queue_state) == 0


@with_two_nodes
async def test_the_window_of_a_consumer_is_kept_by_the_owner(two: Two) -> None:
    queue, inbox = await two.forwarded(), Inbox()
    await two.here.set_qos(2)
    await two.publish(*[b"%d" % number for number in range(5)])
    await queue.consume(inbox)
    first, second = await inbox.take(2)
    assert len(two.queue_state) == 3
    await second.ack(multiple=True)
    assert bodies(await inbox.take(2)) == [b"2", b"3"]
    assert first.body == b"0"
    assert len(two.queue_state) == 1


@with_two_nodes
async def test_a_shared_window_holds_for_local_and_remote_consumers_together(two: Two) -> None:
    queue, inbox = await two.forwarded(), Inbox()
    mine = await two.here.declare_queue("mine", durable=True)
    await two.here.set_qos(3, global_=True)
    await two.publish(b"a", b"b", b"c")
    for body in (b"1", b"2", b"3"):
        await two.here.default_exchange.publish(aio_pika.Message(body), "mine")
    await queue.consume(inbox)
    await mine.consume(inbox)
    messages = await inbox.take(3)
    await two.first.peers.request(2, "flush", {})
    assert inbox.messages.empty()
    await messages[-1].ack(multiple=True)
    messages += await inbox.take(3)
    assert sorted(bodies(messages)) == [b"1", b"2", b"3", b"a", b"b", b"c"]


@with_two_nodes
async def test_messages_without_acknowledgement_are_gone_when_they_are_sent(two: Two) -> None:
    queue, inbox = await two.forwarded(), Inbox()
    await two.publish(*[b"%d" % number for number in range(50)])
    await queue.consume(inbox, no_ack=True)
    assert bodies(await inbox.take(50)) == [b"%d" % number for number in range(50)]
    await until(lambda: not two.queue_state.unacked)


@with_two_nodes
async def test_what_is_given_back_comes_again_as_redelivered(two: Two) -> None:
    queue, inbox = await two.forwarded(), Inbox()
    await queue.consume(inbox)
    await two.publish(b"1")
    (message,) = await inbox.take(1)
    await message.nack(requeue=True)
    (again,) = await inbox.take(1)
    assert again.redelivered
    await again.ack()
    await until(lambda: not two.queue_state.unacked)


@with_two_nodes
async def test_recover_brings_everything_again(two: Two) -> None:
    queue, inbox = await two.forwarded(), Inbox()
    await queue.consume(inbox)
    await two.publish(b"1", b"2")
    await inbox.take(2)
    underlying = await two.here.get_underlay_channel()
    await underlying.basic_recover(requeue=True)
    again = await inbox.take(2)
    assert sorted(bodies(again)) == [b"1", b"2"]
    assert all(message.redelivered for message in again)


@with_two_nodes
async def test_a_rejected_message_is_a_dead_letter_at_its_owner(two: Two) -> None:
    dead = await two.there.declare_queue("dead", durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    queue, inbox = await two.forwarded(arguments=arguments), Inbox()
    await queue.consume(inbox)
    await two.publish(b"1")
    (message,) = await inbox.take(1)
    await message.reject(requeue=False)
    letters = Inbox()
    await dead.consume(letters)
    (letter,) = await letters.take(1)
    assert letter.headers["x-first-death-reason"] == "rejected"


@with_two_nodes
async def test_a_dead_letter_goes_to_the_queue_of_another_node(two: Two) -> None:
    await two.here.declare_queue("dead", durable=True)
    two.made.send_all()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    queue, inbox = await two.forwarded(arguments=arguments), Inbox()
    await queue.consume(inbox)
    await two.publish(b"1")
    (message,) = await inbox.take(1)
    await message.reject(requeue=False)
    dead = two.first.broker.engine.find_queue("dead")
    assert dead is not None
    await until(lambda: len(dead) == 1)
    await until(lambda: not two.queue_state.unacked)


@with_two_nodes
async def test_dead_letter_of_two_nodes_never_cancels_unwritten_insert(two: Two) -> None:
    await two.here.declare_queue("dead-here", durable=True)
    two.made.send_all()
    dead_letters = await two.there.declare_exchange("dlx", "fanout", durable=True)
    for name in ("dead-here", "dead-there"):
        queue = await two.there.declare_queue(name, durable=True)
        await queue.bind(dead_letters)
    await two.forwarded(arguments={"x-dead-letter-exchange": "dlx"})
    inbox = Inbox()
    await (await two.there.get_queue("orders")).consume(inbox)
    gate = held_store(two.second)
    # The first one is on its way to the store, which hangs; the second one gathers behind it.
    first = asyncio.ensure_future(two.publish(b"1", channel=two.there))
    await inbox.take(1)
    second = asyncio.ensure_future(two.publish(b"2", channel=two.there))
    (message,) = await inbox.take(1)
    await message.reject(requeue=False)
    # The other node has its copy, and the dead message is gone; the copy of this node is not written yet.
    await until(lambda: len(two.queue_state.unacked) == 1)
    await two.there.set_qos(0)
    assert not second.done()
    gate.set()
    await asyncio.gather(first, second)


@with_two_nodes
async def test_message_stays_until_a_dead_letter_of_its_refused_copy_is_safe(two: Two) -> None:
    await two.forwarded()
    refusing: dict[str, Any] = {"x-max-length": 0, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": ""}
    await two.here.declare_queue("full", arguments={**refusing, "x-dead-letter-routing-key": "orders"})
    arguments: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "full"}
    dying = await two.here.declare_queue("dying", durable=True, arguments=arguments)
    await two.here.default_exchange.publish(aio_pika.Message(b"1", delivery_mode=2), "dying")
    message = await dying.get()
    gate = held_store(two.second)
    await message.reject(requeue=False)
    # The other node has taken the dead letter, which is not stored yet.
    await until(lambda: two.queue_state.queue.name == "orders" and len(two.queue_state) == 1)
    await two.here.set_qos(0)
    state = two.first.broker.engine.find_queue("dying")
    assert state is not None
    assert len(state.unacked) == 1
    gate.set()
    await until(lambda: not state.unacked)
    assert two.bodies() == [b"1"]


@with_two_nodes
async def test_single_messages_are_got_settled_and_given_back(two: Two) -> None:
    queue = await two.forwarded()
    assert await queue.get(fail=False) is None
    await two.publish(b"1", b"2", b"3")
    first = await queue.get()
    assert (first.body, first.message_count) == (b"1", 2)
    await first.ack()
    second = await queue.get()
    await second.nack(requeue=True)
    again = await queue.get(no_ack=True)
    assert (again.body, again.redelivered) == (b"2", True)
    third = await queue.get()
    await third.reject(requeue=False)
    await until(lambda: not two.queue_state.unacked)
    assert len(two.queue_state) == 0


@with_two_nodes
async def test_a_queue_of_another_node_is_purged_and_deleted(two: Two) -> None:
    queue = await two.forwarded()
    await two.publish(b"1", b"2")
    assert (await queue.purge()).message_count == 2
    await two.publish(b"3")
    with pytest.raises(aiormq.exceptions.ChannelPreconditionFailed, match="not empty"):
        await queue.delete(if_unused=False, if_empty=True)
    await two.here.reopen()
    queue = await two.here.get_queue("orders")
    await queue.delete(if_unused=False, if_empty=False)
    assert two.second.broker.engine.find_queue("orders") is None
    assert len(two.first.directory) == 0


@with_two_nodes
async def test_the_consumers_of_a_queue_that_is_deleted_are_told(two: Two) -> None:
    queue = await two.forwarded()
    underlying: Any = await two.here.get_underlay_channel()
    await queue.consume(Inbox(), consumer_tag="mine")
    assert "mine" in underlying.consumers
    await two.there.queue_delete("orders")
    await until(lambda: "mine" not in underlying.consumers)


@with_two_nodes
async def test_an_auto_delete_queue_goes_with_its_last_consumer_on_another_node(two: Two) -> None:
    queue = await two.forwarded(durable=False, auto_delete=True)
    tag = await queue.consume(Inbox())
    await queue.cancel(tag)
    await until(lambda: two.second.broker.engine.find_queue("orders") is None)


@with_two_nodes
async def test_an_exclusive_queue_of_a_connection_elsewhere_is_locked(two: Two) -> None:
    await two.there.declare_queue("orders", exclusive=True)
    with pytest.raises(aiormq.exceptions.ChannelLockedResource, match="cannot obtain exclusive access"):
        await two.here.declare_queue("orders", passive=True)


@with_two_nodes
async def test_an_exclusive_consumer_keeps_those_of_other_nodes_out(two: Two) -> None:
    queue = await two.forwarded()
    mine = await two.there.get_queue("orders")
    tag = await mine.consume(Inbox(), exclusive=True)
    with pytest.raises(aiormq.exceptions.ChannelAccessRefused, match="in exclusive use"):
        await queue.consume(Inbox())
    await mine.cancel(tag)
    await two.here.reopen()
    queue = await two.here.get_queue("orders")
    await queue.consume(Inbox(), exclusive=True)
    with pytest.raises(aiormq.exceptions.ChannelAccessRefused, match="in exclusive use"):
        await mine.consume(Inbox())


@with_two_nodes
async def test_a_consumer_with_a_higher_priority_is_served_first_wherever_it_is(two: Two) -> None:
    queue = await two.forwarded()
    low, high = Inbox(), Inbox()
    await (await two.there.get_queue("orders")).consume(low)
    await queue.consume(high, arguments={"x-priority": 5})
    await two.publish(b"1", b"2")
    assert bodies(await high.take(2)) == [b"1", b"2"]
    assert low.messages.empty()


@pytest.mark.parametrize("priority", [2**31, 2**63 - 1, -(2**63)])
@with_two_nodes
async def test_priority_of_a_remote_consumer_may_have_64_bits(two: Two, priority: int) -> None:
    queue, inbox = await two.forwarded(), Inbox()
    await queue.consume(inbox, arguments={"x-priority": priority})
    (consumer,) = two.queue_state.consumers.values()
    assert consumer.priority == priority
    await two.publish(b"1")
    assert bodies(await inbox.take(1)) == [b"1"]


@with_two_nodes
async def test_request_that_cannot_be_encoded_leaves_nothing_behind(two: Two) -> None:
    await two.forwarded()
    link = two.first.peers.link(2)
    remote = two.first.directory.get(two.queue_id)
    assert link is not None
    assert remote is not None
    with pytest.raises(struct.error):
        two.first.remotes.attach(
            remote,
            SimpleNamespace(prefetch=1, priority=2**63, exclusive=False, no_ack=True, selector=None),
            lambda error: None,
        )
    assert (link._answers, link.consumers) == ({}, {})


@with_two_nodes
async def test_direct_reply_to_a_name_that_is_no_utf8_is_dropped(two: Two) -> None:
    await two.forwarded()
    name = b"amq.rabbitmq.reply-to.2.\xff".decode("utf-8", "surrogateescape")
    publisher = two.first.sessions[0]
    two.first.context.replies.send(name, b"\0\0", b"\0\0", b"body")
    await two.publish(b"1")
    assert (two.bodies(), publisher.is_gone, two.second.hub.faults.count) == ([b"1"], False, 0)


@with_two_nodes
async def test_messages_with_priorities_come_in_their_order(two: Two) -> None:
    queue, inbox = await two.forwarded(arguments={"x-max-priority": 5}), Inbox()
    for priority in (1, 5, 3):
        await two.publish(b"%d" % priority, priority=priority)
    await queue.consume(inbox)
    assert bodies(await inbox.take(3)) == [b"5", b"3", b"1"]


@with_two_nodes
async def test_a_full_queue_refuses_a_message_of_another_node(two: Two) -> None:
    await two.forwarded(arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    await two.publish(b"1")
    with pytest.raises(aio_pika.exceptions.DeliveryError):
        await two.publish(b"2")
    assert two.bodies() == [b"1"]


@with_two_nodes
async def test_a_mandatory_message_comes_back_only_if_no_node_has_its_queue(two: Two) -> None:
    await two.there.declare_queue("orders", durable=True)
    async with client(two.first) as connection:
        exchange = (await connection.channel(on_return_raises=True)).default_exchange
        await exchange.publish(aio_pika.Message(b"1"), "orders", mandatory=True)
        with pytest.raises(aio_pika.exceptions.PublishError):
            await exchange.publish(aio_pika.Message(b"2"), "nowhere", mandatory=True)
    assert two.bodies() == [b"1"]


@with_two_nodes
async def test_an_exchange_leads_to_queues_of_several_nodes(two: Two) -> None:
    queue = await two.forwarded()
    mine = await two.here.declare_queue("mine", durable=True)
    exchange = await two.here.declare_exchange("news", "fanout", durable=True)
    await queue.bind(exchange)
    await mine.bind(exchange)
    confirm = await exchange.publish(aio_pika.Message(b"1", delivery_mode=2), "")
    assert isinstance(confirm, Basic.Ack)
    assert two.bodies() == [b"1"]
    assert (await mine.get()).body == b"1"


@with_two_nodes
async def test_a_transaction_is_done_when_the_other_node_has_it(two: Two) -> None:
    await two.forwarded()
    await two.publish(b"old")
    async with client(two.first) as connection:
        channel = await connection.channel(publisher_confirms=False)
        queue = await channel.get_queue("orders")
        message = await queue.get()
        async with channel.transaction():
            await message.ack()
            await two.publish(b"new", channel=channel)
            assert two.bodies() == []
        assert two.bodies() == [b"new"]
        assert not two.queue_state.unacked


@with_two_nodes
async def test_direct_replies_find_the_channel_on_another_node(two: Two) -> None:
    replies = Inbox()
    reply_queue = await two.here.get_queue("amq.rabbitmq.reply-to", ensure=False)
    await reply_queue.consume(replies, no_ack=True)
    queue, inbox = await two.forwarded(), Inbox()
    await (await two.there.get_queue("orders")).consume(inbox)
    await two.publish(b"question", reply_to="amq.rabbitmq.reply-to")
    (question,) = await inbox.take(1)
    assert question.reply_to is not None
    await two.there.default_exchange.publish(aio_pika.Message(b"answer"), question.reply_to)
    assert bodies(await replies.take(1)) == [b"answer"]
    assert queue.name == "orders"


@with_two_nodes
async def test_what_a_client_has_not_settled_when_it_goes_comes_again_to_others(two: Two) -> None:
    await two.forwarded()
    await two.publish(b"1", b"2")
    async with client(two.first) as connection:
        channel = await connection.channel()
        inbox = Inbox()
        await (await channel.get_queue("orders")).consume(inbox)
        await inbox.take(2)
    other = Inbox()
    await (await two.there.get_queue("orders")).consume(other)
    again = await other.take(2)
    assert sorted(bodies(again)) == [b"1", b"2"]
    assert all(message.redelivered for message in again)


@with_two_nodes
async def test_cancel_returns_the_ready_messages_of_a_shadow(two: Two) -> None:
    queue, inbox = await two.forwarded(), Inbox()
    session = two.first.sessions[0]
    await two.publish(b"1", b"2", b"3")
    session.pause_writing()
    tag = await queue.consume(inbox)
    await until(lambda: len(two.queue_state) == 0)
    await queue.cancel(tag)
    await until(lambda: len(two.queue_state) == 3)
    assert two.bodies() == [b"1", b"2", b"3"]
    assert [message.delivery_count for message in two.queue_state.oldest(0, 10)] == [0, 0, 0]
    assert two.first.broker.engine._queues == {}


def test_a_claimed_name_is_declared_where_it_was_claimed_first() -> None:
    async def test() -> None:
        async with two_nodes() as two:
            declared: list[Coroutine[Any, Any, Any]] = [
                channel.declare_queue("orders", durable=True) for channel in (two.here, two.there) for _ in range(5)
            ]
            await asyncio.gather(*declared)
            owners = [node.id for node in two.made.nodes if node.broker.engine.find_queue("orders") is not None]
            assert len(owners) == 1

    run(test())


@with_two_nodes
async def test_no_queue_of_its_own_is_left_of_a_client_that_goes_while_it_is_declared(two: Two) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def claim(vhost: str, name: str) -> int:
        asked.set()
        await answer.wait()
        return two.first.id

    two.first.changes.claim = claim
    connection = await aiormq.connect(f"amqp://guest:guest@{two.first.addresses['amqp']}/")
    channel = await connection.channel()
    declaring = asyncio.ensure_future(channel.queue_declare("mine", exclusive=True))
    await asked.wait()
    (session,) = [session for session in two.first.sessions if session.in_flight]
    session.abort()
    await until(lambda: session not in two.first.hub.connections)
    answer.set()
    await until(lambda: not two.first.hub.tasks_under_way)
    assert two.first.broker.engine.find_queue("mine") is None
    with pytest.raises(aiormq.exceptions.AMQPError):
        await declaring
