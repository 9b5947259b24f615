"""A node's side of the domain: it reports to its peers, asks the leader, and carries out the leader's commands.

Decisions are made by the leader; see `leader`. Nodes send each other the commands of the table below.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from flyball.broker.cluster.balancer import Balancer
from flyball.broker.cluster.capacity_models import CapacityModels
from flyball.broker.cluster.members import Members
from flyball.broker.cluster.overview import Overview
from flyball.broker.cluster.sessions import Sessions
from flyball.broker.node.node import Node
from flyball.broker.store.registry import NodeRecord
from flyball.errors import ClusterError, FlyballError

log = logging.getLogger(__name__)

# How long a caller waits until the address of a node is known.
ADDRESS_S = 3.0

# How long a caller waits for a leader to be elected.
LEADERLESS_S = 10.0

# Default time limit of a command that is sent to another node.
ANSWER_S = 10.0

# Largest number of ordinary queues in a node's report.
MAX_QUEUES_REPORTED = 1000

Command = Callable[..., Awaitable[Any]]


class Agent:
    """Runs on every node of a domain."""

    def __init__(self, node: Node, stop: asyncio.Event) -> None:
        """`stop` is set when the domain releases this node."""
        self.node = node
        self.overview = Overview(node, CapacityModels(node.models))
        self.members = Members(node, self.ask)
        self.sessions = Sessions(node)
        self.balancer = Balancer(node, self.members, self.overview, self.ask)
        # Whether this node leads the domain.
        self.leads = False
        self._stop = stop
        self._nodes_news = asyncio.Event()
        commands: dict[str, Command] = {
            "member.add": self.members.add,
            "member.remove": self.members.remove,
            "member.delete": self.members.delete,
            "member.give": self.balancer.give,
            "queue.release": self.members.release,
            "queue.adopt": self.members.adopt,
            "session.move": self.sessions.move,
            "session.tell": self.sessions.rows,
            "node.stop": self._let_go,
        }
        node.peers.commands.update(commands)
        node.membership.report_with(self.report)
        node.membership.on_nodes.append(self._note_nodes)

    def report(self) -> Mapping[str, Any]:
        """Return the report that goes to the peers with every renewal of the lease, as JSON values."""
        queues = (state for state in self.node.hub.broker.engine.queues if not state.queue.member)
        return {
            "leads": self.leads,
            "capacity": self.node.settings.capacity,
            "low_on_disk": self.node.disk is not None and self.node.disk.is_low,
            "members": {
                str(state.queue.id): {
                    "ready": len(state),
                    "unacked": state.unacked_count,
                    "idle": state.idle_consumers,
                    "consumers": len(state.consumers),
                    "given": state.handed_over,
                }
                for state in self.members.local()
            },
            "clients": self.sessions.counts(),
            "queues": {
                str(state.queue.id): [len(state), state.unacked_count, len(state.consumers)]
                for state in itertools.islice(queues, MAX_QUEUES_REPORTED)
            },
            "handing": list(self.members.handing),
        }

    def answer_while_leading(self, commands: Mapping[str, Command]) -> None:
        """Register commands that any node may send and only the leader carries out."""
        for name, command in commands.items():
            self.node.peers.commands[name] = partial(self._while_leading, command)

    async def _while_leading(self, command: Command, **arguments: Any) -> Any:
        # The caller knows the leader from a report, which is up to one renewal old.
        if not self.leads:
            raise ClusterError("this node is not the leader: retry")
        return await command(**arguments)

    @property
    def leader(self) -> NodeRecord | None:
        """Return the leader, as far as this node knows."""
        for node in self.node.membership.nodes:
            if node.is_live and node.report.get("leads"):
                return node
        return None

    async def ask(self, node_id: int, command: str, *, time_limit_s: float = ANSWER_S, **arguments: Any) -> Any:
        """Run a command on a node, which may be this one. Raises FlyballError.

        A command that has started is finished even if the caller is cancelled, here as on other nodes.
        """
        if node_id == self.node.membership.node_id:
            return await self._carry_out(command, arguments)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ADDRESS_S):
                # A node that has just joined has published its address, but this node may not have read it yet.
                while not self.node.peers.can_reach(node_id):
                    await self.watch_nodes()
        return await self.node.peers.request(node_id, command, arguments, time_limit_s)

    async def _carry_out(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Run a command of this node in a separate task.

        A leader that stands down cancels the commands it has sent. Cancelled halfway, a consumer being moved would be
        left without a queue, and a released queue would lose its transient messages.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def fail(error: Exception) -> None:
            answer.set_exception(error)
            # Mark the exception as retrieved: a cancelled caller never awaits it.
            answer.exception()

        async def work() -> None:
            try:
                result = await self.node.peers.commands[name](**arguments)
            except Exception as error:
                if not answer.done():
                    fail(error)
                elif isinstance(error, FlyballError):
                    log.info("command %s failed after its caller was cancelled: %s", name, error)
                else:
                    raise
            else:
                if not answer.done():
                    answer.set_result(result)

        def ended(_: object) -> None:
            if not answer.done():
                fail(ClusterError(f"{name} was cancelled: the node is stopping"))

        task = self.node.hub.spawn(work())
        if task is None:
            raise ClusterError(f"{name} was refused: the node is stopping")
        task.add_done_callback(ended)
        return await answer

    async def ask_leader(self, command: str, *, time_limit_s: float = ANSWER_S, **arguments: Any) -> Any:
        """Run a command on the leader. Raises ClusterError if no leader is elected within LEADERLESS_S."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEADERLESS_S):
                while not self.leads and self.leader is None:
                    await self.watch_nodes()
        leader_id = self.node.membership.node_id if self.leads else self.leader.id if self.leader else None
        if leader_id is None:
            raise ClusterError("the domain has no leader: retry in a few seconds")
        return await self.ask(leader_id, command, time_limit_s=time_limit_s, **arguments)

    async def watch_nodes(self) -> None:
        """Wait for the next update of the peers' records."""
        await self._nodes_news.wait()

    def _note_nodes(self, nodes: object) -> None:
        self._nodes_news.set()
        self._nodes_news.clear()

    async def _let_go(self) -> None:
        self._stop.set()
