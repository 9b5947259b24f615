"""Maps errors to AMQP reply codes. The code decides whether the channel or the connection closes."""

from __future__ import annotations

from collections.abc import Mapping

from flyball import errors
from flyball.broker.wire.amqp import AmqpError, ReplyCode

CODES: Mapping[type[errors.FlyballError], ReplyCode] = {
    errors.QueueNotFound: ReplyCode.NOT_FOUND,
    errors.ExchangeNotFound: ReplyCode.NOT_FOUND,
    errors.VhostNotFound: ReplyCode.NOT_ALLOWED,
    errors.QueueLocked: ReplyCode.RESOURCE_LOCKED,
    errors.UnlikeDeclared: ReplyCode.PRECONDITION_FAILED,
    errors.InvalidArgument: ReplyCode.PRECONDITION_FAILED,
    errors.RoutingTooCostly: ReplyCode.PRECONDITION_FAILED,
    errors.QueueLimitReached: ReplyCode.PRECONDITION_FAILED,
    errors.ConnectionLimitReached: ReplyCode.NOT_ALLOWED,
    errors.InvalidBody: ReplyCode.PRECONDITION_FAILED,
    errors.MemoryLimitReached: ReplyCode.PRECONDITION_FAILED,
    errors.InvalidName: ReplyCode.PRECONDITION_FAILED,
    errors.QueueInUse: ReplyCode.PRECONDITION_FAILED,
    errors.QueueNotEmpty: ReplyCode.PRECONDITION_FAILED,
    errors.ExchangeInUse: ReplyCode.PRECONDITION_FAILED,
    errors.ReservedName: ReplyCode.ACCESS_REFUSED,
    errors.ConsumerRefused: ReplyCode.ACCESS_REFUSED,
    errors.NotPermitted: ReplyCode.ACCESS_REFUSED,
    errors.UnknownExchangeType: ReplyCode.COMMAND_INVALID,
    errors.StoreError: ReplyCode.INTERNAL_ERROR,
    # As in RabbitMQ for a queue whose node is down: the client may retry on another channel.
    errors.PeerLost: ReplyCode.NOT_FOUND,
}


_WHATEVER = -1


def refusal(code: ReplyCode, text: str) -> AmqpError:
    """Return an error to raise; the method's ids are set where it is caught."""
    return AmqpError(code, text, _WHATEVER)


def reply_of(error: errors.FlyballError, class_id: int, method_id: int) -> AmqpError:
    """Translate an error for AMQP, with the method that caused it. The original error is its cause."""
    if isinstance(error, AmqpError):
        if error.class_id == _WHATEVER:
            error.class_id, error.method_id = class_id, method_id
        return error
    code = next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), ReplyCode.INTERNAL_ERROR)
    reply = AmqpError(code, str(error), class_id, method_id)
    reply.__cause__ = error
    return reply
