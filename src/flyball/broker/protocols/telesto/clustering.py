"""What the packets about clustered queues and topics do: placing and moving clients, publishing and subscribing."""

from __future__ import annotations

from collections.abc import Sequence

from flyball.broker.core.broker import NO_IDS
from flyball.broker.core.placement import NoPlaceYet, PlaceRequest, Role
from flyball.broker.core.presentation import present
from flyball.broker.protocols.telesto.session import Refusal, TelestoRequest, TelestoSession, not_owner
from flyball.broker.wire import telesto as wire
from flyball.broker.wire.amqp import write_origin
from flyball.broker.wire.link import Content, Outcome
from flyball.errors import FlyballError, InvalidBody, NotPermitted, RequestError, StoreUnavailable, TopicNotFound
from flyball.model import DEFAULT_VHOST, ClientMode, Draft, Message
from flyball.trace.schema import Kind

PROTOCOL = "telesto"

MOST_SESSIONS = 1000
"""So many sessions of clustered queues may one connection serve."""


# Clustered queues


def place(session: TelestoSession, packet: wire.Place, request: TelestoRequest) -> None:
    """Tell the client of a queue which node to go to."""
    request.kind = Kind.LOOK_UP
    if packet.role not in tuple(Role):
        raise RequestError(f"there is no role {packet.role}")
    if packet.vhost != DEFAULT_VHOST and not session.is_owner:
        raise not_owner()
    wish = PlaceRequest(
        packet.vhost, packet.queue_name, Role(packet.role), packet.client_name, packet.session_id, packet.avoid
    )
    session.hub.spawn(_place(session, wish, request), session)


async def _place(session: TelestoSession, wish: PlaceRequest, request: TelestoRequest) -> None:
    try:
        found = await session.hub.placement.place(wish)
    except FlyballError as error:
        session.refuse(request, error)
        return
    if isinstance(found, NoPlaceYet):
        session.reply(request, wire.PlaceLater(request.packet_id, round(found.retry_s * 1000), found.reason))
        return
    address = found.addresses.get(PROTOCOL, "")
    session.reply(request, wire.Placed(request.packet_id, found.node, address, found.queue_id, found.session_id))


def arrive(session: TelestoSession, packet: wire.Arrive, request: TelestoRequest) -> None:
    request.kind = Kind.IDENTIFY
    if len(session.sessions) >= MOST_SESSIONS:
        raise InvalidBody(f"a connection may have {MOST_SESSIONS} sessions of clustered queues")
    session.sessions.add(packet.session_id)
    session.hub.placement.arrived(packet.session_id, session)
    session.succeed(request)


def leave(session: TelestoSession, packet: wire.Leave, request: TelestoRequest) -> None:
    request.kind = Kind.IDENTIFY
    session.sessions.discard(packet.session_id)
    session.hub.placement.left(packet.session_id, session, orderly=True)
    session.succeed(request)


def forwarded(session: TelestoSession, packet: wire.Forwarded, request: TelestoRequest) -> None:
    """Another node passes on what its client wants: it comes no further."""
    request.kind = Kind.IDENTIFY
    if not session.is_owner:
        raise not_owner()
    session.is_forwarded = True
    session.succeed(request)


# Topics


def publish(session: TelestoSession, packet: wire.Publish, request: TelestoRequest) -> None:
    """Store all drafts for all subscribers, and tell how many copies that were."""
    request.kind = Kind.PUT
    broker = session.broker
    if session.mode != ClientMode.FULL:
        raise NotPermitted("a client needs mode FULL to publish messages")
    here, elsewhere = session.hub.topics.route(packet.topic, packet.key)
    for draft in packet.drafts:
        session.check_draft(draft)
    copies = (len(here) + len(elsewhere)) * len(packet.drafts)
    session.check_copies(copies)
    request.message_count = copies
    left = len(packet.drafts) * (bool(here) + bool(elsewhere))
    failure: FlyballError | None = None

    def stored(messages: Sequence[Message], error: FlyballError | None) -> None:
        nonlocal left, failure
        left -= 1
        failure = failure or error
        if left:
            return
        if failure is not None:
            session.refuse(request, failure)
        else:
            session.reply(request, wire.Count(request.packet_id, copies))

    def stored_there(token: int, outcome: int) -> None:
        stored((), _failure_of(outcome))

    if not copies:
        session.reply(request, wire.Count(request.packet_id, 0))
        return
    if not broker.has_ids_for(len(here) * len(packet.drafts)):
        session.refuse(request, StoreUnavailable(NO_IDS))
        return
    now_us = broker.now_us()
    origin = write_origin(packet.topic, packet.key)
    targets = [working.queue.id for working in here]
    for draft in packet.drafts:
        request.size_bytes += len(draft.body)
        published = _as_published(session, draft, origin, now_us)
        if targets:
            broker.put(published, targets, stored)
        if elsewhere:
            # Until it is answered: it may wait for other nodes.
            session.reserve(request, len(draft.body))
            session.hub.peering.put(elsewhere, _content_of(published, draft), stored_there, 0, owner=session)


def _content_of(draft: Draft, sent: wire.WireDraft) -> Content:
    return Content(
        draft.body,
        draft.properties,
        draft.origin,
        draft.persistent,
        draft.priority,
        sent.ttl_ms * 1000 if sent.ttl_ms > 0 else None,
        draft.sender,
        None,
        draft.context,
    )


def _failure_of(outcome: int) -> FlyballError | None:
    if outcome == Outcome.UNKNOWN:
        return StoreUnavailable("another node has not answered: whether all subscribers get the message is unknown")
    if outcome == Outcome.FULL:
        return InvalidBody("a subscriber's queue is full")
    return None


def _as_published(session: TelestoSession, draft: wire.WireDraft, origin: bytes, now_us: int) -> Draft:
    """Return the message as one that came through the topic's exchange, whatever protocol reads it."""
    context = draft.context or None
    shown = Message(0, 0, b"", session.client_id, None, context, draft.priority, now_us)
    shown.properties, shown.persistent = draft.properties, draft.persistent
    _, properties = present(shown, "")
    expires_us = now_us + draft.ttl_ms * 1000 if draft.ttl_ms > 0 else None
    return Draft(
        draft.body, session.client_id, None, context, draft.priority, expires_us, properties, draft.persistent, origin
    )


def subscribe(session: TelestoSession, packet: wire.Subscribe, request: TelestoRequest) -> None:
    request.kind = Kind.CREATE_QUEUE
    session.hold()
    session.hub.spawn(_subscribe(session, packet, request), session)


async def _subscribe(session: TelestoSession, packet: wire.Subscribe, request: TelestoRequest) -> None:
    hub = session.hub
    try:
        queue_id = await hub.topics.subscribe(packet.topic, packet.subscription, packet.pattern, session)
        # Whoever hears of the subscription may publish at any node.
        await hub.peering.followed()
    except TopicNotFound as error:
        session.refuse(request, error)
    except RequestError as error:
        session.refuse(request, Refusal(wire.ErrorCode.COMMAND_REFUSED, str(error)))
    except FlyballError as error:
        session.refuse(request, error)
    else:
        request.queue_id = queue_id
        if not packet.subscription:
            session.subscriptions.add(queue_id)
        session.reply(request, wire.Subscribed(request.packet_id, queue_id))
    if session.is_over:
        # It went while the queue was made for it.
        hub.topics.owner_gone(session)
    session.release()
