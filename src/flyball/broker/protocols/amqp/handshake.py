"""The AMQP handshake: protocol header, login, limits, vhost.

A table says which method is allowed in which state. A peer that fails here gets no reply, and a delayed close.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from flyball.broker.core.attempts import TooManyAttempts
from flyball.broker.protocols.amqp.connection import AmqpConnection, State
from flyball.broker.protocols.amqp.replies import refusal
from flyball.broker.protocols.amqp.sasl import Credentials, read_response
from flyball.broker.wire import amqp
from flyball.broker.wire.amqp import AmqpError, ReplyCode, reply_text
from flyball.errors import NotAdmitted
from flyball.model import User

log = logging.getLogger("flyball.server")

# Headers that RabbitMQ accepts: 0-9 and 0-8 clients send other ones.
HEADERS = (amqp.PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09", b"AMQP\x01\x01\x09\x01", b"AMQP\x01\x01\x08\x00")


def greet(session: AmqpConnection, header: amqp.ProtocolHeader) -> None:
    """Answer the protocol header."""
    if header.raw not in HEADERS:
        # An unsupported header is answered with the supported one.
        session.send(amqp.PROTOCOL_HEADER)
        session.hang_up()
        return
    session.state = State.STARTING
    mechanisms = " ".join(_mechanisms(session)).encode()
    session.send(amqp.ConnectionStart(0, 0, 9, session.context.server_properties, mechanisms, b"en_US").encode())


def start_ok(session: AmqpConnection, method: amqp.ConnectionStartOk) -> None:
    """Start the login; input that arrives meanwhile waits."""
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
        _logged_in(session, session.hub.authority.authenticate_certificate(name, session.peer_is_loopback), mechanism)
    else:
        session.login_began_at = session.read_bytes
        work = _log_in(session, read_response(mechanism, method.response), mechanism)
        session.login = session.hub.spawn(work, session)


def tune_ok(session: AmqpConnection, method: amqp.ConnectionTuneOk) -> None:
    """Apply the negotiated limits, which may be lower than ours."""
    settings = session.context.settings
    if not 0 < method.channel_max <= settings.channel_max:
        raise AmqpError(ReplyCode.NOT_ALLOWED, f"channel_max {method.channel_max} is not negotiable")
    if not amqp.FRAME_MIN_SIZE <= method.frame_max <= settings.frame_max_bytes:
        raise AmqpError(ReplyCode.NOT_ALLOWED, f"frame_max {method.frame_max} is not negotiable")
    session.tuned(method.channel_max, method.frame_max, method.heartbeat)
    session.state = State.OPENING


def open_vhost(session: AmqpConnection, method: amqp.ConnectionOpen) -> None:
    """Open a vhost for the peer."""
    vhost = method.virtual_host
    user = session.user.name
    access = session.hub.authority.access
    if not access.has_vhost(vhost):
        raise refusal(ReplyCode.NOT_ALLOWED, f"vhost {vhost} not found")
    # Same order of checks as RabbitMQ.
    session.hub.occupancy.check_connection(vhost, user)
    if not access.may_enter(user, vhost):
        raise refusal(ReplyCode.NOT_ALLOWED, f"access to vhost '{vhost}' refused for user '{user}'")
    session.opened(vhost)


def _mechanisms(session: AmqpConnection) -> list[str]:
    return ["PLAIN", "AMQPLAIN"] if session.certificate_name is None else ["PLAIN", "AMQPLAIN", "EXTERNAL"]


async def _log_in(session: AmqpConnection, credentials: Credentials | None, mechanism: str) -> None:
    if credentials is None:
        session.close_silently()
        session.release()
        return
    user: User | None = None
    try:
        user = await session.hub.authority.log_in(
            credentials.name, credentials.password, session.peer_host, session.peer_is_loopback, can_wait=True
        )
    except (TooManyAttempts, NotAdmitted) as error:
        # The peer gets the answer of a wrong password: it must not learn that it is rate-limited.
        log.warning("refused %s: %s", session.peer, error)
    _logged_in(session, user, mechanism)


def _logged_in(session: AmqpConnection, user: User | None, mechanism: str) -> None:
    if session.is_gone:
        return
    if user is None:
        log.warning("refused %s: authentication failed (mechanism %s)", session.peer, mechanism)
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
