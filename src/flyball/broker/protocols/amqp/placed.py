"""Clients that the domain has placed: the pseudo queue that says which session a connection serves.

A consumer of `amq.flyball.placement` with the id of a session registers the connection with whoever places clients,
and is sent the requests to go elsewhere. Cancelling it ends the session; when the connection ends, the client has
moved or is lost.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from flyball.broker.engine.access import Action
from flyball.broker.protocols.amqp.replies import refusal
from flyball.broker.wire import amqp
from flyball.broker.wire.amqp import Properties, ReplyCode, delivery_prefix, encode_delivery, write_origin
from flyball.errors import InvalidArgument

if TYPE_CHECKING:
    from flyball.broker.protocols.amqp.channel import Channel

PLACEMENT = "amq.flyball.placement"

# Sessions that a connection may serve. A client has a connection for each, and for each of them all channels of its
# connection are looked through once a second.
MAX_SESSIONS = 10

MAX_SESSION_ID_BYTES = 1024

_ORIGIN = write_origin("", PLACEMENT)
_PROPERTIES = Properties(content_type="application/json", delivery_mode=1).encode()


class PlacedSession:
    """One session that is served through a channel."""

    protocol = "amqp"

    def __init__(self, channel: Channel, tag: str, session_id: str) -> None:
        self.session_id = session_id
        self._channel = channel
        self._tag = tag

    @property
    def requests(self) -> int:
        """How much its connection has published and was delivered."""
        channels = self._channel.session.channels
        return sum(channel.publisher.taken + channel.deliveries.last_tag for channel in channels)

    def may(self, action: Action, vhost: str, queue_name: str) -> bool:
        session = self._channel.session
        access = session.hub.authority.access
        return vhost == session.vhost and access.may(session.user.name, vhost, action, queue_name)

    def ask_to_move(self, session_id: str, node: str, address: str, queue_id: int, deadline_s: float) -> None:
        """Ask the client to go on at that address within so long."""
        channel = self._channel
        if channel.is_closing:
            return
        request = {"session": session_id, "node": node, "address": address, "deadline_s": deadline_s}
        channel.deliveries.last_tag += 1
        session = channel.session
        session.send_delivery(
            encode_delivery(
                channel.number,
                delivery_prefix(self._tag),
                channel.deliveries.last_tag,
                False,
                _ORIGIN,
                _PROPERTIES,
                json.dumps(request).encode(),
                session.frame_max,
            )
        )


def consume_placement(channel: Channel, method: amqp.BasicConsume, tag: str) -> None:
    """Register the session of a client that has come here."""
    if not method.no_ack:
        raise refusal(ReplyCode.PRECONDITION_FAILED, "placement consumer cannot acknowledge")
    session_id = method.arguments.get("x-session")
    if not isinstance(session_id, str) or not 0 < len(session_id.encode(errors="replace")) <= MAX_SESSION_ID_BYTES:
        raise InvalidArgument(f"invalid arg 'x-session' for queue '{PLACEMENT}': expected the id of a session")
    if sum([len(each.placed) for each in channel.session.channels]) >= MAX_SESSIONS:
        raise InvalidArgument(f"a connection may serve {MAX_SESSIONS} sessions of clustered queues")
    placed = channel.placed[tag] = PlacedSession(channel, tag, session_id)
    channel.session.hub.placement.arrived(session_id, placed)
    channel.reply(amqp.BasicConsumeOk(channel.number, tag), unless=method.no_wait)


def end_placed(channel: Channel, tag: str, *, orderly: bool) -> None:
    """A session is over, or served elsewhere."""
    placed = channel.placed.pop(tag, None)
    if placed is not None:
        channel.session.hub.placement.left(placed.session_id, placed, orderly=orderly)
