"""The handshake of a link: both ends send their identity, and prove that they know the domain's secret."""

from __future__ import annotations

import abc
import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from flyball.broker.transport.connection import Connection, Hub
from flyball.broker.wire import link as wire
from flyball.errors import ProtocolError
from flyball.trace.schema import Protocol

# Timeout of the handshake.
HANDSHAKE_S = 5.0

# Maximum size of a frame in addition to the largest message.
FRAME_ROOM_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a node on links."""

    node_id: int
    epoch: int
    # The shared secret of the domain.
    secret: bytes


class LinkEnd(Connection):
    """This node's end of a link, opened by either side."""

    PROTOCOL = Protocol.LINK

    def __init__(self, hub: Hub, identity: Identity) -> None:
        super().__init__(hub)
        self._identity = identity
        nonce = secrets.token_bytes(wire.NONCE_BYTES)
        self._hello = wire.Hello(wire.VERSION, identity.node_id, identity.epoch, nonce)
        self._theirs: wire.Hello | None = None
        self._decoder = wire.LinkDecoder()
        self._handshake_timer: asyncio.TimerHandle | None = None

    def release_buffers(self) -> None:
        self._decoder.clear()

    def input_bytes(self) -> int:
        return self._decoder.buffered_bytes

    def _limit_handshake(self, give_up: Callable[..., None], *arguments: str) -> None:
        self._handshake_timer = asyncio.get_running_loop().call_later(HANDSHAKE_S, give_up, *arguments)

    def _end_handshake(self) -> None:
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()

    def _take_in_handshake(self, frame: wire.Frame) -> None:
        if isinstance(frame, wire.Hello) and self._theirs is None:
            self._check_hello(frame)
            self._theirs = frame
            self._greet(frame)
        elif isinstance(frame, wire.Proof) and self._theirs is not None:
            if not wire.is_proof(frame.digest, self._proof_of(self._theirs)):
                raise ProtocolError("the node does not know the secret of the domain")
            self._end_handshake()
            self._decoder.frame_max = self.broker.max_message_bytes + FRAME_ROOM_BYTES
            self._begin(self._theirs)
        else:
            raise ProtocolError(f"{type(frame).__name__} before the end of the handshake")

    @abc.abstractmethod
    def _check_hello(self, theirs: wire.Hello) -> None:
        """Raise ProtocolError unless the other end is a valid peer."""

    def _greet(self, theirs: wire.Hello) -> None:
        """Reply to the Hello of the other end."""

    @abc.abstractmethod
    def _proof_of(self, theirs: wire.Hello) -> bytes:
        """Return the proof expected from the other end."""

    @abc.abstractmethod
    def _begin(self, theirs: wire.Hello) -> None:
        """Start using the link: the other end is authenticated."""
