from __future__ import annotations

from collections.abc import Iterable

from flyball.broker.engine.backlog import MAX_INDEXES, Build, Load
from flyball.broker.engine.consumer import Consumer
from flyball.broker.engine.credit import Credit
from flyball.broker.engine.index import ARRIVAL
from flyball.broker.engine.queue import Delivery, QueueState
from flyball.broker.engine.traits import Traits
from flyball.model import Message, Order, Queue, QueueSummary, Selector
from tests.broker.engine.messages import SOMEBODY, a_message

FIRST = Selector()
KEY = (None, None, None)


def a_queue(summary: QueueSummary | None = None) -> tuple[QueueState, list[Message]]:
    expired: list[Message] = []
    return QueueState(summary or QueueSummary(Queue(1, "orders")), expired), expired


def a_recovered_queue(count: int) -> QueueState:
    """A queue that has its messages 1 to `count` in the store, with an index of arrival."""
    state, _ = a_queue(QueueSummary(Queue(1, "orders"), message_count=count, last_message_id=count))
    state.indexed.begin_index(ARRIVAL, state.unacked)
    state.indexed.fill_index(ARRIVAL, [(KEY, 0, range(1, count + 1))], count)
    state.indexed.finish_index(ARRIVAL)
    return state


def a_consumer(consumer_id: int, selector: Selector = FIRST, prefetch: float = 1) -> Consumer:
    return Consumer(consumer_id, 1, selector, Credit(prefetch), SOMEBODY)


def fill(state: QueueState, *messages: Message) -> None:
    for message in messages:
        assert state.arrive(message, 0) is None


def take(state: QueueState, selector: Selector = FIRST) -> Message:
    message = state.first(selector, 0)
    assert isinstance(message, Message)
    state.take_out(message)
    return message


def given(deliveries: Iterable[Delivery]) -> list[tuple[int, int]]:
    return [(delivery.consumer.id, delivery.message.id) for delivery in deliveries]


def load(state: QueueState) -> Load:
    found = state.first(FIRST, 0)
    assert isinstance(found, Load)
    return found


def test_counts_of_addressed_messages_follow_what_comes_and_goes() -> None:
    state, _ = a_queue()
    fill(state, a_message(1), a_message(2, receiver=7), a_message(3, receiver=7), a_message(4, receiver=8))
    assert (state.visible_to(7), state.visible_to(8), state.visible_to(9)) == (3, 2, 1)
    message = take(state, Selector(reader=7, unaddressed=False))
    assert state.visible_to(7) == 2
    state.requeue_undelivered(message, 0)
    assert state.visible_to(7) == 3
    state.purge()
    assert state.visible_to(7) == 0
    assert state.addressed == {}


def test_recovered_counts_go_down_as_messages_are_read_back() -> None:
    state = a_recovered_queue(2)
    state.addressed = {7: 1}
    state._addressed_count = 1
    assert state.visible_to(8) == 1
    state.loaded(load(state), [a_message(1, stored=True), a_message(2, receiver=7, stored=True)])
    take(state)
    take(state)
    assert state.addressed == {}
    assert len(state) == 0


def test_indexes_that_consumers_need_are_kept_until_they_leave() -> None:
    state, _ = a_queue()
    fill(state, a_message(1))
    selectors = [
        Selector(reader=reader, context=context, order=order)
        for reader in (None, 1)
        for context in (None, 1)
        for order in (Order.OLDEST, Order.NEWEST, Order.PRIORITY)
    ]
    consumers = [a_consumer(number, selector) for number, selector in enumerate(selectors)]
    assert state.indexed.index_count == 0
    for consumer in consumers:
        state.admit(consumer)
        found = state.first(consumer.selector, 0)
        if isinstance(found, Build):
            state.begin_index(found.shape, set())
            state.indexed.finish_index(found.shape)
    assert state.indexed.index_count == len(selectors) > MAX_INDEXES
    for consumer in consumers[:6]:
        state.dismiss(consumer)
    assert state.indexed.index_count == MAX_INDEXES
    assert not any(isinstance(state.first(consumer.selector, 0), Build) for consumer in consumers[6:])


def test_listing_gives_what_is_in_memory_oldest_first_in_pages() -> None:
    state, _ = a_queue()
    fill(state, *(a_message(n) for n in range(1, 6)))
    assert [message.id for message in state.oldest(0, 2)] == [1, 2]
    take(state, Selector(order=Order.NEWEST))
    assert [message.id for message in state.oldest(2, 10)] == [3, 4]


def test_recovered_bytes_are_unknown_until_measured_or_the_queue_is_empty() -> None:
    state = a_recovered_queue(2)
    state.traits = Traits(max_length_bytes=10)
    assert state.is_unmeasured
    state.learn_bytes(8)
    assert not state.is_unmeasured
    assert not state.is_too_long
    fill(state, Message(3, 1, b"more"))
    assert (state.ready_bytes, state.unstored_bytes, state.is_too_long) == (12, 4, True)
    emptied = a_recovered_queue(1)
    need = emptied.first(FIRST, 0)
    assert isinstance(need, Load)
    emptied.loaded(need, [Message(1, 1, b"four", stored=True)])
    take(emptied)
    assert (emptied.ready_bytes, emptied.knows_bytes) == (0, True)


def test_a_consumer_is_given_at_once_only_what_holds_so_many_bytes() -> None:
    state, _ = a_queue()
    fill(state, *(Message(n, 1, b"x" * 10) for n in range(1, 6)))
    consumer = a_consumer(1, prefetch=5)
    assert given(state.feed(consumer, 0, max_bytes=25)) == [(1, 1), (1, 2), (1, 3)]
    assert given(state.feed(consumer, 0, max_bytes=1)) == [(1, 4)]


def test_a_consumer_is_given_up_to_its_window() -> None:
    state, _ = a_queue()
    fill(state, *(a_message(n) for n in range(1, 6)))
    consumer = a_consumer(1, prefetch=3)
    assert given(state.feed(consumer, 0)) == [(1, 1), (1, 2), (1, 3)]
    assert list(consumer.leases) == list(state.unacked) == [1, 2, 3]


def test_a_consumer_alone_stays_in_line_until_its_window_is_full() -> None:
    state, _ = a_queue()
    alone = a_consumer(1, prefetch=2)
    assert not state.feed(alone, 0)
    assert [state.arrive(a_message(n), 0) is not None for n in (1, 2, 3)] == [True, True, False]
    assert (alone.turn, len(state)) == (0, 1)


def test_a_consumer_alone_that_was_paused_gets_nothing_and_leaves_the_line() -> None:
    state, _ = a_queue()
    alone = a_consumer(1, prefetch=2)
    assert not state.feed(alone, 0)
    alone.paused_for = 1
    assert state.arrive(a_message(1), 0) is None
    assert (alone.turn, len(state)) == (0, 1)


def test_consumers_that_join_one_alone_get_their_turn() -> None:
    state, _ = a_queue()
    first, second = a_consumer(1, prefetch=9), a_consumer(2, prefetch=9)
    filtered = a_consumer(3, Selector(reader=7), 9)
    found = []
    for number, joining in enumerate((first, second, filtered)):
        assert not state.feed(joining, 0)
        for message_id in range(3 * number, 3 * number + 3):
            delivery = state.arrive(a_message(message_id + 1), 0)
            assert delivery is not None
            found.append(delivery.consumer.id)
    assert found == [1, 1, 1, 1, 2, 1, 2, 1, 3]


def test_one_that_is_left_alone_in_line_gets_everything() -> None:
    state, _ = a_queue()
    first, second = a_consumer(1, prefetch=9), a_consumer(2, prefetch=9)
    for consumer in (first, second):
        assert not state.feed(consumer, 0)
    state.stop_waiting(first)
    deliveries = [state.arrive(a_message(n), 0) for n in (1, 2, 3)]
    assert [delivery and delivery.consumer.id for delivery in deliveries] == [2, 2, 2]


def test_requeued_messages_are_delivered_in_the_order_of_the_consumer() -> None:
    state, _ = a_queue()
    fill(state, *(a_message(n, priority=n % 3) for n in range(1, 5)))
    out = [take(state) for _ in range(4)]
    by_priority = a_consumer(1, Selector(order=Order.PRIORITY), prefetch=2)
    oldest = a_consumer(2, prefetch=1)
    assert not state.feed(by_priority, 0)
    assert not state.feed(oldest, 0)
    assert given(state.requeue([out[3], out[2], out[1], out[0]], 0)[0]) == [(1, 2), (2, 1), (1, 4)]
    assert len(state) == 1


def test_an_expired_message_that_comes_back_is_not_delivered() -> None:
    state, expired = a_queue()
    fill(state, a_message(1, expires_us=50), a_message(2, expires_us=50))
    first, second = take(state), take(state)
    assert not state.feed(a_consumer(1, prefetch=2), 0)
    assert state.requeue_undelivered(first, 50) is None
    assert state.requeue([second], 50) == ([], [])
    assert [message.id for message in expired] == [1, 2]
    assert list(state.unacked) == [1, 2]


def test_a_message_that_arrives_expired_is_not_delivered() -> None:
    state, expired = a_queue()
    state.feed(a_consumer(1), 0)
    assert state.arrive(a_message(1, expires_us=10), 11) is None
    assert [message.id for message in expired] == [1]
    assert len(state) == 0


def test_a_message_without_time_to_live_is_delivered_at_once_or_not_at_all() -> None:
    state, expired = a_queue()
    state.feed(a_consumer(1), 0)
    assert state.arrive(a_message(1, expires_us=10), 10) is not None
    assert state.arrive(a_message(2, expires_us=10), 10) is None
    assert [message.id for message in expired] == [2]
    assert len(state) == 0


def test_reading_drops_what_is_expired_wherever_it_stands() -> None:
    state, expired = a_queue()
    fill(state, a_message(1, expires_us=5), a_message(2), a_message(3, expires_us=5))
    found = state.first(Selector(order=Order.NEWEST), 5)
    assert isinstance(found, Message)
    assert found.id == 2
    assert [message.id for message in expired] == [3]


def test_backlog_in_the_store_is_loaded_and_delivered_in_turns() -> None:
    state = a_recovered_queue(5)
    consumers = [a_consumer(1, prefetch=2), a_consumer(2, prefetch=2)]
    for consumer in consumers:
        assert not state.feed(consumer, 0)
    need = state.need
    assert isinstance(need, Load)
    state.loaded(need, [a_message(n, stored=True) for n in range(1, 6)])
    assert given(state.feed_blocked(0)) == [(1, 1), (2, 2), (1, 3), (2, 4)]
    assert state.need is None


def test_a_new_message_does_not_overtake_those_that_are_being_loaded() -> None:
    state = a_recovered_queue(1)
    consumer = a_consumer(1, prefetch=2)
    state.feed(consumer, 0)
    assert state.arrive(a_message(2), 0) is None
    state.loaded(load(state), [a_message(1, stored=True)])
    assert given(state.feed_blocked(0)) == [(1, 1), (1, 2)]


def test_consumer_blocked_by_the_store_does_not_delay_waiting_ones() -> None:
    state = a_recovered_queue(1)
    selector = Selector(reader=7, unaddressed=False)
    blocked, hungry = a_consumer(1), a_consumer(2, selector)
    state.feed(blocked, 0)
    state.feed(hungry, 0)
    assert isinstance(state.need, Load)
    shape = Build(state.first(selector, 0).shape)  # type: ignore[union-attr]
    state.indexed.begin_index(shape.shape, state.unacked)
    state.indexed.fill_index(shape.shape, [(KEY, 0, [1])], 1)
    state.indexed.finish_index(shape.shape)
    assert state.feed_blocked(0) == []
    delivery = state.arrive(a_message(2, receiver=7), 0)
    assert delivery is not None
    assert delivery.consumer is hungry


def test_what_is_needed_first_changes_once_it_was_served() -> None:
    state = a_recovered_queue(4)
    greedy = a_consumer(1, prefetch=100)
    other = a_consumer(2, Selector(order=Order.NEWEST))
    state.feed(greedy, 0)
    state.feed(other, 0)
    need = state.need
    assert isinstance(need, Load)
    state.loaded(need, [a_message(1, stored=True)])
    assert given(state.feed_blocked(0)) == [(1, 1)]
    assert isinstance(state.need, Build)


def test_a_purge_lets_those_who_wait_for_the_store_have_what_comes_next() -> None:
    state = a_recovered_queue(3)
    consumer = a_consumer(1)
    state.feed(consumer, 0)
    old = load(state)
    generation = state.generation
    assert state.purge() == []
    assert state.generation != generation
    assert state.need is None
    delivery = state.arrive(a_message(4), 0)
    assert delivery is not None
    assert state.loaded(old, [a_message(1, stored=True)]) == []
    assert len(state) == 0


def test_lost_messages_leave_no_counts_behind_in_an_empty_queue() -> None:
    state = a_recovered_queue(2)
    state.addressed = {7: 2}
    state._addressed_count = 2
    state.loaded(load(state), [])
    assert len(state) == 0
    assert state.visible_to(8) == state.visible_to(7) == 0


def test_looking_for_a_message_that_is_gone_costs_a_plain_queue_no_index() -> None:
    state, _ = a_queue()
    fill(state, a_message(1), a_message(2))
    take(state)
    backlog = state._backlog
    assert state.get(1) is None
    assert state._backlog is backlog
    found = state.get(2)
    assert found is not None
    assert found.id == 2


def test_a_queue_that_was_drained_is_plain_again() -> None:
    state, _ = a_queue()
    fill(state, a_message(1, stored=True), a_message(2, stored=True))
    assert state.evict(10_000, keep_bytes=0)
    state.loaded(load(state), [a_message(1, stored=True), a_message(2, stored=True)])
    take(state)
    indexed = state._backlog
    take(state)
    assert state._backlog is not indexed
    assert len(state) == 0


def test_requeued_messages_interrupt_those_who_wait_before_one_gets_too_many() -> None:
    state, _ = a_queue()
    fill(state, *(a_message(n) for n in range(1, 7)))
    out = [take(state) for _ in range(6)]
    low, late, early = (a_consumer(number, prefetch=9) for number in (1, 2, 3))
    late.priority = early.priority = 1
    for consumer in (low, early, late):
        assert not state.feed(consumer, 0)
    deliveries, interrupted = state.requeue(out, 0, 3)
    assert given(deliveries) == [(3, 1), (2, 2), (3, 3)]
    assert [consumer.id for consumer in interrupted] == [2, 3, 1]
    # What comes now is behind what was requeued.
    assert state.arrive(a_message(7), 0) is None
    assert given(state.feed(low, 0)) == [(1, 4), (1, 5), (1, 6), (1, 7)]


def test_requeued_bodies_interrupt_those_who_wait_before_they_are_too_many() -> None:
    state, _ = a_queue()
    messages = [a_message(n) for n in range(1, 4)]
    for message in messages:
        message.body = bytes(10)
    fill(state, *messages)
    out = [take(state) for _ in range(3)]
    consumer = a_consumer(1, prefetch=9)
    assert not state.feed(consumer, 0)
    deliveries, interrupted = state.requeue(out, 0, 100, 15)
    assert (given(deliveries), interrupted) == ([(1, 1), (1, 2)], [consumer])
