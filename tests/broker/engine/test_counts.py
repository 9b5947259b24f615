"""Counters of queues and exchanges."""

from __future__ import annotations

from flyball.broker.engine.counts import Meters
from flyball.model import Draft, Selector
from tests.broker.engine.messages import SOMEBODY, an_engine, consume, put


def test_a_queue_counts_what_comes_goes_out_and_comes_back() -> None:
    engine, queue_id = an_engine()
    for _ in range(3):
        put(engine, queue_id)
    consumer, deliveries = consume(engine, queue_id, Selector(), 2, 0)
    first, second = (delivery.message for delivery in deliveries)
    engine.acknowledge(consumer, [first.id, second.id])
    engine.settle(first, True)
    engine.requeue([second], 0)
    engine.feed(consumer, 0)
    state = engine.queue(queue_id)
    assert (state.arrived, state.acknowledged, state.requeued) == (3, 1, 1)
    assert (state.delivered, state.redelivered) == (4, 1)


def test_what_was_settled_for_another_reason_is_not_acknowledged() -> None:
    engine, queue_id = an_engine()
    put(engine, queue_id)
    taken = engine.take(queue_id, Selector(), 0)
    assert taken is not None
    engine.settle(taken)  # type: ignore[arg-type]
    assert engine.queue(queue_id).acknowledged == 0


def test_deliveries_to_a_no_ack_consumer_are_counted_apart() -> None:
    engine, queue_id = an_engine()
    keeper = engine.consume(queue_id, Selector(), 10, SOMEBODY, no_ack=True)
    engine.feed(keeper, 0)
    engine.put(Draft(b"x"), [queue_id], 0)
    state = engine.queue(queue_id)
    assert (state.delivered_no_ack, state.delivered) == (1, 0)


def test_what_a_deleted_queue_has_counted_is_kept() -> None:
    engine, queue_id = an_engine()
    put(engine, queue_id)
    engine.delete_queue(queue_id)
    assert (engine.gone.arrived, engine.queues_created, engine.queues_deleted) == (1, 1, 1)


def test_a_queue_is_idle_since_the_look_that_found_something_new() -> None:
    engine, queue_id = an_engine()
    state = engine.queue(queue_id)
    assert state.idle_since_s(10.0) == 10.0
    assert state.idle_since_s(11.0) == 10.0
    put(engine, queue_id)
    assert state.idle_since_s(12.0) == 12.0


def test_messages_to_a_deleted_exchange_still_count_for_the_node() -> None:
    meters = Meters()
    meters.exchange("/", "orders").published += 2
    meters.exchange("/", "bills").published += 1
    meters.put += 1
    meters.forget_exchange("/", "orders")
    assert meters.published == 4
    assert meters.exchanges == {("/", "bills"): 1}
