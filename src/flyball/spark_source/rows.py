"""Messages as rows and rows as messages, in Arrow's record batches."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    IntegralType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from flyball.client.telesto import Draft, ReceivedMessage
from flyball.spark_source.options import InvalidOption

_COLUMNS: list[tuple[str, DataType, pa.DataType]] = [
    ("id", LongType(), pa.int64()),
    ("queue", StringType(), pa.string()),
    ("sender", IntegerType(), pa.int32()),
    ("receiver", IntegerType(), pa.int32()),
    ("context", LongType(), pa.int64()),
    ("priority", IntegerType(), pa.int32()),
    ("arrived", TimestampType(), pa.timestamp("us", tz="UTC")),
    ("properties", BinaryType(), pa.binary()),
    ("persistent", BooleanType(), pa.bool_()),
    ("delivery_count", IntegerType(), pa.int32()),
    ("body", BinaryType(), pa.binary()),
]

SCHEMA = StructType([StructField(name, kind) for name, kind, _ in _COLUMNS])

_ARROW_SCHEMA = pa.schema([(name, kind) for name, _, kind in _COLUMNS])

_WRITTEN: dict[str, tuple[type[DataType], ...]] = {
    "body": (BinaryType, StringType),
    "queue": (StringType,),
    "receiver": (IntegralType,),
    "context": (IntegralType,),
    "priority": (IntegralType,),
    "properties": (BinaryType, StringType),
    "persistent": (BooleanType,),
}
_ONLY_READ = frozenset({"id", "sender", "arrived", "delivery_count"})
"""What the node decides: rows that were read may be written as they are."""


def check_read(schema: StructType) -> None:
    """Raise InvalidOption if a user wants other columns than a queue has."""
    found = {field.name: field.dataType for field in schema.fields}
    if found != {field.name: field.dataType for field in SCHEMA.fields}:
        raise InvalidOption(f"the columns of a queue are {', '.join(SCHEMA.names)}: leave out schema(...)")


def check_written(schema: StructType, has_queue: bool) -> None:
    """Raise InvalidOption unless rows of the schema can be messages."""
    for field in schema.fields:
        if field.name in _ONLY_READ:
            continue
        kinds = _WRITTEN.get(field.name)
        if kinds is None:
            raise InvalidOption(f"a message has no column {field.name!r}; it has {', '.join(_WRITTEN)}")
        if not isinstance(field.dataType, kinds):
            raise InvalidOption(f"column {field.name!r} cannot be {field.dataType.simpleString()}")
    if "body" not in schema.names:
        raise InvalidOption("rows to be published need a column 'body'")
    if not has_queue and "queue" not in schema.names:
        raise InvalidOption("say where to publish: option 'queue', or a column 'queue'")


def record_batch(queue: str, messages: Sequence[ReceivedMessage]) -> pa.RecordBatch:
    """Return the messages of a queue as rows."""
    columns = [
        [message.id for message in messages],
        [queue] * len(messages),
        [message.sender for message in messages],
        [message.receiver for message in messages],
        [message.context for message in messages],
        [message.priority for message in messages],
        [message.arrived_us for message in messages],
        [message.properties for message in messages],
        [message.persistent for message in messages],
        [message.delivery_count for message in messages],
        [message.body for message in messages],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _ARROW_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)


def drafts(batch: pa.RecordBatch, queue: str | None) -> dict[str, list[Draft]]:
    """Return rows as messages, by the queue they go to: the one that is given, or the one the row names."""
    nothing = [None] * batch.num_rows
    columns = {name: batch.column(name).to_pylist() if name in batch.schema.names else nothing for name in _WRITTEN}
    found: dict[str, list[Draft]] = {}
    for body, own_queue, receiver, context, priority, properties, persistent in zip(*columns.values(), strict=True):
        where = queue if queue is not None else own_queue
        if where is None:
            raise InvalidOption("a row names no queue to publish it to")
        if body is None:
            raise InvalidOption("a row has no body to publish")
        draft = Draft(body, receiver, context, priority or 0, None, persistent is not False, _properties(properties))
        found.setdefault(where, []).append(draft)
    return found


def _properties(value: bytes | str | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""
