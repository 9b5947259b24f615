from __future__ import annotations

import time
from collections.abc import Callable

from flyball.broker.engine.consumer import Consumer, SharedWindow, WaitingConsumers
from flyball.broker.engine.credit import Credit
from flyball.model import Selector
from tests.broker.engine.messages import SOMEBODY, a_message


def a_consumer(consumer_id: int, selector: Selector | None = None, prefetch: float = 1) -> Consumer:
    return Consumer(consumer_id, 1, selector or Selector(), Credit(prefetch), SOMEBODY)


def a_line(*consumers: Consumer) -> WaitingConsumers:
    line = WaitingConsumers()
    for consumer in consumers:
        line.join(consumer)
    return line


def test_consumers_are_served_in_the_order_they_joined() -> None:
    consumers = [a_consumer(1), a_consumer(2, Selector(reader=7)), a_consumer(3)]
    line = a_line(*consumers)
    given = []
    for message_id in range(1, 7):
        consumer = line.match(a_message(message_id), 0)
        assert consumer is not None
        given.append(consumer.id)
        line.join(consumer)
    assert given == [1, 2, 3, 1, 2, 3]


def test_addressed_message_goes_to_its_receiver_or_an_unfiltered_consumer() -> None:
    line = a_line(a_consumer(1, Selector(reader=7)), a_consumer(2, Selector(reader=8)), a_consumer(3))
    matched = [line.match(a_message(n, receiver=8), 0) for n in (1, 2, 3)]
    assert [consumer and consumer.id for consumer in matched] == [2, 3, None]


def test_unaddressed_message_skips_consumers_of_their_own_messages() -> None:
    line = a_line(a_consumer(1, Selector(reader=7, unaddressed=False)))
    assert line.match(a_message(1), 0) is None
    assert line.match(a_message(2, receiver=7), 0) is not None


def test_sender_and_context_must_fit() -> None:
    line = a_line(a_consumer(1, Selector(sender=5)), a_consumer(2, Selector(context=6)))
    assert line.match(a_message(1), 0) is None
    assert line.match(a_message(2, sender=6, context=5), 0) is None
    matched = [line.match(a_message(n, sender=5, context=6), 0) for n in (3, 4, 5)]
    assert [consumer and consumer.id for consumer in matched] == [1, 2, None]


def test_joining_twice_keeps_the_place() -> None:
    first, second = a_consumer(1), a_consumer(2)
    line = a_line(first, second, first)
    assert line.match(a_message(1), 0) is first
    assert line.match(a_message(2), 0) is second
    assert not line


def test_leaving_twice_is_harmless() -> None:
    consumer = a_consumer(1)
    line = a_line(consumer)
    line.leave(consumer)
    line.leave(consumer)
    assert not line
    assert line.match(a_message(1), 0) is None


def test_a_consumer_without_room_drops_out_of_the_line() -> None:
    full, cancelled, good = a_consumer(1, prefetch=0), a_consumer(2), a_consumer(3)
    cancelled.is_cancelled = True
    line = a_line(full, cancelled, good)
    assert line.match(a_message(1), 0) is good
    assert not line
    assert full.turn == 0


def test_a_consumer_wants_more_until_its_window_is_full() -> None:
    consumer = a_consumer(1, prefetch=2)
    assert consumer.wants(0)
    consumer.leases = {1: a_message(1), 2: a_message(2)}
    assert not consumer.wants(0)
    consumer.credit = Credit(3)
    assert consumer.wants(0)


def seconds_of(action: Callable[[], object]) -> float:
    began_s = time.process_time()
    action()
    return time.process_time() - began_s


def test_full_consumers_leave_the_line_in_linear_time() -> None:
    window = SharedWindow(limit=1)
    consumers = [a_consumer(number) for number in range(1, 200_001)]
    for consumer in consumers:
        consumer.shared = window
    lines: list[WaitingConsumers] = []
    joining_s = seconds_of(lambda: lines.append(a_line(*consumers)))
    (line,) = lines
    window.held = 1
    leaving_s = seconds_of(lambda: line.match(a_message(1), 0))
    assert not line
    # A hundred times, if each that leaves steps over all that left before it.
    assert leaving_s < 15 * joining_s


def test_consumers_of_many_priorities_join_and_leave_without_sorting_all() -> None:
    count = 20_000
    alike = [a_consumer(number) for number in range(1, count + 1)]
    consumers = [
        Consumer(number, 1, Selector(), Credit(1), SOMEBODY, priority=number * 7919 % 20_011)
        for number in range(1, count + 1)
    ]

    def serve_all(served: list[Consumer]) -> list[Consumer | None]:
        line = a_line(*served)
        given = [line.match(a_message(number), 0) for number in range(1, count + 1)]
        assert not line
        return given

    plain_s = seconds_of(lambda: serve_all(alike))
    given: list[Consumer | None] = []
    # A thousand times, if all are sorted for each.
    assert seconds_of(lambda: given.extend(serve_all(consumers))) < 50 * plain_s
    assert given == sorted(consumers, key=lambda consumer: -consumer.priority)


def test_higher_priorities_are_served_first_in_any_order_of_joining() -> None:
    low, high, middle = (
        Consumer(number, 1, Selector(), Credit(1), SOMEBODY, priority=priority)
        for number, priority in ((1, -5), (2, 10), (3, 0))
    )
    line = a_line(low, high, middle)
    line.leave(high)
    assert line.match(a_message(1), 0) is middle
    line.join(high)
    assert line.match(a_message(2), 0) is high
    assert line.match(a_message(3), 0) is low
    assert not line
