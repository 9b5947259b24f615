"""Frames of Telesto's protocol: bytes in, packets out, and back.

Sans-IO: the caller owns the socket.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from flyball.broker.wire.framing import FrameBuffer
from flyball.broker.wire.telesto._generated.packets import PACKETS, Error, ReadMessageResponse, Success
from flyball.broker.wire.telesto.fields import FrameTooLarge
from flyball.broker.wire.telesto.packet import Packet
from flyball.broker.wire.telesto.values import ErrorCode
from flyball.errors import ProtocolError

__all__ = [
    "FRAME_MAX",
    "FrameTooLarge",
    "PacketDecoder",
    "encode",
    "encode_error",
    "encode_read_message_response",
    "encode_success",
]

# Maximum size of a frame that the original can receive, and so of encoded ones.
FRAME_MAX = 32766

_HEADER = struct.Struct(">hBi")
_HEADER_BYTES = 7
# Bytes that a frame's length counts besides the payload: method id and packet id.
_OVERHEAD = 5

_Parser = Callable[[int, bytes, int, int], Packet]


_ERROR_CODES = frozenset(int(code) for code in ErrorCode)


def _parse_error_of_client(packet_id: int, data: bytes, at: int, end: int) -> Packet:
    error = Error.parse(packet_id, data, at, end)
    if error.code not in _ERROR_CODES:
        raise ProtocolError(f"a client sent the unknown error type {error.code}")
    return error


# A server's errors are accepted unchanged.
_FROM_SERVER: dict[int, _Parser] = {packet.METHOD: packet.parse for packet in PACKETS}
_FROM_CLIENT = _FROM_SERVER | {Error.METHOD: _parse_error_of_client}


class PacketDecoder(FrameBuffer):
    """Turns the bytes of one direction of a connection into packets.

    After a ProtocolError the stream is lost: every further `next_packet` raises it again.
    """

    __slots__ = ("_parsers",)

    def __init__(self, from_server: bool = False) -> None:
        super().__init__()
        self._parsers = _FROM_SERVER if from_server else _FROM_CLIENT

    def next_packet(self) -> Packet | None:
        """Return the next packet, or None until more bytes are fed. Raises ProtocolError."""
        if self._partial and not self._gather():
            return None
        buffer = self._buffer
        start = self._offset
        at = start + _HEADER_BYTES
        if at > len(buffer):
            self._wait(_HEADER_BYTES)
            return None
        length, method, packet_id = _HEADER.unpack_from(buffer, start)
        if length < _OVERHEAD:
            raise ProtocolError(f"a frame with a length of {length}")
        parse = self._parsers.get(method)
        if parse is None:
            raise ProtocolError(f"a frame with the unknown method id {method:#04x}")
        end: int = start + 2 + length
        if end > len(buffer):
            self._wait(2 + length)
            return None
        packet = parse(packet_id, buffer, at, end)
        self._offset = end
        return packet


def encode(packet: Packet) -> bytes:
    """Return the packet in a frame. Raises FrameTooLarge above 32766 bytes in total."""
    payload = packet.payload()
    size = len(payload)
    if size > FRAME_MAX - _HEADER_BYTES:
        raise FrameTooLarge(f"a frame of {size + _HEADER_BYTES} bytes exceeds {FRAME_MAX}")
    return _HEADER.pack(size + _OVERHEAD, packet.METHOD, packet.packet_id) + payload


def encode_success(packet_id: int) -> bytes:
    """Return a Success in a frame."""
    return _HEADER.pack(_OVERHEAD, Success.METHOD, packet_id)


_ERROR_HEAD = struct.Struct(">hBibh")


def encode_error(packet_id: int, code: int, details: str) -> bytes:
    """Return an Error in a frame. Raises FrameTooLarge if the details do not fit."""
    text = details.encode()
    size = len(text)
    if size > FRAME_MAX - _ERROR_HEAD.size:
        raise FrameTooLarge(f"an error text of {size} bytes does not fit into a frame")
    return _ERROR_HEAD.pack(size + _ERROR_HEAD.size - 2, Error.METHOD, packet_id, code, size) + text


_READ_MESSAGE_RESPONSE_HEAD = struct.Struct(">hBiiiiiibqh")


def encode_read_message_response(
    packet_id: int,
    message_id: int,
    queue_id: int,
    sender_id: int,
    receiver_id: int,
    context: int,
    priority: int,
    arrived_ms: int,
    text: bytes,
) -> bytes:
    """Return a ReadMessageResponse in a frame; `text` is UTF-8 already.

    Raises FrameTooLarge above 32766 bytes in total.
    """
    size = len(text)
    if size > FRAME_MAX - 38:
        raise FrameTooLarge(f"a message of {size} bytes does not fit into a frame")
    return (
        _READ_MESSAGE_RESPONSE_HEAD.pack(
            size + 36,
            ReadMessageResponse.METHOD,
            packet_id,
            message_id,
            queue_id,
            sender_id,
            receiver_id,
            context,
            priority,
            arrived_ms,
            size,
        )
        + text
    )
