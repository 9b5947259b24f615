"""Mutual authentication of two nodes: both prove that they know the secret of the domain, without revealing it."""

from __future__ import annotations

import hashlib
import hmac

from flyball.broker.wire.link._generated.frames import Hello, encode_hello

_CALLER = b"flyball link: caller"
_LISTENER = b"flyball link: listener"


def proof_of_caller(secret: bytes, caller: Hello, listener: Hello) -> bytes:
    """Return the proof of the connecting node."""
    return _digest(secret, _CALLER, caller, listener)


def proof_of_listener(secret: bytes, caller: Hello, listener: Hello) -> bytes:
    """Return the proof of the listening node. It differs from the caller's, so that it cannot be reflected."""
    return _digest(secret, _LISTENER, caller, listener)


def is_proof(digest: bytes, expected: bytes) -> bool:
    """Compare digests in constant time."""
    return hmac.compare_digest(digest, expected)


def _digest(secret: bytes, role: bytes, caller: Hello, listener: Hello) -> bytes:
    return hmac.new(secret, role + encode_hello(caller) + encode_hello(listener), hashlib.sha256).digest()
