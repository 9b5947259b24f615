"""What a trace says: the columns of its tables and the meaning of their codes.

Nodes record requests, clients their calls, control loops their samples, admission control what it admitted.

Traces outlive the version that wrote them. New columns and codes are added at the end; a change of meaning is
a new `SCHEMA_VERSION`. `docs/reference/traces.md` explains the columns to those who read them.
"""

from __future__ import annotations

import enum

import pyarrow as pa

SCHEMA_VERSION = 1

VERSION_KEY = "flyball.schema_version"
# Which table a file holds: `requests` (also where it is missing), `calls`, `samples` or `admissions`.
TABLE_KEY = "flyball.table"
NODE_KEY = "flyball.node"
SAMPLE_RATIO_KEY = "flyball.sample_ratio"
DROPPED_KEY = "flyball.dropped"


class Kind(enum.IntEnum):
    """What was asked for, in the same words for every protocol."""

    PING = 0
    REGISTER = 1
    IDENTIFY = 2
    PUT = 3
    TAKE = 4
    PEEK = 5
    LIST = 6
    CONSUME = 7
    # Not a request: a message that the node sent to a consumer unasked.
    DELIVER = 8
    SETTLE = 9
    CREATE_QUEUE = 10
    DELETE_QUEUE = 11
    LOOK_UP = 12
    PURGE = 13
    STATUS = 14
    OTHER = 15
    # A request to an application that costs its database little; what is little, a profile says.
    SMALL = 16
    LARGE = 17


class Protocol(enum.IntEnum):
    """Which protocol it came in."""

    TELESTO = 0
    THORBANG = 1
    AMQP = 2
    HTTP = 3
    # Another node of the domain, on behalf of a client of its own.
    LINK = 4


class Result(enum.IntEnum):
    """How it ended."""

    OK = 0
    # A read that found no message.
    EMPTY = 1
    # The peer asked for something that cannot be done.
    REFUSED = 2
    # Our side could not do it.
    FAILED = 3


class Outcome(enum.IntEnum):
    """What became of a request that came to admission control."""

    SERVED = 0
    # It was admitted, and the application could not answer it well.
    FAILED = 1
    # It was turned away before it began.
    REFUSED = 2
    # Its client went away while it waited.
    LEFT = 3


def names_of(codes: type[enum.IntEnum]) -> pa.Array:
    """Return the texts that stand in the files for `codes`, in the order of their numbers, counted from 0."""
    return pa.array([code.name.lower() for code in codes], pa.string())


TEXT = pa.dictionary(pa.int8(), pa.string())
MANY_TEXTS = pa.dictionary(pa.int16(), pa.string())

SCHEMA = pa.schema(
    [
        pa.field("kind", TEXT, nullable=False),
        pa.field("protocol", TEXT, nullable=False),
        pa.field("client_id", pa.int64(), nullable=False),
        pa.field("queue_id", pa.int64(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("result", TEXT, nullable=False),
        pa.field("received_us", pa.int64(), nullable=False),
        pa.field("wait_ns", pa.int64(), nullable=False),
        pa.field("parse_ns", pa.int64(), nullable=False),
        pa.field("engine_ns", pa.int64(), nullable=False),
        pa.field("store_ns", pa.int64(), nullable=False),
        pa.field("emit_ns", pa.int64(), nullable=False),
        pa.field("message_count", pa.int64(), nullable=False),
        pa.field("node", TEXT, nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("weight", pa.int64(), nullable=False),
    ]
)

# What a client saw of one call: meant for `intended_us`, sent `late_ns` later, answered `response_ns` after that.
#
# So its latency is `late_ns + response_ns`. `think_ns` is how long the client paused before it. A message that came
# unasked is a call of the kind `deliver`: `intended_us` is when its sender meant to send it, and it is never late.
CALL_SCHEMA = pa.schema(
    [
        pa.field("kind", TEXT, nullable=False),
        pa.field("protocol", TEXT, nullable=False),
        pa.field("role", TEXT, nullable=False),
        pa.field("client_id", pa.int64(), nullable=False),
        pa.field("queue", MANY_TEXTS, nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("result", TEXT, nullable=False),
        pa.field("intended_us", pa.int64(), nullable=False),
        pa.field("late_ns", pa.int64(), nullable=False),
        pa.field("response_ns", pa.int64(), nullable=False),
        pa.field("think_ns", pa.int64(), nullable=False),
        pa.field("message_count", pa.int64(), nullable=False),
        pa.field("target", TEXT, nullable=False),
        pa.field("worker", TEXT, nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("weight", pa.int64(), nullable=False),
    ]
)

# One step of a control loop: what it wanted, what it measured, what it did.
SAMPLE_SCHEMA = pa.schema(
    [
        pa.field("loop", TEXT, nullable=False),
        pa.field("at_us", pa.int64(), nullable=False),
        pa.field("sample_time_s", pa.float64(), nullable=False),
        pa.field("setpoint", pa.float64(), nullable=False),
        pa.field("measurement", pa.float64(), nullable=False),
        pa.field("action", pa.float64(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
    ]
)

# One request of an application under admission control: how long it waited, and what it took of the database.
#
# It took `connections`, held them for `busy_ns` in all, and waited `pool_ns` for them; that is part of `served_ns`.
ADMISSION_SCHEMA = pa.schema(
    [
        pa.field("key", MANY_TEXTS, nullable=False),
        pa.field("class_number", pa.int64(), nullable=False),
        pa.field("outcome", TEXT, nullable=False),
        pa.field("arrived_us", pa.int64(), nullable=False),
        pa.field("waited_ns", pa.int64(), nullable=False),
        pa.field("served_ns", pa.int64(), nullable=False),
        pa.field("connections", pa.int64(), nullable=False),
        pa.field("busy_ns", pa.int64(), nullable=False),
        pa.field("pool_ns", pa.int64(), nullable=False),
        pa.field("application", TEXT, nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("weight", pa.int64(), nullable=False),
    ]
)
