"""How a client proves that it has the token of a node's owner, without sending it: the packets and the digest.

The token stays where it is: a program that listens in the node's place learns nothing that it could use later.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import ClassVar, Self

from flyball.broker.wire.telesto.fields import INT, finish, read_bytes
from flyball.broker.wire.telesto.packet import Packet

NONCE_BYTES = 32

_PURPOSE = b"flyball telesto: owner"


@dataclass(slots=True)
class AskNonce(Packet):
    """Ask for what a proof is made of."""

    METHOD: ClassVar[int] = 0x66


@dataclass(slots=True)
class _Bytes(Packet):
    """A packet that carries bytes, which it does not show."""

    data: bytes = field(repr=False)

    def payload(self) -> bytes:
        return INT.pack(len(self.data)) + self.data

    @classmethod
    def parse(cls, packet_id: int, data: bytes, at: int, end: int) -> Self:
        found, at = read_bytes(data, at, end)
        finish(at, end)
        return cls(packet_id, found)


@dataclass(slots=True)
class Nonce(_Bytes):
    """What a proof is made of: it is good for one proof, on this connection."""

    METHOD: ClassVar[int] = 0x67


@dataclass(slots=True)
class Prove(_Bytes):
    """The proof that the sender has the token: `proof_of` of it and the nonce."""

    METHOD: ClassVar[int] = 0x68


OWNER_PACKETS: tuple[type[Packet], ...] = (AskNonce, Nonce, Prove)
"""Every packet in this module."""


def proof_of(token: bytes, nonce: bytes) -> bytes:
    return hmac.new(token, _PURPOSE + nonce, hashlib.sha256).digest()


def is_proof(data: bytes, token: bytes, nonce: bytes) -> bool:
    """Compare in a time that tells nothing."""
    return hmac.compare_digest(data, proof_of(token, nonce))
