"""The AMQP handshake: protocol header, login, limits, vhost.

A table lists the methods allowed in each state. The connection of a peer that fails here is closed after a delay,
without a reply.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from flyball.broker.core.attempts import TooManyAttempts
from flyball.broker.core.refusals import why_refused
from flyball.broker.protocols.amqp.connection import AmqpConnection, State
from flyball.broker.protocols.amqp.replies import refusal
from flyball.broker.protocols.amqp.sasl import Credentials, read_response
from flyball.broker.transport.mixups import plain_text, spoken
from flyball.broker.wire import amqp
from flyball.broker.wire.amqp import AmqpError, ReplyCode, reply_text
from flyball.errors import FlyballError, NotAdmitted
from flyball.model import User

log = logging.getLogger("flyball.server")

# Headers that RabbitMQ accepts: 0-9 and 0-8 clients send other ones.
HEADERS = (amqp.PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09", b"AMQP\x01\x01\x09\x01", b"AMQP\x01\x01\x08\x00")

# Maximum length of a name of the peer in the log.
MAX_LOGGED = 100


def greet(session: AmqpConnection, header: amqp.ProtocolHeader) -> None:
    """Reply to the protocol header."""
    if header.raw not in HEADERS:
        _refuse_header(session, header.raw)
        return
    session.state = State.STARTING
    mechanisms = " ".join(_mechanisms(session)).encode()
    session.send(amqp.ConnectionStart(0, 0, 9, session.context.server_properties, mechanisms, b"en_US").encode())


def _refuse_header(session: AmqpConnection, raw: bytes) -> None:
    """Close the connection of a peer with another protocol, and log a hint."""
    protocol = spoken(raw)
    http_port = session.context.server_properties.get("flyball_http_port")
    here = "this is an AMQP port"
    if isinstance(http_port, int):
        here = f"this is an AMQP port; the HTTP API is on port {http_port}"
    if protocol == "HTTP":
        session.send(plain_text(here))
    else:
        # An unsupported header is answered with the supported one.
        session.send(amqp.PROTOCOL_HEADER)
    advice = {
        "HTTP": here,
        "TLS": "this AMQP port has no TLS; use the port of --amqps, or a client without TLS",
        "AMQP 1.0": "only AMQP 0-9-1 is supported; use a client for it",
        "AMQP": "only AMQP 0-9-1 is supported; use a client for it",
    }.get(protocol or "", "this is an AMQP port; Telesto and ThorBangMQ have ports of their own")
    log.warning("dropped %s: %s; received=%s", session.peer, advice, raw.hex(" "))
    # The rest of the input is not AMQP either.
    session.state = State.FAILED
    session.hang_up()


def start_ok(session: AmqpConnection, method: amqp.ConnectionStartOk) -> None:
    """Start the login; further input waits until it ends."""
    session.introduced(method.client_properties)
    session.mechanism = method.mechanism
    mechanism = method.mechanism
    if mechanism not in _mechanisms(session):
        raise AmqpError(ReplyCode.ACCESS_REFUSED, f"no mechanism {mechanism!r}")
    session.state = State.TUNING
    session.hold()
    if mechanism == "EXTERNAL":
        name = session.certificate_name
        assert name is not None, "EXTERNAL is only offered with a certificate name"
        user = session.hub.authority.authenticate_certificate(name, session.peer_is_loopback)
        _logged_in(session, name, user)
    else:
        session.login_began_at = session.read_bytes
        work = _log_in(session, read_response(mechanism, method.response))
        session.login = session.hub.spawn(work, session)


def tune_ok(session: AmqpConnection, method: amqp.ConnectionTuneOk) -> None:
    """Apply the negotiated limits, which may be lower than the proposed ones."""
    settings = session.context.settings
    if not 0 < method.channel_max <= settings.channel_max:
        raise AmqpError(ReplyCode.NOT_ALLOWED, f"channel_max {method.channel_max} is not negotiable")
    if not amqp.FRAME_MIN_SIZE <= method.frame_max <= settings.frame_max_bytes:
        raise AmqpError(ReplyCode.NOT_ALLOWED, f"frame_max {method.frame_max} is not negotiable")
    session.tuned(method.channel_max, method.frame_max, method.heartbeat)
    session.state = State.OPENING


def open_vhost(session: AmqpConnection, method: amqp.ConnectionOpen) -> None:
    """Open a vhost for the peer."""
    try:
        _check_entry(session, method.virtual_host)
    except FlyballError as error:
        _note_refusal(session, session.user.name, str(error), vhost=method.virtual_host)
        raise
    session.opened(method.virtual_host)


def _check_entry(session: AmqpConnection, vhost: str) -> None:
    """Raise FlyballError unless the user may open the vhost."""
    user = session.user.name
    access = session.hub.authority.access
    if not access.has_vhost(vhost):
        raise refusal(ReplyCode.NOT_ALLOWED, f"vhost {vhost} not found")
    # Same order of checks as RabbitMQ.
    session.hub.connection_limits.check_connection(vhost, user)
    if not access.may_enter(user, vhost):
        raise refusal(ReplyCode.NOT_ALLOWED, f"access to vhost '{vhost}' refused for user '{user}'")


def _note_refusal(session: AmqpConnection, name: str, reason: str, *, vhost: str | None = None) -> None:
    """Log a refused login. The virtual host is unknown before the password was verified."""
    where = "" if vhost is None else f" vhost={vhost[:MAX_LOGGED]!r}"
    log.warning(
        "login refused peer=%s user=%r%s mechanism=%s reason=%s",
        session.peer,
        name[:MAX_LOGGED],
        where,
        session.mechanism,
        reason,
    )


def _mechanisms(session: AmqpConnection) -> list[str]:
    return ["PLAIN", "AMQPLAIN"] if session.certificate_name is None else ["PLAIN", "AMQPLAIN", "EXTERNAL"]


async def _log_in(session: AmqpConnection, credentials: Credentials | None) -> None:
    if credentials is None:
        _note_refusal(session, "", "malformed response")
        session.close_silently()
        session.release()
        return
    user: User | None = None
    try:
        user = await session.hub.authority.log_in(
            credentials.name, credentials.password, session.peer_host, session.peer_is_loopback, can_wait=True
        )
    except (TooManyAttempts, NotAdmitted) as error:
        # The reply is that for a wrong password: the rate limit must not be revealed to the peer.
        _note_refusal(session, credentials.name, str(error))
        _logged_in(session, credentials.name, None, is_noted=True)
        return
    _logged_in(session, credentials.name, user)


def _logged_in(session: AmqpConnection, name: str, user: User | None, *, is_noted: bool = False) -> None:
    if session.is_gone:
        return
    mechanism = session.mechanism
    if user is None:
        if not is_noted:
            _note_refusal(session, name, why_refused(session.hub.authority, name, session.peer_is_loopback))
        if session.understands("authentication_failure_close"):
            text = reply_text(
                ReplyCode.ACCESS_REFUSED,
                f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile.",
            )
            session.send(amqp.ConnectionClose(0, ReplyCode.ACCESS_REFUSED, text, 0, 0).encode())
        session.close_silently()
    else:
        session.user = user
        settings = session.context.settings
        session.send(
            amqp.ConnectionTune(0, settings.channel_max, settings.frame_max_bytes, settings.heartbeat_s).encode()
        )
    session.release()


Handler = Callable[[AmqpConnection, Any], None]

IN_HANDSHAKE: Mapping[tuple[State, type[Any]], Handler] = {
    (State.HEADER, amqp.ProtocolHeader): greet,
    (State.STARTING, amqp.ConnectionStartOk): start_ok,
    (State.TUNING, amqp.ConnectionTuneOk): tune_ok,
    (State.OPENING, amqp.ConnectionOpen): open_vhost,
}
