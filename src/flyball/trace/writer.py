"""Records on their way from the thread that makes them to files: buffers, and the one thread that writes.

Between the two there is no lock: one side only fills, the other only takes. Nothing that goes wrong with the files is
ever noticed by whoever records. What a record says is its layout's business.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from flyball.trace.buffer import Layout, RecordBuffer, Texts
from flyball.trace.clock import epoch_ns
from flyball.trace.files import TraceFiles

_log = logging.getLogger(__name__)


class RecordWriter:
    """Fills buffers and has a thread write them as Parquet files.

    A record is in a complete file `rotate_s` seconds after it was made, at the latest; a crash loses what is
    younger. Of the `max_buffers` buffers one is being filled; when all the others wait for the disk,
    records are dropped and counted. Filling belongs to one thread. The rest may be called from anywhere, `start` and
    `stop` any number of times and in any order. What is recorded while the writer is stopped is kept, as far as the
    buffers reach, for the next start.
    """

    __slots__ = (
        "_buffer",
        "_buffer_bytes",
        "_failures",
        "_files",
        "_free",
        "_full",
        "_lost",
        "_origin",
        "_pack",
        "_packed",
        "_refused",
        "_rotate_s",
        "_start_stop",
        "_thread",
        "_unsaved",
        "_well",
    )

    def __init__(
        self,
        files: TraceFiles,
        origin: str,
        layout: Layout,
        rotate_s: float,
        max_buffers: int,
        buffer_records: int,
        texts: Mapping[str, Texts] | None = None,
    ) -> None:
        """Prepare to write what `origin` records; no file is touched and no thread runs before `start`.

        `texts` are those of fields that are numbered as they are met.
        """

        def new_buffer() -> RecordBuffer:
            return RecordBuffer(layout, buffer_records, texts or {})

        if max_buffers < 2:
            raise ValueError("max_buffers must be 2 at least: one to fill while another is written")
        self._files = files
        self._origin = origin
        self._rotate_s = rotate_s
        self._pack = layout.packed.pack_into
        self._buffer = new_buffer()
        self._buffer_bytes = self._buffer.capacity_bytes
        self._free = deque(new_buffer() for _ in range(max_buffers - 1))
        self._full: queue.SimpleQueue[RecordBuffer | _Flush] = queue.SimpleQueue()
        self._packed = 0
        self._refused = 0
        self._unsaved = 0
        self._lost = 0
        self._failures = 0
        self._well = True
        self._start_stop = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def dropped(self) -> int:
        """How many records are missing in the files: no buffer was free, or the disk refused them."""
        return self._refused + self._lost

    @property
    def failures(self) -> int:
        """How many times writing went wrong."""
        return self._failures

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

    def _put(self, *values: float) -> None:
        """Pack a record. Never blocks."""
        buffer = self._buffer
        used_bytes = buffer.used_bytes
        if used_bytes == self._buffer_bytes:
            if not self._change_buffer():
                return
            buffer = self._buffer
            used_bytes = 0
        self._pack(buffer.words, used_bytes, *values)
        buffer.used_bytes = used_bytes + buffer.record_bytes

    def _change_buffer(self) -> bool:
        full = self._buffer
        try:
            fresh = self._free.popleft()
        except IndexError:
            self._refused += 1
            return False
        # Dropped records count: a gap in the sequence is how a reader sees them.
        self._packed += self._buffer_bytes // self._buffer.record_bytes
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

    def _write_and_free(self, full: RecordBuffer) -> None:
        self._attempt(lambda: self._write(full))
        full.clear()
        self._free.append(full)

    def _write(self, buffer: RecordBuffer) -> None:
        count = buffer.waiting
        if count:
            self._unsaved += count
            self._files.write(buffer.take(count, self._origin, epoch_ns()))
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
        # Whatever it is, a full disk or a mistake of ours, the process must go on and this thread with it.
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
