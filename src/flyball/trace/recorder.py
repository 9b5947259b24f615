"""Records what each request cost, without making it cost more.

The event loop packs a record into a buffer and goes on; the writer's thread does the rest. Which requests are in the
sample is decided here.
"""

from __future__ import annotations

import random
from pathlib import Path

from flyball.trace.files import TraceFiles
from flyball.trace.latencies import Latencies
from flyball.trace.requests import REQUEST
from flyball.trace.span import Span
from flyball.trace.writer import RecordWriter

_pack = REQUEST.packed.pack_into
_RECORD_BYTES = REQUEST.packed.size

# Enough to make a row group worth its overhead; few enough that turning them into columns, which holds the
# interpreter, stops the event loop for less than a millisecond.
BUFFER_RECORDS = 8_192


# When there are many requests, one in so many is recorded.
SPARSE = 64


class Recorder(RecordWriter):
    """Samples requests and writes their records as Parquet files into a folder.

    `record` and `weigh` belong to one thread, the event loop's.
    """

    __slots__ = (
        "_counted_bytes",
        "_latencies",
        "_left",
        "_most_per_s",
        "_random",
        "_sample_ratio",
        "_second_ends_ns",
        "_takes_all",
        "skip",
    )

    def __init__(
        self,
        folder: Path,
        node: str,
        sample_ratio: float = 1.0,
        most_per_s: int = 500,
        rotate_s: float = 5.0,
        rotate_bytes: int = 64 * 2**20,
        keep_bytes: int = 2**30,
        max_buffers: int = 16,
        buffer_records: int = BUFFER_RECORDS,
        files: TraceFiles | None = None,
    ) -> None:
        """Prepare to record; no file is touched and no thread runs before `start`.

        `files` replaces where the records go: tests pass a place that blocks or breaks.
        """
        if not 0.0 <= sample_ratio <= 1.0:
            raise ValueError(f"sample_ratio {sample_ratio} is not between 0 and 1")
        files = files or TraceFiles(folder, node, sample_ratio, rotate_bytes, keep_bytes)
        super().__init__(files, node, REQUEST, rotate_s, max_buffers, buffer_records)
        self._latencies = Latencies()
        # So much of the present buffer is in the latencies.
        self._counted_bytes = 0
        self._sample_ratio = sample_ratio
        self._takes_all = sample_ratio >= 1.0
        self._most_per_s = most_per_s
        self._left = 0
        self._second_ends_ns = 0
        # So many of the next requests are not in the sample: see `sample`.
        self.skip = 0
        # Chance, not every n-th request: a client that puts and takes in turn would show only one of the two.
        self._random = random.Random(0).random

    @property
    def sample_ratio(self) -> float:
        """The part of all requests that is recorded, 0 to 1."""
        return self._sample_ratio

    @property
    def latencies(self) -> Latencies:
        """How long all that was recorded so far took. It belongs to the thread that records."""
        used_bytes = self._buffer.used_bytes
        self._latencies.count(self._buffer, self._counted_bytes, used_bytes)
        self._counted_bytes = used_bytes
        return self._latencies

    def _change_buffer(self) -> bool:
        self._latencies.count(self._buffer, self._counted_bytes, self._buffer_bytes)
        self._counted_bytes = self._buffer_bytes
        has_changed = super()._change_buffer()
        if has_changed:
            self._counted_bytes = 0
        return has_changed

    def sample(self, now_ns: int) -> int:
        """Return for how many requests this one stands in the trace; 0 if it is not in the sample.

        Ask once per request. On the path of each message this call would cost more than all of its trace: there
        `skip` is counted down in place, and only at 0 `weigh` is asked.
        """
        if self.skip:
            self.skip -= 1
            return 0
        return self.weigh(now_ns)

    def weigh(self, now_ns: int) -> int:
        """Return for how many requests the next one stands in the trace; 0 if it is not in the sample.

        Ask once per request that is not to skip, before taking its other times. Up to `most_per_s` requests of
        a second are all in the sample, then one in `SPARSE`: the more there is to do, the less may be spent on
        watching.
        """
        if not self._takes_all and self._random() >= self._sample_ratio:
            return 0
        if now_ns >= self._second_ends_ns:
            self._second_ends_ns = now_ns + 1_000_000_000
            self._left = self._most_per_s
        if self._left > 0:
            self._left -= 1
            return 1
        # 0 to 126, 63 on average: one in 64, at irregular distances.
        self.skip = int(self._random() * (2 * SPARSE - 1))
        return SPARSE

    def record(self, span: Span, emitted_ns: int) -> None:
        """Note a request whose answer left then. Never blocks; raises nothing but for a number beyond 64 bits."""
        # `_put` by hand: the call and its tuple would make every request that is recorded dearer.
        buffer = self._buffer
        used_bytes = buffer.used_bytes
        if used_bytes == self._buffer_bytes:
            if not self._change_buffer():
                return
            buffer = self._buffer
            used_bytes = 0
        _pack(
            buffer.words,
            used_bytes,
            span.kind,
            span.protocol,
            span.result,
            span.client_id,
            span.queue_id,
            span.size_bytes,
            span.message_count,
            span.received_ns,
            span.started_ns,
            span.parsed_ns,
            span.submitted_ns,
            span.answered_ns,
            emitted_ns,
            span.weight,
        )
        buffer.used_bytes = used_bytes + _RECORD_BYTES
