"""How both ends of a link begin: they say who they are, and prove that they know the secret of their domain."""

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

# A node that has not proved who it is by then is given up, for now.
HANDSHAKE_S = 5.0

# What a frame may hold beside the largest message.
FRAME_ROOM_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a node is for the others."""

    node_id: int
    epoch: int
    # The domain's, which all its nodes know.
    secret: bytes


class LinkEnd(Connection):
    """This node's end of a link, whoever has opened it."""

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
            raise ProtocolError(f"{type(frame).__name__} before the node has proved who it is")

    @abc.abstractmethod
    def _check_hello(self, theirs: wire.Hello) -> None:
        """Raise ProtocolError if the other end is not a node that may be there."""

    def _greet(self, theirs: wire.Hello) -> None:
        """The other end has said who it is."""

    @abc.abstractmethod
    def _proof_of(self, theirs: wire.Hello) -> bytes:
        """Return what only a node of the domain can send."""

    @abc.abstractmethod
    def _begin(self, theirs: wire.Hello) -> None:
        """The other end has proved who it is."""
