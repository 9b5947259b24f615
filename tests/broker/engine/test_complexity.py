"""The cost of operations in calls, not in time: how it grows from a short queue to a long one.

Calls are counted with the profiler; inside the heap functions, which count as one call each, the steps are
comparisons of ranks, and those are counted with numbers that count how often they are compared.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from flyball.broker.engine import backlog as backlog_module
from flyball.broker.engine import index as index_module
from flyball.broker.engine import queue as queue_module
from flyball.broker.engine.backlog import IndexedBacklog, Load
from flyball.broker.engine.engine import Engine
from flyball.broker.engine.index import Index
from flyball.model import Draft, Message, Order, Selector
from tests.broker.engine.messages import a_message, an_engine, consume, peek, set_prefetch

SHORT, LONG = 1_000, 30_000
FIRST = Selector()
KINDS = [
    Selector(reader=reader, sender=sender, context=context, order=order)
    for order in Order
    for reader in (None, 1)
    for sender in (None, 1)
    for context in (None, 1)
]

interpreted = pytest.mark.skipif(
    not index_module.__file__.endswith(".py"), reason="compiled code does not call the profiler"
)


def calls_of(action: Callable[[], object]) -> int:
    """Count the calls of Python and C functions that the action makes."""
    count = 0

    def profiler(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    previous = sys.getprofile()
    sys.setprofile(profiler)
    try:
        action()
    finally:
        sys.setprofile(previous)
    return count


def a_draft(number: int) -> Draft:
    return Draft(
        b"",
        sender=number % 3,
        receiver=(None, 1, 2)[number % 3 if number % 2 else 0],
        context=number % 2,
        priority=number % 5,
    )


def a_filled_engine(count: int) -> tuple[Engine, int]:
    engine, queue_id = an_engine()
    for number in range(count):
        engine.put(a_draft(number), [queue_id], 0)
    return engine, queue_id


def work(engine: Engine, queue_id: int, selector: Selector) -> None:
    """Do a little of everything, and leave the queue as long as it was."""
    for number in range(60):
        engine.put(a_draft(number), [queue_id], 0)
    kept = []
    for _ in range(60):
        peek(engine, queue_id, selector)
        message = engine.take(queue_id, selector, 0)
        assert isinstance(message, Message)
        kept.append(message)
    for message in kept[:20]:
        engine.requeue_undelivered(message, 0)
    for message in kept[20:]:
        engine.settle(message)
    consumer, _ = consume(engine, queue_id, selector, 20, 0)
    engine.cancel(consumer)
    engine.requeue(engine.acknowledge(consumer, list(consumer.leases)), 0)
    engine.active_queues(1)


@interpreted
@pytest.mark.parametrize("selector", KINDS, ids=str)
def test_cost_of_each_read_is_independent_of_queue_length(selector: Selector) -> None:
    costs = []
    for count in (SHORT, LONG):
        engine, queue_id = a_filled_engine(count)
        peek(engine, queue_id, selector)
        costs.append(calls_of(lambda engine=engine, queue_id=queue_id: work(engine, queue_id, selector)))  # type: ignore[misc]
    assert costs[1] < 2 * costs[0]


@interpreted
def test_cost_of_mixed_reads_is_independent_of_queue_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (backlog_module, queue_module):
        monkeypatch.setattr(module, "MAX_INDEXES", len(KINDS))
    costs = []
    for count in (5_000, LONG):
        engine, queue_id = a_filled_engine(count)
        for selector in KINDS:
            peek(engine, queue_id, selector)

        def all_kinds(engine: Engine = engine, queue_id: int = queue_id) -> None:
            for selector in KINDS:
                work(engine, queue_id, selector)

        costs.append(calls_of(all_kinds))
    assert costs[1] < 3 * costs[0]


class CountingRank(int):
    compared = 0

    def __lt__(self, other: int) -> bool:
        CountingRank.compared += 1
        return int(self) < int(other)


@interpreted
def test_a_heap_compares_a_logarithmic_number_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Index._rank
    monkeypatch.setattr(
        Index, "_rank", lambda self, message_id, priority: CountingRank(rank(self, message_id, priority))
    )
    selector = Selector(reader=1, order=Order.PRIORITY)
    costs = []
    for count in (SHORT, LONG):
        engine, queue_id = a_filled_engine(count)
        peek(engine, queue_id, selector)
        CountingRank.compared = 0
        work(engine, queue_id, selector)
        costs.append(CountingRank.compared)
    assert costs[1] < 2 * costs[0]


@interpreted
def test_loading_costs_by_what_is_loaded_and_not_by_what_waits() -> None:
    costs = []
    for count in (5_000, LONG):
        engine, queue_id = a_filled_engine(count)
        state = engine.queue(queue_id)
        stored = {message.id: message for message in state.oldest(0, count)}
        for message in stored.values():
            message.stored = True
        state.evict(10**12, keep_bytes=0)
        engine.resident_bytes = 0

        def load_and_take(engine: Engine = engine, queue_id: int = queue_id) -> None:
            load = engine.take(queue_id, FIRST, 0)
            assert isinstance(load, Load)
            for _ in range(100):
                assert engine.take(queue_id, FIRST, 0) is load
            engine.loaded(queue_id, load, [stored[n] for n in load.message_ids], 0)  # noqa: B023
            for _ in load.message_ids:
                assert isinstance(engine.take(queue_id, FIRST, 0), Message)

        costs.append(calls_of(load_and_take))
    assert costs[1] < 1.5 * costs[0]


@interpreted
def test_thousands_who_wait_for_something_else_do_not_slow_an_arrival_down() -> None:
    costs = []
    for waiting in (10, 3_000):
        engine, queue_id = an_engine()
        for number in range(waiting):
            consume(engine, queue_id, Selector(reader=number, unaddressed=False), 1, 0)
            consume(engine, queue_id, Selector(sender=number + 10), 1, 0)
            consume(engine, queue_id, Selector(reader=number, context=number + 10), 1, 0)

        def put(engine: Engine = engine, queue_id: int = queue_id) -> None:
            engine.put(Draft(b"", sender=2, context=2), [queue_id], 0)
            engine.put(Draft(b"", sender=12, receiver=5, context=12), [queue_id], 0)

        costs.append(calls_of(put))
    assert costs[1] < 1.5 * costs[0]


def test_plain_first_in_first_out_makes_no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an index was made")

    monkeypatch.setattr(queue_module, "IndexedBacklog", refuse)
    engine, queue_id = an_engine()
    for _ in range(10):
        engine.put(Draft(b"", sender=1, receiver=2, priority=3, expires_us=10**9), [queue_id], 0)
    kept = [engine.take(queue_id, FIRST, 0) for _ in range(5)]
    for message in kept:
        assert isinstance(message, Message)
    engine.requeue_undelivered(kept[3], 0)  # type: ignore[arg-type]
    engine.settle(kept[1])  # type: ignore[arg-type]
    consumer, deliveries = consume(engine, queue_id, FIRST, 3, 0)
    assert [delivery.message.id for delivery in deliveries] == [4, 6, 7]
    engine.requeue(engine.acknowledge(consumer, [6, 4]), 0)
    set_prefetch(engine, consumer, 100, 0)
    assert not len(engine.queue(queue_id))
    engine.expire(10**9)


@interpreted
def test_cost_of_the_first_eviction_is_independent_of_queue_length() -> None:
    costs = []
    for count in (SHORT, LONG):
        messages = [a_message(number, stored=True) for number in range(1, count + 1)]
        backlog = IndexedBacklog(messages)
        costs.append(calls_of(lambda backlog=backlog, last=messages[-1]: backlog.evict([last])))  # type: ignore[misc]
        assert backlog.first(FIRST) is messages[0]
        assert (len(backlog), backlog.absent) == (count, 1)
    assert costs[1] == costs[0]
