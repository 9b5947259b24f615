"""The peers: the other nodes of the domain, with one link to each, opened on demand.

`remote` uses the links for everything except requests.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from flyball.backoff import Backoff, Retries
from flyball.broker.core.pending import outcome
from flyball.broker.peering.link.handshake import HANDSHAKE_S, Identity
from flyball.broker.peering.link.outgoing import Link, Settled
from flyball.broker.store.registry import NodeRecord, NodeState
from flyball.broker.transport.connection import Connection, Hub
from flyball.errors import PeerLost

log = logging.getLogger("flyball.server")

# Backoff of attempts to connect to a node.
RECONNECTS = Backoff(first_s=0.05, max_s=2.0, jitter_ratio=0.0)

# Lifetime after which a lost link is reopened without a delay. Otherwise a link that breaks on each use would be
# reopened in a tight loop.
STEADY_S = RECONNECTS.max_s

# Opens a connection to an address, host:port, for the factory's protocol. Raises OSError.
Connect = Callable[[str, Callable[[], asyncio.Protocol]], Awaitable[object]]

Command = Callable[..., Awaitable[Any]]


class PeerListener(Protocol):
    """Is notified of events of other nodes."""

    def node_changed(self, node_id: int) -> None:
        """A node was declared dead, or has become reachable."""
        ...

    def puts_answered(self) -> None:
        """Puts were confirmed: there is room for more."""
        ...


def connecting(tls: ssl.SSLContext | None = None) -> Connect:
    """Return a function that connects over TCP, or over TLS if a context is given."""

    async def connect(address: str, factory: Callable[[], asyncio.Protocol]) -> object:
        host, _, port = address.rpartition(":")
        return await asyncio.get_running_loop().create_connection(
            factory,
            host.strip("[]"),
            int(port),
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else HANDSHAKE_S,
        )

    return connect


class Peers:
    """All other nodes: their records, the links to them, and the commands that they may send."""

    def __init__(
        self, hub: Hub, identity: Identity, listener: PeerListener, *, connect: Connect | None = None
    ) -> None:
        self._hub = hub
        self.identity = identity
        self._listener = listener
        # Commands that other nodes may send, called with keyword arguments. Arguments and results are JSON.
        self.commands: dict[str, Command] = {"flush": self._flush}
        self.records: dict[int, NodeRecord] = {}
        # The links opened by other nodes.
        self.sessions: dict[int, Connection] = {}
        # By node, its epoch and the number of the last batch of messages that it handed over.
        self.handed: dict[int, tuple[int, int]] = {}
        self._connect = connect or connecting()
        # Nodes whose TLS failures were already logged.
        self._warned: set[int] = set()
        self._links: dict[int, Link] = {}
        self._retries: dict[int, Retries] = {}
        self._is_stopped = False
        # Acks sent since the last call of `take_settled`.
        self.settled = Settled()

    @property
    def node_id(self) -> int:
        return self.identity.node_id

    # Membership

    def update(self, records: Iterable[NodeRecord]) -> None:
        """Update the records. Links to nodes that are dead or removed are dropped."""
        before = self.records
        self.records = {record.id: record for record in records if record.id != self.node_id}
        for node_id, now in self.records.items():
            known = before.get(node_id)
            if known is not None and _place_of(known) == _place_of(now):
                continue
            if now.state is NodeState.DEAD:
                self.lost(node_id)
                continue
            if known is not None and known.epoch != now.epoch:
                self.drop(node_id, "has restarted")
            if self.can_reach(node_id):
                self._retries.pop(node_id, None)
                self._listener.node_changed(node_id)
        for node_id in before.keys() - self.records.keys():
            self.lost(node_id)

    def lost(self, node_id: int) -> None:
        """Drop the links of a dead node: it will send no more responses."""
        record = self.records.get(node_id)
        if record is not None and record.state is not NodeState.DEAD:
            self.records[node_id] = replace(record, state=NodeState.DEAD)
        self.drop(node_id, "is dead")
        self.handed.pop(node_id, None)
        self._listener.node_changed(node_id)

    def drop(self, node_id: int, problem: str) -> None:
        """Close the links from and to a node."""
        link = self._links.get(node_id)
        if link is not None:
            link.give_up(problem)
        session = self.sessions.get(node_id)
        if session is not None:
            session.abort()

    def drop_links(self) -> None:
        """Close all links from this node, whose lease had expired: frames received since then may be outdated.

        Their sender may have been declared dead, and other nodes may have redelivered its messages.
        """
        for link in list(self.links):
            link.give_up("was ignored while this node had no lease")

    def stop(self) -> None:
        """Close all links and open no more."""
        self._is_stopped = True
        for node_id in list(self._links):
            self.drop(node_id, "is no longer needed: this node stops")

    # Links

    def can_reach(self, node_id: int) -> bool:
        """Whether the node is expected to be reachable."""
        record = self.records.get(node_id)
        return record is not None and record.state is not NodeState.DEAD and "link" in record.addresses

    def link(self, node_id: int) -> Link | None:
        """Return the link to a node, which may still be connecting; None for an unreachable node."""
        link = self._links.get(node_id)
        if link is None and self.can_reach(node_id) and not self._is_stopped:
            link = self._links[node_id] = Link(self._hub, self.identity, self, node_id)
            self._hub.spawn(self._open(link, self.records[node_id].addresses["link"]))
        return link

    def known_link(self, node_id: int) -> Link | None:
        """Return the link to a node if it exists; opens none."""
        return self._links.get(node_id)

    def reach(self, node_id: int) -> Link:
        """Return the link to a node. Raises PeerLost if the node is unreachable."""
        link = self.link(node_id)
        if link is None:
            raise PeerLost(node_id, "is not reachable")
        return link

    @property
    def links(self) -> Collection[Link]:
        """A view of the open links."""
        return self._links.values()

    def take_settled(self) -> Settled:
        """Return the acks sent since the last call."""
        settled, self.settled = self.settled, Settled()
        return settled

    def link_lost(self, link: Link) -> None:
        self.settled.links.pop(link, None)
        if self._links.get(link.node_id) is link:
            del self._links[link.node_id]
        if link.is_ready and asyncio.get_running_loop().time() - link.ready_at_s >= STEADY_S:
            self._retries.pop(link.node_id, None)

    def link_ready(self, link: Link) -> None:
        self._warned.discard(link.node_id)

    def puts_answered(self) -> None:
        self._listener.puts_answered()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task, which is cancelled when the node stops."""
        self._hub.spawn(work)

    async def _open(self, link: Link, address: str) -> None:
        retries = self._retries.get(link.node_id)
        if retries is None:
            self._retries[link.node_id] = Retries(RECONNECTS)
        else:
            await asyncio.sleep(retries.next_delay_s())
        if link.is_lost:
            return
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await self._connect(address, lambda: link)
        except (OSError, ValueError) as error:
            if isinstance(error, ssl.SSLError) and link.node_id not in self._warned:
                self._warned.add(link.node_id)
                log.warning(
                    "TLS with node %d at %s failed: %s; all nodes of a domain need --link-tls-cert and --link-tls-ca"
                    " of the same CA",
                    link.node_id,
                    address,
                    error,
                )
            link.give_up(f"cannot be reached at {address}: {error or 'no response'}")

    # Requests

    async def request(
        self, node_id: int, command: str, arguments: Mapping[str, Any], time_limit_s: float = 10.0
    ) -> Any:
        """Execute a command on another node and return its result.

        Raises PeerLost if the node does not respond, and the node's own errors.
        """
        return await self.reach(node_id).request(command, arguments, time_limit_s)

    async def _flush(self) -> None:
        """Wait until all earlier operations are durable."""
        await outcome(self._hub.broker.when_durable)


def _place_of(record: NodeRecord) -> tuple[int, bool, str | None]:
    """Return the fields that decide whether and where a node is reachable."""
    return record.epoch, record.state is NodeState.DEAD, record.addresses.get("link")
