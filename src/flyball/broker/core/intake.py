"""Puts routed messages into queues: a copy in each, with its effective priority and time to live.

Used for messages from publishers, dead letters and messages forwarded by other nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from flyball.broker.core.broker import NO_IDS, Broker
from flyball.broker.engine.queue import QueueState
from flyball.broker.wire.link import Content, PutOutcome
from flyball.errors import StoreUnavailable
from flyball.model import Correlation, Message, Receipt


class Intake:
    """Puts messages into queues, subject to their length limits."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._engine = broker.engine

    def put(
        self,
        targets: Sequence[QueueState],
        body: bytes,
        properties: bytes,
        origin: bytes,
        persistent: bool,
        priority: int,
        ttl_us: int | None,
        receipt: Receipt | None = None,
        correlation: Correlation | None = None,
    ) -> list[QueueState]:
        """Put a message into each of the queues; return the full ones that refuse it.

        `receipt` is only for a message with a single target queue.
        """
        broker = self._broker
        engine = self._engine
        if not engine.keeps_messages:
            return []
        if len(targets) > 1 and engine.message_ids_left < len(targets) and not broker.has_ids_for(len(targets)):
            # Checked before the first copy is put, so that all copies are put or none. Callers that route to many
            # queues wait for ids, so this is rare.
            raise StoreUnavailable(NO_IDS)
        now_us = broker.now_us()
        refused: list[QueueState] = []
        for state in targets:
            traits = state.traits
            expires_us = None if ttl_us is None else now_us + ttl_us
            kept_priority = priority
            if not traits.is_plain:
                if traits.rejects and state.is_full_for(len(body)):
                    refused.append(state)
                    if traits.overflow == "reject-publish-dlx":
                        refuse = (state, body, properties, origin, persistent, priority, now_us)
                        broker.when_numbered(1 + engine.max_copies, partial(self._dead_letter_refused, *refuse))
                    continue
                expires_us = traits.expiry_of(expires_us, now_us)
                kept_priority = traits.priority_of(priority)
            message = Message(
                engine.use_message_id(),
                state.queue.id,
                body,
                None,
                None,
                None,
                kept_priority,
                now_us,
                expires_us,
                properties,
                persistent and state.is_stored,
                origin,
            )
            message.receipt = receipt
            if correlation is not None:
                message.sender, message.receiver, message.context = correlation
            broker.accept(state, message)
        if ttl_us is not None:
            broker.retention.watch_expiries()
        return refused

    def put_content(self, targets: Sequence[QueueState], content: Content) -> PutOutcome | None:
        """Put a message into each of the queues. Return the outcome, None if it depends on the next commit."""
        refused = self.put(
            targets,
            content.body,
            content.properties,
            content.origin,
            content.persistent,
            content.priority,
            content.time_us,
            None,
            content.correlation,
        )
        if refused:
            return PutOutcome.FULL
        if content.persistent and any(state.is_stored for state in targets):
            return None
        return PutOutcome.STORED

    def _dead_letter_refused(
        self,
        state: QueueState,
        body: bytes,
        properties: bytes,
        origin: bytes,
        persistent: bool,
        priority: int,
        now_us: int,
    ) -> None:
        message = Message(
            self._engine.use_message_id(),
            state.queue.id,
            body,
            priority=priority,
            arrived_us=now_us,
            properties=properties,
            persistent=persistent,
            origin=origin,
        )
        self._broker.dead_lettering.dead_letter_refused(state, message)
