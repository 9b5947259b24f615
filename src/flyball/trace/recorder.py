"""Records what each request cost, without making it cost more.

The event loop packs a record into a buffer and goes on; one thread turns buffers into files. Between the two
there is no lock: one side only fills, the other only takes. Nothing that goes wrong with the files is ever
noticed by a request.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from flyball.trace.buffer import RECORD, TraceBuffer
from flyball.trace.files import TraceFiles
from flyball.trace.span import Span

_log = logging.getLogger(__name__)
_pack = RECORD.pack_into
_RECORD_BYTES = RECORD.size

BUFFER_RECORDS = 8_192
"""Enough to make a row group worth its overhead; few enough that turning them into columns, which holds the
interpreter, stops the event loop for less than a millisecond."""


SPARSE = 64
"""When there are many requests, one in so many is recorded."""


class Recorder:
    """Samples requests and writes their records as Parquet files into a folder.

    A record is in a complete file `rotate_s` seconds after it was made, at the latest; a crash loses what is
    younger. Of the `max_buffers` buffers one is being filled; when all the others wait for the disk,
    records are dropped and counted. `record` and `weigh` belong to one thread, the event loop's. The rest
    may be called from anywhere, `start` and `stop` any number of times and in any order. What is recorded
    while the recorder is stopped is kept, as far as the buffers reach, for the next start.
    """

    __slots__ = (
        "_buffer",
        "_buffer_bytes",
        "_failures",
        "_files",
        "_free",
        "_full",
        "_left",
        "_lost",
        "_most_per_s",
        "_node",
        "_packed",
        "_random",
        "_refused",
        "_rotate_s",
        "_sample_ratio",
        "_second_ends_ns",
        "_start_stop",
        "_takes_all",
        "_thread",
        "_unsaved",
        "_well",
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
        if max_buffers < 2:
            raise ValueError("max_buffers must be 2 at least: one to fill while another is written")
        self._files = files or TraceFiles(folder, node, sample_ratio, rotate_bytes, keep_bytes)
        self._node = node
        self._sample_ratio = sample_ratio
        self._takes_all = sample_ratio >= 1.0
        self._most_per_s = most_per_s
        self._left = 0
        self._second_ends_ns = 0
        self.skip = 0
        """So many of the next requests are not in the sample. Whoever has one counts down, and asks `weigh` at 0."""
        self._rotate_s = rotate_s
        # Chance, not every n-th request: a client that puts and takes in turn would show only one of the two.
        self._random = random.Random(0).random
        self._buffer = TraceBuffer(buffer_records)
        self._buffer_bytes = buffer_records * _RECORD_BYTES
        self._free = deque(TraceBuffer(buffer_records) for _ in range(max_buffers - 1))
        self._full: queue.SimpleQueue[TraceBuffer | _Flush] = queue.SimpleQueue()
        self._packed = 0
        self._refused = 0
        self._unsaved = 0
        self._lost = 0
        self._failures = 0
        self._well = True
        self._start_stop = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def sample_ratio(self) -> float:
        """The part of all requests that is recorded, 0 to 1."""
        return self._sample_ratio

    @property
    def dropped(self) -> int:
        """How many records are missing in the files: no buffer was free, or the disk refused them."""
        return self._refused + self._lost

    @property
    def failures(self) -> int:
        """How many times writing went wrong."""
        return self._failures

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
            span.idle_ns,
            span.answered_ns,
            emitted_ns,
            span.weight,
        )
        buffer.used_bytes = used_bytes + _RECORD_BYTES

    def start(self) -> None:
        """Begin to write. Removes what an earlier crash has left half-written."""
        with self._start_stop:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="trace-writer", daemon=True)
                self._thread.start()

    def flush(self) -> None:
        """Return when all that was recorded before is in complete files, or counted as dropped.

        Blocks for as long as that takes. Does nothing while the recorder is stopped.
        """
        with self._start_stop:
            if self._thread is not None:
                self._ask(_Flush(last=False))

    def stop(self) -> None:
        """Flush, and end the writing. Blocks for as long as that takes."""
        with self._start_stop:
            if self._thread is not None:
                self._ask(_Flush(last=True))
                self._thread.join()
                self._thread = None

    def _change_buffer(self) -> bool:
        full = self._buffer
        try:
            fresh = self._free.popleft()
        except IndexError:
            self._refused += 1
            return False
        # Dropped records count: a gap in the sequence is how a reader sees them.
        self._packed += self._buffer_bytes // _RECORD_BYTES
        fresh.first_sequence = self._packed + self._refused
        # In this order: whoever sees the fresh buffer must find the full one in the queue.
        self._full.put(full)
        self._buffer = fresh
        return True

    def _ask(self, request: _Flush) -> None:
        self._full.put(request)
        request.done.wait()

    def _run(self) -> None:
        self._attempt(self._files.remove_unfinished)
        deadline = time.monotonic() + self._rotate_s
        while True:
            flush: _Flush | None = None
            try:
                request = self._full.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                pass
            else:
                if isinstance(request, _Flush):
                    flush = request
                else:
                    self._write_and_free(request)
                    if time.monotonic() < deadline:
                        continue
            # `flush` and `stop` take turns, so there is one such request at most.
            flush = self._write_the_rest() or flush
            self._attempt(self._close)
            deadline = time.monotonic() + self._rotate_s
            if flush is not None:
                flush.done.set()
                if flush.last:
                    return

    def _write_the_rest(self) -> _Flush | None:
        """Write all there is, up to the record that is being made right now; return a request met on the way."""
        flush = None
        while True:
            current = self._buffer
            try:
                request = self._full.get_nowait()
            except queue.Empty:
                break
            if isinstance(request, _Flush):
                flush = request
            else:
                self._write_and_free(request)
        self._attempt(lambda: self._write(current))
        return flush

    def _write_and_free(self, full: TraceBuffer) -> None:
        self._attempt(lambda: self._write(full))
        full.clear()
        self._free.append(full)

    def _write(self, buffer: TraceBuffer) -> None:
        count = buffer.waiting
        if count:
            self._unsaved += count
            self._files.write(buffer.take(count, self._node, time.time_ns() - time.perf_counter_ns()))
            if self._files.is_full:
                self._close()

    def _close(self) -> None:
        self._files.close(self.dropped)
        if self._unsaved and not self._well:
            _log.warning("traces are written again; %d records are missing so far", self.dropped)
            self._well = True
        self._unsaved = 0
        self._files.prune()

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        # Whatever it is, a full disk or a mistake of ours, the node must go on serving and this thread with it.
        except Exception as error:
            self._failures += 1
            self._lost += self._unsaved
            self._unsaved = 0
            self._files.abandon()
            if self._well:
                expected = isinstance(error, OSError)
                _log.warning("traces are not written at present: %s", error, exc_info=not expected)
                self._well = False


class _Flush:
    """Asks the writing thread to complete its file, and to end if it is the `last` request."""

    __slots__ = ("done", "last")

    def __init__(self, last: bool) -> None:
        self.last = last
        self.done = threading.Event()
