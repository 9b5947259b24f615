"""Placed clients: the pseudo-queue that registers a session of a clustered queue with its connection.

A consumer of `amq.flyball.placement` with a session id registers the connection with the placement, and receives
requests to move. Cancelling it ends the session. If the connection ends first, the client has moved or failed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flyball.broker.engine.access import Action
from flyball.broker.protocols.amqp.consumers import Deliveries
from flyball.broker.wire.amqp import Properties, delivery_prefix, write_origin
from flyball.errors import InvalidArgument

PLACEMENT = "amq.flyball.placement"

# Maximum number of sessions per connection. Clients use one connection per session; for each session all channels of
# its connection are scanned once a second.
MAX_SESSIONS = 10

MAX_SESSION_ID_BYTES = 1024

_ORIGIN = write_origin("", PLACEMENT)
_PROPERTIES = Properties(content_type="application/json", delivery_mode=1).encode()


class PlacedSession:
    """A session of a clustered queue, served through a channel."""

    protocol = "amqp"

    def __init__(self, deliveries: Deliveries, tag: str, session_id: str) -> None:
        self.session_id = session_id
        self._deliveries = deliveries
        self._prefix = delivery_prefix(tag)
        deliveries.session.placed_sessions += 1

    @property
    def requests(self) -> int:
        """Messages published and delivered on its connection."""
        return self._deliveries.session.requests

    @property
    def user_name(self) -> str:
        return self._deliveries.session.user.name

    def may(self, action: Action, vhost: str, queue_name: str) -> bool:
        session = self._deliveries.session
        access = session.hub.authority.access
        return vhost == session.vhost and access.may(session.user.name, vhost, action, queue_name)

    def ask_to_move(self, session_id: str, node: str, address: str, queue_id: int, deadline_s: float) -> None:
        """Ask the client to reconnect to the address before the deadline."""
        if not self._deliveries.channel.is_closing:
            request = {"session": session_id, "node": node, "address": address, "deadline_s": deadline_s}
            self._deliveries.push(self._prefix, _ORIGIN, _PROPERTIES, json.dumps(request).encode())

    def end(self, *, orderly: bool) -> None:
        """Unregister the session, which has ended or is served by another connection."""
        self._deliveries.session.placed_sessions -= 1
        self._deliveries.session.hub.placement.left(self.session_id, self, orderly=orderly)


def session_id_in(arguments: Mapping[str, Any]) -> str:
    """Return the session id in the consumer's arguments. Raises InvalidArgument."""
    session_id = arguments.get("x-session")
    if not isinstance(session_id, str) or not 0 < len(session_id.encode(errors="replace")) <= MAX_SESSION_ID_BYTES:
        raise InvalidArgument(f"invalid arg 'x-session' for queue '{PLACEMENT}': expected the id of a session")
    return session_id
