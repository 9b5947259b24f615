"""Converts between messages and rows, as Arrow record batches."""

from __future__ import annotations

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

from flyball.client import Draft
from flyball.spark_source.options import InvalidOption

# The columns of the node's stream.
SCHEMA = StructType(
    [
        StructField("id", LongType()),
        StructField("queue", StringType()),
        StructField("sender", IntegerType()),
        StructField("receiver", IntegerType()),
        StructField("context", LongType()),
        StructField("priority", IntegerType()),
        StructField("arrived", TimestampType()),
        StructField("properties", BinaryType()),
        StructField("persistent", BooleanType()),
        StructField("delivery_count", IntegerType()),
        StructField("body", BinaryType()),
    ]
)

_WRITTEN: dict[str, tuple[type[DataType], ...]] = {
    "body": (BinaryType, StringType),
    "queue": (StringType,),
    "sender": (IntegralType,),
    "receiver": (IntegralType,),
    "context": (IntegralType,),
    "priority": (IntegralType,),
    "properties": (BinaryType, StringType),
    "persistent": (BooleanType,),
}
# Set by the node: rows that were read can be written without changes.
_ONLY_READ = frozenset({"id", "arrived", "delivery_count"})


def check_read(schema: StructType) -> None:
    """Raise InvalidOption for a schema with other columns than a queue has."""
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
            raise InvalidOption(f"unknown column {field.name!r}; available: {', '.join(_WRITTEN)}")
        if not isinstance(field.dataType, kinds):
            raise InvalidOption(f"unsupported type {field.dataType.simpleString()} of column {field.name!r}")
    if "body" not in schema.names:
        raise InvalidOption("missing column 'body'")
    if not has_queue and "queue" not in schema.names:
        raise InvalidOption("no queue given: use option 'queue', or a column 'queue'")


def drafts(batch: pa.RecordBatch, queue: str | None) -> dict[str, list[Draft]]:
    """Return rows as messages by queue: the given one, or that of the row."""
    nothing = [None] * batch.num_rows
    columns = {name: batch.column(name).to_pylist() if name in batch.schema.names else nothing for name in _WRITTEN}
    found: dict[str, list[Draft]] = {}
    for body, own_queue, sender, receiver, context, priority, properties, persistent in zip(
        *columns.values(), strict=True
    ):
        where = queue if queue is not None else own_queue
        if where is None:
            raise InvalidOption("a row has no queue")
        if body is None:
            raise InvalidOption("a row has no body")
        draft = Draft(
            body, receiver, context, priority or 0, None, persistent is not False, _properties(properties), sender
        )
        found.setdefault(where, []).append(draft)
    return found


def _properties(value: bytes | str | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""
