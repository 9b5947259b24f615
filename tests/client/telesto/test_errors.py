"""The errors that servers report, as this client raises them."""

from __future__ import annotations

import pytest

from flyball import errors
from flyball.broker.wire.telesto import ErrorCode
from tests.telesto_client.errors import CommandRefused, InvalidValue, LimitExceeded, NotLocal, ServerError, error_of


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.INTERNAL_ERROR, ServerError),
        (ErrorCode.UNEXPECTED_PACKET, errors.NotIdentified),
        (ErrorCode.QUEUE_NAME_NOT_UNIQUE, errors.QueueNameTaken),
        (ErrorCode.CLIENT_NOT_EXISTING, errors.ClientNotFound),
        (ErrorCode.CLIENT_NAME_NOT_UNIQUE, errors.ClientNameTaken),
        (ErrorCode.QUEUE_NOT_EXISTING, errors.QueueNotFound),
        (ErrorCode.REQUIRED_PARAMETER_MISSING, InvalidValue),
        (ErrorCode.CLIENT_MODE_PERMISSION_VIOLATION, errors.NotPermitted),
        (ErrorCode.STORE_UNAVAILABLE, errors.StoreUnavailable),
        (ErrorCode.LIMIT_EXCEEDED, LimitExceeded),
        (ErrorCode.CONSUMER_NOT_EXISTING, errors.ConsumerNotFound),
        (ErrorCode.LEASE_NOT_EXISTING, errors.LeaseNotFound),
        (ErrorCode.NOT_LOCAL, NotLocal),
        (ErrorCode.COMMAND_REFUSED, CommandRefused),
        (-1, ServerError),
        (99, ServerError),
    ],
)
def test_each_code_has_its_error(code: int, kind: type[errors.FlyballError]) -> None:
    assert type(error_of(code, "details", 5)) is kind
    assert type(error_of(code, "details", "")) is kind
