"""The trace schema: columns of the tables, and codes.

Nodes record requests and activity per second; clients record calls, control loops samples, and admission control its
decisions.

Traces outlive the version that wrote them. New columns and codes are added at the end; a change of meaning needs a
new `SCHEMA_VERSION`. The columns are documented in `docs/reference/traces.md`.
"""

from __future__ import annotations

import enum

import pyarrow as pa

SCHEMA_VERSION = 1

VERSION_KEY = "flyball.schema_version"
# The file's table: `requests` (the default if missing), `calls`, `samples`, `admissions`, `nodes`, `queues`, `times`.
TABLE_KEY = "flyball.table"
NODE_KEY = "flyball.node"
SAMPLE_RATIO_KEY = "flyball.sample_ratio"
DROPPED_KEY = "flyball.dropped"


class Kind(enum.IntEnum):
    """Kind of request, common to all protocols."""

    PING = 0
    REGISTER = 1
    IDENTIFY = 2
    PUT = 3
    TAKE = 4
    PEEK = 5
    LIST = 6
    CONSUME = 7
    # Not a request: a delivery to a consumer.
    DELIVER = 8
    SETTLE = 9
    CREATE_QUEUE = 10
    DELETE_QUEUE = 11
    LOOK_UP = 12
    PURGE = 13
    STATUS = 14
    OTHER = 15
    # A request with a low cost for the application's database, by its profile.
    SMALL = 16
    LARGE = 17


class Protocol(enum.IntEnum):
    """Protocol of the request."""

    TELESTO = 0
    THORBANG = 1
    AMQP = 2
    HTTP = 3
    # Another node of the domain, on behalf of its own client.
    LINK = 4


class Result(enum.IntEnum):
    """Result of the request."""

    OK = 0
    # A read that found no message.
    EMPTY = 1
    # The request was invalid or not allowed.
    REFUSED = 2
    # The node failed.
    FAILED = 3


class Outcome(enum.IntEnum):
    """Outcome of a request under admission control."""

    SERVED = 0
    # Admitted, and answered with an error.
    FAILED = 1
    # Refused before it started.
    REFUSED = 2
    # The client disconnected while waiting.
    LEFT = 3


class Metric(enum.IntEnum):
    """A duration in the life of a queued message."""

    # From publishing to delivery.
    WAIT = 0
    # From delivery to acknowledgement.
    SERVICE = 1


def names_of(codes: type[enum.IntEnum]) -> pa.Array:
    """Return the texts for `codes` in the files, indexed by number."""
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

# A call as seen by the client: scheduled for `intended_us`, sent `late_ns` later, answered `response_ns` after that.
#
# So its latency is `late_ns + response_ns`. `think_ns` is the client's pause before it. A delivery is a call of kind
# `deliver`: `intended_us` is the scheduled time of its publish, and it is never late.
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

# One sample of a control loop: setpoint, measurement, action, and the tuning that produced it.
#
# (`process`, `started_us`, `loop`, `sequence`) is unique. A missing limit is null.
SAMPLE_SCHEMA = pa.schema(
    [
        pa.field("loop", MANY_TEXTS, nullable=False),
        pa.field("at_us", pa.int64(), nullable=False),
        pa.field("sample_time_s", pa.float64(), nullable=False),
        pa.field("setpoint", pa.float64(), nullable=False),
        pa.field("measurement", pa.float64(), nullable=False),
        pa.field("action", pa.float64(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("feedforward", pa.float64(), nullable=False),
        pa.field("lowest", pa.float64()),
        pa.field("highest", pa.float64()),
        pa.field("mode", TEXT, nullable=False),
        pa.field("gains", MANY_TEXTS, nullable=False),
        pa.field("fingerprint", MANY_TEXTS, nullable=False),
        pa.field("model_version", MANY_TEXTS, nullable=False),
        pa.field("process", TEXT, nullable=False),
        pa.field("started_us", pa.int64(), nullable=False),
    ]
)

# One request of an application under admission control: its wait for admission, and its use of the database.
#
# It used `connections`, held them for `busy_ns` in all, and waited `pool_ns` for them, which `served_ns` includes.
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

# One second of a node. Counts cover this second; gauges are sampled at its end.
NODE_SCHEMA = pa.schema(
    [
        pa.field("node", TEXT, nullable=False),
        *(
            pa.field(name, pa.int64(), nullable=False)
            for name in (
                *("at_us", "elapsed_ns", "cpu_ns", "store_cpu_ns", "memory_bytes", "held_bytes"),
                *("connections", "channels", "consumers", "queues", "ready", "unacked"),
                *("published", "delivered", "acked", "confirmed", "read_bytes", "written_bytes"),
                *("started_us", "sequence"),
            )
        ),
    ]
)

# One second of a queue with activity. `(others)` sums up the queues beyond the maximum.
QUEUE_SCHEMA = pa.schema(
    [
        pa.field("node", TEXT, nullable=False),
        pa.field("vhost", MANY_TEXTS, nullable=False),
        pa.field("queue", MANY_TEXTS, nullable=False),
        *(
            pa.field(name, pa.int64(), nullable=False)
            for name in (
                *("at_us", "elapsed_ns", "ready", "unacked", "consumers"),
                *("published", "delivered", "acked", "sequence"),
            )
        ),
    ]
)

# Messages of a queue whose time fell into one bucket of a histogram in one second.
#
# `timed` is the number of measured messages; they represent `messages`.
TIME_SCHEMA = pa.schema(
    [
        pa.field("node", TEXT, nullable=False),
        pa.field("vhost", MANY_TEXTS, nullable=False),
        pa.field("queue", MANY_TEXTS, nullable=False),
        pa.field("metric", TEXT, nullable=False),
        *(
            pa.field(name, pa.int64(), nullable=False)
            for name in ("at_us", "from_us", "below_us", "timed", "messages", "sum_us", "sequence")
        ),
    ]
)
