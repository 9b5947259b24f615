"""Lets a change be answered when the other nodes know it, so that whoever hears of it can rely on it anywhere.

What has changed is not known here: it is durable, and the others are asked to follow up to now.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from flyball.broker.peering.link.peers import Peers
from flyball.errors import FlyballError

# The command that a node answers when it has followed all that was durable before.
CATCH_UP = "catch_up"

# A node that does not answer is waited for so long: it follows when it can be reached again.
RETRY_TIMEOUT_S = 2.0


class Followers:
    """The other nodes, asked in rounds: each serves all who came before it began."""

    def __init__(
        self, peers: Peers, node_ids: Callable[[], Iterable[int]], *, time_limit_s: float = RETRY_TIMEOUT_S
    ) -> None:
        """`node_ids` tells which nodes take part at present, without this one."""
        self._peers = peers
        self._node_ids = node_ids
        self._time_limit_s = time_limit_s
        # What those wait for who came after the round under way had begun.
        self._next: asyncio.Future[None] | None = None
        self._is_asking = False

    async def followed(self) -> None:
        """Return when all nodes that can be reached know what was durable before, or after the time limit."""
        if not self._reachable():
            return
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        round_end = self._next
        if not self._is_asking:
            self._is_asking = True
            self._peers.spawn(self._ask_in_rounds())
        # Others may wait for the same round.
        await asyncio.shield(round_end)

    def _reachable(self) -> list[int]:
        return [node_id for node_id in self._node_ids() if self._peers.can_reach(node_id)]

    async def _ask_in_rounds(self) -> None:
        try:
            while self._next is not None:
                round_end, self._next = self._next, None
                try:
                    await asyncio.gather(*[self._ask(node_id) for node_id in self._reachable()])
                finally:
                    round_end.set_result(None)
        finally:
            self._is_asking = False

    async def _ask(self, node_id: int) -> None:
        with contextlib.suppress(FlyballError):
            await self._peers.request(node_id, CATCH_UP, {}, self._time_limit_s)
