"""The Python client: asynchronous here, synchronous in `flyball.client.sync`, with the same names."""

from flyball.backoff import Backoff
from flyball.client.client import Client, Queue, QueueRef
from flyball.client.consumer import Consumer, Delivery, Outcome
from flyball.client.errors import (
    ClientClosed,
    CommandRefused,
    ConnectionFailed,
    ConnectionLost,
    InvalidValue,
    LeaseLost,
    MessageRefused,
    RequestTimeout,
    ServerError,
)
from flyball.client.factory import ConnectionFactory, QueueConsumer, QueueProducer
from flyball.client.messages import Draft, ReceivedMessage
from flyball.client.topics import Topic
from flyball.model import Order

__all__ = [
    "Backoff",
    "Client",
    "ClientClosed",
    "CommandRefused",
    "ConnectionFactory",
    "ConnectionFailed",
    "ConnectionLost",
    "Consumer",
    "Delivery",
    "Draft",
    "InvalidValue",
    "LeaseLost",
    "MessageRefused",
    "Order",
    "Outcome",
    "Queue",
    "QueueConsumer",
    "QueueProducer",
    "QueueRef",
    "ReceivedMessage",
    "RequestTimeout",
    "ServerError",
    "Topic",
]
