"""The numbers that have names in the frames of the link between nodes."""

from __future__ import annotations

import enum

# Of the protocol: nodes of different versions do not talk.
VERSION = 4

NONCE_BYTES = 32


class PutOutcome(enum.IntEnum):
    """What became of a message that was to be put into a queue of another node."""

    # The message is in the queue; durable if it is persistent.
    STORED = 0
    # The queue is full.
    FULL = 1
    # There is no such queue.
    NOT_FOUND = 2
    # Another node serves the queue; this one does not have the message.
    MOVED = 3
    # The answer was lost.
    UNKNOWN = 4


class Settlement(enum.IntEnum):
    """What becomes of a message that was delivered."""

    # Acknowledged.
    ACK = 0
    # Delivered, and requeued.
    REQUEUE = 1
    # Delivered, and dropped or dead-lettered.
    REJECT = 2
    # Not delivered: requeued, without counting a delivery.
    RETURN = 3


class Ending(enum.IntEnum):
    """Why a consumer gets no more."""

    ASKED = 0
    # Its queue is gone.
    DELETED = 1
    # Another node serves its queue.
    MOVED = 2
    # Its node has met a defect and has requeued what it had.
    FAILED = 3
