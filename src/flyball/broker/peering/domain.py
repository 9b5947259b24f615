"""The other nodes of a domain, as queues and sessions use them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from flyball.broker.core.directory import RemoteQueue
from flyball.broker.core.handles import QueueHandle
from flyball.broker.core.peering import Peering, PutDone, Settled
from flyball.broker.core.queues import RETRY_S
from flyball.broker.peering.handles import RemoteHandle
from flyball.broker.peering.link.followers import Followers
from flyball.broker.peering.remote import Remotes
from flyball.broker.wire import link as wire
from flyball.broker.wire.link import Content
from flyball.errors import FlyballError, PeerLost

# Unsent bytes of a link above which direct replies, which are not confirmed, are dropped.
UNREAD_BYTES = 8 * 1024 * 1024

# Timeout of a queue whose name another node has claimed.
CLAIM_LIMIT_S = 10.0


class Members(Protocol):
    """The part of the membership that the domain uses."""

    def name_of(self, node_id: int) -> str: ...


class Domain(Peering):
    """The peers of a node in a domain. The base class documents the methods."""

    def __init__(self, name: str, remotes: Remotes, members: Members, followers: Followers) -> None:
        self.name = name
        self.node_id = remotes.peers.node_id
        self._remotes = remotes
        self._changes = remotes.changes
        self._puts = remotes.puts
        self._peers = remotes.peers
        self._directory = remotes.directory
        self._members = members
        self._followers = followers

    @property
    def is_clustered(self) -> bool:
        return self._remotes.broker.is_clustered

    def name_of(self, node_id: int) -> str:
        return self._members.name_of(node_id)

    def can_reach(self, node_id: int) -> bool:
        return self._peers.can_reach(node_id)

    async def ask_owners(
        self, command: str, arguments: Mapping[str, Any], time_limit_s: float
    ) -> tuple[dict[int, Any], list[FlyballError]]:
        answers: dict[int, Any] = {}
        errors: list[FlyballError] = []

        async def ask(node_id: int) -> None:
            try:
                answers[node_id] = await self._peers.request(node_id, command, arguments, time_limit_s)
            except FlyballError as error:
                errors.append(error)

        await asyncio.gather(*[ask(owner) for owner in {remote.owner for remote in self._directory.all()}])
        return answers, errors

    async def catch_up(self) -> None:
        await self._changes.catch_up()

    async def followed(self) -> None:
        await self._followers.followed()

    async def may_create(self, vhost: str, name: str) -> bool:
        return await self._changes.may_create(vhost, name)

    async def settle_name(self, vhost: str, name: str) -> None:
        loop = asyncio.get_running_loop()
        owner = await self._changes.claim(vhost, name)
        deadline_s = loop.time() + CLAIM_LIMIT_S
        while owner != self.node_id and self._directory.find(vhost, name) is None:
            if loop.time() >= deadline_s:
                raise PeerLost(owner, f"has claimed the name of the queue '{name}' and has not created it yet")
            await self.catch_up()
            if self._directory.find(vhost, name) is None:
                await self.news(RETRY_S)
                owner = await self._changes.claim(vhost, name)

    async def news(self, time_limit_s: float) -> None:
        await self._remotes.news(time_limit_s)

    def handle(self, remote: RemoteQueue) -> QueueHandle:
        return RemoteHandle(self._remotes, remote.queue)

    def put(
        self,
        remotes: Sequence[RemoteQueue],
        content: Content,
        done: PutDone,
        token: int,
        owner: object = None,
        missing: list[int] | None = None,
    ) -> None:
        self._puts.put(remotes, content, done, token, owner, missing)

    def forget(self, owner: object) -> None:
        self._puts.forget(owner)

    def must_wait(self, remotes: Sequence[RemoteQueue]) -> bool:
        return self._puts.must_wait(remotes)

    def when_clear(self, remotes: Sequence[RemoteQueue], go_on: Callable[[], None]) -> None:
        self._puts.when_clear(remotes, go_on)

    def take_settled(self) -> Settled:
        return self._peers.take_settled()

    def settled_in_vain(self) -> None:
        self._peers.settled.is_in_vain = True

    def reply(self, node_id: int, name: str, content: Content) -> None:
        link = self._peers.link(node_id)
        if link is not None and link.unread_bytes <= UNREAD_BYTES:
            link.send(wire.encode_reply(name, content))
