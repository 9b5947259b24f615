"""Asks the nodes of a domain over HTTP which node a client should connect to.

Any node can answer for the domain, so the addresses of some nodes are enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from flyball.broker.cluster.gateway import NodePlacement, PlacementRequest
from flyball.broker.settings import Address
from flyball.client.http import AWAY, Line, Place, Refused, path_of, reason_of
from flyball.errors import ClusterError, NotPermitted, QueueNotFound, RequestError

# Time limit of a node's answer.
ANSWER_S = 5.0

_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _SERVER_ERRORS = 401, 403, 404, 500


class HttpPlacer:
    """Asks nodes in turn, starting with the one that answered last, with the client's credentials."""

    def __init__(self, nodes: Sequence[Address]) -> None:
        self._nodes = list(nodes)

    async def place(self, request: PlacementRequest, lost: NodePlacement | None = None) -> NodePlacement:
        query = {"queue": request.queue, "role": request.role, "vhost": request.vhost}
        if lost is not None:
            query |= {"session": lost.session, "avoid": lost.node}
        answer = await self._ask("GET", query, request)
        try:
            address = Address.parse(answer["amqp"])
            return NodePlacement(address, str(answer["node"]), str(answer.get("session") or ""))
        except (KeyError, TypeError, ValueError):
            node = answer.get("node") if isinstance(answer, dict) else None
            raise ClusterError(f"node {node!r} has no AMQP listener: start it with --amqp") from None

    async def ended(self, request: PlacementRequest, placement: NodePlacement) -> None:
        if placement.session:
            await self._ask("DELETE", {"session": placement.session}, request)

    async def _ask(self, method: str, query: dict[str, str], request: PlacementRequest) -> Any:
        problems: list[str] = []
        for node in list(self._nodes):
            line = Line(_place_of(node, request))
            try:
                async with asyncio.timeout(ANSWER_S):
                    return (await line.ask(method, path_of("place", **query))).document
            except AWAY as error:
                if isinstance(error, Refused) and error.is_from_node:
                    raise _error_of(error, request) from None
                problems.append(f"{node}: {reason_of(error)}")
                if self._nodes[0] is node:
                    # Otherwise a concurrent request has rotated the list already.
                    self._nodes.append(self._nodes.pop(0))
            finally:
                line.close()
        raise ClusterError(
            f"no node answers over HTTP ({'; '.join(problems)}); see --node and `flyball serve --http`"
        )


def _place_of(node: Address, request: PlacementRequest) -> Place:
    return Place(f"http://{quote(request.user, safe='')}:{quote(request.password, safe='')}@{node}")


def _error_of(error: Refused, request: PlacementRequest) -> ClusterError | RequestError:
    if error.status in (_UNAUTHORIZED, _FORBIDDEN):
        return NotPermitted(error.reason)
    if error.status == _NOT_FOUND:
        return QueueNotFound(request.queue, request.vhost)
    return ClusterError(error.reason) if error.status >= _SERVER_ERRORS else RequestError(error.reason)
