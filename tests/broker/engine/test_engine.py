from __future__ import annotations

import pytest

from flyball.broker.engine import backlog as backlog_module
from flyball.broker.engine.backlog import ENTRY_BYTES, HEAP_BYTES, Load
from flyball.broker.engine.credit import SLOT_US
from flyball.broker.engine.engine import Engine
from flyball.broker.engine.index import Shape
from flyball.errors import (
    ClientInUse,
    ClientNameTaken,
    ClientNotFound,
    InvalidName,
    LeaseNotFound,
    QueueNameTaken,
    QueueNotEmpty,
    QueueNotFound,
)
from flyball.model import Client, ClientMode, Draft, Message, Order, Queue, QueueSummary, Selector, Snapshot
from tests.broker.engine.messages import SOMEBODY, an_engine, consume, put, set_prefetch

FIRST = Selector()


def take(engine: Engine, queue_id: int, selector: Selector = FIRST, now_us: int = 0) -> Message:
    message = engine.take(queue_id, selector, now_us)
    assert isinstance(message, Message)
    return message


# Clients and queues


def test_a_name_may_have_255_characters_and_not_one_more() -> None:
    engine = Engine(Snapshot())
    assert engine.create_client("ü" * 255, ClientMode.FULL).id == 1
    assert engine.create_queue("ü" * 255).id == 1
    with pytest.raises(InvalidName):
        engine.create_client("x" * 256, ClientMode.FULL)
    with pytest.raises(InvalidName):
        engine.create_queue("x" * 256)


def test_a_refused_name_uses_up_an_id() -> None:
    engine = Engine(Snapshot(next_client_id=5, next_queue_id=7))
    assert engine.create_client("ann", ClientMode.FULL).id == 5
    with pytest.raises(ClientNameTaken):
        engine.create_client("ann", ClientMode.READ_ONLY)
    assert engine.create_client("bob", ClientMode.FULL).id == 7
    assert engine.create_queue("orders").id == 7
    with pytest.raises(QueueNameTaken):
        engine.create_queue("orders")
    assert engine.create_queue("bills").id == 9


def test_purging_messages_that_are_not_in_memory_frees_their_sender() -> None:
    summary = QueueSummary(Queue(4, "orders"), message_count=2, last_message_id=9, sent={3: 2})
    engine = Engine(Snapshot([Client(3, "ann", ClientMode.FULL)], [summary], next_client_id=4, next_queue_id=5))
    engine.purge(4)
    engine.delete_client(3, only_unused=True)
    assert engine.clients == []


def test_what_recovery_found_is_there() -> None:
    ann = Client(3, "ann", ClientMode.READ_ONLY)
    summary = QueueSummary(Queue(4, "orders"), message_count=2, last_message_id=9, addressed={3: 1}, sent={3: 2})
    engine = Engine(Snapshot(clients=[ann], queues=[summary], next_client_id=4, next_queue_id=5))
    assert engine.client(3) is ann
    assert engine.find_client("ann") is ann
    assert len(engine.queue(4)) == 2
    assert engine.active_queues(3) == [(Queue(4, "orders"), 2)]
    assert engine.active_queues(1) == [(Queue(4, "orders"), 1)]
    with pytest.raises(ClientInUse):
        engine.delete_client(3, only_unused=True)


def test_the_members_of_clustered_queues_are_known_however_they_came() -> None:
    found = [QueueSummary(Queue(1, "orders", member=True)), QueueSummary(Queue(2, "plain"))]
    engine = Engine(Snapshot(queues=found, next_queue_id=3))
    created = engine.create_queue("others", member=True)
    twin = engine.adopt_queue(QueueSummary(Queue(77, "orders", member=True)))
    engine.adopt_queue(QueueSummary(Queue(78, "another")))
    assert list(engine.members) == [1, created.id, 77]
    engine.delete_queue(1)
    assert engine.members[77] is twin
    engine.delete_queue(77)
    assert list(engine.members) == [created.id]


def test_a_deleted_client_is_gone_and_its_name_is_free() -> None:
    engine = Engine(Snapshot())
    client = engine.create_client("ann", ClientMode.FULL)
    engine.delete_client(client.id)
    assert engine.find_client("ann") is None
    with pytest.raises(ClientNotFound):
        engine.client(client.id)
    with pytest.raises(ClientNotFound):
        engine.delete_client(client.id)
    assert engine.create_client("ann", ClientMode.FULL).id != client.id


def test_clients_with_the_same_name_can_both_be_deleted() -> None:
    engine = Engine(Snapshot())
    first = engine.create_client("ann", ClientMode.FULL)
    second = Client(77, "ann", ClientMode.FULL)
    engine.admit_client(second)
    assert engine.find_client("ann") is second
    engine.delete_client(first.id)
    assert engine.find_client("ann") is second
    engine.delete_client(second.id)
    assert engine.find_client("ann") is None


def test_a_client_is_unused_once_its_last_message_is_settled() -> None:
    engine, queue_id = an_engine()
    client = engine.create_client("ann", ClientMode.FULL)
    for _ in range(2):
        put(engine, queue_id, Draft(b"", sender=client.id))
    engine.settle(take(engine, queue_id))
    message = take(engine, queue_id)
    with pytest.raises(ClientInUse):
        engine.delete_client(client.id, only_unused=True)
    engine.settle(message)
    engine.delete_client(client.id, only_unused=True)
    assert engine.clients == []


def test_delete_if_empty_fails_with_ready_or_unacked_messages() -> None:
    engine, queue_id = an_engine()
    put(engine, queue_id)
    with pytest.raises(QueueNotEmpty):
        engine.delete_queue(queue_id, only_empty=True)
    message = take(engine, queue_id)
    with pytest.raises(QueueNotEmpty):
        engine.delete_queue(queue_id, only_empty=True)
    engine.settle(message)
    engine.delete_queue(queue_id, only_empty=True)
    assert not engine.has_queue(queue_id)
    assert engine.find_queue("orders") is None
    with pytest.raises(QueueNotFound):
        engine.queue(queue_id)


def test_deleting_a_queue_ends_its_consumers_and_frees_its_memory() -> None:
    engine, queue_id = an_engine()
    consumer, _ = consume(engine, queue_id, FIRST, 1.5, 0)
    for _ in range(3):
        engine.put(Draft(b"", sender=1), [queue_id], 0)
    engine.delete_queue(queue_id)
    assert consumer.is_cancelled
    assert not consumer.leases
    assert engine.resident_bytes == 0
    assert not engine.has_fractional_consumers
    assert engine.feed(consumer, 0) == set_prefetch(engine, consumer, 5, 0) == []


def test_settling_a_message_of_a_deleted_queue_has_no_effect() -> None:
    engine, queue_id = an_engine()
    put(engine, queue_id)
    put(engine, queue_id)
    first, second = take(engine, queue_id), take(engine, queue_id)
    engine.delete_queue(queue_id)
    engine.settle(first)
    assert engine.requeue_undelivered(second, 0) is None
    assert engine.requeue([second], 0) == []
    assert engine.resident_bytes == 0


# Message ids


def test_message_ids_come_from_the_grants_in_their_order() -> None:
    engine = Engine(Snapshot())
    with pytest.raises(RuntimeError):
        engine.use_message_id()
    engine.grant_message_ids(10, 2)
    engine.grant_message_ids(12, 1)
    engine.grant_message_ids(100, 2)
    assert engine.message_ids_left == 5
    assert [engine.use_message_id() for _ in range(4)] == [10, 11, 12, 100]
    assert engine.next_message_id == 101
    engine.use_message_id()
    assert engine.message_ids_left == 0
    engine.grant_message_ids(500, 1)
    assert engine.use_message_id() == 500


def test_ids_that_come_too_late_or_are_renewed_are_not_used() -> None:
    engine = Engine(Snapshot())
    engine.grant_message_ids(10, 5)
    assert engine.use_message_id() == 10
    engine.renew_message_ids(100, 2)
    engine.grant_message_ids(50, 10)
    assert [engine.use_message_id() for _ in range(2)] == [100, 101]
    assert engine.message_ids_left == 0


def test_spare_ids_start_after_those_granted_to_others() -> None:
    engine = Engine(Snapshot())
    engine.grant_message_ids(10, 5)
    engine.use_message_id()
    assert engine.first_spare_message_id == 11
    engine.grant_message_ids(100, 5)
    assert engine.first_spare_message_id == 100
    for _ in range(5):
        engine.use_message_id()
    assert engine.first_spare_message_id == 101


def test_last_id_of_a_queue_is_the_largest_one() -> None:
    engine = Engine(Snapshot())
    engine.grant_message_ids(10, 5)
    state = engine.adopt_queue(QueueSummary(Queue(1, "orders"), message_count=3, last_message_id=1000))
    put(engine, 1)
    assert state.last_message_id == 1000


def test_second_member_with_a_name_is_a_twin_until_one_is_deleted() -> None:
    engine = Engine(Snapshot())
    own = engine.adopt_queue(QueueSummary(Queue(1, "orders", member=True)))
    twin = engine.adopt_queue(QueueSummary(Queue(2, "orders", member=True)))
    assert engine.find_queue("orders") is own
    assert list(engine.twins) == [2]
    engine.delete_queue(1)
    assert engine.find_queue("orders") is twin
    assert not engine.twins
    engine.adopt_queue(QueueSummary(Queue(3, "orders", member=True)))
    engine.delete_queue(3)
    assert engine.find_queue("orders") is twin
    assert not engine.twins


def test_a_message_that_was_refused_elsewhere_burns_an_id() -> None:
    engine, queue_id = an_engine()
    assert put(engine, queue_id).id == 1
    engine.use_message_id()
    assert put(engine, queue_id).id == 3


def test_a_node_that_keeps_nothing_still_counts_its_messages() -> None:
    engine = Engine(Snapshot(), keeps_messages=False)
    engine.grant_message_ids(1, 10)
    queue_id = engine.create_queue("orders").id
    assert [message.id for message in engine.put(Draft(b""), [queue_id], 0).messages] == [1]
    assert engine.take(queue_id, FIRST, 0) is None
    assert engine.resident_bytes == 0


# Put, take, peek


def test_a_put_makes_a_copy_for_each_queue_and_names_those_that_are_missing() -> None:
    engine, queue_id = an_engine()
    other_id = engine.create_queue("bills").id
    arrival = engine.put(Draft(b"x", priority=3), [queue_id, 77, other_id, queue_id], 123)
    assert [(m.id, m.queue_id, m.arrived_us) for m in arrival.messages] == [
        (1, queue_id, 123),
        (2, other_id, 123),
        (3, queue_id, 123),
    ]
    assert arrival.missing == [77]
    assert len(engine.queue(queue_id)) == 2


def test_peeking_leaves_the_message_where_it_is() -> None:
    engine, queue_id = an_engine()
    message = put(engine, queue_id)
    assert engine.peek(queue_id, FIRST, 0) is message
    assert take(engine, queue_id) is message
    assert engine.peek(queue_id, FIRST, 0) is None


def test_a_missing_queue_has_nothing_to_read() -> None:
    engine = Engine(Snapshot())
    assert engine.peek(9, FIRST, 0) is engine.take(9, FIRST, 0) is None


def test_selectors_choose_by_reader_sender_context_and_order() -> None:
    engine, queue_id = an_engine()
    for draft in (
        Draft(b"1", sender=1, receiver=8),
        Draft(b"2", sender=1, context=5),
        Draft(b"3", sender=2, receiver=7, priority=1),
        Draft(b"4", sender=1, priority=2),
        Draft(b"5", sender=2, priority=2),
    ):
        put(engine, queue_id, draft)

    def first(selector: Selector) -> bytes:
        found = engine.peek(queue_id, selector, 0)
        assert isinstance(found, Message)
        return found.body

    assert first(Selector(reader=7)) == b"2"
    assert first(Selector(reader=8)) == b"1"
    assert first(Selector(reader=7, unaddressed=False)) == b"3"
    assert first(Selector(reader=7, order=Order.PRIORITY)) == b"4"
    assert first(Selector(reader=7, order=Order.NEWEST)) == b"5"
    assert first(Selector(reader=7, sender=2)) == b"3"
    assert first(Selector(context=5)) == b"2"
    assert first(Selector()) == b"1"
    assert engine.peek(queue_id, Selector(context=6), 0) is None


def test_a_restored_message_returns_to_its_old_place() -> None:
    engine, queue_id = an_engine()
    messages = [put(engine, queue_id) for _ in range(4)]
    out = [take(engine, queue_id) for _ in range(3)]
    engine.requeue_undelivered(out[2], 0)
    engine.requeue_undelivered(out[0], 0)
    engine.requeue_undelivered(out[1], 0)
    assert engine.requeue_undelivered(out[1], 0) is None
    assert [take(engine, queue_id) for _ in range(4)] == messages


def test_active_queues_are_those_with_something_to_see() -> None:
    engine, queue_id = an_engine()
    other = engine.create_queue("bills")
    put(engine, queue_id, Draft(b"", receiver=7))
    put(engine, other.id)
    put(engine, other.id, Draft(b"", receiver=7))
    assert [(queue.id, count) for queue, count in engine.active_queues(7)] == [(queue_id, 1), (other.id, 2)]
    assert [(queue.id, count) for queue, count in engine.active_queues(8)] == [(other.id, 1)]
    take(engine, other.id)
    assert engine.active_queues(8) == []


def test_a_purge_spares_what_is_out() -> None:
    engine, queue_id = an_engine()
    for _ in range(3):
        put(engine, queue_id)
    message = take(engine, queue_id)
    gone, absent = engine.purge(queue_id)
    assert (len(gone), absent) == (2, 0)
    assert engine.take(queue_id, FIRST, 0) is None
    engine.requeue_undelivered(message, 0)
    assert take(engine, queue_id) is message


def test_a_message_that_could_not_be_stored_is_withdrawn_unless_somebody_has_it() -> None:
    engine, queue_id = an_engine()
    first, second, third = (put(engine, queue_id) for _ in range(3))
    assert take(engine, queue_id) is first
    assert not engine.withdraw(first)
    assert engine.withdraw(second)
    assert not engine.withdraw(second)
    third.stored = True
    assert not engine.withdraw(third)
    assert take(engine, queue_id) is third


# Expiry


def test_an_expired_message_is_reported_once_and_never_delivered() -> None:
    engine, queue_id = an_engine()
    put(engine, queue_id, Draft(b"", expires_us=100))
    keeper = put(engine, queue_id)
    expiring = put(engine, queue_id, Draft(b"", expires_us=200))
    assert engine.expire(99) == []
    assert [message.id for message in engine.expire(100)] == [1]
    assert engine.expire(100) == []
    assert take(engine, queue_id, now_us=200) is keeper
    assert engine.take(queue_id, FIRST, 200) is None
    assert engine.expire(200) == [expiring]


def test_an_expired_message_costs_memory_until_its_removal_is_settled() -> None:
    engine, queue_id = an_engine()
    message = put(engine, queue_id, Draft(b"", expires_us=100))
    assert engine.expire(100) == [message]
    assert engine.resident_bytes == message.footprint_bytes
    assert len(engine.queue(queue_id)) == 0
    engine.settle(message)
    assert engine.resident_bytes == 0


def test_message_that_expires_while_unacked_is_reported_on_requeue() -> None:
    engine, queue_id = an_engine()
    put(engine, queue_id, Draft(b"", expires_us=100))
    message = take(engine, queue_id)
    assert engine.expire(150) == []
    assert engine.requeue_undelivered(message, 150) is None
    assert engine.expire(150) == [message]


def test_the_expired_messages_of_a_deleted_queue_are_not_reported() -> None:
    engine, queue_id = an_engine()
    put(engine, queue_id, Draft(b"", expires_us=100))
    put(engine, queue_id, Draft(b"", expires_us=200))
    assert engine.peek(queue_id, FIRST, 100) is not None
    engine.delete_queue(queue_id)
    assert engine.expire(300) == []


def test_expiries_of_messages_that_are_gone_do_not_pile_up() -> None:
    engine, queue_id = an_engine()
    for _ in range(1000):
        put(engine, queue_id, Draft(b"", expires_us=10**12))
        engine.settle(take(engine, queue_id))
    assert len(engine._expiries._heap) < 100


def test_expired_message_in_the_store_is_dropped_when_it_is_read() -> None:
    summary = QueueSummary(Queue(1, "orders"), message_count=1, last_message_id=1)
    engine = Engine(Snapshot(queues=[summary], next_queue_id=2))
    engine.expect_expiries([(1, 100)])
    backlog = engine.queue(1).indexed
    need = engine.take(1, FIRST, 100)
    assert need is not None
    assert not isinstance(need, Message | Load)
    backlog.begin_index(need.shape, ())
    backlog.fill_index(need.shape, [((None, None, None), 0, [1])], 1)
    backlog.finish_index(need.shape)
    load = engine.take(1, FIRST, 100)
    assert isinstance(load, Load)
    assert engine.expire(100) == []
    message = Message(1, 1, b"", expires_us=100, stored=True)
    engine.loaded(1, load, [message], 100)
    assert engine.take(1, FIRST, 100) is None
    assert engine.expire(100) == [message]
    engine.settle(message)
    assert engine.resident_bytes == 0


# Consumers


def test_a_consumer_is_sent_what_its_selector_asks_for() -> None:
    engine, queue_id = an_engine()
    consumer, _ = consume(engine, queue_id, Selector(reader=7, sender=1), 1, 0)
    assert not engine.put(Draft(b"", sender=2), [queue_id], 0).deliveries
    assert not engine.put(Draft(b"", sender=1, receiver=8), [queue_id], 0).deliveries
    (delivery,) = engine.put(Draft(b"", sender=1), [queue_id], 0).deliveries
    assert delivery.consumer is consumer
    assert delivery.consumer.owner is SOMEBODY
    assert not engine.put(Draft(b"", sender=1), [queue_id], 0).deliveries
    assert len(engine.queue(queue_id)) == 3


def test_a_consumer_is_sent_a_message_that_comes_back() -> None:
    engine, queue_id = an_engine()
    put(engine, queue_id)
    message = take(engine, queue_id)
    consumer, _ = consume(engine, queue_id, FIRST, 1, 0)
    delivery = engine.requeue_undelivered(message, 0)
    assert delivery is not None
    assert (delivery.consumer, delivery.message) == (consumer, message)


def test_a_consumer_that_was_cancelled_is_sent_nothing() -> None:
    engine, queue_id = an_engine()
    consumer, _ = consume(engine, queue_id, FIRST, 1, 0)
    engine.cancel(consumer)
    put(engine, queue_id)


def test_consumers_share_what_arrives_in_turns_up_to_their_prefetch() -> None:
    engine, queue_id = an_engine()
    consumers = [consume(engine, queue_id, FIRST, 2, 0)[0] for _ in range(3)]
    for _ in range(8):
        engine.put(Draft(b""), [queue_id], 0)
    assert [list(consumer.leases) for consumer in consumers] == [[1, 4], [2, 5], [3, 6]]
    assert len(engine.queue(queue_id)) == 2


def test_a_settled_lease_makes_room_for_the_next() -> None:
    engine, queue_id = an_engine()
    consumer, _ = consume(engine, queue_id, FIRST, 1, 0)
    for _ in range(2):
        engine.put(Draft(b""), [queue_id], 0)
    (message,) = engine.acknowledge(consumer, [1, 1])
    engine.settle(message)
    assert [delivery.message.id for delivery in engine.feed(consumer, 0)] == [2]


def test_settling_what_is_not_leased_changes_nothing() -> None:
    engine, queue_id = an_engine()
    consumer, _ = consume(engine, queue_id, FIRST, 1, 0)
    engine.put(Draft(b""), [queue_id], 0)
    with pytest.raises(LeaseNotFound):
        engine.acknowledge(consumer, [1, 2])
    assert list(consumer.leases) == [1]


def test_a_requeued_message_returns_to_its_old_place_and_remembers_its_delivery() -> None:
    engine, queue_id = an_engine()
    for _ in range(3):
        put(engine, queue_id)
    consumer, _ = consume(engine, queue_id, FIRST, 2, 0)
    engine.cancel(consumer)
    assert engine.requeue(engine.acknowledge(consumer, [2, 1]), 0) == []
    taken = [take(engine, queue_id) for _ in range(3)]
    assert [(message.id, message.delivery_count) for message in taken] == [(1, 1), (2, 1), (3, 0)]


def test_a_cancelled_consumer_is_sent_no_more_but_may_settle_what_it_has() -> None:
    engine, queue_id = an_engine()
    consumer, _ = consume(engine, queue_id, FIRST, 5, 0)
    engine.put(Draft(b""), [queue_id], 0)
    engine.cancel(consumer)
    put(engine, queue_id)
    assert engine.feed(consumer, 0) == set_prefetch(engine, consumer, 9, 0) == []
    engine.settle(engine.acknowledge(consumer, [1])[0])
    assert len(engine.queue(queue_id)) == 1


def test_a_larger_prefetch_takes_effect_at_once() -> None:
    engine, queue_id = an_engine()
    consumer, _ = consume(engine, queue_id, FIRST, 0, 0)
    for _ in range(5):
        put(engine, queue_id)
    assert [delivery.message.id for delivery in set_prefetch(engine, consumer, 3, 0)] == [1, 2, 3]
    assert set_prefetch(engine, consumer, 1, 0) == []
    assert len(consumer.leases) == 3
    engine.settle(engine.acknowledge(consumer, [1])[0])
    assert engine.feed(consumer, 0) == []


def test_a_smaller_prefetch_holds_for_the_next_arrival() -> None:
    engine, queue_id = an_engine()
    consumer, _ = consume(engine, queue_id, FIRST, 5, 0)
    engine.put(Draft(b""), [queue_id], 0)
    set_prefetch(engine, consumer, 1, 0)
    put(engine, queue_id)


def test_a_prefetch_that_makes_no_sense_leaves_the_old_one() -> None:
    engine, queue_id = an_engine()
    consumer, _ = consume(engine, queue_id, FIRST, 2.5, 0)
    with pytest.raises(ValueError, match="prefetch"):
        set_prefetch(engine, consumer, -1, 0)
    assert consumer.credit.prefetch == 2.5
    assert engine.has_fractional_consumers


def test_a_fractional_prefetch_lets_a_message_go_in_its_share_of_the_slots() -> None:
    engine, queue_id = an_engine()
    for _ in range(1000):
        put(engine, queue_id)
    consumer, _ = consume(engine, queue_id, FIRST, 0.25, 0)
    assert engine.has_fractional_consumers
    delivered = 0
    for slot in range(1000):
        now_us = slot * SLOT_US
        deliveries = engine.tick(now_us)
        delivered += len(deliveries)
        for message in engine.acknowledge(consumer, list(consumer.leases)):
            engine.settle(message)
    assert delivered == 250
    set_prefetch(engine, consumer, 2, 0)
    assert not engine.has_fractional_consumers


def test_a_fractional_consumer_whose_slot_is_over_gets_nothing_until_the_next() -> None:
    engine, queue_id = an_engine()
    consumer, _ = consume(engine, queue_id, FIRST, 0.5, SLOT_US)
    put(engine, queue_id, now_us=2 * SLOT_US)
    (delivery,) = engine.tick(3 * SLOT_US)
    assert delivery.consumer is consumer


# Memory


def a_full_engine(count: int, limit: int) -> tuple[Engine, int, dict[int, Message]]:
    """An engine that holds as many messages as the limit allows, and what its store has."""
    engine, queue_id = an_engine(resident_limit_bytes=limit * 700)
    stored: dict[int, Message] = {}
    for _ in range(count):
        message = put(engine, queue_id, Draft(b"x" * 100))
        message.stored = True
        stored[message.id] = message
    return engine, queue_id, stored


def test_memory_stays_within_its_limit_and_nothing_is_lost_or_reordered() -> None:
    engine, queue_id, stored = a_full_engine(500, 64)
    assert engine.resident_bytes <= 64 * 700
    assert engine.queue(queue_id).absent > 400
    message_ids = []
    while (found := engine.take(queue_id, FIRST, 0)) is not None:
        if isinstance(found, Load):
            engine.loaded(queue_id, found, [stored[message_id] for message_id in found.message_ids[:20]], 0)
        elif isinstance(found, Message):
            message_ids.append(found.id)
            engine.settle(found)
        assert engine.resident_bytes <= 64 * 700
    assert message_ids == list(range(1, 501))
    assert engine.resident_bytes == 0


def test_long_queue_in_the_store_does_not_prevent_eviction_of_others() -> None:
    engine, _, _ = a_full_engine(500, 64)
    other_id = engine.create_queue("bills").id
    for _ in range(200):
        put(engine, other_id, Draft(b"x" * 100)).stored = True
    assert engine.resident_bytes <= 64 * 700
    assert engine.queue(other_id).absent > 0


def test_many_small_queues_together_keep_within_the_limit() -> None:
    engine, _ = an_engine(resident_limit_bytes=64 * 700)
    queue_ids = [engine.create_queue(f"queue {number}").id for number in range(100)]
    for _ in range(3):
        for queue_id in queue_ids:
            put(engine, queue_id, Draft(b"x" * 100)).stored = True
    assert engine.resident_bytes <= 64 * 700


def test_memory_is_evicted_again_soon_after_it_could_not_be() -> None:
    engine, queue_id = an_engine(resident_limit_bytes=64 * 700)
    messages = [put(engine, queue_id, Draft(b"x" * 100)) for _ in range(200)]
    assert engine.resident_bytes == 200 * 700
    for message in messages:
        message.stored = True
    for _ in range(4):
        put(engine, queue_id, Draft(b"x" * 100))
    assert engine.resident_bytes <= 64 * 700


def test_memory_is_evicted_without_another_message() -> None:
    engine, queue_id = an_engine(resident_limit_bytes=64 * 700)
    for message in engine.put(Draft(b"x" * 100), [queue_id] * 200, 0).messages:
        message.stored = True
    assert engine.resident_bytes == 200 * 700
    engine.evict()
    assert engine.resident_bytes <= 64 * 700


def test_absent_messages_take_one_expiry_per_queue() -> None:
    engine, queue_id = an_engine(resident_limit_bytes=64 * 1000)
    stored: dict[int, Message] = {}
    for number in range(1000):
        message = put(engine, queue_id, Draft(b"x" * 100, expires_us=1_000 + number))
        message.stored = True
        stored[message.id] = message
    assert engine.queue(queue_id).absent > 900
    assert len(engine._expiries._present) == 1000 - engine.queue(queue_id).absent
    assert len(engine._expiries._heap) < 300
    # All of them expire all the same, and in order.
    expired: list[int] = []
    while len(engine.queue(queue_id)):
        gone = engine.expire(5_000)
        for message in gone:
            engine.settle(message)
        expired += [message.id for message in gone]
        for overdue_id in engine.overdue_queue_ids():
            while isinstance(need := engine.peek(overdue_id, FIRST, 5_000), Load):
                engine.loaded(overdue_id, need, [stored[each] for each in need.message_ids[:50]], 5_000)
    expired += [message.id for message in engine.expire(5_000)]
    assert expired == list(range(1, 1001))


def test_paged_out_message_is_requeued_at_its_position_without_its_body() -> None:
    engine, queue_id = an_engine(resident_limit_bytes=10**6)
    for _ in range(3):
        put(engine, queue_id, Draft(b"x" * 1000, properties=b"p" * 1000)).stored = True
    _, deliveries = consume(engine, queue_id, FIRST, 2, 0)
    first, second = [delivery.message for delivery in deliveries]
    before = engine.resident_bytes
    assert engine.page_out(first) == 2000
    assert engine.page_out(first) == 0
    assert before - engine.resident_bytes == 2000
    assert (first.body, first.properties, first.body_bytes) == (b"", b"", 1000)
    consumer = deliveries[0].consumer
    engine.cancel(consumer)
    assert engine.requeue(engine.acknowledge(consumer, [first.id, second.id]), 0) == []
    assert engine.queue(queue_id).ready_bytes == 3000
    load = engine.take(queue_id, FIRST, 0)
    assert isinstance(load, Load)
    assert load.message_ids == [first.id]
    engine.loaded(queue_id, load, [Message(first.id, queue_id, b"x" * 1000, properties=b"p" * 1000, stored=True)], 0)
    again = engine.take(queue_id, FIRST, 0)
    assert isinstance(again, Message)
    assert (again.id, again.delivery_count, again.body) == (first.id, 1, b"x" * 1000)


def test_indexes_that_consumers_ask_for_count_and_leave_less_room_for_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backlog_module, "INDEX_AT_ONCE", 1000)
    engine, queue_id = an_engine(resident_limit_bytes=1000 * 700)
    for number in range(1000):
        put(engine, queue_id, Draft(b"x" * 20, context=number)).stored = True
    engine.evict()
    before = engine.resident_bytes
    assert engine.absent_bytes == 0
    for order in Order:
        engine.peek(queue_id, Selector(context=5, order=order), 0)
    engine.evict()
    assert engine.absent_bytes >= 3 * 1000 * HEAP_BYTES
    assert engine.resident_bytes < before / 2


def test_message_paged_in_after_its_queue_was_deleted_takes_no_memory() -> None:
    engine, queue_id = an_engine(resident_limit_bytes=10**6)
    message = put(engine, queue_id, Draft(b"x" * 1000))
    message.stored = True
    assert engine.take(queue_id, FIRST, 0) is message
    assert engine.page_out(message) == 1000
    engine.delete_queue(queue_id)
    engine.page_in(message, Message(message.id, queue_id, b"x" * 1000, stored=True))
    assert (engine.resident_bytes, message.is_paged) == (0, False)


class Elsewhere:
    """A remote queue that ignores all decisions."""

    def requeue(self, message: Message) -> None: ...

    def dead_letter(self, message: Message) -> None: ...

    def cancel(self) -> None: ...

    def set_prefetch(self, prefetch: float) -> None: ...


def test_messages_got_from_another_node_are_paged_out_when_memory_runs_short() -> None:
    held: list[Message] = []

    def page_out(wanted_bytes: int) -> int:
        return sum([engine.page_out(message) for message in held])

    engine, _ = an_engine(resident_limit_bytes=10**6, page_out_unacked=page_out)
    shadow = engine.create_proxy_queue("", "", Elsewhere())
    for number in range(1, 31):
        held.append(Message(number, shadow.queue.id, b"x" * 100_000, persistent=False))
        engine.hold(shadow, held[-1])
        assert engine.resident_bytes < 1_200_000


def test_only_what_the_store_has_is_paged_out_while_unacked() -> None:
    engine, queue_id = an_engine(resident_limit_bytes=10**6)
    message = put(engine, queue_id, Draft(b"x" * 1000))
    assert engine.page_out(message) == 0
    assert engine.take(queue_id, FIRST, 0) is message
    assert engine.page_out(message) == 0
    message.stored = True
    assert engine.page_out(message) == 1000


def test_unacked_messages_are_paged_out_when_evicting_ready_ones_is_not_enough() -> None:
    wanted: list[int] = []

    def page_out(wanted_bytes: int) -> int:
        wanted.append(wanted_bytes)
        return 0

    engine, queue_id = an_engine(resident_limit_bytes=20_000, page_out_unacked=page_out)
    for _ in range(30):
        put(engine, queue_id, Draft(b"x" * 1000)).stored = True
        taken = engine.take(queue_id, FIRST, 0)
        assert taken is not None
    assert wanted


def test_queues_with_overdue_absent_messages_are_reported_once() -> None:
    summaries = [QueueSummary(Queue(number, str(number)), message_count=1, last_message_id=1) for number in (1, 2)]
    engine = Engine(Snapshot(queues=summaries, next_queue_id=3))
    engine.expect_expiries([(1, 100), (2, 200)])
    assert engine.expire(100) == []
    assert engine.overdue_queue_ids() == {1}
    assert engine.overdue_queue_ids() == set()


class Broken(dict[int, int]):
    """Counts of senders that cannot be counted up."""

    def __setitem__(self, sender: int, count: int) -> None:
        raise RuntimeError("broken")


def test_put_that_fails_half_way_leaves_nothing() -> None:
    engine = Engine(Snapshot())
    engine.grant_message_ids(1, 100)
    first, second = engine.create_queue("first").id, engine.create_queue("second").id
    consumer = engine.consume(first, Selector(), 1, SOMEBODY)
    assert engine.feed(consumer, 0) == []
    engine.queue(second).sent = Broken()
    with pytest.raises(RuntimeError):
        engine.put(Draft(b"body", sender=7, expires_us=10), [first, first, second], 0)
    for queue_id in (first, second):
        state = engine.queue(queue_id)
        assert (len(state), state.unacked, state.sent) == (0, {}, {})
    assert (engine.resident_bytes, consumer.leases) == (0, {})
    assert engine.put(Draft(b"again"), [first], 0).messages[0].body == b"again"


def test_room_for_an_index_is_made_before_it_is_filled() -> None:
    engine, queue_id = an_engine(resident_limit_bytes=1000 * 650)
    for number in range(1000):
        put(engine, queue_id, Draft(b"x" * 20, context=number)).stored = True
    assert engine.queue(queue_id).absent == 0
    engine.begin_index(engine.queue(queue_id), Shape.of(Selector(order=Order.NEWEST)), set())
    assert engine.absent_bytes >= 1000 * ENTRY_BYTES
    assert engine.queue(queue_id).absent > 0
    assert engine.resident_bytes + engine.absent_bytes <= 1000 * 650
