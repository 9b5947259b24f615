"""A network in memory: connections that deliver late and in pieces, stand still, and break.

Bytes keep their order. A peer that is cut off in silence gets no notice: what it is sent arrives when the cut is
healed. What an aborted connection has not delivered is never delivered.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tests.broker.cluster.simulation.loop import Process, VirtualLoop, current_process

HOST = "127.0.0.1"

_EOF = b""


class Endpoint(asyncio.Transport):
    """One side of a connection."""

    def __init__(
        self, network: Network, process: Process, factory: Callable[[], asyncio.Protocol], name: tuple[str, int]
    ) -> None:
        super().__init__({"peername": name})
        self.process = process
        self.peer: Endpoint | None = None
        self._network = network
        self._factory = factory
        self._protocol = asyncio.Protocol()
        self._is_closing = False
        self._is_lost = False
        self._has_said_all = False
        self._is_paused = False
        self._coming: deque[tuple[float, bytes]] = deque()
        self._last_s = 0.0
        self._reset_at_s: float | None = None

    # What protocols use

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closing and not self._has_said_all and data and self.peer is not None:
            self.peer.send(bytes(data))

    def close(self) -> None:
        if not self._is_closing:
            self.write_eof()
            self._is_closing = True
            self._lose(None)

    def write_eof(self) -> None:
        if not self._has_said_all and not self._is_closing:
            self._has_said_all = True
            if self.peer is not None:
                self.peer.send(_EOF)

    def abort(self) -> None:
        if not self._is_lost:
            self._is_closing = True
            if self.peer is not None:
                self.peer.reset()
            self._lose(None)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self.look()

    def is_reading(self) -> bool:
        return not self._is_paused and not self._is_closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is always room."""

    def get_write_buffer_size(self) -> int:
        return 0

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def can_write_eof(self) -> bool:
        return True

    # The network's side

    def begin(self) -> None:
        """The process learns of the connection."""
        self._protocol = self._factory()
        self._protocol.connection_made(self)

    def send(self, data: bytes) -> None:
        """Bytes are on their way to this side."""
        for piece in self._network.pieces(data):
            self._last_s = max(self._last_s, self._network.arrival_s(self))
            self._coming.append((self._last_s, piece))
            self._network.call_at(self.process, self._last_s, self._arrive)

    def reset(self) -> None:
        """The other side is gone at once: what has not arrived never will."""
        self._coming.clear()
        self._reset_at_s = self._network.arrival_s(self)
        self._network.call_at(self.process, self._reset_at_s, self._arrive)

    def drop(self) -> None:
        """The process of this side is gone."""
        self._is_closing = True
        self._lose(None)

    def look(self) -> None:
        """Something may be able to arrive now."""
        self._network.call(self.process, 0.0, self._arrive)

    def _arrive(self) -> None:
        now_s = self._network.now_s()
        while not self._is_lost and not self._network.is_cut(self):
            if self._reset_at_s is not None and self._reset_at_s <= now_s:
                self._is_closing = True
                self._lose(ConnectionResetError("the other side is gone"))
            elif self._is_closing or self._is_paused or not self._coming or self._coming[0][0] > now_s:
                return
            else:
                self._take(self._coming.popleft()[1])

    def _take(self, data: bytes) -> None:
        self._network.note(self, data)
        if data:
            self._protocol.data_received(data)
        elif not self._protocol.eof_received():
            self.close()

    def _lose(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._network.forget(self)
            self._network.call(self.process, 0.0, self._protocol.connection_lost, error)


class Listener:
    """The listener that asyncio calls a server."""

    def __init__(
        self, network: Network, process: Process, factory: Callable[[], asyncio.Protocol], port: int
    ) -> None:
        self.process = process
        self.factory = factory
        self.port = port
        self._network = network

    @property
    def sockets(self) -> Sequence[Listener]:
        return [self]

    def getsockname(self) -> tuple[str, int]:
        return HOST, self.port

    def close(self) -> None:
        self._network.listeners.pop(self.port, None)


class Network:
    """All connections between processes."""

    def __init__(self, loop: VirtualLoop, chance: Random) -> None:
        self.listeners: dict[int, Listener] = {}
        # How much longer everything may take at present.
        self.slow_s = 0.0
        # Of everything that has arrived so far, and when: the same in two runs only if they are the same.
        self.digest = 0
        self.delivered_bytes = 0
        self._loop = loop
        self._chance = chance
        self._last_port = 10_000
        self._endpoints: dict[Endpoint, None] = {}
        self._cuts: set[frozenset[str]] = set()
        loop.connect = self.connect
        loop.listen = self.listen

    def now_s(self) -> float:
        return self._loop.time()

    def listen(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> Listener:
        process = current_process()
        assert process is not None, "only processes listen"
        self._last_port += 1
        listener = self.listeners[self._last_port] = Listener(self, process, factory, self._last_port)
        return listener

    async def connect(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple[Endpoint, asyncio.BaseProtocol]:
        """Connect the process that asks. Raises ConnectionRefusedError; while there is a cut it does not answer."""
        caller = current_process()
        assert caller is not None, "only processes connect"
        listener = self.listeners.get(port)
        await asyncio.sleep(self._delay_s())
        # No event says when a cut is healed: the system, too, tries again and again.
        while listener is not None and self._are_cut(caller, listener.process):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        listener = self.listeners.get(port)
        if listener is None or listener.process.is_dead:
            raise ConnectionRefusedError(f"nobody listens at port {port}")
        self._last_port += 1
        here = Endpoint(self, caller, factory, (HOST, port))
        there = Endpoint(self, listener.process, listener.factory, (HOST, self._last_port))
        here.peer, there.peer = there, here
        for endpoint in (there, here):
            self._endpoints[endpoint] = None
        self.call(there.process, 0.0, there.begin)
        here.begin()
        return here, here.get_protocol()

    # Faults

    def cut(self, one: str, other: str) -> None:
        """Let nothing through between two processes from now on, without notice to either."""
        self._cuts.add(frozenset((one, other)))

    def heal(self, one: str, other: str) -> None:
        self._cuts.discard(frozenset((one, other)))
        for endpoint in list(self._endpoints):
            endpoint.look()

    def break_connections(self, one: str, other: str | None = None) -> None:
        """End connections between two processes, or all of one, on both sides at once."""
        for endpoint in list(self._endpoints):
            peer = endpoint.peer
            assert peer is not None
            if endpoint.process.name == one and (other is None or peer.process.name == other):
                peer.reset()
                endpoint.reset()

    def kill(self, process: Process) -> None:
        """The process is gone: what it has sent still arrives, unless it could not, and then nothing more."""
        for port in [port for port, listener in self.listeners.items() if listener.process is process]:
            del self.listeners[port]
        for endpoint in [endpoint for endpoint in self._endpoints if endpoint.process is process]:
            peer = endpoint.peer
            assert peer is not None
            if self.is_cut(peer):
                peer.reset()
            else:
                peer.send(_EOF)
            endpoint.drop()

    def forget(self, endpoint: Endpoint) -> None:
        self._endpoints.pop(endpoint, None)

    def is_cut(self, endpoint: Endpoint) -> bool:
        assert endpoint.peer is not None
        return self._are_cut(endpoint.process, endpoint.peer.process)

    def _are_cut(self, one: Process, other: Process) -> bool:
        return bool(self._cuts) and frozenset((one.name, other.name)) in self._cuts

    # Chance

    def call(self, process: Process, after_s: float, work: Callable[..., object], *arguments: Any) -> None:
        self._loop.call_later(after_s, work, *arguments, context=process.context)

    def call_at(self, process: Process, at_s: float, work: Callable[..., object]) -> None:
        self._loop.call_at(at_s, work, context=process.context)

    def arrival_s(self, endpoint: Endpoint) -> float:
        return self._loop.time() + self._delay_s()

    def pieces(self, data: bytes) -> list[bytes]:
        if len(data) < 2 or self._chance.random() < 0.8:
            return [data]
        middle = self._chance.randrange(1, len(data))
        return [data[:middle], data[middle:]]

    def note(self, endpoint: Endpoint, data: bytes) -> None:
        self.delivered_bytes += len(data)
        self.digest = zlib.crc32(data, zlib.crc32(struct.pack(">dI", self.now_s(), self.digest)))

    def _delay_s(self) -> float:
        chance = self._chance
        usual_s = 0.0002 + chance.random() * 0.001
        if chance.random() < 0.02:
            usual_s += chance.random() * 0.05
        return usual_s + chance.random() * self.slow_s
