"""The other nodes of a domain, as queues and sessions use them."""

from __future__ import annotations

from typing import Protocol

from flyball.broker.core.directory import RemoteQueue
from flyball.broker.core.handles import QueueHandle
from flyball.broker.core.peering import Settled
from flyball.broker.peering.handles import RemoteHandle
from flyball.broker.peering.link.followers import Followers
from flyball.broker.peering.remote import Remotes


class Members(Protocol):
    """The nodes of the domain, as membership knows them."""

    def name_of(self, node_id: int) -> str: ...

    def address_of(self, node_id: int, protocol: str) -> str | None: ...

    async def may_create(self, vhost: str, name: str) -> bool: ...


class Domain:
    """What this node asks of the others; see `Peering`."""

    def __init__(self, name: str, remotes: Remotes, members: Members, followers: Followers) -> None:
        peers = remotes.peers
        self.name = name
        self.name_of = members.name_of
        self.address_of = members.address_of
        self.may_create = members.may_create
        self.followed = followers.followed
        self.ask_owners = remotes.ask_owners
        self._remotes = remotes
        self._peers = peers
        self.node_id = peers.node_id
        self.can_reach = peers.can_reach
        self.put = remotes.puts.put
        self.forget = remotes.puts.forget
        self.when_clear = remotes.puts.when_clear
        self.reply = remotes.reply

    @property
    def is_clustered(self) -> bool:
        return self._remotes.broker.is_clustered

    @property
    def must_wait(self) -> bool:
        return self._remotes.puts.must_wait

    async def catch_up(self) -> None:
        await self._remotes.catch_up()

    async def settle_name(self, vhost: str, name: str) -> None:
        await self._remotes.settle_name(vhost, name)

    async def news(self, time_limit_s: float) -> None:
        await self._remotes.news(time_limit_s)

    def handle(self, remote: RemoteQueue) -> QueueHandle:
        return RemoteHandle(self._remotes, remote.queue)

    def take_settled(self) -> Settled:
        return self._peers.take_settled()

    def settled_in_vain(self) -> None:
        self._peers.settled.is_in_vain = True
