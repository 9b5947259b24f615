from __future__ import annotations

from flyball.broker.engine.consumer import Consumer, Line
from flyball.broker.engine.credit import Credit
from flyball.model import Selector
from tests.broker.engine.messages import a_message


def a_consumer(consumer_id: int, selector: Selector | None = None, prefetch: float = 1) -> Consumer:
    return Consumer(consumer_id, 1, selector or Selector(), Credit(prefetch), None, takes=False)


def a_line(*consumers: Consumer) -> Line:
    line = Line()
    for consumer in consumers:
        line.join(consumer)
    return line


def test_consumers_get_their_turn_in_the_order_they_joined() -> None:
    consumers = [a_consumer(1), a_consumer(2, Selector(reader=7)), a_consumer(3)]
    line = a_line(*consumers)
    given = []
    for message_id in range(1, 7):
        consumer = line.match(a_message(message_id), 0)
        assert consumer is not None
        given.append(consumer.id)
        line.join(consumer)
    assert given == [1, 2, 3, 1, 2, 3]


def test_an_addressed_message_goes_to_its_receiver_or_to_who_sees_everything() -> None:
    line = a_line(a_consumer(1, Selector(reader=7)), a_consumer(2, Selector(reader=8)), a_consumer(3))
    matched = [line.match(a_message(n, receiver=8), 0) for n in (1, 2, 3)]
    assert [consumer and consumer.id for consumer in matched] == [2, 3, None]


def test_an_unaddressed_message_passes_by_who_wants_only_its_own() -> None:
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
