"""One message as it was handed over, and the channel on which it must be settled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aio_pika import IncomingMessage

if TYPE_CHECKING:
    from flyball.client.adaptive.session import Session


class Delivery:
    """A delivered message. It can be settled on the channel that it came by, and nowhere else."""

    __slots__ = ("arrived_s", "message", "session", "tag")

    def __init__(self, session: Session, message: IncomingMessage, tag: int, arrived_s: float) -> None:
        self.session = session
        self.message = message
        self.tag = tag
        self.arrived_s = arrived_s
