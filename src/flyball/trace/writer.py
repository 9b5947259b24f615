"""Moves records from the recording thread to files, with buffers and one writer thread.

Lock-free: one thread only fills buffers, the other only empties them. File errors never reach the recording thread.
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
    """Fills buffers and writes them as Parquet files in a thread.

    A record is in a complete file at most `rotate_s` seconds later; a crash loses younger ones. One of the
    `max_buffers` buffers is being filled; when all others wait for the disk, records are dropped and counted. Only
    one thread may fill. The other methods are thread-safe; `start` and `stop` are idempotent and may be called in any
    order. Records made while the writer is stopped are kept for the next start, up to the capacity of the buffers.
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
        "_texts",
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
        """Does not touch files or start the thread before `start`.

        `origin` is the recording process; `texts` number the values of text fields.
        """
        self._texts: Mapping[str, Texts] = texts or {}

        def new_buffer() -> RecordBuffer:
            return RecordBuffer(layout, buffer_records, self._texts)

        if max_buffers < 2:
            raise ValueError("max_buffers must be at least 2: one is filled while another is written")
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
        """Records missing from the files: dropped for lack of a buffer, or not written."""
        return self._refused + self._lost

    @property
    def failures(self) -> int:
        """Number of failed writes."""
        return self._failures

    def start(self) -> None:
        """Start writing. Removes partial files of an earlier crash."""
        with self._start_stop:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="trace-writer", daemon=True)
                self._thread.start()

    def flush(self) -> None:
        """Wait until every earlier record is in a complete file, or counted as dropped.

        Blocks. No-op while stopped.
        """
        with self._start_stop:
            if self._thread is not None:
                self._ask(_Flush(last=False))

    def stop(self) -> None:
        """Flush, and stop writing. Blocks."""
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
        # Dropped records count: readers see them as a gap in the sequence numbers.
        self._packed += full.used_bytes // full.record_bytes
        fresh.first_sequence = self._packed + self._refused
        fresh.texts = self._texts
        # In this order: a thread that sees the fresh buffer must find the full one in the queue.
        self._full.put(full)
        self._buffer = fresh
        return True

    def _codes(self, **texts: str) -> tuple[int, ...] | None:
        """Return the numbers of a record's texts, in order; None if they need a new buffer and none is free.

        A writer may see any number of distinct texts over time; those of one buffer are limited.
        """
        try:
            return tuple(self._texts[name].code_of(text) for name, text in texts.items())
        except ValueError:
            if not self._renumber():
                return None
        return tuple(self._texts[name].code_of(text) for name, text in texts.items())

    def _renumber(self) -> bool:
        """Restart the numbering of texts from the next record on.

        Return False, and count a record as dropped, if no buffer is free.
        """
        before = self._texts
        self._texts = {name: texts.emptied() for name, texts in before.items()}
        if self._buffer.used_bytes == 0:
            self._buffer.texts = self._texts
        elif not self._change_buffer():
            self._texts = before
            return False
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
            # `flush` and `stop` are serialized, so there is at most one such request.
            flush = self._write_the_rest() or flush
            self._attempt(self._close)
            deadline = time.monotonic() + self._rotate_s
            if flush is not None:
                flush.done.set()
                if flush.last:
                    return

    def _write_the_rest(self) -> _Flush | None:
        """Write everything except the record being packed right now; return a flush request found on the way."""
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
            _log.warning("resumed writing traces; %d records dropped so far", self.dropped)
            self._well = True
        self._unsaved = 0
        self._files.prune()

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        # A full disk or a bug: the process and this thread must continue.
        except Exception as error:
            self._failures += 1
            self._lost += self._unsaved
            self._unsaved = 0
            self._files.abandon()
            if self._well:
                expected = isinstance(error, OSError)
                _log.warning("writing traces failed; retrying: %s", error, exc_info=not expected)
                self._well = False


class _Flush:
    """A request to the writer thread: complete the file, and stop if `last`."""

    __slots__ = ("done", "last")

    def __init__(self, last: bool) -> None:
        self.last = last
        self.done = threading.Event()
