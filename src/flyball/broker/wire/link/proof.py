"""How two nodes prove to each other that they know the secret of their domain, without telling it."""

from __future__ import annotations

import hashlib
import hmac

from flyball.broker.wire.link._generated.frames import Hello, encode_hello

_CALLER = b"flyball link: caller"
_LISTENER = b"flyball link: listener"


def proof_of_caller(secret: bytes, caller: Hello, listener: Hello) -> bytes:
    """Return what the node that has connected sends."""
    return _digest(secret, _CALLER, caller, listener)


def proof_of_listener(secret: bytes, caller: Hello, listener: Hello) -> bytes:
    """Return what the node that was connected to sends. It differs, so that nobody can send back what it got."""
    return _digest(secret, _LISTENER, caller, listener)


def is_proof(digest: bytes, expected: bytes) -> bool:
    """Compare in a time that tells nothing."""
    return hmac.compare_digest(digest, expected)


def _digest(secret: bytes, role: bytes, caller: Hello, listener: Hello) -> bytes:
    return hmac.new(secret, role + encode_hello(caller) + encode_hello(listener), hashlib.sha256).digest()
