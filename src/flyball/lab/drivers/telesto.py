"""Telesto for the clients of the lab: the plain protocol, so that it works with any server.

Requests that workloads repeat are packed here by hand; all others use the codec.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from typing import ClassVar

from flyball.broker.wire import telesto as wire
from flyball.errors import LabError, ProtocolError
from flyball.lab.drivers.session import SHOWN_BYTES, Exchange, QueueRef, Received, Session, wrong
from flyball.trace.schema import Protocol

# Maximum length of a message.
MOST_BODY_CHARACTERS = 2000

_LENGTH = struct.Struct(">h")
_PUT = struct.Struct(">hBiiiiiibqh")
_READ = struct.Struct(">hBiiib")
_READ_RESPONSE = struct.Struct(">hBiii")
_MESSAGE = struct.Struct(">iiiiibqh")
_SUCCESS = wire.Success.METHOD
_ERROR = wire.Error.METHOD
_MESSAGE_RESPONSE = wire.ReadMessageResponse.METHOD
_TIME, _PRIORITY = int(wire.ReadMode.TIME), int(wire.ReadMode.PRIORITY)
_NO_MESSAGE = int(wire.ErrorCode.NO_MESSAGES_RETRIEVED)
_FULL_MODE = 1
# Any id works, since only one request is in flight.
_PACKET_ID = 1
_MESSAGE_AT = 7
_TEXT_AT = _MESSAGE_AT + 31


class TelestoLink(Exchange):
    """Answers start with their length."""

    def is_complete(self, data: bytes) -> bool:
        return len(data) > 1 and len(data) >= 2 + int.from_bytes(data[:2], "big")


class TelestoSession(Session):
    """Takes the newest message first, as the original's clients do. A connection cannot change its client."""

    protocol: ClassVar[Protocol] = Protocol.TELESTO

    def __init__(self, link: TelestoLink, reconnect: Callable[[], Awaitable[TelestoLink]]) -> None:
        """Use the link; `reconnect` opens another one to the same server."""
        super().__init__()
        self._link = link
        self._reconnect = reconnect

    async def create_queue(self, name: str) -> QueueRef:
        if not self.address:
            await self._register(f"{name}_creator")
        answer = await self._ask(wire.CreateQueue(_PACKET_ID, name))
        if not isinstance(answer, wire.CreateQueueResponse):
            raise wrong(answer, "CreateQueue")
        return answer.queue_id

    async def create_client(self, name: str, number: int) -> int:
        link = await self._reconnect()
        try:
            other = TelestoSession(link, self._reconnect)
            await other._register(name)
            return other.address
        finally:
            await link.close()

    async def identify(self, address: int) -> None:
        answer = await self._ask(wire.IdentifyClient(_PACKET_ID, address))
        if not isinstance(answer, wire.IdentifyClientResponse):
            raise wrong(answer, "IdentifyClient")
        self.address = address

    async def put(self, queue: QueueRef, receiver: int, body: bytes, context: int = 0) -> None:
        link = self._link
        size = len(body)
        head = _PUT.pack(size + 40, 0x31, _PACKET_ID, 0, int(queue), 0, receiver, context, 1, 0, size)
        answer = await link.ask(head + body + b"\0\0\0\0")
        self.sent_ns = link.sent_ns
        self.answered_ns = link.answered_ns
        if answer[2] != _SUCCESS or len(answer) != 7:
            raise wrong(_shown(answer), "PutMessage")

    async def take(
        self, queue: QueueRef, context: int = 0, *, by_time: bool = True, unaddressed: bool = False
    ) -> Received | None:
        link = self._link
        if context:
            request = _READ_RESPONSE.pack(13, 0x35, _PACKET_ID, int(queue), context)
        else:
            request = _READ.pack(14, 0x33, _PACKET_ID, int(queue), 0, _TIME if by_time else _PRIORITY)
        answer = await link.ask(request)
        self.sent_ns = link.sent_ns
        self.answered_ns = link.answered_ns
        if answer[2] == _ERROR and len(answer) > _MESSAGE_AT and answer[_MESSAGE_AT] == _NO_MESSAGE:
            return None
        if answer[2] != _MESSAGE_RESPONSE or len(answer) < _TEXT_AT:
            raise wrong(_shown(answer), "a read")
        _, _, sender, _, found, _, _, size = _MESSAGE.unpack_from(answer, _MESSAGE_AT)
        if _TEXT_AT + size != len(answer):
            raise wrong(_shown(answer), "a read")
        return Received(sender, found, answer[_TEXT_AT:])

    async def close(self) -> None:
        await self._link.close()

    async def _register(self, name: str) -> None:
        answer = await self._ask(wire.RegisterClient(_PACKET_ID, name, _FULL_MODE))
        if not isinstance(answer, wire.RegisterClientResponse):
            raise wrong(answer, "RegisterClient")
        self.address = answer.client_id

    async def _ask(self, request: wire.Packet) -> wire.Packet:
        return _decoded(await self._link.ask(wire.encode(request)))


def _decoded(answer: bytes) -> wire.Packet:
    decoder = wire.PacketDecoder(from_server=True)
    decoder.feed(answer)
    try:
        packet = decoder.next_packet()
    except ProtocolError as error:
        raise LabError(f"not an answer of Telesto: {error}: {answer[:SHOWN_BYTES]!r}") from None
    if packet is None or len(answer) != 2 + _LENGTH.unpack_from(answer)[0]:
        raise LabError(f"one request was answered twice: {answer[:SHOWN_BYTES]!r}")
    return packet


def _shown(answer: bytes) -> object:
    """Return the readable form of a wrong answer."""
    try:
        return _decoded(answer)
    except LabError:
        return answer
