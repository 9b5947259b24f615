"""Queues declared, deleted and purged. What there are is told in `queues`."""

from __future__ import annotations

from starlette.responses import Response

from flyball.broker.management.api import fields
from flyball.broker.management.api.answers import done
from flyball.broker.management.api.context import ApiContext, ApiRoute, Body, Call
from flyball.broker.management.api.inside import CHANNEL, channel, has_queue
from flyball.broker.wire import amqp
from flyball.errors import InvalidArgument, InvalidName, QueueNotFound

_BODY = Body({"durable": "boolean", "auto_delete": "boolean", "arguments": "object"})
_DELETION = {"if-empty": "true: only if it holds no message", "if-unused": "true: only if nobody consumes it"}


def routes(context: ApiContext) -> list[ApiRoute]:
    return [
        context.put("/queues/{vhost}/{name}", declare_queue, body=_BODY),
        context.delete("/queues/{vhost}/{name}", delete_queue, query=_DELETION),
        context.delete("/queues/{vhost}/{name}/contents", purge_queue),
        context.post("/queues/{vhost}/{name}/actions", act_on_queue, body=Body({"action": "string"}, ("action",))),
    ]


async def declare_queue(call: Call) -> Response:
    """Declare a queue, or see that it is as declared."""
    vhost, name = call.vhost, call.part("name")
    document = await call.document()
    method = declaration(name, document)
    is_new = not await has_queue(call.node, vhost, name)
    async with channel(call, vhost) as inside:
        await inside.call(method, amqp.QueueDeclareOk)
    return done(201 if is_new else 204)


async def delete_queue(call: Call) -> Response:
    """Delete a queue and what it holds."""
    vhost, name = await _existing(call)
    query = call.request.query_params
    if_unused, if_empty = fields.flag(query, "if-unused", False), fields.flag(query, "if-empty", False)
    async with channel(call, vhost) as inside:
        await inside.call(amqp.QueueDelete(CHANNEL, name, if_unused, if_empty, False), amqp.QueueDeleteOk)
    return done()


async def purge_queue(call: Call) -> Response:
    """Remove all messages of a queue that nobody holds."""
    vhost = call.vhost
    async with channel(call, vhost) as inside:
        await inside.call(amqp.QueuePurge(CHANNEL, call.part("name"), False), amqp.QueuePurgeOk)
    return done()


async def act_on_queue(call: Call) -> Response:
    """Synchronise the mirrors of a queue, or stop that: it has none, so that there is nothing to do."""
    await _existing(call)
    action = fields.text(await call.document(), "action")
    if action not in ("sync", "cancel_sync"):
        raise InvalidArgument(f"there is no action {action!r} on a queue: give sync or cancel_sync")
    return done()


def declaration(name: str, document: fields.Document) -> amqp.QueueDeclare:
    """Return the declaration that a document makes; what it does not say is as in AMQP.

    Raises InvalidArgument, InvalidName.
    """
    if not name:
        # AMQP would make up a name, which nobody would get to know.
        raise InvalidName("the name of a queue cannot be empty")
    return amqp.QueueDeclare(
        CHANNEL,
        name,
        False,
        fields.flag(document, "durable", False),
        False,
        fields.flag(document, "auto_delete", False),
        False,
        fields.table(document, "arguments"),
    )


async def _existing(call: Call) -> tuple[str, str]:
    vhost, name = call.vhost, call.part("name")
    if not await has_queue(call.node, vhost, name):
        raise QueueNotFound(name, vhost)
    return vhost, name
