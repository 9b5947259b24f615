"""A client of Telesto's extension, for the tests of that: `flyball.client` speaks AMQP."""

from flyball.backoff import Backoff
from flyball.broker.wire.telesto import Outcome
from flyball.model import ClientMode, Order, Queue
from tests.telesto_client.client import Client, ClientRef, QueueRef
from tests.telesto_client.consumer import Consumer, Delivery
from tests.telesto_client.errors import (
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
from tests.telesto_client.factory import ConnectionFactory, QueueConsumer, QueueProducer
from tests.telesto_client.messages import Draft, ReceivedMessage
from tests.telesto_client.topics import Topic

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
