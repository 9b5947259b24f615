"""Engine and a naive model of it, driven side by side with a store that lags behind.

The model keeps every message forever in plain dicts and finds the first one by sorting. The store is a dict that
is written when a commit comes through and read in pieces, with other operations in between.

A longer run: HYPOTHESIS_PROFILE=long pytest tests/broker/engine/test_engine_against_a_naive_model.py
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flyball.broker.engine import backlog as backlog_module
from flyball.broker.engine import queue as queue_module
from flyball.broker.engine.backlog import Build, IndexedBacklog, Load, Need
from flyball.broker.engine.consumer import Consumer
from flyball.broker.engine.engine import Engine
from flyball.broker.engine.index import Key, Shape
from flyball.broker.engine.queue import Delivery, QueueState
from flyball.model import Draft, Message, Order, Selector, Snapshot
from tests.broker.engine.messages import SOMEBODY, consume, set_prefetch

# Room for about four messages.
LIMIT_BYTES = 3000


# Few, so that indexes come and go.
MAX_INDEXES = 3


def make_rounds_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog_module, "LOAD_AT_ONCE", 3)
    monkeypatch.setattr(backlog_module, "INDEX_AT_ONCE", 2)
    for module in (backlog_module, queue_module):
        monkeypatch.setattr(module, "MAX_INDEXES", MAX_INDEXES)


@dataclass
class Known:
    """A message in the model."""

    message: Message
    delivery_count: int = 0
    is_ready: bool = True


@dataclass(eq=False)
class Loading:
    queue_id: int
    load: Load
    read: list[Message] | None = None


@dataclass(eq=False)
class Indexing:
    queue_id: int
    shape: Shape
    backlog: IndexedBacklog
    generation: int
    # The end of the requested keys; None while the index is filled from memory.
    up_to_id: int | None = None
    filled_to: int = 0
    read: list[Message] | None = None


@dataclass
class Lagging:
    """A store whose commits come through later, in their order."""

    messages: dict[int, Message] = field(default_factory=dict)
    pending: list[Callable[[], None]] = field(default_factory=list)

    def commit(self, count: int) -> None:
        due, self.pending = self.pending[:count], self.pending[count:]
        for operation in due:
            operation()

    def of_queue(self, queue_id: int, after_id: int, up_to_id: int) -> list[Message]:
        found = [m for m in self.messages.values() if m.queue_id == queue_id and after_id < m.id <= up_to_id]
        return sorted(found, key=lambda message: message.id)


def fits(message: Message, selector: Selector) -> bool:
    to_reader = (
        selector.reader is None
        or message.receiver == selector.reader
        or (message.receiver is None and selector.unaddressed)
    )
    return (
        to_reader
        and (selector.sender is None or message.sender == selector.sender)
        and (selector.context is None or message.context == selector.context)
    )


def rank(message: Message, order: Order) -> tuple[int, int]:
    if order == Order.OLDEST:
        return 0, message.id
    if order == Order.NEWEST:
        return 0, -message.id
    return -message.priority, message.id


selectors = st.one_of(
    # Mostly a few kinds, so that their indexes get finished and used.
    st.sampled_from([Selector(), Selector(reader=1), Selector(order=Order.NEWEST)]),
    st.sampled_from([Selector(), Selector(reader=2), Selector(reader=1, order=Order.PRIORITY)]),
    st.builds(
        Selector,
        reader=st.sampled_from([None, 1, 2]),
        unaddressed=st.booleans(),
        sender=st.sampled_from([None, None, 1, 2]),
        context=st.sampled_from([None, None, 1]),
        order=st.sampled_from(list(Order)),
    ),
)
prefetches = st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")])
picks = st.integers(0, 1000)


class EngineAndModel(RuleBasedStateMachine):
    @initialize(limited=st.sampled_from([True, True, True, False]))
    def start(self, limited: bool) -> None:
        self.engine = Engine(Snapshot(), resident_limit_bytes=LIMIT_BYTES if limited else None)
        self.engine.grant_message_ids(1, 1_000_000)
        self.store = Lagging()
        self.now = 1_000_000
        self.known: dict[int, Known] = {}
        # Taken by readers and neither settled nor requeued.
        self.taken: list[Message] = []
        self.consumers: dict[int, Consumer] = {}
        self.loadings: list[Loading] = []
        self.indexings: list[Indexing] = []
        self.created = 0
        self.last_id = 0
        # A message delivered on arrival, which may have a time to live of 0.
        self.arriving: int | None = None
        self.queue_ids = [self._create_queue(), self._create_queue()]

    # What the model says

    def first(self, queue_id: int, selector: Selector) -> Message | None:
        fitting = [known.message for known in self.live(queue_id) if fits(known.message, selector)]
        return min(fitting, key=lambda message: rank(message, selector.order), default=None)

    def ready(self, queue_id: int) -> Iterable[Known]:
        return [k for k in self.known.values() if k.is_ready and k.message.queue_id == queue_id]

    def live(self, queue_id: int) -> Iterable[Known]:
        return [known for known in self.ready(queue_id) if self.is_live(known.message)]

    def is_live(self, message: Message) -> bool:
        return message.expires_us is None or message.expires_us > self.now or message.id == self.arriving

    def check_delivery_at_once(self, delivery: Delivery | None) -> None:
        """A message that comes at the very end of its time may be delivered, but not wait."""
        if delivery is not None:
            self.arriving = delivery.message.id
            self.check_deliveries([delivery])
            self.arriving = None

    def check_found(self, queue_id: int, selector: Selector, found: Message | Need | None) -> None:
        expected = self.first(queue_id, selector)
        if isinstance(found, Load):
            # Some of them may have come with an older load and be gone already.
            ready = {known.message.id for known in self.ready(queue_id)}
            assert not ready.isdisjoint(found.message_ids)
            self.loadings.append(Loading(queue_id, found))
        elif isinstance(found, Build):
            assert found.shape is Shape.of(selector)
            self._begin(queue_id, found.shape)
        elif found is None:
            assert expected is None
        else:
            assert expected is not None
            self.check_same(found, expected)

    def check_same(self, message: Message, expected: Message) -> None:
        known = self.known[message.id]
        assert replace(message, stored=False) == replace(expected, stored=False, delivery_count=known.delivery_count)

    def check_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            consumer, message = delivery.consumer, delivery.message
            assert self.consumers[consumer.id] is consumer
            expected = self.first(consumer.queue_id, consumer.selector)
            assert expected is not None
            self.check_same(message, expected)
            self.known[message.id].is_ready = False
            if consumer.no_ack:
                self.taken.append(message)
        for consumer in {delivery.consumer.id: delivery.consumer for delivery in deliveries}.values():
            if consumer.no_ack:
                # It would leave nothing to others.
                self.engine.cancel(consumer)
            assert len(consumer.leases) <= consumer.credit.window(self.now)

    # Messages

    @rule(
        draft=st.builds(
            Draft,
            # Long enough to be worth leaving to the store, or not.
            body=st.one_of(st.binary(max_size=40), st.just(b"x" * 300)),
            sender=st.sampled_from([None, 1, 2]),
            receiver=st.sampled_from([None, None, 1, 2]),
            context=st.sampled_from([None, None, 1, 2]),
            priority=st.integers(-1, 2),
        ),
        lifetime_us=st.sampled_from([None, None, None, 0, 5_000, 30_000]),
        into=st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=1, max_size=3),
        copies=st.integers(1, 6),
    )
    def put(self, draft: Draft, lifetime_us: int | None, into: list[int], copies: int) -> None:
        draft.expires_us = None if lifetime_us is None else self.now + lifetime_us
        queue_ids = [([*self.queue_ids, 999])[target] for target in into]
        for _ in range(copies):
            arrival = self.engine.put(draft, queue_ids, self.now)
            assert arrival.missing == [queue_id for queue_id in queue_ids if queue_id == 999]
            assert [m.queue_id for m in arrival.messages] == [q for q in queue_ids if q != 999]
            deliveries = {delivery.message.id: delivery for delivery in arrival.deliveries}
            for message in arrival.messages:
                assert message.id > self.last_id
                self.last_id = message.id
                self.known[message.id] = Known(replace(message))
                self.check_delivery_at_once(deliveries.get(message.id))
                self.store.pending.append(lambda message=message: self._append(message))  # type: ignore[misc]

    @rule(pick=picks, selector=selectors, many=st.integers(1, 3))
    def take(self, pick: int, selector: Selector, many: int) -> None:
        queue_id = self._queue_id(pick)
        for _ in range(many):
            found = self.engine.take(queue_id, selector, self.now)
            self.check_found(queue_id, selector, found)
            if not isinstance(found, Message):
                return
            self.known[found.id].is_ready = False
            self.taken.append(found)

    @rule(pick=picks, selector=selectors)
    def peek(self, pick: int, selector: Selector) -> None:
        queue_id = self._queue_id(pick)
        self.check_found(queue_id, selector, self.engine.peek(queue_id, selector, self.now))

    @precondition(lambda self: self.taken)
    @rule(pick=picks, back=st.booleans(), many=st.integers(1, 4))
    def settle_or_restore(self, pick: int, back: bool, many: int) -> None:
        for _ in range(min(many, len(self.taken))):
            message = self.taken.pop(pick % len(self.taken))
            if not back:
                self._remove(message)
                continue
            if message.queue_id in self.queue_ids:
                self.known[message.id].is_ready = True
            delivery = self.engine.requeue_undelivered(message, self.now)
            self.check_deliveries([delivery] if delivery is not None else [])

    def _withdraw_the_newest(self) -> None:
        newest = self.known.get(self.last_id)
        if newest is None or not newest.is_ready or newest.message.queue_id not in self.queue_ids:
            return
        in_memory = {m.id: m for m in self._state(newest.message.queue_id).oldest(0, 10_000)}
        message = in_memory.get(newest.message.id)
        if message is not None and not message.stored:
            assert self.engine.withdraw(message)
            assert not self.engine.withdraw(message)
            del self.known[message.id]

    @rule()
    def expire(self) -> None:
        for message in self.engine.expire(self.now):
            known = self.known[message.id]
            assert known.is_ready
            assert message.expires_us is not None
            assert message.expires_us <= self.now
            known.is_ready = False
            self._remove(message)

    @rule(pick=picks, chance=st.integers(0, 19))
    def purge_delete_or_withdraw(self, pick: int, chance: int) -> None:
        # Rarely: what starts with an empty queue finds little.
        if chance >= 17:
            self._purge(pick)
        elif chance == 16:
            self._delete_queue(pick)
        elif chance == 15:
            self._withdraw_the_newest()
        else:
            self.store.commit(chance)

    def _purge(self, pick: int) -> None:
        queue_id = self._queue_id(pick)
        state = self._state(queue_id)
        out = set(state.unacked)
        gone, absent = self.engine.purge(queue_id)
        ready = {known.message.id for known in self.ready(queue_id)} - out
        assert {message.id for message in gone} <= ready
        assert len(gone) + absent == len(ready)
        for message_id in ready:
            self.known[message_id].is_ready = False
        self._purge_store(queue_id, state.last_message_id, out)

    def _delete_queue(self, pick: int) -> None:
        queue_id = self._queue_id(pick)
        state = self.engine.delete_queue(queue_id)
        for consumer in list(self.consumers.values()):
            if consumer.queue_id == queue_id and not consumer.is_cancelled:
                raise AssertionError("a consumer of a deleted queue goes on")
        self.consumers = {n: c for n, c in self.consumers.items() if c.queue_id != queue_id}
        for known in self.ready(queue_id):
            known.is_ready = False
        self._purge_store(queue_id, state.last_message_id, set())
        self.queue_ids[self.queue_ids.index(queue_id)] = self._create_queue()

    @rule(step_us=st.sampled_from([1, 4_000, 10_000, 40_000]))
    def let_time_pass(self, step_us: int) -> None:
        self.now += step_us
        self.check_deliveries(self.engine.tick(self.now))

    # Consumers

    @rule(pick=picks, selector=selectors)
    def consume_without_acks(self, pick: int, selector: Selector) -> None:
        self.consumers = {n: c for n, c in self.consumers.items() if not (c.no_ack and c.is_cancelled)}
        consumer = self.engine.consume(self._queue_id(pick), selector, 1.0, SOMEBODY, no_ack=True)
        self.consumers[consumer.id] = consumer
        self.check_deliveries(self.engine.feed(consumer, self.now))

    @rule(pick=picks, selector=selectors, prefetch=prefetches)
    def consume(self, pick: int, selector: Selector, prefetch: float) -> None:
        consumer, deliveries = consume(self.engine, self._queue_id(pick), selector, prefetch, self.now)
        self.consumers[consumer.id] = consumer
        self.check_deliveries(deliveries)

    @precondition(lambda self: self.consumers)
    @rule(pick=picks, prefetch=prefetches)
    def set_prefetch(self, pick: int, prefetch: float) -> None:
        consumer = self._consumer(pick)
        self.check_deliveries(set_prefetch(self.engine, consumer, prefetch, self.now))

    @precondition(lambda self: self.consumers)
    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        consumer = self._consumer(pick)
        self.engine.cancel(consumer)
        if not consumer.leases:
            del self.consumers[consumer.id]

    @precondition(lambda self: any(consumer.leases for consumer in self.consumers.values()))
    @rule(pick=picks, count=st.integers(1, 5))
    def page_out_unacked(self, pick: int, count: int) -> None:
        leased = [message for consumer in self.consumers.values() for message in consumer.leases.values()]
        for number in range(count):
            message = leased[(pick + number) % len(leased)]
            before, was_paged = self.engine.resident_bytes, message.is_paged
            freed = self.engine.page_out(message)
            assert before - self.engine.resident_bytes == freed
            assert message.is_paged == (was_paged or freed > 0)
            assert message.stored or not message.is_paged

    def _page_in_what_was_purged(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if self.engine.must_be_whole(message):
                self.engine.page_in(message, self.store.messages[message.id])

    @precondition(lambda self: any(consumer.leases for consumer in self.consumers.values()))
    @rule(pick=picks, count=st.integers(1, 3), back=st.booleans(), newest=st.booleans())
    def end_leases(self, pick: int, count: int, back: bool, newest: bool) -> None:
        holders = [consumer for consumer in self.consumers.values() if consumer.leases]
        consumer = holders[pick % len(holders)]
        message_ids = sorted(consumer.leases, reverse=newest)[:count]
        messages = self.engine.acknowledge(consumer, message_ids)
        assert [message.id for message in messages] == message_ids
        if back:
            for message in messages:
                self.known[message.id].is_ready = True
                self.known[message.id].delivery_count += 1
            self._page_in_what_was_purged(messages)
            self.check_deliveries(self.engine.requeue(messages, self.now))
        else:
            for message in messages:
                self._remove(message)
        self.check_deliveries(self.engine.feed(consumer, self.now))

    # The store

    @precondition(lambda self: self.store.pending)
    @rule(count=st.sampled_from([1, 3, 10, 50]))
    def commit(self, count: int) -> None:
        self.store.commit(count)

    @rule(pick=picks)
    def serve_what_consumers_need(self, pick: int) -> None:
        queue_id = self._queue_id(pick)
        need = self._state(queue_id).need
        if isinstance(need, Load):
            self.loadings.append(Loading(queue_id, need))
        elif need is not None:
            self._begin(queue_id, need.shape)

    @precondition(lambda self: self.loadings)
    @rule(pick=picks, limit=st.integers(1, 5), steps=st.integers(1, 2))
    def load_some_steps(self, pick: int, limit: int, steps: int) -> None:
        loading = self.loadings[pick % len(self.loadings)]
        while steps and loading in self.loadings:
            self._load_step(loading, limit)
            steps -= 1

    @precondition(lambda self: self.indexings)
    @rule(pick=picks, limit=st.integers(1, 4), steps=st.integers(1, 8))
    def index_some_steps(self, pick: int, limit: int, steps: int) -> None:
        indexing = self.indexings[pick % len(self.indexings)]
        if pick % 20 == 19:
            self.indexings.remove(indexing)
            indexing.backlog.abandon_index(indexing.shape)
        while steps and indexing in self.indexings:
            self._index_step(indexing, limit)
            steps -= 1

    # What always holds

    @invariant()
    def every_message_is_in_its_one_place(self) -> None:
        resident_bytes = 0
        for queue_id in self.queue_ids:
            state = self._state(queue_id)
            ready = {known.message.id for known in self.ready(queue_id)}
            in_memory = [message.id for message in state.oldest(0, 10_000)]
            expired = ready & set(state.unacked)
            assert expired.isdisjoint(known.message.id for known in self.live(queue_id))
            assert len(state) == len(ready) - len(expired)
            assert in_memory == sorted(set(in_memory) & ready - expired)
            assert state.absent == len(state) - len(in_memory)
            counted = Counter(self.known[message_id].message.receiver for message_id in ready - expired)
            assert state.visible_to(1) == counted[None] + counted[1]
            assert state.addressed == {who: count for who, count in counted.items() if who is not None}
            resident_bytes += sum(m.footprint_bytes for m in state.oldest(0, 10_000))
            resident_bytes += sum(m.footprint_bytes for m in state.unacked.values())
        assert self.engine.resident_bytes == resident_bytes

    @invariant()
    def nobody_waits_for_what_is_there(self) -> None:
        for consumer in self.consumers.values():
            if not consumer.wants(self.now):
                continue
            if consumer.turn:
                assert self.first(consumer.queue_id, consumer.selector) is None
            else:
                assert self._state(consumer.queue_id).need is not None

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for consumer in list(self.consumers.values()):
            self.engine.cancel(consumer)
            messages = self.engine.acknowledge(consumer, list(consumer.leases))
            for message in messages:
                self.known[message.id].is_ready = True
                self.known[message.id].delivery_count += 1
            self._page_in_what_was_purged(messages)
            self.check_deliveries(self.engine.requeue(messages, self.now))
        for queue_id in self.queue_ids:
            for selector in (Selector(reader=1, order=Order.PRIORITY), Selector()):
                self._drain(queue_id, selector)
        for message in self.taken:
            self._remove(message)
        self.store.commit(10_000)
        self.now += 1_000_000
        self.expire()
        self.store.commit(10_000)
        assert self.engine.resident_bytes == 0
        assert not self.store.messages
        assert all(len(state) == 0 and not state.unacked for state in self.engine.queues)

    # Inside

    def _create_queue(self) -> int:
        self.created += 1
        return self.engine.create_queue(f"queue {self.created}").id

    def _queue_id(self, pick: int) -> int:
        return self.queue_ids[1 if pick % 4 == 3 else 0]

    def _state(self, queue_id: int) -> QueueState:
        return self.engine.queue(queue_id)

    def _consumer(self, pick: int) -> Consumer:
        return list(self.consumers.values())[pick % len(self.consumers)]

    def _append(self, message: Message) -> None:
        if message.id not in self.known:
            return  # It was withdrawn because its commit failed.
        message.stored = True
        self.store.messages[message.id] = replace(message, delivery_count=0)

    def _discard(self, message_ids: Iterable[int]) -> None:
        for message_id in message_ids:
            self.store.messages.pop(message_id, None)

    def _remove(self, message: Message) -> None:
        def removed() -> None:
            self._discard([message.id])
            self.engine.settle(message)
            self.known.pop(message.id, None)

        self.store.pending.append(removed)

    def _purge_store(self, queue_id: int, up_to_id: int, keep: set[int]) -> None:
        def removed() -> None:
            stored = self.store.of_queue(queue_id, 0, up_to_id)
            gone = [message.id for message in stored if message.id not in keep]
            self._discard(gone)
            for message_id in gone:
                self.known.pop(message_id, None)

        self.store.pending.append(removed)

    def _begin(self, queue_id: int, shape: Shape) -> None:
        state = self._state(queue_id)
        backlog = state.indexed
        if not backlog.is_building(shape):
            self.engine.begin_index(state, shape, set())
            assert backlog.index_count <= MAX_INDEXES + len(state.consumers) + len(self.indexings)
            self.indexings.append(Indexing(queue_id, shape, backlog, state.generation))

    def _load_step(self, loading: Loading, limit: int) -> None:
        if loading.read is None:
            stored = [self.store.messages.get(message_id) for message_id in sorted(loading.load.message_ids)]
            loading.read = [replace(message) for message in stored if message is not None][:limit]
        else:
            self.loadings.remove(loading)
            self.check_deliveries(self.engine.loaded(loading.queue_id, loading.load, loading.read, self.now))

    def _index_step(self, indexing: Indexing, limit: int) -> None:
        state = self.engine.queue(indexing.queue_id) if self.engine.has_queue(indexing.queue_id) else None
        if state is None or state.generation != indexing.generation:
            self.indexings.remove(indexing)
        elif indexing.up_to_id is None:
            if not indexing.backlog.fill_from_memory(indexing.shape):
                is_whole = not indexing.backlog.needs_store(indexing.shape)
                indexing.up_to_id = 0 if is_whole else state.last_message_id
        elif indexing.read is None:
            rows = self.store.of_queue(indexing.queue_id, indexing.filled_to, indexing.up_to_id)
            indexing.read = rows[:limit]
        elif indexing.read:
            indexing.filled_to = indexing.read[-1].id
            indexing.backlog.fill_index(indexing.shape, grouped(indexing.shape, indexing.read), indexing.filled_to)
            indexing.read = None
        else:
            self.indexings.remove(indexing)
            indexing.backlog.finish_index(indexing.shape)
            self.check_deliveries(self.engine.wake(indexing.queue_id, self.now))

    def _drain(self, queue_id: int, selector: Selector) -> None:
        while True:
            found = self.engine.take(queue_id, selector, self.now)
            self.check_found(queue_id, selector, found)
            if found is None:
                return
            if isinstance(found, Message):
                self.known[found.id].is_ready = False
                self.taken.append(found)
            while self.indexings:
                self._index_step(self.indexings[0], 3)
            while self.loadings:
                self._load_step(self.loadings[0], 3)


def grouped(shape: Shape, messages: Iterable[Message]) -> list[tuple[Key, int, Sequence[int]]]:
    groups: dict[tuple[Key, int], list[int]] = {}
    for message in messages:
        key = (
            message.receiver if shape.by_receiver else None,
            message.sender if shape.by_sender else None,
            message.context if shape.by_context else None,
        )
        priority = message.priority if shape.order == Order.PRIORITY else 0
        groups.setdefault((key, priority), []).append(message.id)
    return [(key, priority, message_ids) for (key, priority), message_ids in groups.items()]


IS_LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"


class TestEngineAndModel(EngineAndModel.TestCase):  # type: ignore[misc,valid-type]
    settings = settings(
        max_examples=3000 if IS_LONG else 250,
        stateful_step_count=100 if IS_LONG else 60,
        deadline=None,
        derandomize=not IS_LONG,
        database=None,
        # Shrinking that number of steps takes longer than a test's timeout, which would be all that is reported.
        phases=list(Phase) if IS_LONG else [Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )

    @pytest.fixture(autouse=True)
    def small_loads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        make_rounds_short(monkeypatch)


def a_random_step(machine: EngineAndModel, random: Random) -> None:
    """Do one thing, with the chances of a busy node: hypothesis gives every rule the same."""
    pick = random.randrange(1000)
    selector = Selector(
        reader=random.choice([None, None, 1]),
        context=random.choice([None, None, None, 1]),
        order=random.choice([Order.OLDEST, Order.OLDEST, Order.NEWEST, Order.PRIORITY]),
    )
    step = random.randrange(100)
    if step < 16:
        draft = Draft(
            bytes(random.randrange(40)),
            sender=random.choice([None, 1, 2]),
            receiver=random.choice([None, None, 1, 2]),
            context=random.choice([None, 1]),
            priority=random.randrange(3),
        )
        machine.put(draft, random.choice([None, None, None, 30_000]), random.choices([0, 1], [4, 1]), 3)
    elif step < 30:
        machine.take(pick, selector, random.randrange(1, 4))
    elif step < 33:
        machine.consume_without_acks(pick, selector)
    elif step < 36 and len(machine.consumers) < 6:
        machine.consume(pick, selector, random.choice([0.5, 1.0, 1.5, 3.0]))
    elif step < 40 and machine.consumers:
        machine.set_prefetch(pick, random.choice([0.0, 0.5, 2.0, 4.0]))
    elif step < 43 and machine.consumers:
        machine.cancel(pick)
    elif step < 52 and any(consumer.leases for consumer in machine.consumers.values()):
        machine.end_leases(pick, random.randrange(1, 4), random.random() < 0.5, random.random() < 0.5)
    elif step < 60 and machine.taken:
        machine.settle_or_restore(pick, random.random() < 0.5, random.randrange(1, 5))
    elif step < 70 and machine.store.pending:
        machine.commit(random.choice([1, 3, 10, 50]))
    elif step < 80 and machine.loadings:
        machine.load_some_steps(pick, random.randrange(1, 5), random.randrange(1, 3))
    elif step < 90 and machine.indexings:
        machine.index_some_steps(pick, random.randrange(1, 5), random.randrange(1, 6))
    elif step < 94:
        machine.serve_what_consumers_need(pick)
    elif step < 96:
        machine.let_time_pass(random.choice([1, 10_000]))
    elif step < 97:
        machine.expire()
    else:
        machine.purge_delete_or_withdraw(pick, random.choice([0, 5, 15, 17, 17, 16 if step == 98 else 17]))


@pytest.mark.parametrize("seed", range(5000 if IS_LONG else 60))
def test_engine_and_model_agree_on_a_long_random_walk(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    make_rounds_short(monkeypatch)
    random = Random(seed)
    machine = EngineAndModel()
    machine.start(limited=True)
    for _ in range(500):
        a_random_step(machine, random)
        machine.every_message_is_in_its_one_place()
        machine.nobody_waits_for_what_is_there()
    machine.teardown()
