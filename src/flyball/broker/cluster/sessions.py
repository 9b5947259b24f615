"""The clients of clustered queues that are connected to this node: placed ones and plain ones.

A placed client has a session id that holds its role and clustered queue; a plain one is recognized by its operations.
Both can be moved: a placed client is asked to reconnect, a plain one is transparently served by another member.
"""

from __future__ import annotations

import hashlib
import math
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from flyball.broker.cluster.names import cluster_key
from flyball.broker.cluster.options import Role
from flyball.broker.cluster.overview import key_of
from flyball.broker.core.placement import Movable
from flyball.broker.core.placement import Role as WireRole
from flyball.broker.engine.access import Action
from flyball.broker.node.node import Node
from flyball.broker.protocols.amqp.consumers import AmqpConsumer
from flyball.broker.protocols.amqp.session import AmqpSession
from flyball.broker.protocols.requests import RequestSession
from flyball.model import Queue

# Minimum interval over which a rate is computed.
RATE_S = 0.5

# How long a client that is asked to move may take to reach a safe point.
MOVE_S = 10.0


# Maximum number of sessions in one answer.
MAX_SESSIONS_PER_REPORT = 1000

# How long session counts are cached.
COUNTED_S = 1.0

_ACTIONS = {Role.PRODUCER: Action.WRITE, Role.CONSUMER: Action.READ}

# A session in a report: id, role, the member that serves it, and its rate.
SessionRow = tuple[str, str, int, float | None]


@dataclass(slots=True)
class LocalSession:
    """One producer or consumer of a clustered queue, and the member that serves it."""

    id: str
    role: Role
    queue_id: int
    # Messages per second that it published or received lately, where that is counted.
    rate_per_s: float | None = None


def new_session_id(role: Role, cluster: str, user: str) -> str:
    """Return a session id for a client, from which every node can read its role, clustered queue and user."""
    return f"{role}.{uuid.uuid4().hex}{_mark_of(user)}.{cluster}"


def is_session_of(session_id: str, user: str) -> bool:
    """Return whether a session id belongs to this user: others may have seen it, but cannot use it."""
    return session_id.partition(".")[2].partition(".")[0].endswith(_mark_of(user))


def _mark_of(user: str) -> str:
    """Return a digest of the user's name for session ids, so that ids do not reveal it."""
    return hashlib.sha256(user.encode(errors="surrogatepass")).hexdigest()[:32]


def read_session_id(session_id: str) -> tuple[Role, str] | None:
    """Return the role and clustered queue of a session id; None if it is not one."""
    role, _, rest = session_id.partition(".")
    _, dot, cluster = rest.partition(".")
    return (Role(role), cluster) if dot and role in tuple(Role) else None


class Rates:
    """Message rates of sessions, from monotonic counters."""

    def __init__(self, now: Callable[[], float] = lambda: time.monotonic()) -> None:
        # Looked up at each call: simulations replace the clock.
        self._now = now
        # By session: time of the last sample, counter at that time, and the rate up to then.
        self._seen: dict[str, tuple[float, int, float]] = {}

    def of(self, session_id: str, count: int) -> float | None:
        """Return messages per second since the last sample; None for the first one."""
        now_s = self._now()
        seen_s, seen_count, rate_per_s = self._seen.get(session_id, (now_s, count, -1.0))
        if now_s - seen_s >= RATE_S:
            rate_per_s = max(0, count - seen_count) / (now_s - seen_s)
            seen_s, seen_count = now_s, count
        self._seen[session_id] = (seen_s, seen_count, rate_per_s)
        return None if rate_per_s < 0 else rate_per_s

    def keep(self, session_ids: Collection[str]) -> None:
        """Forget all other sessions."""
        for session_id in [session_id for session_id in self._seen if session_id not in session_ids]:
            del self._seen[session_id]


@dataclass(slots=True)
class _Plain:
    """A client without a placement that uses a member directly, in one role."""

    id: str
    connection: RequestSession
    role: WireRole
    queue: Queue
    # Messages so far.
    count: int


class Sessions:
    """All sessions of clustered queues on one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        # Placed clients by session id, with role and clustered queue.
        self._placed: dict[str, tuple[Movable, Role, str]] = {}
        self._snapshot: list[SessionRow] = []
        self._counts: dict[str, dict[str, int]] = {}
        self._counted_s = -math.inf
        self._rates = Rates()

    def arrived(self, session_id: str, connection: Movable) -> None:
        known = read_session_id(session_id)
        if known is not None and is_session_of(session_id, connection.user_name):
            self._placed[session_id] = connection, *known

    def left(self, session_id: str, connection: Movable) -> bool:
        """Return whether the session was served through this connection."""
        placed = self._placed.get(session_id)
        if placed is None or placed[0] is not connection:
            return False
        del self._placed[session_id]
        return True

    def all(self) -> list[LocalSession]:
        """Return all sessions through this node."""
        found: list[LocalSession] = []
        # Shortcut: without clustered queues there is nothing to find, and searching all channels and routes is slow.
        if self._node.definitions.of("cluster"):
            found += [*self._placed_sessions(), *self._consumers(), *self._producers()]
            for plain in self._plain():
                rate_per_s = self._rates.of(plain.id, plain.count)
                found.append(LocalSession(plain.id, Role[plain.role.name], plain.queue.id, rate_per_s))
        self._rates.keep({session.id for session in found})
        self._counts = {}
        for session in found:
            counts = self._counts.setdefault(str(session.queue_id), dict.fromkeys(Role, 0))
            counts[session.role] += 1
        self._counted_s = time.monotonic()
        return found

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the sessions of each member through this node, by role. Cached for COUNTED_S."""
        if time.monotonic() - self._counted_s > COUNTED_S:
            self.all()
        return self._counts

    async def rows(self, first: int | None = None) -> list[SessionRow]:
        """Return the sessions of a report: a sample, or with `first` one page of all."""
        if not first:
            now = [(session.id, session.role.value, session.queue_id, session.rate_per_s) for session in self.all()]
            if first is None:
                return now[:MAX_SESSIONS_PER_REPORT]
            self._snapshot = now
        return self._snapshot[first : first + MAX_SESSIONS_PER_REPORT]

    async def move(self, session_id: str, queue_id: int, node: str, addresses: dict[str, str]) -> bool:
        """Move a session to another member, whose node has these addresses; return whether the move has started."""
        placed = self._placed.get(session_id)
        if placed is not None:
            address = addresses.get(placed[0].protocol)
            if address is None:
                return False
            placed[0].ask_to_move(session_id, node, address, queue_id, MOVE_S)
            return True
        for found_id, consumer in self._consumers_by_id():
            if found_id == session_id:
                return await self._re_home(consumer, queue_id)
        for session, vhost, name in self._producers_by_id():
            if self._producer_id(session, vhost, name) == session_id:
                session.set_home(vhost, name, queue_id)
                return True
        for plain in self._plain():
            if plain.id == session_id:
                return self._send_home(plain, queue_id)
        return False

    def _send_home(self, plain: _Plain, queue_id: int) -> bool:
        """Serve a plain client from another member."""
        if self._member(queue_id) is None:
            return False
        plain.connection.member_routes.move(plain.queue.id, plain.role, queue_id)
        return True

    # Internals

    def _plain(self) -> Iterator[_Plain]:
        """Yield the plain clients, each once per clustered queue and role."""
        for connection in list(self._node.hub.connections):
            if not isinstance(connection, RequestSession):
                continue
            found: dict[str, _Plain] = {}
            stem = f"{connection.PROTOCOL.name.lower()}.{self._node.membership.node_id}.{connection.number}"
            connection.member_routes.forget_gone()
            for (queue_id, role), count in connection.member_routes.counts.items():
                queue = self._member(queue_id)
                if queue is not None:
                    session_id = f"{stem}.{role.name.lower()}.{key_of(queue)}"
                    found[session_id] = _Plain(session_id, connection, role, queue, count)
            yield from found.values()

    def _member(self, queue_id: int) -> Queue | None:
        """Return a member, on this node or another."""
        state = self._node.hub.broker.engine.find_queue_by_id(queue_id)
        found = self._node.topology.directory.get(queue_id) if state is None else state
        return found.queue if found is not None and found.queue.member else None

    def _placed_sessions(self) -> Iterator[LocalSession]:
        members = self._members_here()
        for session_id, (connection, role, cluster) in self._placed.items():
            # The id comes from the client: look it up, and do not trust its parts.
            queue = members.get(cluster)
            # A client without permission must not make its queue grow.
            if queue is not None and connection.may(_ACTIONS[role], queue.vhost, queue.name):
                yield LocalSession(session_id, role, queue.id, self._rates.of(session_id, connection.requests))

    def _members_here(self) -> dict[str, Queue]:
        """Return the members that this node serves, by clustered queue."""
        found: dict[str, Queue] = {}
        for key, definition in self._node.definitions.of("cluster").items():
            state = self._node.hub.broker.engine.find_queue(definition["name"], definition["vhost"])
            if state is not None and state.queue.member:
                found[key] = state.queue
        return found

    def _consumers(self) -> Iterator[LocalSession]:
        for session_id, consumer in self._consumers_by_id():
            deliveries = consumer.deliveries
            count = deliveries.last_tag // len(deliveries.consumers)
            yield LocalSession(session_id, Role.CONSUMER, consumer.queue.id, self._rates.of(session_id, count))

    def _consumers_by_id(self) -> Iterator[tuple[str, AmqpConsumer]]:
        for session in self._amqp_sessions():
            placed = _placed_as(session)
            for channel in session.channels:
                for consumer in channel.deliveries.consumers.values():
                    queue = self._member(consumer.queue.id)
                    if queue is not None and (Role.CONSUMER, key_of(queue)) not in placed:
                        yield f"{self._plain_id(session)}.{channel.number}.{consumer.tag}", consumer

    def _producers(self) -> Iterator[LocalSession]:
        for session, vhost, name in self._producers_by_id():
            found = self._node.amqp.queues.locate(vhost, name, session.homes)
            if found is not None:
                session_id = self._producer_id(session, vhost, name)
                rate_per_s = self._publishing_rate(session_id, session)
                yield LocalSession(session_id, Role.PRODUCER, found.queue.id, rate_per_s)

    def _producers_by_id(self) -> Iterator[tuple[AmqpSession, str, str]]:
        """Yield the connections that published to a clustered queue since its routes were cached."""
        for connection in self._amqp_sessions():
            queues: list[Queue] = []
            for route in connection.routes.entries.values():
                queues += [state.queue for state in route.targets]
                queues += [remote.queue for remote in route.elsewhere]
            placed = _placed_as(connection)
            for vhost, name in {(queue.vhost, queue.name) for queue in queues if queue.member}:
                if (Role.PRODUCER, cluster_key(vhost, name)) not in placed:
                    yield connection, vhost, name

    def _amqp_sessions(self) -> list[AmqpSession]:
        return [connection for connection in self._node.hub.connections if isinstance(connection, AmqpSession)]

    async def _re_home(self, consumer: AmqpConsumer, queue_id: int) -> bool:
        """Continue a consumer on another member, behind its connection."""
        target = self._node.amqp.queues.get(queue_id)
        return target is not None and await consumer.move(target.queue, MOVE_S)

    def _publishing_rate(self, session_id: str, session: AmqpSession) -> float | None:
        """Return the publish rate of a connection, counted by its confirms: without confirms nothing is counted."""
        publishers = [channel.publisher for channel in session.channels]
        if not any(publisher.is_confirming for publisher in publishers):
            return None
        return self._rates.of(session_id, sum(publisher.published for publisher in publishers))

    def _plain_id(self, session: AmqpSession) -> str:
        """Return an id that is unique among the connections of the domain."""
        return f"amqp.{self._node.membership.node_id}.{id(session):x}"

    def _producer_id(self, session: AmqpSession, vhost: str, name: str) -> str:
        return f"{self._plain_id(session)}.{cluster_key(vhost, name)}"


def _placed_as(session: AmqpSession) -> set[tuple[Role, str] | None]:
    """Return role and clustered queue that a connection was placed for: it is not counted twice."""
    ids = [placed.session_id for channel in session.channels for placed in channel.placed.values()]
    return {read_session_id(session_id) for session_id in ids if is_session_of(session_id, session.user.name)}
