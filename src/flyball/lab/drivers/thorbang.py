"""ThorBangMQ for the clients of the lab, with any server of the protocol; one request per write."""

from __future__ import annotations

from typing import ClassVar

from flyball.errors import LabError
from flyball.lab.drivers.session import ANY_RECEIVER, Exchange, QueueRef, Received, Session, wrong
from flyball.trace.schema import Protocol

_NO_RECEIVER = -1


class ThorBangLink(Exchange):
    """Answers end with a NUL byte."""

    def is_complete(self, data: bytes) -> bool:
        return data[-1] == 0


class ThorBangSession(Session):
    """Takes the oldest message first."""

    protocol: ClassVar[Protocol] = Protocol.THORBANG

    def __init__(self, link: ThorBangLink) -> None:
        super().__init__()
        self._link = link

    async def create_queue(self, name: str) -> QueueRef:
        return await self._create("CREATEQUEUE", name)

    async def create_client(self, name: str, number: int) -> int:
        return await self._create("CREATECLIENT", name)

    async def identify(self, address: int) -> None:
        self.address = address
        answer = await self._ask(b"HELLO\0")
        if answer != b"OK":
            raise wrong(answer, "HELLO")

    async def put(self, queue: QueueRef, receiver: int, body: bytes, context: int = 0) -> None:
        link = self._link
        to = _NO_RECEIVER if receiver == ANY_RECEIVER else receiver
        answer = await link.ask(b"MSG,%d,%d,%d,1,%d,%b\0" % (to, self.address, int(queue), context, body))
        self.sent_ns = link.sent_ns
        self.answered_ns = link.answered_ns
        if answer != b"OK\0":
            raise wrong(answer[:-1], "MSG")

    async def take(
        self, queue: QueueRef, context: int = 0, *, by_time: bool = True, unaddressed: bool = False
    ) -> Received | None:
        return await self._read(b"POPQ", queue, by_time)

    async def peek(self, queue: QueueRef, *, by_time: bool = True) -> Received | None:
        return await self._read(b"PEEKQ", queue, by_time)

    async def close(self) -> None:
        await self._link.close()

    async def _read(self, command: bytes, queue: QueueRef, by_time: bool) -> Received | None:
        link = self._link
        answer = await link.ask(b"%b,%d,%d,%d\0" % (command, self.address, int(queue), by_time))
        self.sent_ns = link.sent_ns
        self.answered_ns = link.answered_ns
        if answer == b"MSG0\0":
            return None
        try:
            head, sender, context, _, body = answer.split(b",", 4)
            if head != b"MSG":
                raise ValueError
            return Received(int(sender), int(context), body[:-1])
        except ValueError:
            raise wrong(answer[:-1], command.decode()) from None

    async def _create(self, command: str, name: str) -> int:
        answer = await self._ask(f"{command},{name}\0".encode())
        if not answer.isdigit():
            raise wrong(answer, command)
        return int(answer)

    async def _ask(self, request: bytes) -> bytes:
        answer = await self._link.ask(request)
        if answer.count(0) > 1:
            raise LabError(f"one request was answered twice: {answer!r}")
        return answer[:-1]
