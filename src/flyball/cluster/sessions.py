"""Who uses the members of clustered queues through this node: clients that were placed, and plain AMQP clients.

A placed client carries a session id that says what it is and of which clustered queue; a plain one is found by what
its channels do. Both can be moved: the former is asked to go, the latter is served from elsewhere without noticing.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from flyball.cluster.domain import Role, cluster_key, split_key
from flyball.model import Queue
from flyball.server.amqp.channel import Channel
from flyball.server.amqp.consuming import AmqpConsumer
from flyball.server.amqp.session import AmqpSession
from flyball.server.node import Node
from flyball.server.placement import Movable

RATE_S = 0.5
"""Over so long at least a rate is taken."""

MOVE_S = 10.0
"""So long a client that is asked to move may take until it is at a safe point."""


@dataclass(slots=True)
class Session:
    """One producer or consumer of a clustered queue, and the member that serves it."""

    id: str
    role: Role
    queue_id: int
    rate_per_s: float | None = None
    """Messages that it published or was sent lately, where that is counted."""


def new_session_id(role: Role, cluster: str) -> str:
    """Return an id for a client that is placed, from which every node can tell what it is."""
    return f"{role}.{uuid.uuid4().hex}.{cluster}"


def read_session_id(session_id: str) -> tuple[Role, str] | None:
    """Return the role and the clustered queue of a session id; None if it is none of ours."""
    role, _, rest = session_id.partition(".")
    _, dot, cluster = rest.partition(".")
    return (Role(role), cluster) if dot and role in tuple(Role) else None


class Rates:
    """How many messages sessions deal with, from counters that only rise."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen: dict[str, tuple[float, int, float]] = {}
        """By session: when it was looked at last, its counter then, and the rate up to then."""

    def of(self, session_id: str, count: int) -> float | None:
        """Return messages a second since it was looked at; None before anything can be said."""
        now_s = self._now()
        seen_s, seen_count, rate_per_s = self._seen.get(session_id, (now_s, count, -1.0))
        if now_s - seen_s >= RATE_S:
            rate_per_s = max(0, count - seen_count) / (now_s - seen_s)
            seen_s, seen_count = now_s, count
        self._seen[session_id] = (seen_s, seen_count, rate_per_s)
        return None if rate_per_s < 0 else rate_per_s

    def keep(self, session_ids: Collection[str]) -> None:
        """Forget all others."""
        for session_id in [session_id for session_id in self._seen if session_id not in session_ids]:
            del self._seen[session_id]


class Sessions:
    """All sessions of clustered queues on one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._placed: dict[str, Movable] = {}
        self._rates = Rates()

    def arrived(self, session_id: str, connection: Movable) -> None:
        if read_session_id(session_id) is not None:
            self._placed[session_id] = connection

    def left(self, session_id: str, connection: Movable) -> None:
        if self._placed.get(session_id) is connection:
            del self._placed[session_id]

    def all(self) -> list[Session]:
        """Return everybody who uses a member through this node now."""
        found = [*self._placed_sessions(), *self._consumers(), *self._producers()]
        self._rates.keep({session.id for session in found})
        return found

    async def move(self, session_id: str, queue_id: int, node: str, addresses: dict[str, str]) -> bool:
        """Let a session be served by another member, whose node has these addresses; tell whether that has begun."""
        connection = self._placed.get(session_id)
        if connection is not None:
            address = addresses.get("telesto")
            if address is None:
                return False
            connection.ask_to_move(session_id, node, address, queue_id, MOVE_S)
            return True
        for found_id, consumer in self._consumers_by_id():
            if found_id == session_id:
                return await self._re_home(consumer, queue_id)
        for session, vhost, name in self._producers_by_id():
            if self._producer_id(session, vhost, name) == session_id:
                session.set_home(vhost, name, queue_id)
                return True
        return False

    # Inside

    def _placed_sessions(self) -> Iterator[Session]:
        for session_id, connection in self._placed.items():
            known = read_session_id(session_id)
            assert known is not None, "others are not kept"
            role, cluster = known
            vhost, name = split_key(cluster)
            working = self._node.hub.broker.engine.find_queue(name, vhost)
            if working is not None and working.queue.member:
                rate_per_s = self._rates.of(session_id, connection.requests)
                yield Session(session_id, role, working.queue.id, rate_per_s)

    def _consumers(self) -> Iterator[Session]:
        for session_id, consumer in self._consumers_by_id():
            deliveries = consumer.channel.deliveries
            count = deliveries.last_tag // len(deliveries.consumers)
            yield Session(session_id, Role.CONSUMER, consumer.queue.id, self._rates.of(session_id, count))

    def _consumers_by_id(self) -> Iterator[tuple[str, AmqpConsumer]]:
        for session, channel in self._channels():
            for consumer in channel.deliveries.consumers.values():
                if self._is_member(consumer.queue.id):
                    yield f"{self._plain_id(session)}.{channel.number}.{consumer.tag}", consumer

    def _producers(self) -> Iterator[Session]:
        for session, vhost, name in self._producers_by_id():
            queue_id = session.homes.get((vhost, name))
            if queue_id is None:
                local = self._node.hub.broker.engine.find_queue(name, vhost)
                remote = self._node.topology.directory.find(vhost, name)
                queue_id = local.queue.id if local is not None else remote.queue.id if remote is not None else 0
            if queue_id:
                session_id = self._producer_id(session, vhost, name)
                yield Session(session_id, Role.PRODUCER, queue_id, self._publishing_rate(session_id, session))

    def _producers_by_id(self) -> Iterator[tuple[AmqpSession, str, str]]:
        """Yield who has published to a clustered queue since its routes were found."""
        for connection in list(self._node.hub.connections):
            if not isinstance(connection, AmqpSession):
                continue
            queues: list[Queue] = []
            for route in connection.routes.values():
                queues += [working.queue for working in route.targets]
                queues += [remote.queue for remote in route.afar]
            for vhost, name in {(queue.vhost, queue.name) for queue in queues if queue.member}:
                yield connection, vhost, name

    def _channels(self) -> Iterator[tuple[AmqpSession, Channel]]:
        for connection in list(self._node.hub.connections):
            if isinstance(connection, AmqpSession):
                for channel in connection.channels:
                    yield connection, channel

    def _is_member(self, queue_id: int) -> bool:
        working = self._node.hub.broker.engine.find_working(queue_id)
        if working is not None:
            return working.queue.member
        remote = self._node.topology.directory.get(queue_id)
        return remote is not None and remote.queue.member

    async def _re_home(self, consumer: AmqpConsumer, queue_id: int) -> bool:
        """Let a consumer go on with another member behind its connection."""
        target = self._node.hub.broker.engine.find_working(queue_id) or self._node.topology.directory.get(queue_id)
        if target is None or self._node.afar is None:
            return False
        return await self._node.afar.move(consumer, target, MOVE_S)

    def _publishing_rate(self, session_id: str, session: AmqpSession) -> float | None:
        """Return how much is published over a connection, as far as it is confirmed: others nobody counts."""
        publishers = [channel.publisher for channel in session.channels]
        if not any(publisher.is_confirming for publisher in publishers):
            return None
        return self._rates.of(session_id, sum(publisher.published for publisher in publishers))

    def _plain_id(self, session: AmqpSession) -> str:
        """Return what no other connection of the domain is called, as long as it lasts."""
        return f"amqp.{self._node.membership.node_id}.{id(session):x}"

    def _producer_id(self, session: AmqpSession, vhost: str, name: str) -> str:
        return f"{self._plain_id(session)}.{cluster_key(vhost, name)}"
