"""What is saved from memory when the store has gone back in time."""

from __future__ import annotations

import logging

from flyball.broker.core.broker import Broker
from flyball.broker.engine.engine import Engine
from flyball.errors import StoreError
from flyball.model import Message

log = logging.getLogger(__name__)


async def write_again_from_memory(broker: Broker) -> None:
    """Save from memory what a store that has gone back in time does not have any more."""
    queues = [state.queue for state in broker.engine.queues if state.is_stored]
    messages, absent = in_memory(broker.engine)
    try:
        missing = await broker.store.write_again(queues, messages)
    except StoreError as error:
        log.error("messages=%d that were in memory could not be written again: %s", len(messages), error)
    else:
        log.error("wrote messages=%d again that the store had lost; not in memory, and unknown: %d", missing, absent)


def in_memory(engine: Engine) -> tuple[list[Message], int]:
    """Return the stored messages that are whole in memory, and how many more there are."""
    messages, absent = [], 0
    for state in engine.queues:
        if state.is_stored:
            known = (*state.oldest(0, len(state)), *state.unacked.values())
            stored = [message for message in known if message.persistent and message.stored]
            # One that is paged out has left its body to the store: without it, it must not take its own place.
            whole = [message for message in stored if not message.is_paged]
            messages += whole
            absent += state.absent + len(stored) - len(whole)
    return messages, absent
