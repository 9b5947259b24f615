"""The other nodes of the domain as this one reaches them: one link to each, opened when it is needed.

What goes over a link, beside requests, is the business of `remote`.
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

# Between two attempts to reach a node.
RECONNECTS = Backoff(first_s=0.05, max_s=2.0, jitter_ratio=0.0)

# Only a link that has lived this long is opened again without a delay. One that breaks whenever it is used would
# otherwise be opened again and again, as fast as the nodes can.
STEADY_S = RECONNECTS.max_s

# Opens a connection to an address, host:port, for the protocol that the factory makes. Raises OSError.
Connect = Callable[[str, Callable[[], asyncio.Protocol]], Awaitable[object]]

Command = Callable[..., Awaitable[Any]]


class PeerListener(Protocol):
    """What hears of other nodes."""

    def node_changed(self, node_id: int) -> None:
        """A node is declared dead, or can be reached that could not be before."""
        ...

    def puts_answered(self) -> None:
        """Less waits for the answers of a node."""
        ...


def connecting(tls: ssl.SSLContext | None = None) -> Connect:
    """Return what connects over TCP, with TLS if there is a context for it."""

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
    """All other nodes: who they are, the links to them, and what this node answers when they ask."""

    def __init__(
        self, hub: Hub, identity: Identity, listener: PeerListener, *, connect: Connect | None = None
    ) -> None:
        self._hub = hub
        self.identity = identity
        self._listener = listener
        # What other nodes may ask for: called with the arguments by name. Arguments and answers are JSON's.
        self.commands: dict[str, Command] = {"flush": self._flush}
        self.records: dict[int, NodeRecord] = {}
        # The links that others have opened to this node.
        self.sessions: dict[int, Connection] = {}
        # For each node its epoch and the last batch of messages that it has handed over.
        self.handed: dict[int, tuple[int, int]] = {}
        self._connect = connect or connecting()
        # The nodes of which the log says already that TLS fails with them.
        self._warned: set[int] = set()
        self._links: dict[int, Link] = {}
        self._retries: dict[int, Retries] = {}
        self._is_stopped = False
        # What was settled since this was looked at last.
        self.settled = Settled()

    @property
    def node_id(self) -> int:
        return self.identity.node_id

    # What membership tells

    def update(self, records: Iterable[NodeRecord]) -> None:
        """Take over who is there, and where. A node that is declared dead, or has gone, is lost."""
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
                self.drop(node_id, "is another one by now")
            if self.can_reach(node_id):
                self._retries.pop(node_id, None)
                self._listener.node_changed(node_id)
        for node_id in before.keys() - self.records.keys():
            self.lost(node_id)

    def lost(self, node_id: int) -> None:
        """The node is dead: nothing that it was sent will be answered."""
        record = self.records.get(node_id)
        if record is not None and record.state is not NodeState.DEAD:
            self.records[node_id] = replace(record, state=NodeState.DEAD)
        self.drop(node_id, "is dead")
        self.handed.pop(node_id, None)
        self._listener.node_changed(node_id)

    def drop(self, node_id: int, problem: str) -> None:
        """End the links from and to a node."""
        link = self._links.get(node_id)
        if link is not None:
            link.give_up(problem)
        session = self.sessions.get(node_id)
        if session is not None:
            session.abort()

    def drop_links(self) -> None:
        """End all links from this node: it had no lease, and what they have brought since may be true no more.

        Whoever sent it may have died meanwhile, and others have what it delivered.
        """
        for link in list(self.links):
            link.give_up("was not heard while this node had no lease")

    def stop(self) -> None:
        """End all links and open none any more."""
        self._is_stopped = True
        for node_id in list(self._links):
            self.drop(node_id, "is not needed any more: this node stops")

    # Links

    def can_reach(self, node_id: int) -> bool:
        """Whether it is worth trying to reach the node."""
        record = self.records.get(node_id)
        return record is not None and record.state is not NodeState.DEAD and "link" in record.addresses

    def link(self, node_id: int) -> Link | None:
        """Return the link to a node, which may be on its way; None if there is no such node."""
        link = self._links.get(node_id)
        if link is None and self.can_reach(node_id) and not self._is_stopped:
            link = self._links[node_id] = Link(self._hub, self.identity, self, node_id)
            self._hub.spawn(self._open(link, self.records[node_id].addresses["link"]))
        return link

    def known_link(self, node_id: int) -> Link | None:
        """Return the link to a node if there is one: none is opened."""
        return self._links.get(node_id)

    def reach(self, node_id: int) -> Link:
        """Return the link to a node. Raises PeerLost if there is no such node."""
        link = self.link(node_id)
        if link is None:
            raise PeerLost(node_id, "is not there")
        return link

    @property
    def links(self) -> Collection[Link]:
        """All links, at the moment: more may come and go."""
        return self._links.values()

    def take_settled(self) -> Settled:
        """Return what was settled since the last call."""
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
        """Start what has to do with other nodes and takes longer. It ends with the node at the latest."""
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
                    "TLS with node %d at %s fails: %s; all nodes of a domain need --link-tls-cert and --link-tls-ca,"
                    " of one authority",
                    link.node_id,
                    address,
                    error,
                )
            link.give_up(f"cannot be reached at {address}: {error or 'no answer'}")

    # Requests

    async def request(
        self, node_id: int, command: str, arguments: Mapping[str, Any], time_limit_s: float = 10.0
    ) -> Any:
        """Ask another node for something and return its answer.

        Raises PeerLost if it does not answer, and an error of the kind that the other node met.
        """
        return await self.reach(node_id).request(command, arguments, time_limit_s)

    async def _flush(self) -> None:
        """Answered when everything that came before is durable."""
        await outcome(self._hub.broker.when_durable)


def _place_of(record: NodeRecord) -> tuple[int, bool, str | None]:
    """Return what decides whether and where a node can be reached."""
    return record.epoch, record.state is NodeState.DEAD, record.addresses.get("link")
