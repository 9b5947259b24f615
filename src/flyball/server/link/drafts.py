"""Messages of the research protocols on a link: they have a sender, a receiver or a context, as AMQP's have not."""

from __future__ import annotations

from flyball.errors import FlyballError, StoreError
from flyball.model import Draft
from flyball.wire.link import Content, Outcome


def draft_of(content: Content, now_us: int) -> Draft:
    """Return what came in a put as a message on its way in."""
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


def outcome_of(error: FlyballError | None) -> Outcome:
    """Return what became of a put that ended so."""
    if error is None:
        return Outcome.STORED
    return Outcome.UNKNOWN if isinstance(error, StoreError) else Outcome.FULL
