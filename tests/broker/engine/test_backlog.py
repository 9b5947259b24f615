from __future__ import annotations

import pytest

from flyball.broker.engine import backlog as backlog_module
from flyball.broker.engine.backlog import (
    ENTRY_BYTES,
    HEAP_BYTES,
    Build,
    IndexedBacklog,
    Load,
    PlainBacklog,
    evictable,
)
from flyball.broker.engine.index import ARRIVAL, Key, Shape
from flyball.model import Message, Order, Selector
from tests.broker.engine.messages import a_message

FIRST = Selector()
NEWEST = Selector(order=Order.NEWEST)
ALL: Key = (None, None, None)


def in_store(*message_ids: int) -> list[Message]:
    return [a_message(message_id, stored=True) for message_id in message_ids]


def drained(backlog: PlainBacklog) -> list[int]:
    message_ids = []
    while (message := backlog.first()) is not None:
        backlog.pop()
        message_ids.append(message.id)
    return message_ids


def taken(backlog: IndexedBacklog, selector: Selector = FIRST) -> int:
    message = backlog.first(selector)
    assert isinstance(message, Message)
    backlog.remove(message)
    return message.id


def an_evicted_backlog(*message_ids: int) -> IndexedBacklog:
    backlog = IndexedBacklog(in_store(*message_ids))
    backlog.evict(list(backlog.resident()))
    assert backlog.absent == len(backlog) == len(message_ids)
    return backlog


def test_a_plain_backlog_is_first_in_first_out() -> None:
    backlog = PlainBacklog()
    for message_id in (1, 2, 3):
        backlog.add(a_message(message_id))
    assert len(backlog) == 3
    assert drained(backlog) == [1, 2, 3]


@pytest.mark.parametrize("came_back", [(), (2, 4)])
def test_a_plain_backlog_is_listed_from_any_id_on(came_back: tuple[int, ...]) -> None:
    backlog = PlainBacklog()
    for message_id in (*[i for i in (2, 4, 6, 8) if i not in came_back], *came_back):
        backlog.add(a_message(message_id))
    for after_id, expected in ((0, [2, 4, 6, 8]), (2, [4, 6, 8]), (3, [4, 6, 8]), (7, [8]), (8, []), (99, [])):
        assert [message.id for message in backlog.after(after_id)] == expected


@pytest.mark.parametrize("back", [(1, 3, 2), (3, 2, 1), (2, 1, 3)])
def test_what_comes_back_to_a_plain_backlog_goes_to_its_old_place(back: tuple[int, ...]) -> None:
    backlog = PlainBacklog()
    for message_id in (5, *back, 6):
        backlog.add(a_message(message_id))
    assert [message.id for message in backlog] == [1, 2, 3, 5, 6]
    assert drained(backlog) == [1, 2, 3, 5, 6]


def test_a_plain_backlog_lists_in_order_what_came_back_into_an_empty_one() -> None:
    backlog = PlainBacklog()
    for message_id in (20, 10, 30):
        backlog.add(a_message(message_id))
    drained(backlog)
    for message_id in (10, 5, 7, 20):
        backlog.add(a_message(message_id))
    assert [message.id for message in backlog] == [5, 7, 10, 20]


def test_an_index_is_made_by_the_first_who_needs_it() -> None:
    backlog = IndexedBacklog(a_message(n) for n in (1, 2, 3))
    assert backlog.is_plain
    assert taken(backlog, NEWEST) == 3
    assert not backlog.is_plain
    backlog.add(a_message(4))
    assert taken(backlog, NEWEST) == 4
    assert taken(backlog) == 1


def test_evicted_messages_are_asked_for_in_the_order_of_the_selector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog_module, "LOAD_AT_ONCE", 2)
    backlog = an_evicted_backlog(1, 2, 3)
    load = backlog.first(FIRST)
    assert isinstance(load, Load)
    assert load.message_ids == [1, 2]
    assert [message.id for message in backlog.loaded(load, in_store(1, 2))] == [1, 2]
    assert taken(backlog) == 1
    assert taken(backlog) == 2
    assert isinstance(backlog.first(FIRST), Load)
    assert len(backlog) == backlog.absent == 1


def test_all_who_want_an_absent_message_get_the_same_load() -> None:
    backlog = an_evicted_backlog(1, 2)
    assert backlog.first(FIRST) is backlog.first(FIRST)


def test_a_load_that_comes_late_does_not_bring_back_what_was_taken_meanwhile() -> None:
    backlog = an_evicted_backlog(1, 2)
    load = backlog.first(FIRST)
    assert isinstance(load, Load)
    backlog.loaded(load, in_store(1, 2))
    assert taken(backlog) == 1
    assert backlog.loaded(load, in_store(1, 2)) == []
    assert len(backlog) == 1
    assert backlog.absent == 0
    assert taken(backlog) == 2


def test_a_late_empty_answer_loses_nothing_that_was_loaded_meanwhile() -> None:
    backlog = an_evicted_backlog(1, 2)
    load = backlog.first(FIRST)
    assert isinstance(load, Load)
    backlog.loaded(load, in_store(1))
    backlog.loaded(load, [])
    assert len(backlog) == 2


def test_messages_that_the_store_does_not_have_are_forgotten() -> None:
    backlog = an_evicted_backlog(1, 2)
    load = backlog.first(FIRST)
    assert isinstance(load, Load)
    backlog.loaded(load, [])
    assert len(backlog) == 0
    assert backlog.first(FIRST) is None


def test_a_new_shape_over_absent_messages_has_to_be_built() -> None:
    backlog = an_evicted_backlog(1, 2)
    build = backlog.first(NEWEST)
    assert build == Build(Shape.of(NEWEST))
    backlog.begin_index(Shape.of(NEWEST), [])
    assert backlog.is_building(Shape.of(NEWEST))
    assert backlog.first(NEWEST) == build
    backlog.fill_index(Shape.of(NEWEST), [(ALL, 0, [1, 2])], 2)
    backlog.finish_index(Shape.of(NEWEST))
    load = backlog.first(NEWEST)
    assert isinstance(load, Load)
    assert load.message_ids == [2, 1]


def test_an_abandoned_index_can_be_begun_again() -> None:
    backlog = an_evicted_backlog(1, 2)
    shape = Shape.of(NEWEST)
    backlog.begin_index(shape, [])
    backlog.abandon_index(shape)
    assert backlog.first(NEWEST) == Build(shape)


def test_an_index_is_right_whatever_comes_and_goes_while_it_is_built() -> None:
    backlog = IndexedBacklog(in_store(2, 4, 6, 8))
    messages = {message.id: message for message in backlog.resident()}
    backlog.evict([messages[8]])
    backlog.add(a_message(9))
    shape = Shape.of(NEWEST)
    backlog.begin_index(shape, [1])
    backlog.remove(messages[2])
    backlog.remove(messages[4])
    backlog.fill_index(shape, [(ALL, 0, [1, 2, 4, 6])], 6)
    backlog.add(messages[4])
    backlog.remove(messages[6])
    backlog.add(a_message(10))
    backlog.add(a_message(1))
    backlog.fill_index(shape, [(ALL, 0, [8, 9])], 9)
    backlog.finish_index(shape)
    assert [taken(backlog, NEWEST), taken(backlog, NEWEST)] == [10, 9]
    load = backlog.first(NEWEST)
    assert isinstance(load, Load)
    assert load.message_ids == [8]
    backlog.loaded(load, in_store(8))
    assert [taken(backlog, NEWEST) for _ in range(len(backlog))] == [8, 4, 1]


def test_an_index_of_many_messages_in_memory_is_filled_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog_module, "INDEX_AT_ONCE", 3)
    messages = [a_message(number) for number in range(1, 9)]
    backlog = IndexedBacklog(messages)
    shape = Shape.of(NEWEST)
    assert backlog.first(NEWEST) == Build(shape)
    backlog.begin_index(shape, [])
    assert backlog.fill_from_memory(shape)
    assert backlog.first(NEWEST) == Build(shape)
    for message in (messages[0], messages[7]):
        backlog.remove(message)
    backlog.add(messages[0])
    backlog.add(a_message(9))
    assert backlog.fill_from_memory(shape)
    assert not backlog.fill_from_memory(shape)
    assert not backlog.needs_store(shape)
    backlog.finish_index(shape)
    assert [taken(backlog, NEWEST) for _ in range(len(backlog))] == [9, 7, 6, 5, 4, 3, 2, 1]


def test_what_leaves_memory_while_an_index_is_filled_is_taken_from_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog_module, "INDEX_AT_ONCE", 2)
    messages = in_store(1, 2, 3, 4, 5)
    backlog = IndexedBacklog(messages)
    backlog.first(FIRST)
    shape = Shape.of(NEWEST)
    backlog.begin_index(shape, [])
    assert backlog.fill_from_memory(shape)
    backlog.evict(messages[:4])
    assert backlog.fill_from_memory(shape)
    load = backlog.first(FIRST)
    assert isinstance(load, Load)
    backlog.loaded(load, messages[:4])
    assert backlog.absent == 0
    assert not backlog.fill_from_memory(shape)
    assert backlog.needs_store(shape), "two were not in memory when it was their turn"
    backlog.fill_index(shape, [(ALL, 0, [1, 2, 3, 4, 5])], 5)
    backlog.finish_index(shape)
    assert [taken(backlog, NEWEST) for _ in range(len(backlog))] == [5, 4, 3, 2, 1]


def test_room_for_an_index_counts_before_it_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog_module, "INDEX_AT_ONCE", 10)
    backlog = IndexedBacklog([a_message(number) for number in range(1, 101)])
    backlog.first(FIRST)
    assert backlog.absent_bytes == 0
    backlog.begin_index(Shape.of(NEWEST), [])
    before = backlog.absent_bytes
    assert before >= 100 * (ENTRY_BYTES + 64)
    while backlog.fill_from_memory(Shape.of(NEWEST)):
        assert backlog.absent_bytes - before <= HEAP_BYTES
    backlog.finish_index(Shape.of(NEWEST))
    assert backlog.absent_bytes < before


def test_indexes_that_were_not_used_for_long_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog_module, "MAX_INDEXES", 3)
    backlog = IndexedBacklog([a_message(1)])
    selectors = [FIRST, NEWEST, Selector(context=1), Selector(sender=1)]
    for selector in [*selectors[:3], FIRST]:
        assert not isinstance(backlog.first(selector), Build)
    assert backlog.first(selectors[3]) == Build(Shape.of(selectors[3]))
    backlog.drop_indexes({Shape.of(NEWEST)}, 2)
    assert [isinstance(backlog.first(selector), Build) for selector in selectors[:2]] == [False, False]
    assert backlog.index_count == 2


def test_what_was_purged_is_not_indexed_while_the_store_still_names_it() -> None:
    came_back, new = in_store(2, 5)
    backlog = IndexedBacklog([came_back, new], void_to=3)
    shape = Shape.of(NEWEST)
    backlog.begin_index(shape, [])
    backlog.fill_index(shape, [(ALL, 0, [1, 2, 3, 5])], 5)
    backlog.finish_index(shape)
    assert [taken(backlog, NEWEST), taken(backlog, NEWEST)] == [5, 2]
    assert backlog.first(NEWEST) is None


def test_eviction_goes_from_new_to_old_and_spares_the_newest() -> None:
    messages = in_store(5, 4, 3, 2, 1)
    size = messages[0].footprint_bytes
    assert [m.id for m in evictable(messages, 2 * size, keep_bytes=size, above_id=0)] == [4, 3]


def test_eviction_spares_what_the_store_has_not() -> None:
    messages = in_store(5, 4, 3, 2, 1)
    messages[0].stored = False
    messages[1].delivery_count = 1
    assert [m.id for m in evictable(messages, 10_000, keep_bytes=0, above_id=1)] == [4, 3, 2]


def test_delivery_count_of_an_evicted_message_is_kept() -> None:
    first, second = in_store(1, 2)
    first.delivery_count = 3
    backlog = IndexedBacklog([first, second])
    backlog.evict([first, second])
    load = backlog.first(FIRST)
    assert isinstance(load, Load)
    backlog.loaded(load, in_store(1, 2))
    found = [backlog.get(1), backlog.get(2)]
    assert [0 if message is None else message.delivery_count for message in found] == [3, 0]


def test_only_earlier_stored_messages_are_recovered_despite_evictions() -> None:
    old, from_another_node, new = in_store(2, 1, 3)
    old.recovered = True
    backlog = IndexedBacklog([old, from_another_node, new], recovered_to=2)
    for _ in range(2):
        backlog.evict(list(backlog.resident()))
        load = backlog.first(FIRST)
        assert isinstance(load, Load)
        backlog.loaded(load, in_store(1, 2, 3))
        found = [backlog.get(number) for number in (1, 2, 3)]
        assert [message is not None and message.recovered for message in found] == [False, True, False]


def test_eviction_before_the_first_read_hides_nothing_that_is_only_in_the_store() -> None:
    backlog = IndexedBacklog(absent=2)
    (new,) = in_store(3)
    backlog.add(new)
    backlog.evict([new])
    assert isinstance(backlog.first(FIRST), Build)


def test_message_that_comes_back_without_its_body_is_found_in_its_place() -> None:
    first, second, third = in_store(1, 2, 3)
    backlog = IndexedBacklog([third])
    second.delivery_count = 1
    backlog.add_absent(second)
    backlog.add_absent(first)
    assert (len(backlog), backlog.absent) == (3, 2)
    load = backlog.first(FIRST)
    assert isinstance(load, Load)
    assert load.message_ids == [1, 2]
    backlog.loaded(load, in_store(1, 2))
    assert [taken(backlog, FIRST) for _ in range(3)] == [1, 2, 3]


def test_distinct_keys_of_an_index_count_for_absent_messages() -> None:
    messages = [Message(number, 1, b"", context=number, stored=True) for number in range(1, 101)]
    backlog = IndexedBacklog(messages)
    backlog.first(Selector(context=1))
    backlog.evict(messages)
    assert backlog.absent_bytes >= 100 * (ENTRY_BYTES + HEAP_BYTES)


def test_places_in_several_indexes_count_for_messages_in_memory() -> None:
    messages = [Message(number, 1, b"", context=number) for number in range(1, 101)]
    backlog = IndexedBacklog(messages)
    backlog.first(FIRST)
    assert backlog.absent_bytes == 0
    backlog.first(Selector(context=1))
    backlog.first(Selector(context=1, order=Order.NEWEST))
    assert backlog.absent_bytes >= 100 * 2 * (ENTRY_BYTES + HEAP_BYTES)


def test_eviction_keeps_an_index_by_arrival() -> None:
    backlog = an_evicted_backlog(1, 2)
    assert isinstance(backlog.first(FIRST), Load)
    assert Shape.of(FIRST) is ARRIVAL
