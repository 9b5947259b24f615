"""Putting the drafts of one request into queues of this node, answered together with the ids of all messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from flyball.broker.core.broker import NO_IDS
from flyball.broker.wire import telesto as wire
from flyball.errors import FlyballError, StoreUnavailable
from flyball.model import Draft, Message

if TYPE_CHECKING:
    from flyball.broker.protocols.telesto.session import TelestoSession

PutDone = Callable[[list[int], FlyballError | None], None]
"""Called with the ids of the messages, for each draft one for each queue, or with what went wrong."""


def put_drafts(
    session: TelestoSession, queue_ids: Sequence[int], drafts: Sequence[wire.WireDraft], done: PutDone
) -> None:
    """Put all drafts into all the queues, which exist."""
    broker = session.broker
    put_us = broker.now_us()
    if not queue_ids or not drafts:
        done([], None)
        return
    if not broker.has_ids_for(len(queue_ids) * len(drafts)):
        done([], StoreUnavailable(NO_IDS))
        return
    stored = _Batch(len(drafts), done)
    for number, draft in enumerate(drafts):
        expires_us = put_us + draft.ttl_ms * 1000 if draft.ttl_ms > 0 else None
        broker.put(
            Draft(
                draft.body,
                session.client_id,
                draft.receiver or None,
                draft.context or None,
                draft.priority,
                expires_us,
                draft.properties,
                draft.persistent,
            ),
            queue_ids,
            stored.slot(number),
        )


class _Batch:
    """Several puts that are answered together."""

    def __init__(self, count: int, done: PutDone) -> None:
        self._done = done
        self._left = count
        self._message_ids: list[list[int]] = [[] for _ in range(count)]
        self._error: FlyballError | None = None

    def slot(self, number: int) -> _Slot:
        return _Slot(self, number)

    def one(self, number: int, messages: Sequence[Message], error: FlyballError | None) -> None:
        self._message_ids[number] = [message.id for message in messages]
        self._error = self._error or error
        self._left -= 1
        if self._left == 0:
            ids = [message_id for message_ids in self._message_ids for message_id in message_ids]
            self._done([] if self._error is not None else ids, self._error)


class _Slot:
    """The place of one put in its batch."""

    __slots__ = ("_batch", "_number")

    def __init__(self, batch: _Batch, number: int) -> None:
        self._batch = batch
        self._number = number

    def __call__(self, messages: Sequence[Message], error: FlyballError | None) -> None:
        self._batch.one(self._number, messages, error)
