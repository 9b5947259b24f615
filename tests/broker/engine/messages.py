"""Messages and engines for the tests of the engine."""

from __future__ import annotations

from collections.abc import Callable

from flyball.broker.engine.backlog import Build
from flyball.broker.engine.consumer import Consumer
from flyball.broker.engine.engine import Engine
from flyball.broker.engine.queue import Delivery
from flyball.model import Draft, Message, Selector, Snapshot


class Unreached:
    """A receiver that the engine hands back and never calls."""

    def deliver(self, consumer: Consumer, message: Message) -> None:
        raise AssertionError("the engine sends nothing")

    def queue_deleted(self, consumer: Consumer) -> None:
        raise AssertionError("the engine sends nothing")

    def queue_moved(self, consumer: Consumer) -> None:
        raise AssertionError("the engine sends nothing")

    def crash(self, error: BaseException) -> None:
        raise AssertionError("the engine sends nothing")


SOMEBODY = Unreached()


def a_message(
    message_id: int,
    *,
    receiver: int | None = None,
    sender: int | None = None,
    context: int | None = None,
    priority: int = 0,
    expires_us: int | None = None,
    stored: bool = False,
) -> Message:
    return Message(
        message_id,
        1,
        b"body %d" % message_id,
        sender=sender,
        receiver=receiver,
        context=context,
        priority=priority,
        expires_us=expires_us,
        stored=stored,
    )


def an_engine(
    *, resident_limit_bytes: int | None = None, page_out_unacked: Callable[[int], int] | None = None
) -> tuple[Engine, int]:
    """Return an engine with ids to use and the id of its only queue."""
    engine = Engine(Snapshot(), resident_limit_bytes=resident_limit_bytes, page_out_unacked=page_out_unacked)
    engine.grant_message_ids(1, 1_000_000)
    return engine, engine.create_queue("orders").id


def put(engine: Engine, queue_id: int, draft: Draft | None = None, now_us: int = 0) -> Message:
    """Put one message; it must not be delivered at once."""
    arrival = engine.put(draft or Draft(b"body"), [queue_id], now_us)
    assert not arrival.deliveries
    return arrival.messages[0]


def consume(
    engine: Engine, queue_id: int, selector: Selector, prefetch: float, now_us: int
) -> tuple[Consumer, list[Delivery]]:
    """Begin to consume, and take what there is."""
    consumer = engine.consume(queue_id, selector, prefetch, SOMEBODY)
    return consumer, engine.feed(consumer, now_us)


def set_prefetch(engine: Engine, consumer: Consumer, prefetch: float, now_us: int) -> list[Delivery]:
    """Change what a consumer may hold, and let it have that."""
    engine.set_prefetch(consumer, prefetch)
    return engine.feed(consumer, now_us)


def peek(engine: Engine, queue_id: int, selector: Selector) -> object:
    """Peek at a queue that is in memory, and make the index that this takes."""
    found = engine.peek(queue_id, selector, 0)
    if not isinstance(found, Build):
        return found
    state = engine.queue(queue_id)
    engine.begin_index(state, found.shape, set())
    while state.indexed.fill_from_memory(found.shape):
        continue
    assert not state.indexed.needs_store(found.shape)
    state.indexed.finish_index(found.shape)
    return engine.peek(queue_id, selector, 0)
