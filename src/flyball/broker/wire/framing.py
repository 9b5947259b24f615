"""The buffer behind every decoder of binary frames: bytes in, as they come; whole frames where they are needed."""

from __future__ import annotations


class FrameBuffer:
    """What has arrived of one direction of a connection and was not read yet.

    A decoder reads frames from `_buffer` at `_offset`, and calls `_wait` where the next one is not complete.
    """

    __slots__ = ("_buffer", "_needed", "_offset", "_partial")

    def __init__(self) -> None:
        # Frames are read from `_buffer`, the caller's own bytes as a rule. A frame that is not complete gathers
        # in `_partial` until there are `_needed` bytes, so that no byte is copied more than a few times.
        self._buffer = b""
        self._offset = 0
        self._partial = bytearray()
        self._needed = 0

    def feed(self, data: bytes) -> None:
        """Take the bytes that arrived. Cheapest when all before them were read as far as possible."""
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
        """What is kept of frames that are not complete, or not read yet."""
        return len(self._partial) + len(self._buffer) - self._offset

    def clear(self) -> None:
        """Let go of everything that was fed: nothing more is read from this stream."""
        self._buffer = b""
        self._offset = 0
        self._partial = bytearray()

    def _gather(self) -> bool:
        """Return whether what was waited for has arrived. To be called when there is a `_partial`."""
        if len(self._partial) < self._needed:
            return False
        self._buffer = bytes(self._partial)
        self._partial = bytearray()
        return True

    def _wait(self, needed: int) -> None:
        """Remember how many bytes the next frame takes; let go of what was read."""
        self._needed = needed
        if self._offset == len(self._buffer):
            self._buffer = b""
            self._offset = 0
