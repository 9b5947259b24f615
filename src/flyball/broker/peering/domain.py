"""The other nodes of a domain, as queues and sessions use them."""

from __future__ import annotations

from flyball.broker.core.directory import RemoteQueue
from flyball.broker.core.queues import QueueHandle
from flyball.broker.peering.handles import RemoteHandle
from flyball.broker.peering.remote import Remotes


class Domain:
    """What this node asks of the others; see `Peering`."""

    def __init__(self, remotes: Remotes) -> None:
        self._remotes = remotes

    @property
    def is_clustered(self) -> bool:
        return self._remotes.broker.in_company

    def handle(self, remote: RemoteQueue) -> QueueHandle:
        return RemoteHandle(self._remotes, remote.queue)

    async def catch_up(self) -> None:
        await self._remotes.catch_up()

    async def settle_name(self, vhost: str, name: str) -> None:
        await self._remotes.settle_name(vhost, name)

    async def news(self, time_limit_s: float) -> None:
        await self._remotes.news(time_limit_s)
