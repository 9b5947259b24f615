"""Frames of the link between nodes: bytes in, frames out, and back.

Sans-IO: the caller owns the socket. A frame is its length (32 bits), its kind (8 bits) and its payload.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from flyball.broker.wire.framing import FrameBuffer
from flyball.broker.wire.link._generated.frames import READERS, GeneratedFrame
from flyball.broker.wire.link.contents import Deliver, read_leased, write_leased
from flyball.broker.wire.link.fields import HEADER, frame, wrong_size
from flyball.errors import ProtocolError
from flyball.model import Message

# Maximum size of a frame before the peer is authenticated.
HANDSHAKE_MAX: Final = 256

_HEADER_BYTES: Final = 5
_DELIVER: Final = 10

Frame: TypeAlias = Deliver | GeneratedFrame


def _read_deliver(data: bytes, at: int, end: int) -> Deliver:
    delivery, at = read_leased(data, at, end)
    if at != end:
        raise wrong_size(0, at, end)
    return delivery


def encode_deliver(consumer: int, message: Message) -> bytes:
    return frame(_DELIVER, write_leased(consumer, message))


_READERS: Final[dict[int, Callable[[bytes, int, int], Frame]]] = {**READERS, _DELIVER: _read_deliver}


class LinkDecoder(FrameBuffer):
    """Turns the bytes of one direction of a link into frames.

    After a ProtocolError the stream is lost: every further `next_frame` raises it again.
    """

    __slots__ = ("frame_max",)

    def __init__(self, frame_max: int = HANDSHAKE_MAX) -> None:
        super().__init__()
        # Maximum size of a frame; may be changed between two frames.
        self.frame_max = frame_max

    def next_frame(self) -> Frame | None:
        """Return the next frame, or None until more bytes are fed. Raises ProtocolError."""
        if self._partial and not self._gather():
            return None
        buffer = self._buffer
        start = self._offset
        at = start + _HEADER_BYTES
        if at > len(buffer):
            self._wait(_HEADER_BYTES)
            return None
        length, kind = HEADER.unpack_from(buffer, start)
        if length < 1 or length + 4 > self.frame_max:
            raise ProtocolError(f"a frame with a length of {length}; at most {self.frame_max - 4} are allowed")
        read = _READERS.get(kind)
        if read is None:
            raise ProtocolError(f"a frame of the unknown kind {kind}")
        end: int = start + 4 + length
        if end > len(buffer):
            self._wait(4 + length)
            return None
        found = read(buffer, at, end)
        self._offset = end
        return found
