"""The numbers that have names in the frames of the link between nodes."""

from __future__ import annotations

import enum

# Of the protocol: nodes of different versions do not talk.
VERSION = 4

NONCE_BYTES = 32


class Outcome(enum.IntEnum):
    """What became of a message that was to be put into a queue of another node."""

    STORED = 0
    """It is there: in the store, if it is to be kept."""
    FULL = 1
    """The queue takes no more."""
    NOT_FOUND = 2
    """There is no such queue any more."""
    MOVED = 3
    """Another node serves the queue; this one has not got the message."""
    UNKNOWN = 4
    """Nobody can tell."""


class Settlement(enum.IntEnum):
    """What becomes of a message that was delivered."""

    ACK = 0
    """It is dealt with."""
    REQUEUE = 1
    """It was delivered and goes back."""
    REJECT = 2
    """It was delivered, and nobody is to get it any more."""
    RETURN = 3
    """It was not delivered to anybody and goes back as it was."""


class Ending(enum.IntEnum):
    """Why a consumer gets no more."""

    ASKED = 0
    DELETED = 1
    """Its queue is gone."""
    MOVED = 2
    """Another node serves its queue."""
    FAILED = 3
    """Its node has met a defect and has requeued what it had."""
