"""How much publishers may send: their credit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flyball.server.broker import Broker

if TYPE_CHECKING:
    from flyball.server.amqp.session import AmqpSession


class Flow:
    """Gives publishers leave to send."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def grant(self, session: AmqpSession, wanted: int) -> int:
        """Return how many messages the connection may publish before it asks again; 0 if it has to wait."""
        if self._broker.is_congested or not self._broker.has_message_ids:
            return 0
        return wanted

    def forget(self, session: AmqpSession) -> None:
        """The connection is gone."""
