"""What can go wrong in a client, beside the errors that a node reports.

FlyballError
├── ConnectionFailed           the node cannot be reached, or does not speak the protocol
├── ConnectionLost             the connection broke under a request: whether it was carried out is unknown
│   └── NotSent                ... before the request was sent: it was not carried out
├── RequestTimeout             no answer within the time limit: whether it was carried out is unknown
├── ClientClosed               the client was closed, or never opened
├── MessageRefused             the node does not take a message: its queue is full or unavailable
├── ServerError                the node failed at it; `code` and `details` are its own words
└── RequestError
    ├── InvalidValue           an argument is out of range; nothing was sent
    ├── CommandRefused         the node does not carry it out; the text says why
    └── LeaseNotFound
        └── LeaseLost          the delivery's connection or consumer is gone: its message is delivered again
"""

from __future__ import annotations

import re

from flyball import errors
from flyball.broker.wire.amqp import ReplyCode
from flyball.client.http import Refused
from flyball.errors import FlyballError, LeaseNotFound, RequestError


class ConnectionFailed(FlyballError):
    """There is no node at the address, or not one that speaks the protocol."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"no connection to {address}: {reason}")
        self.address = address
        self.reason = reason


class ConnectionLost(FlyballError):
    """The connection broke while a request was under way. It may or may not have been carried out."""

    def __init__(self, operation: str, reason: str) -> None:
        super().__init__(f"the connection broke under {operation} ({reason}): whether it was carried out is unknown")
        self.operation = operation
        self.reason = reason


class NotSent(ConnectionLost):
    """The connection broke before the request was sent: it was not carried out."""


class RequestTimeout(FlyballError):
    """The node did not answer within the time limit. The request may or may not have been carried out."""

    def __init__(self, operation: str, time_limit_s: float) -> None:
        super().__init__(f"{operation}: no answer within {time_limit_s:g} s")
        self.operation = operation
        self.time_limit_s = time_limit_s


class ClientClosed(FlyballError):
    """The client was closed, or never opened."""


class MessageRefused(FlyballError):
    """The node does not take a message: its queue is full, or the store or the queue's node did not answer."""

    def __init__(self) -> None:
        super().__init__("the message was refused: its queue is full or unavailable, whether it is stored is unknown")


class ServerError(FlyballError):
    """The node failed to carry out the request."""

    def __init__(self, code: int, details: str) -> None:
        super().__init__(f"the node failed with code {code}: {details}")
        self.code = code
        self.details = details


class InvalidValue(RequestError):
    """An argument is out of range. Nothing was sent."""


class CommandRefused(RequestError):
    """The node does not carry out the request."""


class LeaseLost(LeaseNotFound):
    """The delivery can no longer be settled: its consumer is closed or its connection gone, its message returned."""


_NO_QUEUE = re.compile(r"no queue '(.*)' in vhost '(.*)'", re.DOTALL)
_NO_EXCHANGE = re.compile(r"no exchange '(.*)' in vhost '(.*)'", re.DOTALL)
# The codes with which a node says that it never will.
_REFUSALS = frozenset(
    {
        ReplyCode.RESOURCE_LOCKED,
        ReplyCode.PRECONDITION_FAILED,
        ReplyCode.NOT_ALLOWED,
        ReplyCode.NOT_FOUND,
        ReplyCode.COMMAND_INVALID,
        ReplyCode.NOT_IMPLEMENTED,
    }
)


def error_of(code: int, text: str) -> FlyballError:
    """Return the error for which a node has closed a channel or a connection of AMQP."""
    said = text.partition(" - ")[2] or text
    if code == ReplyCode.ACCESS_REFUSED or (code == ReplyCode.NOT_ALLOWED and " refused for user " in said):
        return errors.NotPermitted(said)
    if code == ReplyCode.NOT_FOUND and (found := _NO_QUEUE.search(said)) is not None:
        return errors.QueueNotFound(found[1], found[2])
    if code == ReplyCode.NOT_FOUND and (found := _NO_EXCHANGE.search(said)) is not None:
        return errors.ExchangeNotFound(found[1], found[2])
    return CommandRefused(said) if code in _REFUSALS else ServerError(code, said)


def error_of_api(refused: Refused, subject: str) -> FlyballError:
    """Return the error for which a node has refused a request about something to its HTTP API."""
    match refused.kind:
        case "QueueNotFound":
            return errors.QueueNotFound(subject)
        case "TopicNotFound":
            return errors.TopicNotFound(subject)
        case "NotPermitted":
            return errors.NotPermitted(refused.reason)
        case "StoreUnavailable":
            return errors.StoreUnavailable(refused.reason)
    if refused.status in (401, 403):
        return errors.NotPermitted(refused.reason)
    return CommandRefused(refused.reason) if refused.status < 500 else ServerError(refused.status, refused.reason)
