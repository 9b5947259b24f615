"""Asks the nodes of a domain, over HTTP, where a client belongs.

It knows some nodes by their addresses; whichever of them answers knows the others.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

import h11

from flyball.broker.cluster.gateway import Placement, Wish
from flyball.broker.settings import Address
from flyball.errors import ClusterError, NotPermitted, QueueNotFound, RequestError

ANSWER_S = 5.0
"""A node that has not answered by then is not there."""

LONGEST_ANSWER_BYTES = 64 * 1024

_ERRORS, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _SERVER_ERRORS = 400, 401, 403, 404, 500


class HttpPlacer:
    """A placer that asks nodes in turn, beginning with the one that answered last. It asks as the client's user."""

    def __init__(self, nodes: Sequence[Address]) -> None:
        self._nodes = list(nodes)

    async def place(self, wish: Wish, lost: Placement | None = None) -> Placement:
        query = {"queue": wish.queue, "role": wish.role, "vhost": wish.vhost}
        if lost is not None:
            query |= {"session": lost.session, "avoid": lost.node}
        answer = await self._ask("GET", query, wish)
        try:
            address = Address.parse(answer["amqp"])
            return Placement(address, str(answer["node"]), str(answer.get("session") or ""))
        except (KeyError, TypeError, ValueError):
            node = answer.get("node") if isinstance(answer, dict) else None
            raise ClusterError(f"node {node!r} has no AMQP listener; start it with --amqp") from None

    async def ended(self, wish: Wish, placement: Placement) -> None:
        if placement.session:
            await self._ask("DELETE", {"session": placement.session}, wish)

    async def _ask(self, method: str, query: dict[str, str], wish: Wish) -> Any:
        problems: list[str] = []
        for node in list(self._nodes):
            try:
                async with asyncio.timeout(ANSWER_S):
                    status, body = await _request(node, method, "/api/place?" + urlencode(query), wish)
                answer = json.loads(body) if body else None
            except (OSError, EOFError, TimeoutError, h11.ProtocolError, ValueError) as error:
                problems.append(f"{node}: {error or type(error).__name__}")
                if self._nodes[0] is node:
                    # Else another request has found out as well.
                    self._nodes.append(self._nodes.pop(0))
                continue
            if status < _ERRORS:
                return answer
            raise _error_of(status, answer, wish)
        raise ClusterError(
            f"no node answers over HTTP ({'; '.join(problems)}); see --node and `flyball serve --http`"
        )


def _error_of(status: int, answer: Any, wish: Wish) -> ClusterError | RequestError:
    text = str(answer["reason"]) if isinstance(answer, dict) and "reason" in answer else f"HTTP status {status}"
    if status in (_UNAUTHORIZED, _FORBIDDEN):
        return NotPermitted(text)
    if status == _NOT_FOUND:
        return QueueNotFound(wish.queue, wish.vhost)
    return ClusterError(text) if status >= _SERVER_ERRORS else RequestError(text)


async def _request(node: Address, method: str, target: str, wish: Wish) -> tuple[int, bytes]:
    """Send one request and return status and body of its answer."""
    reader, writer = await asyncio.open_connection(*node)
    try:
        connection = h11.Connection(h11.CLIENT)
        token = base64.b64encode(f"{wish.user}:".encode() + wish.password).decode()
        headers = [("Host", str(node)), ("Authorization", f"Basic {token}"), ("Connection", "close")]
        request = connection.send(h11.Request(method=method, target=target, headers=headers))
        writer.write((request or b"") + (connection.send(h11.EndOfMessage()) or b""))
        return await _answer(connection, reader)
    finally:
        writer.transport.abort()


async def _answer(connection: h11.Connection, reader: asyncio.StreamReader) -> tuple[int, bytes]:
    status, body = 0, b""
    while True:
        event = connection.next_event()
        match event:
            case h11.NEED_DATA:
                connection.receive_data(await reader.read(LONGEST_ANSWER_BYTES))
            case h11.Response(status_code=code):
                status = code
            case h11.Data(data=data):
                body += data
                if len(body) > LONGEST_ANSWER_BYTES:
                    raise ValueError(f"an answer of more than {LONGEST_ANSWER_BYTES} bytes")
            case h11.EndOfMessage():
                return status, body
            case _:
                raise EOFError("it ended in mid-answer")
