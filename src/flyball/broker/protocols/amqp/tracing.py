"""Traces AMQP commands. Not every command has a reply: a trace ends when the command is done."""

from __future__ import annotations

import time

from flyball.broker.store.group_commit import GroupCommit
from flyball.broker.wire import amqp
from flyball.broker.wire.amqp import Command, Publish
from flyball.errors import FlyballError
from flyball.trace.recorder import Recorder
from flyball.trace.schema import Kind, Protocol, Result
from flyball.trace.span import Span

_KINDS: dict[type[object], Kind] = {
    Publish: Kind.PUT,
    amqp.BasicGet: Kind.TAKE,
    amqp.BasicAck: Kind.SETTLE,
    amqp.BasicNack: Kind.SETTLE,
    amqp.BasicReject: Kind.SETTLE,
    amqp.BasicConsume: Kind.CONSUME,
    amqp.BasicCancel: Kind.CONSUME,
    amqp.BasicQos: Kind.CONSUME,
    amqp.QueueDeclare: Kind.CREATE_QUEUE,
    amqp.QueueDelete: Kind.DELETE_QUEUE,
    amqp.QueuePurge: Kind.PURGE,
    amqp.Heartbeat: Kind.PING,
}


class TracedCommand:
    """A traced command, recorded when it is executed or, if it changed the store, committed."""

    __slots__ = ("_recorder", "_span")

    def __init__(self, recorder: Recorder, weight: int, command: Command, received_ns: int, started_ns: int) -> None:
        self._recorder = recorder
        span = self._span = Span()
        span.kind = _KINDS.get(type(command), Kind.OTHER)
        span.protocol = Protocol.AMQP
        span.weight = weight
        span.received_ns = received_ns
        span.started_ns = started_ns
        span.parsed_ns = time.perf_counter_ns()
        if isinstance(command, Publish):
            span.size_bytes = len(command.body)
            span.message_count = 1

    def handled(self, journal: GroupCommit, queue_id: int) -> None:
        """Record the execution, and wait for the commit of its changes."""
        self._span.queue_id = queue_id
        self._span.submitted_ns = time.perf_counter_ns()
        journal.mark(self)

    def committed(self) -> None:
        now_ns = self._span.answered_ns = time.perf_counter_ns()
        self._recorder.record(self._span, now_ns)

    def failed(self, error: FlyballError) -> None:
        self._span.result = Result.FAILED
        self.committed()
