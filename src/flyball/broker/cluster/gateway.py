"""An AMQP 0-9-1 proxy that places each connection: it does the handshake, asks a placer for the node, then relays
bytes.

It holds no queues and no messages, and does not speak TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from flyball.broker.protocols.amqp.context import server_properties
from flyball.broker.protocols.amqp.handshake import HEADERS
from flyball.broker.protocols.amqp.replies import reply_of
from flyball.broker.protocols.amqp.sasl import read_response
from flyball.broker.settings import Address
from flyball.broker.transport.connection import is_loopback
from flyball.broker.wire import amqp
from flyball.broker.wire.amqp import AmqpError, Decoder, ReplyCode, reply_text
from flyball.errors import ClusterError, RequestError
from flyball.model import OWNER

log = logging.getLogger(__name__)

# Client properties that describe the purpose of a connection.
ROLE, QUEUE, VHOST = "flyball-role", "flyball-queue", "flyball-vhost"

PRODUCER, CONSUMER, CLIENT, AUTO = "producer", "consumer", "client", "auto"

MECHANISMS: Final = b"PLAIN AMQPLAIN"
LISTEN_BACKLOG = 1024
# Bytes per read, and roughly the bytes in flight in each direction of a connection.
RELAY_BYTES = 256 * 1024

# Time limit of the handshake, for clients and for nodes.
HANDSHAKE_S = 10.0

# How long a refused client has to close, and a node to finish when its client has disconnected.
CLOSE_TIMEOUT_S = 3.0

# Backoff before asking for a placement again. In total longer than a lease, so that by then a dead node was detected.
RETRY_S = (0.25, 0.5, 1.0, 2.0, 4.0)

_FRAME_HEAD_BYTES = 7
_SIZE_AT = 3


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """The placer's input: facts of a connection."""

    queue: str
    # `producer`, `consumer`, or `client` for the role in shorter supply.
    role: str
    vhost: str
    # User name of the client, as it claims.
    user: str = ""
    password: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class NodePlacement:
    """The node that a client is placed on."""

    # Address of the node's AMQP listener.
    address: Address
    # Name of the node.
    node: str = ""
    # Session id under which the domain expects the client.
    session: str = ""


class Placer(Protocol):
    """Chooses nodes for clients."""

    async def place(self, request: PlacementRequest, lost: NodePlacement | None = None) -> NodePlacement:
        """Return a node, other than the `lost` one.

        Raises ClusterError for a temporary failure, RequestError for a permanent one.
        """
        ...

    async def ended(self, request: PlacementRequest, placement: NodePlacement) -> None:
        """Report that a placed client never connected. Raises ClusterError, RequestError."""
        ...


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Defaults for clients without properties, and limits."""

    queue: str
    role: str = AUTO
    vhost: str = "/"
    max_connections: int = 10_000
    # Users that may connect from the gateway's own machine only. To a node every client appears to come from there.
    loopback_users: Collection[str] = ("guest",)
    retry_s: Sequence[float] = RETRY_S


class Gateway:
    """Accepts connections and places them."""

    def __init__(self, placer: Placer, settings: GatewaySettings) -> None:
        self._placer = placer
        self._settings = settings
        self._clients: set[asyncio.StreamWriter] = set()

    @contextlib.asynccontextmanager
    async def listening(self, address: Address) -> AsyncIterator[Address]:
        """Accept connections and yield the bound address; close all of them on exit."""
        serving: set[asyncio.Task[None]] = set()
        tasks = asyncio.TaskGroup()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = tasks.create_task(self._serve(reader, writer))
            serving.add(task)
            task.add_done_callback(serving.discard)

        server = await asyncio.start_server(
            accept, address.host, address.port, limit=RELAY_BYTES, backlog=LISTEN_BACKLOG, start_serving=False
        )
        async with tasks:
            try:
                await server.start_serving()
                yield Address(*server.sockets[0].getsockname()[:2])
            finally:
                server.close()
                for task in serving:
                    task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _Client(reader, writer)
        if len(self._clients) >= self._settings.max_connections:
            log.warning("refused %s: %d connections are open", client.peer, len(self._clients))
            writer.transport.abort()
            return
        self._clients.add(writer)
        try:
            await self._admit(client)
        except (OSError, EOFError, TimeoutError) as error:
            log.info("the connection of %s ended: %s", client.peer, str(error) or type(error).__name__)
        except Exception:
            # A bug triggered by one client must not end the connections of others.
            log.exception("the connection of %s failed", client.peer)
        finally:
            self._clients.discard(writer)
            writer.transport.abort()

    async def _admit(self, client: _Client) -> None:
        """Do the handshake, connect the client to a node, and relay until both sides have closed."""
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                start_ok = await client.greet()
            if start_ok is None:
                return
            node = await self._connect(self._request_of(client, start_ok), start_ok)
        except (AmqpError, RequestError, ClusterError) as error:
            log.warning("refused %s: %s", client.peer, error)
            await client.refuse(_reply_of(error))
            return
        try:
            await _relay(client, node)
        finally:
            node.writer.transport.abort()

    def _request_of(self, client: _Client, start_ok: amqp.ConnectionStartOk) -> PlacementRequest:
        settings = self._settings
        properties = start_ok.client_properties
        role = _text(properties.get(ROLE), settings.role)
        if role not in (PRODUCER, CONSUMER, CLIENT, AUTO):
            raise AmqpError(ReplyCode.NOT_ALLOWED, f"invalid {ROLE} {role!r}: use producer, consumer or auto")
        if start_ok.mechanism.encode() not in MECHANISMS.split():
            raise AmqpError(ReplyCode.ACCESS_REFUSED, f"no mechanism {start_ok.mechanism!r}")
        credentials = read_response(start_ok.mechanism, start_ok.response)
        # A node sees only the gateway's address, so it cannot check where a client connects from.
        if credentials is None or (credentials.name in (OWNER, *settings.loopback_users) and not client.is_local):
            raise AmqpError(ReplyCode.ACCESS_REFUSED, "Login was refused: it is not right, or not from here")
        return PlacementRequest(
            _text(properties.get(QUEUE), settings.queue),
            CLIENT if role == AUTO else role,
            _text(properties.get(VHOST), settings.vhost),
            credentials.name,
            credentials.password,
        )

    async def _connect(self, request: PlacementRequest, start_ok: amqp.ConnectionStartOk) -> _Peer:
        """Connect to the node where a connection is placed. Raises ClusterError when all retries have failed.

        From then on the node tracks the client and detects its disconnect.
        """
        lost: NodePlacement | None = None
        problem = ""
        for pause_s in (0.0, *self._settings.retry_s):
            if problem:
                log.warning("cannot place a %s of queue %r; retrying: %s", request.role, request.queue, problem)
                await asyncio.sleep(pause_s)
            try:
                placement = await self._placer.place(request, lost)
            except ClusterError as error:
                problem = str(error)
                continue
            try:
                async with asyncio.timeout(HANDSHAKE_S):
                    return await _introduce(placement, start_ok)
            except (OSError, EOFError, TimeoutError, AmqpError) as error:
                problem = f"the node at {placement.address} does not answer: {error or type(error).__name__}"
                lost = placement
        if lost is not None:
            await self._report_end(request, lost)
        raise ClusterError(f"no node can be reached for queue {request.queue!r}: {problem}")

    async def _report_end(self, request: PlacementRequest, placement: NodePlacement) -> None:
        try:
            await self._placer.ended(request, placement)
        except (ClusterError, RequestError) as error:
            # Best effort with a short time limit.
            log.info("cannot release the place of a %s of queue %r: %s", request.role, request.queue, error)


def _reply_of(error: AmqpError | RequestError | ClusterError) -> AmqpError:
    if isinstance(error, ClusterError):
        return AmqpError(ReplyCode.CONNECTION_FORCED, str(error))
    return reply_of(error, 0, 0)


async def serve(placer: Placer, settings: GatewaySettings, address: Address, report: Callable[[str], None]) -> None:
    """Run a gateway until SIGINT or SIGTERM; `report` gets the address. Raises OSError if it cannot listen."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with Gateway(placer, settings).listening(address) as where:
        report(f"amqp on {where}")
        report("ready; press Ctrl-C to stop")
        await stop.wait()
        report("stopping")


class _Peer:
    """One side of a relayed connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def read_frame(self) -> bytes:
        """Return one whole frame of at most the handshake's frame size. Raises AmqpError, EOFError."""
        head = await self.reader.readexactly(_FRAME_HEAD_BYTES)
        size = int.from_bytes(head[_SIZE_AT:])
        if size > amqp.HANDSHAKE_FRAME_MAX:
            raise AmqpError(ReplyCode.FRAME_ERROR, f"frame of {size} octets exceeds {amqp.HANDSHAKE_FRAME_MAX}")
        return head + await self.reader.readexactly(size + 1)


class _Client(_Peer):
    """A connection from a client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        name = writer.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if name else "unknown peer"
        self.is_local = bool(name) and is_loopback(name[0])
        self._wants_failure_close = False

    async def greet(self) -> amqp.ConnectionStartOk | None:
        """Start the handshake as a node would; return None after refusing another protocol."""
        header = await self.reader.readexactly(len(amqp.PROTOCOL_HEADER))
        if header not in HEADERS:
            self.writer.write(amqp.PROTOCOL_HEADER)
            await self._await_close()
            return None
        self.writer.write(amqp.ConnectionStart(0, 0, 9, server_properties(), MECHANISMS, b"en_US").encode())
        decoder = Decoder(amqp.HANDSHAKE_FRAME_MAX, 0)
        decoder.feed(header + await self.read_frame())
        decoder.next_command()
        command = decoder.next_command()
        if not isinstance(command, amqp.ConnectionStartOk):
            raise AmqpError(ReplyCode.COMMAND_INVALID, "expected connection.start-ok")
        capabilities = command.client_properties.get("capabilities")
        if isinstance(capabilities, dict):
            self._wants_failure_close = capabilities.get("authentication_failure_close") is True
        return command

    async def refuse(self, error: AmqpError) -> None:
        """Close the connection, with a reason for clients that can parse one this early."""
        if self._wants_failure_close:
            text = reply_text(error.code, error.text)
            self.writer.write(amqp.ConnectionClose(0, error.code, text, error.class_id, error.method_id).encode())
        await self._await_close()

    async def _await_close(self) -> None:
        """Give the client time to read the close and disconnect; then close the socket."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.writer.drain()
                self.writer.write_eof()
                while await self.reader.read(RELAY_BYTES):
                    pass


async def _introduce(placement: NodePlacement, start_ok: amqp.ConnectionStartOk) -> _Peer:
    """Connect to a node and repeat the client's handshake there."""
    reader, writer = await asyncio.open_connection(*placement.address, limit=RELAY_BYTES)
    node = _Peer(reader, writer)
    try:
        writer.write(amqp.PROTOCOL_HEADER + start_ok.encode())
        decoder = Decoder(amqp.HANDSHAKE_FRAME_MAX, 0, from_server=True)
        decoder.feed(await node.read_frame())
        greeting = decoder.next_command()
        if not isinstance(greeting, amqp.ConnectionStart):
            raise AmqpError(ReplyCode.COMMAND_INVALID, "expected connection.start")
    except BaseException:
        writer.transport.abort()
        raise
    return node


def _text(value: object, default: str) -> str:
    return value if isinstance(value, str) and value else default


async def _relay(client: _Peer, node: _Peer) -> None:
    """Relay bytes in both directions until both sides have closed, or one has failed.

    Backpressure passes through: while one side does not read, the other one is not read either.
    """
    for peer in (client, node):
        peer.writer.transport.set_write_buffer_limits(high=RELAY_BYTES)
    async with asyncio.TaskGroup() as tasks:
        directions = tasks.create_task(_pass_on(client, node)), tasks.create_task(_pass_on(node, client))
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        # A side that has sent its last byte still receives what the other one sends before it closes.
        await asyncio.wait(directions, timeout=CLOSE_TIMEOUT_S)
        for direction in directions:
            direction.cancel()


async def _pass_on(source: _Peer, destination: _Peer) -> None:
    try:
        while data := await source.reader.read(RELAY_BYTES):
            destination.writer.write(data)
            await destination.writer.drain()
        if not destination.writer.is_closing():
            destination.writer.write_eof()
    except OSError:
        # A side that resets the connection ends both: the other direction would only fail later.
        source.writer.transport.abort()
        destination.writer.transport.abort()
