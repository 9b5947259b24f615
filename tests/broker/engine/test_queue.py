from __future__ import annotations

from collections.abc import Iterable

from flyball.broker.engine.backlog import Build, Load
from flyball.broker.engine.consumer import Consumer
from flyball.broker.engine.credit import Credit
from flyball.broker.engine.index import ARRIVAL
from flyball.broker.engine.queue import Delivery, WorkingQueue
from flyball.broker.engine.traits import Traits
from flyball.model import Message, Order, Queue, QueueSummary, Selector
from tests.broker.engine.messages import SOMEBODY, a_message

FIRST = Selector()
KEY = (None, None, None)


def a_queue(summary: QueueSummary | None = None) -> tuple[WorkingQueue, list[Message]]:
    expired: list[Message] = []
    return WorkingQueue(summary or QueueSummary(Queue(1, "orders")), expired), expired


def a_recovered_queue(count: int) -> WorkingQueue:
    """A queue that has its messages 1 to `count` in the store, with an index of arrival."""
    working, _ = a_queue(QueueSummary(Queue(1, "orders"), message_count=count, last_message_id=count))
    working.indexed.begin_index(ARRIVAL, working.out)
    working.indexed.fill_index(ARRIVAL, [(KEY, 0, range(1, count + 1))], count)
    working.indexed.finish_index(ARRIVAL)
    return working


def a_consumer(consumer_id: int, selector: Selector = FIRST, prefetch: float = 1) -> Consumer:
    return Consumer(consumer_id, 1, selector, Credit(prefetch), SOMEBODY)


def fill(working: WorkingQueue, *messages: Message) -> None:
    for message in messages:
        assert working.arrive(message, 0) is None


def take(working: WorkingQueue, selector: Selector = FIRST) -> Message:
    message = working.first(selector, 0)
    assert isinstance(message, Message)
    working.take_out(message)
    return message


def given(deliveries: Iterable[Delivery]) -> list[tuple[int, int]]:
    return [(delivery.consumer.id, delivery.message.id) for delivery in deliveries]


def load(working: WorkingQueue) -> Load:
    found = working.first(FIRST, 0)
    assert isinstance(found, Load)
    return found


def test_counts_of_addressed_messages_follow_what_comes_and_goes() -> None:
    working, _ = a_queue()
    fill(working, a_message(1), a_message(2, receiver=7), a_message(3, receiver=7), a_message(4, receiver=8))
    assert (working.visible_to(7), working.visible_to(8), working.visible_to(9)) == (3, 2, 1)
    message = take(working, Selector(reader=7, unaddressed=False))
    assert working.visible_to(7) == 2
    working.restore(message, 0)
    assert working.visible_to(7) == 3
    working.purge()
    assert working.visible_to(7) == 0
    assert working.addressed == {}


def test_recovered_counts_go_down_as_messages_are_read_back() -> None:
    working = a_recovered_queue(2)
    working.addressed = {7: 1}
    working._addressed_count = 1
    assert working.visible_to(8) == 1
    working.loaded(load(working), [a_message(1, stored=True), a_message(2, receiver=7, stored=True)])
    take(working)
    take(working)
    assert working.addressed == {}
    assert len(working) == 0


def test_listing_gives_what_is_in_memory_oldest_first_in_pages() -> None:
    working, _ = a_queue()
    fill(working, *(a_message(n) for n in range(1, 6)))
    assert [message.id for message in working.oldest(0, 2)] == [1, 2]
    take(working, Selector(order=Order.NEWEST))
    assert [message.id for message in working.oldest(2, 10)] == [3, 4]


def test_the_bytes_of_what_was_found_at_the_start_are_unknown_until_told_or_until_the_queue_is_empty() -> None:
    working = a_recovered_queue(2)
    working.traits = Traits(max_length_bytes=10)
    assert working.is_unmeasured
    working.learn_bytes(8)
    assert not working.is_unmeasured
    assert not working.is_too_long
    fill(working, Message(3, 1, b"more"))
    assert (working.ready_bytes, working.unstored_bytes, working.is_too_long) == (12, 4, True)
    emptied = a_recovered_queue(1)
    need = emptied.first(FIRST, 0)
    assert isinstance(need, Load)
    emptied.loaded(need, [Message(1, 1, b"four", stored=True)])
    take(emptied)
    assert (emptied.ready_bytes, emptied.knows_bytes) == (0, True)


def test_a_consumer_is_given_at_once_only_what_holds_so_many_bytes() -> None:
    working, _ = a_queue()
    fill(working, *(Message(n, 1, b"x" * 10) for n in range(1, 6)))
    consumer = a_consumer(1, prefetch=5)
    assert given(working.feed(consumer, 0, most_bytes=25)) == [(1, 1), (1, 2), (1, 3)]
    assert given(working.feed(consumer, 0, most_bytes=1)) == [(1, 4)]


def test_a_consumer_is_given_up_to_its_window() -> None:
    working, _ = a_queue()
    fill(working, *(a_message(n) for n in range(1, 6)))
    consumer = a_consumer(1, prefetch=3)
    assert given(working.feed(consumer, 0)) == [(1, 1), (1, 2), (1, 3)]
    assert list(consumer.leases) == list(working.out) == [1, 2, 3]


def test_a_consumer_alone_stays_in_line_until_its_window_is_full() -> None:
    working, _ = a_queue()
    alone = a_consumer(1, prefetch=2)
    assert not working.feed(alone, 0)
    assert [working.arrive(a_message(n), 0) is not None for n in (1, 2, 3)] == [True, True, False]
    assert (alone.turn, len(working)) == (0, 1)


def test_a_consumer_alone_that_was_paused_gets_nothing_and_leaves_the_line() -> None:
    working, _ = a_queue()
    alone = a_consumer(1, prefetch=2)
    assert not working.feed(alone, 0)
    alone.paused_for = 1
    assert working.arrive(a_message(1), 0) is None
    assert (alone.turn, len(working)) == (0, 1)


def test_consumers_that_join_one_alone_get_their_turn() -> None:
    working, _ = a_queue()
    first, second, choosy = a_consumer(1, prefetch=9), a_consumer(2, prefetch=9), a_consumer(3, Selector(reader=7), 9)
    found = []
    for number, joining in enumerate((first, second, choosy)):
        assert not working.feed(joining, 0)
        for message_id in range(3 * number, 3 * number + 3):
            delivery = working.arrive(a_message(message_id + 1), 0)
            assert delivery is not None
            found.append(delivery.consumer.id)
    assert found == [1, 1, 1, 1, 2, 1, 2, 1, 3]


def test_one_that_is_left_alone_in_line_gets_everything() -> None:
    working, _ = a_queue()
    first, second = a_consumer(1, prefetch=9), a_consumer(2, prefetch=9)
    for consumer in (first, second):
        assert not working.feed(consumer, 0)
    working.stop_waiting(first)
    deliveries = [working.arrive(a_message(n), 0) for n in (1, 2, 3)]
    assert [delivery and delivery.consumer.id for delivery in deliveries] == [2, 2, 2]


def test_requeued_messages_reach_a_waiting_consumer_in_its_order_and_not_in_theirs() -> None:
    working, _ = a_queue()
    fill(working, *(a_message(n, priority=n % 3) for n in range(1, 5)))
    out = [take(working) for _ in range(4)]
    by_priority = a_consumer(1, Selector(order=Order.PRIORITY), prefetch=2)
    oldest = a_consumer(2, prefetch=1)
    assert not working.feed(by_priority, 0)
    assert not working.feed(oldest, 0)
    assert given(working.requeue([out[3], out[2], out[1], out[0]], 0)) == [(1, 2), (2, 1), (1, 4)]
    assert len(working) == 1


def test_an_expired_message_that_comes_back_is_not_delivered() -> None:
    working, expired = a_queue()
    fill(working, a_message(1, expires_us=50), a_message(2, expires_us=50))
    first, second = take(working), take(working)
    assert not working.feed(a_consumer(1, prefetch=2), 0)
    assert working.restore(first, 50) is None
    assert working.requeue([second], 50) == []
    assert [message.id for message in expired] == [1, 2]
    assert list(working.out) == [1, 2]


def test_a_message_that_arrives_expired_is_not_delivered() -> None:
    working, expired = a_queue()
    working.feed(a_consumer(1), 0)
    assert working.arrive(a_message(1, expires_us=10), 11) is None
    assert [message.id for message in expired] == [1]
    assert len(working) == 0


def test_a_message_without_time_to_live_is_delivered_at_once_or_not_at_all() -> None:
    working, expired = a_queue()
    working.feed(a_consumer(1), 0)
    assert working.arrive(a_message(1, expires_us=10), 10) is not None
    assert working.arrive(a_message(2, expires_us=10), 10) is None
    assert [message.id for message in expired] == [2]
    assert len(working) == 0


def test_reading_drops_what_is_expired_wherever_it_stands() -> None:
    working, expired = a_queue()
    fill(working, a_message(1, expires_us=5), a_message(2), a_message(3, expires_us=5))
    found = working.first(Selector(order=Order.NEWEST), 5)
    assert isinstance(found, Message)
    assert found.id == 2
    assert [message.id for message in expired] == [3]


def test_a_queue_with_a_backlog_in_the_store_asks_for_it_and_then_gives_it_in_turns() -> None:
    working = a_recovered_queue(5)
    consumers = [a_consumer(1, prefetch=2), a_consumer(2, prefetch=2)]
    for consumer in consumers:
        assert not working.feed(consumer, 0)
    need = working.need
    assert isinstance(need, Load)
    working.loaded(need, [a_message(n, stored=True) for n in range(1, 6)])
    assert given(working.feed_blocked(0)) == [(1, 1), (2, 2), (1, 3), (2, 4)]
    assert working.need is None


def test_a_new_message_does_not_overtake_those_that_are_being_loaded() -> None:
    working = a_recovered_queue(1)
    consumer = a_consumer(1, prefetch=2)
    working.feed(consumer, 0)
    assert working.arrive(a_message(2), 0) is None
    working.loaded(load(working), [a_message(1, stored=True)])
    assert given(working.feed_blocked(0)) == [(1, 1), (1, 2)]


def test_who_waits_for_the_store_does_not_hold_up_who_waits_for_something_new() -> None:
    working = a_recovered_queue(1)
    selector = Selector(reader=7, unaddressed=False)
    blocked, hungry = a_consumer(1), a_consumer(2, selector)
    working.feed(blocked, 0)
    working.feed(hungry, 0)
    assert isinstance(working.need, Load)
    shape = Build(working.first(selector, 0).shape)  # type: ignore[union-attr]
    working.indexed.begin_index(shape.shape, working.out)
    working.indexed.fill_index(shape.shape, [(KEY, 0, [1])], 1)
    working.indexed.finish_index(shape.shape)
    assert working.feed_blocked(0) == []
    delivery = working.arrive(a_message(2, receiver=7), 0)
    assert delivery is not None
    assert delivery.consumer is hungry


def test_what_is_needed_first_changes_once_it_was_served() -> None:
    working = a_recovered_queue(4)
    greedy = a_consumer(1, prefetch=100)
    other = a_consumer(2, Selector(order=Order.NEWEST))
    working.feed(greedy, 0)
    working.feed(other, 0)
    need = working.need
    assert isinstance(need, Load)
    working.loaded(need, [a_message(1, stored=True)])
    assert given(working.feed_blocked(0)) == [(1, 1)]
    assert isinstance(working.need, Build)


def test_a_purge_lets_those_who_wait_for_the_store_have_what_comes_next() -> None:
    working = a_recovered_queue(3)
    consumer = a_consumer(1)
    working.feed(consumer, 0)
    old = load(working)
    generation = working.generation
    assert working.purge() == []
    assert working.generation != generation
    assert working.need is None
    delivery = working.arrive(a_message(4), 0)
    assert delivery is not None
    assert working.loaded(old, [a_message(1, stored=True)]) == []
    assert len(working) == 0


def test_lost_messages_leave_no_counts_behind_in_an_empty_queue() -> None:
    working = a_recovered_queue(2)
    working.addressed = {7: 2}
    working._addressed_count = 2
    working.loaded(load(working), [])
    assert len(working) == 0
    assert working.visible_to(8) == working.visible_to(7) == 0


def test_looking_for_a_message_that_is_gone_costs_a_plain_queue_no_index() -> None:
    working, _ = a_queue()
    fill(working, a_message(1), a_message(2))
    take(working)
    backlog = working._backlog
    assert working.get(1) is None
    assert working._backlog is backlog
    found = working.get(2)
    assert found is not None
    assert found.id == 2


def test_a_queue_that_was_drained_is_plain_again() -> None:
    working, _ = a_queue()
    fill(working, a_message(1, stored=True), a_message(2, stored=True))
    assert working.evict(10_000, keep_bytes=0)
    working.loaded(load(working), [a_message(1, stored=True), a_message(2, stored=True)])
    take(working)
    indexed = working._backlog
    take(working)
    assert working._backlog is not indexed
    assert len(working) == 0
