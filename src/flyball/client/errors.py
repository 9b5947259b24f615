"""Errors of the client, in addition to those that a node reports.

FlyballError
    ├── ConnectionFailed           the node is unreachable, or does not speak the protocol
    ├── ConnectionLost             the connection was lost during a request: its outcome is unknown
    │   └── NotSent                ... before the request was sent: it was not executed
    ├── RequestTimeout             no answer within the time limit: the outcome is unknown
    ├── ClientClosed               the client is closed, or was never opened
    ├── MessageRefused             the node does not accept a message: its queue is full or unavailable
    ├── ServerError                the node failed; `code` and `details` are from the node
    └── RequestError
        ├── InvalidValue           an argument is invalid; nothing was sent
        ├── CommandRefused         the node refuses the operation; the text has the reason
        └── LeaseNotFound
            └── LeaseLost          the delivery's connection or consumer is gone: the message is delivered again
"""

from __future__ import annotations

import re

from flyball import errors
from flyball.broker.wire.amqp import ReplyCode
from flyball.client.http import Refused
from flyball.errors import FlyballError, LeaseNotFound, RequestError


class ConnectionFailed(FlyballError):
    """There is no node at the address, or it does not speak the protocol."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"no connection to {address}: {reason}")
        self.address = address
        self.reason = reason


class ConnectionLost(FlyballError):
    """The connection was lost during a request, which may or may not have been executed."""

    def __init__(self, operation: str, reason: str) -> None:
        super().__init__(f"connection lost during {operation} ({reason}): its outcome is unknown")
        self.operation = operation
        self.reason = reason


class NotSent(ConnectionLost):
    """The connection was lost before the request was sent: it was not executed."""


class RequestTimeout(FlyballError):
    """The node did not answer within the time limit. The request may or may not have been executed."""

    def __init__(self, operation: str, time_limit_s: float) -> None:
        super().__init__(f"{operation}: no answer within {time_limit_s:g} s")
        self.operation = operation
        self.time_limit_s = time_limit_s


class ClientClosed(FlyballError):
    """The client is closed, or was never opened."""


class MessageRefused(FlyballError):
    """The node does not accept a message: its queue is full, or the store or the queue's node did not answer."""

    def __init__(self) -> None:
        super().__init__("message refused: its queue is full or unavailable; it may or may not be stored")


class ServerError(FlyballError):
    """The node failed to execute the request."""

    def __init__(self, code: int, details: str) -> None:
        super().__init__(f"the node failed with code {code}: {details}")
        self.code = code
        self.details = details


class InvalidValue(RequestError):
    """An argument is invalid. Nothing was sent."""


class CommandRefused(RequestError):
    """The node refuses the operation."""


class LeaseLost(LeaseNotFound):
    """The delivery can no longer be settled: its consumer or connection is closed and the message was requeued."""


_NO_QUEUE = re.compile(r"no queue '(.*)' in vhost '(.*)'", re.DOTALL)
_NO_EXCHANGE = re.compile(r"no exchange '(.*)' in vhost '(.*)'", re.DOTALL)
# Reply codes of permanent refusals.
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
    """Return the error for the reply of a closed channel or connection."""
    said = text.partition(" - ")[2] or text
    if code == ReplyCode.ACCESS_REFUSED or (code == ReplyCode.NOT_ALLOWED and " refused for user " in said):
        return errors.NotPermitted(said)
    if code == ReplyCode.NOT_FOUND and (found := _NO_QUEUE.search(said)) is not None:
        return errors.QueueNotFound(found[1], found[2])
    if code == ReplyCode.NOT_FOUND and (found := _NO_EXCHANGE.search(said)) is not None:
        return errors.ExchangeNotFound(found[1], found[2])
    return CommandRefused(said) if code in _REFUSALS else ServerError(code, said)


def error_of_api(refused: Refused, subject: str) -> FlyballError:
    """Return the error for an error response of the HTTP API."""
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
