from __future__ import annotations

import random

from flyball.broker.engine.index import ARRIVAL, Index, Shape
from flyball.model import Order, Selector
from tests.broker.engine.messages import a_message


def test_selectors_of_one_kind_share_one_shape() -> None:
    assert Shape.of(Selector(reader=1)) is Shape.of(Selector(reader=2, unaddressed=False))
    assert Shape.of(Selector()) is ARRIVAL
    assert Shape.of(Selector(reader=1)) is not ARRIVAL


def test_a_shape_says_what_its_selectors_ask_for() -> None:
    for order in Order:
        for reader in (None, 1):
            for sender in (None, 1):
                for context in (None, 1):
                    shape = Shape.of(Selector(reader=reader, sender=sender, context=context, order=order))
                    asked = (reader is not None, sender is not None, context is not None, order)
                    assert (shape.by_receiver, shape.by_sender, shape.by_context, shape.order) == asked


def test_the_oldest_is_first_wherever_it_was_added() -> None:
    index = Index(ARRIVAL)
    for message_id in (5, 3, 8):
        index.add(a_message(message_id))
    assert index.first(Selector()) == 3
    assert index.first_ids(Selector(), 10) == [3, 5, 8]


def test_the_newest_is_first_if_so_asked() -> None:
    selector = Selector(order=Order.NEWEST)
    index = Index(Shape.of(selector))
    for message_id in (5, 3, 8):
        index.add(a_message(message_id))
    assert index.first_ids(selector, 2) == [8, 5]


def test_higher_priority_comes_first_and_equals_come_in_their_order() -> None:
    selector = Selector(order=Order.PRIORITY)
    index = Index(Shape.of(selector))
    for message_id, priority in ((1, 0), (2, 7), (3, -4), (4, 7), (5, 255)):
        index.add(a_message(message_id, priority=priority))
    assert index.first_ids(selector, 10) == [5, 2, 4, 1, 3]


def test_a_reader_sees_its_own_messages_and_those_to_nobody_in_one_order() -> None:
    selector = Selector(reader=7)
    index = Index(Shape.of(selector))
    for message_id, receiver in ((1, 8), (2, None), (3, 7), (4, None), (5, 7)):
        index.add(a_message(message_id, receiver=receiver))
    assert index.first(selector) == 2
    assert index.first_ids(selector, 10) == [2, 3, 4, 5]
    assert index.first_ids(Selector(reader=7, unaddressed=False), 10) == [3, 5]
    assert index.first(Selector(reader=9, unaddressed=False)) is None


def test_sender_and_context_narrow_it_down() -> None:
    selector = Selector(sender=1, context=2)
    index = Index(Shape.of(selector))
    for message_id, sender, context in ((1, 1, None), (2, None, 2), (3, 1, 2), (4, 1, 3), (5, 1, 2)):
        index.add(a_message(message_id, sender=sender, context=context))
    assert index.first_ids(selector, 10) == [3, 5]


def test_what_is_removed_from_the_middle_is_not_found() -> None:
    index = Index(ARRIVAL)
    messages = [a_message(message_id) for message_id in range(1, 6)]
    for message in messages:
        index.add(message)
    index.remove(messages[1])
    index.discard(3)
    assert index.first_ids(Selector(), 10) == [1, 4, 5]
    index.remove(messages[0])
    assert index.first(Selector()) == 4
    assert len(index) == 2


def test_what_was_removed_and_comes_back_is_found_once() -> None:
    index = Index(ARRIVAL)
    messages = [a_message(message_id) for message_id in range(1, 4)]
    for message in messages:
        index.add(message)
    index.remove(messages[1])
    index.add(messages[1])
    assert index.first_ids(Selector(), 10) == [1, 2, 3]
    index.remove(messages[0])
    index.add(messages[0])
    assert index.first_ids(Selector(), 10) == [1, 2, 3]
    assert len(index) == 3


def test_many_can_be_added_at_once_before_and_after_others() -> None:
    selector = Selector(order=Order.PRIORITY)
    index = Index(Shape.of(selector))
    index.extend((None, None, None), 1, range(100, 200))
    index.extend((None, None, None), 1, [7, 5])
    index.extend((None, None, None), 2, range(200, 300))
    index.extend((None, None, None), 2, [])
    assert index.first_ids(selector, 1000) == [*range(200, 300), 5, 7, *range(100, 200)]


def test_an_index_with_mostly_stale_entries_sweeps_them_out() -> None:
    index = Index(ARRIVAL)
    messages = [a_message(message_id) for message_id in range(1, 1001)]
    for message in messages:
        index.add(message)
    taken = messages[:]
    random.Random(1).shuffle(taken)
    for message in taken[:990]:
        index.remove(message)
    assert index.first_ids(Selector(), 1000) == sorted(message.id for message in taken[990:])
    assert len(index) == 10
