"""What runs on every node of a domain for its clustered queues: it reports, places, exchanges messages and obeys.

Decisions come from whoever leads; see `leader`. What one node asks of another is a command in the table below.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from flyball.cluster.domain import ClusterOptions, cluster_key
from flyball.cluster.members import Members
from flyball.cluster.sessions import Sessions
from flyball.cluster.transfer import MOST_AT_ONCE, MemberLoad, share, surplus, whom_to_ask
from flyball.engine.queue import WorkingQueue
from flyball.errors import ClusterError, FlyballError, StoreError
from flyball.server.node import Node
from flyball.store.registry import NodeRecord

log = logging.getLogger(__name__)

EXCHANGE_S = 0.1
"""How often members look whether they should exchange messages."""

LEADERLESS_S = 10.0
"""So long somebody who needs the leader waits until there is one."""

HUNGRY_ROUNDS = 3
"""So often in a row a member must find itself empty, with consumers that wait, before it asks others."""

MOST_QUEUES_TOLD = 1000
"""Of so many ordinary queues a node tells the others."""

Command = Callable[..., Awaitable[Any]]


class Agent:
    """One node's part in the domain."""

    def __init__(self, node: Node, *, capacity: float) -> None:
        """`capacity` is what the node can bear, compared with others."""
        self.node = node
        self.members = Members(node)
        self.sessions = Sessions(node)
        self.leads = False
        """Whether this node decides for the domain."""
        self.on_let_go: Callable[[], None] = lambda: None
        """Called when the domain does not need the node any more."""
        self._capacity = capacity
        self._hungry_rounds: dict[int, int] = {}
        self._nodes_news = asyncio.Event()
        self._busy: set[int] = set()
        """The members whose messages are being handed over."""
        self.commands: dict[str, Command] = {
            "member.add": self.members.add,
            "member.remove": self.members.remove,
            "member.delete": self.members.delete,
            "member.give": self._give,
            "queue.release": self.members.release,
            "session.move": self.sessions.move,
            "node.stop": self._let_go,
        }
        node.peers.commands.update(self.commands)
        node.membership.report = self.report
        node.membership.on_nodes.append(self._hear_of_nodes)

    # What others know of this node

    def report(self) -> Mapping[str, Any]:
        """Return what this node tells the others with every renewal, as JSON can say it."""
        members: dict[str, dict[str, Any]] = {}
        for working in self.members.local():
            members[str(working.queue.id)] = {
                "ready": len(working),
                "unacked": len(working.out),
                "idle": working.idle_consumers,
                "consumers": len(working.consumers),
            }
        ordinary = [working for working in self.node.hub.broker.engine.queues if not working.queue.member]
        return {
            "leads": self.leads,
            "capacity": self._capacity,
            "members": members,
            "sessions": [[session.id, session.role, session.queue_id] for session in self.sessions.all()],
            "queues": {
                str(working.queue.id): [len(working), len(working.out), len(working.consumers)]
                for working in ordinary[:MOST_QUEUES_TOLD]
            },
            "given": self.members.given,
            "handing": list(self.members.handing),
        }

    @property
    def leader(self) -> NodeRecord | None:
        """The node that leads, as far as is known."""
        for node in self.node.membership.nodes:
            if node.is_live and node.report.get("leads"):
                return node
        return None

    async def ask(self, node_id: int, command: str, **arguments: Any) -> Any:
        """Let a node, which may be this one, carry out a command of the table. Raises FlyballError."""
        if node_id == self.node.membership.node_id:
            return await self.node.peers.commands[command](**arguments)
        return await self.node.peers.request(node_id, command, arguments)

    async def ask_leader(self, command: str, **arguments: Any) -> Any:
        """Let the leader carry out a command. Raises ClusterError if there is none for a while."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEADERLESS_S):
                while not self.leads and self.leader is None:
                    await self._nodes_news.wait()
        leader_id = self.node.membership.node_id if self.leads else self.leader.id if self.leader else None
        if leader_id is None:
            raise ClusterError("the domain has no leader at present: try again in a few seconds")
        return await self.ask(leader_id, command, **arguments)

    def _hear_of_nodes(self, nodes: object) -> None:
        self._nodes_news.set()
        self._nodes_news.clear()

    async def _let_go(self) -> None:
        self.on_let_go()

    # Clustered queues

    def definition(self, vhost: str, name: str) -> Mapping[str, Any] | None:
        """Return how a clustered queue was declared."""
        return self.node.definitions.of("cluster").get(cluster_key(vhost, name))

    async def run(self) -> None:
        """Let members exchange messages until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(EXCHANGE_S)
                for working in self.members.local():
                    if working.queue.id not in self._busy:
                        self._exchange(working, tasks)

    def _exchange(self, working: WorkingQueue, tasks: asyncio.TaskGroup) -> None:
        """Hand over what a member holds too much of, or ask for messages if its consumers wait in vain."""
        queue = working.queue
        definition = self.definition(queue.vhost, queue.name)
        if definition is None:
            return
        own = self._load_of(working, definition)
        others = self._others(working, definition)
        may_hold = ClusterOptions.from_dict(definition["options"]).surplus
        for handover in surplus(own, others, may_hold):
            self._busy.add(queue.id)
            tasks.create_task(self._hand_over(queue.id, handover.destination, handover.count))
            return
        is_hungry = not own.ready and own.idle > 0
        rounds = self._hungry_rounds[queue.id] = self._hungry_rounds.get(queue.id, 0) + 1 if is_hungry else 0
        if rounds >= HUNGRY_ROUNDS:
            asked = whom_to_ask(own, others)
            remote = None if asked is None else self.node.topology.directory.get(asked.queue_id)
            if remote is not None:
                self._hungry_rounds[queue.id] = 0
                self._busy.add(queue.id)
                tasks.create_task(self._ask_for_messages(remote.owner, remote.queue.id, queue.id))

    async def _hand_over(self, source_id: int, destination_id: int, count: int) -> None:
        try:
            await self.members.give(source_id, destination_id, count)
        except FlyballError as error:
            log.warning("messages could not be handed to another member: %s", error)
        finally:
            self._busy.discard(source_id)

    async def _ask_for_messages(self, node_id: int, source_id: int, queue_id: int) -> None:
        try:
            await self.ask(node_id, "member.give", source=source_id, destination=queue_id, most=MOST_AT_ONCE)
        except FlyballError as error:
            log.info("another member could not be asked for messages: %s", error)
        finally:
            self._busy.discard(queue_id)

    async def _give(self, source: int, destination: int, most: int) -> int:
        """Another member asks for messages of one of ours."""
        working = self.node.hub.broker.engine.find_working(source)
        if working is None or source in self._busy:
            return 0
        definition = self.definition(working.queue.vhost, working.queue.name)
        if definition is None:
            return 0
        self._busy.add(source)
        try:
            return await self.members.give(source, destination, share(self._load_of(working, definition), most))
        except StoreError as error:
            raise ClusterError(f"no messages were handed over: {error}") from error
        finally:
            self._busy.discard(source)

    def _load_of(self, working: WorkingQueue, definition: Mapping[str, Any]) -> MemberLoad:
        queue_id = working.queue.id
        is_marked = queue_id in definition.get("marked", ())
        return MemberLoad(queue_id, len(working), working.idle_consumers, is_marked, len(working.consumers))

    def _others(self, working: WorkingQueue, definition: Mapping[str, Any]) -> list[MemberLoad]:
        """Return what the other members of the same clustered queue, on live nodes, last told of themselves."""
        marked = definition.get("marked", ())
        loads: list[MemberLoad] = []
        for remote in self.node.topology.directory.members(working.queue.vhost, working.queue.name):
            owner = self.node.membership.node(remote.owner)
            told = None if owner is None or not owner.is_live else owner.report.get("members", {})
            found = None if told is None else told.get(str(remote.queue.id))
            if found is not None:
                queue_id = remote.queue.id
                is_marked = queue_id in marked
                loads.append(MemberLoad(queue_id, found["ready"], found["idle"], is_marked, found["consumers"]))
        return loads
