"""The synchronous client: the asynchronous one, run on an event loop in a thread, with the same names."""

from __future__ import annotations

from flyball.client._generated.sync import (
    Client,
    ConnectionFactory,
    Consumer,
    Delivery,
    QueueConsumer,
    QueueProducer,
    Topic,
)

__all__ = ["Client", "ConnectionFactory", "Consumer", "Delivery", "QueueConsumer", "QueueProducer", "Topic"]
