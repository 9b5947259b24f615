"""One request on its way through a node, as the trace sees it."""

from __future__ import annotations

from flyball.trace.schema import Kind, Protocol, Result


class Span:
    """What is noted of a request while it is under way. Times are those of `time.perf_counter_ns`, 0 if not taken.

    There is one for every request. So its fields begin as those of the class and cost nothing until they are set.
    """

    kind: int = Kind.OTHER
    protocol: int = Protocol.TELESTO
    result: int = Result.OK
    client_id: int = 0
    queue_id: int = 0
    size_bytes: int = 0
    message_count: int = 0
    # For how many requests it stands.
    weight: int = 1
    # Its bytes were read.
    received_ns: int = 0
    # Its parsing began. Only a request that is in the sample has it.
    started_ns: int = 0
    parsed_ns: int = 0
    # It was handed to the store; 0 if it had not to be.
    submitted_ns: int = 0
    answered_ns: int = 0
