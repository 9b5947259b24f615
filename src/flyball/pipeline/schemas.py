"""The tables of the pipeline: those of the traces, and those computed by its stages.

The first seven are those of `docs/reference/traces.md`, with the column `run`: the experiment's run that a row is
from, empty for traces without one.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, DoubleType, LongType, StringType, StructField, StructType

from flyball.errors import PipelineError

# The version of the trace files that this pipeline reads.
SCHEMA_VERSION = 1

_TEXT, _WHOLE, _REAL = StringType(), LongType(), DoubleType()


def table(**columns: DataType) -> StructType:
    """Return the schema of a table; no column may be null."""
    return StructType([StructField(name, kind, nullable=False) for name, kind in columns.items()])


def _with_nulls(schema: StructType, *names: str) -> StructType:
    """Return a schema in which these columns may be null."""
    return StructType([StructField(one.name, one.dataType, one.name in names) for one in schema])


REQUESTS = table(
    run=_TEXT,
    kind=_TEXT,
    protocol=_TEXT,
    client_id=_WHOLE,
    queue_id=_WHOLE,
    size_bytes=_WHOLE,
    result=_TEXT,
    received_us=_WHOLE,
    wait_ns=_WHOLE,
    parse_ns=_WHOLE,
    engine_ns=_WHOLE,
    store_ns=_WHOLE,
    emit_ns=_WHOLE,
    message_count=_WHOLE,
    node=_TEXT,
    sequence=_WHOLE,
    weight=_WHOLE,
)

CALLS = table(
    run=_TEXT,
    kind=_TEXT,
    protocol=_TEXT,
    role=_TEXT,
    client_id=_WHOLE,
    queue=_TEXT,
    size_bytes=_WHOLE,
    result=_TEXT,
    intended_us=_WHOLE,
    late_ns=_WHOLE,
    response_ns=_WHOLE,
    think_ns=_WHOLE,
    message_count=_WHOLE,
    target=_TEXT,
    worker=_TEXT,
    sequence=_WHOLE,
    weight=_WHOLE,
)

# A limit is null if it is unknown or does not exist.
_SAMPLES = table(
    run=_TEXT,
    loop=_TEXT,
    at_us=_WHOLE,
    sample_time_s=_REAL,
    setpoint=_REAL,
    measurement=_REAL,
    action=_REAL,
    sequence=_WHOLE,
    feedforward=_REAL,
    lowest=_REAL,
    highest=_REAL,
    mode=_TEXT,
    gains=_TEXT,
    fingerprint=_TEXT,
    model_version=_TEXT,
    process=_TEXT,
    started_us=_WHOLE,
)
SAMPLES = _with_nulls(_SAMPLES, "lowest", "highest")

ADMISSIONS = table(
    run=_TEXT,
    key=_TEXT,
    class_number=_WHOLE,
    outcome=_TEXT,
    arrived_us=_WHOLE,
    waited_ns=_WHOLE,
    served_ns=_WHOLE,
    connections=_WHOLE,
    busy_ns=_WHOLE,
    pool_ns=_WHOLE,
    application=_TEXT,
    sequence=_WHOLE,
    weight=_WHOLE,
)

# A second of a node, or more while it was idle.
NODES = table(
    run=_TEXT,
    node=_TEXT,
    at_us=_WHOLE,
    elapsed_ns=_WHOLE,
    cpu_ns=_WHOLE,
    store_cpu_ns=_WHOLE,
    memory_bytes=_WHOLE,
    held_bytes=_WHOLE,
    connections=_WHOLE,
    channels=_WHOLE,
    consumers=_WHOLE,
    queues=_WHOLE,
    ready=_WHOLE,
    unacked=_WHOLE,
    published=_WHOLE,
    delivered=_WHOLE,
    acked=_WHOLE,
    confirmed=_WHOLE,
    read_bytes=_WHOLE,
    written_bytes=_WHOLE,
    started_us=_WHOLE,
    sequence=_WHOLE,
)

# A second of a busy queue.
QUEUES = table(
    run=_TEXT,
    node=_TEXT,
    vhost=_TEXT,
    queue=_TEXT,
    at_us=_WHOLE,
    elapsed_ns=_WHOLE,
    ready=_WHOLE,
    unacked=_WHOLE,
    consumers=_WHOLE,
    published=_WHOLE,
    delivered=_WHOLE,
    acked=_WHOLE,
    sequence=_WHOLE,
)

# A bucket of the times of a queue's messages in a second.
TIMES = table(
    run=_TEXT,
    node=_TEXT,
    vhost=_TEXT,
    queue=_TEXT,
    metric=_TEXT,
    at_us=_WHOLE,
    from_us=_WHOLE,
    below_us=_WHOLE,
    timed=_WHOLE,
    messages=_WHOLE,
    sum_us=_WHOLE,
    sequence=_WHOLE,
)

# Sums of ThorBangMQ's server over the interval between two lines of its log.
INTERVALS = table(
    run=_TEXT,
    node=_TEXT,
    at_us=_WHOLE,
    pushes=_WHOLE,
    pops=_WHOLE,
    answers=_WHOLE,
    total_ns=_WHOLE,
    worker_ns=_WHOLE,
    persistence_ns=_WHOLE,
)

# The idle time of Telesto's workers before a request.
DOWNTIMES = table(run=_TEXT, node=_TEXT, at_us=_WHOLE, downtime_ns=_WHOLE)

# The tables that can be ingested. The first seven are in trace files, the last two only in the logs of the papers'
# systems.
TABLES = {
    "requests": REQUESTS,
    "calls": CALLS,
    "samples": SAMPLES,
    "admissions": ADMISSIONS,
    "nodes": NODES,
    "queues": QUEUES,
    "times": TIMES,
    "intervals": INTERVALS,
    "downtimes": DOWNTIMES,
}


def require(frame: DataFrame, schema: StructType, what: str) -> None:
    """Raise PipelineError if `frame` lacks columns of `schema` or has other types; the error names all of them."""
    found = {field.name: field.dataType for field in frame.schema}
    missing = [field.name for field in schema if field.name not in found]
    unlike = [
        f"{field.name} ({found[field.name].simpleString()}, not {field.dataType.simpleString()})"
        for field in schema
        if field.name in found and found[field.name] != field.dataType
    ]
    problems = []
    if missing:
        problems.append(f"lacks {', '.join(missing)}")
    if unlike:
        problems.append(f"has other types in {', '.join(unlike)}")
    if problems:
        raise PipelineError(f"{what} {' and '.join(problems)}")
