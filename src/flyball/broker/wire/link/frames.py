"""The enumerations in the frames of the link between nodes."""

from __future__ import annotations

import enum

# Version of the protocol: nodes of different versions refuse to connect.
VERSION = 4

NONCE_BYTES = 32


class PutOutcome(enum.IntEnum):
    """The outcome of a put into a remote queue."""

    # The message is in the queue; durable if it is persistent.
    STORED = 0
    # The queue is full.
    FULL = 1
    # The queue does not exist.
    NOT_FOUND = 2
    # Another node serves the queue; this one does not have the message.
    MOVED = 3
    # The response was lost.
    UNKNOWN = 4


class Settlement(enum.IntEnum):
    """The settlement of a delivered message."""

    # Acknowledged.
    ACK = 0
    # Delivered, and requeued.
    REQUEUE = 1
    # Delivered, and dropped or dead-lettered.
    REJECT = 2
    # Not delivered: requeued, without counting a delivery.
    RETURN = 3


class Ending(enum.IntEnum):
    """Why a consumer ended."""

    ASKED = 0
    # Its queue was deleted.
    DELETED = 1
    # Another node serves its queue.
    MOVED = 2
    # Its node had an internal error and has requeued its messages.
    FAILED = 3
