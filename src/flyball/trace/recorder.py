"""Records the timing of requests at minimal cost per request.

The event loop packs a record into a buffer; the writer thread does the rest. Sampling is decided here.
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

# Large enough for an efficient row group; small enough that the conversion to columns, which holds the GIL, stops the
# event loop for less than a millisecond.
BUFFER_RECORDS = 8_192


# Sampling interval under load: 1 in 64.
SPARSE = 64


class Recorder(RecordWriter):
    """Samples requests and writes their records as Parquet files.

    `record` and `weigh` must be called in one thread, the event loop's.
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
        """Does not touch files or start the thread before `start`.

        `files` replaces the destination: tests pass one that blocks or fails.
        """
        if not 0.0 <= sample_ratio <= 1.0:
            raise ValueError(f"sample_ratio {sample_ratio} is not between 0 and 1")
        files = files or TraceFiles(folder, node, sample_ratio, rotate_bytes, keep_bytes)
        super().__init__(files, node, REQUEST, rotate_s, max_buffers, buffer_records)
        self._latencies = Latencies()
        # Bytes of the current buffer that are already counted in the latencies.
        self._counted_bytes = 0
        self._sample_ratio = sample_ratio
        self._takes_all = sample_ratio >= 1.0
        self._most_per_s = most_per_s
        self._left = 0
        self._second_ends_ns = 0
        # Number of requests to skip before the next sample: see `sample`.
        self.skip = 0
        # Random instead of every n-th: with a client that alternates put and take, every n-th could sample only one
        # of them.
        self._random = random.Random(0).random

    @property
    def sample_ratio(self) -> float:
        """The sampled share of all requests, 0 to 1."""
        return self._sample_ratio

    @property
    def latencies(self) -> Latencies:
        """Latencies of everything recorded so far. Belongs to the recording thread."""
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
        """Return the weight of this request in the trace; 0 if it is not sampled.

        Call once per request. The hot path cannot afford this call, which costs more than the trace: it decrements
        `skip` inline and calls `weigh` at 0.
        """
        if self.skip:
            self.skip -= 1
            return 0
        return self.weigh(now_ns)

    def weigh(self, now_ns: int) -> int:
        """Return the weight of the next request in the trace; 0 if it is not sampled.

        Call once per request that is not skipped, before taking its other timestamps. The first `most_per_s` requests
        of a second are all sampled, then 1 in `SPARSE`: the higher the load, the smaller the share spent on tracing.
        """
        if not self._takes_all and self._random() >= self._sample_ratio:
            return 0
        if now_ns >= self._second_ends_ns:
            self._second_ends_ns = now_ns + 1_000_000_000
            self._left = self._most_per_s
        if self._left > 0:
            self._left -= 1
            return 1
        # 0 to 126, 63 on average: 1 in 64, at random distances.
        self.skip = int(self._random() * (2 * SPARSE - 1))
        return SPARSE

    def record(self, span: Span, emitted_ns: int) -> None:
        """Record a request answered at `emitted_ns`. Never blocks; raises only for a number beyond 64 bits."""
        # `_put`, inlined: the call and its tuple would add measurable cost to every recorded request.
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
