"""Directs clients of clustered queues to the node that the leader chose, those of ordinary queues to their owner."""

from __future__ import annotations

import uuid

from flyball.broker.cluster.agent import Agent
from flyball.broker.cluster.names import cluster_key
from flyball.broker.cluster.sessions import is_session_of
from flyball.broker.core.placement import Movable, NoPlaceYet, Place, PlaceRequest
from flyball.broker.node.listeners import advertised
from flyball.broker.node.name import node_name
from flyball.errors import ClusterError, FlyballError, QueueNotFound

RETRY_S = 0.5


class DomainPlacement:
    """Placement of a node that belongs to a domain."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._node = agent.node

    async def place(self, request: PlaceRequest) -> Place | NoPlaceYet:
        if cluster_key(request.vhost, request.queue_name) not in self._node.definitions.of("cluster"):
            return self._owner(request)
        try:
            answer = await self._agent.ask_leader(
                "cluster.place",
                vhost=request.vhost,
                name=request.queue_name,
                role=request.role.name.lower(),
                session_id=request.session_id,
                avoid=request.avoid,
                user=request.client_name,
                arrives=request.arrives,
            )
        except ClusterError as error:
            return NoPlaceYet(RETRY_S, str(error))
        if "retry_s" in answer:
            return NoPlaceYet(answer["retry_s"], answer["reason"])
        return Place(answer["node"], answer["queue_id"], answer["session_id"], answer["addresses"])

    def arrived(self, session_id: str, connection: Movable) -> None:
        self._agent.sessions.arrived(session_id, connection)

    def left(self, session_id: str, connection: Movable, *, orderly: bool) -> None:
        if self._agent.sessions.left(session_id, connection) and orderly:
            self._node.hub.spawn(self.ended(session_id, connection.user_name))

    async def ended(self, session_id: str, user_name: str) -> None:
        if not is_session_of(session_id, user_name):
            return
        try:
            await self._agent.ask_leader("cluster.left", session_id=session_id)
        except FlyballError:
            # The next report contains it as well.
            return

    def _owner(self, request: PlaceRequest) -> Place | NoPlaceYet:
        """Return the owner of an ordinary queue. Raises QueueNotFound."""
        vhost, name = request.vhost, request.queue_name
        session_id = request.session_id or uuid.uuid4().hex
        state = self._node.hub.broker.engine.find_queue(name, vhost)
        if state is not None:
            addresses = advertised(self._node.addresses, self._node.settings)
            return Place(node_name(self._node.settings), state.queue.id, session_id, addresses)
        remote = self._node.topology.directory.find(vhost, name)
        if remote is None:
            raise QueueNotFound(name, vhost)
        node = self._node.membership.node(remote.owner)
        if node is None or not node.is_live:
            return NoPlaceYet(RETRY_S, f"the node of queue '{name}' is down: another node takes it over")
        return Place(node.name, remote.queue.id, session_id, node.addresses)
