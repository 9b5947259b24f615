"""The protocol between the nodes of a domain: its frames, their codec, and the authentication of the peers."""

from flyball.broker.wire.link._generated import frames as _frames
from flyball.broker.wire.link._generated.frames import *  # noqa: F403
from flyball.broker.wire.link.codec import HANDSHAKE_MAX, Frame, LinkDecoder, encode_deliver
from flyball.broker.wire.link.contents import Content, Deliver, content_of
from flyball.broker.wire.link.frames import NONCE_BYTES, VERSION, Ending, PutOutcome, Settlement
from flyball.broker.wire.link.proof import is_proof, proof_of_caller, proof_of_listener

__all__ = [
    *_frames.__all__,
    "HANDSHAKE_MAX",
    "NONCE_BYTES",
    "VERSION",
    "Content",
    "Deliver",
    "Ending",
    "Frame",
    "LinkDecoder",
    "PutOutcome",
    "Settlement",
    "content_of",
    "encode_deliver",
    "is_proof",
    "proof_of_caller",
    "proof_of_listener",
]
