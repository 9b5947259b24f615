"""The trace data of a request in progress."""

from __future__ import annotations

from flyball.trace.schema import Kind, Protocol, Result


class Span:
    """Timestamps and facts of a request. Times are by `time.perf_counter_ns`; 0 is not measured.

    There is one per request, so the defaults are class attributes: they cost nothing until they are set.
    """

    kind: int = Kind.OTHER
    protocol: int = Protocol.TELESTO
    result: int = Result.OK
    client_id: int = 0
    queue_id: int = 0
    size_bytes: int = 0
    message_count: int = 0
    # Number of requests that it represents in the trace.
    weight: int = 1
    # When the request's bytes were read.
    received_ns: int = 0
    # When its parsing started; only for sampled requests.
    started_ns: int = 0
    parsed_ns: int = 0
    # When it was handed to the store; 0 if it was not.
    submitted_ns: int = 0
    answered_ns: int = 0
