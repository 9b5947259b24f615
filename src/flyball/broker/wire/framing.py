"""The buffer of every decoder of binary frames: bytes in, in any pieces; complete frames out."""

from __future__ import annotations


class FrameBuffer:
    """The received and unread bytes of one direction of a connection.

    A decoder reads frames from `_buffer` at `_offset`, and calls `_wait` where the next one is not complete.
    """

    __slots__ = ("_buffer", "_needed", "_offset", "_partial")

    def __init__(self) -> None:
        # Frames are read from `_buffer`, usually the caller's own bytes. An incomplete frame is collected in
        # `_partial` until it has `_needed` bytes, so that no byte is copied more than a few times.
        self._buffer = b""
        self._offset = 0
        self._partial = bytearray()
        self._needed = 0

    def feed(self, data: bytes) -> None:
        """Add received bytes. Cheapest when all earlier frames were read."""
        if self._partial:
            self._partial += data
        elif self._offset == len(self._buffer):
            self._buffer = data
            self._offset = 0
        else:
            self._partial += memoryview(self._buffer)[self._offset :]
            self._partial += data
            self._buffer = b""
            self._offset = 0

    @property
    def buffered_bytes(self) -> int:
        """Size of incomplete or unread frames."""
        return len(self._partial) + len(self._buffer) - self._offset

    def clear(self) -> None:
        """Drop all bytes: nothing more is read from this stream."""
        self._buffer = b""
        self._offset = 0
        self._partial = bytearray()

    def _gather(self) -> bool:
        """Whether the bytes that `_partial` waits for have arrived."""
        if len(self._partial) < self._needed:
            return False
        self._buffer = bytes(self._partial)
        self._partial = bytearray()
        return True

    def _wait(self, needed: int) -> None:
        """Record the size of the next frame, and drop bytes that were read."""
        self._needed = needed
        if self._offset == len(self._buffer):
            self._buffer = b""
            self._offset = 0
