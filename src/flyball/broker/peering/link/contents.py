"""Conversion of messages to and from frames of a link."""

from __future__ import annotations

from collections.abc import Sequence

from flyball.broker.wire.link import Deliver
from flyball.model import Message

# Maximum size of a frame with several messages. The frame limit allows this in addition to the largest message.
PAGE_BYTES = 512 * 1024


def message_of(found: Deliver, message_id: int, queue_id: int) -> Message:
    """Return a message received from another node as a message of a local queue."""
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


def first_page(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the first messages that fit into a frame, at least one."""
    left_bytes = PAGE_BYTES
    for place, message in enumerate(messages):
        left_bytes -= message.footprint_bytes
        if left_bytes < 0:
            return messages[: max(place, 1)]
    return messages
