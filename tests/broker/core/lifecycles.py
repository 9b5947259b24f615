"""Queues that come and go in a broker without a topology."""

from __future__ import annotations

from flyball.broker.core.broker import Broker
from flyball.broker.core.queue_lifecycle import QueueLifecycle
from flyball.broker.engine.queue import QueueState
from flyball.errors import FlyballError
from flyball.model import Queue


class NothingElse:
    """A listener for queues without policies, bindings or remote consumers."""

    def queue_adopted(self, state: QueueState) -> None:
        """No policy applies to it."""

    def queue_deleted(self, queue: Queue) -> None:
        """Nothing is bound to it."""

    def queue_released(self, queue: Queue, owner: int) -> None:
        """Do nothing."""


def lifecycle_of(broker: Broker) -> QueueLifecycle:
    return QueueLifecycle(broker, NothingElse())


def create_queue(broker: Broker, name: str) -> int:
    """Create a plain durable queue and return its id."""
    queue = broker.engine.create_queue(name)
    lifecycle_of(broker).store_queue(queue, nobody_asks)
    return queue.id


def nobody_asks(error: FlyballError | None) -> None:
    """The outcome does not matter here."""
