"""The sessions of clustered queues, as the nodes report them to the leader.

The regular report of a node, which all nodes read with every renewal, holds only counts: there may be thousands of
clients.
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

# Time limit of a node's answer; it is asked again in the next round.
ANSWER_S = 0.5


class SessionReports:
    """The latest session reports of the nodes. For a node that has not answered yet, the counts in its report are
    used.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        # By node and epoch.
        self._reported: dict[tuple[int, int], list[SessionRow]] = {}

    async def ask_all(self) -> None:
        """Ask all nodes for their sessions. The previous answer of a node is used until it answers again or is
        gone.
        """
        nodes = self._agent.overview.live
        here = {(node.id, node.epoch) for node in nodes}
        self._reported = {place: rows for place, rows in self._reported.items() if place in here}
        await asyncio.gather(*(self._ask(node) for node in nodes))

    def forget(self) -> None:
        """Start a new term without the old reports."""
        self._reported.clear()

    def sessions(self, node: NodeRecord) -> Iterator[tuple[int, SessionReport]]:
        """Yield the sessions whose clients are connected to a node, each with the member that serves it."""
        rows = self._reported.get((node.id, node.epoch))
        if rows is not None:
            for session_id, role, queue_id, rate_per_s in rows:
                yield queue_id, SessionReport(session_id, Role(role), rate_per_s, entry=node.id)
            return
        for queue_id, counts in node.report.get("clients", {}).items():
            for role, count in counts.items():
                for number in range(count):
                    stand_in = f"unknown.{node.id}.{queue_id}.{role}.{number}"
                    yield int(queue_id), SessionReport(stand_in, Role(role), entry=node.id)

    def entry_of(self, session_id: str) -> int | None:
        """Return the node that the client of a session is connected to, if it was reported."""
        for (node_id, _), rows in self._reported.items():
            if any(found[0] == session_id for found in rows):
                return node_id
        return None

    async def _ask(self, node: NodeRecord) -> None:
        agent = self._agent
        if node.id != agent.overview.own_id and not agent.node.peers.can_reach(node.id):
            return
        rows: list[SessionRow] = []
        with contextlib.suppress(FlyballError):
            while len(rows) % MAX_SESSIONS_PER_REPORT == 0:
                part = await agent.ask(node.id, "session.tell", first=len(rows), time_limit_s=ANSWER_S)
                rows += part
                if not part:
                    break
            self._reported[node.id, node.epoch] = rows
