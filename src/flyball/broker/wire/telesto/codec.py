"""Frames of Telesto's protocol: bytes in, packets out, and back.

Sans-IO: the caller owns the socket. A connection starts with plain frames (16-bit length); after Welcome both
directions use wide ones (32-bit length), see docs/protocols/telesto-extension.md.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from flyball.broker.wire.framing import FrameBuffer
from flyball.broker.wire.telesto._generated.packets import PLAIN_PACKETS, Error, ReadMessageResponse, Success
from flyball.broker.wire.telesto.clustering import CLUSTERING_PACKETS
from flyball.broker.wire.telesto.extension import EXTENSION_PACKETS, Deliver, Welcome
from flyball.broker.wire.telesto.fields import FrameTooLarge
from flyball.broker.wire.telesto.owner import OWNER_PACKETS
from flyball.broker.wire.telesto.packet import Packet
from flyball.broker.wire.telesto.values import PLAIN_ERROR_LIMIT, ErrorCode, Record
from flyball.errors import ProtocolError

__all__ = [
    "PLAIN_FRAME_MAX",
    "FrameTooLarge",
    "PacketDecoder",
    "encode",
    "encode_deliver",
    "encode_error",
    "encode_read_message_response",
    "encode_success",
    "encode_wide",
]

PLAIN_FRAME_MAX = 32766
"""The largest plain frame, in bytes, that the original can receive, and so the largest that is encoded."""

_PLAIN_HEADER = struct.Struct(">hBi")
_PLAIN_HEADER_BYTES = 7
_WIDE_HEADER = struct.Struct(">IBi")
_WIDE_HEADER_BYTES = 9
# What every frame's length counts besides the payload: method id and packet id.
_OVERHEAD = 5

_Parser = Callable[[int, bytes, int, int], Packet]


def _parse_error_of_plain_client(packet_id: int, data: bytes, at: int, end: int) -> Packet:
    error = Error.parse(packet_id, data, at, end)
    if not 0 <= error.code < PLAIN_ERROR_LIMIT:
        raise ProtocolError(f"a client sent the unknown error type {error.code}")
    return error


_ERROR_CODES = frozenset(int(code) for code in ErrorCode)


def _parse_error_of_wide_client(packet_id: int, data: bytes, at: int, end: int) -> Packet:
    error = Error.parse(packet_id, data, at, end)
    if error.code not in _ERROR_CODES:
        raise ProtocolError(f"a client sent the unknown error type {error.code}")
    return error


def _parsers(packets: Iterable[type[Packet]]) -> dict[int, _Parser]:
    return {packet.METHOD: packet.parse for packet in packets}


# What is known depends on the direction and on the kind of frame. A server's errors are taken as they come.
_PLAIN_FROM_SERVER = _parsers((*PLAIN_PACKETS, Welcome))
_PLAIN_FROM_CLIENT = _parsers(PLAIN_PACKETS) | {Error.METHOD: _parse_error_of_plain_client}
_WIDE_FROM_SERVER = _parsers(PLAIN_PACKETS + EXTENSION_PACKETS + CLUSTERING_PACKETS + OWNER_PACKETS)
_WIDE_FROM_CLIENT = _WIDE_FROM_SERVER | {Error.METHOD: _parse_error_of_wide_client}


class PacketDecoder(FrameBuffer):
    """Turns the bytes of one direction of a connection into packets.

    After a ProtocolError the stream is lost: every further `next_packet` raises it again.
    """

    __slots__ = ("_frame_max", "_from_server", "_parsers", "_wide")

    def __init__(self, from_server: bool = False) -> None:
        super().__init__()
        self._from_server = from_server
        self._wide = False
        self._frame_max = 0
        self._parsers: dict[int, _Parser] = _PLAIN_FROM_SERVER if from_server else _PLAIN_FROM_CLIENT

    def widen(self, frame_max: int) -> None:
        """Read all further bytes, also those already fed, as wide frames of at most `frame_max` bytes in all."""
        self._wide = True
        self._frame_max = frame_max
        self._parsers = _WIDE_FROM_SERVER if self._from_server else _WIDE_FROM_CLIENT
        self._needed = 0

    def next_packet(self) -> Packet | None:
        """Return the next packet, or None until more bytes are fed. Raises ProtocolError."""
        if self._partial and not self._gather():
            return None
        if self._wide:
            return self._next_wide()
        buffer = self._buffer
        start = self._offset
        at = start + _PLAIN_HEADER_BYTES
        if at > len(buffer):
            self._wait(_PLAIN_HEADER_BYTES)
            return None
        length, method, packet_id = _PLAIN_HEADER.unpack_from(buffer, start)
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

    def _next_wide(self) -> Packet | None:
        buffer = self._buffer
        start = self._offset
        at = start + _WIDE_HEADER_BYTES
        if at > len(buffer):
            self._wait(_WIDE_HEADER_BYTES)
            return None
        length, method, packet_id = _WIDE_HEADER.unpack_from(buffer, start)
        if length < _OVERHEAD or length > self._frame_max - 4:
            raise ProtocolError(f"a frame with a length of {length}; frame_max is {self._frame_max}")
        parse = self._parsers.get(method)
        if parse is None:
            raise ProtocolError(f"a frame with the unknown method id {method:#04x}")
        end: int = start + 4 + length
        if end > len(buffer):
            self._wait(4 + length)
            return None
        packet = parse(packet_id, buffer, at, end)
        self._offset = end
        return packet


def encode(packet: Packet) -> bytes:
    """Return the packet in a plain frame. Raises FrameTooLarge if it takes more than 32766 bytes in all."""
    payload = packet.payload()
    size = len(payload)
    if size > PLAIN_FRAME_MAX - _PLAIN_HEADER_BYTES:
        raise FrameTooLarge(f"a frame of {size + _PLAIN_HEADER_BYTES} bytes exceeds {PLAIN_FRAME_MAX}")
    return _PLAIN_HEADER.pack(size + _OVERHEAD, packet.METHOD, packet.packet_id) + payload


def encode_wide(packet: Packet) -> bytes:
    """Return the packet in a wide frame. That it fits into the peer's `frame_max` is the caller's to see to."""
    payload = packet.payload()
    return _WIDE_HEADER.pack(len(payload) + _OVERHEAD, packet.METHOD, packet.packet_id) + payload


def encode_success(packet_id: int) -> bytes:
    """Return a Success in a plain frame."""
    return _PLAIN_HEADER.pack(_OVERHEAD, Success.METHOD, packet_id)


_ERROR_HEAD = struct.Struct(">hBibh")


def encode_error(packet_id: int, code: int, details: str) -> bytes:
    """Return an Error in a plain frame. Raises FrameTooLarge if the details do not fit."""
    text = details.encode()
    size = len(text)
    if size > PLAIN_FRAME_MAX - _ERROR_HEAD.size:
        raise FrameTooLarge(f"an error text of {size} bytes does not fit into a plain frame")
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
    """Return a ReadMessageResponse in a plain frame; `text` is UTF-8 already.

    Raises FrameTooLarge if it takes more than 32766 bytes in all.
    """
    size = len(text)
    if size > PLAIN_FRAME_MAX - 38:
        raise FrameTooLarge(f"a message of {size} bytes does not fit into a plain frame")
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


_DELIVER_HEAD = struct.Struct(">IBii")


def encode_deliver(consumer_id: int, record: Record) -> bytes:
    """Return a Deliver in a wide frame, with the packet id 0 of what nobody asked for."""
    packed = record.pack()
    return _DELIVER_HEAD.pack(len(packed) + 4 + _OVERHEAD, Deliver.METHOD, 0, consumer_id) + packed
