"""Several nodes in one loop, with real sockets between them and a domain that is kept by hand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any

import aio_pika
import aio_pika.abc
import uvloop

from flyball.broker.core.authority import Authority
from flyball.broker.core.broker import Broker
from flyball.broker.core.definitions import Definitions
from flyball.broker.core.queues import Queues
from flyball.broker.core.topics import Topics
from flyball.broker.core.topology import Topology
from flyball.broker.peering.domain import Domain
from flyball.broker.peering.link import Identity, LinkSession, Peers
from flyball.broker.peering.link.followers import Followers
from flyball.broker.peering.link.ownership import Ownership
from flyball.broker.peering.remote import Remotes
from flyball.broker.protocols.amqp import AmqpContext, AmqpSession, AmqpSettings, amqp_context
from flyball.broker.store.memory import MemoryStore
from flyball.broker.store.registry import NodeRecord, NodeState
from flyball.broker.transport.connection import Hub, Services
from flyball.model import Snapshot

SECRET = b"the secret of the domain"
LIMIT_S = 60.0


class _Members:
    """A record as the membership would have it."""

    def name_of(self, node_id: int) -> str:
        return f"node-{node_id}"


class _Changes:
    """How a node follows the others: tests may replace what it does."""

    def __init__(self, domain: HandMadeDomain, node_id: int) -> None:
        self._domain = domain
        self._node_id = node_id
        self.catch_up = self._catch_up
        self.claim = self._claim

    async def _catch_up(self) -> None:
        self._domain.tell(next(node for node in self._domain.nodes if node.id == self._node_id))

    async def _claim(self, vhost: str, name: str) -> int:
        return self._domain.names.setdefault((vhost, name), self._node_id)

    async def may_create(self, vhost: str, name: str) -> bool:
        return True


class DomainNode:
    """One node: all that serves AMQP and links, over a store in memory."""

    def __init__(
        self,
        made: HandMadeDomain,
        node_id: int,
        broker: Broker,
        topology: Topology,
        hub: Hub,
        context: AmqpContext,
    ) -> None:
        self.id = node_id
        self.broker = broker
        self.topology = topology
        self.hub = hub
        self.context = context
        self.directory = topology.directory
        self.changes = _Changes(made, node_id)
        identity = Identity(node_id, 1, SECRET)
        self.remotes = Remotes(topology, self.changes, partial(Peers, hub, identity), wait_s=2.0)
        self.peers = self.remotes.peers
        self.peers.commands.update(Ownership(topology).commands)
        followers = Followers(self.peers, lambda: ())
        context.queues.peering = Domain(f"node-{node_id}", self.remotes, _Members(), followers)
        self.servers: list[asyncio.Server] = []
        self.addresses: dict[str, str] = {}
        self.is_dead = False

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        factories: dict[str, Callable[[], asyncio.Protocol]] = {
            "amqp": lambda: AmqpSession(self.hub, self.context),
            "link": self.new_link_session,
        }
        for name, factory in factories.items():
            server = await loop.create_server(factory, "127.0.0.1", 0)
            self.servers.append(server)
            host, port = server.sockets[0].getsockname()
            self.addresses[name] = f"{host}:{port}"

    def new_link_session(self) -> LinkSession:
        return LinkSession(self.hub, self.peers, self.topology, self.context.intake, self.context.replies.send)

    @property
    def record(self) -> NodeRecord:
        state = NodeState.DEAD if self.is_dead else NodeState.UP
        return NodeRecord(self.id, f"node-{self.id}", 1, state, self.id, 5.0, self.addresses)

    def cut(self) -> None:
        """Break every connection of the node without a word."""
        for connection in list(self.hub.connections):
            if connection._transport is not None:
                connection._transport.abort()

    @property
    def sessions(self) -> list[AmqpSession]:
        return [session for session in self.hub.connections if isinstance(session, AmqpSession)]


def held_store(node: DomainNode) -> asyncio.Event:
    """Hold back what the node commits until the event that is returned is set."""
    gate = asyncio.Event()
    commit = node.broker.store.commit

    async def commit_when_open(*arguments: Any, **options: Any) -> None:
        await gate.wait()
        await commit(*arguments, **options)

    node.broker.store.commit = commit_when_open  # type: ignore[method-assign]
    return gate


class HandMadeDomain:
    """Nodes that know each other. Directories are updated when a node catches up."""

    def __init__(self) -> None:
        self.nodes: list[DomainNode] = []
        self.names: dict[tuple[str, str], int] = {}

    async def add(self, node: DomainNode) -> None:
        await node.listen()
        self.nodes.append(node)
        for other in self.nodes:
            other.peers.update(each.record for each in self.nodes)

    def tell(self, node: DomainNode) -> None:
        """Bring the node's directory up to date."""
        served = {
            state.queue.id: (state.queue, other.id)
            for other in self.nodes
            if other is not node
            for state in other.broker.engine.queues
        }
        known = {remote.queue.id: remote.owner for other in self.nodes for remote in node.directory.of_node(other.id)}
        for queue_id in known.keys() - served.keys():
            node.directory.remove(queue_id)
        for queue_id, (queue, owner) in served.items():
            if known.get(queue_id) != owner:
                node.directory.put(queue, owner)

    def send_all(self) -> None:
        for node in self.nodes:
            self.tell(node)

    def kill(self, node: DomainNode) -> None:
        """Declare a node dead: its connections are cut, and the others are notified."""
        node.is_dead = True
        for server in node.servers:
            server.close()
        node.cut()
        for other in self.nodes:
            if other is not node:
                other.peers.lost(node.id)


@contextlib.asynccontextmanager
async def domain(count: int = 2) -> AsyncIterator[HandMadeDomain]:
    """Run `count` nodes with disjoint ranges of queue ids."""
    made = HandMadeDomain()
    async with asyncio.TaskGroup() as tasks, contextlib.AsyncExitStack() as stack:
        for node_id in range(1, count + 1):
            await made.add(await _node(made, node_id, tasks, stack))
        try:
            yield made
        finally:
            for node in made.nodes:
                for server in node.servers:
                    server.close()
                node.peers.stop()
                node.cut()


async def _node(
    made: HandMadeDomain, node_id: int, tasks: asyncio.TaskGroup, stack: contextlib.AsyncExitStack
) -> DomainNode:
    store = MemoryStore()
    snapshot = await store.open()
    snapshot = Snapshot(
        snapshot.clients,
        snapshot.queues,
        next_queue_id=node_id * 1000,
        definitions=snapshot.definitions,
    )
    broker = Broker(
        store,
        snapshot,
        time_limit_s=5.0,
        resident_limit_bytes=1 << 30,
        max_message_bytes=1 << 24,
        tasks=tasks,
    )
    await broker.start()
    tasks.create_task(broker.journal.run())
    authority = Authority(broker.journal, snapshot.definitions, loopback_users=("guest",))
    await authority.start()
    topology = Topology(broker, authority, snapshot.definitions)
    queues = Queues(topology)
    broker.is_clustered = True
    context = amqp_context(
        queues,
        AmqpSettings(
            channel_max=100,
            frame_max_bytes=131072,
            heartbeat_s=0,
            max_message_bytes=1 << 24,
            consumer_timeout_s=1800.0,
            memory_bytes=1 << 30,
        ),
    )
    topics = Topics(queues, Definitions(broker.journal, ("topic",), ()))
    hub = Hub(Services(broker, authority, topics), tasks)

    async def stop() -> None:
        await broker.journal.stop()
        hub.stop()
        await broker.stop()

    stack.push_async_callback(stop)
    return DomainNode(made, node_id, broker, topology, hub, context)


@contextlib.asynccontextmanager
async def client(node: DomainNode) -> AsyncIterator[aio_pika.abc.AbstractConnection]:
    """Connect to a node."""
    connection = await aio_pika.connect(f"amqp://guest:guest@{node.addresses['amqp']}/")
    try:
        yield connection
    finally:
        await connection.close()


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test in a loop of its own, for a limited time."""

    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await test

    uvloop.run(limited())


async def until(condition: Callable[[], bool]) -> None:
    """Return when the condition holds; it is looked at after every turn of the loop."""
    # No event says when just any condition comes true.
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)
