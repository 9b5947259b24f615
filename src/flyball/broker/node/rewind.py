"""Restores stored messages from memory to a store that was rewound."""

from __future__ import annotations

import logging

from flyball.broker.core.broker import Broker
from flyball.broker.engine.engine import Engine
from flyball.errors import StoreError
from flyball.model import Message

log = logging.getLogger(__name__)


async def write_again_from_memory(broker: Broker) -> None:
    """Write messages that a rewound store has lost and that are in memory."""
    queues = [state.queue for state in broker.engine.queues if state.is_stored]
    messages, absent = in_memory(broker.engine)
    try:
        missing = await broker.store.write_again(queues, messages)
    except StoreError as error:
        log.error("messages in memory could not be written again: %s messages=%d", error, len(messages))
    else:
        log.error("wrote messages again that the store had lost messages=%d not_in_memory=%d", missing, absent)


def in_memory(engine: Engine) -> tuple[list[Message], int]:
    """Return the stored messages that are completely in memory, and the number of other stored messages."""
    messages, absent = [], 0
    for state in engine.queues:
        if state.is_stored:
            known = (*state.oldest(0, len(state)), *state.unacked.values())
            stored = [message for message in known if message.persistent and message.stored]
            # A paged-out message lacks its body: it must not overwrite the stored one.
            whole = [message for message in stored if not message.is_paged]
            messages += whole
            absent += state.absent + len(stored) - len(whole)
    return messages, absent
