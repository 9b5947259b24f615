"""Who uses the members of clustered queues, as the leader hears it from the nodes.

A node's report, which all nodes read with every renewal, has only the numbers: there may be many thousand clients.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from flyball.broker.cluster.agent import Agent
from flyball.broker.cluster.decisions import SessionReport
from flyball.broker.cluster.options import Role
from flyball.broker.cluster.sessions import MAX_SESSIONS_PER_REPORT, SessionRow
from flyball.broker.store.registry import NodeRecord
from flyball.errors import FlyballError

# A node that has not answered by then is asked again in the next round.
ANSWER_S = 0.5


class SessionReports:
    """What nodes have told of their clients. Of one that has never answered, the numbers in its report count."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        # By node and epoch.
        self._told: dict[tuple[int, int], list[SessionRow]] = {}

    async def ask_all(self) -> None:
        """Ask all nodes for their sessions. What one told before holds until it answers again, or is gone."""
        nodes = self._agent.overview.live
        here = {(node.id, node.epoch) for node in nodes}
        self._told = {place: told for place, told in self._told.items() if place in here}
        await asyncio.gather(*(self._ask(node) for node in nodes))

    def forget(self) -> None:
        """Another term: who has told something long ago is asked anew."""
        self._told.clear()

    def sessions(self, node: NodeRecord) -> Iterator[tuple[int, SessionReport]]:
        """Yield the sessions whose clients are connected to a node, each with the member that serves it."""
        told = self._told.get((node.id, node.epoch))
        if told is not None:
            for session_id, role, queue_id, rate_per_s in told:
                yield queue_id, SessionReport(session_id, Role(role), rate_per_s, entry=node.id)
            return
        for queue_id, counts in node.report.get("clients", {}).items():
            for role, count in counts.items():
                for number in range(count):
                    stand_in = f"unknown.{node.id}.{queue_id}.{role}.{number}"
                    yield int(queue_id), SessionReport(stand_in, Role(role), entry=node.id)

    def entry_of(self, session_id: str) -> int | None:
        """Return the node that the client of a session is connected to, if it has told of it."""
        for (node_id, _), told in self._told.items():
            if any(found[0] == session_id for found in told):
                return node_id
        return None

    async def _ask(self, node: NodeRecord) -> None:
        agent = self._agent
        if node.id != agent.overview.own_id and not agent.node.peers.can_reach(node.id):
            return
        told: list[SessionRow] = []
        with contextlib.suppress(FlyballError):
            while len(told) % MAX_SESSIONS_PER_REPORT == 0:
                part = await agent.ask(node.id, "session.tell", first=len(told), time_limit_s=ANSWER_S)
                told += part
                if not part:
                    break
            self._told[node.id, node.epoch] = told
