"""Delays responses to changes until the other nodes have applied them, so that a client can use them on any node.

The change is already durable; the other nodes are asked to apply all changes made so far.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from flyball.broker.peering.link.peers import Peers
from flyball.errors import FlyballError

# The command to apply all durable changes; the node responds when that is done.
CATCH_UP = "catch_up"

# Timeout of a node that does not respond: it will apply the changes when it is reachable again.
RETRY_TIMEOUT_S = 2.0


class Followers:
    """Asks the other nodes in rounds: each round serves all callers that arrived before it started."""

    def __init__(
        self, peers: Peers, node_ids: Callable[[], Iterable[int]], *, time_limit_s: float = RETRY_TIMEOUT_S
    ) -> None:
        """`node_ids` returns the current nodes of the domain, without this one."""
        self._peers = peers
        self._node_ids = node_ids
        self._time_limit_s = time_limit_s
        # The next round, for callers that arrived after the current one started.
        self._next: asyncio.Future[None] | None = None
        self._is_asking = False

    async def followed(self) -> None:
        """Wait until all reachable nodes have applied the durable changes, or the timeout has passed."""
        if not self._reachable():
            return
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        round_end = self._next
        if not self._is_asking:
            self._is_asking = True
            self._peers.spawn(self._ask_in_rounds())
        # Shielded: other callers wait for the same future.
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
