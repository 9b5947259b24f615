"""The domain: its state, its decision log, and commands for administrators."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

from starlette.responses import Response

from flyball.broker.cluster.http import NodePlaces
from flyball.broker.management.api.answers import Refused, answer, not_found, stream
from flyball.broker.management.api.context import Body, Call, Right, Routes
from flyball.broker.management.commands import manage
from flyball.broker.node.node import Node
from flyball.errors import ClusterError, InvalidArgument, PeerLost

PREFIX = "domain."
# Maximum number of sessions in a list.
MAX_SESSIONS = 1000
SESSION_ROWS = "session.tell"
# Time limit of a node's answer.
ANSWER_S = 3.0
NOT_HERE = "this node does not belong to a domain: start it with a shared store, --store postgresql://..."


_SINCE = {"since": "Only decisions after this number", "term": "of this term"}

routes = Routes()


async def tree_of(node: Node) -> Mapping[str, Any]:
    """Return the state of the domain; without a domain, that of this node."""
    return await NodePlaces(node).domain()


@routes.get("/flyball/domain", Right.MONITORING)
async def show_domain(call: Call) -> Response:
    """Return the state of the domain: nodes, clustered queues with members, topics, users and factories."""
    return answer(await tree_of(call.node))


@routes.get("/flyball/domain/decisions", Right.MONITORING, query=_SINCE)
async def list_decisions(call: Call) -> Response:
    """Return the decision log of the domain's leader."""
    query = call.request.query_params
    try:
        since = int(query.get("since", "0"))
    except ValueError:
        raise InvalidArgument("since must be the number of a decision") from None
    ask = call.node.hub.commands.get("domain.decisions")
    if ask is None:
        return answer({"leader": None, "term": None, "last": 0, "decisions": []})
    return answer(await ask(since=since, term=query.get("term", "")))


@routes.get("/flyball/domain/sessions", Right.MONITORING)
async def list_sessions(call: Call) -> Response:
    """List the producers and consumers of clustered queues with their members, as reported by the nodes."""
    nodes = [node for node in call.node.membership.nodes if node.is_live]
    reported = await asyncio.gather(*(_sessions_of(call.node, node.id) for node in nodes))
    sessions = [(node.name, *session) for node, some in zip(nodes, reported, strict=True) for session in some]
    return stream(sessions[:MAX_SESSIONS], lambda session: _session(call.node, *session))


async def _sessions_of(node: Node, node_id: int) -> Sequence[Sequence[Any]]:
    """Return the sessions of a node; none if it does not answer, or has no domain."""
    rows_here = node.peers.commands.get(SESSION_ROWS)
    if rows_here is None:
        return ()
    try:
        if node_id == node.membership.node_id:
            return cast("Sequence[Sequence[Any]]", await rows_here())
        return cast("Sequence[Sequence[Any]]", await node.peers.request(node_id, SESSION_ROWS, {}, ANSWER_S))
    except PeerLost:
        return ()


def _session(
    node: Node, node_name: str, session_id: str, role: str, queue_id: int, rate_per_s: float | None
) -> dict[str, Any]:
    hub = node.hub
    here, there = hub.broker.engine.find_queue_by_id(queue_id), hub.directory.get(queue_id)
    # The member may have been removed since the node reported the session.
    queue = here.queue if here is not None else None if there is None else there.queue
    return {
        "id": session_id,
        "role": role,
        "vhost": None if queue is None else queue.vhost,
        "queue": None if queue is None else queue.name,
        "node": node_name,
        "rate_per_s": rate_per_s,
    }


@routes.post("/flyball/domain/commands/{command}", Right.ADMINISTRATOR, Body({}))
async def command(call: Call) -> Response:
    """Run a command of the domain; the document holds its arguments."""
    name = PREFIX + call.part("command").removeprefix(PREFIX)
    arguments = await call.document()
    if name not in call.node.hub.commands:
        known = ", ".join(sorted(each for each in call.node.hub.commands if each.startswith(PREFIX)))
        raise not_found(f"unknown command {name!r}; available: {known}" if known else NOT_HERE)
    try:
        return answer({"result": await manage(call.node.hub, name, arguments)})
    except PeerLost:
        raise
    except ClusterError as error:
        raise Refused(409, str(error)) from error
