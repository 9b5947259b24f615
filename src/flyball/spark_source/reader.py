"""Reads ranges of message ids without removing them, so that they can be read again.

A stream in mode consume removes messages once Spark has committed them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPSConnection
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from flyball.client.http import path_of
from flyball.client.sync import Client
from flyball.spark_source import offsets
from flyball.spark_source.connection import SourceFailed, connected, explained, new_client
from flyball.spark_source.options import CONSUME, Access, ReadOptions
from flyball.spark_source.plan import Range, ranges, shares

_ARROW_STREAM = "application/vnd.apache.arrow.stream"
_OK = 200

# A connection that is silent for this long is closed.
_SILENCE_S = 60.0
_IDS_AT_ONCE = 100_000
_NO_END = 2**63 - 1


class BatchReader(DataSourceReader):
    """The contents of the queues when the query is planned."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with connected(options.access) as client:
            ids = {queue: ids_between(client, queue, 0, _NO_END, _NO_END) for queue in options.queues}
        return ranges(dict.fromkeys(options.queues, 0), ids, options.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options.access, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Arrivals in the queues, batch by batch. An offset is the last message id of each queue."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._target: dict[str, int] | None = None
        self._open_client: Client | None = None
        self._is_alone = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        return offsets.offset(self._options.mode, dict.fromkeys(self._options.queues, 0))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.max_rows_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with explained(self._options.access):
            client = self._client()
            self._target = {queue: last_id(client, queue) for queue in self._options.queues}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        starts = self._starts(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else _NO_END
        with explained(self._options.access):
            if self._options.mode == CONSUME and not self._is_alone:
                check_alone(self._client(), self._options.queues)
                self._is_alone = True
            ids = {
                queue: ids_between(self._client(), queue, after_id, self._end_of(queue), most)
                for queue, after_id in starts.items()
            }
        given = shares({queue: len(of_queue) for queue, of_queue in ids.items()}, most)
        if not any(given.values()):
            return start
        ends = {queue: ids[queue][given[queue] - 1] if given[queue] else starts[queue] for queue in starts}
        return offsets.offset(self._options.mode, ends)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        starts, ends = self._starts(start), offsets.of(end)
        with explained(self._options.access):
            ids = {
                queue: ids_between(self._client(), queue, after_id, ends.get(queue, after_id), _NO_END)
                for queue, after_id in starts.items()
            }
        return ranges(starts, ids, self._options.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options.access, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Remove consumed messages up to `end`, which Spark will not request again."""
        if self._options.mode == CONSUME:
            ends = offsets.of(end)
            with explained(self._options.access):
                check_alone(self._client(), self._options.queues)
                for queue in self._options.queues:
                    self._client().remove_messages(queue, up_to_id=ends.get(queue, 0))

    def stop(self) -> None:
        client, self._open_client = self._open_client, None
        if client is not None:
            client.close()

    def _starts(self, offset: dict[str, Any]) -> dict[str, int]:
        """Return the start of each queue. One that is not in the checkpoint starts with its oldest message."""
        known = offsets.of(offset)
        return {queue: known.get(queue, 0) for queue in self._options.queues}

    def _end_of(self, queue: str) -> int:
        return _NO_END if self._target is None else self._target[queue]

    def _client(self) -> Client:
        """Return a client for the lifetime of the reader: an idle stream polls for messages."""
        if self._open_client is None:
            client = new_client(self._options.access)
            client.open()
            self._open_client = client
        return self._open_client


def read_range(access: Access, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range as record batches, as the node sends them."""
    # For an empty queue Spark creates a partition of its own.
    if not isinstance(partition, Range):
        return
    with connected(access) as client:
        place = client.http_place()
        vhost = client.vhost
    path = path_of(
        "flyball", "queues", vhost, partition.queue, "messages", after=partition.after_id, up_to=partition.up_to_id
    )
    if place.tls is None:
        connection = HTTPConnection(place.host, place.port, timeout=_SILENCE_S)
    else:
        connection = HTTPSConnection(place.host, place.port, timeout=_SILENCE_S, context=place.tls)
    with closing(connection):
        connection.request("GET", place.prefix + path, headers={**dict(place.headers), "Accept": _ARROW_STREAM})
        response = connection.getresponse()
        if response.status != _OK:
            text = response.read(10_000).decode(errors="replace")
            raise SourceFailed(f"{place.shown} refused to list queue {partition.queue!r}: {text}")
        yield from pa.ipc.open_stream(response)


def ids_between(client: Client, queue: str, after_id: int, up_to_id: int, most: int) -> list[int]:
    """Return the ids of the oldest messages of a queue between two ids, at most `most`."""
    found: list[int] = []
    while len(found) < most:
        ids = client.list_ids(queue, after_id=after_id, most=min(_IDS_AT_ONCE, most - len(found)))
        found += [message_id for message_id in ids if message_id <= up_to_id]
        if not ids or ids[-1] >= up_to_id:
            break
        after_id = ids[-1]
    return found


def last_id(client: Client, queue: str) -> int:
    """Return the id of the newest message of a queue, 0 if it is empty."""
    last = 0
    while ids := client.list_ids(queue, after_id=last):
        last = ids[-1]
    return last


def check_alone(client: Client, queues: Sequence[str]) -> None:
    """Raise SourceFailed if a queue has other consumers: messages that they requeue would be removed unread."""
    for queue in queues:
        if client.get_queue(queue).consumers:
            raise SourceFailed(
                f"queue {queue!r} has other consumers: mode consume needs exclusive use, mode peek does not"
            )
