"""Messages on a link, as they come and go: also those of the research protocols, which AMQP's are unlike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flyball.broker.core.broker import Broker
from flyball.broker.wire.link import Content, Deliver, Outcome
from flyball.errors import FlyballError, InvalidBody, StoreError
from flyball.model import Draft, Message


def is_draft(content: Content) -> bool:
    """Whether a message has a sender, a receiver or a context, as only clients of the research protocols give."""
    return content.sender is not None or content.receiver is not None or content.context is not None


def put_draft(broker: Broker, content: Content, queue_ids: Sequence[int], done: Callable[[Outcome], None]) -> None:
    """Put such a message into queues, which exist."""

    def stored(messages: Sequence[Message], error: FlyballError | None) -> None:
        done(_outcome_of(error))

    try:
        broker.put(_draft_of(content, broker.now_us()), queue_ids, stored, is_forwarded=True)
    except InvalidBody:
        done(Outcome.FULL)


def message_of(found: Deliver, message_id: int, queue_id: int) -> Message:
    """Return what came from another node as a message of a queue here."""
    content = found.content
    return Message(
        message_id,
        queue_id,
        content.body,
        content.sender,
        content.receiver,
        content.context,
        content.priority,
        found.arrived_us,
        content.time_us,
        content.properties,
        content.persistent,
        content.origin,
        found.delivery_count,
        found.recovered,
    )


def _draft_of(content: Content, now_us: int) -> Draft:
    return Draft(
        content.body,
        content.sender,
        content.receiver,
        content.context,
        content.priority,
        None if content.time_us is None else now_us + content.time_us,
        content.properties,
        content.persistent,
        content.origin,
    )


def _outcome_of(error: FlyballError | None) -> Outcome:
    if error is None:
        return Outcome.STORED
    return Outcome.UNKNOWN if isinstance(error, StoreError) else Outcome.FULL
