"""The Python client: asynchronous here, synchronous in `flyball.client.telesto.sync`, with the same names."""

from flyball.backoff import Backoff
from flyball.broker.wire.telesto import Outcome
from flyball.client.telesto.client import Client, ClientRef, QueueRef
from flyball.client.telesto.consumer import Consumer, Delivery
from flyball.client.telesto.errors import (
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
from flyball.client.telesto.factory import ConnectionFactory, QueueConsumer, QueueProducer
from flyball.client.telesto.messages import Draft, ReceivedMessage
from flyball.client.telesto.topics import Topic
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
