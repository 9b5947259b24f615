"""The Python client: asynchronous here, synchronous in `flyball.client.sync`, with the same names."""

from flyball.backoff import Backoff
from flyball.broker.wire.telesto import Outcome
from flyball.client.client import Client, ClientRef, QueueRef
from flyball.client.consumer import Consumer, Delivery
from flyball.client.errors import (
    ClientClosed,
    CommandRefused,
    ConnectionFailed,
    ConnectionLost,
    InvalidValue,
    LeaseLost,
    LimitExceeded,
    NotLocal,
    NotOwner,
    NotSupported,
    RequestTimeout,
    ServerError,
)
from flyball.client.factory import ConnectionFactory, QueueConsumer, QueueProducer
from flyball.client.messages import Draft, ReceivedMessage
from flyball.client.topics import Topic
from flyball.model import ClientMode, Order, Queue

__all__ = [
    "Backoff",
    "Client",
    "ClientClosed",
    "ClientMode",
    "ClientRef",
    "CommandRefused",
    "ConnectionFactory",
    "ConnectionFailed",
    "ConnectionLost",
    "Consumer",
    "Delivery",
    "Draft",
    "InvalidValue",
    "LeaseLost",
    "LimitExceeded",
    "NotLocal",
    "NotOwner",
    "NotSupported",
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
