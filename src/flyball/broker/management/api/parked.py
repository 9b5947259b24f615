"""Parked messages, which could not be dead-lettered: listed, requeued and dropped."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from flyball.broker.core.pending import outcome
from flyball.broker.engine.access import Action
from flyball.broker.management import inspection
from flyball.broker.management.api import domain_view, fields
from flyball.broker.management.api.answers import answer, moment
from flyball.broker.management.api.context import ApiContext, Body, Call, Routes
from flyball.errors import ClusterError, InvalidArgument

# Maximum messages in a list; `messages_parked` of the queue has the total.
MAX_LISTED = 1000

REQUEUE, DROP = "requeue", "drop"

LIST = "parked"
ACT = "act_on_parked"

_BODY = Body({"action": "string", "ids": "array"}, ("action",))


routes = Routes()


@routes.peer(LIST)
async def parked_here(context: ApiContext, vhost: str, name: str) -> list[dict[str, Any]]:
    state = context.node.hub.broker.engine.find_queue(name, vhost)
    return [] if state is None else inspection.parked_list(state, MAX_LISTED)


@routes.get("/queues/{vhost}/{name}/parked")
async def list_parked(call: Call) -> Response:
    """List the parked messages of a queue, which could not be dead-lettered, with reasons."""
    vhost, name = await _existing(call)
    reported = await call.context.domain_nodes.ask_all(LIST, {"vhost": vhost, "name": name})
    return answer(
        [
            {
                "id": facts["id"],
                "node": node,
                "reason": facts["reason"],
                "problem": facts["problem"],
                "parked_at": moment(facts["parked_at_s"]),
                "payload_bytes": facts["body_bytes"],
            }
            for node, parked in reported.items()
            for facts in parked
        ]
    )


@routes.post("/queues/{vhost}/{name}/parked", body=_BODY)
async def act_on_parked(call: Call) -> Response:
    """Requeue or drop parked messages of a queue: those with the given ids, or all."""
    vhost, name = await _existing(call)
    call.check(vhost, Action.READ, name, f"queue '{name}'")
    document = await call.document()
    action = fields.text(document, "action")
    if action not in (REQUEUE, DROP):
        raise InvalidArgument(f"unknown action {action!r} on parked messages: use {REQUEUE} or {DROP}")
    ids = document.get("ids")
    if ids is not None and not (isinstance(ids, list) and all(type(number) is int for number in ids)):
        raise InvalidArgument("field 'ids' must be a list of numbers from the list")
    arguments = {"vhost": vhost, "name": name, "action": action, "ids": ids}
    answers = await call.context.domain_nodes.ask_all(ACT, arguments)
    return answer({"count": sum(answers.values())})


@routes.peer(ACT)
async def act_here(context: ApiContext, vhost: str, name: str, action: str, ids: list[int] | None) -> int:
    broker = context.node.hub.broker
    state = broker.engine.find_queue(name, vhost)
    if state is None:
        return 0
    if action == REQUEUE:
        return broker.dead_lettering.requeue_parked(state, ids)
    if action != DROP:
        raise ClusterError(f"unknown action {action!r} on parked messages")
    counted: list[int] = []
    await outcome(lambda done: counted.append(broker.dead_lettering.drop_parked(state, ids, done)))
    return counted[0]


async def _existing(call: Call) -> tuple[str, str]:
    """Return vhost and name of an existing queue. Raises QueueNotFound."""
    vhost, name = call.vhost, call.part("name")
    await domain_view.queue(call, vhost, name)
    return vhost, name
