"""What can go wrong in a client, beside the errors that the server reports.

FlyballError
├── ConnectionFailed           the server cannot be reached, or does not speak the protocol
├── ConnectionLost             the connection broke under a request: whether it was carried out is unknown
│   └── NotSent                ... before the request was sent: it was not carried out
├── RequestTimeout             no answer within the time limit: whether it was carried out is unknown
├── ClientClosed               the client was closed, or never opened
├── NotSupported               the server speaks plain Telesto, which has no such thing
├── ServerError                the server failed at it; `code` and `details` are its own words
└── RequestError
    ├── InvalidValue           an argument is out of range; nothing was sent
    ├── LimitExceeded          the server allows no request as large as this
    ├── NotLocal               a node is managed only from its own machine
    ├── NotOwner               only one who can read the token of the node may do this
    ├── CommandRefused         the node cannot carry out the command; the text says why
    └── LeaseNotFound
        └── LeaseLost          the delivery's connection or consumer is gone: its message is delivered again
"""

from __future__ import annotations

from collections.abc import Callable

from flyball.broker.wire.telesto import ErrorCode
from flyball.client.errors import ClientClosed as ClientClosed
from flyball.errors import (
    ClientNameTaken,
    ClientNotFound,
    ConsumerNotFound,
    FlyballError,
    LeaseNotFound,
    NotIdentified,
    NotPermitted,
    QueueNameTaken,
    QueueNotFound,
    RequestError,
    StoreUnavailable,
    TopicNotFound,
)


class ConnectionFailed(FlyballError):
    """There is no server at the address, or not one that speaks the protocol."""

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
    """The server did not answer within the time limit. The request may or may not have been carried out."""

    def __init__(self, operation: str, time_limit_s: float) -> None:
        super().__init__(f"{operation}: no answer within {time_limit_s:g} s")
        self.operation = operation
        self.time_limit_s = time_limit_s


class NotSupported(FlyballError):
    """The server speaks plain Telesto, which has no such thing."""

    def __init__(self, feature: str) -> None:
        super().__init__(f"{feature}: not supported by a server that speaks plain Telesto")
        self.feature = feature


class ServerError(FlyballError):
    """The server failed to carry out the request."""

    def __init__(self, code: int, details: str) -> None:
        super().__init__(f"the server failed with code {code}: {details}")
        self.code = code
        self.details = details


class InvalidValue(RequestError):
    """An argument is out of range. Nothing was sent."""


class LimitExceeded(RequestError):
    """The server allows no request as large as this."""


class NotLocal(RequestError):
    """A node is managed only from the machine on which it runs."""


class NotOwner(RequestError):
    """Only one who can read the token of the node may do this."""


class CommandRefused(RequestError):
    """The node cannot carry out a command of its administration."""


class LeaseLost(LeaseNotFound):
    """The delivery can no longer be settled: its consumer is closed or its connection gone, its message returned."""


_ERRORS: dict[int, Callable[[int | str, str], FlyballError]] = {
    ErrorCode.UNEXPECTED_PACKET: lambda subject, details: NotIdentified(
        f"the server does not allow this now, without or as this client: {details}"
    ),
    ErrorCode.QUEUE_NAME_NOT_UNIQUE: lambda subject, details: QueueNameTaken(str(subject)),
    ErrorCode.CLIENT_NOT_EXISTING: lambda subject, details: ClientNotFound(subject),
    ErrorCode.CLIENT_NAME_NOT_UNIQUE: lambda subject, details: ClientNameTaken(str(subject)),
    ErrorCode.QUEUE_NOT_EXISTING: lambda subject, details: QueueNotFound(subject),
    ErrorCode.REQUIRED_PARAMETER_MISSING: lambda subject, details: InvalidValue(details),
    ErrorCode.CLIENT_MODE_PERMISSION_VIOLATION: lambda subject, details: NotPermitted(details),
    ErrorCode.STORE_UNAVAILABLE: lambda subject, details: StoreUnavailable(details),
    ErrorCode.LIMIT_EXCEEDED: lambda subject, details: LimitExceeded(details),
    ErrorCode.NOT_LOCAL: lambda subject, details: NotLocal(details),
    ErrorCode.NOT_OWNER: lambda subject, details: NotOwner(details),
    ErrorCode.COMMAND_REFUSED: lambda subject, details: CommandRefused(details),
    ErrorCode.TOPIC_NOT_EXISTING: lambda subject, details: TopicNotFound(str(subject)),
    ErrorCode.CONSUMER_NOT_EXISTING: lambda subject, details: ConsumerNotFound(int(subject or 0)),
    ErrorCode.LEASE_NOT_EXISTING: lambda subject, details: LeaseNotFound(int(subject or 0)),
}


def error_of(code: int, details: str, subject: int | str) -> FlyballError:
    """Return the error that the server reports; `subject` is what the request was about."""
    make = _ERRORS.get(code)
    return ServerError(code, details) if make is None else make(subject, details)
