"""The guarantees of every store to several nodes that share it."""

from __future__ import annotations

import asyncio
import random

import pytest

from flyball.broker.store.changes import (
    Change,
    ClientCreated,
    ClientDeleted,
    DefinitionDeleted,
    DefinitionPut,
    QueueCreated,
    QueueDeleted,
    QueueMoved,
)
from flyball.broker.store.interface import RECOVERED, Batch, IndexColumns, Transfer
from flyball.broker.store.registry import NodeState
from flyball.errors import Fenced, StoreError, StoreUnavailable
from flyball.model import Client, ClientMode, Definition, Message, PlacedQueue, Queue
from tests.broker.store.domains import (
    LONG_S,
    Node,
    SharedDomain,
    all_changes,
    crash,
    die,
    ids_in,
    lapse,
    opened,
    retried,
    told,
    until,
    up,
    with_queue,
)
from tests.broker.store.test_store_conformance import ARGUMENTS

# Joining


async def test_a_node_keeps_its_id_and_begins_another_epoch_with_each_join(domain: SharedDomain) -> None:
    first = await domain.node("a")
    registry = first.registry
    assert (registry.node_id, registry.epoch, registry.generation) == (1, 1, 1)
    second = await domain.node("b", first)
    assert (second.registry.node_id, second.registry.epoch, second.registry.generation) == (2, 1, 2)
    await first.close()
    await opened(first, second)
    assert (registry.node_id, registry.epoch, registry.generation) == (1, 2, 3)
    assert first.registry.secret == second.registry.secret
    assert len(registry.secret) == 32


async def test_registry_is_clustered_once_a_node_joins_others(domain: SharedDomain) -> None:
    first = await domain.node("a")
    assert not first.registry.is_clustered
    second = domain.store("b")
    await opened(second, first)
    assert second.registry.is_clustered
    await first.registry.leave()
    third = domain.store("c")
    await second.registry.leave()
    await opened(third)
    assert not third.registry.is_clustered


async def test_a_node_that_joins_waits_until_all_that_are_up_know_of_it(domain: SharedDomain) -> None:
    first = await domain.node("a")
    second = await domain.node("b", first)
    third = domain.store("c")
    opening = asyncio.ensure_future(third.open())
    records = await up(second)
    while len(records) < 3:
        records = await up(second)
    await up(second)
    assert records[2].state is NodeState.JOINING
    assert not opening.done()
    await with_queue(first, 1)
    assert not opening.done()
    await up(first)
    snapshot = await opening
    assert snapshot.elsewhere == [PlacedQueue(Queue(1, "queue 1"), 1)]
    assert (await all_changes(third))[-1].version == snapshot.version


async def test_nobody_waits_for_a_node_whose_lease_is_over_or_that_has_left(domain: SharedDomain) -> None:
    first = await domain.node("a")
    await lapse(first)
    second = await domain.node("b")
    await second.registry.leave()
    assert (await (await domain.node("c")).registry.nodes())[1].is_gone


async def test_of_nodes_that_join_at_once_each_waits_for_those_before_it(domain: SharedDomain) -> None:
    nodes = [domain.store(name) for name in "abc"]
    openings = [asyncio.ensure_future(node.open()) for node in nodes]
    await asyncio.wait(openings, return_when=asyncio.FIRST_COMPLETED)
    assert [opening.done() for opening in openings].count(True) == 1
    while not all(opening.done() for opening in openings):
        for node, opening in zip(nodes, openings, strict=True):
            if opening.done():
                await up(node)
        await asyncio.sleep(0)
    await asyncio.gather(*openings)
    assert sorted(node.registry.generation for node in nodes) == [1, 2, 3]


async def test_a_second_node_of_the_same_name_is_refused(
    domain: SharedDomain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flyball.broker.store.postgres.store.WRITER_LOCK_TIMEOUT_S", 0.0)
    first = await domain.node("a")
    with pytest.raises(StoreError, match="another broker uses this database"):
        await domain.store("a").open()
    await with_queue(first, 1)


async def test_killed_node_serves_its_queues_at_once_after_a_restart(domain: SharedDomain) -> None:
    first = await domain.node("a")
    second = await domain.node("b", first)
    await with_queue(first, 1, range(1, 4))
    crash(first)
    again = domain.store("a")
    snapshot = await opened(again, second)
    assert [(summary.queue.id, summary.message_count) for summary in snapshot.queues] == [(1, 3)]
    assert (again.registry.node_id, again.registry.epoch) == (1, 2)


async def test_a_snapshot_tells_own_queues_and_those_of_others_apart(domain: SharedDomain) -> None:
    first = await domain.node("a")
    second = await domain.node("b", first)
    theirs = Queue(2, "their own", exclusive=True, durable=False, arguments={"x": 1}, member=True)
    await with_queue(first, 1, range(1, 4))
    await second.commit(
        Batch([QueueCreated(theirs)], [Message(9, 2, b""), Message(10, 2, b"", persistent=False, expires_us=5)])
    )
    await first.commit(Batch(appended=[Message(11, 1, b"", persistent=False), Message(12, 1, b"", expires_us=7)]))
    await first.close()
    snapshot = await opened(first, second)
    assert [summary.queue.id for summary in snapshot.queues] == [1]
    assert snapshot.queues[0].message_count == 4
    assert snapshot.elsewhere == [PlacedQueue(theirs, 2)]
    assert await ids_in(second, 2) == [9, 10], "what others serve is not ours to drop"
    assert await first.sweep_orphans() == 0
    assert await first.expiring() == [(1, 7)]


async def test_transient_queues_are_deleted_and_announced_on_restart(
    domain: SharedDomain,
) -> None:
    first = await domain.node("a")
    second = await domain.node("b", first)
    await with_queue(first, 1)
    await with_queue(first, 2, durable=False)
    await with_queue(first, 3, exclusive=True)
    await with_queue(second, 4, durable=False)
    version = (await all_changes(second))[-1].version
    crash(first)
    snapshot = await opened(first, second)
    assert [summary.queue.id for summary in snapshot.queues] == [1]
    assert [placed.queue.id for placed in snapshot.elsewhere] == [4]
    assert await told(second, version) == [QueueDeleted(2), QueueDeleted(3)]
    assert await second.registry.claim("/", "queue 2") == 2


# Leases and epochs


async def test_a_renewal_tells_everybody_of_the_node(domain: SharedDomain) -> None:
    first = await domain.node("a")
    second = await domain.node("b", first)
    await second.registry.renew(
        LONG_S,
        addresses={"amqp": "host:1"},
        report={"queues": [{"ready": 3, "load": 0.5}]},
        known_generation=2,
        seen_version=7,
        state=NodeState.LEAVING,
    )
    ours, theirs = await first.registry.nodes()
    assert (ours.name, theirs.name) == ("a", "b")
    assert (theirs.addresses, theirs.report) == ({"amqp": "host:1"}, {"queues": [{"ready": 3, "load": 0.5}]})
    assert (theirs.known_generation, theirs.seen_version, theirs.state) == (2, 7, NodeState.LEAVING)
    assert theirs.is_live
    assert not theirs.is_gone
    assert LONG_S - 60 < theirs.lease_left_s <= LONG_S
    await second.registry.leave()
    theirs = (await first.registry.nodes())[1]
    assert (theirs.is_live, theirs.is_gone, theirs.state) == (False, True, NodeState.LEAVING)


async def test_node_continues_after_an_expired_lease_if_its_epoch_lasts(
    domain: SharedDomain,
) -> None:
    node = await domain.node("a")
    await lapse(node)
    assert not (await node.registry.nodes())[0].is_live
    await up(node)
    assert (await node.registry.nodes())[0].is_live
    await with_queue(node, 1)


async def test_only_a_node_whose_lease_is_over_can_be_declared_dead(domain: SharedDomain) -> None:
    first = await domain.node("a")
    second = await domain.node("b", first)
    registry = second.registry
    assert not await registry.declare_dead(1, 1)
    assert not await registry.declare_dead(99, 1)
    await lapse(first)
    assert not await registry.declare_dead(1, 7)
    assert await registry.declare_dead(1, 1)
    dead = (await registry.nodes())[0]
    assert (dead.state, dead.epoch, dead.is_gone) == (NodeState.DEAD, 2, True)
    assert await registry.declare_dead(1, 1), "a leader may have come to its end right after that"
    assert await registry.declare_dead(1, 2)
    assert not await registry.declare_dead(1, 3)


async def test_a_fenced_node_can_do_nothing_more_until_it_joins_again(domain: SharedDomain) -> None:
    first = await domain.node("a")
    second = await domain.node("b", first)
    await with_queue(first, 1, range(1, 3))
    await lapse(first)
    await second.registry.declare_dead(1, 1)
    with pytest.raises(Fenced):
        await retried(first, Batch(removed=[1]))
    with pytest.raises(Fenced):
        await until_told(first)
    for refused in (first.page(1, 0, 1), first.delete_queue_messages(1, 9, []), first.reserve_message_ids(1)):
        with pytest.raises((Fenced, StoreUnavailable)):
            await refused
    assert await ids_in(second, 1) == [1, 2]
    await first.close()
    await opened(first, second)
    assert first.registry.epoch == 3
    await first.commit(Batch(removed=[1]))
    assert await ids_in(second, 1) == [2]


async def until_told(node: Node) -> None:
    """Ask until the registry answers: the session that is asked first may have been ended."""
    while True:
        try:
            await up(node)
            return
        except StoreUnavailable:
            continue


# Taking over


async def test_durable_queues_of_a_dead_node_move_and_others_are_deleted(domain: SharedDomain) -> None:
    first = await domain.node("a")
    second = await domain.node("b", first)
    third = await domain.node("c", first, second)
    await with_queue(first, 1, range(1, 4))
    await with_queue(first, 2, range(4, 6))
    await with_queue(first, 3, durable=False)
    await with_queue(first, 4)
    await first.commit(Batch(appended=[Message(50, 1, b"", persistent=False, receiver=7, sender=8)]))
    await first.commit(Batch(appended=[Message(51, 1, b"", receiver=7, sender=8)]))
    await first.registry.claim("/", "never made")
    version = (await all_changes(second))[-1].version
    await die(first, second)
    await second.registry.take_over(1, {1: 3, 2: 2})
    assert await told(third, version) == [
        QueueMoved(Queue(1, "queue 1"), 3),
        QueueMoved(Queue(2, "queue 2"), 2),
        QueueDeleted(3),
    ]
    [summary] = await third.adopt([1, 2, 99])
    assert (summary.queue, summary.message_count, summary.last_message_id) == (Queue(1, "queue 1"), 4, 51)
    assert (summary.addressed, summary.sent) == ({7: 1}, {8: 1})
    assert await ids_in(third, 1) == [1, 2, 3, 51]
    claimed = [await second.registry.claim("/", name) for name in ("queue 1", "queue 2", "queue 3", "queue 4")]
    assert claimed == [3, 2, 2, 1]
    assert await second.registry.claim("/", "never made") == 2
    snapshot = await opened(domain.store("d"), second, third)
    assert {placed.queue.id: placed.owner for placed in snapshot.elsewhere} == {1: 3, 2: 2, 4: 1}


async def test_only_a_dead_node_is_taken_over(domain: SharedDomain) -> None:
    first = await domain.node("a")
    second = await domain.node("b", first)
    await with_queue(first, 1, range(1, 3))
    await with_queue(second, 2)
    with pytest.raises(StoreError, match="not dead"):
        await second.registry.take_over(1, {1: 2})
    with pytest.raises(StoreError, match="not dead"):
        await second.registry.merge_member(1, 2)
    await die(first, second)
    await opened(first, second)
    with pytest.raises(StoreError, match="not dead"):
        await second.registry.take_over(1, {1: 2})
    assert await ids_in(first, 1) == [1, 2]


async def test_a_member_of_a_dead_node_is_merged_into_another(domain: SharedDomain) -> None:
    first = await domain.node("a")
    second = await domain.node("b", first)
    for node, number in ((first, 1), (second, 2)):
        await node.commit(Batch([QueueCreated(Queue(number, "orders", member=True))]))
    await first.commit(Batch(appended=[Message(number, 1, b"body") for number in range(1, 1001)]))
    await with_queue(first, 3)
    await die(first, second)
    with pytest.raises(StoreError, match="cannot merge queue 1 into queue 77: it does not exist"):
        await second.registry.merge_member(1, 77)
    assert await second.registry.merge_member(99, 2) == 0
    assert await second.registry.merge_member(1, 2) == 1000
    assert await second.registry.merge_member(1, 2) == 0
    await second.registry.take_over(1, {})
    assert await arrived(second, 2) == list(range(1, 1001))
    assert await ids_in(second, 2) == list(range(1, 1001))
    assert await told(second, (await all_changes(second))[-2].version) == [QueueDeleted(1)]
    assert await second.registry.claim("/", "orders") == 0
    with pytest.raises(StoreError, match="serves queues"):
        await second.registry.remove_node(1)
    await second.registry.take_over(1, {3: 2})
    await second.registry.remove_node(1)
    assert [node.id for node in await second.registry.nodes()] == [2]


async def test_a_node_is_removed_only_when_it_is_gone_and_comes_back_as_another(domain: SharedDomain) -> None:
    first = await domain.node("a")
    second = await domain.node("b", first)
    with pytest.raises(StoreError, match="has not left and is not dead: stop it first"):
        await second.registry.remove_node(1)
    await first.close()
    await second.registry.remove_node(1)
    await second.registry.remove_node(1)
    await opened(first, second)
    assert (first.registry.node_id, first.registry.epoch) == (3, 1)


async def test_a_queue_that_was_left_to_a_node_which_is_removed_is_taken_over(domain: SharedDomain) -> None:
    first = await domain.node("a")
    second = await domain.node("b", first)
    third = await domain.node("c", first, second)
    await with_queue(first, 1, range(1, 4))
    await third.close()
    await second.registry.remove_node(3)
    await first.commit(Batch([QueueMoved(Queue(1, "queue 1"), 3)]))
    await second.registry.take_over(3, {1: 2})
    [summary] = await second.adopt([1])
    assert summary.message_count == 3


# Transfers


async def arrived(node: Node, queue_id: int) -> list[int]:
    """Take in all that was transferred to the queue."""
    found: list[int] = []
    while arrivals := await node.arrivals([queue_id]):
        assert {one.queue_id for one in arrivals} == {queue_id}
        messages = [message for one in arrivals for message in one.messages]
        assert all(message.stored and message.queue_id == queue_id for message in messages)
        found += [message.id for message in messages]
        await node.received(arrivals)
    return found


async def with_members(domain: SharedDomain) -> tuple[Node, Node]:
    first = await domain.node("a")
    second = await domain.node("b", first)
    await with_queue(first, 1, range(1, 11))
    await with_queue(second, 2)
    return first, second


async def test_messages_are_transferred_to_the_queue_of_another_node_and_arrive_once(domain: SharedDomain) -> None:
    first, second = await with_members(domain)
    batch = Batch(removed=[1], transfers=[Transfer([3, 2, 1, 77], 1, 2), Transfer([5], 1, 2)])
    await first.commit(batch)
    assert batch.refused == []
    assert await ids_in(first, 1) == [4, *range(6, 11)]
    [one, other] = await second.arrivals([2, 99])
    assert ([message.id for message in one.messages], [message.id for message in other.messages]) == ([2, 3], [5])
    assert one.messages[0].body == b"body"
    assert await first.arrivals([1]) == []
    await second.received([one])
    assert await second.arrivals([2]) == [other]
    await second.received([other])
    assert await second.arrivals([2]) == []
    assert await ids_in(second, 2) == [2, 3, 5]


async def test_a_transfer_that_is_committed_again_is_not_done_again(domain: SharedDomain) -> None:
    first, second = await with_members(domain)
    there = Batch(transfers=[Transfer([1, 2], 1, 2), Transfer([3], 1, 2)])
    await first.commit(there)
    await first.commit(there, again=True)
    assert await arrived(second, 2) == [1, 2, 3]
    await second.commit(Batch(transfers=[Transfer([1], 2, 1)]))
    await first.commit(there, again=True)
    assert await arrived(first, 1) == [1]
    assert await arrived(second, 2) == []
    assert 1 in await ids_in(first, 1)
    await first.commit(Batch(transfers=[Transfer([1, 2], 1, 2)]))
    assert await arrived(second, 2) == [1]


async def test_messages_stay_where_they_are_if_their_destination_is_gone(domain: SharedDomain) -> None:
    first, second = await with_members(domain)
    await second.commit(Batch([QueueDeleted(2)]))
    await with_queue(second, 3)
    transfers = [Transfer([1], 1, 2), Transfer([2], 1, 3)]
    batch = Batch(appended=[Message(20, 1, b"")], transfers=transfers)
    await first.commit(batch)
    assert batch.refused == [transfers[0]]
    assert await ids_in(first, 1) == [1, *range(3, 11), 20]
    assert await arrived(second, 3) == [2]


async def test_transfer_passed_on_by_a_deleted_member_arrives_once(domain: SharedDomain) -> None:
    first = await domain.node("a")
    second = await domain.node("b", first)
    for node, number in ((first, 1), (second, 2)):
        await node.commit(Batch([QueueCreated(Queue(number, "orders", member=True))]))
    await first.commit(Batch(appended=[Message(number, 1, b"body") for number in range(1, 4)]))
    await first.commit(Batch(transfers=[Transfer([1, 2, 3], 1, 2)]))
    await second.commit(Batch(transfers=[Transfer([1, 2], 2, 1)]))
    await second.commit(Batch([QueueDeleted(2)]))
    assert sorted(await arrived(first, 1)) == [1, 2, 3]


async def test_what_is_on_its_way_to_a_member_that_is_deleted_goes_to_another_member(domain: SharedDomain) -> None:
    first = await domain.node("a")
    second = await domain.node("b", first)
    for node, number in ((first, 1), (second, 2)):
        await node.commit(Batch([QueueCreated(Queue(number, "orders", member=True))]))
    await with_queue(second, 3)
    await first.commit(Batch(appended=[Message(number, 1, b"body") for number in range(1, 5)]))
    await first.commit(Batch(transfers=[Transfer([1, 2], 1, 2), Transfer([3], 1, 2), Transfer([4], 1, 3)]))
    await second.commit(Batch(removed=[2]))
    await second.commit(Batch([QueueDeleted(2)]))
    assert await arrived(first, 1) == [1, 3]
    assert await ids_in(first, 1) == [1, 3]
    assert await arrived(second, 3) == [4]


async def test_redirected_transfer_still_arrives_after_an_earlier_confirmation(
    domain: SharedDomain,
) -> None:
    first = await domain.node("a")
    second = await domain.node("b", first)
    for node, number in ((first, 1), (second, 2)):
        await node.commit(Batch([QueueCreated(Queue(number, "orders", member=True))]))
    await first.commit(Batch(appended=[Message(1, 1, b"body")]))
    await first.commit(Batch(transfers=[Transfer([1], 1, 2)]))
    taken = await second.arrivals([2])
    await second.commit(Batch([QueueDeleted(2)]))
    for _ in range(2):
        await second.received(taken)
    assert await arrived(first, 1) == [1]


async def delivery_counts(node: Node, queue_id: int) -> dict[int, int]:
    arrivals = await node.arrivals([queue_id])
    return {message.id: message.delivery_count for one in arrivals for message in one.messages}


async def test_redirected_transfer_keeps_its_delivery_counts(
    domain: SharedDomain,
) -> None:
    first = await domain.node("a")
    second = await domain.node("b", first)
    for node, number in ((first, 1), (second, 2)):
        await node.commit(Batch([QueueCreated(Queue(number, "orders", member=True))]))
    await first.commit(Batch(appended=[Message(number, 1, b"body") for number in range(1, 5)]))
    await first.commit(Batch(transfers=[Transfer([1, 2, 4], 1, 2, {1: 3, 4: 1}), Transfer([3], 1, 2)]))
    assert await delivery_counts(second, 2) == {1: 3, 2: 0, 3: 0, 4: 1}
    await second.commit(Batch(removed=[4]))
    await second.commit(Batch([QueueDeleted(2)]))
    assert await delivery_counts(first, 1) == {1: 3, 2: 0, 3: 0}


async def test_transferred_message_that_was_recovered_stays_so(domain: SharedDomain) -> None:
    first = await domain.node("a")
    second = await domain.node("b", first)
    for node, number in ((first, 1), (second, 2)):
        await node.commit(Batch([QueueCreated(Queue(number, "orders", member=True))]))
    await first.commit(Batch(appended=[Message(number, 1, b"body") for number in range(1, 4)]))
    await first.commit(Batch(transfers=[Transfer([1, 2, 3], 1, 2, {1: RECOVERED, 2: 2})]))
    arrivals = await second.arrivals([2])
    found = {message.id: (message.delivery_count, message.recovered) for one in arrivals for message in one.messages}
    assert found == {1: (0, True), 2: (2, False), 3: (0, False)}


async def test_earlier_transfers_are_in_the_summary_of_an_opened_queue(
    domain: SharedDomain,
) -> None:
    first, second = await with_members(domain)
    await first.commit(Batch(transfers=[Transfer([1, 2], 1, 2)]))
    await second.close()
    [summary] = (await opened(second, first)).queues
    assert (summary.message_count, summary.last_message_id) == (2, 2)
    assert await arrived(second, 2) == []
    await up(second)
    await first.commit(Batch(transfers=[Transfer([3], 1, 2)]))
    await die(second, first)
    await first.registry.take_over(2, {2: 1})
    [summary] = await first.adopt([2])
    assert (summary.message_count, await arrived(first, 2)) == (3, [])


async def test_what_was_transferred_is_not_read_before_it_is_received(domain: SharedDomain) -> None:
    first, second = await with_members(domain)
    await first.commit(Batch(transfers=[Transfer([1, 2], 1, 2)]))
    assert await ids_in(second, 2) == []
    assert await second.body_bytes(2, []) == 0
    [piece] = [piece async for piece in second.index(2, IndexColumns(), 100)]
    assert piece.keys == []
    assert await second.delete_queue_messages(2, 100, []) == 0
    assert await arrived(second, 2) == [1, 2]
    assert await ids_in(second, 2) == [1, 2]


async def test_a_message_that_has_left_again_has_not_arrived(domain: SharedDomain) -> None:
    first, second = await with_members(domain)
    await first.commit(Batch(transfers=[Transfer([1, 2], 1, 2)]))
    await second.commit(Batch(removed=[1]))
    await second.commit(Batch(transfers=[Transfer([2], 2, 1)]))
    [one] = await second.arrivals([2])
    assert one.messages == []
    assert await arrived(first, 1) == [2]


async def test_messages_moved_back_and_forth_are_not_lost_or_duplicated(
    domain: SharedDomain,
) -> None:
    first, second = await with_members(domain)
    chance = random.Random(7)
    held: dict[int, set[int]] = {1: set(range(1, 11)), 2: set()}

    async def throw(node: Node, source: int, destination: int) -> None:
        for number in range(40):
            held[source].update(await arrived(node, source))
            thrown = [message_id for message_id in sorted(held[source]) if chance.random() < 0.5]
            held[source].difference_update(thrown)
            batch = Batch(
                transfers=[Transfer(thrown[:3], source, destination), Transfer(thrown[3:], source, destination)]
            )
            await node.commit(batch)
            if number % 3 == 0:
                await node.commit(batch, again=True)

    await asyncio.gather(throw(first, 1, 2), throw(second, 2, 1))
    for node, queue_id in ((first, 1), (second, 2)):
        held[queue_id].update(await arrived(node, queue_id))
        assert await ids_in(node, queue_id) == sorted(held[queue_id])
    assert sorted([*held[1], *held[2]]) == list(range(1, 11))


# Changes


async def test_changes_are_told_to_others_as_they_were_made_and_not_before(domain: SharedDomain) -> None:
    first = await domain.node("a")
    await with_queue(first, 1)
    assert await told(first) == []
    second = await domain.node("b", first)
    changes: list[Change] = [
        QueueCreated(
            Queue(2, "a\\0000b \0 \udcff", vhost="\udc80", durable=False, auto_delete=True, arguments=ARGUMENTS)
        ),
        ClientCreated(Client(3, "ada", ClientMode.READ_ONLY)),
        DefinitionPut(Definition("exchange", "half \udc80", ARGUMENTS)),
        DefinitionDeleted("exchange", "half \udc80"),
        ClientDeleted(3),
        QueueMoved(Queue(1, "queue 1"), 2),
        QueueDeleted(2),
    ]
    await first.commit(Batch(changes[:3]))
    await first.commit(Batch(changes[3:]))
    found = await all_changes(second)
    assert [one.change for one in found] == changes
    assert [(one.version, one.node_id) for one in found] == [(number, 1) for number in range(1, 8)]
    put = found[2].change
    assert isinstance(put, DefinitionPut)
    assert put.definition.value == ARGUMENTS
    assert await second.registry.changes(2, limit=2) == found[2:4]
    await second.close()
    snapshot = await opened(second, first)
    assert ([summary.queue.id for summary in snapshot.queues], snapshot.version) == ([1], 7)
    assert await second.registry.changes(snapshot.version) == []


async def test_a_queue_that_is_moved_belongs_to_its_new_owner(domain: SharedDomain) -> None:
    first = await domain.node("a")
    second = await domain.node("b", first)
    await with_queue(first, 1, range(1, 4))
    await first.commit(Batch([QueueMoved(Queue(1, "queue 1"), 2)]))
    [summary] = await second.adopt([1])
    assert (summary.message_count, await first.adopt([1])) == (3, [])
    assert await first.registry.claim("/", "queue 1") == 2
    await first.commit(Batch([QueueCreated(Queue(5, "new")), QueueMoved(Queue(5, "new"), 2)]))
    assert [summary.queue.id for summary in await second.adopt([5])] == [5]


async def test_changes_of_many_nodes_at_once_are_seen_completely_and_in_one_order(domain: SharedDomain) -> None:
    nodes = [await domain.node("a")]
    for name in "bc":
        nodes.append(await domain.node(name, *nodes))
    writing = len(nodes)

    async def write(node: Node) -> None:
        nonlocal writing
        chance = random.Random(node.registry.node_id)
        for number in range(40):
            value = {"of": node.registry.node_id, "number": number}
            keys = chance.sample("abcdef", 3)
            await node.commit(Batch([DefinitionPut(Definition("policy", key, value)) for key in keys]))
        writing -= 1

    async def follow(node: Node) -> list[tuple[int, str, int]]:
        seen: list[tuple[int, str, int]] = []
        while True:
            is_last = writing == 0
            found = await node.registry.changes(len(seen), limit=7)
            for one in found:
                assert one.version == len(seen) + 1, "a version was skipped, or came late"
                assert isinstance(one.change, DefinitionPut)
                definition = one.change.definition
                seen.append((one.node_id, definition.key, definition.value["number"]))
            if is_last and not found:
                return seen
            await asyncio.sleep(0)

    results = await asyncio.gather(*(follow(node) for node in nodes), *(write(node) for node in nodes))
    seen = results[0]
    assert isinstance(seen, list)
    assert len(seen) == 3 * 40 * 3
    assert results[1] == results[2] == seen
    for node in nodes:
        numbers = [number for node_id, _, number in seen if node_id == node.registry.node_id]
        assert numbers == sorted(numbers)
    snapshot = await opened(domain.store("d"), *nodes)
    last = {key: number for _, key, number in seen}
    assert {definition.key: definition.value["number"] for definition in snapshot.definitions} == last
    assert snapshot.version == len(seen)


async def test_changes_are_forgotten_when_all_that_follow_have_seen_them(domain: SharedDomain) -> None:
    first = await domain.node("a")
    second = await domain.node("b", first)
    third = await domain.node("c", first, second)
    for number in range(1, 6):
        await with_queue(first, number)

    async def saw(node: Node, version: int) -> None:
        await node.registry.renew(LONG_S, addresses={}, report={}, known_generation=3, seen_version=version)

    await saw(first, 5)
    await saw(second, 3)
    await lapse(third)
    await first.registry.trim_changes(5)
    assert len(await all_changes(first)) == 5, "its lease is over, but it may go on"
    await third.registry.leave()
    await first.registry.trim_changes(2)
    assert [one.version for one in await all_changes(first)] == [3, 4, 5]
    await first.registry.trim_changes(5)
    assert [one.version for one in await all_changes(first)] == [4, 5]
    await with_queue(first, 6)
    assert (await all_changes(second))[-1].version == 6


async def test_everybody_else_is_told_that_there_is_news(domain: SharedDomain) -> None:
    first = await domain.node("a")
    second = await domain.node("b", first)
    await with_queue(second, 2)
    heard: list[str] = []
    first.registry.news.subscribe(lambda: heard.append("first"))
    second.registry.news.subscribe(lambda: heard.append("second"))
    await with_queue(first, 1, range(1, 3))
    await until(lambda: heard)
    await first.commit(Batch(transfers=[Transfer([1], 1, 2)]))
    await until(lambda: len(heard) > 1)
    before = len(heard)
    third = await domain.node("c", first, second)
    await until(lambda: len(heard) > before)
    assert "second" in heard
    heard.clear()
    await third.registry.leave()
    await until(lambda: set(heard) == {"first", "second"})


async def test_repeated_move_takes_no_queue_from_its_later_owner(domain: SharedDomain) -> None:
    first = await domain.node("a")
    second = await domain.node("b", first)
    third = await domain.node("c", first, second)
    await with_queue(first, 1)
    move = Batch([QueueMoved(Queue(1, "queue 1"), 2)])
    await first.commit(move)
    await second.commit(Batch([QueueMoved(Queue(1, "queue 1"), 3)]))
    before = await told(third)
    # Its answer was lost, and it has taken a while to notice that.
    await first.commit(move, again=True)
    assert await told(third) == before
    assert [summary.queue.id for summary in await third.adopt([1])] == [1]
    assert await first.registry.claim("/", "queue 1") == 3


# Names and numbers


async def test_one_of_several_nodes_that_claim_a_name_gets_it_and_all_know_who(domain: SharedDomain) -> None:
    nodes = [await domain.node("a")]
    for name in "bc":
        nodes.append(await domain.node(name, *nodes))
    names = [f"queue {number}" for number in range(20)]

    async def claim_all(node: Node) -> list[int]:
        order = random.Random(node.registry.node_id).sample(names, len(names))
        found = {name: await node.registry.claim("/", name) for name in order}
        return [found[name] for name in names]

    first, *others = await asyncio.gather(*(claim_all(node) for node in nodes))
    assert all(other == first for other in others)
    assert set(first) <= {1, 2, 3}
    assert await nodes[0].registry.claim("elsewhere", "queue 1") == 1


async def test_a_name_comes_back_with_its_queue(domain: SharedDomain) -> None:
    first = await domain.node("a")
    second = await domain.node("b", first)
    assert await first.registry.claim("/", "queue 1") == 1
    await with_queue(first, 1)
    assert await second.registry.claim("/", "queue 1") == 1
    await first.commit(Batch([QueueDeleted(1)]))
    assert await second.registry.claim("/", "queue 1") == 2


async def test_a_name_comes_back_with_a_queue_that_was_created_and_deleted_at_once(domain: SharedDomain) -> None:
    first = await domain.node("a")
    second = await domain.node("b", first)
    for name in ("short\0", "same"):
        assert await first.registry.claim("/", name) == 1
    await first.commit(Batch([QueueCreated(Queue(1, "short\0")), QueueDeleted(1)]))
    assert await second.registry.claim("/", "short\0") == 2
    same, again = Queue(2, "same"), Queue(3, "same")
    await first.commit(Batch([QueueCreated(same), QueueDeleted(2), QueueCreated(again)]))
    assert await second.registry.claim("/", "same") == 1


async def test_a_queue_that_takes_the_place_of_another_keeps_the_name(domain: SharedDomain) -> None:
    first = await domain.node("a")
    second = await domain.node("b", first)
    await first.registry.claim_all([("/", "same"), ("/", "same\0")])
    assert await second.registry.claim("/", "same\0") == 1
    await first.commit(Batch([QueueCreated(Queue(1, "same"))]))
    await first.commit(Batch([QueueDeleted(1), QueueCreated(Queue(2, "same"))]))
    assert await second.registry.claim("/", "same") == 1


async def test_name_of_a_clustered_queue_lasts_until_its_last_member(
    domain: SharedDomain,
) -> None:
    first = await domain.node("a")
    second = await domain.node("b", first)
    assert await first.registry.claim("/", "orders") == 1
    await first.commit(Batch([QueueCreated(Queue(1, "orders"))]))
    await first.commit(Batch([QueueCreated(Queue(1, "orders", member=True))]))
    assert await second.registry.claim("/", "orders") == 0
    await second.commit(Batch([QueueCreated(Queue(2, "orders", member=True))]))
    await first.commit(Batch([QueueDeleted(1)]))
    assert await first.registry.claim("/", "orders") == 0
    await second.commit(Batch([QueueDeleted(2)]))
    assert await first.registry.claim("/", "orders") == 1
    assert await first.registry.claim("/", "planned", clustered=True) == 0
    assert await second.registry.claim("/", "planned") == 0


async def test_queues_of_a_node_that_was_alone_are_claimed_when_somebody_joins(domain: SharedDomain) -> None:
    first = await domain.node("a")
    await with_queue(first, 1)
    await lapse(first)
    crash(first)
    second = await domain.node("b")
    assert await second.registry.claim("/", "queue 1") == 1


async def test_nodes_never_reserve_the_same_numbers(domain: SharedDomain) -> None:
    first = await domain.node("a")
    await first.commit(Batch([QueueCreated(Queue(7, "q")), ClientCreated(Client(3, "ada", ClientMode.FULL))]))
    second = await domain.node("b", first)
    assert (await first.reserve_queue_ids(10), await second.reserve_queue_ids(10)) == (8, 18)
    assert (await second.reserve_client_ids(5), await first.reserve_client_ids(5)) == (4, 9)
    assert (await first.reserve_message_ids(5), await second.reserve_message_ids(5)) == (1, 6)
    await first.return_message_ids(2)
    assert await second.reserve_message_ids(1) == 11
    await first.commit(Batch([QueueCreated(Queue(9, "of its block"))]))
    assert await first.reserve_queue_ids(1) == 28


# The leader


async def test_one_node_leads_until_its_session_ends(domain: SharedDomain) -> None:
    first = await domain.node("a")
    second = await domain.node("b", first)
    third = await domain.node("c", first, second)
    assert await first.registry.lead()
    assert await first.registry.lead()
    assert not await second.registry.lead()
    crash(first)
    await until_it_leads(second)
    assert not await third.registry.lead()
    await second.close()
    await until_it_leads(third)


async def until_it_leads(node: Node) -> None:
    async with asyncio.timeout(60):
        while not await node.registry.lead():
            continue


async def test_a_leader_without_a_lease_is_succeeded_and_finds_out(domain: SharedDomain) -> None:
    first = await domain.node("a")
    second = await domain.node("b", first)
    assert await first.registry.lead()
    await lapse(first)
    assert await second.registry.lead()
    async with asyncio.timeout(60):
        while True:
            try:
                assert not await first.registry.lead()
                break
            except StoreUnavailable:
                continue
    assert await second.registry.lead()
